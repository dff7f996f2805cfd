// Package ring makes meshes for tests and benchmarks of control planes. Each service is called only by the next few
// services, so that what a proxy receives does not grow with the mesh.
package ring

import (
	"fmt"
	"net/netip"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"tare/internal/mesh/controlplane/proxyconfig"
)

// Mesh has services "s0", "s1", ..., and proxies "p0", "p1", ..., of which proxy i serves service i modulo Services.
type Mesh struct {
	Services int
	Proxies  int    // default: one for each service
	Calls    int    // number of services that a proxy may call by policy: those just before its own
	MTLS     string // default: off
}

// Service and Proxy return the names of service i and of proxy i.
func Service(i int) string { return fmt.Sprint("s", i) }
func Proxy(i int) string   { return fmt.Sprint("p", i) }

// Endpoints returns the endpoints of a service after a change, numbered from 1: the address encodes the service, and
// the port the change. Nothing listens there.
func Endpoints(service, change int) []proxyconfig.Endpoint {
	return []proxyconfig.Endpoint{{Address: fmt.Sprintf("10.200.%d.%d:%d", service>>8, service&255, change)}}
}

// ChangeOf returns the service and the change that the endpoints in an assignment encode; ok is false for other
// endpoints.
func ChangeOf(a *endpointv3.ClusterLoadAssignment) (service, change int, ok bool) {
	if len(a.GetEndpoints()) == 0 || len(a.GetEndpoints()[0].GetLbEndpoints()) == 0 {
		return 0, 0, false
	}
	s := a.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	ip, err := netip.ParseAddr(s.GetAddress())
	if err != nil || !ip.Is4() {
		return 0, 0, false
	}
	b := ip.As4()
	return int(b[2])<<8 | int(b[3]), int(s.GetPortValue()), b[0] == 10 && b[1] == 200
}

// Config returns the mesh as it is after the given change of all services.
func (m Mesh) Config(change int) *proxyconfig.Config {
	c := &proxyconfig.Config{Discovery: "policy", MTLS: m.MTLS}
	for i := range m.Services {
		s := proxyconfig.Service{Name: Service(i), Protocol: "http", Endpoints: Endpoints(i, change),
			Address: fmt.Sprintf("10.%d.%d.%d:80", i>>16, i>>8&255, i&255)}
		a := proxyconfig.Access{}
		for j := range m.Calls {
			a.From = append(a.From, Service((i+j+1)%m.Services))
		}
		s.Access = []proxyconfig.Access{a}
		c.Services = append(c.Services, s)
	}
	for i := range m.count() {
		name := Service(i % m.Services)
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{ID: Proxy(i), Identity: name,
			Inbound: map[string]proxyconfig.Inbound{name: {Listen: "0.0.0.0:15006", To: "127.0.0.1:80"}}})
	}
	return c
}

// Callers returns the proxies that may call a service, and so receive its configuration.
func (m Mesh) Callers(service int) (proxies []int) {
	for j := range m.Calls {
		for i := (service + j + 1) % m.Services; i < m.count(); i += m.Services {
			proxies = append(proxies, i)
		}
	}
	return proxies
}

func (m Mesh) count() int {
	if m.Proxies > 0 {
		return m.Proxies
	}
	return m.Services
}
