package analysis_test

import (
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// TestOwnUseIsNoDifference: an answer does not mention a subject's own use as a difference from a baseline without a
// subject. It is the same with and without these metrics.
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
	const hard = "memory_hard_bytes" // every ledger with memory has it
	without := answer(hard)
	if with := answer(hard, "subject_cpus", "subject_bpf_cpus", "memory_anon_bytes",
		"memory_kernel_bytes"); with != without {
		t.Errorf("got  %s\nwant %s", with, without)
	}
	if picked := answer(hard, "queue_count"); picked == without {
		t.Error("no difference of any metric is picked, so the above shows nothing")
	}
}

// TestLeftovers: the summary warns, too, of what trials left on the machine, because users may miss the warning during
// the run.
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

// TestProgramsLeft: the summary warns of an arm after whose trials eBPF programs were left, unless the baseline's were
// followed by some as well.
func TestProgramsLeft(t *testing.T) {
	const mine = "candidate"
	for name, c := range map[string]struct {
		left func(record.Trial) bool
		want bool
	}{
		"by the arm":      {func(t record.Trial) bool { return t.Arm == mine }, true},
		"once":            {func(t record.Trial) bool { return t.Arm == mine && t.Block == 2 }, true},
		"in the baseline": {func(t record.Trial) bool { return t.Arm == mine || t.Arm == record.AA && t.Block == 3 }, false},
		"by none":         {func(record.Trial) bool { return false }, false},
	} {
		run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6})
		for i := range trials {
			if c.left(trials[i]) {
				trials[i].Ledger.Warn(record.ProgramsLeft, "%d from_client (sched_cls)", i)
			}
		}
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(s.Warnings, func(w string) bool {
			return strings.Contains(w, " of "+mine+", and none of the baseline, eBPF programs ") &&
				strings.Contains(w, " from_client (sched_cls)): ")
		})
		if said != c.want {
			t.Errorf("%s: warnings %q", name, s.Warnings)
		}
	}
}

// TestMadeBeside: the summary warns of an arm if control groups outside of the trial were created in all of its trials
// and in none of the baseline. It does not warn if only some trials created them, or if the baseline did as well.
func TestMadeBeside(t *testing.T) {
	const mine = "candidate"
	for name, c := range map[string]struct {
		made func(record.Trial) bool
		want bool
	}{
		"by the arm":      {func(t record.Trial) bool { return t.Arm == mine }, true},
		"not in all":      {func(t record.Trial) bool { return t.Arm == mine && t.Block > 0 }, false},
		"in the baseline": {func(t record.Trial) bool { return t.Arm == mine || t.Arm == record.AA && t.Block == 3 }, false},
		"by none":         {func(record.Trial) bool { return false }, false},
	} {
		run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6})
		for i := range trials {
			if c.made(trials[i]) {
				trials[i].Ledger.Warn(record.MadeBeside, "/docker/%d, which used 1.500 s of CPU time", i)
			}
		}
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(s.Warnings, func(w string) bool {
			return strings.Contains(w, " trials of "+mine+", and in none of the baseline, ") &&
				strings.Contains(w, "(in the last: /docker/")
		})
		if said != c.want {
			t.Errorf("%s: warnings %q", name, s.Warnings)
		}
	}
}
