package records_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"tare/internal/mesh"
	"tare/internal/mesh/store/records"
	"tare/test/storetest"
)

// written is a tree in memory, put there step by step, as a store does.
type written struct {
	records map[uint32][]byte
	top     []byte
	updates map[string]int // by class
	next    uint32
}

func write(t *records.Tree) *written {
	w := &written{records: map[uint32][]byte{}, updates: map[string]int{}}
	keys := make([]uint32, t.Len())
	for i := range t.Steps {
		s := &t.Steps[i]
		if s.Child != 0 {
			w.next++
			keys[s.Child] = uint32(t.Class(s.Child))<<24 | w.next
			t.SetKey(s, keys[s.Child])
		}
		switch {
		case !s.Write:
		case s.Record == 0:
			w.top = slices.Clone(t.Bytes(0))
			w.updates["top"]++
		default:
			w.records[keys[s.Record]] = slices.Clone(t.Bytes(s.Record))
			w.updates[fmt.Sprint(records.Sized[t.Class(s.Record)])]++
		}
	}
	return w
}

func (w *written) walker() *records.Walker {
	return &records.Walker{Layout: records.Sized, Seen: map[uint32]bool{},
		Read: func(key uint32, class records.Class) []byte {
			if key>>24 != uint32(class) {
				return nil
			}
			return w.records[key]
		}}
}

// TestCounts has the numbers of records and of updates that Kmesh's two benchmarks come to.
func TestCounts(t *testing.T) {
	tree := &records.Tree{Layout: records.Sized}
	for _, c := range []struct {
		name    string
		make    func() error
		counts  records.Counts
		updates map[string]int
	}{
		{"cluster", func() error { return tree.Cluster(storetest.ClusterLoad(7), 1) }, records.Counts{32, 2, 0, 11},
			map[string]int{"top": 4, "64": 54, "192": 2, "1600": 11}},
		{"listener", func() error { return tree.Listener(storetest.ListenerLoad(7)) }, records.Counts{16, 21, 0, 6},
			map[string]int{"top": 4, "64": 46, "192": 21, "1600": 6}},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if tree.Counts != c.counts {
			t.Errorf("%s: %v records by class, not %v", c.name, tree.Counts, c.counts)
		}
		w := write(tree)
		if fmt.Sprint(w.updates) != fmt.Sprint(c.updates) {
			t.Errorf("%s: updates %v, not %v", c.name, w.updates, c.updates)
		}
		if len(w.records) != c.counts.Sum() {
			t.Errorf("%s: %d records are written, not %d", c.name, len(w.records), c.counts.Sum())
		}
	}
}

// TestReadBack reads back what was written, and what is missing a record.
func TestReadBack(t *testing.T) {
	tree := &records.Tree{Layout: records.Sized}
	weighted := storetest.ListenerLoad(3)
	weighted.Chains[1].Proxy.Clusters = []mesh.WeightedCluster{{Name: "a", Weight: 1}, {Name: "b", Weight: 2}}
	weighted.Chains[0].Match.DestinationPort = 80
	for name, load := range map[string]func() error{
		"cluster":  func() error { return tree.Cluster(storetest.ClusterLoad(3), 9) },
		"listener": func() error { return tree.Listener(weighted) },
	} {
		if err := load(); err != nil {
			t.Fatal(err)
		}
		all := tree.Counts.Sum()
		w := write(tree)
		read := func() (int, bool, *records.Walker) {
			walker := w.walker()
			if name == "cluster" {
				keys, id, endpoints, ok := walker.Cluster(w.top)
				if ok && (id != 9 || endpoints != 10) {
					t.Errorf("cluster %d with %d endpoints was read, not cluster 9 with 10", id, endpoints)
				}
				return len(keys), ok, walker
			}
			keys, text, ok := walker.Listener(w.top)
			if ok && text != weighted.Name {
				t.Errorf("listener %q was read, not %q", text, weighted.Name)
			}
			return len(keys), ok, walker
		}
		if n, ok, walker := read(); !ok || n != all || len(walker.Seen) != all {
			t.Errorf("%s: %d of %d records are read back, whole: %v", name, n, all, ok)
		}
		for key, value := range w.records {
			delete(w.records, key)
			if _, ok, walker := read(); ok || len(walker.Seen) != 0 {
				t.Errorf("%s: it is whole without record %x", name, key)
			}
			w.records[key] = value
		}
	}
}

// TestLimits has what does not fit.
func TestLimits(t *testing.T) {
	endpoint := mesh.Endpoint{Address: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}
	locality := func(n int) mesh.Locality {
		return mesh.Locality{Endpoints: slices.Repeat([]mesh.Endpoint{endpoint}, n)}
	}
	for _, c := range []struct {
		name    string
		layout  records.Layout
		cluster mesh.Cluster
		want    string // in the error; "" for none
	}{
		{"endpoints that fit", records.Sized, mesh.Cluster{Name: "c", Localities: []mesh.Locality{locality(200)}}, ""},
		{"endpoints", records.Sized, mesh.Cluster{Name: "c", Localities: []mesh.Locality{locality(201)}},
			"201 endpoints in one locality"},
		{"endpoints of a single size", records.Single, mesh.Cluster{Name: "c", Localities: []mesh.Locality{locality(163)}},
			"has room for 162"},
		{"localities", records.Sized, mesh.Cluster{Name: "c", Localities: make([]mesh.Locality, 201)}, "201 localities"},
		{"name that fits", records.Sized, mesh.Cluster{Name: strings.Repeat("n", 191)}, ""},
		{"name", records.Sized, mesh.Cluster{Name: strings.Repeat("n", 192)}, "name of 192 bytes"},
		{"zero byte", records.Sized, mesh.Cluster{Name: "a\x00b"}, "zero byte"},
		{"no name", records.Sized, mesh.Cluster{}, "no name"},
	} {
		tree := &records.Tree{Layout: c.layout}
		err := tree.Cluster(&c.cluster, 0)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestNoAllocation: a tree that is used again allocates nothing.
func TestNoAllocation(t *testing.T) {
	tree := &records.Tree{Layout: records.Sized}
	c, l := storetest.ClusterLoad(0), storetest.ListenerLoad(0)
	if n := testing.AllocsPerRun(100, func() {
		if err := tree.Cluster(c, 0); err != nil {
			t.Fatal(err)
		}
		if err := tree.Listener(l); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a cluster and a listener", n)
	}
}

// FuzzWalk reads trees out of anything.
func FuzzWalk(f *testing.F) {
	tree := &records.Tree{Layout: records.Sized}
	c, l := storetest.ClusterLoad(0), storetest.ListenerLoad(0)
	c.Localities, l.Chains = c.Localities[:1], l.Chains[:1] // small, for speed
	for _, load := range []func() error{
		func() error { return tree.Cluster(c, 0) },
		func() error { return tree.Listener(l) },
	} {
		if err := load(); err != nil {
			f.Fatal(err)
		}
		w := write(tree)
		var all []byte
		for i := uint32(1); i <= w.next; i++ {
			for class := range uint32(records.Classes) {
				all = append(all, w.records[class<<24|i]...)
			}
		}
		f.Add(w.top, all)
	}
	f.Fuzz(func(t *testing.T, top, all []byte) {
		reads := 0
		walker := &records.Walker{Layout: records.Sized, Seen: map[uint32]bool{},
			Read: func(key uint32, class records.Class) []byte {
				reads++
				size := records.Sized[class]
				at := int(key&0xffffff) * 64
				if key == 0 || at+size > len(all) {
					return nil
				}
				return all[at : at+size]
			}}
		most := 2 + 4*len(all)/64*200
		if keys, _, _, ok := walker.Cluster(top); ok && len(keys) != len(walker.Seen) {
			t.Errorf("%d keys, %d seen", len(keys), len(walker.Seen))
		}
		walker.Listener(top)
		if reads > 2*most {
			t.Errorf("%d reads of %d bytes", reads, len(all))
		}
	})
}
