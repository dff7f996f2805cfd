package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tare/test/long"
)

// days simulates a machine on which the effect of an arm varies from run to run. The field between is the standard
// deviation of this variation, in standard errors of one run of the twin.
type days struct {
	r       *rand.Rand
	between float64
	blocks  int
}

// effect returns the effect that one run shows if the true effect is shift, and the standard error that its blocks
// show.
func (m days) effect(shift, between, within float64) Effect {
	free := float64(m.blocks - 1)
	squares := 0.0
	for range m.blocks - 1 {
		x := m.r.NormFloat64()
		squares += x * x
	}
	return Effect{
		Value: shift + between*m.r.NormFloat64() + within*m.r.NormFloat64(), Error: within * math.Sqrt(squares/free),
	}
}

func (m days) several(n int, shift, within float64) (all []Effect) {
	for range n {
		all = append(all, m.effect(shift, m.between, within))
	}
	return all
}

// TestBetweenRunsBySimulation simulates the table of docs/statistics.md: how often the interval of a change between
// runs covers the change, by the source of the variance between runs. Old and new runs may be of different lengths, and
// so of different noise.
func TestBetweenRunsBySimulation(t *testing.T) {
	t.Parallel()
	t.Log("| variance from | old | new | history | noise of old, new | between runs | covers % | of the same resolved % |")
	for _, c := range []struct {
		name             string
		old, new         int
		history          int
		noisyOld, noisyN float64
	}{
		{"twins", 1, 1, 0, 1, 1}, {"twins", 1, 1, 0, 3, 3}, {"twins", 3, 3, 0, 1, 1}, {"twins", 1, 1, 8, 1, 1},
		{"twins", 5, 1, 0, 0.1, 1}, {stillTwins, 1, 1, 0, 1, 1}, {stillTwins, 3, 3, 0, 1, 1},
		{"repeats", 2, 2, 0, 1, 1}, {"repeats", 5, 5, 0, 1, 1}, {"repeats", 5, 1, 0, 3, 3}, {"repeats", 5, 1, 0, 0.1, 1},
		{"history", 1, 1, 6, 1, 1}, {"history", 1, 1, 20, 1, 1}, {"history", 1, 1, 20, 1, 3},
	} {
		for _, between := range []float64{0, 1, 3} {
			m := days{r: rand.New(rand.NewPCG(3, uint64(c.history))), between: between, blocks: 12}
			tries := repetitions(long.Repeat(100, 1000))
			if c.name == "history" {
				tries = max(tries/10, 100) // each history is searched for shifts
			}
			covers, same := 0.0, 0.0
			for try := range tries {
				for _, shift := range []float64{0, 2} {
					old, new := m.several(c.old, 0, c.noisyOld), m.several(c.new, shift, c.noisyN)
					var spread Spread
					known := false
					switch c.name {
					case "twins", stillTwins:
						varies := between
						if c.name == stillTwins {
							varies = 0
						}
						var twins []Effect
						for range c.old {
							twins = append(twins, m.effect(0, varies, min(c.noisyOld, 1)))
						}
						for range c.new + c.history {
							twins = append(twins, m.effect(0, varies, min(c.noisyN, 1)))
						}
						spread, known = SpreadOfTwins(twins)
					case "repeats":
						spread, known = SpreadOfRepeats(old, new)
					case "history":
						spread, known = SpreadOfHistory(m.several(c.history, 0, 1), uint64(try))
					}
					if !known {
						t.Fatal("the spread is not known")
					}
					e := spread.Change(old, new)
					if !e.Excludes(shift) {
						covers += 50 / float64(tries)
					}
					if shift == 0 && e.Excludes(0) {
						same += 100 / float64(tries)
					}
				}
			}
			what := fmt.Sprintf("%s, %d against %d, history %d, noise %g and %g, %g between runs",
				c.name, c.old, c.new, c.history, c.noisyOld, c.noisyN, between)
			t.Logf("| %s | %d | %d | %d | %g, %g | %g | %.1f | %.1f |",
				c.name, c.old, c.new, c.history, c.noisyOld, c.noisyN, between, covers, same)
			if c.name == stillTwins && between > 0 {
				continue // which is why twins alone give no verdict
			}
			within(t, what+": covers", covers, 2*tries, 94, 100)
			within(t, what+": resolved", same, tries, 0, 6)
		}
	}
}

// stillTwins are twins that do not vary from run to run though the arms do.
const stillTwins = "twins that do not vary"

// TestUnknownSpread: the spread between runs is unknown if too few runs, or only runs without any variation, are known.
func TestUnknownSpread(t *testing.T) {
	one := []Effect{{1, 0.1}}
	if s, ok := SpreadOfRepeats(one, one); ok {
		t.Errorf("of runs that were not repeated: %+v", s)
	}
	if s, ok := SpreadOfHistory(slices.Repeat(one, 2), 1); ok {
		t.Errorf("of a history of two: %+v", s)
	}
	if s, ok := SpreadOfTwins([]Effect{{}, {}}); ok {
		t.Errorf("of twins without any: %+v", s)
	}
	// Values that never varied so far may still vary: a value may be one of a few, and sums may differ by rounding.
	exact := []Effect{{math.Log(1.5), 0}, {math.Log(1.5), 0}, {math.Log(1.5) * (1 + 1e-15), 0}, {math.Log(1.5), 0}}
	if s, ok := SpreadOfRepeats(exact, exact); ok {
		t.Errorf("of repeats that never varied: %+v", s)
	}
	if s, ok := SpreadOfHistory(exact, 1); ok {
		t.Errorf("of a history that never varied: %+v", s)
	}
	for _, c := range []struct {
		value, lo, hi float64
		blocks        int
	}{{1, 0, 2, 5}, {1, math.Inf(-1), 2, 10}, {1, math.NaN(), 2, 10}, {math.Inf(1), 0, 2, 10}, {math.NaN(), 0, 2, 10}} {
		if e, ok := EffectOf(c.value, c.lo, c.hi, c.blocks); ok {
			t.Errorf("%+v: %+v", c, e)
		}
	}
}

// TestChangePointsBySimulation: a series without a shift rarely has one, and a shift of three standard deviations is
// found where it is, to within a run.
func TestChangePointsBySimulation(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{9, 12, 20, 40} {
		tries := repetitions(200)
		alarms, found := 0.0, 0.0
		for try := range tries {
			series := make([]float64, n)
			for i := range series {
				series[i] = r.NormFloat64()
			}
			if len(ChangePoints(series, uint64(try))) > 0 {
				alarms += 100 / float64(tries)
			}
			at := n / 2
			for i := at; i < n; i++ {
				series[i] += 3
			}
			if points := ChangePoints(series, uint64(try)); len(points) == 1 && points[0] >= at-1 && points[0] <= at+1 {
				found += 100 / float64(tries)
			}
		}
		t.Logf("%d runs: %.1f %% alarms, %.1f %% of shifts found", n, alarms, found)
		within(t, fmt.Sprintf("%d runs: alarms", n), alarms, tries, 0, 1)
		if n >= 20 {
			within(t, fmt.Sprintf("%d runs: found", n), found, tries, 90, 100)
		}
		if n < 10 && found+alarms > 0 {
			t.Errorf("%d runs: shifts were found where none can be", n)
		}
	}
	if at := ChangePoints(nil, 1); len(at) > 0 {
		t.Errorf("in nothing there are %v", at)
	}
	long := make([]float64, 3*maxChangeRuns/2)
	long[len(long)-100] = 1e9
	if at := ChangePoints(long, 1); len(at) > 0 {
		t.Errorf("outliers are shifts: %v", at)
	}
}

// TestRanks: equal values share a rank.
func TestRanks(t *testing.T) {
	doubledRanks([]float64{math.NaN(), 1, math.NaN()}) // NaN must not make it loop forever
	if got, want := doubledRanks([]float64{3, 1, 3, 2}), []int{7, 2, 7, 4}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestPlansBySimulation: the planned number of blocks decides on which side of a bound a value lies in 95 % of runs,
// whatever pilot the plan was made from; the forecast number of blocks resolves a difference in 80 %.
func TestPlansBySimulation(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	draw := func(n int, shift float64) (pairs, twins []Pair) {
		for range n {
			base := r.NormFloat64()
			pairs = append(pairs, Pair{base, r.NormFloat64() + shift})
			twins = append(twins, Pair{base, r.NormFloat64()})
		}
		return pairs, twins
	}
	for _, pilot := range []int{6, 12, 18, 30} {
		for _, away := range []float64{0.6, 1, 2} {
			tries := repetitions(long.Repeat(10, 150))
			decided, resolved, blocks := 0.0, 0.0, 0.0
			for try := range tries {
				pairs, twins := draw(pilot, 0)
				e, twin := Difference(pairs, uint64(try)), Difference(twins, uint64(try))
				half := func(e Estimate) float64 { return max(e.Hi-e.Value, e.Value-e.Lo) }
				n, ok := PlannedBlocks(pilot, half(e), away, 0.95)
				if !ok {
					t.Fatalf("no plan for %+v", e)
				}
				blocks += float64(n) / float64(tries)
				pairs, _ = draw(n, away)
				if Difference(pairs, uint64(try)).Lo > 0 {
					decided += 100 / float64(tries)
				}
				if n, ok = BlocksToResolve(pilot, max(half(e), half(twin)), away); !ok {
					t.Fatalf("no forecast for %+v", e)
				}
				pairs, twins = draw(max(n, MinBlocks), away)
				d := Difference(pairs, uint64(try))
				far, _ := SmallestVisible(Difference(twins, uint64(try)))
				if d.Excludes(0) && Resolved(d, Visible(far, d)) {
					resolved += 100 / float64(tries)
				}
			}
			t.Logf("| pilot of %d | %g | %.0f blocks | decided %.1f %% | as forecast, resolved %.1f %% |", pilot, away, blocks,
				decided, resolved)
			within(t, fmt.Sprintf("pilot of %d, %g away: decided", pilot, away), decided, tries, 95, 100)
			within(t, fmt.Sprintf("pilot of %d, %g away: resolved", pilot, away), resolved, tries, 70, 95)
		}
	}
}
