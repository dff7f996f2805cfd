package analysis

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// connectRun is a run in which each arm has so many connections of each kind in each of 6 trials.
func connectRun(t *testing.T, counts map[string]map[string]int) *Summary {
	t.Helper()
	run := record.Run{Schema: record.RunSchema, Experiment: "config-consistency", Question: "How many?", Baseline: "sized", Blocks: 6}
	run.Traits = map[string]string{record.Direct: "whole per record", "pooled": "whole per record", "snapshot": "whole per change", "value": "whole per resource"}
	var trials []record.Trial
	for block := range run.Blocks {
		for _, arm := range []string{record.Direct, record.AA, "pooled", "snapshot", "value"} {
			p := record.PlannedTrial{Index: len(trials), Block: block, Arm: arm}
			tr := record.Trial{PlannedTrial: p, Counts: map[string]record.Count{}, Validity: record.Validity{Valid: true}, Metrics: map[string]float64{
				"replacements_per_second": 12_345, "replacement_seconds": 60e-6, "old_endpoint_max_seconds": 0.02, "old_endpoint_p50_seconds": 1e-6, "throughput_per_second": 678_912,
			}}
			for _, metric := range []string{"wrong", "stale", "torn", "missed", "failed", "backward"} {
				tr.Counts[metric+"_connect_share"] = record.Count{In: counts[arm][metric], Of: 500_000}
			}
			trials = append(trials, tr)
			run.Plan = append(run.Plan, p)
		}
	}
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	sameByAnotherName(t, s, run, trials)
	return s
}

func TestConsistencyAnswers(t *testing.T) {
	much := map[string]int{"wrong": 5_001, "torn": 1, "missed": 5_000, "failed": 150_000, "backward": 50_000}
	s := connectRun(t, map[string]map[string]int{record.Direct: much, record.AA: much, "pooled": much, "value": {"failed": 7, "backward": 60_000}})
	if len(s.Answers) != 5 {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, wants := range [][]string{
		{"With snapshot every connection went to an endpoint of the old or the new set, and none failed. With value no connection went to a wrong endpoint, but some failed. With sized and pooled some went to an address in neither set."},
		{"sized (baseline) (whole per record): of 3,000,000 connections 30,006 (1.00 % [0.99, 1.02]) went to an address in neither the old nor the new set: 6 to endpoints of no set, parts of two, 30,000 past the mesh, to the service's own address; 900,000 (30.00 %",
			"300,000 (10.00 % [9.96, 10.04]) went to an old endpoint after an earlier one had gone to a new one.", "Old endpoints were seen for at most 20.0 ms after a change began; over the changes in which they were seen, the median is 1.00 us",
			"It made 12,300 changes a second, each in 60.0 us, beside 679,000 connections a second."},
		{"pooled (whole per record)"},
		{"snapshot (whole per change): of 3,000,000 connections none (below 1 in a million, at 95 %) went to an address in neither the old nor the new set; none (below 1 in a million, at 95 %) failed; none (below"},
		{"value (whole per resource): of 3,000,000 connections none", "42 (14 [9, 21] in a million) failed"},
	} {
		for _, want := range wants {
			if !strings.Contains(s.Answers[i].Answer, want) {
				t.Errorf("answer %d lacks %q:\n%s", i, want, s.Answers[i].Answer)
			}
		}
	}
	if e := s.Answers[3].Evidence; len(e) < 5 || e[0] != "wrong_connect_share snapshot" {
		t.Errorf("evidence %v", e)
	}
	if s := connectRun(t, nil); strings.Contains(s.Answers[0].Answer, "some") || !strings.Contains(s.Answers[0].Answer, "With sized, pooled, snapshot and value every connection") {
		t.Errorf("all are clean: %s", s.Answers[0].Answer)
	}
}

func TestPathAnswers(t *testing.T) {
	var levels []map[string]string
	for _, n := range []int{1, 100, 5000} {
		levels = append(levels, map[string]string{"*.services": fmt.Sprint(n)})
	}
	s := storeRun(t, "config-path", "sized", levels, []string{"less", "mixed"}, func(arm string, level map[string]string) map[string]float64 {
		m := map[string]float64{"bpf_seconds_per_connection": 600e-9, "connect_p50_seconds": 2e-6}
		switch {
		case arm == "less":
			m["bpf_seconds_per_connection"] = 100e-9
		case arm == "mixed" && level["*.services"] != "1":
			m["bpf_seconds_per_connection"] = 900e-9
		}
		return m
	})
	if len(s.Answers) != 3 {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, wants := range [][]string{
		{"sized (baseline): a connection takes 600 ns at services 1 and 600 ns at services 5000 in the programs. The whole of connect() takes 2.0"},
		{"less: a connection takes 100 ns at services 1 and", "in the programs, less than with sized at every level."},
		{"mixed: a connection", "more than with sized at 2 of 3 levels"},
	} {
		for _, want := range wants {
			if !strings.Contains(s.Answers[i].Answer, want) {
				t.Errorf("answer %d lacks %q:\n%s", i, want, s.Answers[i].Answer)
			}
		}
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 123_456: "123,456", 10_000_000: "10,000,000", -1000: "-1,000", -999: "-999"} {
		if got := quantity.Thousands(n); got != want {
			t.Errorf("quantity.Thousands(%d) = %s, want %s", n, got, want)
		}
	}
}
