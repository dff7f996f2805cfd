package plane

import (
	"context"
	"fmt"
	"net/netip"

	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/fleet"
	"tare/internal/mesh/istiod"
)

// istio is Istio's control plane. The services of the shape are ServiceEntries in a Kubernetes API, and each service
// has a namespace, in which its proxies are pods. A Sidecar object limits the services that the proxies of a namespace
// get.
type istio struct {
	*istiod.Istiod
	services map[string]istiod.Service
}

func (o options) istiod(ctx context.Context) (served, error) {
	p := &istio{services: map[string]istiod.Service{}}
	var all []istiod.Service
	for i := range o.Services {
		s := istiod.Service{Name: fleet.ServiceName(i), Namespace: fleet.ServiceName(i), Protocol: "HTTP",
			Address:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80),
			Endpoints: []netip.AddrPort{fleet.Endpoint(i, 1)}}
		all = append(all, s)
		p.services[s.Name] = s
	}
	objects := []istiod.Object{}
	calls := map[int][]istiod.Service{} // by caller
	for i, s := range all {
		objects = append(objects, s.Object())
		for _, by := range o.Callers(i) {
			calls[by] = append(calls[by], s)
		}
	}
	if o.Calls > 0 {
		for i, s := range all {
			objects = append(objects, istiod.Scope(s.Namespace, calls[i]...))
		}
	}
	var err error
	environment := append(istiod.Debounced(o.debounce), fmt.Sprintf("PILOT_MAX_REQUESTS_PER_SECOND=%d", o.admits))
	p.Istiod, err = istiod.Start(ctx, istiod.Options{Objects: objects, Environment: environment})
	return p, err
}

func (p *istio) ready() fleet.Ready { return fleet.Ready{Address: p.XDS, Nodes: fleet.NodesIstio} }

func (p *istio) setEndpoints(_ context.Context, of map[string][]proxyconfig.Endpoint) error {
	var changed []istiod.Object
	for name, endpoints := range of {
		s := p.services[name]
		s.Endpoints = nil
		for _, e := range endpoints {
			at, err := netip.ParseAddrPort(e.Address)
			if err != nil {
				return fmt.Errorf("the endpoint of %s: %w", name, err)
			}
			s.Endpoints = append(s.Endpoints, at)
		}
		changed = append(changed, s.Object())
	}
	p.PutObjects(changed...)
	return nil
}

func (p *istio) run(ctx context.Context) error { return p.Watch(ctx) }

func (p *istio) close() error { return p.Close() }
