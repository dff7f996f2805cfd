package translate

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh"
)

// Routes holds the part of a route configuration that a data plane at connection level can use: the virtual hosts. The
// data plane sees only addresses, so it ignores domains that are names. It cannot know which of a virtual host's routes
// a request takes, so all of these routes must go to the same clusters.
type Routes struct {
	Name     string
	Warnings []*Warning

	hosts []virtualHost
}

// virtualHost determines where connections to some addresses go.
type virtualHost struct {
	field     string
	addresses []netip.AddrPort // port 0: any
	any       bool             // it also takes all domains that no other virtual host has ("*")
	clusters  []mesh.WeightedCluster
	closed    string // why connections must be refused; empty: they need not be refused
}

// ParseRoutes parses a RouteConfiguration.
func ParseRoutes(b []byte) (*Routes, error) {
	var m routev3.RouteConfiguration
	var out *Routes
	list, err := read("routes", b, &m, m.GetName, func(r reader) {
		out = routes(&m, r)
		r.require(m.GetName() != "", "name", "is missing")
	})
	if err != nil {
		return nil, err
	}
	out.Warnings = list
	return out, nil
}

// maxRouteAddresses bounds the number of addresses in a route configuration. Each becomes a listener.
const maxRouteAddresses = 1 << 16

// routes parses the virtual hosts. It refuses the fields vhds and, unless it can be ignored, typed_per_filter_config.
// The other fields are about HTTP headers, statistics and limits.
func routes(m *routev3.RouteConfiguration, r reader) *Routes {
	r.require(m.GetVhds() == nil, "vhds", "is not supported")
	kind := deciding(m.GetTypedPerFilterConfig())
	r.require(kind == "", "typed_per_filter_config", "%s is not supported", kind)
	out := &Routes{Name: m.GetName()}
	count := 0
	list := r.in("virtual_hosts")
	for i, from := range m.GetVirtualHosts() {
		r := list.item(i)
		h := virtualHost{field: "virtual_hosts[" + strconv.Itoa(i) + "]"}
		seen := map[netip.AddrPort]bool{}
		for _, domain := range from.GetDomains() {
			if domain == "*" {
				h.any = true
			} else if a, ok := addressOf(domain); ok && !seen[a] {
				seen[a] = true
				h.addresses = append(h.addresses, a)
				if count++; count > maxRouteAddresses {
					list.refuse("", "there are more than %d addresses", maxRouteAddresses)
					return out
				}
			}
		}
		h.clusters, h.closed = uniform(from, r)
		r.noteIf(h.closed == "" && len(h.addresses) == 0 && !h.any, "domains",
			"%s: there is no address among them: connections go on unchanged", clip(from.GetName()))
		out.hosts = append(out.hosts, h)
	}
	return out
}

// addressOf parses a domain that is an IP address, with or without a port.
func addressOf(domain string) (netip.AddrPort, bool) {
	if a, err := netip.ParseAddrPort(domain); err == nil && a.Addr().Zone() == "" {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
	}
	a, err := parseIP(strings.TrimSuffix(strings.TrimPrefix(domain, "["), "]"))
	return netip.AddrPortFrom(a, 0), err == nil
}

// uniform returns the clusters to which all requests of a virtual host go, or the reason why they do not all go to the
// same clusters.
func uniform(m *routev3.VirtualHost, r reader) (clusters []mesh.WeightedCluster, closed string) {
	if m.GetMatcher() != nil {
		return nil, "matcher: is not supported"
	}
	if kind := deciding(m.GetTypedPerFilterConfig()); kind != "" {
		return nil, "typed_per_filter_config: " + kind + " is not supported"
	}
	if m.GetRequireTls() != routev3.VirtualHost_NONE {
		return nil, "require_tls: requests without TLS are redirected"
	}
	list := r.in("routes")
	for i, route := range m.GetRoutes() {
		to, why := target(route, list.item(i))
		if why != "" {
			return nil, why
		}
		if i == 0 {
			clusters = to
		} else if !sameClusters(clusters, to) {
			return nil, "requests go to different clusters by their path, method or headers"
		}
		if catchesAll(route.GetMatch()) {
			return clusters, ""
		}
	}
	if len(m.GetRoutes()) == 0 {
		return nil, "there are no routes"
	}
	return nil, "not all requests have a route, by their path, method or headers"
}

// catchesAll reports whether a match matches every request.
func catchesAll(m *routev3.RouteMatch) bool {
	if m.GetPrefix() != "/" || m.GetRuntimeFraction() != nil {
		return false
	}
	return only(m, "prefix", "case_sensitive") == nil
}

// target returns the clusters to which a route sends requests, with weights, or the reason why it cannot be supported.
func target(m *routev3.Route, r reader) (clusters []mesh.WeightedCluster, closed string) {
	a := m.GetRoute()
	switch {
	case m.GetRedirect() != nil:
		return nil, "requests are redirected"
	case m.GetDirectResponse() != nil:
		return nil, "requests are answered by the proxy itself"
	case a == nil:
		return nil, "the route's action is not supported"
	}
	r.noteIf(isSet(a.GetTimeout()), "route.timeout", "requests have no time limit")
	r.noteIf(len(a.GetRequestMirrorPolicies()) > 0, "route.request_mirror_policies", "nothing is mirrored")
	r.noteIf(a.GetPrefixRewrite() != "", "route.prefix_rewrite", "paths stay as they are")
	r.noteIf(a.GetRegexRewrite() != nil, "route.regex_rewrite", "paths stay as they are")
	r.noteIf(a.GetHostRewriteSpecifier() != nil, "route.host_rewrite_specifier", "hosts stay as they are")
	r.noteIf(len(a.GetHashPolicy()) > 0, "route.hash_policy", noAffinity)
	if kind := deciding(m.GetTypedPerFilterConfig()); kind != "" {
		return nil, "typed_per_filter_config: " + kind + " is not supported"
	}
	r.noteIf(len(m.GetTypedPerFilterConfig()) > 0, "typed_per_filter_config",
		"there are no HTTP filters: no faults, no limits")
	switch to := a.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
		return []mesh.WeightedCluster{{Name: to.Cluster, Weight: 1}}, ""
	case *routev3.RouteAction_WeightedClusters:
		total := uint64(0)
		for _, c := range to.WeightedClusters.GetClusters() {
			if c.GetName() == "" {
				return nil, "a cluster is named by a header"
			}
			if kind := deciding(c.GetTypedPerFilterConfig()); kind != "" {
				return nil, "typed_per_filter_config: " + kind + " is not supported"
			}
			if total += uint64(c.GetWeight().GetValue()); total > 1<<32-1 {
				return nil, "the weights of all clusters are too much for 32 bits"
			}
			if c.GetWeight().GetValue() > 0 {
				clusters = append(clusters, mesh.WeightedCluster{Name: c.GetName(), Weight: c.GetWeight().GetValue()})
			}
		}
		if len(clusters) > 0 {
			r.note("route.weighted_clusters", "weights hold for connections, not for requests")
			return clusters, ""
		}
	}
	return nil, "the cluster depends on the content of requests"
}

func sameClusters(a, b []mesh.WeightedCluster) bool {
	order := func(list []mesh.WeightedCluster) []mesh.WeightedCluster {
		list = slices.Clone(list)
		slices.SortFunc(list, func(x, y mesh.WeightedCluster) int { return strings.Compare(x.Name, y.Name) })
		return list
	}
	return len(a) == len(b) && slices.Equal(order(a), order(b))
}

// unheededHTTP are HTTP filters that can be ignored, because they neither choose a cluster nor refuse a caller.
var unheededHTTP = []string{
	"envoy.extensions.filters.http.router.v3.Router",
	"envoy.extensions.filters.http.fault.v3.HTTPFault",
	"envoy.extensions.filters.http.cors.v3.Cors",
	"envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
	"envoy.extensions.filters.http.grpc_web.v3.GrpcWeb",
	"envoy.extensions.filters.http.compressor.v3.Compressor",
	"envoy.extensions.filters.http.decompressor.v3.Decompressor",
	"envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
	"envoy.extensions.filters.http.set_filter_state.v3.Config",
	"istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
}

// deciding returns the type of a per-route filter configuration that could decide who may call, or "" if there is none.
func deciding(config map[string]*anypb.Any) string {
	for _, name := range slices.Sorted(maps.Keys(config)) {
		kind := typeOf(config[name])
		if !slices.Contains(unheededHTTP, kind) && !observing(kind) && kind != corsPolicyType {
			return clip(kind)
		}
	}
	return ""
}

const (
	httpRBACType   = "envoy.extensions.filters.http.rbac.v3.RBAC"
	corsPolicyType = "envoy.extensions.filters.http.cors.v3.CorsPolicy"
)

// carriedAsTCP is the warning about listeners for HTTP.
const carriedAsTCP = "HTTP is carried as TCP: by address, without retries, time limits, changed headers, faults and " +
	"statistics"

// manager parses an HTTP connection manager: its routes, and the filters that decide who may call.
func (p *part) manager(m *hcmv3.HttpConnectionManager, r reader) {
	switch from := m.GetRouteSpecifier().(type) {
	case *hcmv3.HttpConnectionManager_Rds:
		source, name := from.Rds.GetConfigSource(), from.Rds.GetRouteConfigName()
		r.require(source.GetAds() != nil || source.GetSelf() != nil, "rds.config_source", "must be ads or self")
		r.require(name != "", "rds.route_config_name", "is missing")
		if !r.failed() {
			p.route = name
		}
	case *hcmv3.HttpConnectionManager_RouteConfig:
		p.routes = routes(from.RouteConfig, r.in("route_config"))
	default:
		r.refuse("scoped_routes", "is not supported")
	}
	list := r.in("http_filters")
	for i, f := range m.GetHttpFilters() {
		r := list.item(i)
		switch kind := typeOf(f.GetTypedConfig()); {
		case f.GetDisabled(), observing(kind), slices.Contains(unheededHTTP, kind):
		case kind == httpRBACType:
			var m httprbacv3.RBAC
			r.check("typed_config", typed(f.GetTypedConfig(), &m))
			r.only("typed_config", &m, "rules", "rules_stat_prefix", "shadow_rules", "shadow_rules_stat_prefix",
				"track_per_rule_stats")
			if m.GetRules() == nil {
				continue
			}
			if rules := enforce(m.GetRules(), r.in("typed_config.rules")); !r.failed() {
				p.chain.RBAC = append(p.chain.RBAC, rules)
			}
		default:
			r.check("", unsupported(f.GetName(), kind))
		}
	}
}
