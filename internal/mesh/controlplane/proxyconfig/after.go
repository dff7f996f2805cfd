package proxyconfig

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// CompileAfter compiles a configuration like Compile, but reuses what has not changed since an earlier mesh: unchanged
// messages, lists and parts stay where they are in memory, so that the server finds the changes by comparing pointers.
// before may be nil, and is not modified.
func (c *Config) CompileAfter(before *Mesh) (*Mesh, error) {
	m := &Mesh{config: c, mtls: mtls(c.MTLS), trustDomain: c.TrustDomain, names: map[string]*service{},
		classes: map[classKey]*class{}, proxies: map[string]*proxy{}}
	if err := m.settings(); err != nil {
		return nil, err
	}
	if before == nil || !m.like(before) {
		before = &Mesh{config: &Config{}}
	}
	m.before = before
	for _, step := range []func() error{m.readServices, m.readProxies, m.readIngress, m.compileServices, m.readResources,
		m.compileClasses, m.compileProxies} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	m.before = nil
	for _, s := range m.services {
		s.prior = nil
	}
	return m, nil
}

// WithEndpoints returns the mesh with other endpoints for some services, by service name. It compiles only these
// services again if it can, but does all the work of CompileAfter if, for example, one of them gains its first endpoint
// or loses its last, or gains or loses host names.
func (m *Mesh) WithEndpoints(of map[string][]Endpoint) (*Mesh, error) {
	c := *m.config
	c.Services = slices.Clone(c.Services)
	for name, endpoints := range of {
		s := m.names[name]
		if s == nil {
			return nil, wrongAt(fmt.Errorf("there is no service %s", name), "services")
		}
		c.Services[s.index].Endpoints = endpoints
	}
	next := *m
	next.config, next.names, next.classes = &c, maps.Clone(m.names), maps.Clone(m.classes)
	next.services = slices.Clone(m.services)
	moved := map[*endpointv3.ClusterLoadAssignment]*endpointv3.ClusterLoadAssignment{}
	for name := range of {
		s := m.names[name]
		if !s.served() || len(s.from) > 0 && s.protocol == protocolUDP || s.assignment == nil || len(s.Endpoints) == 0 ||
			len(of[name]) == 0 {
			return c.CompileAfter(m)
		}
		n := *s
		n.Service, n.prior = &c.Services[s.index], s
		if err := n.upstream(&next); err != nil {
			return nil, s.where(err)
		}
		if n.prior = nil; n.cluster != s.cluster {
			return c.CompileAfter(m)
		}
		next.names[name], next.services[s.index] = &n, &n
		moved[s.assignment] = n.assignment
	}
	for key, before := range m.classes {
		if list := replaced(before.Endpoints, moved); list != nil {
			c := *before
			c.Endpoints = list
			next.classes[key] = &c
		}
	}
	return &next, nil
}

// replaced returns a copy of a list in which each element that is a key of the map is replaced by the key's value. It
// returns nil if no element is a key.
func replaced[T comparable](list []T, others map[T]T) (out []T) {
	for i, m := range list {
		other, is := others[m]
		if !is {
			continue
		}
		if out == nil {
			out = slices.Clone(list)
		}
		out[i] = other
	}
	return out
}

// like reports whether two meshes agree in the settings that affect all services and proxies.
func (m *Mesh) like(o *Mesh) bool {
	return m.mtls == o.mtls && m.trustDomain == o.trustDomain && m.config.Discovery == o.config.Discovery &&
		(len(m.config.Proxies) > 0) == (len(o.config.Proxies) > 0)
}

// findPrior sets s.prior to the service in the earlier mesh, if everything but its endpoints is unchanged. The callers
// of s must be known.
func (s *service) findPrior(m *Mesh) {
	o := m.before.names[s.Name]
	if o == nil || !s.says(o) || s.protocol != o.protocol || s.restricted != o.restricted ||
		!slices.Equal(s.ids, o.ids) || !slices.Equal(s.callers, o.callers) ||
		// The grants of the service depend on the services that lead to it.
		!slices.EqualFunc(s.from, o.from, (*service).says) {
		return
	}
	s.prior = o
}

// says reports whether two services have the same definition, except for endpoints.
func (s *service) says(o *service) bool {
	a, b := *s.Service, *o.Service
	a.Endpoints, b.Endpoints = nil, nil
	return reflect.DeepEqual(&a, &b)
}

// asBefore reports whether the service is unchanged, endpoints included.
func (s *service) asBefore() bool {
	return s.prior != nil && slices.Equal(s.Endpoints, s.prior.Endpoints)
}

// ownBefore returns a proxy's own resources in the earlier mesh, or nil if something that they depend on has changed.
func (m *Mesh) ownBefore(p *proxy) *Resources {
	o := m.before.proxies[p.ID]
	if o == nil || p.id != o.id || p.policy != o.policy || (p.Outbound == nil) != (o.Outbound == nil) ||
		!maps.Equal(p.Inbound, o.Inbound) || !maps.Equal(p.Outbound, o.Outbound) ||
		!maps.Equal(p.Redirected, o.Redirected) || !slices.Equal(p.ingress, o.ingress) {
		return nil
	}
	for name := range p.Inbound {
		if m.names[name].prior == nil {
			return nil
		}
	}
	for name := range p.Outbound {
		if m.names[name].prior == nil {
			return nil
		}
	}
	for _, g := range p.ingress {
		if m.names[g.Service].prior == nil {
			return nil
		}
	}
	if c := m.classes[p.class()]; c != m.before.classes[p.class()] && c.clash(o.own) {
		return nil // compiling the proxy will return the error
	}
	return o.own
}

// clash reports whether a proxy's own resources share a name or a listening address with those of its class.
func (c *class) clash(own *Resources) bool {
	clash := false
	_ = own.names(func(n name) error {
		clash = clash || c.names[n]
		return nil
	})
	for _, l := range own.Listeners {
		_, taken := c.places[placeOf(l)]
		clash = clash || taken
	}
	return clash
}

// after returns r with each list replaced by the list in before if the two are equal, so that unchanged lists keep
// their backing arrays.
func (r Resources) after(before *Resources) Resources {
	r.Clusters = after(r.Clusters, before.Clusters)
	r.Endpoints = after(r.Endpoints, before.Endpoints)
	r.Listeners = after(r.Listeners, before.Listeners)
	r.Routes = after(r.Routes, before.Routes)
	r.Secrets = after(r.Secrets, before.Secrets)
	return r
}

func after[T comparable](list, before []T) []T {
	if slices.Equal(list, before) {
		return before
	}
	return list
}

// is reports whether r and o have the same messages, compared by pointer, in the same order.
func (r *Resources) is(o *Resources) bool {
	return slices.Equal(r.Clusters, o.Clusters) && slices.Equal(r.Endpoints, o.Endpoints) &&
		slices.Equal(r.Listeners, o.Listeners) && slices.Equal(r.Routes, o.Routes) && slices.Equal(r.Secrets, o.Secrets)
}
