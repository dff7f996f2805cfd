package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// TestNumbers allocates and returns numbers at random, with Oldest and Latest, and compares them with a list of the
// numbers in use.
func TestNumbers(t *testing.T) {
	const first, end = 3, 5000
	random := rand.New(rand.NewPCG(1, 2))
	n := NewNumbers(first, end)
	taken := make([]bool, end)
	var all []uint32
	for step := range 50_000 {
		if random.IntN(100) < 55 {
			next := n.Oldest
			if step%3 == 0 {
				next = n.Latest
			}
			x, ok := next()
			if ok != (len(all) < end-first) || ok && (x < first || x >= end || taken[x]) {
				t.Fatalf("with %d handed out: %d, %v", len(all), x, ok)
			}
			if ok {
				taken[x] = true
				all = append(all, x)
			}
		} else if len(all) > 0 {
			i := random.IntN(len(all))
			n.Give(all[i])
			taken[all[i]] = false
			all = slices.Delete(all, i, i+1)
		}
		if n.Left() != end-first-len(all) {
			t.Fatalf("%d left with %d handed out", n.Left(), len(all))
		}
	}
	again := Except(taken)
	if again.Left() != end-len(all) {
		t.Errorf("%d left of %d with %d handed out", again.Left(), end, len(all))
	}
	for again.Left() > 0 {
		if x, ok := again.Oldest(); !ok || taken[x] {
			t.Fatalf("%d was handed out twice", x)
		}
	}
}

// TestOrder checks which number Oldest and Latest allocate next.
func TestOrder(t *testing.T) {
	n := NewNumbers(0, 4)
	for range 3 {
		n.Oldest()
	}
	n.Give(1)
	n.Give(0)
	var got []uint32
	for _, next := range []func() (uint32, bool){n.Oldest, n.Latest, n.Oldest} {
		x, _ := next()
		got = append(got, x)
	}
	if want := []uint32{3, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func listener(name string, port uint16) *mesh.Listener {
	return &mesh.Listener{Name: name, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), port),
		Protocol: mesh.TCP, Chains: []mesh.Chain{{}}}
}

func cluster(name string, endpoints int) *mesh.Cluster {
	c := &mesh.Cluster{Name: name, Localities: make([]mesh.Locality, 1)}
	c.Localities[0].Endpoints = slices.Repeat([]mesh.Endpoint{{Weight: 1}}, endpoints)
	return c
}

func TestPlan(t *testing.T) {
	c := New[int, int](store.Options{MaxClusters: 2, MaxListeners: 2, MaxEndpoints: 10})
	c.Set(c.Name("a"), true, 4)
	c.Set(c.Name("b"), true, 4)
	c.Name("named only")
	for i, name := range []string{"x", "y"} {
		c.Put(&Listener[int]{Name: name}, AddressOf(listener(name, uint16(1+i))))
	}
	clusters := func(all ...*mesh.Cluster) []*mesh.Cluster { return all }
	listeners := func(all ...*mesh.Listener) []*mesh.Listener { return all }
	for _, test := range []struct {
		what   string
		change mesh.Change
		plan   string
		where  string // the resource that the error names; empty: no error
	}{
		{"nothing", mesh.Change{}, "[] [] [] []", ""},
		{"not there", mesh.Change{RemovedClusters: []string{"named only", "c"}, RemovedListeners: []string{"z"}},
			"[] [] [] []", ""},
		{"the last counts", mesh.Change{Clusters: clusters(cluster("a", 9), cluster("b", 1), cluster("a", 2))},
			"[b1 a2] [] [] []", ""},
		{"removed twice, and given", mesh.Change{Clusters: clusters(cluster("a", 1)), RemovedClusters: []string{"a", "a"}},
			"[] [] [a] []", ""},
		{"room by removing", mesh.Change{Clusters: clusters(cluster("c", 6)), RemovedClusters: []string{"a"}},
			"[c6] [] [a] []", ""},
		{"too many clusters", mesh.Change{Clusters: clusters(cluster("named only", 1))}, "", "named only"},
		{"too many endpoints", mesh.Change{Clusters: clusters(cluster("b", 7), cluster("a", 4))}, "", "b"},
		{"too many endpoints at first", mesh.Change{Clusters: clusters(cluster("b", 7), cluster("a", 3))},
			"[b7 a3] [] [] []", ""},
		{"too many listeners", mesh.Change{Listeners: listeners(listener("z", 3))}, "", "z"},
		{"no address", mesh.Change{Listeners: listeners(&mesh.Listener{Name: "x"})}, "", "x"},
		{"another's address", mesh.Change{Listeners: listeners(listener("x", 2))}, "", "x"},
		{"one address twice", mesh.Change{Listeners: listeners(listener("x", 3), listener("y", 3))}, "", "y"},
		{"traded addresses", mesh.Change{Listeners: listeners(listener("x", 2), listener("y", 1))},
			"[] [x:2 y:1] [] []", ""},
		{"the address of one that goes", mesh.Change{Listeners: listeners(listener("z", 2)), RemovedListeners: []string{"y"}},
			"[] [z:2] [] [y]", ""},
	} {
		var p Plan[int, int]
		err := c.Plan(&p, test.change, AllEndpoints)
		var f *fault.Error
		if (err != nil) != (test.where != "") || err != nil && (!errors.As(err, &f) || f.Where != test.where ||
			f.Code != fault.Usage) {
			t.Errorf("%s: %v", test.what, err)
		}
		if got := text(&p); err == nil && got != test.plan {
			t.Errorf("%s: %s, want %s", test.what, got, test.plan)
		}
		for _, l := range c.Listeners {
			if l.leaves {
				t.Errorf("%s: listener %s is still marked", test.what, l.Name)
			}
		}
	}
}

func text(p *Plan[int, int]) string {
	var clusters, listeners, goneClusters, goneListeners []string
	for _, c := range p.Clusters {
		clusters = append(clusters, fmt.Sprint(c.Name, c.Endpoints))
	}
	for _, l := range p.Listeners {
		listeners = append(listeners, fmt.Sprintf("%s:%d", l.Name, l.At.Port))
	}
	for _, c := range p.GoneClusters {
		goneClusters = append(goneClusters, c.Name)
	}
	for _, l := range p.GoneListeners {
		goneListeners = append(goneListeners, l.Name)
	}
	return fmt.Sprint(clusters, listeners, goneClusters, goneListeners)
}
