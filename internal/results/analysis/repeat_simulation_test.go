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

// stalling is a setting of the simulation: a subject that is faster than its baseline by some ms, but stalls more
// often, by each of several factors.
type stalling struct {
	name         string
	blocks       int
	base         float64 // how often the baseline stalls
	faster       float64
	noise, stall func(*rand.Rand) float64
	times        []float64
	seed         uint64
}

// stallings are the settings of the simulation. The rule for repeated trials was chosen using the first, and the others
// test it.
var stallings = []stalling{
	{"as chosen", 30, 0.1, 0.3, func(r *rand.Rand) float64 { return 0.3 * r.NormFloat64() },
		func(r *rand.Rand) float64 { return 5 + 5*r.ExpFloat64() }, []float64{1, 2, 3}, 28},
	{"rare, of a log-normal length", 20, 0.05, 0.3, func(r *rand.Rand) float64 { return 0.2 * r.NormFloat64() },
		func(r *rand.Rand) float64 { return 4 * math.Exp(r.NormFloat64()) }, []float64{1, 3, 5}, 29},
	{"common and short, skewed noise", 40, 0.2, 0.15,
		func(r *rand.Rand) float64 { return 0.2 * math.Exp(r.NormFloat64()/2) },
		func(*rand.Rand) float64 { return 1 }, []float64{1, 1.3, 1.6, 2}, 30},
	{"few blocks", 18, 0.15, 0.5, func(r *rand.Rand) float64 { return 0.3 * r.NormFloat64() },
		func(r *rand.Rand) float64 { return 3 + 10*r.Float64() }, []float64{1, 2, 3}, 31},
}

// TestRepeatsBySimulation: a subject that is faster than its baseline stalls more often. Every stall spoils its trial,
// which is repeated up to twice. The values that remain are those without a stall, so their interval misses the
// difference that the subject makes. Such a difference may be resolved in no more than 5 % of runs.
func TestRepeatsBySimulation(t *testing.T) {
	long.Test(t, "4 min: many runs; what becomes of repeated trials is in TestAttempts and TestWithheld")
	t.Parallel()
	runs := 1000
	if *simulated > 0 {
		runs = *simulated
	}
	t.Log("| setting | stalls | truth, ms | resolved % | of all: resolved, and the interval misses % | wrong sign % |")
	for _, c := range stallings {
		for _, times := range c.times {
			c.judge(t, times, runs)
		}
	}
}

func (c *stalling) judge(t *testing.T, times float64, runs int) {
	t.Helper()
	r := rand.New(rand.NewPCG(c.seed, uint64(times)))
	draw := func(arm string) (value float64, stalled bool) {
		chance := c.base
		value = 10 + c.noise(r)
		if arm == "candidate" {
			value, chance = value-c.faster, c.base*times
		}
		if r.Float64() < chance {
			return value + c.stall(r), true
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
		run, trials := simulatedRun(c.blocks, func(string, int) float64 { return 0 })
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
		e := summarize(t, run, slices.Clip(all)).Find(costs, "candidate", nil)
		if e == nil || !e.Difference.Resolved {
			continue
		}
		d := e.Difference
		resolved += each
		if truth/1e3 < *d.Lo || truth/1e3 > *d.Hi {
			wrong += each
		}
		if truth*d.Value < 0 {
			sign += each
		}
	}
	t.Logf("| %s | x%g | %+.2f | %.1f | %.1f | %.1f |", c.name, times, truth, resolved, wrong, sign)
	const most = 5
	if slack := 3 * math.Sqrt(most*(100-most)/float64(runs)); wrong > most+slack {
		t.Errorf("%s, stalls x%g: %.1f %% of differences are resolved with an interval that misses", c.name, times, wrong)
	}
}
