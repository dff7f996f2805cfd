// Package xds is a client of the xDS protocol (aggregated discovery service, version 3), with state of the world or
// deltas. It subscribes to a control plane's clusters, their endpoints, listeners and their routes, and passes changes
// on as mesh.Change, in an order in which no listener refers to a missing cluster. It refuses unacceptable resources by
// name, and keeps their previous form (docs/xds.md).
package xds

import (
	"fmt"
	"time"

	"tare/internal/mesh/xds/translate"
)

// Kind is a type of resources to which the client subscribes.
type Kind uint8

// The kinds, in the order in which the client subscribes to them.
const (
	Clusters Kind = iota
	Endpoints
	Listeners
	Routes
	kinds = 4
)

var typeURLs = [kinds]string{
	"type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
	"type.googleapis.com/envoy.config.listener.v3.Listener",
	"type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
}

// TypeURL returns the kind's type URL in the protocol.
func (k Kind) TypeURL() string { return typeURLs[k] }

func (k Kind) String() string {
	return [...]string{"clusters", "endpoints", "listeners", "routes"}[k]
}

// one returns the kind's name for a single resource, as used in refusals.
func (k Kind) one() string {
	return [...]string{"cluster", "endpoints", "listener", "routes"}[k]
}

// KindOf returns the kind with the given type URL, and reports whether there is one.
func KindOf(typeURL string) (Kind, bool) {
	for k, url := range typeURLs {
		if url == typeURL {
			return Kind(k), true
		}
	}
	return 0, false
}

// response is a control plane's response, in either variant of the protocol.
type response struct {
	delta    bool // it is of the delta variant
	most     int  // maximum number of resources and removed names; 0: unlimited
	typeURL  string
	version  string
	nonce    string
	wire     int    // length of the message in bytes
	count    int    // number of resources
	message  []byte // the whole message
	left     []byte // the rest of message, from the first resource that next has not returned
	received int64  // ns by pace.Now
	decoding time.Duration
	handled  chan struct{} // for a large response: closed when the client has processed it
}

// item is one received resource.
type item struct {
	typeURL string
	value   []byte // a slice of the message: keeping it would keep the whole message
	name    string // only with deltas, or if the resource came in a wrapper with a time to live
	version string // delta only
	ttl     bool

	read parsed
}

// parsed holds what intake.read finds out about a resource without changing the state.
type parsed struct {
	name string // from the resource, or from the response if that has one
	sum  digest // digest of the resource's value
	same bool   // the resource is unchanged; nothing below is set
	made any    // result of state.parse; nil if the resource was not decoded
	err  error  // why the resource cannot be decoded
	cost int    // memory in bytes that made takes, or an upper bound
	late bool   // stage must decode it if it fits, which is known only once the resources before it are staged
}

// request is a request of the client.
type request struct {
	kind    Kind
	version string // state of the world: the last accepted version
	nonce   string
	wrong   string // why the client refuses the response with that nonce

	names []string // state of the world: the whole subscription; empty: everything

	subscribe, unsubscribe []string          // delta
	versions               map[string]string // delta: the versions that the client has, in the first request of a stream

	event *Event // the event to report once the request has been sent; nil: the request does not answer a response
}

// refused returns the error for a resource that the client itself, not the store, refuses.
func refused(k Kind, name, format string, args ...any) *translate.Refusal {
	return &translate.Refusal{Kind: k.one(), Name: name, What: fmt.Sprintf(format, args...)}
}
