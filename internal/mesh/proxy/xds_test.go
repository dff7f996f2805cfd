package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachetypes "github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh/proxy/dataplane"
	"tare/internal/mesh/xds"
)

// plane is a control plane that is not ours: go-control-plane's.
type plane struct {
	t       *testing.T
	address string
	cache   cache.SnapshotCache
	version int
}

type byID struct{}

func (byID) ID(n *corev3.Node) string { return n.GetId() }

func newPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{t: t, cache: cache.NewSnapshotCache(true, byID{}, nil)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, &service{
		world: sotwv3.NewServer(
			t.Context(),
			p.cache,
			nil,
			sotwv3.WithOrderedADS(),
		), delta: deltav3.NewServer(t.Context(), p.cache, nil)})
	go g.Serve(l)
	t.Cleanup(g.Stop)
	p.address = l.Addr().String()
	return p
}

// service is the aggregated discovery service alone: go-control-plane's own server wants modules that nothing else
// does.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	world sotwv3.Server
	delta deltav3.Server
}

func (s *service) StreamAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	return s.world.StreamHandler(stream, resource.AnyType)
}

func (s *service) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	return s.delta.DeltaStreamHandler(stream, resource.AnyType)
}

// set makes resources what the plane tells a node.
func (p *plane) set(node string, resources ...any) {
	p.t.Helper()
	p.version++
	byType := map[string][]cachetypes.Resource{}
	for _, r := range resources {
		b, err := json.Marshal(r)
		if err != nil {
			p.t.Fatal(err)
		}
		a := &anypb.Any{}
		if err := protojson.Unmarshal(b, a); err != nil {
			p.t.Fatalf("%s: %s", err, b)
		}
		m, err := a.UnmarshalNew()
		if err != nil {
			p.t.Fatal(err)
		}
		byType[a.GetTypeUrl()] = append(byType[a.GetTypeUrl()], m)
	}
	s, err := cache.NewSnapshot(fmt.Sprint(p.version), map[resource.Type][]cachetypes.Resource{
		resource.ClusterType: byType[resource.ClusterType], resource.EndpointType: byType[resource.EndpointType],
		resource.ListenerType: byType[resource.ListenerType], resource.RouteType: byType[resource.RouteType],
		resource.SecretType: byType[resource.SecretType]})
	if err == nil {
		err = p.cache.SetSnapshot(p.t.Context(), node, s)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// follower is a proxy that does what a control plane says.
type follower struct {
	*source
	client *xds.Client

	mu     sync.Mutex
	events []xds.Event
}

func followed(t *testing.T, p *plane, node string, world bool) *follower {
	t.Helper()
	data := dataplane.New(func(string) {})
	f := &follower{source: newSource(data, false)}
	var err error
	f.client, err = xds.New(xds.Options{Address: p.address, Node: node, StateOfTheWorld: world, Consumer: f.source,
		Timeouts: xds.Timeouts{Need: 2 * time.Second},
		OnEvent: func(e xds.Event) {
			f.mu.Lock()
			f.events = append(f.events, e)
			f.mu.Unlock()
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.client.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		f.close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := data.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

// refused are all refusals so far, one a line.
func (f *follower) refused() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, e := range f.events {
		for _, err := range e.Refused {
			lines = append(lines, err.Error())
		}
	}
	return strings.Join(lines, "\n")
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 30 s it is still not so: %s", what)
		}
	}
}

func get(at, path string) string {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := c.Get("http://" + at + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

var overADS = object{"ads": object{}, "resource_api_version": "V3"}

// eds is a cluster whose endpoints come as a resource of their own.
func eds(name, peer string, at ...string) (object, object) {
	c := cluster(name, peer, false, at...)
	a := c["load_assignment"].(object)
	delete(c, "load_assignment")
	c["type"] = "EDS"
	c["eds_cluster_config"] = object{"eds_config": overADS}
	a["@type"] = types + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	return c, a
}

// rds is a listener whose routes come as a resource of their own.
func rds(at, name string) object {
	manager := hcm(nil)
	m := manager["typed_config"].(object)
	delete(m, "route_config")
	m["rds"] = object{"config_source": overADS, "route_config_name": name}
	return listener(at, chain(manager))
}

func routesTo(name, cluster string) object {
	return object{"@type": types + "envoy.config.route.v3.RouteConfiguration", "name": name,
		"virtual_hosts": list{object{"name": "v", "domains": list{"*"}, "routes": list{to(cluster)}}}}
}

// TestControlPlane: go-control-plane tells two proxies all that they need, in both variants; changes are done as they
// come, what is wrong is refused by name, and what was there goes on.
func TestControlPlane(t *testing.T) {
	for _, world := range []bool{false, true} {
		t.Run(fmt.Sprintf("world %v", world), func(t *testing.T) {
			p, r := newPlane(t), newRoot(t)
			in, out := free(t), free(t)
			a, b := echo(t, "a"), echo(t, "b")
			app, appEnds := eds("app", "", a)
			appB, appBEnds := eds("app-b", "", b)
			up, upEnds := eds("up", "server", in)
			inbound := rds(in, "inbound")
			inbound["filter_chains"] = list{strict(inbound["filter_chains"].(list)[0].(object), "client")}
			server := secrets(t, r, "server")
			p.set("server", append(list{app, appEnds, inbound, routesTo("inbound", "app")}, server...)...)
			client := secrets(t, r, "client")
			p.set("client", append(list{up, upEnds, rds(out, "outbound"), routesTo("outbound", "up")}, client...)...)
			s, c := followed(t, p, "server", world), followed(t, p, "client", world)
			eventually(t, "a request comes through", func() bool { return get(out, "/1") == "200 a GET /1\n" })

			_, moved := eds("app", "", b)
			p.set("server", append(list{app, moved, inbound, routesTo("inbound", "app")}, server...)...)
			eventually(t, "endpoints move", func() bool { return get(out, "/2") == "200 b GET /2\n" })

			p.set(
				"server",
				append(list{app, appEnds, appB, appBEnds, inbound, routesTo("inbound", "app")}, server...)...)
			eventually(t, "and back", func() bool { return get(out, "/3") == "200 a GET /3\n" })
			p.set(
				"server",
				append(list{app, appEnds, appB, appBEnds, inbound, routesTo("inbound", "app-b")}, server...)...)
			eventually(t, "routes change", func() bool { return get(out, "/4") == "200 b GET /4\n" })
			p.set("server", append(list{appB, appBEnds, inbound, routesTo("inbound", "app-b")}, server...)...)
			eventually(t, "a cluster goes", func() bool { return s.client.Metrics().Resources[xds.Clusters] == 1 })

			if refused := s.refused() + c.refused(); refused != "" {
				t.Errorf("nothing was wrong, and this was refused: %s", refused)
			}

			// What it cannot do is refused by resource and field; the rest goes on, and the good part is done.
			bad := routesTo("inbound", "app")
			bad["virtual_hosts"].(list)[0].(object)["routes"] = list{
				object{"match": object{"prefix": "/"}, "redirect": object{}},
			}
			p.set("server", append(list{appB, appBEnds, inbound, bad}, server...)...)
			const want = `routes "inbound": virtual_hosts[0].routes[0].redirect: is not supported`
			eventually(t, want, func() bool { return strings.Contains(s.refused(), want) })
			if got := get(out, "/5"); got != "200 b GET /5\n" {
				t.Errorf("after a refusal: %q", got)
			}

			// A rotation of everything to another root: the proxies then still understand each other.
			next := newRoot(t)
			server, client = secrets(t, next, "server"), secrets(t, next, "client")
			p.set("server", append(list{appB, appBEnds, inbound, routesTo("inbound", "app-b")}, server...)...)
			p.set("client", append(list{up, upEnds, rds(out, "outbound"), routesTo("outbound", "up")}, client...)...)
			eventually(t, "new secrets have come", func() bool {
				return s.client.Metrics().Responses[xds.Secrets] > 1 && c.client.Metrics().Responses[xds.Secrets] > 1
			})
			eventually(t, "after rotation", func() bool { return get(out, "/6") == "200 b GET /6\n" })

			p.set("client", append(list{up, upEnds, routesTo("outbound", "up")}, client...)...)
			eventually(t, "the listener goes", func() bool { return len(c.plane.Listening()) == 0 })
		})
	}
}

// TestNeeds: a listener without its routes, and a cluster without its secrets, wait, and work without them when their
// time is up; files that a control plane names are not read.
func TestNeeds(t *testing.T) {
	p := newPlane(t)
	at := free(t)
	chainless := object{"@type": types + "envoy.extensions.transport_sockets.tls.v3.Secret", "name": "roots",
		"validation_context": object{"trusted_ca": object{"filename": "/etc/passwd"}}}
	p.set("n", cluster("app", "", false, echo(t, "app")), rds(at, "late"), routesTo("late", "missing"))
	f := followed(t, p, "n", false)
	eventually(t, "it waits", func() bool { return f.client.Metrics().Waiting == 1 })
	eventually(t, "it listens without", func() bool { return get(at, "/") == "503 " })
	p.set("n", cluster("app", "", false, echo(t, "app")), rds(at, "late"), routesTo("late", "app"))
	eventually(t, "it works once its routes make sense", func() bool { return get(at, "/") == "200 app GET /\n" })
	p.set("n", cluster("app", "client", false, free(t)), rds(at, "late"), routesTo("late", "app"), chainless)
	const want = `secret "roots": validation_context.trusted_ca.filename: a control plane may name no files`
	eventually(t, want, func() bool { return strings.Contains(f.refused(), want) })
}
