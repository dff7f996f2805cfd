package fleet

import (
	"context"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/test/fleettest"
	"tare/test/ring"
)

// ringOf makes a ring of services, with one proxy each.
func ringOf(services, calls int) *proxyconfig.Config {
	return ring.Mesh{Services: services, Calls: calls}.Config(1)
}

func markOf(a *endpointv3.ClusterLoadAssignment) Mark {
	service, change, _ := ring.ChangeOf(a)
	return Mark{Service: service + 1, Change: change}
}

// peer is a control plane in a test.
type peer struct {
	address string
	change  func(t *testing.T, service, change int)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// own runs the project's control plane.
func own(t *testing.T, c *proxyconfig.Config) peer {
	m, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	p, err := controlplane.NewPlane(t.Context(), m, controlplane.PlaneOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(l) }()
	t.Cleanup(func() {
		p.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return peer{address: l.Addr().String(), change: func(t *testing.T, service, change int) {
		of := map[string][]controlplane.Endpoint{ring.Service(service): ring.Endpoints(service, change)}
		if _, err := p.SetEndpoints(t.Context(), of); err != nil {
			t.Error(err)
		}
	}}
}

// snapshots runs the snapshot cache of go-control-plane, with the same mesh.
func snapshots(t *testing.T, c *proxyconfig.Config) peer {
	store := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	version := 0
	set := func(t *testing.T) {
		t.Helper()
		m, err := c.Compile()
		if err != nil {
			t.Fatal(err)
		}
		version++
		for _, id := range m.Proxies() {
			r, err := m.For(id)
			if err != nil {
				t.Fatal(err)
			}
			s, err := cache.NewSnapshot(fmt.Sprint(version), map[xds.Type][]types.Resource{
				xds.ClusterType: resources(r.Clusters), xds.EndpointType: resources(r.Endpoints),
				xds.ListenerType: resources(r.Listeners), xds.RouteType: resources(r.Routes),
			})
			if err == nil {
				err = store.SetSnapshot(t.Context(), id, s)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	set(t)
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, server.NewServer(context.Background(), store, nil))
	l := listen(t)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return peer{address: l.Addr().String(), change: func(t *testing.T, service, change int) {
		next := *c
		next.Services = slices.Clone(c.Services)
		next.Services[service].Endpoints = ring.Endpoints(service, change)
		*c = next
		set(t)
	}}
}

func resources[T types.Resource](list []T) (out []types.Resource) {
	for _, m := range list {
		out = append(out, m)
	}
	return out
}

func nodeOf(i int) *corev3.Node { return &corev3.Node{Id: ring.Proxy(i), Cluster: "fleet"} }

// TestFleet: all proxies get their resources, and changes, from this project's control plane and from an independent
// one.
func TestFleet(t *testing.T) {
	const services, calls = 25, 4
	planes := map[string]func(*testing.T, *proxyconfig.Config) peer{"own": own, "go-control-plane": snapshots}
	for name, serve := range planes {
		for variant, delta := range map[string]bool{"world": false, "delta": true} {
			t.Run(name+"/"+variant, func(t *testing.T) {
				c := ringOf(services, calls)
				p := serve(t, c)
				var kept fleettest.Kept
				f := New(services, Options{Address: p.address, Node: nodeOf, Delta: delta, OnHave: kept.Keep, MarkOf: markOf,
					OnEnd: func(i int, err error) { t.Errorf("proxy %d: %v", i, err) }})
				defer f.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := f.Connect(ctx, 0, services); err != nil {
					t.Fatal(err)
				}
				if at, err := f.Complete(ctx); err != nil || len(at) != services {
					t.Fatalf("%d are complete: %v", len(at), err)
				}
				same(t, f, &kept, c)
				before := f.Counts()
				wait := f.Expect(Mark{Service: 3, Change: 2}, calls)
				p.change(t, 2, 2)
				spread, err := wait(ctx)
				if err != nil || len(spread.Received) != calls || len(spread.Answered) != calls ||
					spread.Received[0] > spread.Answered[calls-1] {
					t.Errorf("%+v, %v", spread, err)
				}
				after := f.Counts()
				if n := after.Responses - before.Responses; n < calls || name == "own" && n != calls {
					t.Errorf("%d responses for a change that concerns %d", n, calls)
				}
				if after.Ends != 0 || after.Refusals != 0 || after.Connections != services {
					t.Errorf("%+v", after)
				}
			})
		}
	}
}

// same checks that each proxy has its configuration, resource by resource.
func same(t *testing.T, f *Fleet, kept *fleettest.Kept, c *proxyconfig.Config) {
	t.Helper()
	m, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Len() {
		r, err := m.For(nodeOf(i).GetId())
		if err != nil {
			t.Fatal(err)
		}
		want, err := fleettest.Digests(f.Digest, slices.Concat(messages(r.Clusters), messages(r.Endpoints),
			messages(r.Listeners), messages(r.Routes)))
		if err != nil {
			t.Fatal(err)
		}
		if got := kept.Has(i); !maps.EqualFunc(got, want, maps.Equal) {
			t.Errorf("proxy %d has %v, want %v", i, got, want)
		}
	}
}

// TestManners: proxies that refuse, are slow or never answer do not keep others from their resources, and what they
// hold is freed with them.
func TestManners(t *testing.T) {
	const services, calls = 20, 4
	for variant, delta := range map[string]bool{"world": false, "delta": true} {
		t.Run(variant, func(t *testing.T) {
			p := own(t, ringOf(services, calls))
			f := New(services, Options{Address: p.address, Node: nodeOf, Delta: delta, MarkOf: markOf,
				Manner: func(i int) Manner {
					if i == 0 {
						return Manner{Floods: true}
					}
					return [4]Manner{{Silent: true}, {}, {Slow: 20 * time.Millisecond}, {Refuses: true}}[i%4]
				}})
			defer f.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := f.Connect(ctx, 0, services); err != nil {
				t.Fatal(err)
			}
			if at, err := f.Complete(ctx); err != nil || len(at) != services/2 || f.missing.Load() != 0 {
				t.Fatalf("%d are complete, %d missing: %v", len(at), f.missing.Load(), err)
			}
			wait := f.Expect(Mark{Service: 3, Change: 2}, 2) // proxies 3 to 6 get it; 3 refuses it, and 4 is silent
			p.change(t, 2, 2)
			if _, err := wait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestComesBack: connections that end are made again, and then receive what has changed meanwhile.
func TestComesBack(t *testing.T) {
	const services = 10
	c := ringOf(services, 3)
	m, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	start := func(l net.Listener) *controlplane.Plane {
		p, err := controlplane.NewPlane(t.Context(), m, controlplane.PlaneOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = p.Serve(l) }() // until Close
		return p
	}
	l := listen(t)
	p := start(l)
	ends := make(chan error, 10*services)
	var kept fleettest.Kept
	f := New(services, Options{Address: l.Addr().String(), Node: nodeOf, Delta: true, OnHave: kept.Keep, MarkOf: markOf,
		Again: 20 * time.Millisecond, OnEnd: func(_ int, err error) {
			select {
			case ends <- err:
			default:
			}
		}})
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := f.Connect(ctx, 0, services); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Complete(ctx); err != nil {
		t.Fatal(err)
	}
	p.Close()
	for range services {
		if err := <-ends; err == nil {
			t.Error("a connection ended without an error")
		}
	}
	c = ringOf(services, 2)
	c.Services[0].Endpoints = ring.Endpoints(0, 9)
	if m, err = c.Compile(); err != nil {
		t.Fatal(err)
	}
	again, err := net.Listen("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p = start(again)
	defer p.Close()
	if _, err := f.Complete(ctx); err != nil {
		t.Fatal(err)
	}
	same(t, f, &kept, c)
}

// TestTooLarge: a response larger than any mesh needs is refused, with the reason.
func TestTooLarge(t *testing.T) {
	empty := slices.Repeat([]*anypb.Any{{}}, maxFields+1)
	for name, c := range map[string]struct {
		response *discoveryv3.DiscoveryResponse
		want     string
	}{
		"bytes":     {&discoveryv3.DiscoveryResponse{Nonce: strings.Repeat("x", maxMessage)}, "larger than max"},
		"resources": {&discoveryv3.DiscoveryResponse{Resources: empty}, "more than 200000 resources"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			server := grpc.NewServer()
			discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, saying{response: c.response})
			go func() { _ = server.Serve(l) }() // until Stop
			defer server.Stop()
			ended := make(chan error, 1)
			f := New(1, Options{Address: l.Addr().String(), Node: nodeOf, MarkOf: markOf,
				OnEnd: func(_ int, err error) { ended <- err }})
			defer f.Close()
			if err := f.Connect(t.Context(), 0, 1); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			case <-time.After(time.Minute):
				t.Fatal("it is taken")
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if f.missing.Load() > 0 {
				if _, err := f.Complete(ctx); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("what is missing: %v, want %q", err, c.want)
				}
			}
		})
	}
}

// saying is a control plane that sends one response.
type saying struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	response *discoveryv3.DiscoveryResponse
}

func (s saying) StreamAggregatedResources(
	g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	if err := g.Send(s.response); err != nil {
		return err
	}
	<-g.Context().Done()
	return nil
}

// TestGone: when proxies leave, what they received is freed in this process as well.
func TestGone(t *testing.T) {
	const services = 200
	p := own(t, ringOf(services, 5))
	f := New(services, Options{Address: p.address, Node: nodeOf, Delta: true, MarkOf: markOf})
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	goroutines := runtime.NumGoroutine()
	if err := f.Connect(ctx, 0, services); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Complete(ctx); err != nil {
		t.Fatal(err)
	}
	f.Disconnect(0, services)
	if f.missing.Load() != 0 {
		t.Errorf("%d are missing of none", f.missing.Load())
	}
	for runtime.NumGoroutine() > goroutines+services/10 {
		if ctx.Err() != nil {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// messages converts a list of messages of one type to a list of messages.
func messages[T proto.Message](list []T) (out []proto.Message) {
	for _, m := range list {
		out = append(out, m)
	}
	return out
}
