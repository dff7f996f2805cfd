package proxyconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"tare/internal/lib/lists"
	"tare/internal/mesh/controlplane/authority"
)

// byPolicy is the discovery mode in which a proxy gets only the services that its identity may call.
const byPolicy = "policy"

// Mesh is a compiled configuration. It is immutable, and may be used concurrently.
type Mesh struct {
	config      *Config
	mtls        mtls
	trustDomain string
	services    []*service
	names       map[string]*service
	raw         Resources

	before *Mesh // during compilation: the earlier mesh, or an empty one

	classes map[classKey]*class
	proxies map[string]*proxy
}

// classKey identifies a class: the proxies that get the same services and call them in the same way, and so share
// resources.
type classKey struct {
	policy string // proxy.policy
	direct bool   // its proxies call services at the services' own addresses
}

// class holds what the proxies of a class share.
type class struct {
	Resources
	names  map[name]bool    // of resources
	places map[place]string // listening addresses of the services' listeners, with the listeners' names
}

// proxy is a compiled Proxy.
type proxy struct {
	*Proxy
	index   int
	id      string     // SPIFFE; empty: none
	policy  string     // the identity that decides which services it sees; empty: all
	ingress []Ingress  // its listeners for callers from outside
	own     *Resources // in addition to those of its class
}

// class returns the key of the proxy's class.
func (p *proxy) class() classKey { return classKey{p.policy, p.Outbound == nil} }

// Part holds what a proxy receives: resources that it shares with others, and its own. Proxies of one class share
// Common. A part that is the same in the next mesh keeps the same pointers (CompileAfter).
type Part struct{ Common, Own *Resources }

// ErrUnknownProxy is the error that For and Part return for a node that is not a proxy of the mesh.
var ErrUnknownProxy = errors.New("there is no such proxy in the mesh")

// For returns what a proxy receives, by its node id. If the mesh has no proxies, every node receives the same. Proxies
// share the messages, and where possible the lists, that are the same for them.
func (m *Mesh) For(id string) (Resources, error) {
	if len(m.proxies) == 0 {
		return m.Shared()
	}
	p, err := m.Part(id)
	if err != nil {
		return Resources{}, err
	}
	return p.Common.with(*p.Own), nil
}

// Part returns what a proxy receives, by its node id. The mesh must have proxies.
func (m *Mesh) Part(id string) (Part, error) {
	p := m.proxies[id]
	if p == nil {
		return Part{}, fmt.Errorf("proxy %q: %w", id, ErrUnknownProxy)
	}
	return Part{&m.classes[p.class()].Resources, p.own}, nil
}

// Has reports whether the mesh has a proxy with this node ID.
func (m *Mesh) Has(id string) bool { return m.proxies[id] != nil }

// Proxies returns the ids of all proxies, in the order of the file. If there are none, every node receives the same.
func (m *Mesh) Proxies() []string {
	return lists.Map(m.config.Proxies, func(p Proxy) string { return p.ID })
}

// Identity returns the SPIFFE ID of a proxy; empty: it has none, or there is no such proxy.
func (m *Mesh) Identity(id string) string {
	if p := m.proxies[id]; p != nil {
		return p.id
	}
	return ""
}

// Config returns the configuration that the mesh was compiled from. It must not be changed.
func (m *Mesh) Config() *Config { return m.config }

// TrustDomain returns the trust domain of the mesh's identities.
func (m *Mesh) TrustDomain() string { return m.trustDomain }

// Secure reports whether proxies need certificates.
func (m *Mesh) Secure() bool { return m.mtls != off }

// Compile compiles a configuration, which must not be changed afterwards.
func (c *Config) Compile() (*Mesh, error) { return c.CompileAfter(nil) }

// Shared returns what every node receives. It returns an error if nodes receive different resources.
func (m *Mesh) Shared() (Resources, error) {
	if len(m.proxies) > 0 {
		return Resources{}, errors.New("nodes receive different resources, because the mesh has proxies")
	}
	return m.classes[classKey{direct: true}].Resources, nil
}

func (m *Mesh) settings() error {
	switch m.mtls {
	case "":
		m.mtls = off
	case off, permissive, strict:
	default:
		return in("mtls", fmt.Errorf("%q is none of off, permissive and strict", m.config.MTLS))
	}
	switch m.config.Discovery {
	case "", "permissive", byPolicy:
	default:
		return in("discovery", fmt.Errorf("%q is neither permissive nor policy", m.config.Discovery))
	}
	if m.trustDomain == "" {
		m.trustDomain = authority.DefaultTrustDomain
	}
	if err := authority.CheckTrustDomain(m.trustDomain); err != nil {
		return in("trust_domain", err)
	}
	if len(m.config.Proxies) == 0 {
		switch {
		case m.mtls != off:
			return in("mtls", errors.New("needs proxies: only they have identities"))
		case m.config.Discovery == byPolicy:
			return in("discovery", errors.New("policy needs proxies: only they have identities"))
		case len(m.config.Ingress) > 0:
			return in("ingress", errors.New("needs proxies"))
		}
	}
	return nil
}

// ownPrefixes are reserved for names that the mesh makes.
var ownPrefixes = []string{inboundName(""), ingressName("")}

func (m *Mesh) readServices() error {
	c := m.config
	for i := range c.Services {
		s := &service{Service: &c.Services[i], index: i, listeners: map[string]*listenerv3.Listener{},
			applications: map[string]*clusterv3.Cluster{}}
		switch {
		case s.Name == "":
			return item("services", i, wrongAt(errors.New("name is missing")))
		case !utf8.ValidString(s.Name):
			return item("services", i, in("name", fmt.Errorf("%q is not valid UTF-8", s.Name)))
		case m.names[s.Name] != nil:
			return wrongAt(fmt.Errorf("service %s is given twice", s.Name), "services", i, "name")
		case slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(s.Name, p) }):
			return s.where(in("name", fmt.Errorf("the prefixes %s are reserved", strings.Join(ownPrefixes, " and "))))
		}
		m.names[s.Name] = s
		m.services = append(m.services, s)
	}
	for _, s := range m.services {
		if err := s.prepare(m.names); err != nil {
			return s.where(err)
		}
		for _, t := range s.leads {
			t.from = append(t.from, s)
		}
	}
	for _, s := range m.services {
		err := s.settle()
		if err == nil {
			err = s.readRoutes()
		}
		if err == nil {
			err = m.checkPlace(s)
		}
		if err != nil {
			return s.where(err)
		}
	}
	return nil
}

// checkPlace refuses settings of a service that need proxies or identities in a mesh without them, and settings that a
// mesh with proxies cannot have.
func (m *Mesh) checkPlace(s *service) error {
	proxies := len(m.config.Proxies) > 0
	switch {
	case len(s.Split) > 0 && s.Address == "" && !proxies:
		return in("split", errors.New("it needs an address"))
	case proxies && len(s.Allow) > 0:
		return in("allow", errors.New("a mesh with proxies has access by identity instead"))
	case proxies && len(s.Deny) > 0:
		return in("deny", errors.New("a mesh with proxies has access by identity instead"))
	case !proxies && s.Access != nil:
		return in("access", errors.New("needs proxies: only they have identities"))
	case s.Access != nil && (m.mtls == off || s.protocol == protocolUDP) && m.config.Discovery != byPolicy:
		return in("access", errors.New("cannot be enforced without mtls, or for udp; only with discovery: policy does "+
			"it still decide which proxies get the service"))
	}
	if s.Identity != "" {
		id, err := authority.Identity(m.trustDomain, s.Identity)
		if err != nil {
			return in("identity", err)
		}
		s.ids = []string{id}
	}
	return nil
}

// readProxies checks the proxies, and adds their identities to the services that they serve (service.ids).
func (m *Mesh) readProxies() error {
	for i := range m.config.Proxies {
		p := &proxy{Proxy: &m.config.Proxies[i], index: i}
		if p.ID == "" {
			return item("proxies", i, wrongAt(errors.New("id is missing")))
		}
		if m.proxies[p.ID] != nil {
			return wrongAt(fmt.Errorf("proxy %s is given twice", p.ID), "proxies", i, "id")
		}
		m.proxies[p.ID] = p
		if err := m.readProxy(p); err != nil {
			return p.where(err)
		}
	}
	for _, s := range m.services {
		slices.Sort(s.ids)
		s.ids = slices.Compact(s.ids)
	}
	return nil
}

func (p *proxy) where(err error) error { return within(err, "proxy "+p.ID, "proxies", p.index) }

func (m *Mesh) readProxy(p *proxy) (err error) {
	if p.Identity != "" {
		if p.id, err = authority.Identity(m.trustDomain, p.Identity); err != nil {
			return in("identity", err)
		}
	} else if m.mtls != off || m.config.Discovery == byPolicy {
		return in("identity", errors.New("is missing"))
	}
	if m.config.Discovery == byPolicy {
		p.policy = p.id
	}
	for _, name := range sorted(p.Inbound) {
		s := m.names[name]
		switch {
		case s == nil || !s.served():
			err = fmt.Errorf("there is no service %s with endpoints", name)
		case s.Identity != "" && !slices.Equal(s.ids, []string{p.id}):
			err = fmt.Errorf("the service answers as %s, and this proxy is %q", s.ids[0], p.id)
		case s.protocol == protocolUDP && m.mtls == strict:
			err = errors.New("udp has no TLS, which mtls strict asks for")
		case p.id != "" && s.protocol != protocolUDP && s.Identity == "":
			s.ids = append(s.ids, p.id)
		}
		if err != nil {
			return in("inbound", in(name, err))
		}
	}
	for _, name := range sorted(p.Outbound) {
		if m.names[name] == nil {
			return in("outbound", wrongAt(fmt.Errorf("there is no service %s", name), name))
		}
		m.names[name].called = true
	}
	for _, name := range sorted(p.Redirected) {
		_, serves := p.Inbound[name]
		_, calls := p.Outbound[name]
		switch {
		case serves == calls:
			err = errors.New("the proxy must either serve it (inbound) or call it (outbound)")
		case m.names[name].protocol == protocolUDP:
			err = errors.New("udp cannot be redirected")
		default:
			_, err = netip.ParseAddrPort(p.Redirected[name].From)
		}
		if err != nil {
			return in("redirected", in(name, err))
		}
	}
	return nil
}

func (m *Mesh) readIngress() error {
	for i, g := range m.config.Ingress {
		s := m.names[g.Service]
		switch {
		case s == nil:
			return item("ingress", i, in("service", fmt.Errorf("there is no service %s", g.Service)))
		case s.protocol == protocolUDP:
			return item("ingress", i, in("service", errors.New("udp has no ingress")))
		case m.proxies[g.Proxy] == nil:
			return item("ingress", i, in("proxy", fmt.Errorf("there is no proxy %s", g.Proxy)))
		case g.TLS && m.mtls == off:
			return item("ingress", i, in("tls", errors.New("mtls is off, so that the proxy has no certificate")))
		}
		s.called = true
	}
	return nil
}

func (m *Mesh) compileServices() error {
	// Services with access lists come first, so that an error in a list names the service that has it.
	for _, own := range []bool{true, false} {
		for _, s := range m.services {
			if own == (s.Access != nil) {
				if err := s.admit(m); err != nil {
					return s.where(err)
				}
				s.callers = s.granted()
			}
		}
	}
	for _, s := range m.services {
		s.findPrior(m)
	}
	for _, s := range m.services {
		err := m.enforced(s)
		if err == nil && s.served() {
			err = s.upstream(m)
		}
		if err == nil {
			err = s.merged(m.names)
		}
		if err == nil && s.protocol.http() && (s.called || s.Address != "") {
			s.routing = s.routeConfiguration()
		}
		if err == nil && s.Address != "" {
			_, err = s.outbound(s.Address)
			err = s.addressed(err)
		}
		if err != nil {
			return s.where(err)
		}
	}
	return nil
}

// enforced returns an error if nothing would enforce an access list.
func (m *Mesh) enforced(s *service) error {
	if s.Access == nil || m.config.Discovery == byPolicy || len(s.ids) > 0 || len(s.Endpoints) == 0 {
		return nil
	}
	return in("access", errors.New("nothing enforces it: no proxy serves the service, and it has no identity"))
}

// addressed adds the key "address" to an error, unless the error already has a place.
func (s *service) addressed(err error) error {
	var w *wrong
	if err == nil || errors.As(err, &w) {
		return err
	}
	return in("address", err)
}

func (m *Mesh) readResources() error {
	if len(m.config.Resources) > 0 && reflect.DeepEqual(m.config.Resources, m.before.config.Resources) {
		m.raw = m.before.raw
		return nil
	}
	for i, r := range m.config.Resources {
		if err := m.raw.raw(r); err != nil {
			return item("resources", i, err)
		}
	}
	return nil
}

// compileClasses makes the resources that proxies share.
func (m *Mesh) compileClasses() error {
	callers := m.byCaller()
	if len(m.config.Proxies) == 0 {
		return m.compileClass(classKey{direct: true}, callers)
	}
	for i := range m.config.Proxies {
		if err := m.compileClass(m.proxies[m.config.Proxies[i].ID].class(), callers); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mesh) compileClass(key classKey, callers map[string][]*service) error {
	if m.classes[key] != nil {
		return nil
	}
	c := &class{places: map[place]string{}}
	visible := m.visible(key.policy, callers)
	c.Resources = reached(visible)
	var listeners []*listenerv3.Listener
	for _, s := range visible {
		if s.Address != "" && key.direct {
			listeners = append(listeners, s.listeners[s.Address])
		}
	}
	c.Listeners = listeners
	c.Resources = c.with(m.raw)
	if before := m.before.classes[key]; before != nil {
		if c.is(&before.Resources) {
			m.classes[key] = before
			return nil
		}
		c.Resources = c.after(&before.Resources)
	}
	var err error
	if c.names, err = c.once(nil); err != nil {
		return err
	}
	for _, l := range listeners {
		// Without proxies, it is not an error that two services have the same address: data planes refuse one of them.
		if err := listens(c.places, nil, l); err != nil && len(m.proxies) > 0 {
			return err
		}
	}
	m.classes[key] = c
	return nil
}

// byCaller returns the services that each identity may call, in the order of the file. Services that all identities
// may call are under "*" (anyone).
func (m *Mesh) byCaller() map[string][]*service {
	of := map[string][]*service{}
	for _, s := range m.services {
		for _, id := range s.callers {
			of[id] = append(of[id], s)
		}
	}
	return of
}

// visible returns the services that proxies with the given proxy.policy get, in the order of the file. If discovery is
// by policy, these are the services that the proxies may call; otherwise, they are all services.
func (m *Mesh) visible(policy string, callers map[string][]*service) []*service {
	if m.config.Discovery != byPolicy {
		return m.services
	}
	return inOrder(slices.Concat(callers[policy], callers[anyone]))
}

// inOrder sorts services in the order of the file and removes duplicates.
func inOrder(list []*service) []*service {
	slices.SortFunc(list, func(a, b *service) int { return a.index - b.index })
	return slices.Compact(list)
}

// reached returns what proxies of a class need to call the visible services, except for listeners.
func reached(visible []*service) (r Resources) {
	needed := slices.Clone(visible)
	for _, s := range visible {
		needed = append(needed, s.leads...)
		if s.routing != nil {
			r.Routes = append(r.Routes, s.routing)
		}
	}
	for _, s := range inOrder(needed) {
		if s.cluster == nil {
			continue
		}
		r.Clusters = append(r.Clusters, s.cluster)
		if s.assignment != nil {
			r.Endpoints = append(r.Endpoints, s.assignment)
		}
	}
	return r
}

// compileProxies makes each proxy's own resources.
func (m *Mesh) compileProxies() error {
	ingress := map[string][]int{}
	for i, g := range m.config.Ingress {
		ingress[g.Proxy] = append(ingress[g.Proxy], i)
		m.proxies[g.Proxy].ingress = append(m.proxies[g.Proxy].ingress, g)
	}
	alike := map[string]*Resources{}
	for i := range m.config.Proxies {
		p := m.proxies[m.config.Proxies[i].ID]
		if p.own = m.ownBefore(p); p.own != nil {
			continue
		}
		key := p.says()
		if own := alike[key]; own != nil && len(p.ingress) == 0 {
			p.own = own
			continue
		}
		if err := m.compileProxy(p, ingress[p.ID]); err != nil {
			return err
		}
		if len(p.ingress) == 0 {
			alike[key] = p.own
		}
	}
	return nil
}

// says encodes everything that a proxy's own resources depend on, except for ingress, so that proxies with the same
// text can share them. The pods of one deployment have the same text.
func (p *proxy) says() string {
	text, err := json.Marshal([]any{p.id, p.policy, p.Inbound, p.Outbound, p.Redirected})
	if err != nil {
		panic(err) // encoding texts and numbers cannot fail
	}
	return string(text)
}

func (m *Mesh) compileProxy(p *proxy, ingress []int) error {
	var r Resources
	common := m.classes[p.class()]
	for _, name := range sorted(p.Outbound) {
		s := m.names[name]
		l, err := s.outbound(p.Outbound[name])
		if err != nil {
			return p.where(in("outbound", in(name, err)))
		}
		if l, err = p.redirected(name, l); err != nil {
			return p.where(in("redirected", in(name, err)))
		}
		if m.config.Discovery != byPolicy || s.visibleTo(p.policy) {
			r.Listeners = append(r.Listeners, l)
		}
	}
	for _, name := range sorted(p.Inbound) {
		s := m.names[name]
		made, err := s.serve(m, p.Inbound[name])
		if err != nil {
			return p.where(in("inbound", in(name, err)))
		}
		if made.listener, err = p.redirected(name, made.listener); err != nil {
			return p.where(in("redirected", in(name, err)))
		}
		r.Clusters = append(r.Clusters, made.cluster)
		r.Listeners = append(r.Listeners, made.listener)
		if s.protocol.http() {
			r.Routes = append(r.Routes, s.applicationRoutes())
		}
	}
	for _, i := range ingress {
		l, err := m.enter(p, &m.config.Ingress[i])
		if err != nil {
			return item("ingress", i, err)
		}
		r.Listeners = append(r.Listeners, l)
	}
	own := map[place]string{}
	for _, l := range r.Listeners {
		if err := listens(own, common.places, l); err != nil {
			return p.where(err)
		}
	}
	if _, err := r.once(common.names); err != nil {
		return p.where(err)
	}
	p.own = &r
	return nil
}

// ingressName returns the name of an ingress listener.
func ingressName(service string) string { return "ingress:" + service }

// enter makes an ingress listener. A proxy that serves the service forwards requests to its application, whatever the
// access lists say; any other proxy calls the service with its own identity.
func (m *Mesh) enter(p *proxy, g *Ingress) (*listenerv3.Listener, error) {
	s := m.names[g.Service]
	_, serves := p.Inbound[g.Service]
	if !serves && m.config.Discovery == byPolicy && !s.visibleTo(p.policy) {
		return nil, in("proxy", fmt.Errorf("the access list of %s does not name %s", s.Name, p.id))
	}
	address, _, err := listenAt(g.Listen, s.protocol)
	if err != nil {
		return nil, in("listen", err)
	}
	l := &listenerv3.Listener{Name: ingressName(s.Name), Address: address,
		TrafficDirection: corev3.TrafficDirection_INBOUND}
	c := &listenerv3.FilterChain{}
	to, routes := s.weights(), s.Name
	if serves {
		to, routes = map[string]uint32{inboundName(s.Name): 1}, inboundName(s.Name)
	}
	if s.protocol.http() {
		c.Filters = httpFilters(l.Name, routes, manager{edge: true})
	} else {
		c.Filters = tcpFilters(l.Name, to, false)
	}
	if g.TLS {
		c.TransportSocket = faces(s.protocol)
		c.TransportSocketConnectTimeout = durationpb.New(waitForHandshake)
	}
	l.FilterChains = []*listenerv3.FilterChain{c}
	return l, nil
}

// place is a listening address.
type place struct {
	address string
	port    uint32
	udp     bool
}

// placeOf returns a listener's listening address.
func placeOf(l *listenerv3.Listener) place {
	a := l.GetAddress().GetSocketAddress()
	at := place{a.GetAddress(), a.GetPortValue(), a.GetProtocol() == corev3.SocketAddress_UDP}
	if ip, err := netip.ParseAddr(at.address); err == nil {
		at.address = ip.String()
	}
	return at
}

// listens adds a listener's address to places. It returns an error if the address is already in places or others.
func listens(places, others map[place]string, l *listenerv3.Listener) error {
	at := placeOf(l)
	other, taken := places[at]
	if !taken {
		other, taken = others[at]
	}
	if taken {
		return fmt.Errorf("%s and %s both listen at %s, port %d; outbound says where services are called", other,
			l.GetName(), at.address, at.port)
	}
	places[at] = l.GetName()
	return nil
}
