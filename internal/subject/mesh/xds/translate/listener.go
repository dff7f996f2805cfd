package translate

import (
	"math"
	"strings"

	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"

	"tare/internal/subject/mesh"
)

// The filters that are supported, by the types of their configuration.
const (
	tcpProxyType = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
	rbacType     = "envoy.extensions.filters.network.rbac.v3.RBAC"
	udpProxyType = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig"
	udpRouteType = "envoy.extensions.filters.udp.udp_proxy.v3.Route"
)

// maxCombinations bounds what a listener's matches and policies multiply to before rules are made of them.
const maxCombinations = 1 << 12

// ParseListener reads a Listener.
func ParseListener(b []byte) (*mesh.Listener, error) {
	var m listenerv3.Listener
	if err := decode(b, &m); err != nil {
		return nil, refusal("listener", Name(b), err)
	}
	l := &mesh.Listener{Name: m.GetName()}
	if err := listener(&m, l); err != nil {
		return nil, refusal("listener", l.Name, err)
	}
	return l, nil
}

func listener(m *listenerv3.Listener, l *mesh.Listener) error {
	err := only(m, "name", "address", "filter_chains", "default_filter_chain", "listener_filters", "udp_listener_config",
		// The data plane binds no socket and buffers nothing, so that these have no effect:
		"stat_prefix", "stats_matcher", "metadata", "traffic_direction", "access_log", "bind_to_port", "per_connection_buffer_limit_bytes", "drain_type",
		"enable_reuse_port", "tcp_backlog_size", "listener_filters_timeout", "continue_on_listener_filters_timeout", "ignore_global_conn_limit",
		"bypass_overload_manager", "max_connections_to_accept_per_socket_event")
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
	l.Address, l.Protocol = address, mesh.TCP
	if protocol == corev3.SocketAddress_UDP {
		l.Protocol = mesh.UDP
	}
	if u := m.GetUdpListenerConfig(); u != nil {
		if err := only(u, "downstream_socket_config"); err != nil {
			return in("udp_listener_config", err)
		}
	}
	if err := listenerFilters(m, l); err != nil {
		return in("listener_filters", err)
	}
	for i, from := range m.GetFilterChains() {
		c, err := chain(from)
		if err != nil {
			return in("filter_chains", item(i, err))
		}
		l.Chains = append(l.Chains, c)
	}
	if from := m.GetDefaultFilterChain(); from != nil {
		c, err := chain(from)
		switch {
		case err == nil && from.GetFilterChainMatch() != nil:
			err = in("filter_chain_match", refuse("the default chain is for whatever no other matches"))
		case err == nil && l.Default != nil:
			err = refuse("the listener filter stands for it")
		}
		if err != nil {
			return in("default_filter_chain", err)
		}
		l.Default = &c
	}
	if len(l.Chains) == 0 && l.Default == nil {
		return in("filter_chains", refuse("is missing"))
	}
	return rules(l)
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

// listenerFilters takes the one filter that there can be: the proxy of a UDP listener, which is then its only chain.
func listenerFilters(m *listenerv3.Listener, l *mesh.Listener) error {
	for i, f := range m.GetListenerFilters() {
		if t := typeOf(f.GetTypedConfig()); t != udpProxyType || l.Protocol != mesh.UDP {
			return item(i, unsupported(f.GetName(), t))
		}
		switch {
		case l.Chains != nil:
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
		c := mesh.Chain{Name: f.GetName()}
		if c.Proxy, err = udpProxy(&p); err != nil {
			return item(i, in("typed_config", err))
		}
		l.Chains = []mesh.Chain{c}
	}
	return nil
}

func unsupported(name, kind string) error {
	if kind == "" {
		return refuse("%s is not supported", clip(name))
	}
	return refuse("%s (%s) is not supported", clip(name), clip(kind))
}

func chain(m *listenerv3.FilterChain) (c mesh.Chain, err error) {
	if err := only(m, "filter_chain_match", "filters", "transport_socket", "name", "metadata"); err != nil {
		return c, err
	}
	c.Name = m.GetName()
	if c.Match, err = match(m.GetFilterChainMatch()); err != nil {
		return c, in("filter_chain_match", err)
	}
	if err := rawSocket(m.GetTransportSocket()); err != nil {
		return c, in("transport_socket", err)
	}
	for i, f := range m.GetFilters() {
		if err := filter(f, &c, i == len(m.GetFilters())-1); err != nil {
			return c, in("filters", item(i, err))
		}
	}
	if c.Proxy.Clusters == nil {
		return c, in("filters", refuse("there is no tcp_proxy"))
	}
	return c, nil
}

func filter(f *listenerv3.Filter, c *mesh.Chain, last bool) error {
	kind := typeOf(f.GetTypedConfig())
	if kind != tcpProxyType && kind != rbacType {
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
		r, enforced, err := rbac(&m)
		if err != nil {
			return in("typed_config", err)
		}
		if enforced {
			c.RBAC = append(c.RBAC, r)
		}
		return nil
	}
	if !last {
		return refuse("a tcp_proxy must be the last filter")
	}
	var m tcpproxyv3.TcpProxy
	err := typed(f.GetTypedConfig(), &m)
	if err == nil {
		c.Proxy, err = tcpProxy(&m)
	}
	return in("typed_config", err)
}

func match(m *listenerv3.FilterChainMatch) (out mesh.Match, err error) {
	if m == nil {
		return out, nil
	}
	if err := only(m, "destination_port", "prefix_ranges", "source_prefix_ranges", "source_ports"); err != nil {
		return out, err
	}
	if p := m.GetDestinationPort(); p != nil {
		if out.DestinationPort, err = port(p.GetValue()); err != nil {
			return out, in("destination_port", err)
		}
	}
	if out.Destinations, err = cidrs(m.GetPrefixRanges()); err != nil {
		return out, in("prefix_ranges", err)
	}
	if out.Sources, err = cidrs(m.GetSourcePrefixRanges()); err != nil {
		return out, in("source_prefix_ranges", err)
	}
	for i, p := range m.GetSourcePorts() {
		q, err := port(p)
		if err != nil {
			return out, in("source_ports", item(i, err))
		}
		out.SourcePorts = append(out.SourcePorts, q)
	}
	return out, nil
}

func port(p uint32) (uint16, error) {
	if p == 0 || p > math.MaxUint16 {
		return 0, refuse("must be 1 to 65535, not %d", p)
	}
	return uint16(p), nil
}

func tcpProxy(m *tcpproxyv3.TcpProxy) (p mesh.Proxy, err error) {
	err = only(m, "stat_prefix", "cluster", "weighted_clusters", "max_connect_attempts", "idle_timeout",
		"access_log", "access_log_flush_interval", "flush_access_log_on_connected", "access_log_options") // nothing is logged
	if err != nil {
		return p, err
	}
	if t := m.GetIdleTimeout(); t != nil && (t.GetSeconds() != 0 || t.GetNanos() != 0) {
		return p, in("idle_timeout", refuse("must be 0 s: connections are never ended"))
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

func udpProxy(m *udpproxyv3.UdpProxyConfig) (p mesh.Proxy, err error) {
	if err := only(m, "stat_prefix", "cluster", "matcher", "access_log", "proxy_access_log", "access_log_options"); err != nil {
		return p, err
	}
	p.StatPrefix = m.GetStatPrefix()
	name := m.GetCluster() //lint:ignore SA1019 still the short way that many use
	if m.GetMatcher() != nil {
		if name, err = udpRoute(m.GetMatcher()); err != nil {
			return p, in("matcher", err)
		}
	}
	if name == "" {
		return p, in("cluster", refuse("is missing"))
	}
	p.Clusters = []mesh.WeightedCluster{{Name: name, Weight: 1}}
	return p, nil
}

// udpRoute is the cluster of a matcher without conditions.
func udpRoute(m *xdsmatcherv3.Matcher) (string, error) {
	if err := only(m, "on_no_match"); err != nil {
		return "", err
	}
	if err := only(m.GetOnNoMatch(), "action"); err != nil {
		return "", in("on_no_match", err)
	}
	a := m.GetOnNoMatch().GetAction()
	if typeOf(a.GetTypedConfig()) != udpRouteType {
		return "", in("on_no_match", in("action", unsupported(a.GetName(), typeOf(a.GetTypedConfig()))))
	}
	var r udpproxyv3.Route
	err := decode(a.GetTypedConfig().GetValue(), &r)
	if err == nil {
		err = only(&r, "cluster")
	}
	return r.GetCluster(), in("on_no_match", in("action", in("typed_config", err)))
}
