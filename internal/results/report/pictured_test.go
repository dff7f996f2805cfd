package report_test

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
)

// TestPictured: a ladder and placements are shown at a terminal and in Markdown. Rungs are in the order of their
// definitions, places in the order of the arm that has all of them, and the twin is left out. Names are shown as text,
// whatever they contain.
func TestPictured(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	place := func(name string, hard float64) record.Place {
		return record.Place{Name: name, HardBytes: f(hard), CPUs: f(0.25),
			Components: []record.PlacedComponent{
				{Component: "v|m", Bytes: f(2 * hard)}, {Component: "small", CPUs: f(0.00062)},
			}}
	}
	pod := place("pod", 1e6)
	pod.Kubernetes = f(7e6)
	s := &analysis.Summary{Placements: []analysis.Placement{
		{Arm: record.Direct, Places: []record.Place{pod, place("load", 3e6)}},
		{Arm: record.AA, Places: []record.Place{place("twin's", 4e6)}},
		{Arm: "split", Places: []record.Place{pod, place("overhead", 5e6), place("load", 3e6)}},
	}}
	run := record.Run{}
	for i, rung := range []string{"second", "first"} { // not in the order of their names
		name := "step_" + rung + "_seconds"
		run.Metrics = append(run.Metrics, metric.Definition{Name: name, Unit: quantity.Seconds, Ladder: "steps", Rung: rung})
		for _, arm := range []string{record.Direct, record.AA, "split"} {
			s.Estimates = append(s.Estimates, analysis.Estimate{Metric: name, Unit: quantity.Seconds, Arm: arm,
				Interval: analysis.Interval{
					Value: float64(i+1) * 1e-6, Lo: f(float64(i+1) * 0.9e-6), Hi: f(float64(i+1) * 1.1e-6),
				}})
		}
	}
	var terminal, markdown bytes.Buffer
	if err := report.Text(&terminal, s, run, report.Options{All: true}); err != nil {
		t.Fatal(err)
	}
	if err := report.Markdown(&markdown, s, run, report.Options{All: true}); err != nil {
		t.Fatal(err)
	}
	words := func(b *bytes.Buffer) string { return strings.Join(strings.Fields(b.String()), " ") }
	for _, want := range []string{
		"Steps direct split second 1.0 us [0.9, 1.1] 1.0 us [0.9, 1.1] first 2.0 us [1.8, 2.2] 2.0 us [1.8, 2.2]",
		"direct pod overhead load v|m 2.00 MB - 6.00 MB small -, 0.000620 CPU - -, 0.000620 CPU " +
			"charged, hard 1.00 MB, 0.250 CPU - 3.00 MB, 0.250 CPU " +
			"charged, page cache - - - Kubernetes counts 7.00 MB, 0.250 CPU - -",
		"split pod overhead load v|m 2.00 MB 10.0 MB 6.00 MB",
	} {
		if !strings.Contains(words(&terminal), want) {
			t.Errorf("the text lacks %q:\n%s", want, terminal.String())
		}
	}
	for _, want := range []string{
		"## Steps | | direct | split | |---|---:|---:| | second |", `| split | v\|m | 2.00 MB | 10.0 MB | 6.00 MB |`,
		"| | Kubernetes counts | 7.00 MB, 0.250 CPU | - | - |",
	} {
		if !strings.Contains(words(&markdown), want) {
			t.Errorf("the Markdown lacks %q:\n%s", want, markdown.String())
		}
	}
	if strings.Contains(terminal.String(), "twin's") || strings.Contains(markdown.String(), "twin's") {
		t.Error("the twin is shown")
	}
}
