package report

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

// TestAbsentArms: every format says that an arm did not run, and control characters in the reason do no harm.
func TestAbsentArms(t *testing.T) {
	absent := map[string]string{"ig": "ig: not installed\x1b[2J; get it"}
	run := record.Run{Schema: record.RunSchema, Experiment: "traced", Absent: absent, Blocks: 1,
		Plan: []record.PlannedTrial{{Arm: record.Direct}}}
	trials := []record.Trial{{PlannedTrial: run.Plan[0], Metrics: map[string]float64{"events_generated": 3},
		Validity: record.Validity{Valid: true}}}
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"text":     func(b *bytes.Buffer) error { return Text(b, s, run, Options{Width: 200}) },
		"Markdown": func(b *bytes.Buffer) error { return Markdown(b, s, run, Options{}) },
		"JSON":     func(b *bytes.Buffer) error { return JSON(b, s) },
		"HTML":     func(b *bytes.Buffer) error { return HTML(b, s, run, trials, HTMLOptions{}) },
		"bench":    func(b *bytes.Buffer) error { return Bench(b, run, trials) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(b.String(), "ig: not installed") || strings.Contains(b.String(), "\x1b[2J") {
			t.Errorf("%s:\n%s", name, b.String())
		}
	}
}

// TestNoneOfMany: if an event was never seen among many, the report says so, and how frequent it could still be.
func TestNoneOfMany(t *testing.T) {
	lo, hi := 0.0, 1.3e-4
	e := analysis.Estimate{Metric: "events_lost_share", Unit: "part", Arm: "mine",
		Interval: analysis.Interval{Lo: &lo, Hi: &hi}, N: 30_000,
		Method: analysis.PooledMethod}
	s := &analysis.Summary{Estimates: []analysis.Estimate{e}}
	if r := rowOf(s, e); r.Value != "none in 30000 (below 0.013 %)" {
		t.Errorf("it is shown as %q", r.Value)
	}
	e.Value, hi = 0.5, 0.6
	if r := rowOf(s, e); strings.Contains(r.Value, "none") {
		t.Errorf("half of them are shown as %q", r.Value)
	}
}
