// Package xds is a client of the xDS protocol (aggregated discovery service, version 3): it asks a control plane for
// clusters, their endpoints, listeners and their routes, as state of the world or as deltas, and hands on what changes
// as mesh.Change, in an order in which no listener refers to a cluster that is not there. What cannot be taken is
// refused by name, and what was there before stays (docs/xds.md).
package xds

import (
	"fmt"
	"time"

	"tare/internal/mesh/xds/translate"
)

// Kind is one of the kinds of resources that the client asks for.
type Kind uint8

// The kinds, in the order in which they are asked for.
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

// TypeURL is the kind's name in the protocol.
func (k Kind) TypeURL() string { return typeURLs[k] }

func (k Kind) String() string {
	return [...]string{"clusters", "endpoints", "listeners", "routes"}[k]
}

// one is the kind's name for a single resource, in refusals.
func (k Kind) one() string {
	return [...]string{"cluster", "endpoints", "listener", "routes"}[k]
}

// KindOf is the kind of a name in the protocol.
func KindOf(typeURL string) (Kind, bool) {
	for k, url := range typeURLs {
		if url == typeURL {
			return Kind(k), true
		}
	}
	return 0, false
}

// response is what a control plane said, by either variant of the protocol.
type response struct {
	delta    bool // of the variant of deltas
	most     int  // resources, and names of removed ones, that it may have; 0: any number
	typeURL  string
	version  string
	nonce    string
	wire     int    // bytes of the message
	count    int    // resources
	message  []byte // the whole
	left     []byte // of it, from the first resource that next has not given
	received int64  // ns by pace.Now
	decoding time.Duration
	handled  chan struct{} // of a large one: closed when the client is done with it
}

// item is one resource as it came.
type item struct {
	typeURL string
	value   []byte // a part of the message: it must not outlive the response, or it keeps all of it
	name    string // delta only, or of a wrapper
	version string // delta only
	ttl     bool

	read parsed
}

// parsed is what can be known of a resource without changing anything: see state.read.
type parsed struct {
	name string // as the resource or the response has it
	sum  digest // of its value
	same bool   // it is as it came before; nothing more is known then
	made any    // by state.parse; nil where it was not decoded
	err  error  // why it cannot be
	cost int    // bytes of memory that made takes, or may take at most
	late bool   // there may be no room for it, which shows once what comes before it is staged; it was not decoded
}

// request is what the client says.
type request struct {
	kind    Kind
	version string // state of the world: the last that was taken
	nonce   string
	wrong   string // why the response of that nonce is refused

	names []string // state of the world: all that is asked for; none: everything

	subscribe, unsubscribe []string          // delta
	versions               map[string]string // delta: what the client has, in the first request of a stream

	event *Event // that the request ends
}

// refused is the error for a resource that the client itself cannot take.
func refused(k Kind, name, format string, args ...any) *translate.Refusal {
	return &translate.Refusal{Kind: k.one(), Name: name, What: fmt.Sprintf(format, args...)}
}
