package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// autoregressive returns a series of variance 1 in which rho is the correlation of neighbours.
func autoregressive(r *rand.Rand, n int, rho float64) []float64 {
	xs := make([]float64, n)
	x := r.NormFloat64()
	for i := range xs {
		xs[i] = x
		x = rho*x + math.Sqrt(1-rho*rho)*r.NormFloat64()
	}
	return xs
}

// TestDependentBlocksBySimulation simulates differences whose neighbours resemble each other, and measures the coverage
// of the interval that takes blocks as independent, and of the widened one. A run has several series of differences of
// one metric: two arms (the twin and the subject, which share their baseline) at each level.
func TestDependentBlocksBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| levels | blocks | rho | signed-rank covers % | widened covers % | width | lag-1 seen |")
	for _, shape := range []struct{ levels, blocks int }{{1, 6}, {1, 12}, {1, 18}, {1, 30}, {3, 6}, {6, 6}, {6, 12}} {
		for _, rho := range []float64{0, 0.2, 0.5, 0.76, 0.8} {
			runs := repetitions(300)
			r := rand.New(rand.NewPCG(uint64(shape.levels*100+shape.blocks), uint64(1000*rho)))
			var before, after, width, lag float64
			for range runs {
				var twins, arms [][]float64
				var pairs []Pair
				for level := range shape.levels {
					base, twin, arm := autoregressive(r, shape.blocks, rho), autoregressive(r, shape.blocks, rho), autoregressive(r,
						shape.blocks, rho)
					for i := range base {
						if level == 0 {
							pairs = append(pairs, Pair{base[i], arm[i]})
						}
						twin[i] -= base[i]
						arm[i] -= base[i]
					}
					twins, arms = append(twins, twin), append(arms, arm)
				}
				d := LearnDependence(twins, arms)
				e, w := Difference(pairs, 1), d.Difference(pairs, 1)
				if !e.Excludes(0) {
					before++
				}
				if !w.Excludes(0) {
					after++
				}
				width += (w.Hi - w.Lo) / (e.Hi - e.Lo)
				lag += d.Lag1
			}
			n := float64(runs)
			t.Logf("| %d | %d | %.2f | %.1f | %.1f | x %.2f | %.2f |", shape.levels, shape.blocks, rho, 100*before/n,
				100*after/n, width/n, lag/n)
			what := fmt.Sprintf("%d levels, %d blocks, autocorrelation %g: ", shape.levels, shape.blocks, rho)
			switch {
			case 2*shape.levels*shape.blocks < minDependence:
				if width != n {
					t.Error(what + "too few values, and yet they were widened")
				}
			case rho <= 0.76:
				within(t, what+"coverage", 100*after/n, runs, 93, 98)
			default: // 0.8 is more correlation than any real run showed
				within(t, what+"coverage", 100*after/n, runs, 90, 98)
			}
			if rho == 0 && width > 1.6*n {
				t.Errorf("%sindependent blocks cost a factor of %.2f in width", what, width/n)
			}
		}
	}
}
