package ads

import (
	"cmp"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// The resource types that must be sent in order.
const (
	ClusterType     = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType    = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	SecretType      = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ListenerType    = "type.googleapis.com/envoy.config.listener.v3.Listener"
	ScopedRouteType = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"
	RouteType       = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// kind describes how resources of a type must be sent.
type kind struct {
	stage stage
	rank  int  // within a stage, lower ranks are sent first
	whole bool // state of the world: a response has all resources; those that are missing are removed
	roots bool // a request without names subscribes to all resources of the type
	late  bool // removals are sent in the last stage, when no other resource refers to them any more
}

// stage is a stage of a change. A new resource is sent before the resources that refer to it. An old resource is
// removed only after the resources that referred to it have changed ("make before break" in Envoy's
// docs/root/api-docs/xds_protocol.rst).
type stage int

const (
	makes  stage = iota // clusters, their endpoints, secrets
	turns               // listeners and routes, which direct traffic to them
	breaks              // removals
	stages
)

var kinds = map[string]kind{
	ClusterType:     {stage: makes, rank: 0, whole: true, roots: true, late: true},
	EndpointType:    {stage: makes, rank: 1, late: true},
	SecretType:      {stage: makes, rank: 2, late: true},
	ListenerType:    {stage: turns, rank: 4, whole: true, roots: true}, // a late removal could block a new address
	ScopedRouteType: {stage: turns, rank: 5, whole: true, roots: true},
	RouteType:       {stage: turns, rank: 6, late: true},
	VirtualHostType: {stage: turns, rank: 7, late: true},
}

// kindOf returns the kind of any type, known or not.
func kindOf(url string) kind {
	if k, known := kinds[url]; known {
		return k
	}
	return kind{stage: makes, rank: 3, whole: true, roots: true}
}

// Need identifies a resource that must be sent again whenever a resource that refers to it is sent, even if the data
// plane already has it. Envoy does not use a changed cluster until it has received the cluster's endpoints again (see
// the note under "Resource warming" in xds_protocol.rst). With deltas, Envoy does not request the endpoints, because it
// is already subscribed to them.
type Need struct{ URL, Name string }

// NeedsOf returns the needs of a resource: the endpoints of a cluster, and the routes of a listener.
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
