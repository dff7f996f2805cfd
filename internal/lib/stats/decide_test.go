package stats

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tare/test/long"
)

func TestMinBlocksAt(t *testing.T) {
	for confidence, want := range map[float64]int{0.5: 2, 0.9: 5, Confidence: MinBlocks, 0.99: 8,
		SequentialConfidence: 9} {
		n := MinBlocksAt(confidence)
		if n != want {
			t.Errorf("%g: %d blocks, want %d", confidence, n, want)
		}
		xs := make([]float64, n)
		for i := range xs {
			xs[i] = float64(i * i)
		}
		for name, of := range map[string]func([]float64) Estimate{
			"median":        func(xs []float64) Estimate { return MedianAt(xs, confidence) },
			"pseudo-median": func(xs []float64) Estimate { return PseudoMedianAt(xs, confidence, 1) },
		} {
			if e := of(xs); !e.HasInterval || e.Confidence < confidence {
				t.Errorf("%s at %g: %+v", name, confidence, e)
			}
			if e := of(xs[1:]); e.HasInterval {
				t.Errorf("%s at %g of one less: %+v", name, confidence, e)
			}
		}
	}
}

// TestWiderWithConfidence: a higher confidence never makes an interval narrower, whichever method makes it.
func TestWiderWithConfidence(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{12, 30, 60, 301} {
		xs := make([]float64, n)
		for i := range xs {
			xs[i] = r.NormFloat64()
		}
		last := Estimate{}
		for _, confidence := range []float64{0.8, 0.95, 0.99, SequentialConfidence} {
			e := PseudoMedianAt(xs, confidence, 1)
			if !e.HasInterval || e.Confidence < confidence || last.HasInterval && (e.Lo > last.Lo || e.Hi < last.Hi) {
				t.Errorf("%d values at %g: %+v after %+v", n, confidence, e, last)
			}
			last = e
		}
	}
}

func TestMayDecide(t *testing.T) {
	looks := 0
	for n := range 2 * LastLook {
		if MayDecide(n) {
			looks++
		}
	}
	if !MayDecide(FirstLook) || MayDecide(FirstLook+1) || MayDecide(0) || looks != 16 {
		t.Errorf("%d looks, want 16", looks)
	}
}

func TestBlocksToDecide(t *testing.T) {
	for _, c := range []struct {
		blocks     int
		half, away float64
		want       int
		ok         bool
	}{
		{10, 1, 1, 21, true},
		{10, 2, 1, 82, true},
		{10, 1, 100, 11, true}, // not fewer than the run has
		{10, 1, 0, 0, false},
		{10, 0, 1, 0, false},
		{10, 1, 1e-3, 0, false},
		{0, 1, 1, 0, false},
	} {
		if n, ok := BlocksToDecide(c.blocks, c.half, c.away); n != c.want || ok != c.ok {
			t.Errorf("%+v: %d, %v", c, n, ok)
		}
	}
}

// decided is the result of simulated runs that were compared with a bound, in per cent of them.
type decided struct{ holds, fails, covered, blocks float64 }

// decideMany simulates runs whose arm lies above its baseline by the given shift, in standard deviations of the
// difference of one block, and compares them with an upper bound of 0. A sequential run is looked at like one that goes
// on until its assertion is decided, and ends after a number of blocks that is not known in advance. lag1 is the
// correlation of neighbouring blocks.
func decideMany(noise func(*rand.Rand) float64, shift, lag1 float64, sequential bool, most, runs int) decided {
	r := rand.New(rand.NewPCG(11, uint64(most)))
	var d decided
	f := 100 / float64(runs)
	for i := range runs {
		var differences, twins []float64
		state, twinState := noise(r)-noise(r), noise(r)-noise(r)
		grow := func(n int) {
			for len(differences) < n {
				state = lag1*state + (1-lag1)*(noise(r)-noise(r))
				twinState = lag1*twinState + (1-lag1)*(noise(r)-noise(r))
				differences, twins = append(differences, state+shift), append(twins, twinState)
			}
		}
		confidence, end := Confidence, most
		if sequential {
			confidence, end = SequentialConfidence, FirstLook+r.IntN(most-FirstLook+1)
		}
		var e Estimate
		covered := true
		for n := 0; n < end; {
			if n = end; sequential {
				n = min(NextLook(len(differences)), end)
			}
			grow(n)
			dependence := LearnDependence([][]float64{twins}, [][]float64{differences}).WithOwn(differences)
			e, _, _ = dependence.At(differences, 0, confidence, uint64(i))
			covered = covered && !e.Excludes(shift)
			if e.Excludes(0) {
				break
			}
		}
		switch {
		case e.HasInterval && e.Hi <= 0:
			d.holds += f
		case e.HasInterval && e.Lo > 0:
			d.fails += f
		}
		if covered {
			d.covered += f
		}
		d.blocks += float64(len(differences)) / float64(runs)
	}
	return d
}

// TestVerdictsBySimulation simulates the table of docs/statistics.md: how many verdicts of assertions are wrong if the
// value lies exactly on the bound, which is the worst case, and which verdicts are reached if it lies near the bound.
// On the bound, neither verdict is right.
func TestVerdictsBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| noise | run | value | holds % | fails % | all intervals cover % | blocks |")
	for _, noise := range noises {
		for _, way := range []struct {
			name       string
			sequential bool
			blocks     int
		}{{"6 blocks", false, 6}, {"10 blocks", false, 10}, {"20 blocks", false, 20}, {"until decided, 60", true, 60},
			{"until decided, 300", true, LastLook}} {
			for _, shift := range []float64{0, 1} {
				runs := repetitions(long.Repeat(50, 300))
				if way.sequential && *simulated == 0 {
					runs = long.Repeat(10, 60)
				}
				if way.blocks > maxExact { // beyond 50 blocks each look takes milliseconds
					if shift > 0 && *simulated == 0 {
						continue
					}
					runs = max(runs/8, 1800/way.blocks)
				}
				d := decideMany(noise.draw, shift, 0, way.sequential, way.blocks, runs)
				t.Logf("| %s | %s | %g | %.1f | %.1f | %.1f | %.0f |", noise.name, way.name, shift, d.holds, d.fails, d.covered,
					d.blocks)
				what := fmt.Sprintf("%s, %s, %g above the bound: ", noise.name, way.name, shift)
				within(t, what+"holds", d.holds, runs, 0, 2.5)
				within(t, what+"the intervals of all looks cover", d.covered, runs, 95, 100)
				if shift == 0 {
					within(t, what+"fails", d.fails, runs, 0, 2.5)
				}
			}
		}
	}
}
