package sized

import (
	"context"
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records"
	"tare/internal/mesh/store/records/keep"
	"tare/test/storetest"
)

func TestConformance(t *testing.T) { storetest.Conformance(t, Design) }

func BenchmarkStore(b *testing.B) { storetest.Benchmarks(b, Design) }

// BenchmarkOpen measures how long a writer takes to open the store with the default options.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		s, err := Design.Open(store.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// TestNothingIsLeft: what is removed is gone from the maps, and its keys are free.
func TestNothingIsLeft(t *testing.T) {
	for _, variant := range Design.Variants {
		t.Run(variant, func(t *testing.T) {
			s, err := Design.Open(store.Options{MaxClusters: 8, MaxListeners: 8, MaxEndpoints: 256, Variant: variant})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			h := s.(*keep.Store).Records().(*hashes)
			var left [records.Classes]int
			for class := range h.class {
				left[class] = h.class[class].indexes.Left()
			}
			for range 3 {
				for _, change := range []mesh.Change{
					{Clusters: []*mesh.Cluster{storetest.ClusterLoad(0)}, Listeners: []*mesh.Listener{storetest.ListenerLoad(0)}},
					{Clusters: []*mesh.Cluster{storetest.ClusterLoad(0)}, Listeners: []*mesh.Listener{storetest.ListenerLoad(0)}},
					{RemovedClusters: []string{storetest.ClusterName(0)}, RemovedListeners: []string{"listener-0"}},
				} {
					if _, err := s.Apply(context.Background(), change); err != nil {
						t.Fatal(err)
					}
				}
				for name, m := range s.Maps() {
					var key []byte
					if err := m.NextKey(nil, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
						t.Errorf("map %s has an element: %v", name, err)
					}
				}
				for class := range h.class {
					if n := h.class[class].indexes.Left(); n != left[class] {
						t.Errorf("%s: %d indexes are free, not %d", names[class], n, left[class])
					}
				}
			}
		})
	}
}
