package measured

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
)

// TestStallsOf: stalls are the times that the hypervisor took and those for which a neighbour's task held a CPU,
// merged. Those caused by the trial itself, and looks that were late because interrupts were off, do not count.
func TestStallsOf(t *testing.T) {
	const tree = "/tare/trial-1"
	hypervisor := func(from, to int64) ledger.Stall { return ledger.Stall{From: from, To: to, Cause: ledger.Hypervisor} }
	held := func(from, to int64, cgroup string, cause ledger.Cause) ledger.Stall {
		return ledger.Stall{From: from, To: to, Cgroup: cgroup, Cause: cause}
	}
	for name, c := range map[string]struct {
		noise   *ledger.Noise
		want    [][2]int64
		unknown string
	}{
		"nobody watched":          {nil, [][2]int64{}, "were not watched for"},
		"quiet":                   {&ledger.Noise{}, [][2]int64{}, ""},
		"late looks are no noise": {&ledger.Noise{Late: 12, LongestLate: 0.5}, [][2]int64{}, ""},
		"stolen, on two CPUs": {&ledger.Noise{Stalls: []ledger.Stall{hypervisor(50, 60), hypervisor(10, 20),
			hypervisor(15, 30), hypervisor(30, 31)}},
			[][2]int64{{10, 31}, {50, 60}}, ""},
		"held by a neighbour": {&ledger.Noise{Occupied: []ledger.Stall{held(1, 5, "/other", ledger.Neighbour),
			held(7, 9, "/", ledger.Neighbour)}},
			[][2]int64{{1, 5}, {7, 9}}, ""},
		"held by the subject": {&ledger.Noise{Occupied: []ledger.Stall{held(1, 5, tree+"/subject", ledger.Neighbour)}},
			[][2]int64{}, ""},
		"held by who knows": {&ledger.Noise{Occupied: []ledger.Stall{held(1, 5, "/", ledger.Unknown),
			held(1, 5, "/", ledger.Subject)}}, [][2]int64{}, ""},
		"caused by the subject": {&ledger.Noise{Stalls: []ledger.Stall{{From: 1, To: 5, Cause: ledger.Subject}}},
			[][2]int64{}, ""},
		"held by one of no group": {&ledger.Noise{Occupied: []ledger.Stall{held(1, 5, "", ledger.Neighbour)}},
			[][2]int64{}, ""},
		"held by softirq": {&ledger.Noise{Occupied: []ledger.Stall{{From: 1, To: 5, Cgroup: "/",
			Cause: ledger.Neighbour, Comm: "ksoftirqd/1"}}}, [][2]int64{}, ""},
		"more than were kept": {&ledger.Noise{Stalls: []ledger.Stall{hypervisor(1, 2)}, StallsOmitted: 3,
			OccupiedMissed: 4}, [][2]int64{}, "7 stalls were not kept"},
	} {
		now := time.Now()
		s := StallsOf(&ledger.Ledger{Window: ledger.Window{Start: now.Add(-time.Second), End: now}, Noise: c.noise},
			tree, false)
		if !reflect.DeepEqual(s.Spans, c.want) || (s.Unknown == "") != (c.unknown == "") ||
			!strings.Contains(s.Unknown, c.unknown) {
			t.Errorf("%s: %v, %q", name, s.Spans, s.Unknown)
		}
		if d := s.To - s.From; math.Abs(float64(d-1e9)) > 1e6 {
			t.Errorf("%s: watched for %d ns", name, d)
		}
	}
}

// TestStallsOnASharedMachine: the processes of other nodes of the same run do not count as neighbours; the hypervisor
// does.
func TestStallsOnASharedMachine(t *testing.T) {
	now := time.Now()
	s := StallsOf(&ledger.Ledger{Window: ledger.Window{Start: now, End: now}, Noise: &ledger.Noise{
		Stalls:   []ledger.Stall{{From: 1, To: 2, Cause: ledger.Hypervisor}},
		Occupied: []ledger.Stall{{From: 3, To: 4, Cgroup: "/tare/node-2/trial-1/work", Cause: ledger.Neighbour}},
	}}, "/tare/node-1/trial-1", true)
	if want := [][2]int64{{1, 2}}; !reflect.DeepEqual(s.Spans, want) {
		t.Errorf("%v, want %v", s.Spans, want)
	}
}

// undisturbed returns the result of a load whose requests all took ns nanoseconds, with the classification run.
func undisturbed(t *testing.T, mode string, ns int64, run load.Running) load.Result {
	t.Helper()
	r := load.Result{Mode: mode, Seconds: 10, Running: &run}
	h := hdrhistogram.New(1, 1e9, 3)
	if err := h.RecordValues(ns, 1000*(run.Undisturbed+run.Disturbed)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{load.Latency, load.LatencyRunning, load.OwnLag, load.OwnLagRunning} {
		if err := r.SetHistogram(name, h); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestRunningMetrics(t *testing.T) {
	carries := map[string]map[string]float64{}
	for _, h := range []string{load.LatencyRunning, load.OwnLagRunning} {
		carries[h] = map[string]float64{"p50": 300, "p90": 60, "p99": 6, "p999": 0.6}
	}
	run := load.Running{Undisturbed: 600, Disturbed: 400, QuietSeconds: 5, WatchedSeconds: 10, DoneQuiet: 500,
		Beyond: carries}
	one := undisturbed(t, load.Open, 70_000, run)
	m := &Measured{Trial: record.Trial{Loads: map[string]load.Result{"one": one, "two": one}}}
	for name, want := range map[string]float64{
		"latency_running_p50_seconds": 70e-6, "latency_running_p90_seconds": 70e-6,
		"latency_running_p99_seconds":   70e-6, // 6 samples beyond it of each load make 12
		"latency_running_p999_seconds":  -1,
		"connect_running_p50_seconds":   -1,
		"own_lag_running_p99_seconds":   70e-6,
		"disturbed_share":               0.4,
		"throughput_running_per_second": -1, // absent for an open loop
	} {
		got, ok := valueOf(t, m, name)
		if ok != (want >= 0) || ok && math.Abs(got-want) > 0.002*want {
			t.Errorf("%s: %g, %t, want %g", name, got, ok, want)
		}
	}
	m.Loads["two"] = load.Result{Histograms: one.Histograms} // has latencies, but not of undisturbed requests
	if v, ok := valueOf(t, m, "latency_running_p50_seconds"); ok {
		t.Errorf("a median of two loads, one of which tells nothing apart: %g", v)
	}
	m.Loads = map[string]load.Result{"one": undisturbed(t, load.Closed, 70_000, run)}
	if v, ok := valueOf(t, m, "throughput_running_per_second"); !ok || v != 100 {
		t.Errorf("500 answers in 5 quiet seconds are %g/s, %t", v, ok)
	}
}

func valueOf(t *testing.T, m *Measured, name string) (float64, bool) {
	t.Helper()
	for _, metric := range Metrics() {
		if metric.Name == name {
			return metric.Value(m)
		}
	}
	t.Fatalf("no metric %s", name)
	return 0, false
}

// TestLagWhileRunning: a generator that is late while the machine runs voids the metrics of undisturbed requests, and
// no others.
func TestLagWhileRunning(t *testing.T) {
	run := load.Running{Undisturbed: 2000, Beyond: map[string]map[string]float64{load.OwnLagRunning: {"p99": 20}}}
	r := undisturbed(t, load.Open, 2e6, run)
	judged := func(allowed string) []Trip {
		setup := &kind.Setup{Gates: param.Values{"lag": allowed}}
		j := LoadJudge{m: &Measured{Setup: setup}, name: "client", Result: r}
		j.lagRunning()
		return j.Trips
	}
	trips := judged("1ms")
	if len(trips) != 1 || trips[0].Gate != GateLagRunning || trips[0].Seen < 1.9e-3 {
		t.Fatalf("%+v", trips)
	}
	voids := trips[0].Gate.Voids(ledger.Generator, func(string) bool { return true })
	if len(voids) == 0 {
		t.Error("it voids nothing")
	}
	for _, name := range voids {
		if !strings.Contains(name, "_running_") {
			t.Errorf("it voids %s", name)
		}
	}
	if trips := judged("3ms"); len(trips) > 0 {
		t.Errorf("2 ms are later than 3 ms: %+v", trips)
	}
	r.Running.Withheld = "nobody watched"
	if trips := judged("1ms"); len(trips) > 0 {
		t.Errorf("it is late by a lag that is not told: %+v", trips)
	}
}

// TestHeldUp: requests that were due while the machine stood still at the end of the window count as in flight.
func TestHeldUp(t *testing.T) {
	const ms = int64(1e6)
	for _, c := range []struct {
		spans [][2]int64
		want  int64
	}{
		{nil, 0},
		{[][2]int64{{100 * ms, 150 * ms}}, 0}, // long ago
		{[][2]int64{{100 * ms, 150 * ms}, {970 * ms, 1010 * ms}}, 60}, // it closed in a stall of 30 ms
		{[][2]int64{{950 * ms, 980 * ms}}, 100},                       // or while the queue drained
		{[][2]int64{{510 * ms, 1010 * ms}}, 980},
		{[][2]int64{{490 * ms, 1010 * ms}}, 0}, // half of the window was lost
	} {
		j := LoadJudge{Result: load.Result{TargetRate: 2000}, stalls: role.Stalls{From: 0, To: 1000 * ms, Spans: c.spans}}
		if got := j.heldUp(); got != c.want {
			t.Errorf("%v: %d requests, want %d", c.spans, got, c.want)
		}
	}
}

// TestTrimNoise: a record lists the longest stalls in order of time, without those caused by the trial's own processes.
func TestTrimNoise(t *testing.T) {
	n := &ledger.Noise{StallsOmitted: 1}
	for i := range 2 * maxStallsKept {
		n.Stalls = append(n.Stalls, ledger.Stall{From: int64(i), Seconds: float64(i % 2)})
		n.Occupied = append(n.Occupied, ledger.Stall{From: int64(i), Cgroup: []string{"/tare/trial-1/work", "/other"}[i%2]})
	}
	trimNoise(&ledger.Ledger{Noise: n}, "/tare/trial-1")
	if len(n.Stalls) != maxStallsKept || n.StallsOmitted != 1+maxStallsKept || len(n.Occupied) != maxStallsKept ||
		n.OccupiedMissed != 0 {
		t.Fatalf("%d stalls and %d omitted, %d occupied and %d omitted", len(n.Stalls), n.StallsOmitted, len(n.Occupied),
			n.OccupiedMissed)
	}
	for i, s := range n.Stalls {
		if s.Seconds != 1 || i > 0 && s.From < n.Stalls[i-1].From || n.Occupied[i].Cgroup != "/other" {
			t.Fatalf("stall %d: %+v, occupied %+v", i, s, n.Occupied[i])
		}
	}
}
