package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tare/test/long"
)

// TestTrialSizesBySimulation measures how often the interval of a pooled share covers the true share, and how often
// there is a warning that the interval may be too narrow, if trials have different sizes, if the share grows with the
// size, or if the counted events come in bursts with a heavy tail (Pareto).
func TestTrialSizesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| setting | trials | covers % | width | said % | misses unsaid % | far off % |")
	const mean, p = 10_000, 0.1
	r := rand.New(rand.NewPCG(87, 93))
	size := func(sd float64) int { return max(100, int(mean*math.Exp(sd*r.NormFloat64()-sd*sd/2))) }
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	base := math.Log(p / (1 - p))
	bursts := func(tail, trial float64) func() Count {
		return func() Count {
			in := 0.0
			for range int(trial + math.Round(math.Sqrt(trial)*r.NormFloat64())) {
				in += 20 * math.Pow(1-r.Float64(), -1/tail)
			}
			return Count{min(int(in), mean), mean}
		}
	}
	for _, c := range []struct {
		name  string
		draw  func() Count
		least float64 // the least coverage, %; below 93 where the docs say so
		said  float64 // the most runs with a warning, %; 100 where warnings are justified
		most  float64 // the most runs that miss without a warning, %, with 10 trials and more
		few   float64 // the same with 6 trials
	}{
		{"equal sizes", func() Count { return Count{binomial(r, mean, logistic(base+0.3*r.NormFloat64())), mean} },
			93, 5, 7, 7},
		{"equal sizes, normal", func() Count { return Count{binomial(r, mean, max(0, p*(1+0.25*r.NormFloat64()))), mean} },
			93, 5, 7, 7},
		{"equal sizes, independent", func() Count { return Count{binomial(r, mean, p/100), mean} }, 93, 5, 7, 7},
		{"ten equal bursts", func() Count { return Count{40 * binomial(r, mean, 10.0/mean), mean} }, 93, 6, 7, 7},
		{"sizes of log-sd 0.5", func() Count {
			n := size(0.5)
			return Count{binomial(r, n, logistic(base+0.3*r.NormFloat64())), n}
		}, 93, 100, 7, 7},
		{"sizes of log-sd 1", func() Count {
			n := size(1)
			return Count{binomial(r, n, logistic(base+0.3*r.NormFloat64())), n}
		}, 92, 100, 7, 7},
		{"share grows with the size", func() Count {
			n := size(1)
			return Count{binomial(r, n, logistic(base+0.25*math.Log(float64(n)/mean)+0.3*r.NormFloat64())), n}
		}, 82, 100, 7, 7},
		{"Pareto bursts, 1.2", bursts(1.2, 3), 79, 100, 7, 7},
		{"Pareto bursts, 1.5", bursts(1.5, 3), 87, 100, 7, 7},
		{"Pareto bursts, 2.1", bursts(2.1, 3), 93, 100, 7, 7},
		// With few trials, it happens that none has a large burst: then they look alike, and there is no warning.
		{"ten Pareto bursts, 1.2", bursts(1.2, 10), 82, 100, 8, 13},
		{"ten Pareto bursts, 1.5", bursts(1.5, 10), 87, 100, 8, 10},
	} {
		in, of := 0, 0
		for range 200_000 {
			k := c.draw()
			in, of = in+k.In, of+k.Of
		}
		truth := float64(in) / float64(of)
		for _, trials := range []int{6, 10, 20, 40} {
			runs := repetitions(long.Repeat(500, 10_000))
			each := 100 / float64(runs)
			var covers, width, said, unsaid, far float64
			for range runs {
				counts := make([]Count, trials)
				for i := range counts {
					counts[i] = c.draw()
				}
				s := ClusteredShare(counts, math.Inf(1))
				covered := s.Lo <= truth && truth <= s.Hi
				if covered {
					covers += each
				}
				if s.Uneven {
					said += each
				} else if !covered {
					unsaid += each
				}
				e := Estimate{Value: s.Value, Lo: s.Lo, Hi: s.Hi, HasInterval: true}
				if e.Beyond(truth, UnevenTimes) {
					far += each
				}
				width += (s.Hi - s.Lo) / truth / float64(runs)
			}
			t.Logf("| %s | %d | %.1f | %.2f | %.1f | %.1f | %.1f |", c.name, trials, covers, width, said, unsaid, far)
			what := fmt.Sprintf("%s, %d trials: ", c.name, trials)
			within(t, what+"coverage", covers, runs, c.least, 100)
			within(t, what+"said to be uneven", said, runs, 0, c.said)
			most := c.most
			if trials < 10 {
				most = c.few
			}
			within(t, what+"misses that are not said", unsaid, runs, 0, most)
			within(t, what+"misses of an interval three times as wide", far, runs, 0, 5)
		}
	}
}
