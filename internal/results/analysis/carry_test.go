package analysis_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
	"tare/test/long"
)

// A subject that costs nothing but burdens the trial after it: how often it is resolved, as cheaper than it is, with
// the positions of trials known and without them. Without carry-over it must not be blamed.
func TestCarryOverBySimulation(t *testing.T) {
	t.Parallel()
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 30})
	for i := range trials {
		trials[i].Loads, trials[i].Counts = nil, nil
	}
	for _, carry := range []float64{0, 3} {
		runs := long.Repeat(60, 1000)
		r := rand.New(rand.NewPCG(31, uint64(carry)))
		var before, resolved, blamed float64
		each := 100 / float64(runs)
		for range runs {
			// a new order in each run
			arms := []string{record.Direct, record.AA, "candidate"}
			var order []int
			for i := range trials {
				if i%3 == 0 {
					order = r.Perm(3)
				}
				trials[i].Arm = arms[order[i%3]]
				x := 100 + r.NormFloat64()
				if i > 0 && trials[i-1].Arm == "candidate" {
					x += carry
				}
				trials[i].Metrics = map[string]float64{"own": x}
			}
			is := func(positions bool) *analysis.Difference {
				for i := range trials {
					trials[i].Position = i % 3
					if !positions {
						trials[i].Position = 0
					}
				}
				return summarize(t, run, trials).Find("own", "candidate", nil).Difference
			}
			if is(false).Resolved {
				before += each
			}
			d := is(true)
			if d.Resolved {
				resolved += each
			}
			warnings := strings.Join(summarize(t, run, trials).Warnings, " ")
			if strings.Contains(warnings, "changes the trial that runs right after it") {
				blamed += each
			}
		}
		t.Logf("carry-over of %g sd: resolved %.1f %% without positions, %.1f %% with; said %.1f %%", carry, before,
			resolved, blamed)
		if resolved > 5 || carry == 0 && blamed > 5 || carry > 0 && blamed < 85 {
			t.Errorf("carry-over of %g sd: resolved %.1f %%, said %.1f %%", carry, resolved, blamed)
		}
	}
}
