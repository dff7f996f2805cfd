package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
)

const traceSpec = `name: traced
question: What is lost?
blocks: 1
warmup: 50ms
duration: 2s
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
	if again := mustParse(t, string(resolved)); again.Arms["mine"].Options["lines"] != `^\{` ||
		again.Loads["execs"].Options["rate"] != "200" {
		t.Errorf("read again it is %+v", again.Arms["mine"].Options)
	}
}

// TestTraceRefuses: a spec whose events cannot be counted is rejected before the run.
func TestTraceRefuses(t *testing.T) {
	for want, change := range map[string][2]string{
		`has a "lines" that is not a regular expression`:                     {`'^\{'`, `'('`},
		`has "lines" and "json": one thing is counted in one way`:            {"lines:", "json: a, lines:"},
		`has a "json" that is not a path`:                                    {`lines: '^\{'`, "json: a..b"},
		`give one of "lines", "json" and "prometheus"`:                       {`lines: '^\{', `, ""},
		"did you mean {cgroup_dir}?":                                         {"{cgroup_dir}", "{cgroup_dirs}"},
		`there is no key "rings" in an arm "exectrace"; did you mean "ring"`: {"ring:", "rings:"},
		`must be a number or storm, not "strom"; did you mean "storm"?`:      {"rate: 200", "rate: strom"},
		`give it more "workers" instead of a "count"`:                        {"workers: 2", "count: 2"},
		"a second load of kind exec":                                         {"arms:", "  more: {kind: exec}\narms:"},
		"a tracer (exectrace) needs something to trace": {"{kind: exec, rate: 200, workers: 2}",
			"{kind: probe}"},
		`there is no key "to" in a load "execs"`: {"rate: 200", "to: server, rate: 200"},
	} {
		if _, err := spec.Parse("test.yaml", []byte(strings.Replace(traceSpec, change[0], change[1], 1)),
			testFeatures); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// TestTracersThatAreAbsent: a run continues without an arm whose program may be missing, and says which arm and why. If
// no other arm remains, it does not begin.
func TestTracersThatAreAbsent(t *testing.T) {
	const other = "  gone: {subject: command, command: no-such-tracer-anywhere, lines: ''%s}\n"
	with := func(more, rest string) *spec.Spec {
		return mustParse(t, strings.Replace(traceSpec, "gates:", fmt.Sprintf(other, more)+"gates:", 1)+rest)
	}
	s := with(", optional: true", "factors:\n  gone.drain: [1s, 2s]\n  execs.rate: [100, 200]\nquick:\n  arms: [gone, "+
		"mine]\n  factors: {gone.drain: [1s]}\n")
	absent, err := s.LeaveOutAbsent(t.Context())
	if err != nil || len(absent) != 1 || !strings.Contains(absent["gone"],
		"no-such-tracer-anywhere: not installed; install it") {
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

	_, err = with("", "").LeaveOutAbsent(t.Context())
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "arms.gone") ||
		!strings.Contains(fault.HintOf(err), "optional: true") {
		t.Errorf("one that may not be missing: %v, hint %q", err, fault.HintOf(err))
	}
	if absent, err := mustParse(t, traceSpec).LeaveOutAbsent(t.Context()); err != nil || absent != nil {
		t.Errorf("with all there: %v, %v", absent, err)
	}
	if v := with(", version: 'echo v7'", "").SubjectVersions(t.Context(), "own"); v["exectrace"] != "own" ||
		v["no-such-tracer-anywhere"] != "v7" {
		t.Errorf("versions: %v", v)
	}
}

// TestTracedTrials runs a block with the real load, kernel and tracers: all counts agree exactly.
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
		made := e.Generated // 410, at 200 per second for 2.05 s, on a machine that has the time for it
		if made == 0 || made > 410 || e.Counted != made || e.Missed != 0 || e.Offset.Counted == 0 {
			t.Errorf("%s: %+v", tr.Arm, *e)
		}
		if baseline := tr.Arm == record.Direct || tr.Arm == record.AA; baseline {
			if e.Delivered != nil || tr.Metrics["events_generated"] != float64(made) {
				t.Errorf("%s delivers %v, metrics %v", tr.Arm, e.Delivered, tr.Metrics)
			}
			continue
		}
		if e.Delivered == nil || *e.Delivered != made || *e.Expected != made || *e.Late < 0 || e.SaidLost == nil ||
			*e.SaidLost != 0 {
			text, _ := json.Marshal(e)
			t.Errorf("%s: %s", tr.Arm, text)
		}
		if e.Offset.Delivered == nil || *e.Offset.Delivered != e.Offset.Counted {
			text, _ := json.Marshal(e)
			t.Errorf("%s: what the harness execs itself is counted and delivered alike: %s", tr.Arm, text)
		}
		var found struct {
			Processes []int  `json:"processes"`
			RSS       uint64 `json:"rss_bytes"`
			RSSPeak   uint64 `json:"rss_peak_bytes"`
		}
		if err := json.Unmarshal(tr.Subject, &found); err != nil || len(found.Processes) == 0 || found.RSS < 1<<20 ||
			found.RSSPeak < found.RSS {
			t.Errorf("%s: %s, %v", tr.Arm, tr.Subject, err)
		}
		if tr.Metrics["start_seconds"] <= 0 || tr.Metrics["rss_peak_bytes"] != float64(found.RSSPeak) {
			t.Errorf("%s: metrics %v", tr.Arm, tr.Metrics)
		}
	}
}

// TestTracersThatDoNotWork: a trial that fails because of the tracer shows the tracer's own error message.
func TestTracersThatDoNotWork(t *testing.T) {
	g := newGround(t)
	v2(t, g.machine.Cgroups)
	text := traceSpec[:strings.Index(traceSpec, "  exectrace:")] +
		`  dead: {subject: command, command: "sh -c 'echo ready; sleep 1; echo it is no use >&2; exit 9'", ready: ready, lines: event}
  mute: {subject: command, command: "sh -c 'echo ready; exec sleep 100'", ready: ready, json: stats.delivered, drain: 0s}
  deaf: {subject: command, command: "sh -c 'trap \"\" INT; echo ready; while :; do sleep 1; done'", ready: ready, lines: event, drain: 0s, stop: 100ms}
  never: {subject: command, command: "sh -c 'exit 5'", ready: ready, lines: event}
gates: {rate: 0, lag: 60s, drift: 1000}
`
	_, trials, err := g.run(t.Context(), mustParse(t, text), quiet)
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
			if !codes["tracer-killed"] || !codes["no-line-matches"] ||
				tr.Metrics["events_lost"] != tr.Metrics["events_counted"] || tr.Metrics["events_lost"] == 0 {
				t.Errorf("one that heeds nothing and delivers nothing: %+v, metrics %v", tr.Ledger.Warnings, tr.Metrics)
			}
		}
	}
}
