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

// Routes is a route configuration as far as addresses tell routes apart: by the virtual hosts that are called by an
// address. Which of a virtual host's routes a request takes, a data plane at connection level cannot know; so all of
// them must go to the same clusters.
type Routes struct {
	Name     string
	Warnings []*Warning

	hosts []virtualHost
}

// virtualHost is where connections to some addresses go.
type virtualHost struct {
	field     string
	name      string
	addresses []netip.AddrPort // port 0: any
	any       bool             // it is for whatever no other is for
	clusters  []mesh.WeightedCluster
	closed    string // why connections must be refused; empty: they need not
}

// ParseRoutes reads a RouteConfiguration.
func ParseRoutes(b []byte) (*Routes, error) {
	var m routev3.RouteConfiguration
	if err := decode(b, &m); err != nil {
		return nil, Refused("routes", Name(b), err)
	}
	var list []*Warning
	r, err := routes(&m, notes{list: &list})
	if err == nil && r.Name == "" {
		err = in("name", refuse("is missing"))
	}
	if err != nil {
		return nil, Refused("routes", m.GetName(), err)
	}
	r.Warnings = warnings("routes", r.Name, list)
	return r, nil
}

// maxRouteAddresses bounds the addresses of a route configuration, each of which becomes a listener.
const maxRouteAddresses = 1 << 16

// routes takes the virtual hosts. Whatever else a configuration has is about headers, statistics and limits of HTTP.
func routes(m *routev3.RouteConfiguration, n notes) (*Routes, error) {
	if m.GetVhds() != nil {
		return nil, in("vhds", refuse("is not supported"))
	}
	if kind := deciding(m.GetTypedPerFilterConfig()); kind != "" {
		return nil, in("typed_per_filter_config", refuse("%s is not supported", kind))
	}
	r := &Routes{Name: m.GetName()}
	count := 0
	for i, from := range m.GetVirtualHosts() {
		field := "virtual_hosts[" + strconv.Itoa(i) + "]"
		h := virtualHost{field: field, name: from.GetName()}
		seen := map[netip.AddrPort]bool{}
		for _, domain := range from.GetDomains() {
			if domain == "*" {
				h.any = true
			} else if a, ok := addressOf(domain); ok && !seen[a] {
				seen[a] = true
				h.addresses = append(h.addresses, a)
				if count++; count > maxRouteAddresses {
					return nil, in("virtual_hosts", refuse("there are more than %d addresses", maxRouteAddresses))
				}
			}
		}
		h.clusters, h.closed = uniform(from, n.in(field))
		if h.closed == "" && len(h.addresses) == 0 && !h.any {
			n.in(field).in("domains").note("%s: there is no address among them: connections go on unchanged", clip(h.name))
		}
		r.hosts = append(r.hosts, h)
	}
	return r, nil
}

// addressOf is a domain that is an IP address, with or without a port.
func addressOf(domain string) (netip.AddrPort, bool) {
	if a, err := netip.ParseAddrPort(domain); err == nil && a.Addr().Zone() == "" {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
	}
	a, err := parseIP(strings.TrimSuffix(strings.TrimPrefix(domain, "["), "]"))
	return netip.AddrPortFrom(a, 0), err == nil
}

// uniform is where all requests of a virtual host go, or why that cannot be said.
func uniform(m *routev3.VirtualHost, n notes) (clusters []mesh.WeightedCluster, closed string) {
	if m.GetMatcher() != nil {
		return nil, "matcher: is not supported"
	}
	if kind := deciding(m.GetTypedPerFilterConfig()); kind != "" {
		return nil, "typed_per_filter_config: " + kind + " is not supported"
	}
	if m.GetRequireTls() != routev3.VirtualHost_NONE {
		return nil, "require_tls: requests without it are redirected"
	}
	for i, r := range m.GetRoutes() {
		at := n.in("routes").item(i)
		to, why := target(r, at)
		if why != "" {
			return nil, why
		}
		if i == 0 {
			clusters = to
		} else if !sameClusters(clusters, to) {
			return nil, "requests go to different clusters by their path, method or headers"
		}
		if catchesAll(r.GetMatch()) {
			return clusters, ""
		}
	}
	if len(m.GetRoutes()) == 0 {
		return nil, "there are no routes"
	}
	return nil, "not all requests have a route, by their path, method or headers"
}

// catchesAll says whether every request matches.
func catchesAll(m *routev3.RouteMatch) bool {
	if m.GetPrefix() != "/" || m.GetRuntimeFraction() != nil {
		return false
	}
	return only(m, "prefix", "case_sensitive") == nil
}

// target is where a route sends requests, by weight.
func target(r *routev3.Route, n notes) (clusters []mesh.WeightedCluster, closed string) {
	a := r.GetRoute()
	switch {
	case r.GetRedirect() != nil:
		return nil, "requests are redirected"
	case r.GetDirectResponse() != nil:
		return nil, "requests are answered by the proxy itself"
	case a == nil:
		return nil, "the route's action is not supported"
	}
	for _, set := range []struct {
		field string
		is    bool
		what  string
	}{
		{"timeout", a.GetTimeout().GetSeconds() != 0 || a.GetTimeout().GetNanos() != 0, "requests have no time limit"},
		{"request_mirror_policies", len(a.GetRequestMirrorPolicies()) > 0, "nothing is mirrored"},
		{"prefix_rewrite", a.GetPrefixRewrite() != "", "paths stay as they are"},
		{"regex_rewrite", a.GetRegexRewrite() != nil, "paths stay as they are"},
		{"host_rewrite_specifier", a.GetHostRewriteSpecifier() != nil, "hosts stay as they are"},
		{"hash_policy", len(a.GetHashPolicy()) > 0, noAffinity},
	} {
		if set.is {
			n.in("route").in(set.field).note("%s", set.what)
		}
	}
	if kind := deciding(r.GetTypedPerFilterConfig()); kind != "" {
		return nil, "typed_per_filter_config: " + kind + " is not supported"
	}
	if len(r.GetTypedPerFilterConfig()) > 0 {
		n.in("typed_per_filter_config").note("no filter of HTTP is there: no faults, no limits")
	}
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
			n.in("route").in("weighted_clusters").note("weights hold for connections, not for requests")
			return clusters, ""
		}
	}
	return nil, "the cluster is chosen by what requests say"
}

func sameClusters(a, b []mesh.WeightedCluster) bool {
	order := func(list []mesh.WeightedCluster) []mesh.WeightedCluster {
		list = slices.Clone(list)
		slices.SortFunc(list, func(x, y mesh.WeightedCluster) int { return strings.Compare(x.Name, y.Name) })
		return list
	}
	return len(a) == len(b) && slices.Equal(order(a), order(b))
}

// unheededHTTP are filters of HTTP that requests do without: they neither choose a cluster nor refuse a caller.
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

// deciding is the type of a filter's configuration for some requests that could say who may call; empty where there is
// none.
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

// carriedAsTCP is what becomes of HTTP.
const carriedAsTCP = "HTTP is carried as TCP: by address, without retries, time limits, changed headers, faults and " +
	"statistics"

// manager reads an HTTP connection manager: its routes, and the filters that say who may call.
func (p *part) manager(a *anypb.Any, n notes) error {
	var m hcmv3.HttpConnectionManager
	if err := typed(a, &m); err != nil {
		return err
	}
	n.note(carriedAsTCP)
	n = n.in("typed_config")
	switch r := m.GetRouteSpecifier().(type) {
	case *hcmv3.HttpConnectionManager_Rds:
		if r.Rds.GetConfigSource().GetAds() == nil && r.Rds.GetConfigSource().GetSelf() == nil {
			return in("rds", in("config_source", refuse("must be ads or self")))
		}
		if p.route = r.Rds.GetRouteConfigName(); p.route == "" {
			return in("rds", in("route_config_name", refuse("is missing")))
		}
	case *hcmv3.HttpConnectionManager_RouteConfig:
		var err error
		if p.routes, err = routes(r.RouteConfig, n.in("route_config")); err != nil {
			return in("route_config", err)
		}
	default:
		return in("scoped_routes", refuse("is not supported"))
	}
	for i, f := range m.GetHttpFilters() {
		switch kind := typeOf(f.GetTypedConfig()); {
		case f.GetDisabled(), observing(kind), slices.Contains(unheededHTTP, kind):
		case kind == httpRBACType:
			var m httprbacv3.RBAC
			err := typed(f.GetTypedConfig(), &m)
			if err == nil {
				err = only(&m, "rules", "rules_stat_prefix", "shadow_rules", "shadow_rules_stat_prefix", "track_per_rule_stats")
			}
			var r mesh.RBAC
			if err == nil && m.GetRules() != nil {
				if r, err = enforce(m.GetRules()); err == nil {
					p.chain.RBAC = append(p.chain.RBAC, r)
				}
			}
			if err != nil {
				return in("http_filters", item(i, in("typed_config", err)))
			}
		default:
			return in("http_filters", item(i, unsupported(f.GetName(), kind)))
		}
	}
	return nil
}
