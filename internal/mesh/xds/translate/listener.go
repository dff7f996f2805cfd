package translate

import (
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"tare/internal/mesh"
)

// The supported filters, by the types of their configurations.
const (
	tcpProxyType = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
	httpType     = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	rbacType     = "envoy.extensions.filters.network.rbac.v3.RBAC"
	udpProxyType = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig"
)

// maxCombinations bounds the number of combinations of a listener's matches and policies, before they become rules.
const maxCombinations = 1 << 12

// Listener is a listener that may depend on routes, and on which clusters exist. Expand turns it into what a data plane
// serves.
type Listener struct {
	Name     string
	Routes   []string // names of the route configurations (RDS) that the listener needs, without duplicates
	Warnings []*Warning

	at       mesh.Listener  // name, address and protocol
	inbound  bool           // the listener handles connections to the workload, which are redirected to it
	original bool           // the original destination of a connection decides, not the listener's address
	parts    []part         // the filter chains, with the default chain last
	plain    *mesh.Listener // the translated listener, if it depends on nothing else (whole); otherwise nil
}

// part is a filter chain.
type part struct {
	field    string // path of the chain in the listener, for messages
	chain    mesh.Chain
	fallback bool   // it is the default chain
	reads    bool   // the content of a connection selects it: server name, application protocol, whether it is TLS
	tls      bool   // it terminates TLS
	closed   string // why its connections must be refused; empty: they need not be refused
	http     bool
	route    string  // http: the name of its route configuration; empty if routes is set
	routes   *Routes // http: its routes, if the listener contains them
}

// ParseListener parses a Listener that depends on no other resource.
func ParseListener(b []byte) (*mesh.Listener, error) {
	l, err := ReadListener(b)
	if err != nil {
		return nil, err
	}
	if l.plain == nil {
		return nil, Refused("listener", l.Name, refuse("it depends on routes, or on the content of connections"))
	}
	return l.plain, nil
}

// ReadListener parses a Listener.
func ReadListener(b []byte) (*Listener, error) {
	var m listenerv3.Listener
	l := &Listener{}
	var err error
	if l.Warnings, err = read("listener", b, &m, m.GetName, func(r reader) { l.read(&m, r) }); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Listener) read(m *listenerv3.Listener, r reader) {
	r.only("", m, "name", "address", "filter_chains", "default_filter_chain", "listener_filters", "udp_listener_config",
		"use_original_dst",
		// These fields have no effect, because the data plane binds no socket and buffers nothing:
		"stat_prefix", "stats_matcher", "metadata", "traffic_direction", "access_log", "bind_to_port",
		"per_connection_buffer_limit_bytes", "drain_type", "enable_reuse_port", "tcp_backlog_size",
		"listener_filters_timeout", "continue_on_listener_filters_timeout", "ignore_global_conn_limit",
		"bypass_overload_manager", "max_connections_to_accept_per_socket_event", "connection_balance_config", "freebind",
		"socket_options", "transparent", "tcp_fast_open_queue_length")
	l.Name = m.GetName()
	r.require(l.Name != "", "name", "is missing")
	address, protocol, err := place(m.GetAddress())
	r.check("address", err)
	if address.Addr().IsMulticast() {
		r.refuse("address.socket_address.address", "%s is multicast", address.Addr())
	}
	l.at = mesh.Listener{Name: l.Name, Address: address, Protocol: mesh.TCP}
	if protocol == corev3.SocketAddress_UDP {
		l.at.Protocol = mesh.UDP
	}
	r.only("udp_listener_config", m.GetUdpListenerConfig(), "downstream_socket_config")
	l.original = m.GetUseOriginalDst().GetValue()
	l.filters(m, r.in("listener_filters"))
	l.inbound = l.original && m.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
	chains := r.in("filter_chains")
	for i, from := range m.GetFilterChains() {
		if r.failed() {
			return
		}
		l.parts = append(l.parts, l.chain(from, chains.item(i)))
	}
	if from := m.GetDefaultFilterChain(); from != nil {
		p := l.chain(from, r.in("default_filter_chain"))
		r.require(proto.Size(from.GetFilterChainMatch()) == 0, // istiod sends an empty match
			"default_filter_chain.filter_chain_match", "must be empty: the default chain takes what no other chain matches")
		r.require(l.at.Protocol != mesh.UDP || len(m.GetListenerFilters()) == 0, "default_filter_chain",
			"is not for a listener with a UDP proxy")
		p.fallback = true
		l.parts = append(l.parts, p)
	}
	r.require(len(l.parts) > 0, "filter_chains", "is missing")
	if !r.failed() {
		r.check("", l.whole())
	}
}

// whole determines which routes a listener needs. If the listener depends neither on routes nor on the content of
// connections, whole also makes its plain form.
func (l *Listener) whole() error {
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

// rules refuses a listener that expands to more rules than a listener can have.
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

// product multiplies factors, counting 0 as 1. It returns maxCombinations+1 for larger products.
func product(factors ...int) int {
	n := 1
	for _, f := range factors {
		n = min(n*min(max(f, 1), maxCombinations+1), maxCombinations+1)
	}
	return n
}

// looking are listener filters that only inspect connections, so that the content of a connection can select its chain.
var looking = []string{
	"envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
	"envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
}

const originalType = "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"

// filters handles the listener filters: those that inspect connections or find their original destinations, and the
// proxy of a UDP listener, which becomes the listener's chains.
func (l *Listener) filters(m *listenerv3.Listener, list reader) {
	for i, f := range m.GetListenerFilters() {
		r := list.item(i)
		t := typeOf(f.GetTypedConfig())
		switch {
		case l.at.Protocol == mesh.TCP && slices.Contains(looking, t):
			continue // filter_disabled limits inspection to some connections, which makes no difference here
		case l.at.Protocol == mesh.TCP && t == originalType:
			l.original = true
			continue
		case t != udpProxyType || l.at.Protocol != mesh.UDP:
			r.check("", unsupported(f.GetName(), t))
		case l.parts != nil:
			r.refuse("", "there can be one proxy")
		case len(m.GetFilterChains()) > 0:
			r.refuse("", "a listener has filter chains or a UDP proxy, not both")
		}
		r.only("", f, "name", "typed_config")
		var p udpproxyv3.UdpProxyConfig
		r = r.in("typed_config")
		if r.check("", typed(f.GetTypedConfig(), &p)); r.failed() {
			return
		}
		for _, c := range udpChains(f.GetName(), &p, r) {
			l.parts = append(l.parts, part{field: "listener_filters", chain: c})
		}
	}
}

func unsupported(name, kind string) error {
	if kind == "" {
		return refuse("%s is not supported", clip(name))
	}
	return refuse("%s (%s) is not supported", clip(name), clip(kind))
}

const downstreamTLS = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"

// chain parses a filter chain. An unsupported chain for connections to the workload is closed, and not refused: the
// listener's other chains serve other ports, and must not be refused with it.
func (l *Listener) chain(m *listenerv3.FilterChain, r reader) (p part) {
	p.field = r.path("")
	r.only("", m, "filter_chain_match", "filters", "transport_socket", "name", "metadata",
		"transport_socket_connect_timeout")
	p.chain.Name = m.GetName()
	p.chain.Match, p.reads = match(m.GetFilterChainMatch(), r.in("filter_chain_match"))
	if p.tls = typeOf(m.GetTransportSocket().GetTypedConfig()) == downstreamTLS; !p.tls {
		r.check("transport_socket", rawSocket(m.GetTransportSocket()))
	}
	if len(m.GetFilters()) == 0 { // such a chain closes its connections, as in Envoy
		p.chain.RBAC = []mesh.RBAC{{Deny: true, Policies: []mesh.Principal{{}}}}
		return p
	}
	filters := r.in("filters")
	if l.inbound {
		filters = filters.apart()
	}
	for i, f := range m.GetFilters() {
		if p.filter(f, i == len(m.GetFilters())-1, filters.item(i)); filters.failed() {
			break
		}
	}
	if l.inbound && filters.failed() {
		p.closed = strings.TrimPrefix((*filters.first).Error(), p.field+".")
		return p
	}
	r.require(p.chain.Proxy.Clusters != nil || p.http, "filters", "there is no tcp_proxy")
	return p
}

// observers are filters that observe connections and requests, or identify one side to the other. They change neither
// where connections go nor whether they are allowed.
var observers = []string{
	"stats.PluginConfig", "envoy.tcp.metadataexchange.config.MetadataExchange", "io.istio.http.peer_metadata.Config",
	"io.istio.network.authn.Config",
}

func observing(kind string) bool { return slices.Contains(observers, kind) }

// unheededFilters are filters that are ignored, by type, and the warnings about them.
var unheededFilters = map[string]string{
	"envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit":   "the rate of connections is not limited",
	"envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit": "connections are not limited",
	"envoy.extensions.filters.network.set_filter_state.v3.Config":          "nobody reads the state",
}

func (p *part) filter(f *listenerv3.Filter, last bool, r reader) {
	kind := typeOf(f.GetTypedConfig())
	if !last && observing(kind) {
		return
	}
	if why := unheededFilters[kind]; why != "" && !last {
		r.note("", "%s: %s", clip(f.GetName()), why)
		return
	}
	if kind != tcpProxyType && kind != rbacType && kind != httpType {
		r.check("", unsupported(f.GetName(), kind))
		return
	}
	r.only("", f, "name", "typed_config")
	config := r.in("typed_config")
	switch {
	case kind == rbacType:
		r.require(!last, "", "it is the last filter, which must be a tcp_proxy")
		var m networkrbacv3.RBAC
		config.check("", typed(f.GetTypedConfig(), &m))
		if rules, enforced := rbac(&m, config); enforced && !r.failed() {
			p.chain.RBAC = append(p.chain.RBAC, rules)
		}
	case !last:
		r.refuse("", "a tcp_proxy must be the last filter")
	case kind == httpType:
		p.http = true
		var m hcmv3.HttpConnectionManager
		config.check("", typed(f.GetTypedConfig(), &m))
		r.note("", carriedAsTCP)
		p.manager(&m, config)
	default:
		var m tcpproxyv3.TcpProxy
		config.check("", typed(f.GetTypedConfig(), &m))
		p.chain.Proxy = tcpProxy(&m, config)
	}
}

// match parses the addresses and ports by which a chain is selected, and reports whether the content of connections
// matters as well.
func match(m *listenerv3.FilterChainMatch, r reader) (out mesh.Match, reads bool) {
	r.only("", m, "destination_port", "prefix_ranges", "source_prefix_ranges", "source_ports", "server_names",
		"transport_protocol", "application_protocols")
	if p := m.GetDestinationPort(); p != nil {
		out.DestinationPort = r.port("destination_port", p.GetValue())
	}
	out.Destinations = r.cidrs("prefix_ranges", m.GetPrefixRanges())
	out.Sources = r.cidrs("source_prefix_ranges", m.GetSourcePrefixRanges())
	ports := r.in("source_ports")
	for i, p := range m.GetSourcePorts() {
		out.SourcePorts = append(out.SourcePorts, ports.item(i).port("", p))
	}
	return out, len(m.GetServerNames())+len(m.GetApplicationProtocols()) > 0 || m.GetTransportProtocol() != ""
}

func tcpProxy(m *tcpproxyv3.TcpProxy, r reader) mesh.Proxy {
	r.only("", m, "stat_prefix", "cluster", "weighted_clusters", "max_connect_attempts", "idle_timeout", "hash_policy",
		"max_downstream_connection_duration",
		"access_log", "access_log_flush_interval", "flush_access_log_on_connected", "access_log_options") // nothing is logged
	r.noteIf(isSet(m.GetIdleTimeout()), "idle_timeout", "connections are never ended")
	r.noteIf(isSet(m.GetMaxDownstreamConnectionDuration()), "max_downstream_connection_duration",
		"connections are never ended")
	r.noteIf(len(m.GetHashPolicy()) > 0, "hash_policy", noAffinity)
	p := mesh.Proxy{StatPrefix: m.GetStatPrefix(), MaxConnectAttempts: m.GetMaxConnectAttempts().GetValue()}
	r.require(m.GetMaxConnectAttempts() == nil || p.MaxConnectAttempts > 0, "max_connect_attempts", "must be 1 or more")
	w := m.GetWeightedClusters()
	if w == nil {
		r.require(m.GetCluster() != "", "cluster", "is missing")
		p.Clusters = []mesh.WeightedCluster{{Name: m.GetCluster(), Weight: 1}}
		return p
	}
	r.only("weighted_clusters", w, "clusters")
	list := r.in("weighted_clusters.clusters")
	list.require(len(w.GetClusters()) > 0, "", "is missing")
	total := uint64(0)
	for i, c := range w.GetClusters() {
		r := list.item(i)
		r.only("", c, "name", "weight")
		r.require(c.GetName() != "", "name", "is missing")
		r.require(c.GetWeight() != 0, "weight", "must be 1 or more")
		total += uint64(c.GetWeight())
		r.require(total <= math.MaxUint32, "weight", "the weights of all clusters are too much for 32 bits")
		p.Clusters = append(p.Clusters, mesh.WeightedCluster{Name: c.GetName(), Weight: c.GetWeight()})
	}
	return p
}

// isSet reports whether a duration is present and not 0.
func isSet(d *durationpb.Duration) bool { return d.GetSeconds() != 0 || d.GetNanos() != 0 }
