package translate

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	testresource "github.com/envoyproxy/go-control-plane/pkg/test/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh"
)

// of encodes a resource from JSON.
func of(t testing.TB, m proto.Message, json string) []byte {
	t.Helper()
	if err := protojson.Unmarshal([]byte(json), m); err != nil {
		t.Fatalf("%s: %s", json, err)
	}
	return bytesOf(t, m)
}

func bytesOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	address  = `"address":{"socket_address":{"address":"10.96.0.1","port_value":80}}`
	tcp      = `{"name":"tcp","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy","stat_prefix":"p","cluster":"web"}}`
	host     = `{"endpoint":{"address":{"socket_address":{"address":"127.0.0.1","port_value":8080}}}}`
	eds      = `"type":"EDS","eds_cluster_config":{"eds_config":{"ads":{}}}`
	tcpStart = `{"name":"tcp","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",`
)

func tcpWith(rest string) string {
	return fmt.Sprintf(`{"name":"l",%s,"filter_chains":[{"filters":[%s%s}}]}]}`, address, tcpStart, rest)
}

func rbacWith(rules string) string {
	return fmt.Sprintf(`{"name":"l",%s,"filter_chains":[{"filters":[{"name":"rbac","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC","stat_prefix":"r",%s}},%s]}]}`,
		address, rules, tcp)
}

func udpWith(rest string) string {
	return fmt.Sprintf(`{"name":"l","address":{"socket_address":{"protocol":"UDP","address":"::","port_value":53}},"udp_listener_config":{},"listener_filters":[{"name":"udp","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig","stat_prefix":"u",%s}}]}`, rest)
}

func TestListener(t *testing.T) {
	at := netip.MustParseAddrPort("10.96.0.1:80")
	one := func(c mesh.Chain) *mesh.Listener {
		return &mesh.Listener{Name: "l", Address: at, Protocol: mesh.TCP, Chains: []mesh.Chain{c}}
	}
	web := mesh.Proxy{StatPrefix: "p", Clusters: []mesh.WeightedCluster{{Name: "web", Weight: 1}}}
	prefix := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	for name, c := range map[string]struct {
		json string
		want *mesh.Listener
	}{
		"one cluster": {fmt.Sprintf(`{"name":"l",%s,"filter_chains":[{"name":"c","filters":[%s]}],"bind_to_port":false,"traffic_direction":"OUTBOUND"}`, address, tcp), one(mesh.Chain{Name: "c", Proxy: web})},
		"weighted": {tcpWith(`"max_connect_attempts":3,"idle_timeout":"0s","weighted_clusters":{"clusters":[{"name":"a","weight":1},{"name":"b","weight":9}]}`),
			one(mesh.Chain{Proxy: mesh.Proxy{MaxConnectAttempts: 3,
				Clusters: []mesh.WeightedCluster{{Name: "a", Weight: 1}, {Name: "b", Weight: 9}}}})},
		"match and default": {
			fmt.Sprintf(`{"name":"l",%s,"filter_chains":[{"filter_chain_match":{"destination_port":80,"prefix_ranges":[{"address_prefix":"10.1.2.3","prefix_len":8}],"source_prefix_ranges":[{"address_prefix":"::ffff:192.168.0.0","prefix_len":112}],"source_ports":[7]},"filters":[%s]}],"default_filter_chain":{"name":"d","filters":[%s]}}`, address, tcp, tcp),
			&mesh.Listener{Name: "l", Address: at, Protocol: mesh.TCP, Default: &mesh.Chain{Name: "d", Proxy: web},
				Chains: []mesh.Chain{{Proxy: web, Match: mesh.Match{DestinationPort: 80, Destinations: prefix("10.0.0.0/8"),
					Sources: prefix("192.168.0.0/16"), SourcePorts: []uint16{7}}}}}},
		"udp": {udpWith(`"cluster":"dns"`), &mesh.Listener{Name: "l", Address: netip.MustParseAddrPort("[::]:53"),
			Protocol: mesh.UDP,
			Chains: []mesh.Chain{{Name: "udp", Proxy: mesh.Proxy{StatPrefix: "u",
				Clusters: []mesh.WeightedCluster{{Name: "dns", Weight: 1}}}}}}},
		"udp by matcher": {udpWith(`"matcher":{"on_no_match":{"action":{"name":"r","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.Route","cluster":"dns"}}}}`),
			&mesh.Listener{Name: "l", Address: netip.MustParseAddrPort("[::]:53"), Protocol: mesh.UDP,
				Chains: []mesh.Chain{{Name: "udp", Proxy: mesh.Proxy{StatPrefix: "u",
					Clusters: []mesh.WeightedCluster{{Name: "dns", Weight: 1}}}}}}},
		"rbac without rules":       {rbacWith(`"enforcement_type":"ONE_TIME_ON_FIRST_BYTE"`), one(mesh.Chain{Proxy: web})},
		"rbac that allows nothing": {rbacWith(`"rules":{}`), one(mesh.Chain{Proxy: web, RBAC: []mesh.RBAC{{}}})},
		"rbac": {rbacWith(`"rules":{"action":"DENY","policies":{
			"b":{"permissions":[{"any":true}],"principals":[{"and_ids":{"ids":[{"remote_ip":{"address_prefix":"10.0.0.0","prefix_len":8}},{"or_ids":{"ids":[{"direct_remote_ip":{"address_prefix":"10.1.0.0","prefix_len":16}},{"source_ip":{"address_prefix":"11.0.0.0","prefix_len":8}}]}}]}}]},
			"a":{"permissions":[{"destination_port":80},{"and_rules":{"rules":[{"destination_ip":{"address_prefix":"fd00::","prefix_len":8}},{"destination_port_range":{"start":0,"end":1024}}]}}],"principals":[{"any":true}]}}}`),
			one(mesh.Chain{Proxy: web, RBAC: []mesh.RBAC{{Deny: true, Policies: []mesh.Principal{
				{Name: "a", DestinationPorts: []mesh.PortRange{{From: 80, To: 80}}},
				{Name: "a", Destinations: prefix("fd00::/8"), DestinationPorts: []mesh.PortRange{{From: 1, To: 1023}}},
				{Name: "b", Sources: prefix("10.1.0.0/16")},
			}}}})},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseListener(of(t, &listenerv3.Listener{}, c.json))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestListenerRefused(t *testing.T) {
	for json, want := range map[string]string{
		`{"name":"l"}`: `listener "l": address.socket_address: is missing`,
		`{` + address + `,"filter_chains":[{"filters":[` + tcp + `]}]}`: `listener: name: is missing`,
		`{"name":"l",` + address + `}`:                                  `listener "l": filter_chains: is missing`,
		`{"name":"l",` + address + `,"filter_chains":[{"filters":[` + tcp +
			`]},{"filters":[{"name":"http","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster"}}]}]}`: `listener "l": filter_chains[1].filters[0]: http (envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster) is not supported`,
		`{"name":"l",` + address + `,"filter_chains":[{"filters":[{"name":"envoy.filters.network.http_connection_manager"}]}]}`: `listener "l": filter_chains[0].filters[0]: envoy.filters.network.http_connection_manager is not supported`,
		`{"name":"l",` + address + `,"filter_chains":[{"filters":[` + tcp + `,` + tcp +
			`]}]}`: `listener "l": filter_chains[0].filters[0]: a tcp_proxy must be the last filter`,
		`{"name":"l",` + address + `,"filter_chains":[{"filters":[{}]}]}`:                                                                              `listener "l": filter_chains[0].filters[0]:  is not supported`,
		`{"name":"l",` + address + `,"filter_chains":[{"transport_socket":{"name":"envoy.transport_sockets.tls"},"filters":[` + tcp + `]}]}`:           `listener "l": filter_chains[0].transport_socket: envoy.transport_sockets.tls () is not supported`,
		`{"name":"l",` + address + `,"listener_filters":[{"name":"envoy.filters.listener.original_dst"}],"filter_chains":[{"filters":[` + tcp + `]}]}`: `listener "l": listener_filters[0]: envoy.filters.listener.original_dst is not supported`,
		`{"name":"l","address":{"socket_address":{"address":"web.local","port_value":80}},"filter_chains":[{"filters":[` +
			tcp + `]}]}`: `listener "l": address.socket_address.address: "web.local" is no IP address`,
		`{"name":"l","address":{"pipe":{"path":"/x"}}}`:                                                                                     `listener "l": address.pipe: is not supported`,
		tcpWith(`"cluster":"web","tunneling_config":{"hostname":"x"}`):                                                                      `listener "l": filter_chains[0].filters[0].typed_config.tunneling_config: is not supported`,
		tcpWith(`"weighted_clusters":{"clusters":[{"name":"a","weight":4294967295},{"name":"b","weight":1}]}`):                              `listener "l": filter_chains[0].filters[0].typed_config.weighted_clusters.clusters[1].weight: the weights of all clusters are too much for 32 bits`,
		tcpWith(`"weighted_clusters":{"clusters":[{"name":"a","weight":0}]}`):                                                               `listener "l": filter_chains[0].filters[0].typed_config.weighted_clusters.clusters[0].weight: must be 1 or more`,
		udpWith(`"cluster":"dns","use_original_src_ip":true`):                                                                               `listener "l": listener_filters[0].typed_config.use_original_src_ip: is not supported`,
		rbacWith(`"rules":{"policies":{"p":{"permissions":[{"not_rule":{"any":true}}],"principals":[{"any":true}]}}}`):                      `listener "l": filter_chains[0].filters[0].typed_config.rules.policies[p].permissions[0].not_rule: is not supported`,
		rbacWith(`"rules":{"policies":{"p":{"permissions":[{"any":true}],"principals":[{"authenticated":{}}]}}}`):                           `listener "l": filter_chains[0].filters[0].typed_config.rules.policies[p].principals[0].authenticated: is not supported`,
		rbacWith(`"rules":{"policies":{"p":{"permissions":[{"destination_port":0}],"principals":[{"any":true}]}}}`):                         `listener "l": filter_chains[0].filters[0].typed_config.rules.policies[p].permissions[0].destination_port: must be 1 to 65535, not 0`,
		rbacWith(`"rules":{"policies":{"p":{"permissions":[{"destination_port_range":{"start":0,"end":1}}],"principals":[{"any":true}]}}}`): `listener "l": filter_chains[0].filters[0].typed_config.rules.policies[p].permissions[0].destination_port_range: [0, 1) is no range of ports`,
		rbacWith(`"rules":{"action":"LOG"}`):                                                                                                `listener "l": filter_chains[0].filters[0].typed_config.rules.action: LOG is not supported`,
		rbacWith(`"enforcement_type":"CONTINUOUS"`):                                                                                         `listener "l": filter_chains[0].filters[0].typed_config.enforcement_type: is not supported`,
		`{"name":"l",` + address + `,"filter_chains":[{"filter_chain_match":{"source_ports":[` + strings.Repeat("1,", 40) +
			`2]},"filters":[` + tcp + `]}]}`: `listener "l": filter_chains: its filter chains and RBAC policies come to more than the 32 rules that a listener can have`,
	} {
		_, err := ParseListener(of(t, &listenerv3.Listener{}, json))
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", json, err, want)
		}
	}
}

// A hostile policy whose rules multiply must be refused before it uses up the machine's memory.
func TestListenerBlowUp(t *testing.T) {
	ranges := strings.Repeat(`{"address_prefix":"10.0.0.0","prefix_len":8},`, 5000) +
		`{"address_prefix":"10.0.0.0","prefix_len":8}`
	ports := strings.Repeat(`{"or_rules":{"rules":[{"destination_port":1},{"destination_port":2}]}},`, 30) + `{"any":true}`
	deep := strings.Repeat(`{"and_rules":{"rules":[`, 60) + `{"any":true}` + strings.Repeat(`]}}`, 60)
	for json, want := range map[string]string{
		`{"name":"l",` + address + `,"filter_chains":[{"filter_chain_match":{"prefix_ranges":[` + ranges +
			`],"source_prefix_ranges":[` + ranges + `]},"filters":[` + tcp + `]}]}`: "combinations",
		rbacWith(`"rules":{"policies":{"p":{"permissions":[{"and_rules":{"rules":[` +
			strings.ReplaceAll(ports, `"destination_port":1`, `"any":true`) + `]}}],"principals":[{"any":true}]}}}`): "terms",
		rbacWith(`"rules":{"policies":{"p":{"permissions":[` + deep +
			`],"principals":[{"any":true}]}}}`): "nested",
	} {
		if _, err := ParseListener(of(t, &listenerv3.Listener{}, json)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want something of %s", err, want)
		}
	}
}

func TestCluster(t *testing.T) {
	c, err := ParseCluster(of(t, &clusterv3.Cluster{}, `{"name":"web",`+
		eds+`,"lb_policy":"RANDOM","connect_timeout":"0.25s","alt_stat_name":"x",
		"circuit_breakers":{"thresholds":[{"priority":"HIGH","max_connections":1},{"max_connections":7,"max_pending_requests":8,"max_requests":9,"max_retries":10}]},
		"common_lb_config":{"healthy_panic_threshold":{"value":0},"locality_weighted_lb_config":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	list := []mesh.Locality{{Weight: 3, Endpoints: []mesh.Endpoint{{Address: netip.MustParseAddrPort("1.2.3.4:5"),
		Weight: 1}}}}
	// The timeout is a parsed value, and not a deadline of this test.
	want := &mesh.Cluster{Name: "web", Policy: mesh.Random, ConnectTimeout: 250 * time.Millisecond,
		Breakers: mesh.Breakers{MaxConnections: 7, MaxPending: 8, MaxRequests: 9, MaxRetries: 10}, Localities: list}
	if got := c.With(list); !reflect.DeepEqual(got, want) || c.Service != "web" || c.Wait != 15*time.Second {
		t.Errorf("got %+v of service %s, wait %v", got, c.Service, c.Wait)
	}
	if c, err = ParseCluster(of(t, &clusterv3.Cluster{},
		`{"name":"web","type":"EDS","eds_cluster_config":{"service_name":"s","eds_config":{"self":{},"initial_fetch_timeout":"0s"}}}`)); err != nil {
		t.Fatal(err)
	}
	if got := c.With(list); got.Localities[0].Weight != 0 || list[0].Weight != 3 {
		t.Errorf("the weight of a locality counts where the cluster does not say so: %+v of %+v", got.Localities, list)
	}
	if c.Service != "s" || c.Wait != 0 || c.cluster.ConnectTimeout != 5*time.Second {
		t.Errorf("got %+v", c)
	}
	if c, err = ParseCluster(of(t, &clusterv3.Cluster{},
		`{"name":"web","type":"STATIC","load_assignment":{"endpoints":[{"lb_endpoints":[`+host+`]}]}}`)); err != nil {
		t.Fatal(err)
	}
	if got := c.Known().Localities[0].Endpoints; len(got) != 1 || got[0].Address.String() != "127.0.0.1:8080" ||
		got[0].Weight != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestClusterDNS(t *testing.T) {
	all := map[string][]string{"a": {"fd00::2", "10.0.0.2", "::ffff:10.0.0.1", "10.0.0.2"}, "b": {"10.0.0.9", "0.0.0.0"}}
	look := func(host string) (out []netip.Addr) {
		for _, a := range all[host] {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for family, want := range map[string]string{
		"AUTO": "[fd00::2]:1 10.0.0.9:2 127.0.0.1:8080", "V4_ONLY": "10.0.0.1:1 10.0.0.2:1 10.0.0.9:2 127.0.0.1:8080",
		"V6_ONLY": "[fd00::2]:1 127.0.0.1:8080", "V4_PREFERRED": "10.0.0.1:1 10.0.0.2:1 10.0.0.9:2 127.0.0.1:8080",
		"ALL": "10.0.0.1:1 10.0.0.2:1 [fd00::2]:1 10.0.0.9:2 127.0.0.1:8080",
	} {
		c, err := ParseCluster(of(t, &clusterv3.Cluster{}, `{"name":"web","type":"STRICT_DNS","dns_lookup_family":"`+
			family+`","respect_dns_ttl":true,"dns_refresh_rate":"7s","load_assignment":{"endpoints":[{"lb_endpoints":[
			{"endpoint":{"address":{"socket_address":{"address":"a","port_value":1}}}},{"endpoint":{"address":{"socket_address":{"address":"b","port_value":2}}}},`+host+`]}]}}`))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(c.Hosts, []string{"a", "b"}) || c.Refresh != 7*time.Second {
			t.Errorf("got %+v", c)
		}
		var got []string
		for _, e := range c.At(look).Localities[0].Endpoints {
			got = append(got, e.Address.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", family, got, want)
		}
	}
}

func TestClusterRefused(t *testing.T) {
	for json, want := range map[string]string{
		`{` + eds + `}`: `cluster: name: is missing`,
		`{"name":"c","cluster_type":{"name":"x"}}`:                                           `cluster "c": cluster_type: is not supported`,
		`{"name":"c","type":"EDS"}`:                                                          `cluster "c": eds_cluster_config: is missing`,
		`{"name":"c","type":"EDS","eds_cluster_config":{"eds_config":{"path":"/x"}}}`:        `cluster "c": eds_cluster_config.eds_config.path: is not supported`,
		`{"name":"c",` + eds + `,"connect_timeout":"0s"}`:                                    `cluster "c": connect_timeout: must be more than 0 s`,
		`{"name":"c",` + eds + `,"transport_socket":{"name":"tls"}}`:                         `cluster "c": transport_socket: tls () is not supported`,
		`{"name":"c",` + eds + `,"circuit_breakers":{"thresholds":[{"max_connections":0}]}}`: `cluster "c": circuit_breakers.thresholds[0].max_connections: must be 1 or more: leave out the endpoints of a cluster that takes no connections`,
		`{"name":"c","type":"STRICT_DNS","load_assignment":{"endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"a b","port_value":1}}}}]}]}}`: `cluster "c": load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: "a b" is no host name`,
		`{"name":"c","type":"STATIC","load_assignment":{"endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"a","port_value":1}}}}]}]}}`:       `cluster "c": load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address: "a" is no IP address`,
	} {
		_, err := ParseCluster(of(t, &clusterv3.Cluster{}, json))
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", json, err, want)
		}
	}
	unknown := append(of(t, &clusterv3.Cluster{}, `{"name":"c",`+eds+`}`), 0x82, 0x7d, 1, 'x') // field 2000
	if _, err := ParseCluster(unknown); err == nil || err.Error() != `cluster "c": field number 2000 is not known` {
		t.Errorf("got %v", err)
	}
	if _, err := ParseCluster([]byte{1<<3 | 2, 1, 'c', 0xff}); err == nil ||
		err.Error() != `cluster "c": this is no envoy.config.cluster.v3.Cluster` {
		t.Errorf("got %v", err)
	}
}

// TestReferenceResources parses the resources with which go-control-plane tests control planes.
func TestReferenceResources(t *testing.T) {
	for _, mode := range []string{testresource.Ads, testresource.DeltaAds} {
		c, err := ParseCluster(bytesOf(t, testresource.MakeCluster(mode, "cluster0")))
		if err != nil || c.Name != "cluster0" || c.Service != "cluster0" {
			t.Errorf("%s: got %+v, %v", mode, c, err)
		}
	}
	for _, mode := range []string{testresource.Xds, testresource.Rest, testresource.Delta} {
		_, err := ParseCluster(bytesOf(t, testresource.MakeCluster(mode, "cluster0")))
		if want := `cluster "cluster0": eds_cluster_config.eds_config.api_config_source: is not supported`; err == nil ||
			err.Error() != want {
			t.Errorf("%s: got %v", mode, err)
		}
	}
	a, err := ParseAssignment(bytesOf(t, testresource.MakeEndpoint("cluster0", 8080)))
	if err != nil || len(a.Localities) != 1 || a.Localities[0].Endpoints[0].Address.String() != "127.0.0.1:8080" {
		t.Errorf("got %+v, %v", a, err)
	}
	l, err := ParseListener(bytesOf(t, testresource.MakeTCPListener("l", 80, "cluster0")))
	if err != nil || l.Chains[0].Proxy.Clusters[0].Name != "cluster0" {
		t.Errorf("got %+v, %v", l, err)
	}
	_, err = ParseListener(bytesOf(t, testresource.MakeRouteHTTPListener(testresource.Ads, "l", 80, "r")))
	if err == nil || err.Error() != `listener "l": it depends on routes, or on the content of connections` {
		t.Errorf("got %v", err)
	}
}

// assignments returns encoded assignments on which the two ways to parse them must agree; the first are common ones.
func assignments(t testing.TB) (common, rest [][]byte) {
	e := func(address string, more string) string {
		return `{"endpoint":{"address":{"socket_address":{"address":"` + address + `","port_value":8080}}}` + more + `}`
	}
	in := func(list string) string {
		return `{"cluster_name":"c","endpoints":[{"lb_endpoints":[` + list + `]}]}`
	}
	for _, json := range []string{
		`{"cluster_name":"c"}`,
		`{"cluster_name":"c","endpoints":[{}]}`,
		in(e("10.0.0.1", "")),
		in(e("10.0.0.1", `,"health_status":"DRAINING","load_balancing_weight":300`) + "," + e("255.0.0.9", `,"health_status":"TIMEOUT"`)),
		in(e("fd00::1", `,"health_status":"UNHEALTHY"`) + "," + e("::ffff:1.2.3.4", `,"health_status":"HEALTHY"`)),
		`{"cluster_name":"c","endpoints":[{"locality":{"region":"r","zone":"z","sub_zone":"s"},"priority":128,"load_balancing_weight":70000,"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"protocol":"UDP","address":"1.2.3.4","port_value":65535}}}}]},{"priority":1}]}`,
	} {
		common = append(common, of(t, &endpointv3.ClusterLoadAssignment{}, json))
	}
	for _, json := range []string{
		`{"cluster_name":"c","endpoints":[{"metadata":{},"lb_endpoints":[{"endpoint":{"hostname":"h","address":{"socket_address":{"address":"1.2.3.4","port_value":65535}}}}]}]}`,
		in(e("10.0.0.1", `,"metadata":{"filter_metadata":{"x":{"a":1}}}`)),
		`{}`,
		`{"cluster_name":"c","policy":{"overprovisioning_factor":140}}`,
		`{"cluster_name":"c","policy":{"overprovisioning_factor":100}}`,
		`{"cluster_name":"c","policy":{"drop_overloads":[{"category":"x"}]}}`,
		`{"cluster_name":"c","named_endpoints":{"a":{}}}`,
		`{"cluster_name":"c","endpoints":[{"priority":129}]}`,
		`{"cluster_name":"c","endpoints":[{"proximity":1}]}`,
		`{"cluster_name":"c","endpoints":[{"load_balancing_weight":0}]}`,
		`{"cluster_name":"c","endpoints":[{"load_balancing_weight":4294967295},{"load_balancing_weight":1}]}`,
		`{"cluster_name":"c","endpoints":[{"load_balancer_endpoints":{}}]}`,
		in(`{}`), in(`{"endpoint_name":"x"}`), in(`{"endpoint":{}}`), in(`{"endpoint":{"address":{}}}`),
		in(`{"endpoint":{"address":{"socket_address":{}}}}`), in(`{"endpoint":{"address":{"pipe":{"path":"/x"}}}}`),
		in(e("10.0.0.1", `,"load_balancing_weight":0`)), in(e("10.0.0.1", `,"health_status":"DEGRADED"`)),
		in(e("10.0.0.1", `,"health_status":77`)),
		in(e("10.0.0.1", `,"load_balancing_weight":4294967295`) + "," + e("10.0.0.2", "")),
		in(e("10.0.0", "")), in(e("010.0.0.1", "")), in(e("10.0.0.256", "")), in(e("0.0.0.0", "")), in(e("ff02::1", "")),
		in(e("fe80::1%1", "")), in(e("localhost", "")), in(e("", "")),
		in(`{"endpoint":{"address":{"socket_address":{"address":"1.2.3.4","port_value":0}}}}`),
		in(`{"endpoint":{"address":{"socket_address":{"address":"1.2.3.4","port_value":65536}}}}`),
		in(`{"endpoint":{"address":{"socket_address":{"address":"1.2.3.4","named_port":"http"}}}}`),
		in(`{"endpoint":{"address":{"socket_address":{"protocol":3,"address":"1.2.3.4","port_value":1}}}}`),
		in(`{"endpoint":{"health_check_config":{"port_value":1},"address":{"socket_address":{"address":"1.2.3.4","port_value":1}}}}`),
		in(`{"endpoint":{"additional_addresses":[{}],"address":{"socket_address":{"address":"1.2.3.4","port_value":1}}}}`),
	} {
		rest = append(rest, of(t, &endpointv3.ClusterLoadAssignment{}, json))
	}
	rest = append(rest, nil, []byte{0xff}, []byte{10, 1, 0xff}, []byte{10, 5, 'c'},
		append(slices.Clone(common[2]), common[3]...),
		append(slices.Clone(common[2]), 0x98, 6, 1), append(slices.Clone(common[2]), 3<<3, 1),
		[]byte{10, 1, 'c', 18, 4, 8, 1, 18, 0})
	return common, rest
}

func TestAssignmentDecoders(t *testing.T) {
	common, rest := assignments(t)
	for i, b := range common {
		if _, err := commonAssignment(b); err != nil {
			t.Errorf("%d (%x) is left to the generated decoder", i, b)
		}
	}
	for _, b := range slices.Concat(common, rest) {
		sameAssignment(t, b)
	}
}

// sameAssignment compares what is parsed from the wire format with the generated decoder's result.
func sameAssignment(t *testing.T, b []byte) {
	t.Helper()
	want, wrong := wholeAssignment(b)
	if got, err := commonAssignment(b); err == nil && (wrong != nil || !reflect.DeepEqual(got, want)) {
		t.Errorf("%x\ngot  %+v\nwant %+v, %v", b, got, want, wrong)
	}
	got, err := ParseAssignment(b)
	if !reflect.DeepEqual(got, want) || fmt.Sprint(err) != fmt.Sprint(wrong) {
		t.Errorf("%x\ngot  %+v, %v\nwant %+v, %v", b, got, err, want, wrong)
	}
}

func TestAssignmentRefused(t *testing.T) {
	for json, want := range map[string]string{
		`{}`: `endpoints: cluster_name: is missing`,
		`{"cluster_name":"c","policy":{"drop_overloads":[{"category":"x"}]}}`: `endpoints "c": policy.drop_overloads: is not supported`,
		`{"cluster_name":"c","endpoints":[{},{"lb_endpoints":[` + host +
			`,{"endpoint":{"address":{"socket_address":{"address":"web","port_value":1}}}}]}]}`: `endpoints "c": endpoints[1].lb_endpoints[1].endpoint.address.socket_address.address: "web" is no IP address`,
		`{"cluster_name":"c","endpoints":[{"lb_endpoints":[{"health_status":"DEGRADED","endpoint":{"address":{"socket_address":{"address":"1.2.3.4","port_value":1}}}}]}]}`: `endpoints "c": endpoints[0].lb_endpoints[0].health_status: DEGRADED is not supported`,
	} {
		_, err := ParseAssignment(of(t, &endpointv3.ClusterLoadAssignment{}, json))
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", json, err, want)
		}
	}
}

func FuzzAssignment(f *testing.F) {
	common, rest := assignments(f)
	for _, b := range slices.Concat(common, rest) {
		f.Add(b)
	}
	f.Fuzz(sameAssignment)
}

func FuzzCluster(f *testing.F) {
	f.Add(of(f, &clusterv3.Cluster{}, `{"name":"c",`+eds+`,"circuit_breakers":{"thresholds":[{"max_connections":1}]}}`))
	f.Add(of(f, &clusterv3.Cluster{}, `{"name":"c","type":"STRICT_DNS","load_assignment":{"endpoints":[{"lb_endpoints":[`+
		host+`]}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCluster(b)
		if err == nil && (c.Name == "" || c.Name != Name(b)) {
			t.Errorf("cluster %q, name %q", c.Name, Name(b))
		}
		if err == nil {
			c.At(func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("1.2.3.4")} })
		}
	})
}

func FuzzListener(f *testing.F) {
	f.Add(of(f, &listenerv3.Listener{}, tcpWith(`"cluster":"web"`)))
	f.Add(of(f, &listenerv3.Listener{}, udpWith(`"cluster":"web"`)))
	f.Add(of(f, &listenerv3.Listener{}, rbacWith(`"rules":{"policies":{"p":{"permissions":[{"destination_port_range":{"start":0,"end":9}}],"principals":[{"remote_ip":{"address_prefix":"::"}}]}}}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseListener(b)
		if err != nil {
			return
		}
		if _, err := l.Rules(); err != nil || l.Name != Name(b) || l.Address.Port() == 0 {
			t.Errorf("%+v is taken: %v", l, err)
		}
	})
}

// manyAssignments returns 5000 services of 20 endpoints.
func manyAssignments(b *testing.B) (all [][]byte) {
	for s := range 5000 {
		m := &endpointv3.ClusterLoadAssignment{ClusterName: fmt.Sprintf("outbound|80||service-%d.default.svc.cluster.local",
			s), Endpoints: []*endpointv3.LocalityLbEndpoints{{}}}
		for e := range 20 {
			one := &endpointv3.LbEndpoint{}
			if err := protojson.Unmarshal([]byte(fmt.Sprintf(`{"endpoint":{"address":{"socket_address":{"address":"10.%d.%d.%d","port_value":8080}}},"health_status":"HEALTHY","load_balancing_weight":1}`, s>>8, s&255, e+1)), one); err != nil {
				b.Fatal(err)
			}
			m.Endpoints[0].LbEndpoints = append(m.Endpoints[0].LbEndpoints, one)
		}
		all = append(all, bytesOf(b, m))
	}
	return all
}

// BenchmarkAssignments parses 5000 x 20 endpoints, with each decoder.
func BenchmarkAssignments(b *testing.B) {
	all := manyAssignments(b)
	for name, decode := range map[string]func([]byte) (Assignment, error){"common": ParseAssignment,
		"generated": wholeAssignment} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, one := range all {
					if _, err := decode(one); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
