// Package xds is a client of the xDS protocol (aggregated discovery service, version 3). It subscribes at a control
// plane to clusters, their endpoints, listeners and their routes, with state of the world or deltas, and passes
// changes on as mesh.Change, in an order in which no listener refers to a missing cluster. Unacceptable resources are
// refused by name, and what was there before stays (docs/xds.md).
package xds

import (
	"fmt"
	"time"

	"tare/internal/mesh/xds/translate"
)

// Kind is a type of resources that the client subscribes to.
type Kind uint8

// The kinds, in the order of the subscriptions.
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

// TypeURL returns the kind's name in the protocol.
func (k Kind) TypeURL() string { return typeURLs[k] }

func (k Kind) String() string {
	return [...]string{"clusters", "endpoints", "listeners", "routes"}[k]
}

// one returns the kind's name for a single resource, for refusals.
func (k Kind) one() string {
	return [...]string{"cluster", "endpoints", "listener", "routes"}[k]
}

// KindOf returns the kind of a type URL, and reports whether there is one.
func KindOf(typeURL string) (Kind, bool) {
	for k, url := range typeURLs {
		if url == typeURL {
			return Kind(k), true
		}
	}
	return 0, false
}

// response is a response of the control plane, of either variant of the protocol.
type response struct {
	delta    bool // of the delta variant
	most     int  // maximum number of resources and names of removed ones; 0: unlimited
	typeURL  string
	version  string
	nonce    string
	wire     int    // bytes of the message
	count    int    // resources
	message  []byte // the whole message
	left     []byte // the rest of message, from the first resource that next has not returned
	received int64  // ns by pace.Now
	decoding time.Duration
	handled  chan struct{} // of a large response: closed when the client has processed it
}

// item is one received resource.
type item struct {
	typeURL string
	value   []byte // a slice of the message: keeping it would keep the whole message
	name    string // delta, or from a wrapper
	version string // delta only
	ttl     bool

	read parsed
}

// parsed holds what intake.read finds out about a resource without changing the state.
type parsed struct {
	name string // in the resource or in the response
	sum  digest // of its value
	same bool   // it is unchanged; nothing else is then set
	made any    // made by state.parse; nil if it was not decoded
	err  error  // why it cannot be decoded
	cost int    // memory in bytes that made takes, or may take at most
	late bool   // not decoded: it may not fit, which is known only once those before it are staged
}

// request is a request of the client.
type request struct {
	kind    Kind
	version string // state of the world: the last accepted version
	nonce   string
	wrong   string // why the response with that nonce is refused

	names []string // state of the world: the whole subscription; none: everything

	subscribe, unsubscribe []string          // delta
	versions               map[string]string // delta: what the client has, in the first request of a stream

	event *Event // the event that the request completes
}

// refused returns the error for a resource that the client itself cannot accept.
func refused(k Kind, name, format string, args ...any) *translate.Refusal {
	return &translate.Refusal{Kind: k.one(), Name: name, What: fmt.Sprintf(format, args...)}
}
