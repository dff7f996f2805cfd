package live

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tare/internal/scale/attribution"
	"tare/internal/scale/ledger"
)

// row returns a program's row in a ledger: its run time in seconds, and the number of samples by group; "" means an
// unknown group.
func row(id uint32, s float64, seen map[string]int) ledger.Program {
	runs := uint64(s * 1e6)
	p := ledger.Program{ID: id, Tag: "t", RunSeconds: &s, RunCount: &runs}
	for path, n := range seen {
		one := ledger.Seen{Context: ledger.Task, Samples: n}
		if path != "" {
			one.Cgroup = &path
		}
		p.Seen = append(p.Seen, one)
	}
	return p
}

// parts returns the parts of a program's run time, in seconds.
func parts(t *Totals, key ProgramKey) (run, paid, unsplit, pending float64) {
	run, unsplit = maps.Collect(t.Programs.All())[key], maps.Collect(t.Unsplit.All())[key]
	for payer, s := range t.Payers.All() {
		if payer.Program == key {
			paid += s
		}
	}
	t.Each(func(k ProgramKey, p Program) {
		if k == key {
			pending = p.Pending
		}
	})
	return run, paid, unsplit, pending
}

func added(t *Totals, tick int, groups []string, programs ...ledger.Program) {
	l := window(tick)
	l.Programs = programs
	for _, path := range groups {
		l.Cgroups = append(l.Cgroups, group(path, 0))
	}
	t.Add(l)
}

// Run time waits for enough samples, over many windows, and is then split by all these samples.
func TestRareProgramsAreSplit(t *testing.T) {
	totals := NewTotals(Options{})
	key, groups := ProgramKey{1, "t"}, []string{"/a", "/b"}
	for tick := range 10 { // 2 + 1 samples in each tick
		added(totals, tick, groups, row(1, 1, map[string]int{"/a": 2, "/b": 1}))
		run, paid, unsplit, pending := parts(totals, key)
		if run != float64(tick+1) || unsplit != 0 || math.Abs(paid+pending-run) > 1e-9 {
			t.Fatalf("tick %d: run %g, paid %g, not split %g, pending %g", tick, run, paid, unsplit, pending)
		}
		if want := tick >= 8; (paid > 0) != want { // 27 samples
			t.Errorf("tick %d: paid %g", tick, paid)
		}
	}
	paid := maps.Collect(totals.Payers.All())
	a, b := paid[Payer{key, Place{Top: "/a"}}], paid[Payer{key, Place{Top: "/b"}}]
	if math.Abs(a-6) > 1e-6 || math.Abs(b-3) > 1e-6 {
		t.Errorf("a pays %g s and b %g; want 6 and 3 of the 9 that are split", a, b)
	}
}

// A place has a separate series as a payer only after MinShare samples saw the program there. Until then its part is
// pending.
func TestPayersAreHeldBack(t *testing.T) {
	totals := NewTotals(Options{})
	key, groups := ProgramKey{1, "t"}, []string{"/a", "/b"}
	rare := Payer{key, Place{Top: "/b"}}
	for tick := range 3 {
		added(totals, tick, groups, row(1, 1, map[string]int{"/a": 48, "/b": 2}))
		got, named := maps.Collect(totals.Payers.All())[rare]
		if want := 2*(tick+1) >= attribution.MinShare; named != want {
			t.Errorf("tick %d: a place with %d samples is named: %v", tick, 2*(tick+1), named)
		}
		_, _, _, pending := parts(totals, key)
		if math.Abs(got+pending-0.04*float64(tick+1)) > 1e-6 {
			t.Errorf("tick %d: it pays %g s and %g are pending", tick, got, pending)
		}
	}
}

// Run time of a program that no sample sees does not stay pending forever.
func TestPatience(t *testing.T) {
	totals := NewTotals(Options{})
	key := ProgramKey{1, "t"}
	for tick := 0; time.Duration(tick)*time.Second <= patience; tick += 30 {
		added(totals, tick, nil, row(1, 1, nil))
	}
	run, paid, unsplit, pending := parts(totals, key)
	if paid != 0 || pending > 1 || math.Abs(unsplit+pending-run) > 1e-9 || unsplit == 0 {
		t.Errorf("after ten minutes: run %g, paid %g, not split %g, pending %g", run, paid, unsplit, pending)
	}
}

// A program with a sole place needs no samples.
func TestSolePayer(t *testing.T) {
	totals := NewTotals(Options{})
	p := row(1, 2, nil)
	path := "/a"
	p.Shares = []ledger.Share{{Cgroup: &path, Seconds: 2, Method: ledger.Sole}}
	added(totals, 0, []string{"/a"}, p)
	if got := maps.Collect(totals.Payers.All())[Payer{ProgramKey{1, "t"}, Place{Top: "/a"}}]; got != 2 {
		t.Errorf("the only payer has %g s, want 2", got)
	}
}

// A group that appeared after the last search for groups pays as part of the place around it, where its CPU time is
// counted.
func TestPayerThatIsNotKnownYet(t *testing.T) {
	totals := NewTotals(Options{})
	added(totals, 0, []string{"/a"}, row(1, 1, map[string]int{"/a/new": 30}))
	if got := maps.Collect(totals.Payers.All())[Payer{ProgramKey{1, "t"}, Place{Top: "/a"}}]; got != 1 {
		t.Errorf("the place around it pays %g s, want 1: %v", got, maps.Collect(totals.Payers.All()))
	}
}

// Programs and groups come and go. In any order, run time is paid, unsplit or pending, for each existing program and in
// total, and no sum decreases. Every total has a name until it is added to those of ended keys.
func TestProgramsSum(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 4))
		totals := NewTotals(Options{Most: []int{0, 3}[random.IntN(2)]})
		var all, payers, unsplit float64
		gone := map[uint32]bool{}
		next := uint32(5)
		for tick := range 120 {
			var programs []ledger.Program
			var groups []string
			for _, path := range []string{"/a", "/b", "/c", "/d"} {
				if random.IntN(4) > 0 {
					groups = append(groups, path)
				}
			}
			for id := range next {
				if gone[id] {
					continue
				}
				seen := map[string]int{}
				for _, path := range []string{"/a", "/b", "/c", "/d", "", attribution.Idle} {
					seen[path] = random.IntN(4) * random.IntN(4)
				}
				p := row(id, random.Float64(), seen)
				if random.IntN(20) == 0 {
					gone[id], p.Unloaded = true, true
					if random.IntN(2) == 0 {
						p.RunSeconds, p.RunCount = nil, nil
					}
					next++
				}
				if p.RunSeconds != nil {
					all += seconds(ns(*p.RunSeconds))
				}
				programs = append(programs, p)
			}
			added(totals, tick, groups, programs...)
			if totals.Payers.Sum() < payers || totals.Unsplit.Sum() < unsplit {
				t.Fatalf("seed %d, tick %d: a sum fell", seed, tick)
			}
			payers, unsplit = totals.Payers.Sum(), totals.Unsplit.Sum()
			pending, named := 0.0, map[ProgramKey]bool{}
			totals.Each(func(key ProgramKey, p Program) { pending, named[key] = pending+p.Pending, true })
			if math.Abs(totals.Programs.Sum()-all) > 1e-6 || math.Abs(payers+unsplit+pending-all) > 1e-6 {
				t.Fatalf("seed %d, tick %d: programs ran %g s; their sum is %g, %g are paid, %g not split, %g pending", seed, tick,
					all, totals.Programs.Sum(), payers, unsplit, pending)
			}
			for key := range totals.Programs.All() {
				if !named[key] {
					t.Fatalf("seed %d, tick %d: program %d has a total and no name", seed, tick, key.ID)
				}
			}
			for key := range totals.Unsplit.All() {
				if !named[key] {
					t.Fatalf("seed %d, tick %d: program %d has time that is not split and no name", seed, tick, key.ID)
				}
			}
			for payer := range totals.Payers.All() {
				if !named[payer.Program] {
					t.Fatalf("seed %d, tick %d: program %d has a payer and no name", seed, tick, payer.Program.ID)
				}
			}
		}
		if n := len(totals.programs); n > int(next) {
			t.Errorf("seed %d: %d programs are kept", seed, n)
		}
	}
}

// Run time in windows without a sampler is unsplit, however many samples later windows have.
func TestWithoutSamplerUnsplit(t *testing.T) {
	totals := NewTotals(Options{})
	add := func(at int, sampler string, seconds float64, samples int) {
		l := window(at)
		l.Host.Sampler = sampler
		l.Cgroups = []ledger.Cgroup{group("/y", 1)}
		p := ledger.Program{ID: 1, RunSeconds: &seconds, RunCount: new(uint64(1)),
			Shares: []ledger.Share{{Seconds: seconds}}}
		if samples > 0 {
			p.Seen = []ledger.Seen{{Cgroup: new("/y"), Context: ledger.Task, Samples: samples}}
		}
		l.Programs, l.CPU.BPFUnsplit = []ledger.Program{p}, new(float64)
		totals.Add(l)
	}
	add(0, "", 60, 0)
	add(1, "cpu-clock", 0.5, 30)
	if paid, unsplit := totals.Payers.Sum(), totals.Unsplit.Sum(); paid != 0.5 || unsplit != 60 {
		t.Errorf("paid %v s, want 0.5; unsplit %v s, want 60", paid, unsplit)
	}
}

// A phase with statistics represents its cycle: in an unfinished cycle the sum is within its error of the truth, and a
// phase that did not end in time does not represent more.
func TestDutyInsideCycles(t *testing.T) {
	totals := NewTotals(Options{Duty: Duty{On: 10 * time.Second, Every: 60 * time.Second}})
	at, truth := 0, 0.0
	add := func(seconds int, counted bool) {
		l := window(at)
		l.Window.Seconds = float64(seconds)
		l.Window.End = l.Window.Start.Add(time.Duration(seconds) * time.Second)
		p := ledger.Program{ID: 1}
		if counted {
			p.RunSeconds, p.RunCount, l.CPU.BPFUnsplit = new(0.1*float64(seconds)), new(uint64(seconds)), new(float64)
		}
		l.Programs = []ledger.Program{p}
		totals.Add(l)
		at, truth = at+seconds, truth+0.1*float64(seconds)
	}
	for range 5 {
		add(10, true)
		add(20, false)
		totals.Each(func(_ ProgramKey, p Program) {
			if got := totals.Programs.Sum(); p.ScalingError != nil && math.Abs(got-truth) > *p.ScalingError {
				t.Errorf("after %d s: %v s, in truth %v, with an error of %v", at, got, truth, *p.ScalingError)
			}
		})
		add(30, false)
	}
	before := totals.Programs.Sum()
	add(40, true) // the agent was stopped during the phase
	if grew := totals.Programs.Sum() - before; math.Abs(grew-6) > 1e-6 {
		t.Errorf("40 s with statistics, of 10 that were meant, stand for %v s of run time, want 6", grew)
	}
}

// Runs and samples are kept for each program that has a total, and for all others together, so their sums are exact.
func TestCountsSum(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 7))
		totals := NewTotals(Options{Most: 1 + random.IntN(4)})
		var runs, samples, before uint64
		for tick := range 60 {
			var programs []ledger.Program
			for id := range uint32(8) {
				if random.IntN(5) == 0 {
					continue
				}
				p := row(1+id, random.Float64(), map[string]int{"/a": attribution.MinSamples})
				runs, samples = runs+*p.RunCount, samples+attribution.MinSamples
				programs = append(programs, p)
			}
			added(totals, tick, []string{"/a"}, programs...)
			for what, c := range map[string]struct {
				*Counts[ProgramKey]
				want uint64
			}{"runs": {totals.Runs, runs}, "samples": {totals.Samples, samples}} {
				rest, any := c.Rest()
				sum := rest + c.Gone()
				for key, n := range c.All() {
					sum += n
					if !totals.Programs.Has(key) {
						t.Fatalf("seed %d, tick %d: program %d has %s and no total", seed, tick, key.ID, what)
					}
				}
				if sum != c.want || any != (rest > 0) {
					t.Fatalf("seed %d, tick %d: %d %s, %d of others (%v), want %d", seed, tick, sum, what, rest, any, c.want)
				}
			}
			if rest, _ := totals.Runs.Rest(); rest < before {
				t.Fatalf("seed %d, tick %d: the runs of others fell", seed, tick)
			} else {
				before = rest
			}
		}
	}
}

// A program that came and went between two readings is counted when a newer one is seen. One that was unloaded is
// counted if its last run time is unknown.
func TestMissedPrograms(t *testing.T) {
	totals := NewTotals(Options{})
	lost := ledger.Program{ID: 9, Tag: "t", Unloaded: true}
	for tick, c := range []struct {
		programs []ledger.Program
		want     Missed
	}{
		{[]ledger.Program{row(5, 1, nil), row(3, 1, nil)}, Missed{}},
		{[]ledger.Program{row(5, 1, nil), row(6, 1, nil)}, Missed{}},
		{[]ledger.Program{row(6, 1, nil)}, Missed{}}, // 7 and 8 came and went
		{[]ledger.Program{row(6, 1, nil), row(9, 1, nil), row(11, 1, nil)}, Missed{Unseen: 3}},
		{nil, Missed{Unseen: 3}}, // they could not be read
		{[]ledger.Program{row(6, 1, nil), lost, row(12, 1, nil)}, Missed{Unloaded: 1, Unseen: 3}},
		{[]ledger.Program{row(6, 1, nil)}, Missed{Unloaded: 1, Unseen: 3}},
	} {
		l := window(tick)
		l.Programs, l.CPU.BPFUnsplit = c.programs, new(float64)
		totals.Add(l)
		if totals.Missed != c.want {
			t.Errorf("tick %d: %+v, want %+v", tick, totals.Missed, c.want)
		}
	}
}
