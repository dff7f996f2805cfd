package translate

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	_ "github.com/cncf/xds/go/udpa/type/v1" // registers a type for JSON
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

const (
	ext         = `"@type":"type.googleapis.com/envoy.extensions.`
	upTLS       = `{"name":"tls","typed_config":{` + ext + `transport_sockets.tls.v3.UpstreamTlsContext"}}`
	downTLS     = `{"name":"tls","typed_config":{` + ext + `transport_sockets.tls.v3.DownstreamTlsContext"}}`
	originalDst = `{"name":"o","typed_config":{` + ext + `filters.listener.original_dst.v3.OriginalDst"}}`
	inspectors  = `{"name":"h","typed_config":{` + ext + `filters.listener.http_inspector.v3.HttpInspector"}},` +
		`{"name":"t","typed_config":{` + ext + `filters.listener.tls_inspector.v3.TlsInspector"}}`
	router    = `{"name":"r","typed_config":{` + ext + `filters.http.router.v3.Router"}}`
	managerOf = `{"name":"http","typed_config":{` + ext +
		`filters.network.http_connection_manager.v3.HttpConnectionManager",` +
		`"stat_prefix":"h","rds":{"route_config_name":"80","config_source":{"ads":{}}},"http_filters":[%s` + router + `]}}`
	anyAddress = `"address":{"socket_address":{"address":"0.0.0.0","port_value":80}}`
	inbound    = `"traffic_direction":"INBOUND","listener_filters":[` + originalDst + `],` +
		`"address":{"socket_address":{"address":"0.0.0.0","port_value":15006}}`
	byIdentity = `{"name":"rbac","typed_config":{` + ext + `filters.network.rbac.v3.RBAC","stat_prefix":"r",` +
		`"rules":{"policies":{"p":{"permissions":[{"any":true}],"principals":[{"authenticated":{}}]}}}}}`
	byAddress = `{"name":"rbac","typed_config":{` + ext + `filters.network.rbac.v3.RBAC","stat_prefix":"r",` +
		`"rules":{"policies":{"p":{"permissions":[{"any":true}],"principals":[{"remote_ip":{"address_prefix":"10.0.0.0","prefix_len":8}}]}}}}}`
)

// proxyTo returns a tcp_proxy.
func proxyTo(cluster string) string {
	return strings.Replace(tcp, `"cluster":"web"`, `"cluster":"`+cluster+`"`, 1)
}

func clusterWith(rest string) string { return `{"name":"web",` + rest + `}` }

// listenerWith returns a listener at an address with filter chains.
func listenerWith(rest string, chains ...string) string {
	return `{"name":"l",` + rest + `,"filter_chains":[` + strings.Join(chains, ",") + `]}`
}

func chainOf(match string, filters ...string) string {
	return `{"filter_chain_match":{` + match + `},"filters":[` + strings.Join(filters, ",") + `]}`
}

func manager(filters string) string { return fmt.Sprintf(managerOf, filters) }

// routesOf returns a configuration of one virtual host at 10.96.0.1.
func routesOf(routes string) string {
	return `{"name":"80","virtual_hosts":[{"name":"web","domains":["web","10.96.0.1"],"routes":[` + routes + `]},
		{"name":"any","domains":["*"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"pass"}}]}]}`
}

// The decisions about a resource.
const (
	exact   = "exact"
	warned  = "warning"
	closed  = "closed"
	refused = "refused"
)

// decision is a row of the table in docs/xds.md, and a resource that it applies to.
type decision struct {
	row, want         string
	cluster, listener string // JSON
	routes            string // for the listener
}

var decisions = []decision{
	{row: "`lb_policy` ROUND_ROBIN, RANDOM", want: exact, cluster: clusterWith(eds)},
	{row: "`lb_policy` LEAST_REQUEST", want: warned, cluster: clusterWith(eds + `,"lb_policy":"LEAST_REQUEST"`)},
	{row: "`lb_policy` RING_HASH, MAGLEV", want: warned, cluster: clusterWith(eds + `,"lb_policy":"MAGLEV"`)},
	{row: "`type` STATIC without `load_assignment` (BlackHoleCluster)", want: exact,
		cluster: clusterWith(`"type":"STATIC"`)},
	{row: "`type` ORIGINAL_DST (PassthroughCluster)", want: exact,
		cluster: clusterWith(`"type":"ORIGINAL_DST","lb_policy":"CLUSTER_PROVIDED"`)},
	{row: "`type` LOGICAL_DNS", want: warned,
		cluster: clusterWith(`"type":"LOGICAL_DNS","load_assignment":{"endpoints":[{"lb_endpoints":[` + host + `]}]}`)},
	{row: "`outlier_detection`, `health_checks`", want: warned,
		cluster: clusterWith(eds + `,"outlier_detection":{},"health_checks":[{}]`)},
	{row: "`common_lb_config`: panic threshold, zone-aware", want: warned,
		cluster: clusterWith(eds + `,"common_lb_config":{"zone_aware_lb_config":{}}`)},
	{row: "`upstream_bind_config`, `upstream_connection_options`", want: warned,
		cluster: clusterWith(eds + `,"upstream_connection_options":{}`)},
	{row: "`retry_budget`, `per_host_thresholds`", want: warned,
		cluster: clusterWith(eds + `,"circuit_breakers":{"thresholds":[{"retry_budget":{}}]}`)},
	{row: "`transport_socket_matches` with TLS (automatic mTLS)", want: warned,
		cluster: clusterWith(eds + `,"transport_socket_matches":[{"name":"tls","match":{},"transport_socket":` +
			upTLS + `}]`)},
	{row: "`transport_socket` TLS", want: refused, cluster: clusterWith(eds + `,"transport_socket":` + upTLS)},
	{row: "`lb_subset_config`, `load_balancing_policy`, `cluster_type`", want: refused,
		cluster: clusterWith(eds + `,"lb_subset_config":{}`)},

	{row: "`http_inspector`, `tls_inspector`", want: exact,
		listener: listenerWith(address+`,"listener_filters":[`+inspectors+`]`, chainOf("", tcp))},
	{row: "`proxy_protocol` and other listener filters", want: refused,
		listener: listenerWith(address+`,"listener_filters":[{"name":"p","typed_config":{`+ext+
			`filters.listener.proxy_protocol.v3.ProxyProtocol"}}]`, chainOf("", tcp))},
	{row: "filters of statistics and of metadata exchange", want: exact,
		listener: listenerWith(address, chainOf("",
			`{"name":"istio.stats","typed_config":{"@type":"type.googleapis.com/udpa.type.v1.TypedStruct","type_url":"type.googleapis.com/stats.PluginConfig"}}`, tcp))},
	{row: "`local_ratelimit`, `connection_limit`", want: warned,
		listener: listenerWith(address, chainOf("", `{"name":"limit","typed_config":{`+ext+
			`filters.network.local_ratelimit.v3.LocalRateLimit","stat_prefix":"x"}}`, tcp))},
	{row: "`ext_authz` and every other network filter", want: refused,
		listener: listenerWith(address, chainOf("", `{"name":"authz","typed_config":{`+ext+
			`filters.network.ext_authz.v3.ExtAuthz","stat_prefix":"x"}}`, tcp))},
	{row: "`idle_timeout`, `max_downstream_connection_duration`", want: warned,
		listener: tcpWith(`"cluster":"web","idle_timeout":"1s"`)},
	{row: "`tunneling_config`, `metadata_match`", want: refused,
		listener: tcpWith(`"cluster":"web","tunneling_config":{"hostname":"x"}`)},
	{row: "RBAC by address and port", want: exact, listener: listenerWith(address, chainOf("", byAddress, tcp))},
	{row: "RBAC by identity, header or condition", want: refused,
		listener: listenerWith(address, chainOf("", byIdentity, tcp))},
	{row: "`shadow_rules`", want: warned, listener: rbacWith(`"shadow_rules":{}`)},
	{row: "all chains to PassthroughCluster", want: exact, listener: listenerWith(address, chainOf("", proxyTo("pass")))},
	{row: "rules in a chain to PassthroughCluster", want: refused,
		listener: listenerWith(address, chainOf("", byAddress, proxyTo("pass")))},
	{row: "chains to PassthroughCluster beside others, by the content of connections", want: warned,
		listener: listenerWith(address, chainOf(`"server_names":["web"]`, tcp), chainOf("", proxyTo("pass")))},
	{row: "chains to PassthroughCluster beside others, by address", want: refused,
		listener: listenerWith(anyAddress, chainOf(`"prefix_ranges":[{"address_prefix":"10.0.0.0","prefix_len":8}]`, tcp),
			chainOf("", proxyTo("pass")))},
	{row: "chains to several clusters, by the content of connections", want: refused,
		listener: listenerWith(address, chainOf(`"server_names":["web"]`, tcp), chainOf("", proxyTo("other")))},
	{row: "the same at all addresses, beside a default chain", want: warned,
		listener: strings.TrimSuffix(listenerWith(anyAddress, chainOf(`"server_names":["web"]`, tcp),
			chainOf(`"server_names":["other"]`, proxyTo("other"))), "}") + `,"default_filter_chain":` +
			chainOf("", proxyTo("pass")) + "}"},
	{row: "the same with rules", want: refused,
		listener: strings.TrimSuffix(listenerWith(anyAddress, chainOf(`"server_names":["web"]`, byAddress, tcp)), "}") +
			`,"default_filter_chain":` + chainOf("", proxyTo("pass")) + "}"},
	{row: "HTTP, all requests of a virtual host to the same clusters", want: warned,
		listener: listenerWith(anyAddress, chainOf(`"application_protocols":["http/1.1"]`, manager("")),
			chainOf("", proxyTo("pass"))),
		routes: routesOf(`{"match":{"prefix":"/"},"route":{"cluster":"web"}}`)},
	{row: "HTTP, requests of a virtual host to different clusters, or to none", want: closed,
		listener: listenerWith(anyAddress, chainOf(`"application_protocols":["http/1.1"]`, manager("")),
			chainOf("", proxyTo("pass"))),
		routes: routesOf(`{"match":{"prefix":"/v2"},"route":{"cluster":"other"}},{"match":{"prefix":"/"},"route":{"cluster":"web"}}`)},
	{row: "HTTP, redirects and direct responses", want: closed,
		listener: listenerWith(anyAddress, chainOf("", manager(""))),
		routes:   routesOf(`{"match":{"prefix":"/"},"redirect":{"https_redirect":true}}`)},
	{row: "HTTP, rules of single routes or virtual hosts (`typed_per_filter_config`)", want: closed,
		listener: listenerWith(anyAddress, chainOf("", manager(""))),
		routes: routesOf(`{"match":{"prefix":"/"},"route":{"cluster":"web"},"typed_per_filter_config":{"rbac":{` + ext +
			`filters.http.rbac.v3.RBACPerRoute"}}}`)},
	{row: "HTTP filters that decide who may call (`ext_authz`, `jwt_authn`) and unknown ones", want: refused,
		listener: listenerWith(anyAddress, chainOf("",
			manager(`{"name":"a","typed_config":{`+ext+`filters.http.ext_authz.v3.ExtAuthz"}},`)))},
	{row: "virtualOutbound, the rest to PassthroughCluster (ALLOW_ANY)", want: exact,
		listener: listenerWith(anyAddress+`,"use_original_dst":true`, chainOf(`"destination_port":80`, proxyTo("black")),
			chainOf("", proxyTo("pass")))},
	{row: "virtualOutbound, the rest to BlackHoleCluster (REGISTRY_ONLY)", want: refused,
		listener: listenerWith(anyAddress+`,"use_original_dst":true`, chainOf("", proxyTo("black")))},
	{row: "virtualInbound, a port without rules", want: exact,
		listener: listenerWith(inbound, chainOf(`"destination_port":9000`, proxyTo("pass")))},
	{row: "virtualInbound, rules by address for a port", want: exact,
		listener: listenerWith(inbound, chainOf(`"destination_port":9000`, byAddress, proxyTo("pass")))},
	{row: "virtualInbound, rules for ports of no service", want: warned,
		listener: listenerWith(inbound, chainOf("", byAddress, proxyTo("pass")))},
	{row: "virtualInbound, rules by identity, header or condition", want: closed,
		listener: listenerWith(inbound, chainOf(`"destination_port":9000`, byIdentity, proxyTo("pass")))},
	{row: "virtualInbound, TLS or plain (PERMISSIVE)", want: warned,
		listener: listenerWith(inbound, `{"filter_chain_match":{"destination_port":9000,"transport_protocol":"tls"},"transport_socket":`+downTLS+`,"filters":[`+proxyTo("pass")+`]}`,
			chainOf(`"destination_port":9000,"transport_protocol":"raw_buffer"`, proxyTo("pass")))},
	{row: "virtualInbound, TLS alone (STRICT)", want: closed,
		listener: listenerWith(inbound, `{"filter_chain_match":{"destination_port":9000,"transport_protocol":"tls"},"transport_socket":`+downTLS+`,"filters":[`+proxyTo("pass")+`]}`)},
}

// become returns the decision about the resource, and the warnings or the refusal.
func (d decision) become(t *testing.T) (string, []string) {
	var list []*Warning
	if d.cluster != "" {
		c, err := ParseCluster(of(t, &clusterv3.Cluster{}, d.cluster))
		if err != nil {
			return refused, []string{err.Error()}
		}
		list = c.Warnings
	} else {
		l, err := ReadListener(of(t, &listenerv3.Listener{}, d.listener))
		if err != nil {
			return refused, []string{err.Error()}
		}
		list = l.Warnings
		env := Env{Own: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, Cluster: clusterOf(t), Routes: func(string) *Routes {
			r, err := ParseRoutes(of(t, &routev3.RouteConfiguration{}, d.routes))
			if err != nil {
				t.Fatal(err)
			}
			return r
		}}
		s, err := l.Expand(env)
		switch {
		case err != nil:
			return refused, []string{err.Error()}
		case s == nil:
			t.Fatal("something is missing")
		}
		list = append(list, s.Warnings...)
	}
	become := exact
	var said []string
	for _, w := range list {
		said = append(said, w.String())
		if become = warned; strings.Contains(w.What, " refused: ") {
			return closed, said
		}
	}
	return become, said
}

// clusterOf looks up the clusters of these tests: web and other have endpoints, black has none, and pass passes
// connections through.
func clusterOf(t testing.TB) func(string) *Cluster {
	return func(name string) *Cluster {
		text := map[string]string{"black": `"type":"STATIC"`, "pass": `"type":"ORIGINAL_DST"`}[name]
		if text == "" {
			text = eds
		}
		c, err := ParseCluster(of(t, &clusterv3.Cluster{}, `{"name":"x",`+text+`}`))
		if err != nil {
			t.Fatal(err)
		}
		c.Name, c.cluster.Name = name, name // names that a fuzzer makes up are used as they are
		return c
	}
}

// TestSeveralRoutes: a listener needs the routes of all of its chains, and waits for them.
func TestSeveralRoutes(t *testing.T) {
	l, err := ReadListener(of(t, &listenerv3.Listener{}, listenerWith(anyAddress,
		chainOf(`"application_protocols":["http/1.1"]`, manager("")),
		chainOf(`"application_protocols":["h2"]`, strings.ReplaceAll(manager(""), `"80"`, `"81"`)),
		chainOf("", proxyTo("pass")))))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(l.Routes) != "[80 81]" {
		t.Errorf("it needs the routes %v", l.Routes)
	}
	r, err := ParseRoutes(of(t, &routev3.RouteConfiguration{}, routesOf(`{"match":{"prefix":"/"},"route":{"cluster":"web"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]*Routes{"80": r}
	env := Env{Cluster: clusterOf(t), Routes: func(name string) *Routes { return there[name] }}
	if s, err := l.Expand(env); s != nil || err != nil {
		t.Errorf("without the routes 81 it is %v, %v", s, err)
	}
	there["81"] = r
	if s, err := l.Expand(env); err != nil || s == nil || len(s.Listeners) == 0 {
		t.Errorf("with all routes it is %v, %v", s, err)
	}
}

// TestDecisions: the table in docs/xds.md has the decisions, and a case for each row.
func TestDecisions(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/xds.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, " | "); len(cells) == 3 && strings.HasPrefix(cells[0], "| ") {
			switch word := strings.Trim(cells[1], "*"); word {
			case exact, warned, closed, refused:
				table[strings.TrimPrefix(cells[0], "| ")] = word
			}
		}
	}
	for _, d := range decisions {
		got, said := d.become(t)
		if got != d.want {
			t.Errorf("%s: %s, not %s: %s", d.row, got, d.want, said)
		}
		if table[d.row] != d.want {
			t.Errorf("docs/xds.md says of %q %q, not %q", d.row, table[d.row], d.want)
		}
		delete(table, d.row)
	}
	for row := range table {
		t.Errorf("docs/xds.md has %q, which no case shows", row)
	}
}

// TestDefaultMatch: a default chain with an empty match, as istiod sends it, is accepted; with conditions it is
// refused.
func TestDefaultMatch(t *testing.T) {
	for match, want := range map[string]string{``: "",
		`"destination_port":80`: "default_filter_chain.filter_chain_match: "} {
		_, err := ParseListener(of(t, &listenerv3.Listener{}, `{"name":"l",`+address+`,"default_filter_chain":`+
			chainOf(match, tcp)+`}`))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", match, err)
		}
	}
}

// FuzzServed: whatever a listener and its routes contain, what is served has rules and existing clusters.
func FuzzServed(f *testing.F) {
	for _, d := range decisions {
		if d.listener == "" {
			continue
		}
		routes := d.routes
		if routes == "" {
			routes = routesOf(`{"match":{"prefix":"/"},"route":{"cluster":"web"}}`)
		}
		f.Add(of(f, &listenerv3.Listener{}, d.listener), of(f, &routev3.RouteConfiguration{}, routes))
	}
	f.Fuzz(func(t *testing.T, listener, routes []byte) {
		l, err := ReadListener(listener)
		if err != nil {
			return
		}
		r, err := ParseRoutes(routes)
		if err != nil {
			return
		}
		env := Env{Own: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, Cluster: clusterOf(t),
			Routes: func(string) *Routes { return r }}
		s, err := l.Expand(env)
		if err != nil {
			return
		}
		if s == nil {
			t.Fatal("nothing is missing, and it waits")
		}
		own := map[string]bool{}
		for _, c := range s.Clusters {
			own[c.Name] = true
		}
		for _, one := range s.Listeners {
			if _, err := one.Rules(); err != nil {
				t.Errorf("%s: %v", one.Name, err)
			}
			for i := range len(one.Chains) + 1 {
				for _, w := range one.Chain(i).Proxy.Clusters {
					if !own[w.Name] && w.Name == "pass" || w.Weight == 0 {
						t.Errorf("%s goes to %s by the weight %d", one.Name, w.Name, w.Weight)
					}
				}
			}
		}
	})
}
