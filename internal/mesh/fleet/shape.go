package fleet

import (
	"fmt"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"tare/internal/mesh/istiod"
)

// Shape describes a mesh that is generated for a fleet, so that the control plane and the fleet agree about it: proxy i
// serves service i modulo Services, and the proxies of a service call the next few services.
type Shape struct {
	Proxies  int `json:"proxies"`
	Services int `json:"services"`
	Calls    int `json:"calls"` // how many services the proxies of a service get besides their own; 0: all
}

// Ready is the ready message of a control plane for a fleet.
type Ready struct {
	Shape
	Address string `json:"address"` // xDS, host:port
	Control string `json:"control"` // where it accepts changes of endpoints (services.Dial), host:port
	// Credentials is a directory. For each service, it has a subdirectory, named as by ServiceName, with the credentials
	// of the service's proxies (authority.Credentials.WriteFiles). If it is empty, proxies connect without TLS.
	Credentials string `json:"credentials,omitempty"`
	// Effect is the service with which real proxies show a change's effect; nil: there are none.
	Effect *Effect `json:"effect,omitempty"`
	// Nodes is NodesIstio if proxies must identify themselves as istiod expects it. If it is empty, they send a node id
	// without an address or metadata.
	Nodes string `json:"nodes,omitempty"`
}

// NodesIstio makes each proxy identify itself as the sidecar of a pod, with an address and metadata, in the namespace
// of its service.
const NodesIstio = "istio"

// Limits of a Shape.
const (
	MaxProxies  = 20_000
	MaxServices = 60_000 // limited by the addresses of endpoints
	Changes     = 65_000 // number of distinguishable changes; later changes are numbered from 1 again
)

// ServiceOf returns the number of the service that a proxy serves, counted from 0.
func (s Shape) ServiceOf(proxy int) int { return proxy % s.Services }

// Callers returns the services, counted from 0, whose proxies call a service. The list is empty if Calls is 0, although
// then all services call it.
func (s Shape) Callers(service int) (list []int) {
	for j := range min(s.Calls, s.Services-1) {
		list = append(list, (service+s.Services-1-j)%s.Services)
	}
	return list
}

// Concerned returns the proxies that a change of a service's endpoints concerns: those of the services that call it.
func (s Shape) Concerned(service int) (proxies []int) {
	callers := s.Callers(service)
	if s.Calls == 0 {
		callers = nil
		for i := range s.Services {
			callers = append(callers, i)
		}
	}
	for _, by := range callers {
		for i := by; i < s.Proxies; i += s.Services {
			proxies = append(proxies, i)
		}
	}
	return proxies
}

// NodeID returns the node id of a proxy.
func NodeID(proxy int) string { return fmt.Sprint("fleet-", proxy) }

// ServiceName returns the name of a service, which is given by its number, counted from 0.
func ServiceName(service int) string { return fmt.Sprint("service-", service) }

// Endpoint returns the endpoint of a service after a change: the address, in 10.200.0.0/16, encodes the service, and
// the port encodes the change. Nothing listens there.
func Endpoint(service, change int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(service >> 8), byte(service)}), uint16(change))
}

// MarkOf returns the service and the change that the endpoints of an assignment encode (Endpoint), or the zero Mark if
// they encode none.
func MarkOf(a *endpointv3.ClusterLoadAssignment) Mark {
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			s := e.GetEndpoint().GetAddress().GetSocketAddress()
			ip, err := netip.ParseAddr(s.GetAddress())
			if err != nil || !ip.Is4() {
				return Mark{}
			}
			if b := ip.As4(); b[0] == 10 && b[1] == 200 {
				return Mark{Service: 1 + int(b[2])<<8 + int(b[3]), Change: int(s.GetPortValue())}
			}
		}
	}
	return Mark{}
}

// nodes returns a function that returns the node of proxy i.
func (r Ready) nodes() func(int) *corev3.Node {
	if r.Nodes != NodesIstio {
		return func(i int) *corev3.Node { return &corev3.Node{Id: NodeID(i), Cluster: "fleet"} }
	}
	return func(i int) *corev3.Node {
		at := netip.AddrFrom4([4]byte{10, 201, byte(i >> 8), byte(i)})
		id, words := istiod.NodeOf(NodeID(i), ServiceName(r.ServiceOf(i)), at)
		metadata := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for key, word := range words {
			metadata.Fields[key] = structpb.NewStringValue(word)
		}
		return &corev3.Node{Id: id, Cluster: "fleet", Metadata: metadata}
	}
}
