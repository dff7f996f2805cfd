package translate

import (
	"net/netip"

	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"

	"tare/internal/mesh"
)

// What the matcher of a UDP proxy can consist of.
const (
	udpRouteType  = "envoy.extensions.filters.udp.udp_proxy.v3.Route"
	sourceIPType  = "envoy.extensions.matching.common_inputs.network.v3.SourceIPInput"
	ipMatcherType = "xds.type.matcher.v3.IPMatcher"
)

// udpChains are the chains of a UDP proxy: one, or where its matcher asks for the source one for each range of these.
func udpChains(name string, m *udpproxyv3.UdpProxyConfig) ([]mesh.Chain, error) {
	err := only(m, "stat_prefix", "cluster", "matcher", "access_log", "proxy_access_log", "access_log_options")
	if err != nil {
		return nil, err
	}
	if t := m.GetMatcher().GetMatcherTree(); t != nil {
		chains, err := udpSources(name, m.GetStatPrefix(), m.GetMatcher())
		return chains, in("matcher", err)
	}
	cluster := m.GetCluster() //nolint:staticcheck // deprecated: still the short way that many use
	if m.GetMatcher() != nil {
		if err = only(m.GetMatcher(), "on_no_match"); err == nil {
			cluster, err = udpRoute(m.GetMatcher().GetOnNoMatch())
			err = in("on_no_match", err)
		}
		if err != nil {
			return nil, in("matcher", err)
		}
	}
	if cluster == "" {
		return nil, in("cluster", refuse("is missing"))
	}
	return []mesh.Chain{{Name: name, Proxy: udpTo(m.GetStatPrefix(), cluster)}}, nil
}

func udpTo(stat, cluster string) mesh.Proxy {
	return mesh.Proxy{StatPrefix: stat, Clusters: []mesh.WeightedCluster{{Name: cluster, Weight: 1}}}
}

// udpSources are the chains of a matcher by ranges of sources. Only exclusive ranges are taken, of which the narrowest
// one that holds a source decides, as it does among filter chains.
func udpSources(name, stat string, m *xdsmatcherv3.Matcher) (out []mesh.Chain, err error) {
	if err := only(m, "matcher_tree"); err != nil {
		return nil, err
	}
	t := m.GetMatcherTree()
	if kind := typeOf(t.GetInput().GetTypedConfig()); kind != sourceIPType {
		return nil, in("matcher_tree", in("input", unsupported(t.GetInput().GetName(), kind)))
	}
	custom := t.GetCustomMatch()
	if kind := typeOf(custom.GetTypedConfig()); kind != ipMatcherType {
		return nil, in("matcher_tree", in("custom_match", unsupported(custom.GetName(), kind)))
	}
	var ip xdsmatcherv3.IPMatcher
	err = typed(custom.GetTypedConfig(), &ip)
	if err == nil {
		err = only(&ip, "range_matchers")
	}
	for i, r := range ip.GetRangeMatchers() {
		if err != nil {
			break
		}
		c := mesh.Chain{Name: name}
		if err = udpRange(r, stat, &c); err != nil {
			err = in("range_matchers", item(i, err))
		}
		out = append(out, c)
	}
	if err == nil && len(out) == 0 {
		err = in("range_matchers", refuse("is missing"))
	}
	return out, in("matcher_tree", in("custom_match", in("typed_config", err)))
}

func udpRange(r *xdsmatcherv3.IPMatcher_IPRangeMatcher, stat string, c *mesh.Chain) error {
	if err := only(r, "ranges", "on_match", "exclusive"); err != nil {
		return err
	}
	if !r.GetExclusive() {
		return in("exclusive", refuse("must be true"))
	}
	if len(r.GetRanges()) == 0 {
		return in("ranges", refuse("is missing"))
	}
	for i, from := range r.GetRanges() {
		err := only(from, "address_prefix", "prefix_len")
		var p netip.Prefix
		if err == nil {
			p, err = cidr(&corev3.CidrRange{AddressPrefix: from.GetAddressPrefix(), PrefixLen: from.GetPrefixLen()})
		}
		if err != nil {
			return in("ranges", item(i, err))
		}
		c.Match.Sources = append(c.Match.Sources, p)
	}
	if nothing := r.GetOnMatch().GetMatcher(); nothing != nil {
		c.RBAC = []mesh.RBAC{{Deny: true, Policies: []mesh.Principal{{}}}}
		return in("on_match", in("matcher", only(nothing)))
	}
	cluster, err := udpRoute(r.GetOnMatch())
	c.Proxy = udpTo(stat, cluster)
	return in("on_match", err)
}

// udpRoute is the cluster that a match leads to.
func udpRoute(m *xdsmatcherv3.Matcher_OnMatch) (string, error) {
	if err := only(m, "action"); err != nil {
		return "", err
	}
	a := m.GetAction()
	if typeOf(a.GetTypedConfig()) != udpRouteType {
		return "", in("action", unsupported(a.GetName(), typeOf(a.GetTypedConfig())))
	}
	var r udpproxyv3.Route
	err := typed(a.GetTypedConfig(), &r)
	if err == nil {
		err = only(&r, "cluster")
	}
	if err == nil && r.GetCluster() == "" {
		err = in("cluster", refuse("is missing"))
	}
	return r.GetCluster(), in("action", in("typed_config", err))
}
