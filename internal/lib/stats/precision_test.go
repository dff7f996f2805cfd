package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tare/test/long"
)

// TestStoppingBySimulation simulates the rule by which a run without a fixed length ends, with the engine's loop: it
// looks at FirstLook blocks and then at NextLook, until the interval of the difference is within 5 % of the baseline,
// or 100 blocks have run.
func TestStoppingBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | of a trial, % | covers % | false alarms % | blocks | precise % | value covers % | before: covers % |")
	const base, target, most = 100.0, 0.05, 100
	more := append(noises[:len(noises):len(noises)], struct {
		name string
		draw func(*rand.Rand) float64
	}{"skewed in the subject alone", nil})
	for _, noise := range more {
		for _, scale := range []float64{3, 6, 10} {
			runs := repetitions(long.Repeat(10, 80))
			if scale > 6 {
				runs = repetitions(long.Repeat(4, 15)) // these runs have more than 50 blocks, so each look takes milliseconds
			}
			r := rand.New(rand.NewPCG(uint64(scale), 77))
			own, common := noise.draw, noise.draw
			truth := 0.0
			if own == nil {
				own, common = func(r *rand.Rand) float64 { return 1.5 * math.Exp(0.8*r.NormFloat64()) }, noises[0].draw
				truth = scale * skewedCentre(own, common)
			}
			var covered, plain, alarms, blocks, precise, values float64
			f := 100 / float64(runs)
			medianOfValue := base + scale*medianOf(common)
			for i := range runs {
				var pairs, twins []Pair
				var column []float64
				grow := func(n int) {
					for len(pairs) < n {
						drift := 5 * r.NormFloat64()
						b := base + scale*common(r)
						column = append(column, b)
						pairs = append(pairs, Pair{b + drift, base + drift + scale*own(r)})
						twins = append(twins, Pair{b + drift, base + drift + scale*common(r)})
					}
				}
				var e, value Estimate
				n, valued := 0, false
				plainly := Estimate{}
				for n < most && !(e.HasInterval && Precise(e, base, target)) {
					n = min(NextLook(n), most)
					grow(n)
					if !plainly.HasInterval || !Precise(plainly, base, target) {
						plainly = Difference(pairs, uint64(i))
					}
					if !valued {
						value = Median(column)
						valued = Precise(value, value.Value, target)
					}
					ds := Differences(pairs)
					d := LearnDependence([][]float64{Differences(twins)}, [][]float64{ds}).WithOwn(ds)
					e = d.Difference(pairs, uint64(i))
				}
				far, _ := FarEnd(twins, uint64(i))
				count := func(into *float64, yes bool) {
					if yes {
						*into += f
					}
				}
				count(&precise, Precise(e, base, target))
				count(&covered, !e.Excludes(truth))
				count(&plain, !plainly.Excludes(truth))
				count(&alarms, Resolved(shifted(e, -truth), Visible(far, e)))
				count(&values, !value.Excludes(medianOfValue))
				blocks += float64(n) / float64(runs)
			}
			t.Logf("| %s | %g | %.1f | %.1f | %.0f | %.0f | %.1f | %.1f |", noise.name, scale, covered, alarms, blocks, precise,
				values, plain)
			what := fmt.Sprintf("%s, %g %%: ", noise.name, scale)
			within(t, what+"coverage", covered, runs, 93, 99)
			within(t, what+"coverage of the value", values, runs, 93, 99)
			within(t, what+"false alarms", alarms, runs, 0, 5)
		}
	}
}

func medianOf(draw func(*rand.Rand) float64) float64 {
	r := rand.New(rand.NewPCG(9, 9))
	xs := make([]float64, 20_000)
	for i := range xs {
		xs[i] = draw(r)
	}
	return Median(xs).Value
}

// skewedCentre returns the pseudo-median of the difference between draws from own and from common.
func skewedCentre(own, common func(*rand.Rand) float64) float64 {
	return medianOf(func(r *rand.Rand) float64 { return (own(r) - common(r) + own(r) - common(r)) / 2 })
}
