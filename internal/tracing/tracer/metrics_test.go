package tracer

import (
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
	execload "tare/internal/tracing/exec"
	"tare/test/metrictest"
)

// evidence returns the evidence of a trial's tracer.
func evidence(m *measured.Measured) *Evidence { return m.Evidence["exectrace"].(*Evidence) }

// tracedTrial is a trial of 2 s at 1,000 execs per second with 100 more in the warm-up, in which the tracer lost 5,
// delivered 7 late and reported a loss of 4.
func tracedTrial() *measured.Measured {
	const tree = "/tare-trial-p1-t1"
	group := func(path, role string, cpu float64) ledger.Cgroup {
		return ledger.Cgroup{Path: path, Role: role, CPUSeconds: &cpu, ThrottledSeconds: new(0.0)}
	}
	subject := group(tree+"/subject", "subject", 0.01)
	subject.Memory = &ledger.Memory{Hard: new(int64(5 << 20)), Anon: new(uint64(3 << 20))}
	return &measured.Measured{
		Setup: &kind.Setup{
			Loads: map[string]*kind.Part{"execs": {Kind: kind.Find(kind.Load, execload.Name)}},
			Arms: map[string]*kind.Part{
				"exectrace": {Kind: kind.Find(kind.Subject, "exectrace"), Limits: param.Values{}},
			},
			Duration: 2 * time.Second, Statistics: true,
			Gates: param.Values{"rate": "0.99", "errors": "0.001", "lag": "25ms", "drift": "0.25", "throttled": "1ms"},
		},
		Tree: tree,
		Trial: record.Trial{
			PlannedTrial: record.PlannedTrial{Arm: "exectrace"},
			Loads: map[string]load.Result{"execs": {
				Generator: execload.Generator, Mode: load.Open, Seconds: 2, Rate: 1000, Intended: 2000, Sent: 2000, Done: 2000,
				Counts: map[string]float64{execload.CountMade: 2100, execload.CountWorkers: 2},
			}},
			Ledger: &ledger.Ledger{
				Window: ledger.Window{Seconds: 2.002},
				CPU:    ledger.CPU{Capacity: 4.004, Idle: 1.002, Steal: 1},
				Cgroups: []ledger.Cgroup{
					group("/", "", 3), group(tree, "", 0.5), group(tree+"/work", "", 0.49),
					group(tree+"/work/execs", "load", 0.2), subject,
				},
				Programs: []ledger.Program{
					{ID: 1, RunCount: new(uint64(10)), RunSeconds: new(1.0)},
					{ID: 2, RunCount: new(uint64(2002)), RunSeconds: new(0.006006)},
				},
			},
			Events: &record.Events{
				Generated: 2100, KernelCount: &record.KernelCount{Counted: 2100, Elsewhere: 3}, Scope: "group",
				Expected: new(int64(2100)), AtMost: new(int64(2100)), Delivered: new(int64(2095)), Late: new(int64(7)),
				AtExit: new(int64(2)), SaidLost: new(int64(4)), Offset: &record.Offset{Counted: 3, Delivered: new(int64(3))},
			},
		},
		Subject: &kind.Objects{Programs: []kind.Object{{ID: 2}}},
		Evidence: map[string]any{"exectrace": &Evidence{
			RSS: 15 << 20, RSSPeak: 20 << 20, CPUSeconds: new(0.021), MemoryPeak: new(uint64(9 << 20)),
		}},
	}
}

func TestMetricsOfTracers(t *testing.T) {
	absent := math.NaN()
	const window = 2.002
	good := map[string]float64{
		"events_generated": 2100, "events_counted": 2100, "events_delivered": 2095, "events_lost": 5, "events_extra": 0,
		"events_late": 7, "events_said_lost": 4, "events_unsaid": 1,
		"agent_cpu_seconds_per_kiloevent": 0.01, "bpf_seconds_per_kiloevent": 0.006006 / window,
		"cpu_seconds_per_kiloevent":      0.01 + 0.006006/window,
		"load_cpu_seconds_per_kiloevent": 0.2 / window, "machine_cpu_seconds_per_kiloevent": 2.002 / window,
		"memory_peak_bytes": 9 << 20, "memory_anon_bytes": 3 << 20, "rss_bytes": 15 << 20, "rss_peak_bytes": 20 << 20,
		"cpu_seconds_per_request": absent, "bpf_seconds_per_request": absent, "throughput_per_second": 1000,
		"node_max_cpu_seconds_per_kiloevent": absent,
	}
	of := func(change func(*record.Events)) func(*measured.Measured) {
		return func(m *measured.Measured) { change(m.Events) }
	}
	for _, c := range []struct {
		name   string
		change func(*measured.Measured)
		want   map[string]float64
	}{
		{"good", func(*measured.Measured) {}, good},
		{"no tracer", func(m *measured.Measured) {
			m.Subject, m.Evidence = nil, nil
			m.Events = &record.Events{Generated: 2100, KernelCount: &record.KernelCount{Counted: 2100}}
		}, map[string]float64{"events_generated": 2100, "events_counted": 2100, "events_expected": absent,
			"events_delivered": absent, "events_lost": absent, "events_unsaid": absent, "cpu_seconds_per_kiloevent": 0,
			"agent_cpu_seconds_per_kiloevent": 0, "bpf_seconds_per_kiloevent": 0, "memory_peak_bytes": 0,
			"rss_peak_bytes": 0, "load_cpu_seconds_per_kiloevent": 0.2 / window}},
		{"it never says what it lost", of(func(e *record.Events) { e.SaidLost = nil }),
			map[string]float64{"events_said_lost": absent, "events_unsaid": absent, "events_lost": 5}},
		{"it says more than it lost", of(func(e *record.Events) { *e.SaidLost = 105 }),
			map[string]float64{"events_said_lost": 105, "events_unsaid": 100}},
		{"it delivers too many", of(func(e *record.Events) { *e.Delivered = 2103 }),
			map[string]float64{"events_lost": 0, "events_extra": 3, "events_unsaid": 4}},
		{"it traces the machine", of(func(e *record.Events) { *e.Expected, *e.AtMost = 2103, 2109 }),
			map[string]float64{"events_expected": 2103, "events_lost": 8, "events_extra": 0, "events_counted": 2100}},
		{"it traces a machine with nine other execs for each of the load",
			of(func(e *record.Events) { *e.Expected, *e.AtMost = 21000, 21000 }),
			map[string]float64{"agent_cpu_seconds_per_kiloevent": 0.001, "bpf_seconds_per_kiloevent": 0.0006006 / window,
				"cpu_seconds_per_kiloevent": 0.001 + 0.0006006/window}},
		{"a program whose events nobody counts",
			of(func(e *record.Events) { e.Expected, e.AtMost, e.Delivered = nil, nil, nil }),
			map[string]float64{"agent_cpu_seconds_per_kiloevent": absent, "bpf_seconds_per_kiloevent": absent,
				"cpu_seconds_per_kiloevent": absent, "load_cpu_seconds_per_kiloevent": 0.2 / window}},
		{"no run statistics", func(m *measured.Measured) { m.Setup.Statistics = false },
			map[string]float64{"bpf_seconds_per_kiloevent": absent, "cpu_seconds_per_kiloevent": absent,
				"agent_cpu_seconds_per_kiloevent": 0.01}},
		{"idle CPUs stolen", func(m *measured.Measured) { m.Ledger.CPU.Idle, m.Ledger.CPU.IdleStolen = 1.502, new(0.5) },
			map[string]float64{"machine_cpu_seconds_per_kiloevent": 2.002 / window}},
		{"no peak", func(m *measured.Measured) { evidence(m).MemoryPeak = nil },
			map[string]float64{"memory_peak_bytes": absent, "memory_anon_bytes": 3 << 20}},
		{"nobody looked at it", func(m *measured.Measured) { m.Evidence = nil },
			map[string]float64{"rss_peak_bytes": absent, "agent_cpu_seconds_per_kiloevent": absent}},
		{"evidence of another guest beside it", func(m *measured.Measured) { m.Evidence["another"] = 7 }, good},
		{"no CPU counter", func(m *measured.Measured) { evidence(m).CPUSeconds = nil },
			map[string]float64{"agent_cpu_seconds_per_kiloevent": absent, "cpu_seconds_per_kiloevent": absent}},
		{"a scale that was held up", func(m *measured.Measured) { m.Ledger.Window.Seconds = 0.5 },
			map[string]float64{"bpf_seconds_per_kiloevent": absent, "cpu_seconds_per_kiloevent": absent,
				"load_cpu_seconds_per_kiloevent": absent, "agent_cpu_seconds_per_kiloevent": 0.01, "events_lost": 5}},
		{"no events in the window", func(m *measured.Measured) { r := m.Loads["execs"]; r.Done = 0; m.Loads["execs"] = r },
			map[string]float64{"cpu_seconds_per_kiloevent": absent, "events_lost": 5}},
		{"no events at all", func(m *measured.Measured) { m.Events = nil },
			map[string]float64{"events_generated": absent, "memory_peak_bytes": 9 << 20, "rss_peak_bytes": 20 << 20,
				"cpu_seconds_per_kiloevent": absent, "machine_cpu_seconds_per_kiloevent": absent}},
		{"nodes", func(m *measured.Measured) {
			node := func(v float64) record.NodeTrial {
				return record.NodeTrial{Trial: &record.Trial{Metrics: map[string]float64{"cpu_seconds_per_kiloevent": v}}}
			}
			m.Nodes = []record.NodeTrial{node(0.01), node(0.03), {Failed: "it went"}, node(0.02)}
		}, map[string]float64{"node_max_cpu_seconds_per_kiloevent": 0.03}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := tracedTrial()
			c.change(m)
			got := m.Values()
			for name, want := range c.want {
				v, ok := got[name]
				if ok == math.IsNaN(want) || ok && math.Abs(v-want) > 1e-9*math.Abs(want) {
					t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
				}
			}
		})
	}
}

func TestCountsOfTracers(t *testing.T) {
	m := tracedTrial()
	want := map[string]record.Count{
		"events_lost_share": {In: 5, Of: 2100}, "events_late_share": {In: 7, Of: 2095}, "lossy_trial_share": {In: 1, Of: 1},
	}
	counts := func() map[string]record.Count {
		got := m.Counts()
		maps.DeleteFunc(got, func(name string, _ record.Count) bool { return strings.HasPrefix(name, "bpf_") })
		return got
	}
	if got := counts(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	*m.Events.Delivered = 2100
	none := map[string]record.Count{"events_lost_share": {Of: 2100}, "lossy_trial_share": {Of: 1}}
	for name, want := range none {
		if got := counts()[name]; got != want {
			t.Errorf("without loss %s is %v", name, got)
		}
	}
	m.Events = &record.Events{Generated: 1, KernelCount: &record.KernelCount{Counted: 1}}
	if got := counts(); len(got) != 0 {
		t.Errorf("without a tracer: %v", got)
	}
}

// TestGatesOfTracers: losses of a tracer do not make a trial invalid, but interference from other processes does.
func TestGatesOfTracers(t *testing.T) {
	m := tracedTrial()
	if reasons := m.Judge(); len(reasons) > 0 {
		t.Errorf("tripped %+v", reasons)
	}
	m.Ledger.Cgroups[4].ThrottledSeconds = new(0.5)
	if reasons := m.Judge(); len(reasons) != 1 || !strings.Contains(reasons[0].Message, "/subject was throttled") {
		t.Errorf("held back, and nobody limited it: %+v", reasons)
	}
	limited := measured.NewRole(kind.Subject, "")
	limited.Limited = true
	m.SetRoles(map[string]measured.GroupRole{m.Ledger.Cgroups[4].Path: limited})
	if reasons := m.Judge(); len(reasons) > 0 {
		t.Errorf("held back as asked: %+v", reasons)
	}
}

// TestDefinitions: everything that the load and its tracers define can be stored in a record.
func TestDefinitions(t *testing.T) {
	for _, d := range measured.Definitions() {
		if err := metrictest.Check(d); err != nil {
			t.Error(err)
		}
	}
}
