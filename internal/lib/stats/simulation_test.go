package stats

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/test/long"
)

var simulated = flag.Int("simulated", 0, "simulated runs for each row of a table; 0: few enough for every day")

// repetitions returns how many runs to simulate for a row: a few by default, or the number that the user asked for.
func repetitions(few int) int {
	if *simulated > 0 {
		return *simulated
	}
	return few
}

// within checks a percentage of simulated runs against the band in which it must be, widened by three standard errors
// of that many runs.
func within(t *testing.T, what string, percent float64, runs int, lo, hi float64) {
	t.Helper()
	slack := func(p float64) float64 { return 3 * math.Sqrt(max(p*(100-p), 100)/float64(runs)) }
	if percent < lo-slack(lo) || percent > hi+slack(hi) {
		t.Errorf("%s: %.1f %% of %d runs, want %g to %g", what, percent, runs, lo, hi)
	}
}

// The noises that trials are thought to have: well behaved, skewed (latencies), and with wild outliers (a neighbour
// wakes up).
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

// campaign is one simulated run: for each block, a value of the baseline, of its twin, and of a subject that lies above
// them by a shift. The machine drifts, by a trend over the run and a random walk from block to block, each larger than
// the noise.
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

// tally is the result of many simulated runs, in per cent of them.
type tally struct {
	covered    float64 // the interval of the difference holds the true shift
	twins      float64 // the interval of the twins' difference excludes 0
	alarms     float64 // a subject that costs nothing is called resolved
	found      float64 // a subject that costs twice what the run says it can see of it is called resolved
	foundFixed float64 // the same for a subject that costs twice the median of what such runs can see

	oldAlarms, oldFound float64 // alarms and found if only the twins are used, as until version 0.1
}

// runMany simulates runs whose subject adds noise of its own, louder - 1 times that of the baseline.
func runMany(noise func(*rand.Rand) float64, louder float64, blocks, runs int) tally {
	r := rand.New(rand.NewPCG(1, uint64(blocks)))
	const shift = 3
	each := 100 / float64(runs)
	var v tally
	var nulls []Estimate // of a subject that costs nothing
	var visible []float64
	for i := range runs {
		c := simulate(r, noise, blocks, 0)
		for b := range c.subject {
			c.subject[b] += shift + (louder-1)*noise(r)
		}
		subject := Difference(pairs(c.direct, c.subject), uint64(i))
		twins := Difference(pairs(c.direct, c.twin), uint64(i))
		end, _ := SmallestVisible(twins)
		null := shifted(subject, -shift)
		mine := Visible(end, null)
		nulls, visible = append(nulls, null), append(visible, mine)
		count := func(into *float64, yes bool) {
			if yes {
				*into += each
			}
		}
		count(&v.covered, !subject.Excludes(shift))
		count(&v.twins, twins.Excludes(0))
		count(&v.alarms, Resolved(null, mine))
		count(&v.found, Resolved(shifted(null, 2*mine), mine))
		count(&v.oldAlarms, Resolved(null, end))
		count(&v.oldFound, Resolved(shifted(null, 2*end), end))
	}
	typical := slices.Sorted(slices.Values(visible))[runs/2]
	for i, null := range nulls {
		if Resolved(shifted(null, 2*typical), visible[i]) {
			v.foundFixed += each
		}
	}
	return v
}

// TestPairedBySimulation simulates the table of docs/statistics.md: coverage of the paired interval, false alarms and
// power.
func TestPairedBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | blocks | covers % | twins differ % | false alarms % | finds 2x % | finds 2x typical % |")
	for _, blocks := range []int{6, 8, 10, 20, 40, 60} {
		runs := repetitions(long.Repeat(50, 500))
		if blocks > 20 && *simulated == 0 {
			runs = 100 // each takes milliseconds
		}
		for _, noise := range noises {
			v := runMany(noise.draw, 1, blocks, runs)
			t.Logf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", noise.name, blocks, v.covered, v.twins, v.alarms, v.found,
				v.foundFixed)
			what := fmt.Sprintf("%s, %d blocks: ", noise.name, blocks)
			within(t, what+"coverage", v.covered, runs, 94, 97)
			within(t, what+"false alarms", v.alarms, runs, 0, 2)
			within(t, what+"planted differences found", v.found, runs, 95, 100)
		}
	}
}

// TestNoisySubjectBySimulation: if a subject is three times as noisy as its baseline, the twins alone do not show what
// can be resolved.
func TestNoisySubjectBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | blocks | found before % | found % | false alarms before % | false alarms % |")
	for _, blocks := range []int{6, 10, 20} {
		for _, noise := range noises[:1] {
			runs := repetitions(1000)
			v := runMany(noise.draw, math.Sqrt(8)+1, blocks, runs) // independent noises add up in squares: three times as large
			t.Logf("| %s | %d | %.1f | %.1f | %.1f | %.1f |", noise.name, blocks, v.oldFound, v.found, v.oldAlarms, v.alarms)
			what := fmt.Sprintf("%s, %d blocks: ", noise.name, blocks)
			within(t, what+"found", v.found, runs, 93, 100)
			within(t, what+"false alarms", v.alarms, runs, 0, 5)
		}
	}
}

// TestFamilyOfFourBySimulation measures false alarms in any of a family of four quantiles. They are independent here,
// which is the worst case. The result is the reason why no correction for multiple comparisons is made.
func TestFamilyOfFourBySimulation(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{6, 10, 20} {
		for _, noise := range noises {
			runs := repetitions(500)
			one := runMany(noise.draw, 1, blocks, runs).alarms / 100
			family := 100 * (1 - math.Pow(1-one, 4))
			t.Logf("| %s | %d | %.1f |", noise.name, blocks, family)
			within(t, fmt.Sprintf("%s, %d blocks: families with a false alarm", noise.name, blocks), family, runs/4, 0, 5)
		}
	}
}

// TestSkewedDifferencesBySimulation: if the subject adds noise, the differences are skewed, and the estimate is that of
// the pseudo-median only. The interval is no longer exact; it must stay close.
func TestSkewedDifferencesBySimulation(t *testing.T) {
	t.Parallel()
	draw := func(r *rand.Rand) float64 { return 3*math.Exp(r.NormFloat64()) - math.Exp(r.NormFloat64()) }
	r := rand.New(rand.NewPCG(3, 3))
	averages := make([]float64, 400_000)
	for i := range averages {
		averages[i] = (draw(r) + draw(r)) / 2
	}
	slices.Sort(averages)
	truth := averages[len(averages)/2]
	for _, blocks := range []int{6, 10, 20, 40, 60} {
		runs := repetitions(500)
		if blocks > 20 && *simulated == 0 {
			runs = 200
		}
		var covered float64
		for i := range runs {
			xs := make([]float64, blocks)
			for j := range xs {
				xs[j] = draw(r)
			}
			if !PseudoMedian(xs, uint64(i)).Excludes(truth) {
				covered += 100 / float64(runs)
			}
		}
		t.Logf("| %d | %.1f |", blocks, covered)
		within(t, fmt.Sprintf("%d blocks: coverage", blocks), covered, runs, 93, 97)
	}
}

// TestMedianBySimulation: the interval of the median of one arm is exact for any noise: it covers in at least 95 % of
// runs, and as often as it claims.
func TestMedianBySimulation(t *testing.T) {
	t.Parallel()
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

// TestFoundBySimulation measures how often a subject that costs exactly the smallest visible difference of a run is
// resolved, and how often one that costs what the run says 80 % of runs find: each in the same run and in the next.
func TestFoundBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | of the subject | blocks | smallest visible: this run, the next % | found: this run, the next % |")
	for _, louder := range []float64{1, 3} {
		for _, blocks := range []int{6, 10, 20, 50} {
			for _, noise := range noises[:3] {
				runs := repetitions(long.Repeat(100, 2000))
				r := rand.New(rand.NewPCG(34, uint64(blocks)))
				var visible, found [2]float64
				var null Estimate
				var mine float64
				for i := range runs + 1 {
					c := simulate(r, noise.draw, blocks, 0)
					for b := range c.subject {
						c.subject[b] += math.Sqrt(louder*louder-1) * (noise.draw(r) - noise.draw(r)) / math.Sqrt2
					}
					pilot, was := mine, null
					null = Difference(pairs(c.direct, c.subject), uint64(i))
					end, _ := SmallestVisible(Difference(pairs(c.direct, c.twin), uint64(i)))
					mine = Visible(end, null)
					if i == 0 {
						continue
					}
					for next, effect := range []float64{mine, pilot} {
						by := []Estimate{null, was}[next]
						if Resolved(shifted(null, effect), mine) {
							visible[next] += 100 / float64(runs)
						}
						if Resolved(shifted(null, Found(effect, by)), mine) {
							found[next] += 100 / float64(runs)
						}
					}
				}
				t.Logf("| %s | %g | %d | %.0f, %.0f | %.0f, %.0f |", noise.name, louder, blocks, visible[0], visible[1], found[0],
					found[1])
				what := fmt.Sprintf("%s, %g times as noisy, %d blocks: found in ", noise.name, louder, blocks)
				within(t, what+"this run", found[0], runs, 76, 93)
				within(t, what+"the next run", found[1], runs, 64, 80)
			}
		}
	}
}
