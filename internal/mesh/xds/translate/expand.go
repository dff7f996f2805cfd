package translate

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"tare/internal/mesh"
)

// Env gives access to the resources on which a listener depends.
type Env struct {
	Routes  func(name string) *Routes  // returns nil if not received yet
	Cluster func(name string) *Cluster // returns nil if not received yet
	Own     []netip.Addr               // addresses of the workload that the data plane represents
}

// Served holds the listeners, any number of them, that a data plane serves in place of one of the control plane's
// listeners.
type Served struct {
	Listeners []*mesh.Listener // the first has the listener's name, if its own address is served
	// Clusters are those that Listeners name and the control plane does not have: the workload itself, or a cluster
	// without endpoints.
	Clusters []*Cluster
	// Guarded are the workload's addresses for which Listeners decide who may connect. Callers that reached them as
	// endpoints of a service would bypass that decision (Cluster.Shield).
	Guarded  []netip.AddrPort
	Warnings []*Warning
}

// Expand returns what a data plane serves for the listener. It returns nil without an error if something that the
// listener needs has not been received yet.
func (l *Listener) Expand(env Env) (*Served, error) {
	if l.plain != nil && !l.passes(l.plain, env) {
		return &Served{Listeners: []*mesh.Listener{l.plain}}, nil
	}
	for _, name := range l.Routes {
		if env.Routes(name) == nil {
			return nil, nil
		}
	}
	s := &Served{}
	e := expanding{Listener: l, env: env, out: s, reader: newReader()}
	all, known, err := e.ways()
	switch {
	case err != nil:
	case !known:
		return nil, nil
	case l.inbound:
		e.inward(all)
	case l.original:
		err = e.rest(all)
	default:
		err = e.outward(all)
	}
	if err != nil {
		return nil, Refused("listener", l.Name, err)
	}
	for _, one := range s.Listeners {
		if err := rules(one); err != nil {
			return nil, Refused("listener", l.Name, err)
		}
	}
	s.Warnings = warnings("listener", l.Name, *e.warnings)
	return s, nil
}

// passes reports whether any chain of a listener passes connections through unchanged.
func (l *Listener) passes(m *mesh.Listener, env Env) bool {
	for i := range len(m.Chains) + 1 {
		for _, w := range m.Chain(i).Proxy.Clusters {
			if c := env.Cluster(w.Name); c != nil && c.Discovery == Original {
				return true
			}
		}
	}
	return false
}

type expanding struct {
	*Listener
	env Env
	out *Served
	reader
}

// outcome determines what happens to connections.
type outcome struct {
	rbac     []mesh.RBAC
	clusters []mesh.WeightedCluster
	pass     bool   // connections pass through unchanged
	nothing  bool   // the cluster never has endpoints: connections are refused
	closed   string // why connections must be refused; empty: they need not be refused
}

func (o *outcome) same(p *outcome) bool {
	return o.pass == p.pass && o.nothing == p.nothing && (o.closed == "") == (p.closed == "") &&
		sameClusters(o.clusters, p.clusters) && reflect.DeepEqual(o.rbac, p.rbac)
}

// refuses reports whether all connections are refused.
func (o *outcome) refuses() bool {
	return o.nothing || o.closed != "" || !o.pass && len(o.clusters) == 0
}

// way is the outcome for some of the connections of a chain.
type way struct {
	*part
	field string
	match mesh.Match
	out   outcome
}

// to returns the outcome for connections to clusters. ok is false if one of the clusters has not been received yet.
func (e *expanding) to(clusters []mesh.WeightedCluster, rbac []mesh.RBAC, closed string) (o outcome, ok bool) {
	o = outcome{rbac: rbac, closed: closed}
	if closed != "" {
		return o, true
	}
	passing := 0
	for _, w := range clusters {
		c := e.env.Cluster(w.Name)
		if c == nil {
			return o, false
		}
		if c.Discovery == Original {
			passing++
		}
		if c.Empty() && len(clusters) == 1 {
			o.nothing = true
		}
	}
	switch {
	case len(clusters) == 0: // the chain has no filters, and its rules deny
	case passing == len(clusters):
		o.pass = true
	case passing > 0:
		o.closed = "some connections would go on unchanged and others to endpoints, by weight"
	default:
		o.clusters = clusters
	}
	return o, true
}

// maxWays bounds the number of a listener's ways. Each chain can have a way for every address of the virtual hosts in
// its routes, and chains can share routes, so a short listener can have very many ways.
const maxWays = 1 << 14

// ways returns the ways of a listener's chains. ok is false if something has not been received yet.
func (e *expanding) ways() (all []way, ok bool, err error) {
	exact := !e.at.Address.Addr().IsUnspecified()
	add := func(p *part, field string, m mesh.Match, clusters []mesh.WeightedCluster, closed string) bool {
		o, ok := e.to(clusters, p.chain.RBAC, closed)
		all = append(all, way{p, field, m, o})
		return ok
	}
	for i := range e.parts {
		p := &e.parts[i]
		if !p.http || p.closed != "" {
			if !add(p, p.field, p.chain.Match, p.chain.Proxy.Clusters, p.closed) {
				return nil, false, nil
			}
			continue
		}
		r := p.routes
		if r == nil {
			r = e.env.Routes(p.route)
		}
		for _, h := range r.hosts {
			if len(all)+len(h.addresses) > maxWays {
				return nil, false, in(p.field, refuse("chains and virtual hosts come to more than %d ways", maxWays))
			}
			field := p.field + ": " + h.field + " of " + clip(r.Name)
			whole := h.any || len(r.hosts) == 1 && (exact || e.inbound)
			if whole && !add(p, field, p.chain.Match, h.clusters, h.closed) {
				return nil, false, nil
			}
			for _, a := range h.addresses {
				m := p.chain.Match
				if whole || !matches(m.Destinations, a.Addr()) || a.Port() != 0 && a.Port() != e.at.Address.Port() {
					continue
				}
				m.Destinations = []netip.Prefix{netip.PrefixFrom(a.Addr(), a.Addr().BitLen())}
				if !add(p, field, m, h.clusters, h.closed) {
					return nil, false, nil
				}
			}
		}
	}
	return all, true, nil
}

// group holds the ways that have the same match.
type group struct {
	match mesh.Match
	ways  []way
}

// reads reports whether every way depends on the content of connections.
func (g group) reads() bool {
	return !slices.ContainsFunc(g.ways, func(w way) bool { return !w.reads && !w.http })
}

// judges reports whether any way has access rules.
func (g group) judges() bool {
	return slices.ContainsFunc(g.ways, func(w way) bool { return len(w.out.rbac) > 0 })
}

func groups(all []way) (out []group) {
	index := make(map[string]int, len(all))
	for _, w := range all {
		key := fmt.Sprint(w.match)
		i, there := index[key]
		if !there {
			i = len(out)
			index[key] = i
			out = append(out, group{match: w.match})
		}
		out[i].ways = append(out[i].ways, w)
	}
	return out
}

// choose returns the outcome of a group, or an error if the outcome depends on the content of connections. If service
// is set, the group's address belongs to a service; connections with unexpected content, which would be passed through
// or refused, then have the same outcome as the others.
func (e *expanding) choose(g group, service bool) (outcome, error) {
	ways := g.ways
	if open := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.tls }); len(open) > 0 {
		if len(open) < len(ways) {
			ended := ways[slices.IndexFunc(ways, func(w way) bool { return w.tls })]
			e.note(ended.field+".transport_socket", "TLS is not terminated: connections go on as they are")
		}
		ways = open
	} else {
		const why = ".transport_socket: only TLS is accepted, which the data plane does not support"
		return outcome{closed: ways[0].field + why}, nil
	}
	if service {
		if some := slices.DeleteFunc(slices.Clone(ways), func(w way) bool {
			return w.out.pass || w.out.nothing
		}); len(some) > 0 {
			if len(some) < len(ways) && !e.http(ways) {
				e.note(some[0].field, "all connections go this way, whatever their content")
			}
			ways = some
		}
	}
	first := ways[0]
	for _, w := range ways[1:] {
		if !w.out.same(&first.out) {
			return outcome{}, in(w.field, refuse("connections go elsewhere than by %s depending on their "+
				"content, which the data plane does not read", first.field))
		}
	}
	return first.out, nil
}

// http reports whether one of the ways is for HTTP requests. There is already a warning that the data plane does not
// read those.
func (e *expanding) http(ways []way) bool {
	return slices.ContainsFunc(ways, func(w way) bool { return w.http })
}

// outward expands a listener that gets the connections to its own address.
func (e *expanding) outward(all []way) error {
	at := e.at.Address
	exact := !at.Addr().IsUnspecified()
	if exact { // chains for other addresses get no connections
		all = slices.DeleteFunc(all, func(w way) bool { return !matches(w.match.Destinations, at.Addr()) })
		for i := range all {
			all[i].match.Destinations = nil
		}
	}
	byDefault := func(w way) bool { return w.fallback }
	var rest []way
	if i := slices.IndexFunc(all, byDefault); i >= 0 {
		rest = all[i : i+1]
	}
	found := groups(slices.DeleteFunc(slices.Clone(all), byDefault))
	whole := e.at // the listener at its own address, whose chains are added below
	var passes, others []string
	for _, w := range all {
		if w.out.pass && len(w.out.rbac) > 0 {
			return in(w.field, refuse("access rules cannot be enforced for connections that go on unchanged"))
		}
	}
	add := func(m mesh.Match, o outcome, field string, fallback bool) {
		if o.closed != "" {
			e.note(field, "connections are refused: %s", o.closed)
		}
		if o.pass {
			passes = append(passes, field)
			return
		}
		others = append(others, field)
		c := mesh.Chain{Match: m, RBAC: o.rbac, Proxy: mesh.Proxy{Clusters: e.clusters(o)}}
		if fallback {
			whole.Default = &c
		} else {
			whole.Chains = append(whole.Chains, c)
		}
	}
	for _, g := range found {
		single, isSingle := one(g.match)
		if exact || isSingle { // connections with unexpected content use the default chain
			if g.reads() {
				g.ways = append(g.ways, rest...)
			}
		}
		o, err := e.choose(g, exact || isSingle)
		// Some names or protocols have a separate chain, and the others use the default chain.
		beside := !exact && len(rest) > 0 && g.match.Any() && g.reads() && !g.judges()
		if err != nil && !isSingle && !beside {
			return err
		}
		if err != nil {
			o = outcome{closed: err.Error()}
		}
		field := g.ways[0].field
		if !exact && isSingle {
			if o.closed != "" {
				e.note(field, "connections to %s are refused: %s", single, o.closed)
			}
			if !o.pass || len(rest) > 0 && !rest[0].out.pass {
				if o.pass {
					return in(field, refuse("connections to %s would go on unchanged, but others would not", single))
				}
				at := netip.AddrPortFrom(single, at.Port())
				l := &mesh.Listener{Name: e.Name + "|" + at.String(), Address: at, Protocol: e.at.Protocol,
					Default: &mesh.Chain{RBAC: o.rbac, Proxy: mesh.Proxy{Clusters: e.clusters(o)}}}
				e.out.Listeners = append(e.out.Listeners, l)
			}
			continue
		}
		if beside {
			if r := rest[0].out; !o.same(&r) && !(o.refuses() && r.refuses()) {
				e.note(field, "all connections go the way of the default chain")
			}
			continue
		}
		add(g.match, o, field, false)
	}
	whatever := func(g group) bool { return g.match.Any() }
	if len(rest) > 0 && !(exact && slices.ContainsFunc(found, whatever)) {
		o, err := e.choose(group{ways: rest}, false)
		if err != nil {
			return err
		}
		add(mesh.Match{}, o, rest[0].field, true)
	}
	if len(passes) > 0 && len(others) > 0 {
		return in(passes[0], refuse("connections would go on unchanged, but those by %s would not", others[0]))
	}
	if len(others) > 0 {
		e.out.Listeners = slices.Insert(e.out.Listeners, 0, &whole)
	}
	return nil
}

// clusters returns the clusters of an outcome. Connections that must be refused go to a cluster without endpoints.
func (e *expanding) clusters(o outcome) []mesh.WeightedCluster {
	if o.closed == "" {
		return o.clusters
	}
	const name = "tare: refused"
	if !slices.ContainsFunc(e.out.Clusters, func(c *Cluster) bool { return c.Name == name }) {
		e.out.Clusters = append(e.out.Clusters, &Cluster{Name: name, cluster: mesh.Cluster{Name: name}})
	}
	return []mesh.WeightedCluster{{Name: name, Weight: 1}}
}

// rest expands a listener to which, in front of a proxy, all connections are redirected that no other listener takes.
// The data plane does not redirect connections, so the listener is acceptable only if it passes all of them through
// unchanged.
func (e *expanding) rest(all []way) error {
	for _, w := range all {
		if w.match.DestinationPort == e.at.Address.Port() {
			continue // no connection is redirected there
		}
		if !w.out.pass || len(w.out.rbac) > 0 {
			return in(w.field, refuse("the data plane cannot stop connections to addresses that belong to no service"))
		}
	}
	return nil
}

// inward expands a listener to which the connections to a workload are redirected. Chains that pass everything through
// need no listener. The others are served at the workload's own addresses if they match a single port, and otherwise
// cause only a warning.
func (e *expanding) inward(all []way) {
	for _, g := range groups(all) {
		field := g.ways[0].field
		port := g.match.DestinationPort
		if port == e.at.Address.Port() {
			continue // no connection is redirected there
		}
		o, err := e.choose(g, false)
		if err != nil {
			o = outcome{closed: err.Error()}
		}
		open := o.pass && len(o.rbac) == 0
		switch {
		case open:
			continue
		case port == 0 && o.closed != "":
			e.note(field, "connections to other ports of the workload are let in: %s", o.closed)
			continue
		case port == 0:
			e.note(field, "connections to other ports of the workload are let in: rules hold where a service names "+
				"the port")
			continue
		}
		if o.closed != "" {
			e.note(field, "connections to port %d are refused: %s", port, o.closed)
		}
		for _, own := range e.env.Own {
			at := netip.AddrPortFrom(own, port)
			c := mesh.Chain{RBAC: o.rbac, Proxy: mesh.Proxy{Clusters: e.clusters(o)}}
			if o.pass {
				self := &Cluster{Name: e.Name + "|" + at.String()}
				self.cluster.Name, self.cluster.ConnectTimeout = self.Name, defaultConnectTimeout
				self.endpoints = []mesh.Locality{{Endpoints: []mesh.Endpoint{{Address: at, Weight: 1}}}}
				self.self = true
				e.out.Clusters = append(e.out.Clusters, self)
				c.Proxy.Clusters = []mesh.WeightedCluster{{Name: self.Name, Weight: 1}}
			}
			e.out.Listeners = append(e.out.Listeners,
				&mesh.Listener{Name: e.Name + "|" + at.String(), Address: at, Protocol: e.at.Protocol, Default: &c})
			e.out.Guarded = append(e.out.Guarded, at)
		}
	}
}

// matches reports whether one of the prefixes contains an address, or the list is empty.
func matches(list []netip.Prefix, a netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// one returns the only address that a match accepts. ok is false if the match accepts others or has a further
// condition.
func one(m mesh.Match) (a netip.Addr, ok bool) {
	if m.DestinationPort != 0 || len(m.Sources)+len(m.SourcePorts) > 0 || len(m.Destinations) != 1 {
		return a, false
	}
	p := m.Destinations[0]
	return p.Addr(), p.IsSingleIP()
}

// Shield returns made, the mesh.Cluster that was made from c, without the guarded endpoints: callers may reach those
// only through the workload's own listener. It does not modify made.
func (c *Cluster) Shield(made *mesh.Cluster, guarded map[netip.AddrPort]bool) *mesh.Cluster {
	if c.self || len(guarded) == 0 {
		return made
	}
	hit := func(e mesh.Endpoint) bool { return guarded[e.Address] }
	for i := range made.Localities {
		if !slices.ContainsFunc(made.Localities[i].Endpoints, hit) {
			continue
		}
		out := *made
		out.Localities = slices.Clone(made.Localities)
		for j := range out.Localities {
			out.Localities[j].Endpoints = slices.DeleteFunc(slices.Clone(out.Localities[j].Endpoints), hit)
		}
		return &out
	}
	return made
}
