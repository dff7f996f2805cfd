package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tare/test/long"
)

// ownNoises are dependences that the twins do not show, or that white noise hides: each draws the values of baseline,
// twin and subject, whose true difference is shift.
var ownNoises = []struct {
	name string
	rho  float64
	draw func(r *rand.Rand, blocks int) (base, twin, arm []float64, shift float64)
}{
	{"independent", 0, func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		return autoregressive(r, n, 0), autoregressive(r, n, 0), autoregressive(r, n, 0), 0
	}},
	{"effect of the arm, 0.8", 0.8, func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		base, twin, arm = autoregressive(r, n, 0), autoregressive(r, n, 0), autoregressive(r, n, 0)
		for i, x := range autoregressive(r, n, 0.8) {
			arm[i] = 0.3*arm[i] + 2*x
			base[i], twin[i] = 0.3*base[i], 0.3*twin[i]
		}
		return base, twin, arm, 0
	}},
	{"slow state 0.95 under white noise", 0.95, func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		values := func() []float64 {
			xs := autoregressive(r, n, 0.95)
			for i := range xs {
				xs[i] += r.NormFloat64()
			}
			return xs
		}
		return values(), values(), values(), 0
	}},
	{"all arms x exp(0.3 AR(0.8)), +30 %", 0.8, func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		for _, x := range autoregressive(r, n, 0.8) {
			machine := math.Exp(0.3 * x)
			one := func() float64 { return machine * math.Exp(0.03*r.NormFloat64()) }
			base, twin, arm = append(base, one()), append(twin, one()), append(arm, 1.3*one())
		}
		// the pseudo-median of a log-normal of sigma 0.3, by numerical integration: exp(0.3 x) has 1.0226
		return base, twin, arm, 0.3 * 1.0226
	}},
}

// An arm's differences that depend on each other where its twins' do not: coverage by what all arms show together, and
// with what the arm itself shows.
func TestOwnDependenceBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | blocks | all arms cover % | with its own % | width | said to be strong % | misses unsaid % |")
	for _, noise := range ownNoises {
		for _, blocks := range []int{18, 30, 50} {
			runs := repetitions(long.Repeat(200, 1000))
			r := rand.New(rand.NewPCG(uint64(blocks), uint64(len(noise.name))))
			var before, after, width, strong, unsaid float64
			each := 100 / float64(runs)
			for range runs {
				base, twin, arm, shift := noise.draw(r, blocks)
				ps := pairs(base, arm)
				all := LearnDependence(Differences(pairs(base, twin)), Differences(ps))
				own := all.WithOwn(Differences(ps))
				old, now := all.Difference(ps, 1), own.Difference(ps, 1)
				if !old.Excludes(shift) {
					before += each
				}
				said := own.Strong(Differences(ps))
				if said {
					strong += each
				}
				if !now.Excludes(shift) {
					after += each
				} else if !said {
					unsaid += each
				}
				width += (now.Hi - now.Lo) / (old.Hi - old.Lo)
			}
			t.Logf("| %s | %d | %.1f | %.1f | x %.2f | %.1f | %.1f |", noise.name, blocks, before, after,
				width/float64(runs), strong, unsaid)
			what := fmt.Sprintf("%s, %d blocks: ", noise.name, blocks)
			most := 8.0
			if blocks == 18 {
				most = 12
			}
			if noise.rho == 0.95 {
				most = 27 // 18 to 50 blocks hardly show a state that outlasts 20 of them
			}
			within(t, what+"misses that are not said", unsaid, runs, 0, most)
			if noise.rho == 0 {
				within(t, what+"called strong", strong, runs, 0, 5)
			}
		}
	}
}
