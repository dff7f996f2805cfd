package ads

import (
	"cmp"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// The types of resources whose order matters.
const (
	ClusterType     = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType    = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	SecretType      = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ListenerType    = "type.googleapis.com/envoy.config.listener.v3.Listener"
	ScopedRouteType = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"
	RouteType       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// kind is how resources of a type are to be told.
type kind struct {
	stage stage
	rank  int  // of those of a stage, the lower goes first
	whole bool // state of the world: a response has all of them, and what is not in it is gone
	roots bool // who asks for none by name wants all
	late  bool // what is removed goes in the last stage, once nothing of the others refers to it any more
}

// stage is a part of a change. What is new comes before what refers to it, and what is old goes after what referred to
// it: "make before break" of Envoy's docs/root/api-docs/xds_protocol.rst.
type stage int

const (
	makes  stage = iota // clusters, their endpoints, secrets
	turns               // listeners and routes, which send traffic there
	breaks              // what is gone
	stages
)

var kinds = map[string]kind{
	ClusterType:     {stage: makes, rank: 0, whole: true, roots: true, late: true},
	EndpointType:    {stage: makes, rank: 1, late: true},
	SecretType:      {stage: makes, rank: 2, late: true},
	ListenerType:    {stage: turns, rank: 4, whole: true, roots: true}, // one may get the address of another
	ScopedRouteType: {stage: turns, rank: 5, whole: true, roots: true},
	RouteType:       {stage: turns, rank: 6, late: true},
	VirtualHostType: {stage: turns, rank: 7, late: true},
}

// kindOf is for any type.
func kindOf(url string) kind {
	if k, known := kinds[url]; known {
		return k
	}
	return kind{stage: makes, rank: 3, whole: true, roots: true}
}

// Need is a resource of another type that a data plane waits for whenever it gets this one, though it may have it:
// Envoy keeps a cluster that has changed out of use until its endpoints have come once more (the note under "Resource
// warming" of xds_protocol.rst), and with deltas does not ask for them, since it has subscribed to them already.
type Need struct{ URL, Name string }

// NeedsOf are the endpoints of a cluster, and the routes of a listener.
func NeedsOf(m any) (needs []Need) {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		if m.GetType() != clusterv3.Cluster_EDS {
			return nil
		}
		return []Need{{EndpointType, cmp.Or(m.GetEdsClusterConfig().GetServiceName(), m.GetName())}}
	case *listenerv3.Listener:
		for _, c := range append(m.GetFilterChains(), m.GetDefaultFilterChain()) {
			for _, f := range c.GetFilters() {
				a := f.GetTypedConfig()
				if !strings.HasSuffix(a.GetTypeUrl(), ".HttpConnectionManager") {
					continue
				}
				var h hcmv3.HttpConnectionManager
				if a.UnmarshalTo(&h) == nil && h.GetRds().GetRouteConfigName() != "" {
					needs = append(needs, Need{RouteType, h.GetRds().GetRouteConfigName()})
				}
			}
		}
	}
	return needs
}
