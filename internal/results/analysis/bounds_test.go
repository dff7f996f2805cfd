package analysis

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
)

// wide returns a run with the given numbers of metrics, levels and blocks.
func wide(metrics, levels, blocks int) (record.Run, []record.Trial) {
	run := record.Run{Schema: record.RunSchema, Headline: []string{"zz_headline"}}
	var trials []record.Trial
	values := map[string]float64{"zz_headline": 1}
	for i := range metrics - 1 {
		name := fmt.Sprintf("m%04d", i)
		values[name] = float64(i)
		if i%2 == 0 {
			run.Metrics = append(run.Metrics, metric.Definition{Name: name})
		}
	}
	for block := range blocks {
		for level := range levels {
			for _, arm := range []string{record.Direct, "a"} {
				trials = append(trials, record.Trial{
					PlannedTrial: record.PlannedTrial{
						Index: len(trials), Block: block, Arm: arm, Factors: map[string]string{"level": fmt.Sprint(level)},
					},
					Metrics: values, Validity: record.Validity{Valid: true},
				})
			}
		}
	}
	return run, trials
}

// TestBounded: metrics that would take a summary beyond its limits are left out, the most important ones last, and the
// summary says so.
func TestBounded(t *testing.T) {
	for _, c := range []struct {
		name                    string
		metrics, levels, blocks int
		left                    int
	}{
		{"a run", 100, 3, 10, 0},
		{"estimates", 200, 100, 1, 50},
		{"resampling", 400, 1, 300, 178},
		{"names", 2 * (maxUndefined + 10), 1, 1, 10},
	} {
		run, trials := wide(c.metrics, c.levels, c.blocks)
		kept, left := bounded(run, trials)
		if c.name == "names" {
			c.left = 1 // at least
		}
		if left != c.left || len(trials[0].Metrics) != c.metrics {
			t.Errorf("%s: %d are left out, want %d", c.name, left, c.left)
		}
		has := func(name string) bool { _, has := kept[0].Metrics[name]; return has }
		if !has("zz_headline") || !has("m0000") || left > 1 && has(fmt.Sprintf("m%04d", (c.metrics-2)/2*2-1)) {
			t.Errorf("%s: the wrong ones are left out", c.name)
		}
	}
	run, trials := wide(400, 50, 1)
	s, err := Summarize(run, trials)
	if err != nil || len(s.Estimates) > maxEstimates ||
		!strings.Contains(strings.Join(s.Warnings, "\n"), "metrics or components are left out") {
		t.Errorf("%d estimates, %q, %v", len(s.Estimates), s.Warnings, err)
	}
}

// TestBoundedComponents: components are bounded with the metrics that they have.
func TestBoundedComponents(t *testing.T) {
	run, trials := wide(2, 1, 1)
	for i := range trials {
		trials[i].Components = map[string]map[string]float64{}
		for c := range maxComponents + 5 {
			trials[i].Components[fmt.Sprintf("c%03d", c)] = map[string]float64{"m0000": 1}
		}
	}
	kept, left := bounded(run, trials)
	if left != 1 || len(kept[0].Components) != maxComponents || len(trials[0].Components) != maxComponents+5 {
		t.Errorf("%d left out, %d components", left, len(kept[0].Components))
	}
}

// TestChecksAreBounded: the number of checks is bounded by the numbers of assertions, arms and levels.
func TestChecksAreBounded(t *testing.T) {
	run, trials := wide(2, 150, 1)
	for i := range 67 {
		run.Assert = append(run.Assert, fmt.Sprintf("m0000 <= %d", i))
	}
	if _, err := Summarize(run, trials); err == nil || !strings.Contains(err.Error(), fmt.Sprint(assertion.MostChecks)) {
		t.Errorf("%v", err)
	}
	run.Assert = run.Assert[:66]
	if s, err := Summarize(run, trials); err != nil || len(s.Verdicts) != 66 || len(s.Verdicts[65].Checks) != 150 {
		t.Errorf("%v", err)
	}
}
