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

// written holds a tree in memory, written step by step as a store would write it.
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

func listenerTree(t *records.Tree, l *mesh.Listener) error {
	rules, err := l.Rules()
	if err != nil {
		return err
	}
	return t.Listener(l, rules)
}

// TestCounts checks the numbers of records and of updates of Kmesh's two benchmarks.
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
		{"listener", func() error { return listenerTree(tree, storetest.ListenerLoad(7)) }, records.Counts{16, 21, 0, 6},
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

// TestLimits checks resources that do not fit.
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

// TestNoAllocation: a reused tree does not allocate.
func TestNoAllocation(t *testing.T) {
	tree := &records.Tree{Layout: records.Sized}
	c, l := storetest.ClusterLoad(0), storetest.ListenerLoad(0)
	if n := testing.AllocsPerRun(100, func() {
		if err := tree.Cluster(c, 0); err != nil {
			t.Fatal(err)
		}
		if err := listenerTree(tree, l); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a cluster and a listener", n)
	}
}
