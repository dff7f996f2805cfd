package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestLossesBySimulation shows that gates select: a subject stalls twice as often as its baseline, and the longest
// stalls void the trial: 9 % of the baseline's trials, 18 % of the subject's, and those are the slow ones. What is left
// is compared; then the lost pairs are taken at infinity.
func TestLossesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| stalls of the baseline, subject | blocks | bias of what is left % | covers before % | worst case covers % " +
		"| resolved before % | after % |")
	for _, c := range []struct {
		base, subject float64 // chance of a stall
		blocks        int
	}{{0.3, 0.6, 18}, {0.3, 0.6, 40}, {0.1, 0.2, 18}, {0, 0, 18}} {
		const lostPart = 0.3 // of stalls
		draw := func(r *rand.Rand, chance float64) (value float64, lost bool) {
			value = 10 + 0.2*r.NormFloat64()
			if r.Float64() < chance {
				stall := r.ExpFloat64()
				return value + 5*stall, stall > -math.Log(lostPart)
			}
			return value, false
		}
		r := rand.New(rand.NewPCG(uint64(100*c.subject), uint64(c.blocks)))
		all := make([]float64, 50_000)
		for i := range all {
			var two [2]float64
			for j := range two {
				arm, _ := draw(r, c.subject)
				base, _ := draw(r, c.base)
				two[j] = arm - base
			}
			all[i] = (two[0] + two[1]) / 2
		}
		truth := Median(all).Value
		runs := repetitions(400)
		var bias, before, after, resolvedBefore, resolvedAfter float64
		f := 100 / float64(runs)
		for i := range runs {
			var kept []Pair
			lost := 0
			for range c.blocks {
				arm, armLost := draw(r, c.subject)
				base, baseLost := draw(r, c.base)
				if armLost || baseLost {
					lost++
				} else {
					kept = append(kept, Pair{base, arm})
				}
			}
			e := Difference(kept, uint64(i))
			lo, hi, _ := worstCase(kept, lost, uint64(i))
			bias += (e.Value - truth) / float64(runs)
			if !e.Excludes(truth) {
				before += f
			}
			if lo <= truth && truth <= hi {
				after += f
			}
			if e.Excludes(0) {
				resolvedBefore += f
				if lo > 0 || hi < 0 {
					resolvedAfter += f
				}
			}
		}
		if c.subject > 0 {
			bias *= 100 / math.Abs(truth)
		}
		t.Logf("| %g, %g | %d | %+.0f | %.1f | %.1f | %.1f | %.1f |", c.base, c.subject, c.blocks, bias, before, after,
			resolvedBefore, resolvedAfter)
		within(t, fmt.Sprintf("stalls %g and %g: worst case", c.base, c.subject), after, runs, 95, 100)
	}
}

// machineNoise returns what a block adds to all its trials: now and then, the machine is busy for the whole block.
func machineNoise(r *rand.Rand) float64 {
	if r.Float64() < 0.12 {
		return 1 + r.ExpFloat64()
	}
	return 0
}

// ownStalls returns the value of one trial in which the subject itself stalls with a given probability, and whether the
// trial is lost: the longest three in ten stalls trip a gate.
func ownStalls(r *rand.Rand, chance float64) (value float64, lost bool) {
	value = 10 + 0.2*r.NormFloat64()
	if r.Float64() >= chance {
		return value, false
	}
	stall := r.ExpFloat64()
	return value + 5*stall, stall > -math.Log(0.3)
}

// TestIgnorableLossesBySimulation examines when a lost block may be left out rather than be taken at infinity. Two
// rules are compared with the truth. "Balanced" leaves out all lost blocks, unless the arm lost more trials than its
// twins beyond chance (p < 1 %). "Whole" leaves out the blocks in which the arm and both twins are lost, and takes the
// others at infinity. An interval that has a bound and misses the truth is an error; an interval without bounds is not.
// At most 5 % of all runs may be errors, whatever the subject does.
func TestIgnorableLossesBySimulation(t *testing.T) {
	t.Log("| losses | blocks | runs with any | balanced: stands, covers, bias % | errors | whole: stands, covers " +
		"| errors | worst case: stands | errors |")
	type draw func(r *rand.Rand, burst float64, subject bool) (value float64, lost bool)
	of := func(subject bool, yes, no float64) float64 {
		if subject {
			return yes
		}
		return no
	}
	stalls := func(base, subject float64, bursts bool) draw {
		return func(r *rand.Rand, burst float64, is bool) (float64, bool) {
			value, lost := ownStalls(r, of(is, subject, base))
			return value + burst, lost || bursts && burst > 0 && r.Float64() < 0.9
		}
	}
	hit := func(times, most float64) draw { // noise makes a request longer in proportion, and the longest are lost
		return func(r *rand.Rand, _ float64, is bool) (float64, bool) {
			length, noise := of(is, times, 1), r.ExpFloat64()
			return length * (1 + 0.1*r.NormFloat64() + noise), length*noise > most
		}
	}
	for _, c := range []struct {
		name     string
		draw     draw
		innocent bool // whether a trial is lost does not depend on the arm
	}{
		{"at random, 8 %", func(r *rand.Rand, _ float64, is bool) (float64, bool) {
			return 10 + of(is, 1, 0) + 0.5*r.NormFloat64(), r.Float64() < 0.08
		}, true},
		{"noise that is added, when it is large", func(r *rand.Rand, _ float64, is bool) (float64, bool) {
			noise := r.ExpFloat64()
			return 10 + of(is, 1, 0) + 0.3*r.NormFloat64() + noise, noise > 2.5
		}, true},
		{"bursts of a block", func(r *rand.Rand, burst float64, is bool) (float64, bool) {
			value := 10 + of(is, 1, 0) + 0.3*r.NormFloat64()
			if burst > 0 {
				return value + burst + 3*r.ExpFloat64(), r.Float64() < 0.9
			}
			return value, r.Float64() < 0.01
		}, true},
		{"own stalls, 0.3 and 0.6", stalls(0.3, 0.6, false), false},
		{"own stalls, none and 0.3", stalls(0, 0.3, false), false},
		{"noise hits what is 1.25 times as long", hit(1.25, 2.5), false},
		{"noise hits what is twice as long", hit(2, 3.5), false},
		{"bursts, and own stalls, 0.3 and 0.6", stalls(0.3, 0.6, true), false},
		{"bursts, and own stalls, none and 0.3", stalls(0, 0.3, true), false},
		{"bursts hit what is twice as long", func(r *rand.Rand, burst float64, is bool) (float64, bool) {
			length := of(is, 2, 1)
			noise := burst + 0.3*r.ExpFloat64()
			return length * (1 + 0.1*r.NormFloat64() + noise), length*noise > 2.5
		}, false},
	} {
		truth := medianOf(func(r *rand.Rand) (half float64) {
			for range 2 {
				burst := machineNoise(r)
				arm, _ := c.draw(r, burst, true)
				base, _ := c.draw(r, burst, false)
				half += (arm - base) / 2
			}
			return half
		})
		for _, blocks := range []int{8, 10, 18} {
			runs := repetitions(300)
			r := rand.New(rand.NewPCG(21, uint64(blocks)))
			type rule struct{ stands, covers, errors, bias float64 }
			var balanced, whole, worst rule
			any := 0.0
			for i := range runs {
				var kept []Pair
				var lost, alike, mine, twins int
				for range blocks {
					burst := machineNoise(r)
					base, baseLost := c.draw(r, burst, false)
					_, twinLost := c.draw(r, burst, false)
					arm, armLost := c.draw(r, burst, true)
					mine, twins = mine+count(armLost), twins+count(baseLost)+count(twinLost)
					alike += count(armLost && baseLost && twinLost)
					if armLost || baseLost {
						lost++
					} else {
						kept = append(kept, Pair{base, arm})
					}
				}
				any += float64(count(lost > 0))
				judge := func(into *rule, lost int) {
					lo, hi, ok := worstCase(kept, lost, uint64(i))
					if !ok || math.IsInf(lo, 0) && math.IsInf(hi, 0) {
						return
					}
					into.stands++
					if lo <= truth && truth <= hi {
						into.covers++
					} else {
						into.errors += 100 / float64(runs)
					}
					into.bias += 100 * (Difference(kept, uint64(i)).Value/truth - 1)
				}
				judge(&worst, lost)
				judge(&whole, lost-alike)
				if MoreOften(mine, blocks, twins, 2*blocks) >= 0.01 {
					judge(&balanced, 0)
				} else {
					judge(&balanced, lost)
				}
			}
			share := func(r rule) string {
				return fmt.Sprintf("%.0f, %.1f", 100*r.stands/float64(runs), 100*r.covers/max(r.stands, 1))
			}
			t.Logf("| %s | %d | %.0f | %s, %+.0f | %.1f | %s | %.1f | %.0f | %.1f |", c.name, blocks, 100*any/float64(runs),
				share(balanced), balanced.bias/max(balanced.stands, 1), balanced.errors,
				share(whole), whole.errors, 100*worst.stands/float64(runs), worst.errors)
			what := fmt.Sprintf("%s, %d blocks: ", c.name, blocks)
			within(t, what+"errors where whole blocks are left out", whole.errors, runs, 0, 5)
			if c.innocent {
				covers := 100 * whole.covers / max(whole.stands, 1)
				within(t, what+"coverage where whole blocks are left out", covers, max(int(whole.stands), 1), 93, 100)
			}
		}
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func TestWorstCase(t *testing.T) {
	ten := func(n int) (ps []Pair) {
		for i := range n {
			ps = append(ps, Pair{0, 10 + float64(i)/100})
		}
		return ps
	}
	for _, c := range []struct {
		kept, lost int
		ok         bool
		bounded    bool
	}{
		{5, 0, false, false}, {5, 3, false, false}, {6, 0, true, true}, {6, 1, true, false}, {6, 12, true, false},
		{11, 1, true, true}, {16, 2, true, true}, {15, 3, true, false}, {60, 4, true, true},
	} {
		lo, hi, ok := worstCase(ten(c.kept), c.lost, 1)
		if ok != c.ok || ok && (!math.IsInf(lo, -1) != c.bounded || !math.IsInf(hi, 1) != c.bounded) {
			t.Errorf("%d kept, %d lost: [%g, %g] %t", c.kept, c.lost, lo, hi, ok)
		}
		e := Difference(ten(c.kept), 1)
		if ok && (lo > e.Lo || hi < e.Hi) {
			t.Errorf("%d kept, %d lost: [%g, %g] is narrower than [%g, %g]", c.kept, c.lost, lo, hi, e.Lo, e.Hi)
		}
	}
}

func TestMoreOften(t *testing.T) {
	for _, c := range []struct {
		a, n, b, m int
		want       float64
	}{ // exact probabilities, by counting: the second is C(18, 12) / C(54, 12), the last 8,081,052 / C(54, 6)
		{3, 4, 1, 4, 0.2428571}, {12, 18, 0, 36, 18564 / 343006888770.0}, {0, 18, 0, 36, 1}, {0, 18, 9, 36, 1},
		{18, 18, 36, 36, 1}, {3, 18, 3, 36, 8081052 / 25827165.0},
	} {
		got := MoreOften(c.a, c.n, c.b, c.m)
		if math.Abs(got-c.want) > 1e-3*c.want {
			t.Errorf("%d of %d against %d of %d: %.7g, want %.7g", c.a, c.n, c.b, c.m, got, c.want)
		}
	}
}

// TestLagShareBySimulation: the generator's lag makes up a part of a difference of 1. More than a tenth must not pass.
func TestLagShareBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| true share of the lag | noise of a difference in lag | passes by the value % | passes by the far end % |")
	for _, c := range []struct{ share, noise float64 }{{0, 0.05}, {0.02, 0.05}, {0.2, 0.05}, {0.2, 0.3}} {
		share := c.share
		runs := repetitions(1000)
		r := rand.New(rand.NewPCG(5, uint64(1000*share)))
		var before, after float64
		for i := range runs {
			var ps []Pair
			for range 10 {
				ps = append(ps, Pair{0.3, 0.3 + share + c.noise*r.NormFloat64()})
			}
			if math.Abs(Difference(ps, uint64(i)).Value) <= 0.1 {
				before += 100 / float64(runs)
			}
			if far, _ := FarEnd(ps, uint64(i)); far <= 0.1 {
				after += 100 / float64(runs)
			}
		}
		t.Logf("| %g | %g | %.1f | %.1f |", share, c.noise, before, after)
		if share > 0.1 {
			within(t, "a lag of a fifth passes", after, runs, 0, 5)
		}
	}
}

// TestQuantileRank: the rank of a quantile is rounded up: with 1060 samples the p99 is the 1050th, not the 1049th.
func TestQuantileRank(t *testing.T) {
	for _, c := range []struct {
		n    int
		q    float64
		want int64
	}{
		{1060, 0.99, 1050}, {1000, 0.99, 990}, {1001, 0.99, 991}, {1049, 0.99, 1039}, {20, 0.5, 10}, {21, 0.5, 11},
		{101, 0.9, 91},
		{100_000, 0.999, 99_900}, {100_060, 0.999, 99_960},
	} {
		h := hdrhistogram.New(1, 1_000_000, 5) // every value apart
		for i := range c.n {
			if err := h.RecordValue(int64(i + 1)); err != nil {
				t.Fatal(err)
			}
		}
		if v, ok := Quantile(h, c.q); !ok || int64(v) != c.want {
			t.Errorf("n=%d q=%g: %g, want %d", c.n, c.q, v, c.want)
		}
	}
}

// TestQuantileRankBySimulation measures what a rank that is too low costs, with a tail like that of latencies: the mean
// p99 of n samples with the rank rounded to the nearest integer, compared with that with the rank rounded up.
func TestQuantileRankBySimulation(t *testing.T) {
	t.Parallel()
	runs := repetitions(200)
	r := rand.New(rand.NewPCG(6, 6))
	const n = 1060
	var nearest, up float64
	for range runs {
		h := hdrhistogram.New(1, 1_000_000_000, 3)
		for range n {
			if err := h.RecordValue(int64(100_000 * math.Exp(1.5*r.NormFloat64()))); err != nil {
				t.Fatal(err)
			}
		}
		v, _ := Quantile(h, 0.99)
		up += v / float64(runs)
		nearest += float64(h.ValueAtQuantile(99)) / float64(runs)
	}
	t.Logf("rounded to nearest %.1f %% below rounded up", 100*(1-nearest/up))
	if nearest >= up {
		t.Errorf("rounded to nearest %g, up %g", nearest, up)
	}
}

// TestWithheldQuantilesBySimulation: in a closed loop, a slow trial has few samples and loses its p99, so that only
// fast trials are left.
func TestWithheldQuantilesBySimulation(t *testing.T) {
	t.Parallel()
	runs := repetitions(500)
	r := rand.New(rand.NewPCG(7, 7))
	const blocks = 18
	var bias, covered, worst, withheld float64
	truth := medianOf(func(r *rand.Rand) float64 {
		return 3*(math.Exp(0.25*r.NormFloat64())+math.Exp(0.25*r.NormFloat64()))/2 - 1
	})
	for i := range runs {
		var kept []Pair
		lost := 0
		for range blocks {
			base := 1 + 0.02*r.NormFloat64()
			slow := math.Exp(0.25 * r.NormFloat64()) // how slow the subject's trial is; its p99 is in proportion
			if 1200/slow < 1000 {
				lost++
				continue
			}
			kept = append(kept, Pair{base, 3 * slow})
		}
		e := Difference(kept, uint64(i))
		bias += 100 * (e.Value - truth) / truth / float64(runs)
		if !e.Excludes(truth) {
			covered += 100 / float64(runs)
		}
		if lo, hi, ok := worstCase(kept, lost, uint64(i)); ok && lo <= truth && truth <= hi {
			worst += 100 / float64(runs)
		}
		withheld += 100 * float64(lost) / blocks / float64(runs)
	}
	t.Logf("withheld %.0f %% of trials: bias %+.0f %%, covers %.1f %%, worst case %.1f %%", withheld, bias, covered, worst)
	within(t, "worst case", worst, runs, 95, 100)
}

// worstCase is WorstCaseAt of the differences of pairs, with an interval of the usual confidence.
func worstCase(pairs []Pair, lost int, seed uint64) (lo, hi float64, ok bool) {
	return WorstCaseAt(Differences(pairs), lost, Confidence, seed)
}
