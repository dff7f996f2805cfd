package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"

	"tare/internal/mesh/controlplane/ads"
	"tare/test/ring"
)

// TestChangeTellsThoseConcerned: a change of a service is sent to the proxies that may call it, and to no other.
func TestChangeTellsThoseConcerned(t *testing.T) {
	const services, calls = 30, 4
	mesh := ring.Mesh{Services: services, Calls: calls}
	text, err := json.Marshal(mesh.Config(1))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	told := map[string]int{} // responses with endpoints, by node
	p, address := served(t, string(text), PlaneOptions{OnSent: func(s Sent) {
		if s.TypeURL == ads.EndpointType {
			mu.Lock()
			defer mu.Unlock()
			told[s.Node]++
		}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	streams := map[string]discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient{}
	next := func(node string) []string {
		t.Helper()
		r, err := streams[node].Recv()
		if err == nil {
			err = streams[node].Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
		}
		if err != nil {
			t.Fatalf("%s: %v", node, err)
		}
		var names []string
		for _, x := range r.GetResources() {
			names = append(names, x.GetName())
		}
		return names
	}
	for i := range services {
		node := ring.Proxy(i)
		streams[node] = deltas(ctx, t, address, insecure.NewCredentials())
		if err := streams[node].Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node},
			TypeUrl: ads.EndpointType, ResourceNamesSubscribe: []string{"*"}}); err != nil {
			t.Fatal(err)
		}
		if names := next(node); len(names) != calls {
			t.Errorf("%s is told of %q", node, names)
		}
	}
	changes := []func() (service int, err error){
		func() (int, error) {
			_, err := p.SetEndpoints(ctx, map[string][]Endpoint{"s7": {{Address: "10.200.0.1:80"}}})
			return 7, err
		},
		func() (int, error) { // the whole mesh, unchanged but for this service
			next := *p.mesh.Config()
			next.Services = slices.Clone(next.Services)
			next.Services[28].Endpoints = []Endpoint{{Address: "10.200.0.2:80", Weight: 7}}
			_, err := p.SetConfig(ctx, &next)
			return 28, err
		},
		func() (int, error) { // the same change, made in another way
			text, err := json.Marshal(p.mesh.Config())
			if err != nil {
				return 0, err
			}
			m := compiled(t, string(text))
			if m, err = m.WithEndpoints(map[string][]Endpoint{"s3": {{Address: "10.200.0.3:80"}}}); err != nil {
				return 0, err
			}
			_, err = p.Set(ctx, m)
			return 3, err
		},
	}
	for i, change := range changes {
		mu.Lock()
		clear(told)
		mu.Unlock()
		service, err := change()
		if err != nil {
			t.Fatal(i, err)
		}
		for _, proxy := range mesh.Callers(service) {
			if names := next(ring.Proxy(proxy)); len(names) != 1 || names[0] != ring.Service(service) {
				t.Errorf("%d: proxy %d is told of %q", i, proxy, names)
			}
		}
		// Send something to every proxy: after it, no response of the change above can still be under way.
		r := map[string][]Endpoint{}
		for s := range services {
			r[ring.Service(s)] = []Endpoint{{Address: fmt.Sprintf("10.201.%d.%d:80", i, s+1)}}
		}
		mu.Lock()
		count := 0
		for _, n := range told {
			count += n
		}
		if count != calls || len(told) != calls {
			t.Errorf("%d: told %v", i, told)
		}
		mu.Unlock()
		if _, err := p.SetEndpoints(ctx, r); err != nil {
			t.Fatal(err)
		}
		for node := range streams {
			if names := next(node); len(names) != calls {
				t.Errorf("%d: %s is told of %q", i, node, names)
			}
		}
	}
}

// BenchmarkChange gives a service another endpoint, which concerns 10 proxies, in meshes of several sizes. No data
// plane is connected.
func BenchmarkChange(b *testing.B) {
	for _, services := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			m, err := ring.Mesh{Services: services, Calls: 10}.Config(1).Compile()
			if err != nil {
				b.Fatal(err)
			}
			p, err := NewPlane(b.Context(), m, PlaneOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			for i := 0; b.Loop(); i++ {
				address := fmt.Sprintf("10.200.0.%d:80", i%250+1)
				if _, err := p.SetEndpoints(b.Context(), map[string][]Endpoint{"s7": {{Address: address}}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
