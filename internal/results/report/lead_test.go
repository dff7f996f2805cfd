package report

import (
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// TestLead: asserted metrics come first, then those that are defined as leading. Each component of an arm has a row. In
// a column whose metric has no components, these rows show a part of the metric that has some. A metric has no column
// if it is 0 everywhere, or if another column has the same cost per another unit of work.
func TestLead(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{
		Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6, MapBytes: 1.2e6, Rates: []string{"500", "1000"},
	})
	run.Metrics, run.Assert = measured.Definitions(), []string{"start_seconds <= 2s"}
	for i := range trials {
		m, of := trials[i].Metrics, 1+0.01*float64(trials[i].Block)
		m["cpu_seconds_per_request"], m["memory_hard_bytes"], m["memory_soft_bytes"] = 20e-6*of, 0, 0
		if trials[i].Arm != "candidate" {
			continue
		}
		m["start_seconds"], m["memory_hard_bytes"], m["cpu_seconds_per_request"] = 0.5*of, 3e6*of, 50e-6*of
		trials[i].Components = map[string]map[string]float64{
			"front": {"subject_cpu_seconds_per_request": 10e-6 * of, "memory_hard_bytes": 1e6 * of},
			"back":  {"subject_cpu_seconds_per_request": 20e-6 * of, "memory_hard_bytes": 2e6 * of},
		}
	}
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	l := newLead(s, run)
	want := []string{"start_seconds", "bpf_seconds_per_connection", "cpu_seconds_per_connection", "latency_p50_seconds",
		"latency_p99_seconds", "memory_hard_bytes"}
	if !slices.Equal(l.Metrics, want) {
		t.Errorf("the columns are %v, want %v", l.Metrics, want)
	}
	if len(l.Levels) != 2 || l.Levels[0].Title != "rate 500" || len(l.Levels[1].Rows) != 4 {
		t.Fatalf("the levels are %+v", l.Levels)
	}
	rows := l.Levels[1].Rows
	memory := len(want) - 1
	for i, name := range []string{"direct", "candidate", "back", "front"} {
		if rows[i].Name != name || rows[i].Part != (i > 1) {
			t.Errorf("row %d is %+v, want %s", i, rows[i], name)
		}
	}
	if !strings.HasPrefix(rows[2].Cells[memory], "2.0") || !strings.HasPrefix(rows[3].Cells[memory], "1.0") ||
		rows[2].Cells[3] != "" || !strings.Contains(rows[1].Cells[0], "ms [") {
		t.Errorf("%+v", rows)
	}
	if l.Note == "" || !strings.HasSuffix(rows[1].Cells[2], unresolved) {
		t.Errorf("a difference that is not resolved is not marked: %+v, %q", rows[1], l.Note)
	}
}

// TestDifferencesFromWithheld: without intervals, differences are shown as they are, but not if the value of the
// baseline is withheld.
func TestDifferencesFromWithheld(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 2, BPF: 3.1e-6, Latency: 9e-6, MapBytes: 1.2e6})
	for lost, want := range []string{"CPU per connection: candidate ",
		"CPU per connection: not resolved (the baseline's value is withheld);"} {
		for i := range trials {
			if trials[i].Arm == record.Direct && trials[i].Block < lost {
				trials[i].Validity = record.Validity{Reasons: []record.Reason{
					{Gate: "drift", Voids: []string{"cpu_seconds_per_connection"}}}}
			}
		}
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		if text := newLead(s, run).differences(s); !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
		e := s.Find("cpu_seconds_per_connection", "candidate", nil)
		if r := rowOf(s, *e); (r.Difference == "not resolved") != (lost > 0) {
			t.Errorf("%d lost: the row has %q", lost, r.Difference)
		}
		if has := slices.ContainsFunc(numbersOf(e)[3:], func(v *float64) bool { return v != nil }); has != (lost == 0) {
			t.Errorf("%d lost: a difference is exported: %t", lost, has)
		}
		points := slices.DeleteFunc(influxPoints(t, s, run), func(p influxPoint) bool {
			return p.tags["metric"] != e.Metric || p.tags["arm"] != e.Arm
		})
		if len(points) != 1 || points[0].fields["value"] == nil || (points[0].fields["difference"] != nil) != (lost == 0) ||
			(points[0].fields["ratio"] != nil) != (lost == 0) {
			t.Errorf("%d lost: InfluxDB gets %+v", lost, points)
		}
	}
}

// TestLacking: the paragraph that replaces the answers says what could not be measured, and why.
func TestLacking(t *testing.T) {
	run, _ := analysistest.Quickstart(analysistest.Truth{Blocks: 2})
	run.Headline = []string{"latency_p50_seconds", "map_bytes"}
	s := &analysis.Summary{Missing: []analysis.Missing{
		{Metric: "latency_p50_seconds", Arm: "a", Gate: "held", Message: "it was not held"},
		{Metric: "latency_p50_seconds", Arm: "b", Message: "no space left"}, {Metric: "start_seconds", Arm: "b"},
	}}
	const want = " Not measured in every arm: latency p50 (the gate held (it was not held); 1 more reason: --all)."
	if got := lacking(s, run); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := lacking(&analysis.Summary{}, run); got != "" {
		t.Errorf("got %q", got)
	}
}
