package connect

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// connectRun makes a run in which each arm has the given counts of connections in each of 6 trials.
func connectRun(t *testing.T, counts map[string]map[string]int) *analysis.Summary {
	t.Helper()
	run := record.Run{Baseline: "sized", Blocks: 6}
	run.Traits = map[string]string{record.Direct: "whole per record", "pooled": "whole per record",
		"snapshot": "whole per change", "value": "whole per resource"}
	var trials []record.Trial
	for block := range run.Blocks {
		for _, arm := range []string{record.Direct, record.AA, "pooled", "snapshot", "value"} {
			p := record.PlannedTrial{Index: len(trials), Block: block, Arm: arm}
			tr := record.Trial{PlannedTrial: p, Counts: map[string]record.Count{}, Validity: record.Validity{Valid: true},
				Metrics: map[string]float64{
					"replacements_per_second": 12_345, "replacement_seconds": 60e-6, "old_endpoint_max_seconds": 0.02,
					"old_endpoint_p50_seconds": 1e-6, "throughput_per_second": 678_912,
				}}
			for _, metric := range []string{"wrong", "stale", "torn", "missed", "failed", "backward"} {
				tr.Counts[metric+"_connect_share"] = record.Count{In: counts[arm][metric], Of: 500_000}
			}
			trials = append(trials, tr)
		}
	}
	return analysistest.Answered(t, run, trials)
}

func TestConsistencyAnswers(t *testing.T) {
	much := map[string]int{"wrong": 5_001, "torn": 1, "missed": 5_000, "failed": 150_000, "backward": 50_000}
	s := connectRun(t, map[string]map[string]int{record.Direct: much, record.AA: much, "pooled": much,
		"value": {"failed": 7, "backward": 60_000}})
	analysistest.Holds(t, s,
		[]string{"With snapshot every connection went to an endpoint of the old or the new set, and none failed. With " +
			"value no connection went to a wrong endpoint, but some failed. With sized and pooled some went to an address in " +
			"neither set."},
		[]string{"sized (baseline) (whole per record): of 3,000,000 connections 30,006 (1.00 % [0.99, 1.02]) went to an " +
			"address in neither the old nor the new set: 6 to endpoints of no set, parts of two, 30,000 past the mesh, to the " +
			"service's own address; 900,000 (30.00 %",
			"300,000 (10.00 % [9.96, 10.04]) went to an old endpoint after an earlier one had gone to a new one.",
			"Old endpoints were seen for at most 20.0 ms after a change began; over the changes in which they were seen, the " +
				"median is 1.00 us",
			"It made 12,300 changes a second, each in 60.0 us, beside 679,000 connections a second."},
		[]string{"pooled (whole per record)"},
		[]string{"snapshot (whole per change): of 3,000,000 connections none (below 1 in a million, at 95 %) went to an " +
			"address in neither the old nor the new set; none (below 1 in a million, at 95 %) failed; none (below"},
		[]string{"value (whole per resource): of 3,000,000 connections none", "42 (14 [9, 21] in a million) failed"},
	)
	if e := s.Answers[3].Evidence; len(e) < 5 || e[0] != "wrong_connect_share snapshot" {
		t.Errorf("evidence %v", e)
	}
	if s := connectRun(t, nil); strings.Contains(s.Answers[0].Answer, "some") ||
		!strings.Contains(s.Answers[0].Answer, "With sized, pooled, snapshot and value every connection") {
		t.Errorf("all are clean: %s", s.Answers[0].Answer)
	}
}
