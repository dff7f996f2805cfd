package translate

import (
	"net/netip"
	"reflect"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3" // for JSON

	"tare/internal/mesh"
	"tare/test/meshmodel"
)

// bySource returns a UDP listener whose matcher has ranges of sources.
func bySource(ranges string) string {
	return udpWith(`"matcher":{"matcher_tree":{"input":{"name":"ip","typed_config":{"@type":` +
		`"type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.SourceIPInput"}},` +
		`"custom_match":{"name":"ranges","typed_config":{"@type":"type.googleapis.com/xds.type.matcher.v3.IPMatcher",` +
		`"range_matchers":[` + ranges + `]}}}}`)
}

const udpRouted = `{"action":{"name":"r","typed_config":{` +
	`"@type":"type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.Route","cluster":"dns"}}}`

func TestUDPSources(t *testing.T) {
	got, err := ParseListener(of(t, &listenerv3.Listener{}, bySource(
		`{"ranges":[{"address_prefix":"10.0.0.0","prefix_len":8}],"exclusive":true,"on_match":`+udpRouted+`},`+
			`{"ranges":[{"address_prefix":"10.1.0.0","prefix_len":16}],"exclusive":true,"on_match":{"matcher":{}}}`)))
	if err != nil {
		t.Fatal(err)
	}
	deny := []mesh.RBAC{{Deny: true, Policies: []mesh.Principal{{}}}}
	from := func(s string) mesh.Match { return mesh.Match{Sources: []netip.Prefix{netip.MustParsePrefix(s)}} }
	want := &mesh.Listener{Name: "l", Address: netip.MustParseAddrPort("[::]:53"), Protocol: mesh.UDP,
		Chains: []mesh.Chain{{Name: "udp", Match: from("10.0.0.0/8"), Proxy: udpTo("u", "dns")},
			{Name: "udp", Match: from("10.1.0.0/16"), RBAC: deny}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	const at = `listener "l": listener_filters[0].typed_config.matcher.`
	for json, want := range map[string]string{
		bySource(`{"ranges":[{"address_prefix":"10.0.0.0","prefix_len":8}],"on_match":{"matcher":{}}}`): at +
			`matcher_tree.custom_match.typed_config.range_matchers[0].exclusive: must be true`,
		bySource(`{"exclusive":true,"on_match":{"matcher":{}}}`): at +
			`matcher_tree.custom_match.typed_config.range_matchers[0].ranges: is missing`,
		bySource(`{"ranges":[{"address_prefix":"10.0.0.0","prefix_len":8}],"exclusive":true}`): at +
			`matcher_tree.custom_match.typed_config.range_matchers[0].on_match.action:  is not supported`,
		bySource(``): at + `matcher_tree.custom_match.typed_config.range_matchers: is missing`,
		udpWith(`"matcher":{"matcher_tree":{"input":{"name":"x"}}}`): at +
			`matcher_tree.input: x is not supported`,
		udpWith(`"matcher":{"matcher_tree":{},"on_no_match":{"keep_matching":true}}`): at + `on_no_match: is not supported`,
	} {
		_, err := ParseListener(of(t, &listenerv3.Listener{}, json))
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", json, err, want)
		}
	}
}

// A chain without filters closes its connections.
func TestClosingChain(t *testing.T) {
	l, err := ParseListener(of(t, &listenerv3.Listener{}, `{"name":"l",`+address+`,"filter_chains":[{}]}`))
	if err != nil {
		t.Fatal(err)
	}
	config := mesh.NewConfig()
	config.Listeners["l"] = l
	q := mesh.Question{From: netip.MustParseAddrPort("10.1.1.1:5"), To: l.Address, Protocol: mesh.TCP}
	if got := meshmodel.Find(config, q).Verdict; got != mesh.Deny {
		t.Errorf("got %v", got)
	}
}

// A chain without filters also closes its connections among other chains, and passes nothing.
func TestClosingChainAmongOthers(t *testing.T) {
	const same = `listener "l": filter_chains[1]: connections go elsewhere than by filter_chains[0] depending on ` +
		`their content, which the data plane does not read`
	for json, want := range map[string]string{
		listenerWith(inbound, chainOf(`"destination_port":9000`), chainOf("", proxyTo("pass"))): "127.0.0.9:9000",
		listenerWith(address, chainOf(`"server_names":["web"]`, tcp), chainOf("")):              same,
		listenerWith(anyAddress+`,"use_original_dst":true`, chainOf(""), chainOf("", proxyTo("pass"))): `listener "l": ` +
			`filter_chains[0]: the data plane cannot stop connections to addresses that belong to no service`,
	} {
		l, err := ReadListener(of(t, &listenerv3.Listener{}, json))
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Expand(Env{Own: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, Cluster: clusterOf(t)})
		if err != nil {
			if err.Error() != want {
				t.Errorf("%s\ngot  %v\nwant %s", json, err, want)
			}
			continue
		}
		if len(s.Listeners) != 1 || s.Listeners[0].Address.String() != want {
			t.Fatalf("%s: %+v", json, s.Listeners)
		}
		config := mesh.NewConfig()
		config.Listeners["l"] = s.Listeners[0]
		q := mesh.Question{From: netip.MustParseAddrPort("10.1.1.1:5"), To: s.Listeners[0].Address, Protocol: mesh.TCP}
		if got := meshmodel.Find(config, q).Verdict; got != mesh.Deny {
			t.Errorf("%s: got %v", json, got)
		}
	}
}

// A TypedStruct that stands for a message is not accepted as one.
func TestStandIn(t *testing.T) {
	_, err := ReadListener(of(t, &listenerv3.Listener{}, listenerWith(address, chainOf("", `{"name":"tcp","typed_config":`+
		`{"@type":"type.googleapis.com/udpa.type.v1.TypedStruct","type_url":"type.googleapis.com/`+tcpProxyType+`",`+
		`"value":{"cluster":"web"}}}`))))
	const want = `listener "l": filter_chains[0].filters[0].typed_config: udpa.type.v1.TypedStruct is not supported`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}
