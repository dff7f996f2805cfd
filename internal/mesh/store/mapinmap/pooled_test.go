package mapinmap

import (
	"context"
	"testing"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records/keep"
	"tare/test/storetest"
)

// TestPool checks the size of the pool, how much of it is free, and how many maps the map of maps holds, while the pool
// grows and shrinks.
func TestPool(t *testing.T) {
	if testing.Short() {
		t.Skip("needs more time than a short run has, for a thousand maps of each variant")
	}
	// Room for 8*5 + 256*4 + 8*43 = 1408 records.
	o := store.Options{MaxClusters: 8, MaxListeners: 8, MaxEndpoints: 256}
	for _, c := range []struct {
		variant             string
		start, full, little int // size of the pool: empty, with 8 clusters of 45 records, and with one
	}{
		{ahead, 1408, 1408, 1408},
		{background, 1408, 1408, 1408},
		{onDemand, 256, 768, 256},
	} {
		t.Run(c.variant, func(t *testing.T) {
			o.Variant = c.variant
			s, err := Pooled.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			p := s.(*keep.Store).Records().(*pooled)
			check := func(what string, size, used int) {
				t.Helper()
				for range 4 { // a change may begin another
					p.settled(true)
					p.Settle()
				}
				p.settled(true)
				held := 0
				for key := range p.limit {
					if fd, err := p.kernel.Get(p.outer, uint32(key+1)); err == nil {
						p.kernel.CloseFD(fd)
						held++
					}
				}
				if p.size != size || p.size-p.free.Left() != used || held != size || p.missing.Left() != p.limit-size {
					t.Errorf("%s: a pool of %d, %d free, %d in the map of maps, %d missing; want %d, %d used, of %d", what, p.size,
						p.free.Left(), held, p.missing.Left(), size, used, p.limit)
				}
			}
			apply := func(change mesh.Change) {
				t.Helper()
				if _, err := s.Apply(context.Background(), change); err != nil {
					t.Fatal(err)
				}
			}
			check("empty", c.start, 0)
			var gone []string
			for i := range 8 {
				l := storetest.ClusterLoad(i)
				apply(mesh.Change{Clusters: []*mesh.Cluster{l}})
				if i > 0 {
					gone = append(gone, l.Name)
				}
				p.settled(true)
			}
			check("full", c.full, 8*45)
			apply(mesh.Change{RemovedClusters: gone})
			check("with one cluster", c.little, 45)
			apply(mesh.Change{RemovedClusters: []string{storetest.ClusterName(0)}})
			check("empty again", c.little, 0)
		})
	}
}
