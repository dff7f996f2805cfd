package analysis_test

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

func TestEnough(t *testing.T) {
	t.Parallel()
	enough := func(truth analysistest.Truth, target float64, metrics ...string) (bool, string) {
		t.Helper()
		run, trials := analysistest.Quickstart(truth)
		run.Headline, run.Precision = headlines, &record.Precision{Target: target, Metrics: metrics}
		ok, why, err := analysis.Enough(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		return ok, why
	}
	truth := plain
	truth.Blocks = 12
	if ok, why := enough(truth, 0.1, "latency_p50_seconds", "cpu_seconds_per_connection"); !ok || why != "" {
		t.Errorf("not precise: %s", why)
	}
	ok, why := enough(truth, 0.001, "latency_p50_seconds", "cpu_seconds_per_connection")
	if ok || !strings.Contains(why, "intervals are wider than 0.1 %: ") ||
		!strings.Contains(why, "CPU per connection of direct (") {
		t.Errorf("precise to 0.1 %%: %q", why)
	}
	noisy := truth
	noisy.Noise = 30e-6
	// The noise of latency does not affect this metric, which the baseline does not have.
	if ok, why := enough(noisy, 0.05, "bpf_seconds_per_connection"); !ok {
		t.Errorf("not precise: %s", why)
	}
	if ok, _ := enough(noisy, 0.05, "latency_p50_seconds"); ok {
		t.Error("precise in spite of the noise")
	}
	if ok, why := enough(truth, 0.05, "flush_seconds"); ok || why == "" {
		t.Errorf("precise about what nobody measured: %q", why)
	}
	few := plain
	few.Blocks = 4
	if ok, _ := enough(few, 1, "latency_p50_seconds"); ok {
		t.Error("precise without an interval")
	}
}

// TestEnoughLooksAtNoDifference: when a run ends does not depend on whether a difference is resolved.
func TestEnoughLooksAtNoDifference(t *testing.T) {
	t.Parallel()
	for _, adds := range []float64{0, 1e-6, 9e-6, 90e-6} {
		truth := plain
		truth.Blocks, truth.BPF, truth.Latency = 12, 0, adds
		run, trials := analysistest.Quickstart(truth)
		run.Precision = &record.Precision{Target: 0.1, Metrics: []string{"latency_p50_seconds"}}
		if ok, why, err := analysis.Enough(run, trials); !ok || err != nil {
			t.Errorf("with %g s added: %s, %v", adds, why, err)
		}
	}
}

// TestEnoughAndGates: a run continues for a metric that further blocks can give, and not for one that they cannot.
func TestEnoughAndGates(t *testing.T) {
	t.Parallel()
	truth := plain
	truth.Blocks = 12
	run, trials := analysistest.Quickstart(truth)
	run.Headline, run.Precision = headlines, &record.Precision{Target: 0.1,
		Metrics: []string{"latency_p50_seconds", "bpf_seconds_per_connection"}}
	if ok, why, err := analysis.Enough(run, spoil(trials, everyTrial, late(0.2))); ok || err != nil ||
		!strings.Contains(why, "the hypervisor took 20 % of the CPU time") {
		t.Errorf("%v, %q, %v", ok, why, err)
	}
	slow := late(0)
	slow.Gate, slow.Cause, slow.CauseShare = "rate", "subject", nil
	if ok, why, err := analysis.Enough(run, spoil(trials, everyTrial, slow)); !ok || err != nil {
		t.Errorf("%v, %q, %v", ok, why, err)
	}
}
