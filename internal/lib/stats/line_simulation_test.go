package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/test/long"
)

// designs are sets of levels that experiments sweep, each with the fixed part and the slope of a cost.
var designs = []struct {
	name         string
	levels       []float64
	fixed, slope float64
	blocks       int
}{
	{"config-scale", []float64{1, 100, 1000, 5000}, 0.1, 0.001, 6},
	{"ebpf-memory", []float64{1, 100, 1000, 10000}, 5, 0.005, 6},
	{"trace-exec", []float64{100, 1000, 4000, 16000, 64000}, 0.05, 1e-4, 6},
	{"ebpf-saturation", []float64{100, 500, 1000, 3000}, 0.1, 0.001, 10},
}

// disturbed returns blocks of trials of a cost. Each trial is off by noise in proportion to its value. shared is the
// part of the noise's variance that is common to a block.
func disturbed(r *rand.Rand, levels []float64, blocks int, cost func(x float64) float64, noise float64, shared float64,
	draw func(*rand.Rand) float64) []Observation {
	var all []Observation
	for b := range blocks {
		block := draw(r)
		for _, x := range levels {
			off := noise * (math.Sqrt(shared)*block + math.Sqrt(1-shared)*draw(r))
			all = append(all, Observation{X: []float64{x}, Y: cost(x) * (1 + off), Block: b})
		}
	}
	return all
}

// together puts all observations into one block, so that FitLine fits them together, as independent.
func together(observations []Observation) []Observation {
	all := slices.Clone(observations)
	for i := range all {
		all[i].Block = 0
	}
	return all
}

// byResiduals returns the fixed part and the slope of a fit of all trials together, with intervals that take the
// residuals as independent and of one size.
func byResiduals(t *testing.T, observations []Observation) (cs [2]Coefficient) {
	t.Helper()
	line, err := FitLine(together(observations))
	if err != nil {
		t.Fatal(err)
	}
	n := float64(len(observations))
	var mean, square, rss float64
	for _, o := range observations {
		mean += o.X[0] / n
	}
	for _, o := range observations {
		square += (o.X[0] - mean) * (o.X[0] - mean)
		rss += math.Pow(o.Y-line.At(o.X), 2)
	}
	student := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 2}.Quantile((1 + Confidence) / 2)
	for i, variance := range []float64{1/n + mean*mean/square, 1 / square} {
		c := line.Coefficients[i]
		if !math.IsInf(c.Lo, -1) || !math.IsInf(c.Hi, 1) {
			t.Errorf("a fit of all trials together has an interval: %+v", c)
		}
		half := student * math.Sqrt(rss/(n-2)*variance)
		cs[i] = Coefficient{c.Value, c.Value - half, c.Value + half}
	}
	return cs
}

// TestLinesBySimulation measures the coverage of slopes and fixed parts under noise of 5 % of the value: first by least
// squares on all trials, whose coverage is so poor that FitLine gives no intervals for a single block, and then by
// block.
func TestLinesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| levels of | noise | blocks | slope before % | fixed before % | slope % | fixed % | lines called bent % |")
	for _, d := range designs {
		for _, noise := range []struct {
			name   string
			shared float64
			draw   func(*rand.Rand) float64
		}{
			{"normal, own", 0, noises[0].draw}, {"normal, half shared", 0.5, noises[0].draw},
			{"normal, shared", 0.95, noises[0].draw},
			{"t5, half shared", 0.5, student(5)},
		} {
			for _, blocks := range []int{1, 2, d.blocks} {
				runs := repetitions(long.Repeat(40, 250))
				r := rand.New(rand.NewPCG(uint64(blocks), uint64(len(d.name)+len(noise.name))))
				cost := func(x float64) float64 { return d.fixed + d.slope*x }
				var before, after [2]float64
				var bent float64
				for range runs {
					observations := disturbed(r, d.levels, blocks, cost, 0.05, noise.shared, noise.draw)
					old := byResiduals(t, observations)
					line, err := FitLine(observations)
					if err != nil {
						t.Fatal(err)
					}
					for i, truth := range []float64{d.fixed, d.slope} {
						if c := old[i]; c.Lo <= truth && truth <= c.Hi {
							before[i] += 100 / float64(runs)
						}
						if c := line.Coefficients[i]; c.Lo <= truth && truth <= c.Hi {
							after[i] += 100 / float64(runs)
						}
					}
					if !line.Straight {
						bent += 100 / float64(runs)
					}
				}
				t.Logf("| %s | %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", d.name, noise.name, blocks, before[1], before[0],
					after[1], after[0], bent)
				if blocks == 1 {
					continue // no interval
				}
				what := fmt.Sprintf("%s, %s, %d blocks: ", d.name, noise.name, blocks)
				within(t, what+"slope", after[1], runs, 93, 97)
				within(t, what+"fixed", after[0], runs, 93, 97)
				within(t, what+"lines called bent", bent, runs, 0, 5)
			}
		}
	}
}

// TestCurvesBySimulation: curves must not pass as lines.
func TestCurvesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| curve | noise of a block | called a line before % | % |")
	memory := map[float64]float64{1: 23.6, 1000: 35.5, 10000: 69.6} // MB: kernel memory in ebpf-memory
	for _, c := range []struct {
		name   string
		levels []float64
		blocks int
		cost   func(float64) float64
		own    float64 // noise of each trial, in addition to that of its block
	}{
		{"ebpf-memory", []float64{1, 1000, 10000}, 6, func(x float64) float64 { return memory[x] }, 0.01},
		{"square root, 100 to 3000", []float64{100, 500, 1000, 3000}, 6, math.Sqrt, 0.02},
		{"square root, 1000 to 6000", []float64{1000, 2000, 4000, 6000}, 6, math.Sqrt, 0.02},
		{"square root, 1 to 10000", []float64{1, 100, 1000, 10000}, 6, math.Sqrt, 0.02},
	} {
		for _, noise := range []float64{0.02, 0.05, 0.15} {
			runs := repetitions(150)
			r := rand.New(rand.NewPCG(11, uint64(1000*noise)))
			var before, after float64
			for range runs {
				block := func(r *rand.Rand) float64 { return r.NormFloat64() }
				total := math.Hypot(noise, c.own)
				observations := disturbed(r, c.levels, c.blocks, c.cost, total, noise*noise/total/total, block)
				old, err := FitLine(together(observations))
				if err != nil {
					t.Fatal(err)
				}
				line, err := FitLine(observations)
				if err != nil {
					t.Fatal(err)
				}
				if old.Straight || old.Test == "held-out error" {
					before += 100 / float64(runs)
				}
				if line.Straight {
					after += 100 / float64(runs)
				}
			}
			within(t, fmt.Sprintf("%s, noise %g: called a line", c.name, noise), after, runs, 0, 1)
			t.Logf("| %s | %g %% | %.1f | %.1f |", c.name, 100*noise, before, after)
		}
	}
}

// TestDriftingLinesBySimulation measures the coverage of slopes when blocks drift: the slopes of successive blocks
// follow an autoregressive process.
func TestDriftingLinesBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| blocks | rho | before % | slope % | said to be strong % | misses unsaid % |")
	levels := []float64{1000, 2000, 4000, 8000}
	for _, blocks := range []int{18, 30, 50} {
		for _, rho := range []float64{0, 0.5, 0.8} {
			runs := repetitions(long.Repeat(75, 1000))
			r := rand.New(rand.NewPCG(uint64(blocks), uint64(1000*rho)))
			var before, after, strong, unsaid float64
			each := 100 / float64(runs)
			for range runs {
				state := autoregressive(r, blocks, rho)
				var observations []Observation
				for b := range blocks {
					for _, x := range levels {
						y := (1 + 0.002*x) * (1 + 0.05*state[b] + 0.005*r.NormFloat64())
						observations = append(observations, Observation{X: []float64{x}, Y: y, Block: b})
					}
				}
				fits, err := fitBlocks(observations, len(levels), 2)
				if err != nil {
					t.Fatal(err)
				}
				var slopes []float64
				for _, f := range fits {
					slopes = append(slopes, f.coefficients[1])
				}
				if mean, half := meanWithT(slopes, Confidence); math.Abs(mean-0.002) <= half {
					before += each
				}
				line, err := FitLine(observations)
				if err != nil {
					t.Fatal(err)
				}
				if line.Strong {
					strong += each
				}
				if c := line.Coefficients[1]; c.Lo <= 0.002 && 0.002 <= c.Hi {
					after += each
				} else if !line.Strong {
					unsaid += each
				}
			}
			t.Logf("| %d | %.1f | %.1f | %.1f | %.1f | %.1f |", blocks, rho, before, after, strong, unsaid)
			what := fmt.Sprintf("%d blocks, autocorrelation %g: ", blocks, rho)
			most := 8.0
			if blocks == 18 {
				most = 12
			}
			within(t, what+"misses that are not said", unsaid, runs, 0, most)
			if rho == 0 {
				within(t, what+"called strong", strong, runs, 0, 5)
			}
		}
	}
}
