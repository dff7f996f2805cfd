package exec

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/known"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
)

func part(o param.Values) *kind.Part { return &kind.Part{Kind: kind.Find(kind.Load, Name), Options: o} }

// TestOptions: a storm becomes a rate of 0, and a spin of 0s is not the default.
func TestOptions(t *testing.T) {
	for _, c := range []struct {
		v    param.Values
		want Options
	}{
		{param.Values{"rate": "storm", "workers": "2"}, Options{Workers: 2}},
		{param.Values{"rate": "250", "spin": "20µs"}, Options{Rate: 250, Spin: 20 * time.Microsecond}},
		{param.Values{"rate": "storm", "spin": "0s"}, Options{Spin: -1}},
	} {
		if o := OptionsOf(c.v); !reflect.DeepEqual(o, c.want) {
			t.Errorf("%v: %+v", c.v, o)
		}
	}
}

// TestRefused: several loads are refused, because their events could not be distinguished in one count.
func TestRefused(t *testing.T) {
	err := asLoad{}.Check(param.Values{"count": "2"})
	if err == nil || !strings.Contains(err.Error(), `more "workers" instead of a "count"`) {
		t.Errorf("copies: %v", err)
	}
	s := &kind.Setup{Loads: map[string]*kind.Part{"execs": part(nil), "more": part(nil)}}
	if err := (asLoad{}).CheckSetup(s, "loads.execs", s.Loads["execs"]); err != nil {
		t.Errorf("the first load: %v", err)
	}
	err = asLoad{}.CheckSetup(s, "loads.more", s.Loads["more"])
	if err == nil || !strings.Contains(err.Error(), "a second load of kind exec") {
		t.Errorf("a second load: %v", err)
	}
}

// measuredExecs is a valid trial of 2 s at 1,000 execs per second, with 100 more in the warm-up.
func measuredExecs(t *testing.T) *measured.Measured {
	t.Helper()
	r := load.Result{
		Generator: Generator, Mode: load.Open, Seconds: 2, TargetRate: 1000, Rate: 1000,
		Intended: 2000, Sent: 2000, Done: 2000, Connections: 64, CPUSeconds: 0.2, CPUs: 1,
		Counts: map[string]float64{CountMade: 2100, CountFailed: 0, CountWorkers: 2},
	}
	owned(t, &r, 10*time.Microsecond)
	return &measured.Measured{
		Setup: &kind.Setup{
			Loads:    map[string]*kind.Part{"execs": part(nil)},
			Duration: 2 * time.Second,
			Gates: param.Values{"rate": "0.99", "errors": "0.001", "lag": "25ms", "drift": "0.25", "throttled": "1ms",
				"generator_cpu": "0.7", "connections": "1"},
		},
		Tree: "/tare",
		Trial: record.Trial{
			Loads:  map[string]load.Result{"execs": r},
			Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 2.002}},
			Events: &record.Events{Generated: 2100, KernelCount: &record.KernelCount{Counted: 2100}},
		},
	}
}

// owned adds a histogram by which the load itself began each exec late by the given time.
func owned(t *testing.T, r *load.Result, late time.Duration) {
	t.Helper()
	h := hdrhistogram.New(1, load.Longest, 3)
	if err := errors.Join(h.RecordValues(int64(late), 2000), r.SetHistogram(load.OwnLag, h)); err != nil {
		t.Fatal(err)
	}
}

// slowing returns slices of a window whose second half has half the execs of the first.
func slowing() []load.Slice {
	slices := make([]load.Slice, load.Slices)
	for i := range slices {
		slices[i] = load.Slice{Done: 200}
		if i >= len(slices)/2 {
			slices[i].Done = 100
		}
	}
	return slices
}

// TestCostOfExecs: the cost of the window is divided by all execs made in it, including those that were due in the
// warm-up.
func TestCostOfExecs(t *testing.T) {
	m := measuredExecs(t)
	r := m.Loads["execs"]
	r.Done, r.Finished = 1500, new(int64(1600))
	m.Loads["execs"] = r
	if rate, known := kiloeventRate(m); !known || rate != 0.8 {
		t.Errorf("1,600 execs in 2 s are %g thousand per second, %v", rate, known)
	}
	r.Finished, r.Late = nil, 100
	m.Loads["execs"] = r
	if rate, known := kiloeventRate(m); known {
		t.Errorf("an older record with 100 late execs has a rate of %g", rate)
	}
}

func TestGates(t *testing.T) {
	change := func(f func(*load.Result)) func(*measured.Measured) {
		return func(m *measured.Measured) { r := m.Loads["execs"]; f(&r); m.Loads["execs"] = r }
	}
	for _, c := range []struct {
		name   string
		change func(*measured.Measured)
		gate   string
		says   string
	}{
		{"good", func(*measured.Measured) {}, "", ""},
		{"counts that differ", func(m *measured.Measured) { m.Events.Counted = 2099 },
			"counts", "the load made 2100 execs, and the kernel counted 2099 in its control group"},
		{"a counter that did not run", func(m *measured.Measured) { m.Events.Missed = 3 },
			"counts", "did not run for 3 of them"},
		{"a scale that was held up", func(m *measured.Measured) { m.Ledger.Window.Seconds = 0.5 },
			"window", "counters were read 0.500 s apart, and the load's window is 2s"},
		{"nodes that hold each other up", func(m *measured.Measured) { m.Ledger.Window.Seconds, m.Shared = 0.5, true },
			"", ""},
		{"all of its CPU", change(func(r *load.Result) { r.CPUSeconds = 100 }), "", ""},
		{"rate", change(func(r *load.Result) { r.Done = 1500 }),
			"rate", "execs: execs were made at 75.00 % of the intended rate, and 99 % is required"},
		{"more than it can make", change(func(r *load.Result) { r.Done, r.Finished = 1500, new(int64(1600)) }),
			"rate", "execs: execs were made at 80.00 % of the intended rate"},
		{"those under way at the end", change(func(r *load.Result) { r.Intended, r.Done, r.Late = 200, 200, 4 }), "", ""},
		{"nothing intended", change(func(r *load.Result) { r.Intended, r.Done = 0, 0 }), "idle", "no exec was intended"},
		{"a rate of nothing", change(func(r *load.Result) { r.Done = 0 }), "idle", "not one exec was made"},
		{"a storm of nothing", change(func(r *load.Result) { r.Mode, r.Done = load.Closed, 0 }),
			"idle", "not one exec was made"},
		{"errors", change(func(r *load.Result) { r.Errors = map[string]int64{"clone EAGAIN": 20} }),
			"errors", "20 of 2000 execs failed (clone EAGAIN 20)"},
		{"lag", change(func(r *load.Result) { owned(t, r, 33*time.Millisecond) }), "lag", "late, and 25ms is allowed"},
		{"drift", change(func(r *load.Result) { r.Mode, r.Slices = load.Closed, slowing() }),
			"drift", "throughput went from"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := measuredExecs(t)
			c.change(m)
			reasons := m.Judge()
			if c.gate == "" {
				if len(reasons) > 0 {
					t.Errorf("tripped %+v", reasons)
				}
				return
			}
			if len(reasons) != 1 || reasons[0].Gate != c.gate || !strings.Contains(reasons[0].Message, c.says) {
				t.Errorf("got %+v\nwant %s: %s", reasons, c.gate, c.says)
			}
		})
	}
}

// TestGateCountsVoids: if the counts disagree, counts of events are not reported, but times are.
func TestGateCountsVoids(t *testing.T) {
	m := measuredExecs(t)
	m.Events.Counted = 2099
	reasons := m.Judge()
	if len(reasons) != 1 {
		t.Fatalf("%+v", reasons)
	}
	for name, want := range map[string]bool{"events_counted": true, "throughput_per_second": false} {
		if reasons[0].VoidsMetric(name) != want {
			t.Errorf("whether %s is void: not %v, by %+v", name, want, reasons[0])
		}
	}
}

// asked is a deliverer that was asked to end, in a trial.
type asked struct {
	Deliverer
	kind.Trial
	counts bool
	codes  []string
}

func (a *asked) Scope() Scope                  { return ScopeGroup }
func (a *asked) CountsExit() bool              { return a.counts }
func (a *asked) Arm() string                   { return "mine" }
func (a *asked) Warn(code, _ string, _ ...any) { a.codes = append(a.codes, code) }

// TestCountsExit: what is delivered after the request to end is a part of the count, unless the count is read only
// while the deliverer runs. The part is then unknown, and a warning says so if an event is missing.
func TestCountsExit(t *testing.T) {
	at := func(inside, delivered int64) reading {
		return reading{inside: inside, said: Said{Delivered: delivered, Knows: true}}
	}
	for _, c := range []struct {
		name    string
		counts  bool
		last    reading
		said    int64 // in all
		atExit  int64 // -1: unknown
		warning string
	}{
		{"lines at the end", true, at(103, 100), 103, 3, ""},
		{"a metric of all", false, at(103, 103), 103, -1, ""},
		{"a metric that lacks some", false, at(103, 100), 100, -1, "exit-uncounted"},
	} {
		a := &asked{counts: c.counts}
		counting := &Counting{trial: a, deliverer: a, offset: at(3, 3)}
		events := &record.Events{Offset: &record.Offset{}}
		err := counting.writeDown(events, c.last, c.last, Said{Delivered: c.said, Knows: true})
		if err != nil || *events.Delivered != c.said-3 || known.Or(events.AtExit, -1) != c.atExit ||
			strings.Join(a.codes, " ") != c.warning {
			t.Errorf("%s: %+v, warnings %q, %v", c.name, events, a.codes, err)
		}
	}
}

// TestLate: execs of other processes after the load's end do not count as the load's, however many there are.
func TestLate(t *testing.T) {
	at := func(inside, outside, delivered int64) reading {
		return reading{
			inside: inside, outside: outside, after: outside, ended: outside, said: Said{Delivered: delivered, Knows: true},
		}
	}
	// since is like at, but n of the execs of other processes came after the load had ended.
	since := func(n, inside, outside, delivered int64) reading {
		r := at(inside, outside, delivered)
		r.ended -= n
		return r
	}
	for _, c := range []struct {
		name              string
		scope             Scope
		offset, end, last reading
		delivered         int64 // in all
		want              int64
	}{
		{"all in time", ScopeGroup, at(3, 0, 3), at(103, 0, 103), at(103, 0, 103), 103, 0},
		{"some late", ScopeGroup, at(3, 0, 3), at(103, 0, 96), at(103, 0, 103), 103, 7},
		{"some late, some lost", ScopeGroup, at(3, 0, 3), at(103, 0, 90), at(103, 0, 97), 97, 7},
		{"some only when told to end", ScopeGroup, at(3, 0, 3), at(103, 0, 90), at(103, 0, 90), 103, 13},
		{"some twice, after the end", ScopeGroup, at(3, 0, 3), at(103, 0, 103), at(103, 0, 110), 110, 0},
		{"a count that came late as a whole", ScopeGroup, at(3, 0, 0), at(103, 0, 0), at(103, 0, 103), 103, 100},
		// Issue 11: 21 execs of other processes in the drain, and all of the load's were delivered.
		{"others in the drain", ScopeMachine, at(3, 50, 53), at(103, 60, 163), at(103, 81, 184), 184, 0},
		{"others just before it is too late", ScopeMachine, at(3, 50, 53), since(5, 103, 65, 163), at(103, 81, 184), 184, 0},
		{"these, and some late", ScopeMachine, at(3, 50, 53), since(5, 103, 65, 156), at(103, 81, 184), 184, 7},
		{"others in the drain and after", ScopeMachine, at(3, 50, 53), at(103, 60, 163), at(103, 81, 184), 190, 0},
		{"others, and some late", ScopeMachine, at(3, 50, 53), at(103, 60, 156), at(103, 81, 184), 184, 7},
		{"others, and some lost", ScopeMachine, at(3, 50, 53), at(103, 60, 143), at(103, 81, 164), 164, 0},
		{"others, some late and some lost", ScopeMachine, at(3, 50, 53), at(103, 60, 136), at(103, 81, 164), 164, 7},
		{"more of others owed than the load made", ScopeMachine, at(3, 50, 53), at(5, 550, 53), at(5, 550, 555), 555, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := late(c.scope, c.offset, c.end, c.last, c.delivered); got != c.want {
				t.Errorf("%d are late, want %d", got, c.want)
			}
		})
	}
}
