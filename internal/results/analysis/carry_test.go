package analysis_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/analysistest"
	"tare/test/long"
)

// TestCarryOverBySimulation: a subject costs nothing but slows the trial after it, and so seems cheaper than its
// baseline. The table shows how often that difference is resolved, without and with the positions of the trials, and
// how often the summary warns. A subject without carry-over must not be blamed.
func TestCarryOverBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| carry-over, sd | blocks | resolved without positions % | with % | said % |")
	runs := long.Repeat(60, 400)
	if *simulated > 0 {
		runs = *simulated
	}
	for _, c := range long.Some(2, []struct {
		carry  float64
		blocks int
		least  float64 // minimum of "said %"
	}{{0, 30, 0}, {0, 18, 0}, {1.5, 30, 40}, {3, 30, 88}, {3, 18, 50}, {3, 50, 95}}) {
		run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: c.blocks})
		for i := range trials {
			trials[i].Loads, trials[i].Counts = nil, nil
		}
		r := rand.New(rand.NewPCG(31, uint64(c.carry)))
		var before, resolved, blamed float64
		each := 100 / float64(runs)
		for range runs {
			// each run has a new order of the arms
			arms := []string{record.Direct, record.AA, "candidate"}
			var order []int
			for i := range trials {
				if i%3 == 0 {
					order = r.Perm(3)
				}
				trials[i].Arm = arms[order[i%3]]
				x := 100 + r.NormFloat64()
				if i > 0 && trials[i-1].Arm == "candidate" {
					x += c.carry
				}
				trials[i].Metrics = map[string]float64{"own": x}
			}
			summary := func(positions bool) (resolved bool, warnings string) {
				for i := range trials {
					trials[i].Position = i % 3
					if !positions {
						trials[i].Position = 0
					}
				}
				s := summarize(t, run, trials)
				return s.Find("own", "candidate", nil).Difference.Resolved, strings.Join(s.Warnings, " ")
			}
			if is, _ := summary(false); is {
				before += each
			}
			is, warnings := summary(true)
			if is {
				resolved += each
			}
			if strings.Contains(warnings, "changes the trial that runs right after it") {
				blamed += each
			}
		}
		t.Logf("| %g | %d | %.1f | %.1f | %.1f |", c.carry, c.blocks, before, resolved, blamed)
		// three standard errors
		slack := func(p float64) float64 { return 3 * math.Sqrt(p*(100-p)/float64(runs)) }
		if resolved > 5+slack(5) || c.carry == 0 && blamed > 1+slack(1) || blamed < c.least-slack(c.least) {
			t.Errorf("carry-over of %g sd, %d blocks: resolved %.1f %%, said %.1f %%", c.carry, c.blocks, resolved, blamed)
		}
	}
}
