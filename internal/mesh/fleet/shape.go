package fleet

import (
	"fmt"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"tare/internal/mesh/istiod"
)

// Shape is a mesh that is made up for a fleet, so that whoever makes it and the fleet agree about it: proxy i serves
// service i modulo their number, and the proxies of a service call the next few.
type Shape struct {
	Proxies  int `json:"proxies"`
	Services int `json:"services"`
	Calls    int `json:"calls"` // how many services those of a service are told of besides their own; 0: of all
}

// Ready is what a control plane for a fleet says when it listens.
type Ready struct {
	Shape
	Address string `json:"address"` // xDS, host:port
	Control string `json:"control"` // where it takes changes of endpoints (mesh.Dial), host:port
	// Credentials has a directory for each service, with what its proxies connect by
	// (authority.Credentials.WriteFiles); empty: they connect in the clear.
	Credentials string `json:"credentials,omitempty"`
	// Effect is what shows when a change has its effect at real proxies; null: there are none.
	Effect *Effect `json:"effect,omitempty"`
	// Nodes are who the proxies say that they are, where ids alone do not tell a control plane enough: NodesIstio.
	Nodes string `json:"nodes,omitempty"`
}

// NodesIstio has proxies be sidecars of pods at addresses, with metadata, each in the namespace of its service.
const NodesIstio = "istio"

// Bounds of a Shape.
const (
	MaxProxies  = 20_000
	MaxServices = 60_000 // what the addresses of endpoints have room for
	Changes     = 65_000 // that are told from each other; then their numbers begin anew, from 1
)

// ServiceOf is the service that a proxy serves, from 0.
func (s Shape) ServiceOf(proxy int) int { return proxy % s.Services }

// Callers are the services, from 0, whose proxies are told of a service; nil: all.
func (s Shape) Callers(service int) (list []int) {
	for j := range min(s.Calls, s.Services-1) {
		list = append(list, (service+s.Services-1-j)%s.Services)
	}
	return list
}

// Concerned are the proxies that are told of a service.
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

// NodeID is the id of a proxy.
func NodeID(proxy int) string { return fmt.Sprint("fleet-", proxy) }

// ServiceName is the name of a service, from 0.
func ServiceName(service int) string { return fmt.Sprint("service-", service) }

// Endpoint is where a service is since a change: the address, in 10.200.0.0/16, tells the service, the port the change.
// Nobody is there.
func Endpoint(service, change int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(service >> 8), byte(service)}), uint16(change))
}

// MarkOf is what an assignment of such endpoints tells.
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

// nodes are who the proxies are.
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
