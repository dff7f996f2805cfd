package live

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/known"
	"tare/internal/scale/ledger"
)

// window returns the ledger of the second that begins at s.
func window(s int) *ledger.Ledger {
	start := time.Unix(int64(s), 0)
	return &ledger.Ledger{Host: ledger.Host{CPUs: 2, Sampler: "cpu-clock"},
		Window: ledger.Window{Start: start, End: start.Add(time.Second), Seconds: 1}}
}

func group(path string, s float64) ledger.Cgroup { return ledger.Cgroup{Path: path, CPUSeconds: &s} }

// The lines add up to the capacity, apart from what is counted twice, to within grain, and none of them decreases.
func TestBudgetSums(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		totals := NewTotals(Options{})
		var before map[string]float64
		for tick := range 200 {
			l := window(tick)
			u := ledger.Usage{Capacity: 2, Idle: 2 * random.Float64(), IRQTime: random.IntN(2) == 0}
			busy := 2 - u.Idle
			u.Groups, u.Root = busy*random.Float64(), busy*random.Float64()/8
			u.Self, u.Steal = u.Root/2, random.Float64()/10
			l.CPU = ledger.Budget(u)
			totals.Add(l)
			sum := 0.0
			for name, s := range totals.Lines() {
				if s < before[name] {
					t.Fatalf("seed %d: %s fell from %g to %g", seed, name, before[name], s)
				}
				sum += s
			}
			before = totals.Lines()
			over := sum - totals.CountedTwice() - totals.Ahead() - totals.Capacity.Seconds()
			if math.Abs(over) > 1e-6 || totals.Ahead() > 2*grain.Seconds() {
				t.Fatalf("seed %d, tick %d: the lines exceed the capacity by %g s, and are %g s ahead", seed, tick, over,
					totals.Ahead())
			}
		}
	}
}

// The counters of an edge may be read far apart: some lines then include time of the next window, and others lack time
// of this one. That time is neither unexplained nor counted twice.
func TestBudgetOfEdgesFarApart(t *testing.T) {
	totals := NewTotals(Options{})
	for tick, u := range []ledger.Usage{
		{Groups: 1, Root: 0.4, Idle: 0.6},
		{Groups: 1.5, Root: -0.1, Idle: 0.6},  // the groups were read 0.5 s after all tasks
		{Groups: 0.5, Root: 0.9, Idle: 0.6},   // these edges were read closely
		{Groups: 1.75, Root: 0.65, Idle: 0.1}, // all were read 0.25 s after the clock
		{Groups: 0.75, Root: 0.15, Idle: 0.6},
	} {
		u.Capacity = 2
		l := window(tick)
		l.CPU = ledger.Budget(u)
		if tick > 0 {
			l.Window.EdgeSeconds = 0.25
		}
		totals.Add(l)
		sum := 0.0
		for _, s := range totals.Lines() {
			sum += s
		}
		if over := sum - totals.Ahead() - totals.Capacity.Seconds(); math.Abs(over) > 1e-9 {
			t.Errorf("tick %d: the lines are %g s, the capacity %v, and %g s of them ahead", tick, sum, totals.Capacity,
				totals.Ahead())
		}
	}
	lines := totals.Lines()
	for name, want := range map[string]float64{ledger.LineGroups: 5.5, ledger.LineRoot: 2, LineIdle: 2.5,
		LineUnexplained: 0} {
		if got := lines[name]; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %g s, want %g", name, got, want)
		}
	}
	if totals.Ahead() != 0 || totals.CountedTwice() != 0 {
		t.Errorf("%g s ahead and %g counted twice, want none", totals.Ahead(), totals.CountedTwice())
	}
	// An excess that later windows do not make up for was on two lines.
	for tick, u := range []ledger.Usage{{Groups: 1, Root: 1.5}, {Groups: 1, Root: 1}, {Groups: 1, Root: 1}} {
		u.Capacity = 2
		l := window(5 + tick)
		l.CPU = ledger.Budget(u)
		l.Window.EdgeSeconds = []float64{0.25, 0.25, 0.001}[tick]
		totals.Add(l)
	}
	if totals.Ahead() != 0 || math.Abs(totals.CountedTwice()-0.5) > 1e-9 {
		t.Errorf("%g s ahead and %g counted twice, want 0.5 twice", totals.Ahead(), totals.CountedTwice())
	}
}

// TestMemoryAfterAPeak: thousands of groups that come and go leave no memory behind.
func TestMemoryAfterAPeak(t *testing.T) {
	totals := NewTotals(Options{})
	tick := 0
	ticks := func(groups int) (heap uint64) {
		for range renewal + 2 {
			l := window(tick)
			for i := range groups {
				l.Cgroups = append(l.Cgroups, group(fmt.Sprintf("/pods/%d", i), 1e-3))
			}
			totals.Add(l)
			totals.Memory(func(*ledger.Memory) *int64 { return nil })
			tick++
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := ticks(300)
	peak := ticks(3000)
	after := ticks(300)
	t.Logf("300, 3,000 and 300 groups: %d, %d and %d KiB", before>>10, peak>>10, after>>10)
	if after > before+(peak-before)/10 {
		t.Errorf("after a peak of %d KiB, %d KiB are in use, and %d were before", peak>>10, after>>10, before>>10)
	}
	if gone := totals.Places.Gone(); math.Abs(gone-2700*(renewal+2)*1e-3) > 1e-6 {
		t.Errorf("the groups that are gone used %g s, want %g", gone, 2700*(renewal+2)*1e-3)
	}
	runtime.KeepAlive(totals)
}

// In nested groups, each second is in one place, and the places add up to what the topmost groups used.
func TestGroupsSum(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 3))
		totals := NewTotals(Options{Most: random.IntN(2) * 5})
		want, sum, spaces := 0.0, 0.0, 0.0
		for tick := range 100 {
			l := window(tick)
			for i := range 1 + random.IntN(6) {
				inner, own := random.Float64(), random.Float64()
				if random.IntN(4) == 0 {
					inner = 0
				}
				top := fmt.Sprintf("/%d", i)
				l.Cgroups = append(l.Cgroups, group(top, inner+own))
				want += inner + own
				if random.IntN(3) > 0 {
					l.Cgroups = append(l.Cgroups, group(top+"/in", inner), group(top+"/in/er", inner/2))
				}
			}
			random.Shuffle(len(l.Cgroups), func(i, j int) { l.Cgroups[i], l.Cgroups[j] = l.Cgroups[j], l.Cgroups[i] })
			totals.Add(l)
			if totals.Places.Sum() < sum || totals.Namespaces.Sum() < spaces {
				t.Fatalf("seed %d: a sum fell", seed)
			}
			sum, spaces = totals.Places.Sum(), totals.Namespaces.Sum()
			if math.Abs(sum-want) > 1e-6 || math.Abs(spaces-want) > 1e-6 {
				t.Fatalf("seed %d, tick %d: the places have %g s, the namespaces %g s, and %g s were used", seed, tick, sum,
					spaces, want)
			}
		}
	}
}

// What a group used before it was found, and in the window in which it was found, is in the place around it.
func TestGroupFoundLate(t *testing.T) {
	late := func(path string) ledger.Cgroup { return ledger.Cgroup{Path: path} }
	gone := func(g ledger.Cgroup) ledger.Cgroup {
		g.Vanished = true
		return g
	}
	totals := NewTotals(Options{})
	for tick, groups := range [][]ledger.Cgroup{
		{group("/shop", 0.2)},
		{group("/shop", 1.2)}, // 1 s of the proxy, which is not found yet
		{late("/shop/proxy"), group("/shop", 1.2)},
		{group("/shop/proxy", 1), group("/shop", 1.2)},
		// The group is removed and created again between two searches.
		{gone(late("/shop/proxy")), group("/shop", 1.2)},
		{group("/shop", 1.2)},
		{late("/shop/proxy"), group("/shop/proxy/new", 0.5), group("/shop", 1.2)}, // new inside a late one
		{gone(group("/shop/proxy", 0.5)), group("/shop/proxy", 0.25), group("/shop", 1.2)},
	} {
		l := window(tick)
		l.Cgroups = groups
		totals.Add(l)
	}
	shop, proxy := totals.Places.rows[Place{Top: "/shop"}], totals.Places.rows[Place{Top: "/shop/proxy"}]
	if shop == nil || proxy == nil {
		t.Fatalf("not both have a total: %v", maps.Collect(totals.Places.All()))
	}
	if math.Abs(seconds(shop.sum)-6.35) > 1e-9 || math.Abs(seconds(proxy.sum)-0.75) > 1e-9 {
		t.Errorf("around it are %g s, and in it %g since it was made again; want 6.35 and 0.75", seconds(shop.sum),
			seconds(proxy.sum))
	}
	if got := totals.Places.Sum(); math.Abs(got-8.6) > 1e-9 { // 0.2 + 7 x 1.2
		t.Errorf("%g s in all, and 8.6 were used", got)
	}
}

// A group whose counter was never known has no total, and the place around it keeps all of its time. One whose counter
// is unknown in one window keeps its total, and adds none of it to another.
func TestGroupThatCannotBeRead(t *testing.T) {
	totals := NewTotals(Options{})
	unread := ledger.Cgroup{Path: "/a"}
	for tick, groups := range [][]ledger.Cgroup{
		{unread, group("/a/b", 1), group("/c", 2), group("/c/d", 1)},
		{unread, group("/a/b", 1), {Path: "/c"}, group("/c/d", 1)},
		{unread, group("/a/b", 1), group("/c", 2), group("/c/d", 1)},
	} {
		l := window(tick)
		l.Cgroups = groups
		totals.Add(l)
	}
	got := maps.Collect(totals.Places.All())
	want := map[Place]float64{{Top: "/a/b"}: 3, {Top: "/c"}: 2, {Top: "/c/d"}: 3}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// If a place has several groups, its topmost group has all of the time; a place inside a place is not counted in both.
func TestNamedPlaces(t *testing.T) {
	pod := Place{Namespace: "shop", Pod: "cart", Top: "/pods/cart"}
	side := Place{Namespace: "shop", Pod: "cart", Container: "proxy", Top: "/pods/cart/proxy"}
	totals := NewTotals(Options{Name: func(path string) Place {
		switch path {
		case "/pods/cart", "/pods/cart/app":
			return pod
		case "/pods/cart/proxy":
			return side
		}
		return Place{Top: path}
	}})
	l := window(0)
	hard := func(g ledger.Cgroup, bytes int64) ledger.Cgroup {
		g.Memory = &ledger.Memory{Hard: &bytes}
		return g
	}
	l.Cgroups = []ledger.Cgroup{hard(group("/pods", 6), 60), hard(group("/pods/cart", 5), 50),
		hard(group("/pods/cart/app", 2), 20), hard(group("/pods/cart/proxy", 1), 10)}
	totals.Add(l)
	places, rest := totals.Memory(func(m *ledger.Memory) *int64 { return m.Hard })
	memory := maps.Collect(places)
	cpu := maps.Collect(totals.Places.All())
	for place, want := range map[Place]float64{{Top: "/pods"}: 1, pod: 4, side: 1} {
		if cpu[place] != want || memory[place] != int64(10*want) {
			t.Errorf("%+v has %g s and %d bytes, want %g and %g", place, cpu[place], memory[place], want, 10*want)
		}
	}
	if *rest != 0 || totals.Namespaces.Sum() != 6 || maps.Collect(totals.Namespaces.All())["shop"] != 5 {
		t.Errorf("rest %d bytes, namespaces %v", *rest, maps.Collect(totals.Namespaces.All()))
	}
	if got := totals.PlaceOf("/pods/cart/proxy/new"); got != side {
		t.Errorf("a group that is not known yet is in %+v, want the place around it", got)
	}
}

// TestMemoryOfOthers: the memory of places without a total is known only if that of each of them is known.
func TestMemoryOfOthers(t *testing.T) {
	for name, c := range map[string]struct{ biggest, other, another, want *int64 }{
		"known":             {new(int64(50)), new(int64(3)), new(int64(4)), new(int64(7))},
		"not of one":        {new(int64(50)), new(int64(3)), nil, nil},
		"of none":           {new(int64(50)), nil, nil, nil},
		"not of the listed": {nil, new(int64(3)), new(int64(4)), new(int64(7))},
	} {
		totals := NewTotals(Options{Most: 1, Name: func(path string) Place { return Place{Top: path} }})
		l := window(0)
		for i, hard := range []*int64{c.biggest, c.other, c.another} {
			g := group(fmt.Sprint("/", i), float64(3-i))
			g.Memory = &ledger.Memory{Hard: hard}
			l.Cgroups = append(l.Cgroups, g)
		}
		totals.Add(l)
		_, rest := totals.Memory(func(m *ledger.Memory) *int64 { return m.Hard })
		if known.Or(rest, -1) != known.Or(c.want, -1) {
			t.Errorf("%s: %d bytes, want %d; -1 is unknown", name, known.Or(rest, -1), known.Or(c.want, -1))
		}
	}
}

// MemoryVersion changes whenever the memory changes, and stays the same while ledgers have the same memory.
func TestMemoryVersion(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 4))
		named := 0 // groups of which the name is known
		totals := NewTotals(Options{Most: 3, Name: func(path string) Place {
			if p := (Place{Top: path}); int(path[1]-'0') >= named {
				return p
			}
			return Place{Top: path, Unit: "unit"}
		}})
		memory := make([]*ledger.Memory, 6)
		type said struct {
			places map[Place]int64
			rest   int64
		}
		was := map[uint64]said{}
		for tick := range 200 {
			if random.IntN(3) == 0 {
				named = random.IntN(3)
				memory[random.IntN(len(memory))] = &ledger.Memory{Hard: new(int64(random.IntN(100)))}
			}
			l := window(tick)
			for i, m := range memory[:3+2*random.IntN(5)/4] {
				g := group(fmt.Sprintf("/%d", i%3)+strings.Repeat("/in", i/3), random.Float64())
				g.Memory, g.Vanished = m, random.IntN(20) == 0
				l.Cgroups = append(l.Cgroups, g)
			}
			random.Shuffle(len(l.Cgroups), func(i, j int) { l.Cgroups[i], l.Cgroups[j] = l.Cgroups[j], l.Cgroups[i] })
			totals.Add(l)
			places, rest := totals.Memory(func(m *ledger.Memory) *int64 { return m.Hard })
			now, version := said{maps.Collect(places), known.Or(rest, -1)}, totals.MemoryVersion()
			if before, had := was[version]; had && (!maps.Equal(before.places, now.places) || before.rest != now.rest) {
				t.Fatalf("seed %d, tick %d: %+v and %+v have the same version", seed, tick, before, now)
			}
			was[version] = now
		}
		if len(was) > 195 {
			t.Errorf("seed %d: no version stayed", seed)
		}
	}
}

func TestLongestStall(t *testing.T) {
	totals := NewTotals(Options{})
	if _, known := totals.LongestStall(); known {
		t.Error("a stall is known before the first ledger")
	}
	for tick, s := range []float64{0.5, 0.1, 0.2} {
		l := window(40 * tick)
		l.Noise = &ledger.Noise{LongestSeconds: s}
		totals.Add(l)
	}
	if got, known := totals.LongestStall(); !known || got != 0.2 {
		t.Errorf("the longest stall of the last minute is %g s, want 0.2", got)
	}
}

// Gap has the time between two windows; what was used in it is in no total.
func TestGap(t *testing.T) {
	totals := NewTotals(Options{})
	for _, at := range []int{0, 1, 4, 5} {
		totals.Add(window(at))
	}
	if totals.Gap != 2*time.Second {
		t.Errorf("the gap is %v, want 2s", totals.Gap)
	}
}

// The components add up to all attributed CPU time and all known run time of programs, even if a group or a program of
// one is gone before the end of the window and its counter is unknown.
func TestComponentsSum(t *testing.T) {
	sidecar := ledger.Charged{Charge: ledger.ChargeTare, Component: "sidecar"}
	agent := ledger.Charged{Charge: ledger.ChargeTare, Component: "agent"}
	totals := NewTotals(Options{})
	used, ran := 0.0, 0.0
	for tick := range 4 {
		gone := tick%2 == 1
		l := window(tick)
		l.CPU.Attributed = 10
		used += l.CPU.Attributed
		l.Cgroups = []ledger.Cgroup{group("/pods", 4), group("/pods/a", 1), group("/pods/b", 2), group("/pods/b/agent", 0.5)}
		l.Cgroups[1].Charged, l.Cgroups[2].Charged, l.Cgroups[3].Charged = sidecar, sidecar, agent
		l.Programs = []ledger.Program{{ID: 1, Charged: sidecar, RunSeconds: new(0.25), RunCount: new(uint64(1))},
			{ID: 2, Charged: sidecar, RunSeconds: new(0.5), RunCount: new(uint64(1))}}
		ran += 0.25
		if gone {
			l.Cgroups[1].CPUSeconds, l.Cgroups[1].Vanished = nil, true
			l.Cgroups[3].CPUSeconds, l.Cgroups[3].Vanished = nil, true
			l.Programs[1].RunSeconds, l.Programs[1].Unloaded = nil, true
		} else {
			ran += 0.5
		}
		l.AddComponents()
		totals.Add(l)
	}
	got := maps.Collect(totals.Components.All())
	want := map[ledger.Charged]float64{sidecar: 2*2.5 + 2*2, agent: 2 * 0.5, {}: 2*7 + 2*8, {Charge: ledger.ChargeSelf}: 0}
	for c, seconds := range want {
		if math.Abs(got[c]-seconds) > 1e-9 {
			t.Errorf("%+v used %g s, want %g", c, got[c], seconds)
		}
	}
	if sum := totals.Components.Sum(); math.Abs(sum-used) > 1e-9 {
		t.Errorf("components used %g s in all, want %g", sum, used)
	}
	if sum := totals.ComponentsBPF.Sum(); math.Abs(sum-ran) > 1e-9 {
		t.Errorf("programs of components ran for %g s, want %g", sum, ran)
	}
}

// If the counter of a component is unknown in one window, what another used inside it is not subtracted from it.
func TestComponentAroundAnother(t *testing.T) {
	around := ledger.Charged{Charge: ledger.ChargeTare, Component: "around"}
	inside := ledger.Charged{Charge: ledger.ChargeTare, Component: "inside"}
	totals := NewTotals(Options{})
	for tick := range 3 {
		l := window(tick)
		l.CPU.Attributed = 10
		l.Cgroups = []ledger.Cgroup{group("/a", 3), group("/a/b", 1)}
		l.Cgroups[0].Charged, l.Cgroups[1].Charged = around, inside
		if tick == 1 {
			l.Cgroups[0].CPUSeconds, l.Cgroups[0].CPUReset = nil, true
		}
		l.AddComponents()
		totals.Add(l)
	}
	got := maps.Collect(totals.Components.All())
	if got[around] != 4 || got[inside] != 3 || got[ledger.Charged{}] != 23 {
		t.Errorf("%v, want 4 s around, 3 inside and 23 that no rule names", got)
	}
}
