package translate

import (
	"math"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"tare/internal/mesh"
)

// The filters that are supported, by the types of their configuration.
const (
	tcpProxyType = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
	httpType     = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	rbacType     = "envoy.extensions.filters.network.rbac.v3.RBAC"
	udpProxyType = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig"
)

// maxCombinations bounds what a listener's matches and policies multiply to before rules are made of them.
const maxCombinations = 1 << 12

// Listener is a listener whose connections may depend on routes, and on which clusters there are. Expand makes of it
// what a data plane serves.
type Listener struct {
	Name     string
	Routes   []string // the route configurations (RDS) that it needs, each once
	Warnings []*Warning

	at       mesh.Listener // name, address and protocol
	inbound  bool          // connections came to the workload, and were redirected
	original bool          // connections are handled by where they were going, not by the listener's own address
	parts    []part        // the filter chains, the default one last
	plain    *mesh.Listener
}

// part is a filter chain.
type part struct {
	field    string // of the listener, for messages
	chain    mesh.Chain
	fallback bool   // it is the default chain
	reads    bool   // it is chosen by what a connection says: server name, application protocol, TLS or not
	tls      bool   // it ends TLS
	closed   string // why its connections must be refused; empty: they need not
	http     bool
	route    string  // http: the name of its routes; or
	routes   *Routes // its routes
}

// ParseListener reads a Listener that needs nothing else.
func ParseListener(b []byte) (*mesh.Listener, error) {
	l, err := ReadListener(b)
	if err != nil {
		return nil, err
	}
	if l.plain == nil {
		return nil, Refused("listener", l.Name, refuse("it depends on routes, or on what connections say"))
	}
	return l.plain, nil
}

// ReadListener reads a Listener.
func ReadListener(b []byte) (*Listener, error) {
	var m listenerv3.Listener
	if err := decode(b, &m); err != nil {
		return nil, Refused("listener", Name(b), err)
	}
	l := &Listener{Name: m.GetName(), at: mesh.Listener{Name: m.GetName(), Protocol: mesh.TCP}}
	var list []*Warning
	if err := l.read(&m, notes{list: &list}); err != nil {
		return nil, Refused("listener", l.Name, err)
	}
	l.Warnings = warnings("listener", l.Name, list)
	return l, nil
}

func (l *Listener) read(m *listenerv3.Listener, n notes) error {
	err := only(m, "name", "address", "filter_chains", "default_filter_chain", "listener_filters", "udp_listener_config",
		"use_original_dst",
		// The data plane binds no socket and buffers nothing, so that these have no effect:
		"stat_prefix", "stats_matcher", "metadata", "traffic_direction", "access_log", "bind_to_port",
		"per_connection_buffer_limit_bytes", "drain_type", "enable_reuse_port", "tcp_backlog_size",
		"listener_filters_timeout", "continue_on_listener_filters_timeout", "ignore_global_conn_limit",
		"bypass_overload_manager", "max_connections_to_accept_per_socket_event", "connection_balance_config", "freebind",
		"socket_options", "transparent", "tcp_fast_open_queue_length")
	if err != nil {
		return err
	}
	if l.Name == "" {
		return in("name", refuse("is missing"))
	}
	address, protocol, err := place(m.GetAddress())
	if err != nil {
		return in("address", err)
	}
	if address.Addr().IsMulticast() {
		return in("address", in("socket_address", in("address", refuse("%s is multicast", address.Addr()))))
	}
	l.at.Address = address
	if protocol == corev3.SocketAddress_UDP {
		l.at.Protocol = mesh.UDP
	}
	if u := m.GetUdpListenerConfig(); u != nil {
		if err := only(u, "downstream_socket_config"); err != nil {
			return in("udp_listener_config", err)
		}
	}
	l.original = m.GetUseOriginalDst().GetValue()
	if err := l.filters(m); err != nil {
		return in("listener_filters", err)
	}
	l.inbound = l.original && m.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
	for i, from := range m.GetFilterChains() {
		field := "filter_chains[" + strconv.Itoa(i) + "]"
		p, err := l.chain(from, n.in(field))
		if err != nil {
			return in(field, err)
		}
		p.field = field
		l.parts = append(l.parts, p)
	}
	if from := m.GetDefaultFilterChain(); from != nil {
		p, err := l.chain(from, n.in("default_filter_chain"))
		switch {
		case err == nil && proto.Size(from.GetFilterChainMatch()) > 0: // istiod sends an empty one
			err = in("filter_chain_match", refuse("the default chain is for whatever no other matches"))
		case err == nil && l.at.Protocol == mesh.UDP && len(m.GetListenerFilters()) > 0:
			err = refuse("the listener filter stands for it")
		}
		if err != nil {
			return in("default_filter_chain", err)
		}
		p.field, p.fallback = "default_filter_chain", true
		l.parts = append(l.parts, p)
	}
	if len(l.parts) == 0 {
		return in("filter_chains", refuse("is missing"))
	}
	plain, named := true, map[string]bool{}
	for _, p := range l.parts {
		if p.route != "" && !named[p.route] {
			named[p.route] = true
			l.Routes = append(l.Routes, p.route)
		}
		plain = plain && !(l.original || p.reads || p.tls || p.http || p.closed != "")
	}
	if !plain {
		return nil
	}
	whole := l.at
	for i, p := range l.parts {
		if p.fallback {
			whole.Default = &l.parts[i].chain
		} else {
			whole.Chains = append(whole.Chains, p.chain)
		}
	}
	l.plain = &whole
	return rules(l.plain)
}

// rules refuses what comes to more rules than a listener can have.
func rules(l *mesh.Listener) error {
	total := 0
	for i := 0; i < len(l.Chains) || i == len(l.Chains) && l.Default != nil; i++ {
		c := l.Chain(i)
		matches := product(len(c.Match.Destinations), len(c.Match.Sources), len(c.Match.SourcePorts))
		total += matches
		for _, r := range c.RBAC {
			for _, p := range r.Policies {
				total += product(matches, len(p.Destinations), len(p.Sources), len(p.SourcePorts), len(p.DestinationPorts))
				total = min(total, maxCombinations+1)
			}
		}
		if total > maxCombinations {
			return in("filter_chains", refuse("matches and policies come to more than %d combinations", maxCombinations))
		}
	}
	if _, err := l.Rules(); err != nil {
		return in("filter_chains", refuse("%s", strings.TrimPrefix(err.Error(), "listener "+l.Name+": ")))
	}
	return nil
}

// product multiplies, with 0 as 1, up to more than maxCombinations.
func product(factors ...int) int {
	n := 1
	for _, f := range factors {
		n = min(n*min(max(f, 1), maxCombinations+1), maxCombinations+1)
	}
	return n
}

// The listener filters that only look at connections, so that a chain can be chosen by what they say.
var looking = []string{
	"envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
	"envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
}

const originalType = "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"

// filters takes the listener filters: those that look, and the proxy of a UDP listener, which is then its only chain.
func (l *Listener) filters(m *listenerv3.Listener) error {
	for i, f := range m.GetListenerFilters() {
		t := typeOf(f.GetTypedConfig())
		switch {
		case l.at.Protocol == mesh.TCP && slices.Contains(looking, t):
			continue // filter_disabled says where they look, which makes no difference
		case l.at.Protocol == mesh.TCP && t == originalType:
			l.original = true
			continue
		case t != udpProxyType || l.at.Protocol != mesh.UDP:
			return item(i, unsupported(f.GetName(), t))
		case l.parts != nil:
			return item(i, refuse("there can be one proxy"))
		case len(m.GetFilterChains()) > 0:
			return item(i, refuse("a listener has filter chains or a UDP proxy, not both"))
		}
		if err := only(f, "name", "typed_config"); err != nil {
			return item(i, err)
		}
		var p udpproxyv3.UdpProxyConfig
		err := typed(f.GetTypedConfig(), &p)
		if err != nil {
			return item(i, in("typed_config", err))
		}
		chains, err := udpChains(f.GetName(), &p)
		if err != nil {
			return item(i, in("typed_config", err))
		}
		for _, c := range chains {
			l.parts = append(l.parts, part{field: "listener_filters", chain: c})
		}
	}
	return nil
}

func unsupported(name, kind string) error {
	if kind == "" {
		return refuse("%s is not supported", clip(name))
	}
	return refuse("%s (%s) is not supported", clip(name), clip(kind))
}

const downstreamTLS = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"

// chain reads a filter chain. What a workload's own inbound chain cannot do closes it: its neighbours are there for
// other ports, and must not go with it.
func (l *Listener) chain(m *listenerv3.FilterChain, n notes) (p part, err error) {
	err = only(m, "filter_chain_match", "filters", "transport_socket", "name", "metadata",
		"transport_socket_connect_timeout")
	if err != nil {
		return p, err
	}
	p.chain.Name = m.GetName()
	if p.chain.Match, p.reads, err = match(m.GetFilterChainMatch()); err != nil {
		return p, in("filter_chain_match", err)
	}
	if typeOf(m.GetTransportSocket().GetTypedConfig()) == downstreamTLS {
		p.tls = true
	} else if err := rawSocket(m.GetTransportSocket()); err != nil {
		return p, in("transport_socket", err)
	}
	if len(m.GetFilters()) == 0 { // closes what it takes, as in Envoy
		p.chain.RBAC = []mesh.RBAC{{Deny: true, Policies: []mesh.Principal{{}}}}
		return p, nil
	}
	for i, f := range m.GetFilters() {
		at := n.in("filters").item(i)
		if err := p.filter(f, i == len(m.GetFilters())-1, at); err != nil {
			if err = in("filters", item(i, err)); !l.inbound {
				return p, err
			}
			p.closed = err.Error()
			return p, nil
		}
	}
	if p.chain.Proxy.Clusters == nil && !p.http {
		return p, in("filters", refuse("there is no tcp_proxy"))
	}
	return p, nil
}

// observers are filters that watch connections and requests, or tell the other side who this is, and change neither
// where they go nor whether they may.
var observers = []string{
	"stats.PluginConfig", "envoy.tcp.metadataexchange.config.MetadataExchange", "io.istio.http.peer_metadata.Config",
	"io.istio.network.authn.Config",
}

func observing(kind string) bool { return slices.Contains(observers, kind) }

// unheededFilters are what their chains do without.
var unheededFilters = map[string]string{
	"envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit":   "the rate of connections is not limited",
	"envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit": "connections are not limited",
	"envoy.extensions.filters.network.set_filter_state.v3.Config":          "nobody reads the state",
}

func (p *part) filter(f *listenerv3.Filter, last bool, n notes) error {
	kind := typeOf(f.GetTypedConfig())
	if !last && observing(kind) {
		return nil
	}
	if why := unheededFilters[kind]; why != "" && !last {
		n.note("%s: %s", clip(f.GetName()), why)
		return nil
	}
	if kind != tcpProxyType && kind != rbacType && kind != httpType {
		return unsupported(f.GetName(), kind)
	}
	if err := only(f, "name", "typed_config"); err != nil {
		return err
	}
	if kind == rbacType {
		if last {
			return refuse("nothing comes after it; the last filter must be a tcp_proxy")
		}
		var m networkrbacv3.RBAC
		if err := typed(f.GetTypedConfig(), &m); err != nil {
			return in("typed_config", err)
		}
		r, enforced, err := rbac(&m, n.in("typed_config"))
		if err != nil {
			return in("typed_config", err)
		}
		if enforced {
			p.chain.RBAC = append(p.chain.RBAC, r)
		}
		return nil
	}
	if !last {
		return refuse("a tcp_proxy must be the last filter")
	}
	if kind == httpType {
		p.http = true
		return in("typed_config", p.manager(f.GetTypedConfig(), n))
	}
	var m tcpproxyv3.TcpProxy
	err := typed(f.GetTypedConfig(), &m)
	if err == nil {
		p.chain.Proxy, err = tcpProxy(&m, n.in("typed_config"))
	}
	return in("typed_config", err)
}

// match reads by what addresses a chain is chosen, and whether it also takes what a connection says.
func match(m *listenerv3.FilterChainMatch) (out mesh.Match, reads bool, err error) {
	if m == nil {
		return out, false, nil
	}
	if err := only(m, "destination_port", "prefix_ranges", "source_prefix_ranges", "source_ports",
		"server_names", "transport_protocol", "application_protocols"); err != nil {
		return out, false, err
	}
	reads = len(m.GetServerNames())+len(m.GetApplicationProtocols()) > 0 || m.GetTransportProtocol() != ""
	if p := m.GetDestinationPort(); p != nil {
		if out.DestinationPort, err = port(p.GetValue()); err != nil {
			return out, reads, in("destination_port", err)
		}
	}
	if out.Destinations, err = cidrs(m.GetPrefixRanges()); err != nil {
		return out, reads, in("prefix_ranges", err)
	}
	if out.Sources, err = cidrs(m.GetSourcePrefixRanges()); err != nil {
		return out, reads, in("source_prefix_ranges", err)
	}
	for i, p := range m.GetSourcePorts() {
		q, err := port(p)
		if err != nil {
			return out, reads, in("source_ports", item(i, err))
		}
		out.SourcePorts = append(out.SourcePorts, q)
	}
	return out, reads, nil
}

func port(p uint32) (uint16, error) {
	if p == 0 || p > math.MaxUint16 {
		return 0, refuse("must be 1 to 65535, not %d", p)
	}
	return uint16(p), nil
}

func tcpProxy(m *tcpproxyv3.TcpProxy, n notes) (p mesh.Proxy, err error) {
	err = only(m, "stat_prefix", "cluster", "weighted_clusters", "max_connect_attempts", "idle_timeout", "hash_policy",
		"max_downstream_connection_duration",
		"access_log", "access_log_flush_interval", "flush_access_log_on_connected", "access_log_options") // nothing is logged
	if err != nil {
		return p, err
	}
	for _, limit := range []struct {
		field string
		*durationpb.Duration
	}{
		{"idle_timeout", m.GetIdleTimeout()},
		{"max_downstream_connection_duration", m.GetMaxDownstreamConnectionDuration()},
	} {
		if limit.GetSeconds() != 0 || limit.GetNanos() != 0 {
			n.in(limit.field).note("connections are never ended")
		}
	}
	if len(m.GetHashPolicy()) > 0 {
		n.in("hash_policy").note("%s", noAffinity)
	}
	p.StatPrefix = m.GetStatPrefix()
	if a := m.GetMaxConnectAttempts(); a != nil {
		if p.MaxConnectAttempts = a.GetValue(); p.MaxConnectAttempts == 0 {
			return p, in("max_connect_attempts", refuse("must be 1 or more"))
		}
	}
	w := m.GetWeightedClusters()
	if w == nil {
		if m.GetCluster() == "" {
			return p, in("cluster", refuse("is missing"))
		}
		p.Clusters = []mesh.WeightedCluster{{Name: m.GetCluster(), Weight: 1}}
		return p, nil
	}
	if err := only(w, "clusters"); err != nil {
		return p, in("weighted_clusters", err)
	}
	if len(w.GetClusters()) == 0 {
		return p, in("weighted_clusters", in("clusters", refuse("is missing")))
	}
	total := uint64(0)
	for i, c := range w.GetClusters() {
		err := only(c, "name", "weight")
		switch {
		case err != nil:
		case c.GetName() == "":
			err = in("name", refuse("is missing"))
		case c.GetWeight() == 0:
			err = in("weight", refuse("must be 1 or more"))
		}
		if total += uint64(c.GetWeight()); err == nil && total > math.MaxUint32 {
			err = in("weight", refuse("the weights of all clusters are too much for 32 bits"))
		}
		if err != nil {
			return p, in("weighted_clusters", in("clusters", item(i, err)))
		}
		p.Clusters = append(p.Clusters, mesh.WeightedCluster{Name: c.GetName(), Weight: c.GetWeight()})
	}
	return p, nil
}
