package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/lib/stats/interval"
)

// binomial draws the number of successes in n tries: from the Poisson distribution if the mean is below 30, and else by
// the normal approximation.
func binomial(r *rand.Rand, n int, p float64) int {
	mean := float64(n) * p
	if mean < 30 {
		return min(n, int(distuv.Poisson{Lambda: max(mean, 1e-12), Src: r}.Rand()))
	}
	return min(n, max(0, int(math.Round(mean+math.Sqrt(mean*(1-p))*r.NormFloat64()))))
}

// TestSharesBySimulation measures the coverage of Wilson's interval on the sum, and of the clustered interval, by
// design effect. Samples of one trial are not independent: the true share differs from trial to trial.
func TestSharesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| design effect | trials | Wilson on the sum covers % | clustered covers % | width of the clustered | " +
		"uneven % |")
	const n, p = 10_000, 0.3
	for _, effect := range []float64{1, 2.2, 5.6, 11, 33, 320} {
		for _, trials := range []int{6, 18} {
			runs := repetitions(800)
			r := rand.New(rand.NewPCG(uint64(10*effect), uint64(trials)))
			spread := math.Sqrt(p * (1 - p) * (effect - 1) / n)
			var before, after, width, uneven float64
			for range runs {
				var counts []Count
				in := 0
				for range trials {
					k := binomial(r, n, p+spread*r.NormFloat64())
					counts = append(counts, Count{k, n})
					in += k
				}
				if lo, hi := interval.Binomial(in, n*trials, Confidence); lo <= p && p <= hi {
					before++
				}
				s := ClusteredShare(counts, math.Inf(1))
				if s.Lo <= p && p <= s.Hi {
					after++
				}
				width += s.Hi - s.Lo
				if s.Uneven {
					uneven++
				}
			}
			t.Logf("| %g | %d | %.1f | %.1f | %.2g | %.1f |", effect, trials, 100*before/float64(runs),
				100*after/float64(runs), width/float64(runs), 100*uneven/float64(runs))
			most := 97.0
			if effect < 2 {
				most = 99 // the design effect is never taken below 1
			}
			within(t, fmt.Sprintf("design effect %g, %d trials: coverage", effect, trials), 100*after/float64(runs), runs,
				94, most)
			within(t, fmt.Sprintf("design effect %g, %d trials: uneven", effect, trials), 100*uneven/float64(runs), runs, 0, 5)
		}
	}
}

// TestBurstsBySimulation measures coverage if losses come in bursts: a Poisson number of them in each trial, each of a
// geometric size. The table shows it by the expected number of bursts in a trial and their mean size. "Old" is Wilson's
// interval on the sum, and 3/n if nothing was lost.
func TestBurstsBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| bursts per trial | mean size | trials | before covers % | after covers % | none lost % | before covers of " +
		"these % | after % | without others % | uneven % |")
	const n = 100_000
	for _, trials := range []int{6, 18} {
		for _, size := range []float64{1, 4, 40} {
			for _, rate := range []float64{0.03, 0.1, 0.3, 1, 3} {
				runs := repetitions(600)
				r := rand.New(rand.NewPCG(uint64(1000*rate), uint64(1000*size)+uint64(trials)))
				truth := rate * size / n
				draw := func() []Count {
					counts := make([]Count, trials)
					for i := range counts {
						lost := 0
						for range int(distuv.Poisson{Lambda: rate, Src: r}.Rand()) {
							lost += 1
							if size > 1 {
								lost += int(r.ExpFloat64() / -math.Log(1-1/size))
							}
						}
						counts[i] = Count{lost, n}
					}
					return counts
				}
				var before, after, none, beforeNone, afterNone, aloneNone, uneven float64
				for range runs {
					counts := draw()
					in := 0
					for _, c := range counts {
						in += c.In
					}
					lo, hi := interval.Binomial(in, n*trials, Confidence)
					if in == 0 {
						hi = 3.0 / (n * float64(trials))
					}
					old := lo <= truth && truth <= hi
					s := ClusteredShare(counts, Bursts(alone(counts), alone(draw()), alone(draw())))
					now := s.Lo <= truth && truth <= s.Hi
					if s.Uneven {
						uneven++
					}
					if old {
						before++
					}
					if now {
						after++
					}
					if in == 0 {
						none++
						if old {
							beforeNone++
						}
						if now {
							afterNone++
						}
						if alone(counts).Hi >= truth {
							aloneNone++
						}
					}
				}
				f := 100 / float64(runs)
				within(t, fmt.Sprintf("%g bursts of %g, %d trials: coverage", rate, size, trials), after*f, runs, 94, 100)
				if none > 0 && aloneNone < none {
					t.Errorf("%g bursts of %g, %d trials: assuming nothing, %.1f %% covered where none was lost", rate, size, trials,
						100*aloneNone/none)
				}
				t.Logf("| %g | %g | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |", rate, size, trials, before*f, after*f,
					none*f, 100*beforeNone/none, 100*afterNone/none, 100*aloneNone/none, uneven*f)
			}
		}
	}
}

func alone(counts []Count) Share { return ClusteredShare(counts, math.Inf(1)) }

func TestClusteredShare(t *testing.T) {
	six := func(in ...int) (counts []Count) {
		for _, k := range in {
			counts = append(counts, Count{k, 1000})
		}
		return counts
	}
	for _, c := range []struct {
		name   string
		counts []Count
		bursts float64
		lo, hi float64
		effect float64 // 0: not known
	}{
		{"none, nothing known", six(0, 0, 0, 0, 0, 0), math.Inf(1), 0, 0.39304, 0},
		{"none, each by itself", six(0, 0, 0, 0, 0, 0), 1, 0, 0.00049916, 0}, // 3 / n
		{"none, in tens", six(0, 0, 0, 0, 0, 0), 10, 0, 0.0049805, 0},
		{"all, nothing known", six(1000, 1000, 1000, 1000, 1000, 1000), math.Inf(1), 0.60696, 1, 0},
		{"one burst", six(0, 0, 60, 0, 0, 0), 1, 0.00048444, 0.17390, 60.6}, // one of 99, t on 2 degrees of freedom
		{"alike", six(300, 300, 300, 300, 300, 300), 1, 0.28503, 0.31541, 1},
	} {
		s := ClusteredShare(c.counts, c.bursts)
		near(t, c.name+": lo", s.Lo, c.lo, 0.02*c.lo+1e-5)
		near(t, c.name+": hi", s.Hi, c.hi, 0.02*c.hi)
		if c.effect == 0 != math.IsNaN(s.DesignEffect) || c.effect > 0 && math.Abs(s.DesignEffect-c.effect) > 0.01*c.effect {
			t.Errorf("%s: design effect %g", c.name, s.DesignEffect)
		}
	}
	if s := ClusteredShare([]Count{{3, 10}, {0, 0}}, 1); s.HasInterval || s.Trials != 1 || s.Value != 0.3 {
		t.Errorf("one trial: %+v", s)
	}
	if s := ClusteredShare(nil, 1); s.HasInterval || s.Trials != 0 {
		t.Errorf("no trial: %+v", s)
	}
	if b := Bursts(alone(six(0, 0, 60, 0, 0, 0)), alone(six(0, 0, 0, 0, 0, 0))); !math.IsInf(b, 1) {
		t.Errorf("one trial says bursts are of %g", b)
	}
}
