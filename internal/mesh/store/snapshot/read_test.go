package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
	"tare/test/vm/guest"
)

// instant is a waiter for memory that no program sees.
type instant struct{ asked bool }

func (i *instant) start()        { i.asked = true }
func (i *instant) running() bool { return i.asked }
func (i *instant) over() bool    { return i.asked }
func (i *instant) wait() error   { i.asked = false; return nil }
func (i *instant) close() error  { return nil }

// inMemory makes a store of the given number of lines, without a map.
func inMemory(t testing.TB, o store.Options, lines uint32) *Store {
	t.Helper()
	o = o.WithDefaults()
	s := &Store{g: newGeometry(o), grace: &instant{}}
	s.g.lines = lines
	s.over(make([]uint64, lines*lineBytes/8))
	s.begin()
	s.m.put64(superSeed, 7) // the same buckets each time
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Store) over(memory []uint64) {
	s.mem = unsafe.Slice((*byte)(unsafe.Pointer(&memory[0])), 8*len(memory))
	s.m, s.root = wordsOf(s.mem), &memory[0]
}

// text returns the content of the map, without the locations of resources.
func (s *Store) text() string {
	h, _ := s.read()
	var lines []string
	for name, c := range h.config.Clusters {
		x := c.Own
		lines = append(lines, fmt.Sprintf("cluster %s %d: %v", name, x.id, s.m.at(x.at.line, x.at.lines)[clusterTable:]))
	}
	for name, x := range h.config.Listeners {
		var uses []string
		for _, c := range x.Own.uses {
			uses = append(uses, c.Name)
		}
		lines = append(lines, fmt.Sprintf("listener %s %v: %v", name, x.Address, uses))
	}
	slices.Sort(lines)
	return fmt.Sprintf("generation %d\n%s", h.generation, strings.Join(lines, "\n"))
}

// sound fails the test unless the bookkeeping equals the content of the map, programs find everything there, and no
// line is lost.
func (s *Store) sound(t testing.TB) {
	t.Helper()
	now, lines := s.read()
	taken := uint32(0)
	for _, x := range lines {
		if x {
			taken++
		}
	}
	if n := taken + s.room.free + s.dropped.lines + s.old.lines + s.sealed.lines + s.ready.lines; n != s.g.lines {
		t.Fatalf("%d lines of %d are in the tree, free, or to be free", n, s.g.lines)
	}
	was := s.held
	sorted := func(h *held) {
		for _, tree := range []*tree{&h.slotTree, &h.bucketTree} {
			for _, nodes := range [][]node{tree.branches, tree.leaves} {
				for i := range nodes {
					nodes[i].stamp = 0
				}
			}
		}
		for _, l := range h.config.Listeners {
			own := &l.Own
			own.uses = slices.Clip(own.uses)
			slices.SortFunc(own.uses, func(a, b *known) int { return int(a.Own.slot) - int(b.Own.slot) })
			if len(own.uses) == 0 {
				own.uses = nil
			}
		}
	}
	was.slotTree = tree{slices.Clone(was.slotTree.branches), slices.Clone(was.slotTree.leaves)}
	was.bucketTree = tree{slices.Clone(was.bucketTree.branches), slices.Clone(was.bucketTree.leaves)}
	sorted(&was)
	sorted(&now)
	if a, b := left(was.slots), left(now.slots); !slices.Equal(a, b) {
		t.Fatalf("the store knows of the free slots %v, but the map has %v", a, b)
	}
	if a, b := left(was.ids), left(now.ids); !slices.Equal(a, b) {
		t.Fatalf("the store knows of the free numbers %v, but the map has %v", a, b)
	}
	was.slots, was.ids, now.slots, now.ids = plan.Numbers{}, plan.Numbers{}, plan.Numbers{}, plan.Numbers{}
	if !reflect.DeepEqual(was, now) {
		t.Fatalf("the store knows\n%+v\nbut the map holds\n%+v", was, now)
	}
	s.findable(t)
}

// left returns the numbers that can be allocated.
func left(n plan.Numbers) (all []uint32) {
	for n.Left() > 0 {
		x, _ := n.Latest()
		all = append(all, x)
	}
	slices.Sort(all)
	return all
}

// findable fails the test unless listeners are where programs look for them, and alias tables refer only to existing
// entries.
func (s *Store) findable(t testing.TB) {
	t.Helper()
	for _, l := range s.config.Listeners {
		k := keyOf(l.Address)
		hash, found := k.hash(s.seed), false
		for line := s.bucketTree.leaves[uint32(hash)&s.g.mask()].line; line != 0; {
			b := s.m.at(line, 1)
			for i := range bucketEntries {
				found = found || b[2*i] == l.Own.at.line && b[2*i+1] == uint32(hash>>32)
			}
			line = b[2*bucketEntries]
		}
		if !found {
			t.Fatalf("listener %s is not where programs look for it", l.Name)
		}
		w := s.m.at(l.Own.at.line, l.Own.at.lines)
		for i := range 1 + w[listenerRules] {
			target := w[listenerTarget:]
			if i > 0 {
				target = w.at(i, 1)[ruleTarget:]
			}
			for j := range target[0] {
				if target[0] < 2 || target[0] == denied {
					break
				}
				share := w[target[1]*lineWords+j*shareWords:]
				for _, slot := range []uint32{share[1], share[2]} {
					if !slices.ContainsFunc(l.Own.uses, func(c *known) bool { return c.Own.slot == slot }) {
						t.Fatalf("listener %s names no cluster with slot %d", l.Name, slot)
					}
				}
			}
		}
	}
	for _, c := range s.config.Clusters {
		w := s.m.at(c.Own.at.line, c.Own.at.lines)
		for i := range w[clusterCount] {
			if w[clusterForm] == endpointsOfIPv6 && w[clusterTable+i*endpoint6Words+6] >= w[clusterCount] {
				t.Fatalf("endpoint %d of cluster %s is none", i, c.Name)
			}
		}
	}
}

func at(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
}

func testCluster(name string, endpoints ...netip.AddrPort) *mesh.Cluster {
	c := &mesh.Cluster{Name: name, Localities: make([]mesh.Locality, 1)}
	for i, a := range endpoints {
		c.Localities[0].Endpoints = append(c.Localities[0].Endpoints, mesh.Endpoint{Address: a, Weight: uint32(1 + i)})
	}
	return c
}

func testListener(name string, address netip.AddrPort, clusters ...string) *mesh.Listener {
	var p mesh.Proxy
	for i, name := range clusters {
		p.Clusters = append(p.Clusters, mesh.WeightedCluster{Name: name, Weight: uint32(1 + i)})
	}
	return &mesh.Listener{Name: name, Address: address, Protocol: mesh.TCP, Chains: []mesh.Chain{{Proxy: p}}}
}

// everything returns a change with resources of every form.
func everything() mesh.Change {
	six := netip.MustParseAddrPort("[fd00::1]:80")
	rules := testListener("rules", at(2000), "a", "absent")
	rules.Chains[0].Match.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16")}
	rules.Chains[0].RBAC = []mesh.RBAC{{Deny: true,
		Policies: []mesh.Principal{{SourcePorts: []mesh.PortRange{{From: 1, To: 5}}}}}}
	change := mesh.Change{
		Clusters: []*mesh.Cluster{testCluster("a", at(1), at(2), at(3)), testCluster("b", six, at(4)), testCluster("none"),
			testCluster(strings.Repeat("long", 40), at(5))},
		Listeners: []*mesh.Listener{rules, testListener("any4", netip.MustParseAddrPort("0.0.0.0:80"), "b"),
			testListener("any6", netip.MustParseAddrPort("[::]:80"), "none"),
			testListener("nothing", six)},
	}
	for i := range 500 { // more than 7 in many buckets
		change.Listeners = append(change.Listeners, testListener(fmt.Sprint("l", i), at(i), "b"))
	}
	return change
}

func mustApply(t testing.TB, s *Store, c mesh.Change) {
	t.Helper()
	if _, err := s.Apply(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}

var small = store.Options{MaxClusters: 64, MaxListeners: 64, MaxEndpoints: 2048}

// crowded returns options with which the listeners of everything share a few buckets.
func crowded() store.Options {
	o := small
	o.MaxListeners = 512
	return o
}

func TestSound(t *testing.T) {
	s := inMemory(t, crowded(), 4000)
	mustApply(t, s, everything())
	s.sound(t)
	more := 0
	for _, n := range s.bucketTree.leaves {
		if n.line != 0 && s.m.at(n.line, 1)[2*bucketEntries] != 0 {
			more++
		}
	}
	if more == 0 {
		t.Error("no bucket has a second line: the test wants some")
	}
	// Listeners trade their addresses, in one change.
	mustApply(t, s, mesh.Change{Listeners: []*mesh.Listener{testListener("l1", at(2), "b"),
		testListener("l2", at(1), "a")}})
	s.sound(t)
	owner := func(i int) string { return s.config.Addresses[plan.AddressOf(testListener("", at(i)))].Name }
	if owner(1) != "l2" || owner(2) != "l1" {
		t.Error("the addresses were not traded")
	}
	// A listener takes the address of one that is removed.
	mustApply(t, s, mesh.Change{Listeners: []*mesh.Listener{testListener("l3", at(4), "new")},
		RemovedListeners: []string{"l4", "not there"}, RemovedClusters: []string{"b", "not there"}})
	s.sound(t)
	for name := range maps.Keys(s.config.Listeners) {
		mustApply(t, s, mesh.Change{RemovedListeners: []string{name}})
	}
	mustApply(t, s, mesh.Change{RemovedClusters: slices.Collect(maps.Keys(s.config.Clusters))})
	s.sound(t)
	if len(s.config.Clusters)+len(s.config.Listeners)+len(s.config.Addresses) != 0 {
		t.Errorf("something is left: %+v", s.held)
	}
}

// TestFull makes each change fail at every allocation. Nothing of it may be left, in the map or in the bookkeeping.
func TestFull(t *testing.T) {
	guest.KernelFree(t)
	changes := map[string]mesh.Change{
		"clusters": {Clusters: []*mesh.Cluster{testCluster("new", at(7)), testCluster("a", at(8), at(9)),
			testCluster("absent", at(1))}},
		"listeners": {Listeners: []*mesh.Listener{testListener("new", at(5000), "x", "y"),
			testListener("l1", at(5001), "z", "a"), testListener("rules", at(2000), "a")}},
		"removed": {RemovedClusters: []string{"a", "b", "none"}, RemovedListeners: []string{"rules", "any4", "l5"}},
	}
	for name, change := range changes {
		s := inMemory(t, crowded(), 4000)
		mustApply(t, s, everything())
		before := s.text()
		failed := 0
		for free := uint32(0); ; free++ {
			if err := s.load(); err != nil { // frees everything that can be freed
				t.Fatal(err)
			}
			line, ok := s.room.take(s.room.free - 200) // the test needs one long free run
			if !ok {
				t.Fatal("the room is in pieces")
			}
			for s.room.free > 0 {
				if _, ok := s.room.take(1); !ok {
					t.Fatal("no line")
				}
			}
			if free > 0 {
				s.room.give(line, free)
			}
			_, err := s.Apply(context.Background(), change)
			if err == nil {
				break
			}
			var f *fault.Error
			if failed++; !errors.As(err, &f) && !errors.Is(err, errFull) {
				t.Fatalf("%s with %d lines free: %v", name, free, err)
			}
			if s.text() != before {
				t.Fatalf("%s with %d lines free: refused, but there is something of it", name, free)
			}
			s.sound(t)
		}
		if failed < 5 {
			t.Errorf("%s: failed only %d times", name, failed)
		}
		if s.text() == before {
			t.Errorf("%s: nothing was changed", name)
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	s := inMemory(t, store.Options{MaxClusters: 4, MaxListeners: 4, MaxEndpoints: 10}, 4000)
	mustApply(t, s, mesh.Change{Clusters: []*mesh.Cluster{testCluster("a", at(1), at(2))},
		Listeners: []*mesh.Listener{testListener("l", at(1), "a")}})
	before := s.text()
	two := testListener("many", at(9), "a")
	two.Chains[0].RBAC = []mesh.RBAC{{}, {}}
	var clusters []*mesh.Cluster
	var listeners []*mesh.Listener
	for i := range 4 {
		clusters = append(clusters, testCluster(fmt.Sprint("c", i)))
		listeners = append(listeners, testListener(fmt.Sprint("l", i), at(10+i)))
	}
	var endpoints []netip.AddrPort
	for i := range 9 {
		endpoints = append(endpoints, at(i))
	}
	long := strings.Repeat("x", maxName+1)
	for _, c := range []struct {
		where  string
		change mesh.Change
	}{
		{"m", mesh.Change{Listeners: []*mesh.Listener{testListener("m", at(1), "a")}}},
		{"many", mesh.Change{Listeners: []*mesh.Listener{two}}},
		{"none", mesh.Change{Listeners: []*mesh.Listener{testListener("none", netip.AddrPort{}, "a")}}},
		{"c3", mesh.Change{Clusters: clusters}},
		{"l3", mesh.Change{Listeners: listeners}},
		{"b", mesh.Change{Clusters: []*mesh.Cluster{testCluster("b", endpoints...)}}},
		{"a", mesh.Change{Clusters: []*mesh.Cluster{testCluster("a", append(endpoints, endpoints...)...)}}},
		{long[:64], mesh.Change{Clusters: []*mesh.Cluster{testCluster(long)}}},
		{long[:64], mesh.Change{Listeners: []*mesh.Listener{testListener(long, at(9), "a")}}},
		{long[:64], mesh.Change{Listeners: []*mesh.Listener{testListener("x", at(9), long)}}},
	} {
		_, err := s.Apply(context.Background(), c.change)
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.Usage || f.Where != c.where {
			t.Errorf("%.64q: %v", c.where, err)
		}
		if s.text() != before {
			t.Errorf("%.64q: refused, but there is something of it", c.where)
		}
	}
	s.sound(t)
}
