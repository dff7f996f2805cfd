package analysis_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

// TestRepeatsBySimulation: a subject 0.3 ms faster than its baseline stalls more often, and every stall spoils its
// trial, which is run again up to twice. The values that stand are those without a stall, so the interval of what is
// left misses the difference that the subject makes. In no more than 5 % of runs is such a difference resolved.
func TestRepeatsBySimulation(t *testing.T) {
	const blocks, base = 30, 0.1
	runs := long.Repeat(60, 1000)
	if *simulated > 0 {
		runs = *simulated
	}
	t.Log("| stalls | truth, ms | resolved % | of all: resolved, and the interval misses % | wrong sign % |")
	for _, times := range []float64{1, 2, 3} {
		r := rand.New(rand.NewPCG(28, uint64(times)))
		draw := func(arm string) (value float64, stalled bool) {
			chance := base
			value = 10 + 0.3*r.NormFloat64()
			if arm == "candidate" {
				value, chance = value-0.3, base*times
			}
			if r.Float64() < chance {
				return value + 5 + 5*r.ExpFloat64(), true
			}
			return value, false
		}
		averages := make([]float64, 50_000)
		for i := range averages {
			for range 2 {
				arm, _ := draw("candidate")
				direct, _ := draw(record.Direct)
				averages[i] += (arm - direct) / 2
			}
		}
		truth := stats.Median(averages).Value
		var resolved, wrong, sign float64
		each := 100 / float64(runs)
		for range runs {
			run, trials := simulatedRun(blocks, func(string, int) float64 { return 0 })
			run.Metrics[0].Cost = false
			var all []record.Trial
			for _, trial := range trials {
				for attempt := range 3 {
					another := trial
					value, stalled := draw(trial.Arm)
					another.Attempt, another.Metrics = attempt, map[string]float64{costs: value / 1e3}
					if stalled {
						another.Validity = record.Validity{Reasons: []record.Reason{{
							Gate: "lag", Cause: ledger.Neighbour, Message: "late", Voids: []string{costs},
						}}}
					}
					if all = append(all, another); !stalled {
						break
					}
				}
			}
			d := summarize(t, run, slices.Clip(all)).Find(costs, "candidate", nil).Difference
			if !d.Resolved {
				continue
			}
			resolved += each
			if truth/1e3 < *d.Lo || truth/1e3 > *d.Hi {
				wrong += each
			}
			if truth*d.Value < 0 {
				sign += each
			}
		}
		t.Logf("| x%g | %+.2f | %.1f | %.1f | %.1f |", times, truth, resolved, wrong, sign)
		const most = 5
		if slack := 3 * math.Sqrt(most*(100-most)/float64(runs)); wrong > most+slack {
			t.Errorf("stalls x%g: %.1f %% of differences are resolved with an interval that misses", times, wrong)
		}
	}
}
