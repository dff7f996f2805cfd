package translate

import (
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"

	"tare/internal/mesh"
)

// The types that the matcher of a UDP proxy may contain.
const (
	udpRouteType  = "envoy.extensions.filters.udp.udp_proxy.v3.Route"
	sourceIPType  = "envoy.extensions.matching.common_inputs.network.v3.SourceIPInput"
	ipMatcherType = "xds.type.matcher.v3.IPMatcher"
)

// udpChains returns the chains of a UDP proxy: one chain, or one for each range of source addresses in its matcher.
func udpChains(name string, m *udpproxyv3.UdpProxyConfig, r reader) []mesh.Chain {
	r.only("", m, "stat_prefix", "cluster", "matcher", "access_log", "proxy_access_log", "access_log_options")
	if m.GetMatcher().GetMatcherTree() != nil {
		return udpSources(name, m.GetStatPrefix(), m.GetMatcher(), r.in("matcher"))
	}
	cluster := m.GetCluster() //nolint:staticcheck // deprecated, but still in wide use
	if m.GetMatcher() != nil {
		r.only("matcher", m.GetMatcher(), "on_no_match")
		cluster = udpRoute(m.GetMatcher().GetOnNoMatch(), r.in("matcher.on_no_match"))
	}
	r.require(cluster != "", "cluster", "is missing")
	return []mesh.Chain{{Name: name, Proxy: udpTo(m.GetStatPrefix(), cluster)}}
}

func udpTo(stat, cluster string) mesh.Proxy {
	return mesh.Proxy{StatPrefix: stat, Clusters: []mesh.WeightedCluster{{Name: cluster, Weight: 1}}}
}

// udpSources returns the chains of a matcher by ranges of source addresses. It accepts only exclusive ranges, with
// which the narrowest range that contains an address decides, as in filter chains.
func udpSources(name, stat string, m *xdsmatcherv3.Matcher, r reader) (out []mesh.Chain) {
	r.only("", m, "matcher_tree")
	r = r.in("matcher_tree")
	input, custom := m.GetMatcherTree().GetInput(), m.GetMatcherTree().GetCustomMatch()
	if kind := typeOf(input.GetTypedConfig()); kind != sourceIPType {
		r.check("input", unsupported(input.GetName(), kind))
	}
	if kind := typeOf(custom.GetTypedConfig()); kind != ipMatcherType {
		r.check("custom_match", unsupported(custom.GetName(), kind))
	}
	var ip xdsmatcherv3.IPMatcher
	r = r.in("custom_match.typed_config")
	r.check("", typed(custom.GetTypedConfig(), &ip))
	r.only("", &ip, "range_matchers")
	r.require(len(ip.GetRangeMatchers()) > 0, "range_matchers", "is missing")
	list := r.in("range_matchers")
	for i, one := range ip.GetRangeMatchers() {
		c := udpRange(one, stat, list.item(i))
		c.Name = name
		out = append(out, c)
	}
	return out
}

func udpRange(m *xdsmatcherv3.IPMatcher_IPRangeMatcher, stat string, r reader) (c mesh.Chain) {
	r.only("", m, "ranges", "on_match", "exclusive")
	r.require(m.GetExclusive(), "exclusive", "must be true")
	r.require(len(m.GetRanges()) > 0, "ranges", "is missing")
	ranges := r.in("ranges")
	for i, from := range m.GetRanges() {
		at := ranges.item(i)
		at.only("", from, "address_prefix", "prefix_len")
		one := at.cidr("", &corev3.CidrRange{AddressPrefix: from.GetAddressPrefix(), PrefixLen: from.GetPrefixLen()})
		c.Match.Sources = append(c.Match.Sources, one...)
	}
	if nothing := m.GetOnMatch().GetMatcher(); nothing != nil {
		c.RBAC = []mesh.RBAC{{Deny: true, Policies: []mesh.Principal{{}}}}
		r.only("on_match.matcher", nothing)
		return c
	}
	c.Proxy = udpTo(stat, udpRoute(m.GetOnMatch(), r.in("on_match")))
	return c
}

// udpRoute returns the cluster to which a match leads.
func udpRoute(m *xdsmatcherv3.Matcher_OnMatch, r reader) string {
	r.only("", m, "action")
	a := m.GetAction()
	if kind := typeOf(a.GetTypedConfig()); kind != udpRouteType {
		r.check("action", unsupported(a.GetName(), kind))
	}
	var to udpproxyv3.Route
	r = r.in("action.typed_config")
	r.check("", typed(a.GetTypedConfig(), &to))
	r.only("", &to, "cluster")
	r.require(to.GetCluster() != "", "cluster", "is missing")
	return to.GetCluster()
}
