package proxyconfig

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	networkinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// outbound returns the listener at one of the addresses at which the service is called. Each listener is made only
// once.
func (s *service) outbound(address string) (*listenerv3.Listener, error) {
	if l := s.listener(address); l != nil {
		return l, nil
	}
	at, ip, err := listenAt(address, s.protocol)
	if err != nil {
		return nil, err
	}
	l := &listenerv3.Listener{Name: s.Name, Address: at}
	cells, err := s.judge(ip)
	if err != nil {
		return nil, err
	}
	switch {
	case s.protocol == protocolUDP:
		if l.ListenerFilters, err = s.datagrams(cells); err != nil {
			return nil, err
		}
	case s.protocol.http():
		l.FilterChains = chains(cells, httpFilters(s.Name, s.Name, manager{}))
	default:
		l.FilterChains = chains(cells, tcpFilters(s.Name, s.weights(), false))
	}
	s.listeners[address] = l
	return l, nil
}

// listener returns a listener that has already been made, for this mesh or the earlier one; nil: there is none.
func (s *service) listener(key string) *listenerv3.Listener {
	if s.listeners[key] == nil && s.prior != nil && s.prior.listeners[key] != nil {
		s.listeners[key] = s.prior.listeners[key]
	}
	return s.listeners[key]
}

// chains makes filter chains that pass connections of allowed cells through filters and close the others: Envoy closes
// a connection in a chain without filters as soon as it is accepted.
func chains(cells []cell, filters []*listenerv3.Filter) (out []*listenerv3.FilterChain) {
	type kind struct {
		to      netip.Prefix
		allowed bool
		all     bool // all sources
	}
	at := map[kind]*listenerv3.FilterChain{}
	for _, c := range cells {
		k := kind{c.to, c.allowed, !c.from.IsValid()}
		chain := at[k]
		if chain == nil {
			chain = &listenerv3.FilterChain{}
			if c.allowed {
				chain.Filters = filters
			}
			if c.to.IsValid() || c.from.IsValid() {
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{PrefixRanges: ranges(c.to)}
			}
			at[k] = chain
			out = append(out, chain)
		}
		if c.from.IsValid() {
			chain.FilterChainMatch.SourcePrefixRanges = append(chain.FilterChainMatch.SourcePrefixRanges, ranges(c.from)...)
		}
	}
	return out
}

// filters returns a listener's only network filter, as a list.
func filters(name string, config proto.Message) []*listenerv3.Filter {
	return []*listenerv3.Filter{{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(config)}}}
}

// tcpFilters returns filters that forward connections to clusters by weight. If handshake is set, they wait for the
// TLS handshake, because only then is the caller known.
func tcpFilters(name string, to map[string]uint32, handshake bool) []*listenerv3.Filter {
	p := &tcpproxyv3.TcpProxy{StatPrefix: name, IdleTimeout: durationpb.New(0)}
	if handshake {
		p.UpstreamConnectMode = tcpproxyv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE
		p.MaxEarlyDataBytes = wrapperspb.UInt32(0)
	}
	if len(to) == 1 {
		p.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: sorted(to)[0]}
	} else {
		w := &tcpproxyv3.TcpProxy_WeightedCluster{}
		for _, name := range sorted(to) {
			w.Clusters = append(w.Clusters,
				&tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: name, Weight: to[name]})
		}
		p.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: w}
	}
	return filters("envoy.filters.network.tcp_proxy", p)
}

// datagrams returns filters that forward the datagrams of allowed cells and drop the others.
func (s *service) datagrams(cells []cell) ([]*listenerv3.ListenerFilter, error) {
	cluster := s.Name
	if len(s.Split) == 1 {
		cluster = sorted(s.Split)[0]
	}
	return udpFilters(s.Name, cluster, cells)
}

func udpFilters(name, cluster string, cells []cell) ([]*listenerv3.ListenerFilter, error) {
	to := &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Action{
		Action: extension("route", &udpproxyv3.Route{Cluster: cluster})}}
	match := &matcherv3.Matcher{OnNoMatch: to}
	if len(cells) > 1 || len(cells) == 1 && !cells[0].allowed {
		var err error
		if match, err = bySource(cells, to); err != nil {
			return nil, err
		}
	}
	return listenerFilters("envoy.filters.udp_listener.udp_proxy", &udpproxyv3.UdpProxyConfig{StatPrefix: name,
		RouteSpecifier: &udpproxyv3.UdpProxyConfig_Matcher{Matcher: match}}), nil
}

// extension wraps a message with a name, in the form that matchers take.
func extension(name string, config proto.Message) *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: packed(config)}
}

// listenerFilters returns a list with one listener filter.
func listenerFilters(name string, config proto.Message) []*listenerv3.ListenerFilter {
	return []*listenerv3.ListenerFilter{{Name: name,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: packed(config)}}}
}

// bySource returns a matcher that applies onMatch to datagrams from allowed cells, and drops all others. Ranges are
// exclusive, so only the narrowest range that contains a source counts.
func bySource(cells []cell, onMatch *matcherv3.Matcher_OnMatch) (*matcherv3.Matcher, error) {
	ip := &matcherv3.IPMatcher{}
	nothing := &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Matcher{Matcher: &matcherv3.Matcher{}}}
	for _, verdict := range []struct {
		allowed bool
		do      *matcherv3.Matcher_OnMatch
	}{{true, onMatch}, {false, nothing}} {
		r := &matcherv3.IPMatcher_IPRangeMatcher{OnMatch: verdict.do, Exclusive: true}
		for _, c := range cells {
			switch {
			case c.to.IsValid():
				return nil, errors.New("udp at any address can have no rules by destination")
			case c.allowed != verdict.allowed:
			case !c.from.IsValid():
				r.Ranges = append(r.Ranges, xdsRange("0.0.0.0", 0), xdsRange("::", 0))
			default:
				r.Ranges = append(r.Ranges, xdsRange(c.from.Addr().String(), c.from.Bits()))
			}
		}
		if len(r.Ranges) > 0 {
			ip.RangeMatchers = append(ip.RangeMatchers, r)
		}
	}
	return &matcherv3.Matcher{MatcherType: &matcherv3.Matcher_MatcherTree_{MatcherTree: &matcherv3.Matcher_MatcherTree{
		Input:    extension("source_ip", &networkinputsv3.SourceIPInput{}),
		TreeType: &matcherv3.Matcher_MatcherTree_CustomMatch{CustomMatch: extension("ranges", ip)}}}}, nil
}

func xdsRange(address string, bits int) *xdscorev3.CidrRange {
	return &xdscorev3.CidrRange{AddressPrefix: address, PrefixLen: wrapperspb.UInt32(uint32(bits))}
}

// merged makes the cluster of a UDP service that is split: udp_proxy has no weights, so the parts become localities of
// one cluster.
func (s *service) merged(names map[string]*service) error {
	if s.protocol != protocolUDP || len(s.Split) < 2 {
		return nil
	}
	if s.asBefore() && !slices.ContainsFunc(s.leads, func(t *service) bool { return !t.asBefore() }) {
		s.cluster, s.assignment = s.prior.cluster, s.prior.assignment
		return nil
	}
	c := &clusterv3.Cluster{Name: s.Name, ConnectTimeout: durationpb.New(5 * time.Second),
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{},
			LocalityConfigSpecifier: weighted()}}
	a := &endpointv3.ClusterLoadAssignment{ClusterName: s.Name}
	inside := false
	for _, name := range sorted(s.Split) {
		t := names[name]
		own, named, err := t.assign()
		if err != nil {
			return t.where(err)
		}
		inside = inside || named
		l := &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Zone: name},
			LoadBalancingWeight: wrapperspb.UInt32(s.Split[name])}
		for _, part := range own.GetEndpoints() {
			if len(own.GetEndpoints()) > 1 || part.GetPriority() > 0 {
				const what = ": udp services that others are split into have no zones and priorities"
				return in("split", wrongAt(errors.New(name+what), name))
			}
			l.LbEndpoints = part.GetLbEndpoints()
		}
		a.Endpoints = append(a.Endpoints, l)
	}
	s.place(c, a, inside)
	return nil
}

// inbound holds the resources with which a proxy serves its application's service.
type inbound struct {
	cluster  *clusterv3.Cluster
	listener *listenerv3.Listener
}

// inboundName returns the name of the listener, the routes and the cluster of a service's application.
func inboundName(service string) string { return "inbound:" + service }

// waitForHello is how long a listener waits for a client's TLS hello if plain text is accepted as well and the server
// may send first. A client that is silent for that long is treated as a plain-text client.
const waitForHello = time.Second

// waitForHandshake is how long a connection may take to authenticate.
const waitForHandshake = 10 * time.Second

// serve makes the resources with which a proxy passes a service's connections to its application. Proxies share the
// messages that are the same.
func (s *service) serve(m *Mesh, at Inbound) (inbound, error) {
	cluster, err := s.application(at.To)
	if err != nil {
		return inbound{}, in("to", err)
	}
	key := "inbound " + at.Listen
	if l := s.listener(key); l != nil {
		return inbound{cluster, l}, nil
	}
	address, _, err := listenAt(at.Listen, s.protocol)
	if err != nil {
		return inbound{}, in("listen", err)
	}
	l := &listenerv3.Listener{Name: inboundName(s.Name), Address: address,
		TrafficDirection: corev3.TrafficDirection_INBOUND}
	if s.protocol == protocolUDP {
		if l.ListenerFilters, err = udpFilters(l.Name, l.Name, nil); err != nil {
			return inbound{}, err
		}
	} else {
		s.chainsOf(m, l)
	}
	s.listeners[key] = l
	return inbound{cluster, l}, nil
}

// redirected returns a service's listener unchanged, unless connections to the service are redirected to the proxy. It
// then returns a copy whose chains apply only to connections that were made to the service's address; all others are
// closed.
func (p *proxy) redirected(name string, l *listenerv3.Listener) (*listenerv3.Listener, error) {
	r, is := p.Redirected[name]
	if !is {
		return l, nil
	}
	from, err := netip.ParseAddrPort(r.From)
	if err != nil {
		return nil, err
	}
	lookUp := listenerFilters("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
	l = proto.CloneOf(l) // other proxies may share it
	if r.Transparent {
		l.Transparent = wrapperspb.Bool(true)
	}
	l.ListenerFilters = slices.Concat(lookUp, l.ListenerFilters)
	for _, c := range l.FilterChains {
		if c.FilterChainMatch == nil {
			c.FilterChainMatch = &listenerv3.FilterChainMatch{}
		}
		c.FilterChainMatch.DestinationPort = wrapperspb.UInt32(uint32(from.Port()))
		if len(c.FilterChainMatch.PrefixRanges) == 0 {
			c.FilterChainMatch.PrefixRanges = ranges(netip.PrefixFrom(from.Addr(), from.Addr().BitLen()))
		}
	}
	return l, nil
}

// chainsOf adds the filter chains of an inbound listener: TLS, plain text, or both.
func (s *service) chainsOf(m *Mesh, l *listenerv3.Listener) {
	switch m.mtls {
	case off:
		l.FilterChains = []*listenerv3.FilterChain{s.taken(m, false)}
		return
	case strict:
		l.FilterChains = []*listenerv3.FilterChain{s.taken(m, true)}
		return
	}
	l.ListenerFilters = listenerFilters("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{})
	if s.protocol == protocolTCP {
		l.ListenerFiltersTimeout = durationpb.New(waitForHello)
		l.ContinueOnListenerFiltersTimeout = true
	}
	secure := s.taken(m, true)
	secure.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls"}
	l.FilterChains = []*listenerv3.FilterChain{secure, s.taken(m, false)}
}

// taken returns the filter chain for TLS or for plain-text connections. For a TCP service with restricted access, the
// proxy verifies the caller's certificate in the handshake, before it connects to the server, so other callers receive
// nothing.
func (s *service) taken(m *Mesh, secure bool) *listenerv3.FilterChain {
	c := &listenerv3.FilterChain{}
	if s.protocol == protocolTCP && m.mtls != off && s.restricted && (!secure || len(s.callers) == 0) {
		return c // without filters, it closes connections
	}
	name := inboundName(s.Name)
	if s.protocol.http() {
		c.Filters = httpFilters(name, name, s.guard(m))
	} else {
		c.Filters = tcpFilters(name, map[string]uint32{name: 1}, secure)
	}
	if secure {
		c.TransportSocket = s.answers(m)
		c.TransportSocketConnectTimeout = durationpb.New(waitForHandshake)
	}
	return c
}

// application returns the cluster of a service's application behind a proxy.
func (s *service) application(to string) (*clusterv3.Cluster, error) {
	if c := s.applications[to]; c != nil {
		return c, nil
	}
	if s.prior != nil && s.prior.applications[to] != nil {
		s.applications[to] = s.prior.applications[to]
		return s.applications[to], nil
	}
	address, named, err := socket(to, corev3.SocketAddress_TCP)
	if err != nil {
		return nil, err
	}
	name := inboundName(s.Name)
	c := &clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(5 * time.Second), CircuitBreakers: breakers(0),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: address}}}}}}}}
	if named {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.DnsLookupFamily = clusterv3.Cluster_ALL
	}
	speaks(c, s.protocol)
	s.applications[to] = c
	return c, nil
}
