package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/fault"
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/param"
	"tare/internal/record"
)

const traceSpec = `name: traced
question: What is lost?
blocks: 1
warmup: 50ms
duration: 300ms
loads:
  execs: {kind: exec, rate: 200, workers: 2}
arms:
  exectrace: {subject: exectrace, ring: 8MiB}
  totals: {subject: exectrace, output: count}
  mine: {subject: command, command: "{self} subject exectrace --cgroup={cgroup_dir}", lines: '^\{', ready: "^exectrace: ready", lost-json: lost}
gates: {rate: 0, lag: 60s, drift: 1000}
`

func TestTraceSpec(t *testing.T) {
	s := mustParse(t, traceSpec+"factors:\n  execs.rate: [100, storm]\n  ring: [1MiB, 2MiB]\n")
	if got := s.Levels()[1]; got["execs.rate"] != "100" || got["ring"] != "2097152" {
		t.Errorf("the second level is %v", got)
	}
	// The resolved spec is a spec.
	resolved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, string(resolved)); again.Arms["mine"].Options["lines"] != `^\{` || again.Loads["execs"].Options["rate"] != "200" {
		t.Errorf("read again it is %+v", again.Arms["mine"].Options)
	}
	for rate, want := range map[string]string{"storm": "--rate=storm", "250": "--rate=250"} {
		o := s.Loads["execs"].Options.Clone()
		o["rate"] = rate
		if argv := strings.Join(execLoad.argv(o, site{}), " "); argv != "load exec --role "+want+" --workers=2" {
			t.Errorf("at %s it is started by %s", rate, argv)
		}
	}
}

// TestTraceRefuses: what cannot be counted is refused before the run.
func TestTraceRefuses(t *testing.T) {
	for want, change := range map[string][2]string{
		`has a "lines" that is no regular expression`:                        {`'^\{'`, `'('`},
		`has "lines" and "json": one thing is counted in one way`:            {"lines:", "json: a, lines:"},
		`has a "json" that is no path`:                                       {`lines: '^\{'`, "json: a..b"},
		`give one of "lines", "json" and "prometheus"`:                       {`lines: '^\{', `, ""},
		"did you mean {cgroup_dir}?":                                         {"{cgroup_dir}", "{cgroup_dirs}"},
		`there is no key "rings" in an arm "exectrace"; did you mean "ring"`: {"ring:", "rings:"},
		`must be a number or storm, not "strom"; did you mean "storm"?`:      {"rate: 200", "rate: strom"},
		`give it more "workers" instead of a "count"`:                        {"workers: 2", "count: 2"},
		"a second load of kind exec":                                         {"arms:", "  more: {kind: exec}\narms:"},
		"a tracer (exectrace) needs something to trace":                      {"{kind: exec, rate: 200, workers: 2}", "{kind: probe}"},
		`there is no key "to" in a load "execs"`:                             {"rate: 200", "to: server, rate: 200"},
	} {
		if _, err := Parse("test.yaml", []byte(strings.Replace(traceSpec, change[0], change[1], 1)), testFeatures); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// TestTracersThatAreAbsent: a run goes on without an arm that may be missing, and says which and why; without any other it does not begin.
func TestTracersThatAreAbsent(t *testing.T) {
	const other = "  gone: {subject: command, command: no-such-tracer-anywhere, lines: ''%s}\n"
	with := func(more, rest string) *Spec {
		return mustParse(t, strings.Replace(traceSpec, "gates:", fmt.Sprintf(other, more)+"gates:", 1)+rest)
	}
	s := with(", optional: true", "factors:\n  gone.drain: [1s, 2s]\n  execs.rate: [100, 200]\nquick:\n  arms: [gone, mine]\n  factors: {gone.drain: [1s]}\n")
	absent, err := s.LeaveOutAbsent()
	if err != nil || len(absent) != 1 || !strings.Contains(absent["gone"], "no-such-tracer-anywhere: not installed; install it") {
		t.Fatalf("absent are %v, %v", absent, err)
	}
	if _, there := s.Arms["gone"]; there || len(s.Arms) != 3 || len(s.Levels()) != 2 {
		t.Errorf("it still has %v, at %v", slices.Sorted(maps.Keys(s.Arms)), s.Levels())
	}
	resolved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	mustParse(t, string(resolved))

	_, err = with("", "").LeaveOutAbsent()
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "arms.gone") || !strings.Contains(fault.MendOf(err), "optional: true") {
		t.Errorf("one that may not be missing: %v, mend %q", err, fault.MendOf(err))
	}
	if absent, err := mustParse(t, traceSpec).LeaveOutAbsent(); err != nil || absent != nil {
		t.Errorf("with all there: %v, %v", absent, err)
	}
	if v := with(", version: 'echo v7'", "").SubjectVersions(t.Context(), "own"); v["exectrace"] != "own" || v["no-such-tracer-anywhere"] != "v7" {
		t.Errorf("versions: %v", v)
	}
}

// tracedMeasurement is a trial of 2 s at 1,000 execs per second with 100 more in the warm-up, in which the tracer lost 5, delivered 7 late and owned up to 4.
func tracedMeasurement(t *testing.T) *measurement {
	t.Helper()
	m := goodMeasurement(t)
	m.spec, m.arm = mustParse(t, traceSpec), "exectrace"
	m.spec.Duration = 2 * time.Second
	r := m.loads["client"]
	r.Generator, r.Errors, r.Late, r.Done, r.Opened = "exec", nil, 0, 2000, 0
	r.Counts = map[string]float64{"execs_made": 2100, "execs_failed": 0, "workers": 2}
	m.loads = map[string]load.Result{"execs": r}
	for i := range m.ledger.Cgroups {
		g := &m.ledger.Cgroups[i]
		if g.Role == "app" {
			g.Role = ""
		}
		if g.Role == "subject" {
			g.Memory.Anon = ptr(uint64(3 << 20))
		}
	}
	m.ledger.CPU = ledger.CPU{Capacity: 4.004, Idle: 1.002, Steal: 1}
	m.tracer = &tracerReady{RSS: 15 << 20, RSSPeak: 20 << 20, CPUSeconds: ptr(0.021), MemoryPeak: ptr(uint64(9 << 20))}
	m.events = &record.Events{
		Generated: 2100, Counted: 2100, Elsewhere: 3, Scope: "group", Expected: ptr(int64(2100)), AtMost: ptr(int64(2100)), Delivered: ptr(int64(2095)), Late: ptr(int64(7)), AtExit: ptr(int64(2)),
		SaidLost: ptr(int64(4)), Offset: record.Offset{Counted: 3, Delivered: ptr(int64(3))},
	}
	return m
}

func TestTraceMetrics(t *testing.T) {
	absent := math.NaN()
	const window = 2.002
	good := map[string]float64{
		"events_generated": 2100, "events_counted": 2100, "events_delivered": 2095, "events_lost": 5, "events_extra": 0, "events_late": 7, "events_said_lost": 4, "events_unsaid": 1,
		"agent_cpu_seconds_per_kiloevent": 0.01, "bpf_seconds_per_kiloevent": 0.006006 / window, "cpu_seconds_per_kiloevent": 0.01 + 0.006006/window,
		"load_cpu_seconds_per_kiloevent": 0.2 / window, "machine_cpu_seconds_per_kiloevent": 2.002 / window,
		"memory_peak_bytes": 9 << 20, "memory_anon_bytes": 3 << 20, "rss_bytes": 15 << 20, "rss_peak_bytes": 20 << 20,
		"cpu_seconds_per_request": absent, "bpf_seconds_per_request": absent, "throughput_per_second": 999,
	}
	of := func(change func(*record.Events)) func(*measurement) { return func(m *measurement) { change(m.events) } }
	for _, c := range []struct {
		name   string
		change func(*measurement)
		want   map[string]float64
	}{
		{"good", func(*measurement) {}, good},
		{"no tracer", func(m *measurement) {
			m.subject, m.tracer, m.events = nil, nil, &record.Events{Generated: 2100, Counted: 2100}
		}, map[string]float64{"events_generated": 2100, "events_counted": 2100, "events_delivered": absent, "events_lost": absent, "events_unsaid": absent,
			"cpu_seconds_per_kiloevent": 0, "agent_cpu_seconds_per_kiloevent": 0, "bpf_seconds_per_kiloevent": 0, "memory_peak_bytes": 0, "rss_peak_bytes": 0,
			"load_cpu_seconds_per_kiloevent": 0.2 / window}},
		{"it never says what it lost", of(func(e *record.Events) { e.SaidLost = nil }), map[string]float64{"events_said_lost": absent, "events_unsaid": absent, "events_lost": 5}},
		{"it says more than it lost", of(func(e *record.Events) { *e.SaidLost = 105 }), map[string]float64{"events_said_lost": 105, "events_unsaid": 100}},
		{"it delivers too many", of(func(e *record.Events) { *e.Delivered = 2103 }), map[string]float64{"events_lost": 0, "events_extra": 3, "events_unsaid": 4}},
		{"it traces the machine", of(func(e *record.Events) { *e.Expected, *e.AtMost = 2103, 2109 }), map[string]float64{"events_lost": 8, "events_extra": 0, "events_counted": 2100}},
		{"no run statistics", func(m *measurement) { m.spec.Statistics = false }, map[string]float64{"bpf_seconds_per_kiloevent": absent, "cpu_seconds_per_kiloevent": absent, "agent_cpu_seconds_per_kiloevent": 0.01}},
		{"no peak", func(m *measurement) { m.tracer.MemoryPeak = nil }, map[string]float64{"memory_peak_bytes": absent, "memory_anon_bytes": 3 << 20}},
		{"resident sets not read", func(m *measurement) { m.tracer = nil }, map[string]float64{"rss_peak_bytes": absent}},
		{"no CPU counter", func(m *measurement) { m.tracer.CPUSeconds = nil }, map[string]float64{"agent_cpu_seconds_per_kiloevent": absent, "cpu_seconds_per_kiloevent": absent}},
		{"a scale that was held up", func(m *measurement) { m.ledger.Window.Seconds = 0.5 }, map[string]float64{"bpf_seconds_per_kiloevent": absent, "cpu_seconds_per_kiloevent": absent, "load_cpu_seconds_per_kiloevent": absent, "agent_cpu_seconds_per_kiloevent": 0.01, "events_lost": 5}},
		{"no events in the window", func(m *measurement) { r := m.loads["execs"]; r.Done = 0; m.loads["execs"] = r }, map[string]float64{"cpu_seconds_per_kiloevent": absent, "events_lost": 5}},
		{"no events at all", func(m *measurement) { m.events = nil }, map[string]float64{"events_generated": absent, "memory_peak_bytes": absent, "rss_peak_bytes": absent, "cpu_seconds_per_kiloevent": absent, "machine_cpu_seconds_per_kiloevent": absent}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := tracedMeasurement(t)
			c.change(m)
			got := m.values()
			for name, want := range c.want {
				v, ok := got[name]
				if ok == math.IsNaN(want) || ok && math.Abs(v-want) > 1e-9*math.Abs(want) {
					t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
				}
			}
		})
	}
}

func TestTraceCounts(t *testing.T) {
	m := tracedMeasurement(t)
	want := map[string]record.Count{"events_lost_share": {In: 5, Of: 2100}, "events_late_share": {In: 7, Of: 2095}, "lossy_trial_share": {In: 1, Of: 1}}
	counts := func() map[string]record.Count {
		got := m.counts()
		maps.DeleteFunc(got, func(name string, _ record.Count) bool { return strings.HasPrefix(name, "bpf_") })
		return got
	}
	if got := counts(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	*m.events.Delivered = 2100
	if got := counts(); got["lossy_trial_share"] != (record.Count{In: 0, Of: 1}) || got["events_lost_share"] != (record.Count{In: 0, Of: 2100}) {
		t.Errorf("without loss: %v", got)
	}
	m.events = &record.Events{Generated: 1, Counted: 1}
	if got := counts(); len(got) != 0 {
		t.Errorf("without a tracer: %v", got)
	}
}

func TestTraceGates(t *testing.T) {
	change := func(f func(*load.Result)) func(*measurement) {
		return func(m *measurement) { r := m.loads["execs"]; f(&r); m.loads["execs"] = r }
	}
	for _, c := range []struct {
		name   string
		change func(*measurement)
		gate   string
		says   string
	}{
		{"loss is no fault of the trial", func(*measurement) {}, "", ""},
		{"counts that differ", func(m *measurement) { m.events.Counted = 2099 }, "counts", "the load made 2100 execs, and the kernel counted 2099 in its control group"},
		{"a counter that did not run", func(m *measurement) { m.events.Missed = 3 }, "counts", "did not run for 3 of them"},
		{"a scale that was held up", func(m *measurement) { m.ledger.Window.Seconds = 0.5 }, "window", "counters were read 0.500 s apart, and the load's window is 2s"},
		{"nodes that hold each other up", func(m *measurement) { m.ledger.Window.Seconds, m.shared = 0.5, true }, "", ""},
		{"all of its CPU", change(func(r *load.Result) { r.CPUSeconds = 100 }), "", ""},
		{"rate", change(func(r *load.Result) { r.Done = 1500 }), "rate", "execs: 75.00 % of the intended execs were made in time, and 99 % must be"},
		{"those under way at the end", change(func(r *load.Result) { r.Intended, r.Done, r.Late = 200, 200, 4 }), "", ""},
		{"nothing intended", change(func(r *load.Result) { r.Intended, r.Done = 0, 0 }), "idle", "no exec was intended"},
		{"a storm of nothing", change(func(r *load.Result) { r.Mode, r.Done = load.Closed, 0 }), "idle", "not one exec was made"},
		{"errors", change(func(r *load.Result) { r.Errors = map[string]int64{"clone EAGAIN": 20} }), "errors", "20 of 2000 execs failed (clone EAGAIN 20)"},
		{"lag", change(func(r *load.Result) { histogram(t, r, load.OwnLag, 2000, 33_000_000) }), "lag", "late, and 25ms is allowed"},
		{"drift", change(func(r *load.Result) { r.Mode, r.Slices = load.Closed, halves(200, 200e-6, 100, 400e-6) }), "drift", "throughput went from 2000/s"},
		{"a tracer held back that nobody limited", func(m *measurement) { m.ledger.Cgroups[7].ThrottledSeconds = ptr(0.5) }, "throttled", "/subject was throttled"},
		{"a tracer held back as asked", func(m *measurement) {
			m.ledger.Cgroups[7].ThrottledSeconds = ptr(0.5)
			m.spec.Arms["exectrace"].Limits["cpus"] = "0.05"
		}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := tracedMeasurement(t)
			m.spec.Gates = param.Defaults(gateKnobs)
			c.change(m)
			reasons := m.judge()
			switch {
			case c.gate == "" && len(reasons) > 0:
				t.Errorf("tripped %+v", reasons)
			case c.gate != "" && (len(reasons) != 1 || reasons[0].Gate != c.gate || !strings.Contains(reasons[0].Message, c.says)):
				t.Errorf("got %+v\nwant %s: %s", reasons, c.gate, c.says)
			}
		})
	}
}

// TestTracedTrials runs a block with the real load, the real kernel and real tracers: everything counts to the event.
func TestTracedTrials(t *testing.T) {
	g := newGround(t)
	v2(t, g.machine.Cgroups)
	_, trials, err := g.run(t.Context(), mustParse(t, traceSpec), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 5 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		e := tr.Events
		if !tr.Validity.Valid || e == nil {
			t.Errorf("%s: %+v, events %+v", tr.Arm, tr.Validity, e)
			continue
		}
		made := e.Generated // 70, at 200 per second for 350 ms, on a machine that has the time for it
		if made == 0 || made > 70 || e.Counted != made || e.Missed != 0 || e.Offset.Counted == 0 {
			t.Errorf("%s: %+v", tr.Arm, *e)
		}
		if baseline := tr.Arm == record.Direct || tr.Arm == record.AA; baseline {
			if e.Delivered != nil || tr.Metrics["events_generated"] != float64(made) {
				t.Errorf("%s delivers %v, metrics %v", tr.Arm, e.Delivered, tr.Metrics)
			}
			continue
		}
		if e.Delivered == nil || *e.Delivered != made || *e.Expected != made || *e.Late < 0 || e.SaidLost == nil || *e.SaidLost != 0 {
			text, _ := json.Marshal(e)
			t.Errorf("%s: %s", tr.Arm, text)
		}
		if e.Offset.Delivered == nil || *e.Offset.Delivered != e.Offset.Counted {
			text, _ := json.Marshal(e)
			t.Errorf("%s: what the harness execs itself is counted and delivered alike: %s", tr.Arm, text)
		}
		var found tracerReady
		if err := json.Unmarshal(tr.Subject, &found); err != nil || len(found.Processes) == 0 || found.RSS < 1<<20 || found.RSSPeak < found.RSS {
			t.Errorf("%s: %s, %v", tr.Arm, tr.Subject, err)
		}
		if tr.Metrics["start_seconds"] <= 0 || tr.Metrics["rss_peak_bytes"] != float64(found.RSSPeak) {
			t.Errorf("%s: metrics %v", tr.Arm, tr.Metrics)
		}
	}
}

// TestTracersThatDoNotWork: a trial fails by the tracer's own fault, and says so in the tracer's words.
func TestTracersThatDoNotWork(t *testing.T) {
	g := newGround(t)
	v2(t, g.machine.Cgroups)
	text := traceSpec[:strings.Index(traceSpec, "  exectrace:")] + `  dead: {subject: command, command: "sh -c 'echo ready; sleep 1; echo it is no use >&2; exit 9'", ready: ready, lines: event}
  mute: {subject: command, command: "sh -c 'echo ready; exec sleep 100'", ready: ready, json: stats.delivered, drain: 0s}
  deaf: {subject: command, command: "sh -c 'trap \"\" INT; echo ready; while :; do sleep 1; done'", ready: ready, lines: event, drain: 0s, stop: 100ms}
  never: {subject: command, command: "sh -c 'exit 5'", ready: ready, lines: event}
gates: {rate: 0, lag: 60s, drift: 1000}
`
	s := mustParse(t, strings.Replace(text, "duration: 300ms", "duration: 1200ms", 1))
	_, trials, err := g.run(t.Context(), s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"dead":  "sh ended during the trial: exit status 9; its last words: it is no use",
		"mute":  "mute never said how many events it delivered: no line of its stdout has a number at stats.delivered",
		"never": "sh ended before it was ready: exit status 5",
	}
	for _, tr := range trials {
		if says := want[tr.Arm]; !strings.Contains(tr.Validity.Failed, says) || (says == "") != (tr.Validity.Failed == "") {
			t.Errorf("%s: %+v, want %s", tr.Arm, tr.Validity, says)
		}
		if tr.Arm == "deaf" {
			codes := map[string]bool{}
			for _, w := range tr.Ledger.Warnings {
				codes[w.Code] = true
			}
			if !codes["tracer-killed"] || !codes["no-line-matches"] || tr.Metrics["events_lost"] != tr.Metrics["events_counted"] || tr.Metrics["events_lost"] == 0 {
				t.Errorf("one that heeds nothing and delivers nothing: %+v, metrics %v", tr.Ledger.Warnings, tr.Metrics)
			}
		}
	}
}
