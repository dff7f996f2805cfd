package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tare/test/long"
)

// ownNoise is a dependence that the twins do not show, or that white noise hides. draw returns the values of baseline,
// twin and subject, and the subject's true difference, shift. most is the largest allowed percentage of runs whose
// interval misses shift without a warning.
type ownNoise struct {
	name string
	most float64
	draw func(r *rand.Rand, blocks int) (base, twin, arm []float64, shift float64)
}

// alike draws each arm from the same noise, independently.
func alike(values func(*rand.Rand, int) []float64) func(*rand.Rand, int) (base, twin, arm []float64, shift float64) {
	return func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		return values(r, n), values(r, n), values(r, n), 0
	}
}

// varying draws white noise of 0.3 with an effect of the arm on top.
func varying(effect func(*rand.Rand, int) []float64) func(*rand.Rand, int) (base, twin, arm []float64, shift float64) {
	return func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		for _, x := range effect(r, n) {
			one := func() float64 { return 0.3 * r.NormFloat64() }
			base, twin, arm = append(base, one()), append(twin, one()), append(arm, one()+2*x)
		}
		return base, twin, arm, 0
	}
}

// under returns a function that draws a state, multiplied by times, with noise on top.
func under(
	state func(*rand.Rand, int) []float64, times float64, noise func(*rand.Rand) float64,
) func(*rand.Rand, int) []float64 {
	return func(r *rand.Rand, n int) []float64 {
		xs := state(r, n)
		for i := range xs {
			xs[i] = times*xs[i] + noise(r)
		}
		return xs
	}
}

func white(r *rand.Rand) float64 { return r.NormFloat64() }

func slow(rho float64) func(*rand.Rand, int) []float64 {
	return func(r *rand.Rand, n int) []float64 { return autoregressive(r, n, rho) }
}

// switching is in one of two states, -1 and 1, and leaves it after a block with the probability p.
func switching(p float64) func(*rand.Rand, int) []float64 {
	return func(r *rand.Rand, n int) []float64 {
		xs := make([]float64, n)
		x := float64(2*r.IntN(2) - 1)
		for i := range xs {
			if xs[i] = x; r.Float64() < p {
				x = -x
			}
		}
		return xs
	}
}

// sine has a period in blocks and the variance 1; where it begins is random.
func sine(period float64) func(*rand.Rand, int) []float64 {
	return func(r *rand.Rand, n int) []float64 {
		xs := make([]float64, n)
		from := r.Float64()
		for i := range xs {
			xs[i] = math.Sqrt2 * math.Sin(2*math.Pi*(from+float64(i)/period))
		}
		return xs
	}
}

var ownNoises = []ownNoise{
	{"independent", 5, alike(slow(0))},
	{"independent, t with 3 degrees", 5, alike(under(slow(0), 0, student(3)))},
	{"effect of the arm, 0.8", 5, varying(slow(0.8))},
	{"slow state 0.95 under white noise", 7, alike(under(slow(0.95), 1, white))},
	{"the same, half the variance", 9, alike(under(slow(0.95), math.Sqrt(0.5), white))},
	{"the same, twice the variance", 7, alike(under(slow(0.95), math.Sqrt2, white))},
	{"all arms x exp(0.3 AR(0.8)), +30 %", 7, func(r *rand.Rand, n int) (base, twin, arm []float64, shift float64) {
		for _, x := range autoregressive(r, n, 0.8) {
			machine := math.Exp(0.3 * x)
			one := func() float64 { return machine * math.Exp(0.03*r.NormFloat64()) }
			base, twin, arm = append(base, one()), append(twin, one()), append(arm, 1.3*one())
		}
		// the pseudo-median of a log-normal of sigma 0.3, by numerical integration: exp(0.3 x) has 1.0226
		return base, twin, arm, 0.3 * 1.0226
	}},
	// The thresholds were chosen on the settings above, and are judged on these.
	{"slow state 0.9 under t noise, 3 degrees", 7, alike(under(slow(0.9), math.Sqrt(3), student(3)))},
	{"slow state 0.97 under white noise", 10, alike(under(slow(0.97), 1, white))},
	{"two states, of 20 blocks each, under white noise", 7, alike(under(switching(0.05), 1, white))},
	{"a sine of 40 blocks under white noise", 4, alike(under(sine(40), 1, white))},
	// 17 % of the runs of 18 blocks see one of the states alone
	{"effect of the arm in two states, of 10 blocks each", 33, varying(switching(0.1))},
}

// TestOwnDependenceBySimulation: the differences of an arm depend on each other although those of its twins do not, or
// so slowly that white noise hides it. The table shows the coverage of intervals that take blocks as independent, the
// coverage of the widened ones, and how many of the latter miss without a warning.
func TestOwnDependenceBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | blocks | covers as independent % | now % | width | said to be strong % | misses unsaid % |")
	for _, noise := range ownNoises {
		for _, blocks := range []int{18, 30, 50} {
			runs := repetitions(long.Repeat(60, 1000))
			r := rand.New(rand.NewPCG(uint64(blocks), uint64(len(noise.name))))
			var before, after, width, strong, unsaid float64
			each := 100 / float64(runs)
			for range runs {
				base, twin, arm, shift := noise.draw(r, blocks)
				ps := pairs(base, arm)
				ds := Differences(ps)
				d := LearnDependence([][]float64{Differences(pairs(base, twin))}, [][]float64{ds}).WithOwn(ds)
				old, now, said := Difference(ps, 1), d.Difference(ps, 1), d.Of(ds).Strong()
				if !old.Excludes(shift) {
					before += each
				}
				if said {
					strong += each
				}
				if !now.Excludes(shift) {
					after += each
				} else if !said {
					unsaid += each
				}
				width += (now.Hi - now.Lo) / (old.Hi - old.Lo) / float64(runs)
			}
			t.Logf("| %s | %d | %.1f | %.1f | x %.2f | %.1f | %.1f |", noise.name, blocks, before, after, width, strong, unsaid)
			what := fmt.Sprintf("%s, %d blocks: ", noise.name, blocks)
			within(t, what+"misses that are not said", unsaid, runs, 0, noise.most)
			if strings.HasPrefix(noise.name, "independent") {
				within(t, what+"called strong", strong, runs, 0, 5)
				within(t, what+"width", width*100, runs, 100, 205)
			}
		}
	}
}

// TestTwinsApart: twins that differ by the same shift in all blocks show a state slower than the run, although no
// series varies with it.
func TestTwinsApart(t *testing.T) {
	t.Parallel()
	var twins, apart, arm []float64
	for i := range 18 {
		x := float64(7*i%18) - 8.5 // of a variance of 27
		twins, apart, arm = append(twins, x), append(apart, x+8), append(arm, float64(5*i%18))
	}
	learnt := func(twins []float64) Dependence {
		return LearnDependence([][]float64{twins}, [][]float64{arm}).WithOwn(arm)
	}
	if s := learnt(twins).Of(arm); s.Strong() || s.inflation() > 2 {
		t.Errorf("of twins that are alike: strong %v, variance x %.1f", s.Strong(), s.inflation())
	}
	if s := learnt(apart).Of(arm); !s.Strong() || s.inflation() < 8 {
		t.Errorf("of twins that lie apart: strong %v, variance x %.1f", s.Strong(), s.inflation())
	}
}
