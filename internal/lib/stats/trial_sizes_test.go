package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tare/test/long"
)

// TestTrialSizesBySimulation: how often the interval of a pooled share covers it where trials are of different sizes,
// the share grows with the size, or what is counted comes in bursts of a heavy tail (Pareto).
func TestTrialSizesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| setting | trials | covers % | width |")
	const mean, p = 10_000, 0.1
	r := rand.New(rand.NewPCG(87, 93))
	size := func(sd float64) int { return max(100, int(mean*math.Exp(sd*r.NormFloat64()-sd*sd/2))) }
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	base := math.Log(p / (1 - p))
	bursts := func(tail float64) func() Count {
		return func() Count {
			in := 0.0
			for range int(3 + math.Round(math.Sqrt(3)*r.NormFloat64())) {
				in += 20 * math.Pow(1-r.Float64(), -1/tail)
			}
			return Count{min(int(in), mean), mean}
		}
	}
	for _, c := range []struct {
		name  string
		draw  func() Count
		least float64 // coverage; below 93 where the docs say so
	}{
		{"equal sizes", func() Count { return Count{binomial(r, mean, logistic(base+0.3*r.NormFloat64())), mean} }, 93},
		{"sizes of log-sd 0.5", func() Count {
			n := size(0.5)
			return Count{binomial(r, n, logistic(base+0.3*r.NormFloat64())), n}
		}, 93},
		{"sizes of log-sd 1", func() Count {
			n := size(1)
			return Count{binomial(r, n, logistic(base+0.3*r.NormFloat64())), n}
		}, 92},
		{"share grows with the size", func() Count {
			n := size(1)
			return Count{binomial(r, n, logistic(base+0.25*math.Log(float64(n)/mean)+0.3*r.NormFloat64())), n}
		}, 82},
		{"Pareto bursts, 1.2", bursts(1.2), 79},
		{"Pareto bursts, 2.1", bursts(2.1), 93},
	} {
		in, of := 0, 0
		for range 200_000 {
			k := c.draw()
			in, of = in+k.In, of+k.Of
		}
		truth := float64(in) / float64(of)
		for _, trials := range []int{6, 12, 18, 30} {
			runs := repetitions(long.Repeat(1000, 10_000))
			covers, width := 0.0, 0.0
			for range runs {
				counts := make([]Count, trials)
				for i := range counts {
					counts[i] = c.draw()
				}
				s := ClusteredShare(counts, math.Inf(1))
				if s.Lo <= truth && truth <= s.Hi {
					covers += 100 / float64(runs)
				}
				width += (s.Hi - s.Lo) / truth / float64(runs)
			}
			t.Logf("| %s | %d | %.1f | %.2f |", c.name, trials, covers, width)
			within(t, fmt.Sprintf("%s, %d trials: coverage", c.name, trials), covers, runs, c.least, 100)
		}
	}
}
