package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3" // registers a type for JSON
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/test/meshmodel"
)

// piece is a resource, or the removal of one by name.
type piece struct {
	kind Kind
	json string
	gone string
}

// taking has a state process responses, and records what the store then has.
type taking struct {
	t *testing.T
	*state
	store   *mesh.Config
	refuse  func(mesh.Change) error // the store's reason to refuse a change; may be nil
	warned  []string
	refused []string
}

func newTaking(t *testing.T) *taking {
	return &taking{t: t, state: newState(Options{}.withDefaults().Limits), store: mesh.NewConfig()}
}

func (x *taking) take(p piece) {
	x.t.Helper()
	r := removal(p.gone)
	if p.gone == "" {
		m := map[Kind]proto.Message{Clusters: &clusterv3.Cluster{}, Listeners: &listenerv3.Listener{},
			Routes: &routev3.RouteConfiguration{}}[p.kind]
		if err := protojson.Unmarshal([]byte(p.json), m); err != nil {
			x.t.Fatalf("%s: %v", p.json, err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			x.t.Fatal(err)
		}
		r = responseOf(item{typeURL: p.kind.TypeURL(), value: b})
	}
	x.settle(x.state.take(p.kind, r, false))
}

func (x *taking) settle(o *outcome) {
	x.t.Helper()
	x.conflicts(o)
	err := x.state.settle(func(c mesh.Change) error {
		if x.refuse != nil {
			if err := x.refuse(c); err != nil {
				return err
			}
		}
		next := meshmodel.Clone(x.store)
		next.Apply(c)
		for _, l := range next.Listeners { // as a store would check: no listener without its clusters
			for _, name := range named(l) {
				if next.Clusters[name] == nil {
					return fmt.Errorf("listener %s: there is no cluster %s", l.Name, name)
				}
			}
		}
		x.store = next
		return nil
	}, o)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, w := range o.warned {
		x.warned = append(x.warned, w.String())
	}
	for _, err := range o.refused {
		x.refused = append(x.refused, err.Error())
	}
	x.sweep()
}

// String returns what the store has: listeners with the action of their default chain.
func (x *taking) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(x.store.Listeners)) {
		l := x.store.Listeners[name]
		text := l.Address.String() + " ->"
		for i := range len(l.Chains) + 1 {
			c := l.Chain(i)
			for range c.RBAC {
				text += " rbac"
			}
			for _, w := range c.Proxy.Clusters {
				text += fmt.Sprintf(" %s:%d", w.Name, w.Weight)
				if len(x.store.Clusters[w.Name].Targets(nil)) == 0 {
					text += "(none)"
				}
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func staticCluster(name, port string) piece {
	return piece{Clusters, `{"name":"` + name + `","type":"STATIC","load_assignment":{"cluster_name":"x",
		"endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"127.0.0.1","port_value":` + port +
		`}}}}]}]}}`, ""}
}

var (
	passing  = piece{Clusters, `{"name":"pass","type":"ORIGINAL_DST","lb_policy":"CLUSTER_PROVIDED"}`, ""}
	blocking = piece{Clusters, `{"name":"black","type":"STATIC"}`, ""}
)

const tcpProxyJSON = `{"name":"tcp","typed_config":{` +
	`"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",` +
	`"stat_prefix":"x","cluster":"%s"}}`

// httpListener is Istio's listener for one port, whose default chain goes to a cluster.
func httpListener(rest string) piece {
	return piece{Listeners, `{"name":"0.0.0.0_80","address":{"socket_address":{"address":"0.0.0.0","port_value":80}},
		"filter_chains":[{"filter_chain_match":{"transport_protocol":"raw_buffer","application_protocols":["http/1.1"]},
			"filters":[{"name":"http","typed_config":{"stat_prefix":"x",
			"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"rds":{"route_config_name":"80","config_source":{"ads":{}}},
			"http_filters":[{"name":"r","typed_config":{
				"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}],
		"default_filter_chain":{"filters":[` + fmt.Sprintf(tcpProxyJSON, rest) + `]}}`, ""}
}

func virtualHost(name, address, action string) string {
	return `{"name":"` + name + `","domains":["` + name + `","` + address + `"],` +
		`"routes":[{"match":{"prefix":"/"},` + action + `}]}`
}

func routesJSON(hosts ...string) piece {
	return piece{Routes, `{"name":"80","virtual_hosts":[` + strings.Join(hosts, ",") + `]}`, ""}
}

// TestHTTPByAddress: an HTTP listener is served at the addresses in its routes, in whichever order the resources come,
// and follows their changes.
func TestHTTPByAddress(t *testing.T) {
	to := func(cluster string) string { return `"route":{"cluster":"` + cluster + `"}` }
	pieces := []piece{passing, blocking, staticCluster("a", "1"), staticCluster("b", "2"), httpListener("pass"),
		routesJSON(virtualHost("a", "10.0.0.1", to("a")), virtualHost("b", "10.0.0.2:80", to("b")),
			`{"name":"any","domains":["*"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"pass"}}]}`)}
	const both = "10.0.0.1:80 -> a:1; 10.0.0.2:80 -> b:1"
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		x := newTaking(t)
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		var late *piece
		for _, p := range pieces {
			if p.kind == Routes && len(x.names(Routes)) == 0 { // routes are sent once the client has subscribed to them
				late = &p
				continue
			}
			x.take(p)
		}
		if late != nil {
			x.take(*late)
		}
		if got := x.String(); got != both || len(x.refused) > 0 {
			t.Fatalf("got %s, refused %s", got, x.refused)
		}
		if len(x.names(Routes)) != 1 {
			t.Fatalf("asks for the routes %v", x.names(Routes))
		}
		// A virtual host whose requests go to different clusters is closed, the others stay.
		x.take(routesJSON(virtualHost("a", "10.0.0.1", to("b")), `{"name":"b","domains":["10.0.0.2"],"routes":[
			{"match":{"prefix":"/x"},"route":{"cluster":"a"}},{"match":{"prefix":"/"},"route":{"cluster":"b"}}]}`))
		if got := x.String(); got != "10.0.0.1:80 -> b:1; 10.0.0.2:80 -> tare: refused:1(none)" {
			t.Fatalf("got %s", got)
		}
		const why = "connections to 10.0.0.2 are refused: requests go to different clusters"
		if !strings.Contains(strings.Join(x.warned, "\n"), why) {
			t.Fatalf("warned %s", x.warned)
		}
		// Connections to other addresses are refused if the default chain does not pass them through.
		x.take(httpListener("black"))
		if got := x.String(); got != "0.0.0.0:80 -> black:1(none); 10.0.0.1:80 -> b:1; 10.0.0.2:80 -> tare: refused:1(none)" {
			t.Fatalf("got %s", got)
		}
		x.take(piece{kind: Listeners, gone: "0.0.0.0_80"})
		for _, name := range []string{"a", "b", "black", "pass"} {
			x.take(piece{kind: Clusters, gone: name})
		}
		if got := x.String(); got != "" || len(x.store.Clusters) > 0 || len(x.names(Routes)) > 0 || x.bytes != 0 {
			t.Fatalf("left: %s, clusters %v, routes %v, %d bytes", got, x.store.Clusters, x.names(Routes), x.bytes)
		}
	}
}

// TestGuardedEndpoint: rules about who may connect to the workload apply at its own address, and cannot be bypassed
// through a service.
func TestGuardedEndpoint(t *testing.T) {
	x := newTaking(t)
	x.serving.own = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	x.take(passing)
	x.take(staticCluster("own", "9000"))
	x.take(piece{Listeners, `{"name":"svc","address":{"socket_address":{"address":"10.0.0.1","port_value":9000}},
		"filter_chains":[{"filters":[` + fmt.Sprintf(tcpProxyJSON, "own") + `]}]}`, ""})
	inbound := func(filters string) piece {
		return piece{Listeners, `{"name":"virtualInbound","use_original_dst":true,"traffic_direction":"INBOUND",
			"address":{"socket_address":{"address":"0.0.0.0","port_value":15006}},"filter_chains":[
			{"filter_chain_match":{"destination_port":9000},"filters":[` + filters + fmt.Sprintf(tcpProxyJSON, "pass") +
			`]}]}`, ""}
	}
	const rules = `{"name":"rbac","typed_config":{"stat_prefix":"x",
		"@type":"type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC","rules":{"policies":{"p":{"permissions":[{"any":true}],"principals":[%s]}}}}},`
	x.take(inbound(""))
	const open = "10.0.0.1:9000 -> own:1"
	if got := x.String(); got != open {
		t.Fatalf("got %s", got)
	}
	x.take(inbound(fmt.Sprintf(rules, `{"remote_ip":{"address_prefix":"10.0.0.0","prefix_len":8}}`)))
	if got := x.String(); got != "10.0.0.1:9000 -> own:1(none); 127.0.0.1:9000 -> rbac virtualInbound|127.0.0.1:9000:1" {
		t.Fatalf("got %s", got)
	}
	x.take(inbound(fmt.Sprintf(rules, `{"authenticated":{}}`)))
	if got := x.String(); got != "10.0.0.1:9000 -> own:1(none); 127.0.0.1:9000 -> tare: refused:1(none)" {
		t.Fatalf("got %s", got)
	}
	x.take(inbound(""))
	if got := x.String(); got != open || len(x.refused) > 0 {
		t.Fatalf("got %s, refused %s", got, x.refused)
	}
}

// TestRefusedLate: a listener that the store refuses after it has waited for a cluster keeps its previous form until
// the control plane sends it again or removes it.
func TestRefusedLate(t *testing.T) {
	to := func(cluster string) piece {
		return piece{Listeners, `{"name":"l","address":{"socket_address":{"address":"10.0.0.1","port_value":80}},
			"filter_chains":[{"filters":[` + fmt.Sprintf(tcpProxyJSON, cluster) + `]}]}`, ""}
	}
	for name, remove := range map[string]func(*taking){
		"delta": func(x *taking) { x.take(piece{kind: Listeners, gone: "l"}) },
		"world": func(x *taking) { x.settle(x.state.take(Listeners, responseOf(), true)) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTaking(t)
			x.refuse = func(c mesh.Change) error {
				for _, l := range c.Listeners {
					if slices.Contains(named(l), "b") {
						return fault.New(fault.Usage, l.Name, "", "there is no room")
					}
				}
				return nil
			}
			x.take(staticCluster("a", "1"))
			x.take(to("a"))
			x.take(to("b")) // waits for b
			x.take(staticCluster("b", "2"))
			const old = "10.0.0.1:80 -> a:1"
			if got := x.String(); got != old || len(x.refused) != 1 {
				t.Fatalf("got %s, refused %s", got, x.refused)
			}
			if has := x.versions(Listeners); !maps.Equal(has, map[string]string{"l": ""}) {
				t.Errorf("on the next stream it has %v", has)
			}
			x.refused = nil
			x.take(to("b"))
			if got := x.String(); got != old || len(x.refused) == 0 {
				t.Fatalf("sent again: got %s, refused %s", got, x.refused)
			}
			remove(x)
			if got := x.String(); got != "" {
				t.Errorf("left: %s", got)
			}
		})
	}
}
