package kernelmesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/test/meshmodel"
)

// TestSource compares the configuration after each change with the services that were set, by the model of all stores.
func TestSource(t *testing.T) {
	at := netip.MustParseAddrPort
	one, two := Endpoint{at("127.0.0.1:1"), 3}, Endpoint{at("127.0.0.1:2"), 1}
	web, mapped := at("10.96.0.1:80"), at("[::ffff:10.96.0.1]:80")
	var last mesh.Change
	var fails error
	config := mesh.NewConfig()
	s := NewSource(func(_ context.Context, c mesh.Change) (store.Work, error) {
		if last = c; fails == nil {
			config.Apply(c)
		}
		return store.Work{}, fails
	})
	for _, step := range []struct {
		name     string
		services []Service
		fails    error
		want     string // as Changes
		change   [4]int // clusters, listeners, removed clusters, removed listeners; not checked if nothing was applied
		parts    map[netip.AddrPort]float64
		verdict  mesh.Verdict
	}{
		{"first", []Service{{web, TCP, []Endpoint{one, two}}, {web, UDP, nil}}, nil, "2 0 0 0", [4]int{2, 2, 0, 0},
			map[netip.AddrPort]float64{one.Address: 0.75, two.Address: 0.25}, mesh.Accept},
		{"same, otherwise written", []Service{{web, UDP, nil},
			{mapped, TCP, []Endpoint{one, {at("[::ffff:127.0.0.1]:2"), 1}}}}, nil, "0 0 0 2", [4]int{},
			map[netip.AddrPort]float64{one.Address: 0.75, two.Address: 0.25}, mesh.Accept},
		{"a weight", []Service{{web, TCP, []Endpoint{one, {two.Address, 0}}}, {web, UDP, nil}}, nil, "0 1 0 1",
			[4]int{1, 0, 0, 0}, map[netip.AddrPort]float64{one.Address: 1}, mesh.Accept},
		{"that cannot be applied", []Service{{web, TCP, []Endpoint{two}}}, errors.New("no"), "0 0 0 0", [4]int{1, 0, 1, 1},
			map[netip.AddrPort]float64{one.Address: 1}, mesh.Accept},
		{"again", []Service{{web, TCP, []Endpoint{two}}}, nil, "0 1 1 0", [4]int{1, 0, 1, 1},
			map[netip.AddrPort]float64{two.Address: 1}, mesh.Accept},
		{"no endpoint", []Service{{web, TCP, nil}}, nil, "0 1 0 0", [4]int{1, 0, 0, 0}, nil, mesh.Refuse},
		{"none", nil, nil, "0 0 1 0", [4]int{0, 0, 1, 1}, nil, mesh.Pass},
	} {
		last, fails = mesh.Change{}, step.fails
		got, err := s.Set(context.Background(), step.services)
		if !errors.Is(err, step.fails) || fmt.Sprint(got.Added, got.Changed, got.Removed, got.Unchanged) != step.want {
			t.Errorf("%s: %+v, %v", step.name, got, err)
		}
		if n := [4]int{len(last.Clusters), len(last.Listeners), len(last.RemovedClusters),
			len(last.RemovedListeners)}; n != step.change {
			t.Errorf("%s: a change of %v, want %v", step.name, n, step.change)
		}
		a := meshmodel.Find(config, mesh.Question{To: web, Protocol: TCP})
		if a.Verdict != step.verdict || len(a.Parts) != len(step.parts) {
			t.Errorf("%s: %+v", step.name, a)
		}
		for to, part := range step.parts {
			if a.Parts[meshmodel.Destination{Cluster: "tcp 10.96.0.1:80", Endpoint: to}] != part {
				t.Errorf("%s: %+v", step.name, a)
			}
		}
	}
	for _, wrong := range [][]Service{
		{{web, TCP, nil}, {mapped, TCP, nil}},
		{{web, 3, nil}},
		{{web, TCP, []Endpoint{{one.Address, 0}}}},
		{{web, TCP, []Endpoint{one, one}}},
		{{web, TCP, slices.Repeat([]Endpoint{one}, MaxServiceEndpoints+1)}},
	} {
		last = mesh.Change{}
		if _, err := s.Set(context.Background(), wrong); fault.CodeOf(err) != fault.Usage || len(last.Clusters) > 0 {
			t.Errorf("%v...: %v, %d clusters", wrong[0].Address, err, len(last.Clusters))
		}
	}
}
