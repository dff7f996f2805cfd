package analysis_test

import (
	"slices"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// TestOwnUseIsNoDifference: what a subject uses itself is not picked as a difference to a baseline that has no subject;
// the answer to a run is the same with these metrics and without.
func TestOwnUseIsNoDifference(t *testing.T) {
	t.Parallel()
	answer := func(names ...string) string {
		run, trials := analysistest.Quickstart(analysistest.Truth{
			Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6, MapBytes: 1.2e6,
		})
		run.Metrics = measured.Definitions()
		for i := range trials {
			for _, name := range names {
				trials[i].Metrics[name] = 0
				if trials[i].Arm == "candidate" {
					trials[i].Metrics[name] = 0.25 + 0.001*float64(trials[i].Block)
				}
			}
		}
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if s.Find(name, "candidate", nil) == nil {
				t.Fatalf("there is no estimate of %s", name)
			}
		}
		return s.Answers[0].Answer
	}
	const hard = "memory_hard_bytes" // which every ledger with memory has
	without := answer(hard)
	if with := answer(hard, "subject_cpus", "subject_bpf_cpus", "memory_anon_bytes",
		"memory_kernel_bytes"); with != without {
		t.Errorf("got  %s\nwant %s", with, without)
	}
	if picked := answer(hard, "queue_count"); picked == without {
		t.Error("no difference of any metric is picked, so the above shows nothing")
	}
}

// TestLeftovers: what trials left on the machine stands in the summary, whoever looked away when it was first said.
func TestLeftovers(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6})
	for _, i := range []int{3, 5} {
		trials[i].Ledger.Warn(record.LeftBehind, "the trial left behind on the machine: /run/%d", i)
	}
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	const want = "2 trials left something behind; of the first: the trial left behind on the machine: /run/3"
	if !slices.Contains(s.Warnings, want) {
		t.Errorf("warnings %q", s.Warnings)
	}
}
