package engine

import (
	"encoding/json"
	"slices"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/mesh/storebench"
)

const storeSpec = `name: stores
question: Which store?
blocks: 1
repeat: 0
warmup: 10ms
duration: 100ms
baseline: {subject: store, store: "sized:ordered", max-clusters: 70, max-listeners: 70, max-endpoints: 700}
arms:
  value: {subject: store, store: value, services: 1, endpoints: 2, max-clusters: 70, max-listeners: 70, max-endpoints: 700}
factors:
  "*.operation": [insert, replace]
`

// TestBaselineSubject: the baseline and its twin run the subject, factors reach it, and the resolved spec says so too.
func TestBaselineSubject(t *testing.T) {
	s := mustParse(t, storeSpec)
	if s.BaselineName() != "sized:ordered" || s.Of(record.Direct) != s.Baseline || s.Of(record.AA) != s.Baseline ||
		s.Of("value") != s.Arms["value"] {
		t.Errorf("%q %+v", s.BaselineName(), s.Baseline)
	}
	if got := s.AllArms(); !slices.Equal(got, []string{record.Direct, record.AA, "value"}) {
		t.Errorf("arms %v", got)
	}
	for i, want := range []string{"insert", "replace"} {
		at := s.At(s.Levels()[i])
		if at.Baseline.Options["operation"] != want || at.Arms["value"].Options["operation"] != want {
			t.Errorf("level %d: baseline %v, arm %v", i, at.Baseline.Options, at.Arms["value"].Options)
		}
	}
	if s.Baseline.Options["operation"] != "replace" {
		t.Error("taking a level changed the spec")
	}
	first, _ := json.Marshal(s)
	again, err := spec.Parse("run.json", first, testFeatures)
	if err != nil {
		t.Fatalf("%v\n%s", err, first)
	}
	if second, _ := json.Marshal(again); string(first) != string(second) {
		t.Errorf("not the same:\n%s\n%s", first, second)
	}
	if mustParse(t, reachHead+"arms: {a: {subject: kernelmesh}}\n").BaselineName() != "" {
		t.Error("a baseline without a subject has a name")
	}
	mesh := mustParse(t, reachHead+"baseline: {subject: kernelmesh}\n")
	if mesh.BaselineName() != "kernelmesh" {
		t.Errorf("a baseline of kernelmesh is called %q", mesh.BaselineName())
	}
}

// TestStoreTrials runs a block with the real processes, without any load.
func TestStoreTrials(t *testing.T) {
	g := newGround(t)
	_, trials, err := g.run(t.Context(), mustParse(t, storeSpec), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 6 {
		t.Fatalf("%d trials", len(trials))
	}
	for _, tr := range trials {
		if tr.Validity.Failed != "" || tr.Work == nil || tr.Work.Counts[storebench.Flushes] == 0 || tr.Subject == nil ||
			len(tr.Loads) != 0 {
			t.Errorf("%s: %+v, work %v, subject %s", tr.Arm, tr.Validity, tr.Work, tr.Subject)
			continue
		}
		records := 45.0 // as in the benchmark of the store's proposal
		if tr.Arm == "value" {
			records = map[string]float64{"insert": 2, "replace": 1}[tr.Factors["*.operation"]]
		}
		if got := tr.Metrics["records_per_flush"]; got != records {
			t.Errorf("%s at %v: %g records for a flush, want %g", tr.Arm, tr.Factors, got, records)
		}
		if m := tr.Metrics; m["flush_seconds"] <= 0 || m["bytes_per_flush"] <= 0 || m["start_seconds"] <= 0 ||
			m["store_open_seconds"] <= 0 {
			t.Errorf("%s: %v", tr.Arm, m)
		}
		for _, not := range []string{"throughput_per_second", "latency_p50_seconds", "lookup_seconds"} {
			if v, ok := tr.Metrics[not]; ok {
				t.Errorf("%s: %s is %g", tr.Arm, not, v)
			}
		}
		if _, filled := tr.Metrics["store_fill_seconds"]; filled != (tr.Arm == "value") {
			t.Errorf("%s: filled %v", tr.Arm, filled)
		}
	}
}
