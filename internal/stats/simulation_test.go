package stats

import (
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

var simulated = flag.Int("simulated", 0, "simulated runs for each row of the table of paired differences; 0: few enough for every day")

// The noises that trials are thought to have: well behaved, skewed (latencies), and with wild outliers (a neighbour wakes up).
var noises = []struct {
	name string
	draw func(*rand.Rand) float64
}{
	{"normal", func(r *rand.Rand) float64 { return r.NormFloat64() }},
	{"log-normal", func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64()) }},
	{"t3", student(3)},
	{"t2", student(2)},
}

func student(degrees float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 {
		chi := distuv.ChiSquared{K: degrees, Src: r}.Rand()
		return r.NormFloat64() / math.Sqrt(chi/degrees)
	}
}

// campaign is one simulated run: per block a value of the baseline, its twin and a subject that lies shift above them, all on a
// machine that drifts: a trend over the run and a random walk from block to block, each larger than the noise.
type campaign struct{ direct, twin, subject []float64 }

func simulate(r *rand.Rand, noise func(*rand.Rand) float64, blocks int, shift float64) campaign {
	var c campaign
	walk := 100.0
	for b := range blocks {
		walk += 2 * r.NormFloat64()
		machine := walk + 5*float64(b)
		c.direct = append(c.direct, machine+noise(r))
		c.twin = append(c.twin, machine+noise(r))
		c.subject = append(c.subject, machine+noise(r)+shift)
	}
	return c
}

func pairs(base, arm []float64) []Pair {
	ps := make([]Pair, len(base))
	for i := range base {
		ps[i] = Pair{base[i], arm[i]}
	}
	return ps
}

func shifted(e Estimate, by float64) Estimate {
	e.Value, e.Lo, e.Hi = e.Value+by, e.Lo+by, e.Hi+by
	return e
}

// tally is what came of many simulated runs, in per cent of them.
type tally struct {
	covered    float64 // the interval of the difference holds the true shift
	twins      float64 // the interval of the twins' difference excludes 0
	alarms     float64 // a subject that costs nothing is called resolved
	found      float64 // a subject that costs twice what the run says it can see is called resolved
	foundFixed float64 // the same, of twice the median of what such runs can see
}

func runMany(noise func(*rand.Rand) float64, blocks, runs int) tally {
	r := rand.New(rand.NewPCG(1, uint64(blocks)))
	const shift = 3
	each := 100 / float64(runs)
	var v tally
	var nulls []Estimate // of a subject that costs nothing
	var visible []float64
	for i := range runs {
		c := simulate(r, noise, blocks, shift)
		subject := Difference(pairs(c.direct, c.subject), uint64(i))
		twins := Difference(pairs(c.direct, c.twin), uint64(i))
		mde, _ := SmallestVisible(twins)
		null := shifted(subject, -shift)
		nulls, visible = append(nulls, null), append(visible, mde)
		if !subject.Excludes(shift) {
			v.covered += each
		}
		if twins.Excludes(0) {
			v.twins += each
		}
		if Resolved(null, mde) {
			v.alarms += each
		}
		if Resolved(shifted(null, 2*mde), mde) {
			v.found += each
		}
	}
	typical := slices.Sorted(slices.Values(visible))[runs/2]
	for i, null := range nulls {
		if Resolved(shifted(null, 2*typical), visible[i]) {
			v.foundFixed += each
		}
	}
	return v
}

// The table of docs/statistics.md: coverage of the paired interval, false alarms and power.
func TestPairedBySimulation(t *testing.T) {
	t.Log("| noise | blocks | covers % | twins differ % | false alarms % | finds 2x % | finds 2x typical % |")
	for _, blocks := range []int{6, 8, 10, 20, 40, 60} {
		runs := 1000
		if blocks > maxExact {
			runs = 200 // each takes milliseconds
		}
		if *simulated > 0 {
			runs = *simulated
		}
		for _, noise := range noises {
			v := runMany(noise.draw, blocks, runs)
			t.Logf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", noise.name, blocks, v.covered, v.twins, v.alarms, v.found, v.foundFixed)
			if v.covered < 93 || v.covered > 98 {
				t.Errorf("%s, %d blocks: coverage %.1f %%, want 93..98", noise.name, blocks, v.covered)
			}
			if v.alarms > 5 {
				t.Errorf("%s, %d blocks: %.1f %% false alarms, want at most 5", noise.name, blocks, v.alarms)
			}
			if v.found < 90 {
				t.Errorf("%s, %d blocks: %.1f %% of planted differences found, want at least 90", noise.name, blocks, v.found)
			}
		}
	}
}

// A family of four quantiles, independent here, which is the worst case: a false alarm in any of them. This is why no correction
// for multiple comparisons is made.
func TestFamilyOfFourBySimulation(t *testing.T) {
	for _, blocks := range []int{6, 10, 20} {
		for _, noise := range noises {
			one := runMany(noise.draw, blocks, 4000).alarms / 100
			family := 100 * (1 - math.Pow(1-one, 4))
			t.Logf("| %s | %d | %.1f |", noise.name, blocks, family)
			if family > 5 {
				t.Errorf("%s, %d blocks: a false alarm in %.1f %% of families, want at most 5", noise.name, blocks, family)
			}
		}
	}
}

// When what is weighed brings a noise of its own the differences are skewed, and only the pseudo-median is what is estimated. The
// interval is no longer exact; it must stay close.
func TestSkewedDifferencesBySimulation(t *testing.T) {
	draw := func(r *rand.Rand) float64 { return 3*math.Exp(r.NormFloat64()) - math.Exp(r.NormFloat64()) }
	r := rand.New(rand.NewPCG(3, 3))
	averages := make([]float64, 400_000)
	for i := range averages {
		averages[i] = (draw(r) + draw(r)) / 2
	}
	slices.Sort(averages)
	truth := averages[len(averages)/2]
	for _, blocks := range []int{6, 10, 20, 40, 60} {
		const runs = 1000
		var covered float64
		for i := range runs {
			xs := make([]float64, blocks)
			for j := range xs {
				xs[j] = draw(r)
			}
			if !PseudoMedian(xs, uint64(i)).Excludes(truth) {
				covered += 100.0 / runs
			}
		}
		t.Logf("| %d | %.1f |", blocks, covered)
		if covered < 92 || covered > 98 {
			t.Errorf("%d blocks: coverage %.1f %%, want 92..98", blocks, covered)
		}
	}
}

// The interval of the median of one arm is exact for any noise: at least 95 %, and what it says.
func TestMedianBySimulation(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, blocks := range []int{6, 8, 10, 20} {
		const runs = 4000
		var covered, said float64
		for range runs {
			xs := make([]float64, blocks)
			for j := range xs {
				xs[j] = math.Exp(r.NormFloat64()) // median 1
			}
			e := Median(xs)
			said = 100 * e.Confidence
			if !e.Excludes(1) {
				covered += 100.0 / runs
			}
		}
		t.Logf("| %d | %.1f | %.1f |", blocks, said, covered)
		if said < 95 || math.Abs(covered-said) > 1 {
			t.Errorf("%d blocks: covers %.1f %%, says %.1f", blocks, covered, said)
		}
	}
}
