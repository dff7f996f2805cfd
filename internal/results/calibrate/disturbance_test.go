package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/spec"
	"tare/internal/lib/delay"
	"tare/internal/lib/fault"
	"tare/internal/scale/ledger"
)

// newBench returns a bench without control groups, for weights that a test plants itself.
func newBench() *bench {
	return &bench{
		o: Options{Quick: true, Say: func(string, string) {}}, children: map[int]bool{}, began: time.Now(),
		report: &Report{Machine: Machine{CPUs: 2}},
	}
}

// neighbourhood returns what a witness sees in a second on two CPUs if a neighbour uses half of their time.
func neighbourhood() observed {
	return observed{seconds: 1, noise: &ledger.Noise{
		Witness: "steal-clock", StolenSeconds: 0.02, Stalls: []ledger.Stall{}, Occupied: []ledger.Stall{},
		Busiest: []ledger.Occupant{
			{PID: 70, Comm: "neighbour-bin", Cgroup: "/", Seconds: 1},
			{PID: os.Getpid(), Comm: "tare", Cgroup: "/", Seconds: 0.5},
			{PID: 80, Comm: "kworker/0:1", Cgroup: "/", Seconds: 0.3},
		},
	}}
}

func TestDisturbanceOf(t *testing.T) {
	ours := func(pid int, group string) bool { return pid == 1 || group == "/tare" }
	held := func(pid int, group string, seconds float64) ledger.Stall {
		return ledger.Stall{PID: pid, Cgroup: group, Comm: "x", Seconds: seconds, Cause: ledger.Neighbour}
	}
	for _, tt := range []struct {
		name            string
		windows         []observed
		ok              bool
		stolen, foreign float64
		culprits        string
	}{
		{"no window", nil, false, 0, 0, ""},
		{"a window without a witness", []observed{neighbourhood(), {seconds: 1}}, false, 0, 0, ""},
		{"an idle machine", []observed{{&ledger.Noise{}, 1}}, true, 0, 0, ""},
		{"the scale and the kernel's threads are no neighbours", []observed{{&ledger.Noise{Busiest: []ledger.Occupant{
			{PID: 1, Comm: "tare", Seconds: 1}, {PID: 9, Cgroup: "/tare", Comm: "tare", Seconds: 1},
			{PID: 8, Comm: "ksoftirqd/0", Seconds: 1},
		}}, 1}}, true, 0, 0, ""},
		{"the busiest three, over two windows", []observed{
			{&ledger.Noise{StolenSeconds: 0.1, Busiest: []ledger.Occupant{
				{PID: 5, Comm: "a", Seconds: 0.1}, {PID: 6, Comm: "b", Seconds: 0.2},
				{PID: 7, Comm: "c", Seconds: 0.3}, {PID: 8, Comm: "d", Seconds: 0.4},
			}}, 1},
			{&ledger.Noise{StolenSeconds: 0.2, Busiest: []ledger.Occupant{{PID: 5, Comm: "a", Seconds: 0.5}}}, 1},
		}, true, 0.3, 1.5, "a d c"},
		{"one who was seen in no look but held a CPU", []observed{{&ledger.Noise{Occupied: []ledger.Stall{
			held(5, "", 0.2), held(1, "", 0.5), held(9, "/tare", 0.5),
		}}, 1}}, true, 0, 0.2, ""},
		{"too little to be named", []observed{
			{&ledger.Noise{Busiest: []ledger.Occupant{{PID: 5, Comm: "a", Seconds: 0.005}}}, 1},
		}, true, 0, 0.005, ""},
	} {
		d, ok := disturbanceOf(tt.windows, 2, ours)
		var names []string
		for _, c := range d.culprits {
			names = append(names, c.Comm)
		}
		if ok != tt.ok || math.Abs(d.stolen-tt.stolen) > 1e-9 || math.Abs(d.foreign-tt.foreign) > 1e-9 ||
			strings.Join(names, " ") != tt.culprits {
			t.Errorf("%s: %+v, %v", tt.name, d, ok)
		}
	}
}

// TestDisturbanceByCounters: without a witness the kernel's counters say how much CPU time others had, but not who they
// were.
func TestDisturbanceByCounters(t *testing.T) {
	before := used{busy: 100, capacity: 1000, ours: 10, stolen: 1}
	for _, tt := range []struct {
		after           used
		stolen, foreign float64
	}{
		{used{busy: 110, capacity: 1020, ours: 15, stolen: 1}, 0, 5},
		{used{busy: 110, capacity: 1020, ours: 15, stolen: 4}, 3, 2},
		{used{busy: 104, capacity: 1020, ours: 15, stolen: 1}, 0, 0}, // coarse counters: -1 without the limit
		{before, 0, 0},
	} {
		d := tt.after.disturbance(before)
		if d.witness != counters || d.stolen != tt.stolen || d.foreign != tt.foreign || len(d.culprits) != 0 {
			t.Errorf("%+v: %+v", tt.after, d)
		}
		var s stood
		if s.disturbedBy(d); math.Abs(s.awaySeconds-tt.stolen-tt.foreign) > 1e-9 ||
			math.Abs(s.away*d.capacity-s.awaySeconds) > 1e-9 {
			t.Errorf("%+v: %+v", d, s)
		}
	}
}

func TestSpansOf(t *testing.T) {
	ours := func(pid int, _ string) bool { return pid == 1 }
	stolen := func(from, to int64, seconds float64) ledger.Stall {
		return ledger.Stall{From: from, To: to, Seconds: seconds, Cause: ledger.Hypervisor}
	}
	held := func(pid int, comm string, from, to int64) ledger.Stall {
		return ledger.Stall{PID: pid, Comm: comm, From: from, To: to, Seconds: 1, Cause: ledger.Neighbour}
	}
	n := &ledger.Noise{
		Stalls: []ledger.Stall{stolen(10, 20, 1), stolen(40, 50, 1e-4), stolen(60, 70, 1)},
		Occupied: []ledger.Stall{held(5, "x", 15, 30), held(1, "tare", 30, 60),
			held(6, "kworker/1:0", 30, 60), held(7, "y", 70, 75)},
	}
	got, known := spansOf(n, ours, anyCPU, 1e-3)
	if want := []span{{10, 30}, {60, 75}}; !known || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, known, want)
	}
	n.Stalls[0].CPU, n.Occupied[3].CPU = 1, 1
	if on, _ := spansOf(n, ours, 1, 1e-3); !slices.Equal(on, []span{{10, 20}, {70, 75}}) {
		t.Errorf("on CPU 1: %v", on)
	}
	for _, c := range []struct {
		from, to int64
		want     bool
	}{{0, 10, false}, {0, 11, true}, {30, 60, false}, {29, 30, true}, {12, 13, true}, {0, 100, true}, {75, 80, false}} {
		if touched(got, c.from, c.to) != c.want {
			t.Errorf("from %d to %d: want %v", c.from, c.to, c.want)
		}
	}
	for _, n := range []*ledger.Noise{nil, {StallsOmitted: 1}, {OccupiedMissed: 1}} {
		if spans, known := spansOf(n, ours, anyCPU, 0); known || spans != nil {
			t.Errorf("%+v: %v is taken for all there is", n, spans)
		}
	}
}

// TestUndisturbed: starts are chosen by what the witness saw, and never by their lag.
func TestUndisturbed(t *testing.T) {
	const us = int64(1000)
	spans := []span{{1000 * us, 2000 * us}, {5000 * us, 5100 * us}}
	starts := []start{
		{500 * us, 501 * us},
		{930 * us, 931 * us},
		{990 * us, 2010 * us},  // touched
		{1500 * us, 2011 * us}, // touched: due in the first span
		{2005 * us, 2012 * us}, // in the backlog of the touched ones
		{2040 * us, 2090 * us}, // the pacer had to wake in the first span for it
		{2080 * us, 2091 * us}, // due before the previous start had come
		{2100 * us, 2101 * us},
		{2120 * us, 2121 * us}, // due sooner after the previous start than the pacer spins
		{2170 * us, 2171 * us},
		{3000 * us, 4500 * us}, // late, although nothing touched it
		{3100 * us, 4501 * us}, // waited for the previous start, which nothing touched either
		{5150 * us, 5151 * us}, // the pacer had to wake in the second span for it
	}
	var due []int64
	for _, s := range undisturbed(starts, spans) {
		due = append(due, s.due/us)
	}
	if want := []int64{500, 930, 2100, 2120, 2170, 3000, 3100}; !slices.Equal(due, want) {
		t.Errorf("undisturbed are those due at %v us, want %v", due, want)
	}
	if got := undisturbed(starts, nil); !slices.Equal(got, starts) {
		t.Errorf("of a machine that never stood still %d of %d", len(got), len(starts))
	}
}

func TestMedianOfQuantiles(t *testing.T) {
	values := make([]float64, 30)
	for i := range values {
		values[i] = float64(i % 10)
		if i >= 20 {
			values[i] = 100 // a burst spoils a window
		}
	}
	for _, c := range []struct {
		values []float64
		each   int
		q      float64
		want   float64
	}{
		{values, 10, 0.5, 5}, {values, 10, 0.99, 9}, {values[:10], 100, 0.5, 5}, {values[:10], 10, 1, 9},
		{[]float64{3}, 10, 0.99, 3},
	} {
		if got := medianOfQuantiles(c.values, c.each, c.q); got != c.want {
			t.Errorf("quantile %g of %d by %d: %g, want %g", c.q, len(c.values), c.each, got, c.want)
		}
	}
}

// TestSpoilt: a stall of the server can be weighed if nothing happened at its end, however often a CPU was away before.
func TestSpoilt(t *testing.T) {
	const ms = int64(time.Millisecond)
	stall := delay.Stall{For: 100 * time.Millisecond, Every: 500 * time.Millisecond}
	from := 7 * ms
	at := func(a, b int64) []span { return []span{{from + a*ms, from + b*ms}} }
	for _, tt := range []struct {
		name  string
		spans []span
		begin int64 // ms after from
		d     time.Duration
		want  bool
	}{
		{"a quiet machine", nil, 500, stall.For, false},
		{"within the stall", at(510, 590), 500, stall.For, false},
		{"from before the stall until within it", at(450, 590), 500, stall.For, false},
		{"at its end", at(590, 599), 500, stall.For, true},
		{"just after it", at(601, 605), 500, stall.For, true},
		{"when all have been answered", at(603, 700), 500, stall.For, false},
		{"at the end of the stall before", at(99, 101), 500, stall.For, false},
		{"at the end of one of two", at(1099, 1101), 300, time.Second, true},
		{"between two, long enough to look like one", at(700, 760), 300, time.Second, true},
		{"between two, for a moment", at(700, 710), 300, time.Second, false},
		{"before the window", at(200, 299), 300, time.Second, false},
		{"for the whole window", at(0, 2000), 300, time.Second, true},
	} {
		if got := spoilt(tt.spans, stall, from, from+tt.begin*ms, tt.d); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestFirstRequest(t *testing.T) {
	const ms = int64(time.Millisecond)
	stall := delay.Stall{For: 100 * time.Millisecond, Every: 500 * time.Millisecond}
	for _, c := range []struct {
		atLeast int64
		d       time.Duration
		want    int64
	}{
		{0, time.Second, 300}, {301 * ms, time.Second, 800}, {2000 * ms, time.Second, 2300},
		{0, stall.For, 500}, {501 * ms, stall.For, 1000}, {1000 * ms, stall.For, 1000},
	} {
		if got := firstRequest(stall, 50*ms, 50*ms+c.atLeast, c.d) - 50*ms; got != c.want*ms {
			t.Errorf("%v from %d ms on: %d ms, want %d", c.d, c.atLeast/ms, got/ms, c.want)
		}
	}
	// Such a window holds one whole stall, and the first request waits for all of it.
	if longest, slow := stallTruth(stall, 0, 500*ms, stall.For, stall.For/2); longest != 0.1 || slow != 25 {
		t.Errorf("longest %g s, %d slow", longest, slow)
	}
}

// TestNotJudgedNamesCulprits: a weight that is not judged names who disturbed it, from what the witness saw in the
// weight's windows.
func TestNotJudgedNamesCulprits(t *testing.T) {
	b := newBench()
	err := b.weigh(t.Context(), "cpu", planting{"a test", func(context.Context) ([]Weight, error) {
		b.observe(neighbourhood())
		allowed := Tolerance{Absolute: 0.5}
		return []Weight{known("off", "s", 0, 1, allowed, "").fragile(), known("right", "s", 0, 0, allowed, "")}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	off, right := b.report.Weights[0], b.report.Weights[1]
	if off.Verdict != Disturbed || off.Cause != ledger.Neighbour || off.Witness != "steal-clock" ||
		!slices.Equal(off.Culprits, []Culprit{{Comm: "neighbour-bin", Cgroup: "/", Part: 0.5}}) {
		t.Errorf("%+v", off)
	}
	if math.Abs(off.Others-0.51) > 1e-9 || math.Abs(off.Stolen-0.01) > 1e-9 {
		t.Errorf("others took %g, the hypervisor %g of it", off.Others, off.Stolen)
	}
	if right.Verdict != Pass || right.Culprits != nil {
		t.Errorf("%+v", right)
	}
}

// TestFaultsShowBesideANeighbour: calibration finds each fault (exit code 5), even if others use half of the machine
// and the kernel throttles the sampler.
func TestFaultsShowBesideANeighbour(t *testing.T) {
	for _, tt := range []struct {
		fault Fault
		plant func(b *bench) ([]Weight, error)
	}{
		{FastClock, func(b *bench) ([]Weight, error) {
			w, err := b.rate(context.Background(), 50*time.Millisecond)
			return []Weight{w}, err
		}},
		{DropSamples, func(*bench) ([]Weight, error) {
			return placed("program", droppedSamples(true), "", empty{call: 1e-6}), nil
		}},
		{MapsTwice, func(*bench) ([]Weight, error) {
			bytes := uint64(mapEntries * 8)
			l := &ledger.Ledger{Maps: []ledger.Map{{ID: 3, Bytes: &bytes, UsedBy: []uint32{7, 8}}}}
			l.Maps = oncePerProgram(l.Maps)
			return mapWeights(l, 3), nil
		}},
	} {
		b := newBench()
		b.o.Fault = tt.fault
		tried := 0
		err := b.weigh(t.Context(), "bpf", planting{"a test", func(context.Context) ([]Weight, error) {
			tried++
			b.observe(neighbourhood())
			return tt.plant(b)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if code := fault.CodeOf(b.report.Verdict()); code != fault.Exceeded {
			t.Errorf("%s: code %d: %+v", tt.fault, code, b.report.Weights)
		}
		if tried != 1 {
			t.Errorf("%s: tried %d times, although no try can change the verdict", tt.fault, tried)
		}
	}
}

// droppedSamples returns a program that ran in two groups, of which the sampler saw only one, on a machine whose
// samples do not measure time.
func droppedSamples(withheld bool) weighed {
	a, other := "/a", "/b"
	seconds := 1.0
	r := plantedResult{Times: 4901, Fastest: 50e-6, CPUSeconds: 0.25}
	return weighed{
		paths: []string{a, other}, results: []plantedResult{{Times: 14703, Fastest: 50e-6, CPUSeconds: 0.75}, r},
		hz: 997, withheld: withheld,
		program: &ledger.Program{
			RunSeconds: &seconds, Seen: []ledger.Seen{{Cgroup: &a, Context: ledger.Task, Samples: 700}},
			Shares: []ledger.Share{{Cgroup: &a, Context: ledger.Task, Seconds: 1, Lo: 0.99, Hi: 1}},
		},
	}
}

// TestSeenOfShortPrograms: if noise made the steps of a program seem longer, the program has fewer steps. Even such
// short programs show that the samples of a CPU are not read.
func TestSeenOfShortPrograms(t *testing.T) {
	for _, fastest := range []float64{50e-6, 25e-6, 13e-6} { // with steps 1, 2 and 4 times as long
		w := droppedSamples(false)
		w.results[1].Fastest = fastest
		ws := seen("program", w, empty{call: 1e-6})
		last := ws[len(ws)-1]
		if last.judge(stood{away: 0.9}); len(ws) != 2 || last.Verdict != Fail {
			t.Errorf("%g s: %d weights, %s", fastest, len(ws), last.Verdict)
		}
	}
}

// TestErrorsDoNotHideFailures: a failure still counts if something else could not be weighed.
func TestErrorsDoNotHideFailures(t *testing.T) {
	broken := errors.New("broken")
	b := newBench()
	tried := 0
	err := b.weigh(t.Context(), "cpu", planting{"a test", func(context.Context) ([]Weight, error) {
		if tried++; tried > 1 {
			return nil, broken
		}
		b.observe(observed{&ledger.Noise{}, 1})
		return []Weight{known("off", "s", 0, 1, Tolerance{Absolute: 0.5}, "").estimated()}, nil
	}})
	if err != nil || tried != 2 || b.report.Failed != 1 || len(b.report.Warnings) != 1 {
		t.Errorf("%v after %d tries: %+v", err, tried, b.report)
	}
	if err := b.report.excuse([]error{broken}); err != nil || fault.CodeOf(b.report.Verdict()) != fault.Exceeded ||
		len(b.report.Warnings) != 2 {
		t.Errorf("%v: %+v", err, b.report)
	}
	if err := (&Report{}).excuse([]error{broken}); !errors.Is(err, broken) {
		t.Errorf("an error of a section without failures: %v", err)
	}
	if err := (&Report{}).excuse(nil); err != nil {
		t.Error(err)
	}
	err = newBench().weigh(t.Context(), "cpu",
		planting{"a test", func(context.Context) ([]Weight, error) { return nil, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("nothing was weighed: %v", err)
	}
}

// TestClosest: a machine that interrupts many pairs of readings does not widen the tolerance of the length of a second.
func TestClosest(t *testing.T) {
	now, calls := int64(0), 0
	clock := func() int64 {
		calls++
		now += 10
		if calls <= 2*1000 {
			now += int64(time.Millisecond)
		}
		return now
	}
	raw := func() int64 { return now }
	if at, other, apart := closest(clock, raw, 100); apart > 100 || other > at || at-other > 100 {
		t.Errorf("%d and %d, %d apart", at, other, apart)
	}
	calls = math.MinInt
	if _, _, apart := closest(clock, raw, 100); apart < int64(time.Millisecond) {
		t.Errorf("a clock that is never close: %d apart", apart)
	}
}

// TestRan: time that was stolen in the runs of a program is subtracted from the count of their time, within its
// uncertainty.
func TestRan(t *testing.T) {
	seconds, runs := 1.2, uint64(10000) // each run took 100 us, and stolen time added 20 us
	program := func(stolen *ledger.Interval) *ledger.Program {
		return &ledger.Program{RunSeconds: &seconds, RunCount: &runs, StolenSeconds: stolen}
	}
	for _, tt := range []struct {
		name   string
		stolen *ledger.Interval
		want   Verdict
	}{
		{"no witness", nil, Fail},
		{"all of it", &ledger.Interval{Value: 0.2, Lo: 0.19, Hi: 0.21}, Pass},
		{"some of it", &ledger.Interval{Value: 0.1, Lo: 0.09, Hi: 0.11}, Fail},
		{"nobody knows", &ledger.Interval{Value: 0.1, Lo: 0, Hi: 0.2}, Pass},
		{"next to nothing, which is not taken out", &ledger.Interval{Value: 0.01, Lo: 0, Hi: 0.9}, Fail},
	} {
		allowed := Tolerance{Absolute: 30e-9, Part: 0.05}
		w := known("run", "s", 100e-6, seconds/float64(runs), allowed, "").ran(program(tt.stolen))
		if w.judge(stood{}); w.Verdict != tt.want {
			t.Errorf("%s: %s, want %s: %g", tt.name, w.Verdict, tt.want, *w.Measured)
		}
	}
}

// TestNoiseSpec: the spec of the noise section is valid, with and without time to repeat trials.
func TestNoiseSpec(t *testing.T) {
	for percent, want := range map[int]float64{0: 0, 50: 0.5} {
		text := fmt.Appendf(nil, noiseSpec, 6, 400*time.Millisecond, percent)
		if s, err := spec.Parse("noise.yaml", text, nil); err != nil || s.Repeat != want {
			t.Errorf("%d %%: %+v, %v", percent, s, err)
		}
	}
}
