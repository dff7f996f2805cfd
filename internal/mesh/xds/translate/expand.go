package translate

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"tare/internal/mesh"
)

// Env is what there is beside a listener.
type Env struct {
	Routes  func(name string) *Routes  // nil: they are not there yet
	Cluster func(name string) *Cluster // nil: it is not there yet
	Own     []netip.Addr               // the addresses of the workload that the control plane takes the data plane for
}

// Served is what a data plane serves for a listener: none, one or several of its own.
type Served struct {
	Listeners []*mesh.Listener // the first has the name of the listener itself, if it is its very own
	Clusters  []*Cluster       // that these name, beside the control plane's: the workload itself
	Guarded   []netip.AddrPort // of the workload: who comes there by a service would not be asked who he is
	Warnings  []*Warning
}

// Expand is what a data plane serves for the listener. It is nil without an error where something is not there yet.
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

// passes says whether any chain of a listener lets connections go on unchanged.
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

// outcome is what becomes of connections.
type outcome struct {
	rbac     []mesh.RBAC
	clusters []mesh.WeightedCluster
	pass     bool   // they go on unchanged
	nothing  bool   // the cluster has no endpoints and never will: they are refused
	closed   string // why they must be refused
}

func (o *outcome) same(p *outcome) bool {
	return o.pass == p.pass && o.nothing == p.nothing && (o.closed == "") == (p.closed == "") &&
		sameClusters(o.clusters, p.clusters) && reflect.DeepEqual(o.rbac, p.rbac)
}

// refuses says whether no connection comes anywhere.
func (o *outcome) refuses() bool {
	return o.nothing || o.closed != "" || !o.pass && len(o.clusters) == 0
}

// way is an outcome for some connections of a chain.
type way struct {
	*part
	field string
	match mesh.Match
	out   outcome
}

// to is the outcome of going to clusters; ok is false where one is not known yet.
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
	case len(clusters) == 0: // of a chain without filters, whose rules deny
	case passing == len(clusters):
		o.pass = true
	case passing > 0:
		o.closed = "some connections would go on unchanged and others to endpoints, by weight"
	default:
		o.clusters = clusters
	}
	return o, true
}

// maxWays bounds the ways of a listener: its chains times the virtual hosts of their routes, which several can share.
const maxWays = 1 << 14

// ways are the outcomes of a listener's chains; ok is false where something is not known yet.
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

// group is the ways of one match.
type group struct {
	match mesh.Match
	ways  []way
}

// reads says whether each way takes what connections say.
func (g group) reads() bool {
	return !slices.ContainsFunc(g.ways, func(w way) bool { return !w.reads && !w.http })
}

// judges says whether a way has rules.
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

// choose is the one outcome of a group, where what connections say does not matter. Connections that say something
// unforeseen, which would be let pass or be refused, go with the others if the address belongs to a service.
func (e *expanding) choose(g group, service bool) (outcome, error) {
	ways := g.ways
	if open := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.tls }); len(open) > 0 {
		if len(open) < len(ways) {
			ended := ways[slices.IndexFunc(ways, func(w way) bool { return w.tls })]
			e.note(ended.field+".transport_socket", "TLS is not ended: connections go on as they are")
		}
		ways = open
	} else {
		const why = ".transport_socket: only TLS is let in, which the data plane does not speak"
		return outcome{closed: ways[0].field + why}, nil
	}
	if service {
		if some := slices.DeleteFunc(slices.Clone(ways), func(w way) bool {
			return w.out.pass || w.out.nothing
		}); len(some) > 0 {
			if len(some) < len(ways) && !e.http(ways) {
				e.note(some[0].field, "connections go this way whatever they say")
			}
			ways = some
		}
	}
	first := ways[0]
	for _, w := range ways[1:] {
		if !w.out.same(&first.out) {
			return outcome{}, in(w.field, refuse("for what they say, which the data plane does not read, "+
				"connections go elsewhere than by %s", first.field))
		}
	}
	return first.out, nil
}

// http says whether one of the ways is that of requests, of which was said already that they are not read.
func (e *expanding) http(ways []way) bool {
	return slices.ContainsFunc(ways, func(w way) bool { return w.http })
}

// outward is for a listener with an address that connections ask for.
func (e *expanding) outward(all []way) error {
	at := e.at.Address
	exact := !at.Addr().IsUnspecified()
	if exact { // what is said of the address is known already
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
	whole := e.at // what is left at the listener's own address
	var passes, others []string
	for _, w := range all {
		if w.out.pass && len(w.out.rbac) > 0 {
			return in(w.field, refuse("connections that go on unchanged cannot be judged"))
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
		if exact || isSingle { // what says something unforeseen goes with the default chain
			if g.reads() {
				g.ways = append(g.ways, rest...)
			}
		}
		o, err := e.choose(g, exact || isSingle)
		// Some names or protocols have a way of their own, the others the default chain's.
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
					return in(field, refuse("connections to %s would go on unchanged, and others not", single))
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
		return in(passes[0], refuse("connections would go on unchanged, and by %s not", others[0]))
	}
	if len(others) > 0 {
		e.out.Listeners = slices.Insert(e.out.Listeners, 0, &whole)
	}
	return nil
}

// clusters are those of an outcome; what is refused goes to one without endpoints.
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

// rest is for a listener to which all connections are redirected that no other has: a data plane that redirects none
// has none of these, so that they can only go on unchanged.
func (e *expanding) rest(all []way) error {
	for _, w := range all {
		if w.match.DestinationPort == e.at.Address.Port() {
			continue // nobody is redirected there
		}
		if !w.out.pass || len(w.out.rbac) > 0 {
			return in(w.field, refuse("connections to addresses of no service cannot be kept from going on unchanged"))
		}
	}
	return nil
}

// inward is for a listener to which the connections to a workload are redirected: chains that let all pass need
// nothing; those that do not are served at the workload's own addresses.
func (e *expanding) inward(all []way) {
	for _, g := range groups(all) {
		field := g.ways[0].field
		port := g.match.DestinationPort
		if port == e.at.Address.Port() {
			continue // nobody is redirected there
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

// matches says whether an address is in one of the prefixes, or there is none.
func matches(list []netip.Prefix, a netip.Addr) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// one is the only address that a match takes, if that is all it says.
func one(m mesh.Match) (a netip.Addr, ok bool) {
	if m.DestinationPort != 0 || len(m.Sources)+len(m.SourcePorts) > 0 || len(m.Destinations) != 1 {
		return a, false
	}
	p := m.Destinations[0]
	return p.Addr(), p.IsSingleIP()
}

// Shield is a cluster without the endpoints that only the workload's own listener may let anybody reach.
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
