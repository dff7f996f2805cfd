package comparison

import (
	"math"
	"math/rand/v2"
	"testing"

	"tare/internal/lib/stats"
	"tare/test/long"
)

// TestRunsThatVaryBySimulation compares runs of the same thing, in which the arms vary from run to run and the twins do
// not. The standard error of a run is 1. Nothing has changed, so every verdict of a change is false.
func TestRunsThatVaryBySimulation(t *testing.T) {
	t.Log("| old, new | history | between runs | false verdicts % | change of 8 spreads found % |")
	for _, c := range []struct{ old, new, history int }{
		{2, 1, 0}, {2, 2, 0}, {3, 3, 0}, {1, 1, 3}, {1, 1, 4}, {1, 1, 5}, {2, 2, 5},
	} {
		for _, varies := range []float64{0, 3, 10} {
			r := rand.New(rand.NewPCG(31, uint64(c.history)))
			several := func(n int, shift, varies float64) (all []effect) {
				const free = 11 // 12 blocks
				for range n {
					squares := 0.0
					for range free {
						squares += math.Pow(r.NormFloat64(), 2)
					}
					all = append(all, effect{Effect: stats.Effect{
						Value: shift + varies*r.NormFloat64() + r.NormFloat64(), Error: math.Sqrt(squares / free),
					}})
				}
				return all
			}
			resolved := func(shift float64) bool {
				old, new, before := several(c.old, 0, varies), several(c.new, shift, varies), several(c.history, 0, varies)
				from, spread := between(old, new, before, several(c.old+c.new+c.history, 0, 0))
				return from != Unknown && spread.Change(plain(old), plain(new)).Excludes(0)
			}
			tries := long.Repeat(1_000, 20_000)
			wrong, found := 0.0, 0.0
			for range tries {
				if resolved(0) {
					wrong += 100 / float64(tries)
				}
				if resolved(8 * math.Hypot(1, varies)) {
					found += 100 / float64(tries)
				}
			}
			t.Logf("| %d, %d | %d | %g | %.1f | %.0f |", c.old, c.new, c.history, varies, wrong, found)
			if most := 5 + 300*math.Sqrt(0.05*0.95/float64(tries)); wrong > most {
				t.Errorf("%+v, %g between runs: %.1f %% false verdicts", c, varies, wrong)
			}
		}
	}
}
