package stats

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"
)

// Effect is the difference between an arm and its own baseline in one run, with its standard error over the blocks of
// that run.
type Effect struct{ Value, Error float64 }

// EffectOf returns the effect of an estimate with its interval. It returns false if the interval is missing or
// unbounded.
func EffectOf(value, lo, hi float64, blocks int) (Effect, bool) {
	if blocks < MinBlocks || !(hi >= lo) || math.IsInf(hi-lo, 0) || math.IsInf(value, 0) || math.IsNaN(value) {
		return Effect{}, false
	}
	return Effect{Value: value, Error: standardError((hi-lo)/2, blocks)}, true
}

// Spread describes how much an effect varies from run to run although nothing has changed.
type Spread struct {
	Variance float64 // of the effect in one run: noise within the run, and variation between runs
	Within   float64 // the part of Variance that is noise within the runs, averaged over them
	Freedom  float64 // degrees of freedom of Variance
}

// rounding is the relative size below which a deviation is a rounding error of floating-point sums.
const rounding = 1e-9

// newSpread returns the spread of effects with an observed variance. The noise within runs is a lower bound, because
// runs cannot vary less than that. It returns false if nothing varies, because the variation is then unknown.
func newSpread(seen, freedom float64, effects []Effect) (Spread, bool) {
	within, largest := 0.0, 0.0
	for _, e := range effects {
		within += e.Error * e.Error / float64(len(effects))
		largest = max(largest, math.Abs(e.Value))
	}
	s := Spread{Variance: max(seen, within), Within: within, Freedom: freedom}
	return s, freedom >= 1 && s.Variance > rounding*rounding*largest*largest
}

// SpreadOfRepeats returns the spread of groups of runs that were repeated without any change: the variance within
// groups. It returns false if no group has two runs.
func SpreadOfRepeats(groups ...[]Effect) (Spread, bool) {
	squares, freedom := 0.0, 0.0
	var repeated []Effect
	for _, g := range groups {
		if len(g) < 2 {
			continue
		}
		squares += squaresAbout(meanEffect(g), g)
		freedom += float64(len(g) - 1)
		repeated = append(repeated, g...)
	}
	return newSpread(squares/max(freedom, 1), freedom, repeated)
}

// SpreadOfTwins returns the spread of the A/A twins of runs, whose effect is known to be 0. Each run adds a degree of
// freedom.
func SpreadOfTwins(twins []Effect) (Spread, bool) {
	return newSpread(squaresAbout(0, twins)/max(float64(len(twins)), 1), float64(len(twins)), twins)
}

// SpreadOfHistory returns the spread of a series of runs, in order of time: from their successive differences, which a
// shift of the level hardly affects (von Neumann et al. 1941), or from the variance about the level between shifts if
// that is larger, as for runs that drift. With normal noise the differences have 2 (n-1)^2 / (3n-4) degrees of freedom.
func SpreadOfHistory(series []Effect, seed uint64) (Spread, bool) {
	n := float64(len(series))
	if n < 3 {
		return Spread{}, false
	}
	squares := 0.0
	values := make([]float64, len(series))
	for i, e := range series {
		values[i] = e.Value
		if i > 0 {
			d := e.Value - series[i-1].Value
			squares += d * d
		}
	}
	about, begin := 0.0, 0
	ends := append(ChangePoints(values, seed), len(series))
	for _, end := range ends {
		level := series[begin:end]
		about += squaresAbout(meanEffect(level), level)
		begin = end
	}
	seen := max(squares/2/(n-1), about/max(n-float64(len(ends)), 1))
	return newSpread(seen, 2*(n-1)*(n-1)/(3*n-4), series)
}

func squaresAbout(level float64, effects []Effect) (sum float64) {
	for _, e := range effects {
		sum += (e.Value - level) * (e.Value - level)
	}
	return sum
}

func meanEffect(effects []Effect) float64 {
	sum := 0.0
	for _, e := range effects {
		sum += e.Value
	}
	return sum / float64(len(effects))
}

// Change returns how far the mean effect of the new runs lies above that of the old ones, with an interval by
// Student's t that includes the variance between runs. If one of these runs is noisier than the runs from which the
// spread is known, its additional noise is added.
func (s Spread) Change(old, new []Effect) Estimate {
	if len(old) == 0 || len(new) == 0 {
		return Estimate{}
	}
	variance := 0.0
	for _, side := range [][]Effect{old, new} {
		n := float64(len(side))
		for _, e := range side {
			variance += (s.Variance + max(0, e.Error*e.Error-s.Within)) / n / n
		}
	}
	half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: s.Freedom}.Quantile((1+Confidence)/2) * math.Sqrt(variance)
	d := meanEffect(new) - meanEffect(old)
	return Estimate{
		Value: d, Lo: d - half, Hi: d + half, HasInterval: true, Confidence: Confidence, N: len(old) + len(new),
		Method: "Student's t over runs",
	}
}

const (
	minSegment    = 3     // runs between change points
	permutations  = 1999  // for each test
	changeLevel   = 0.01  // significance level of a test
	maxChangeRuns = 1_000 // runs at the end of a series that are analysed
)

// ChangePoints returns the places in a series at which its level shifts: the index of the first value of each new
// level, in order. The candidate is the place that separates the ranks of a segment most, in units of chance (CUSUM).
// It counts if at most 1 % of 1,999 random orders separate them as much; both sides are then examined in turn. The
// values of a level must be independent of their order: a drift is found as one or several shifts. A shift has at
// least 3 values on each side, and none can be found in fewer than 10 values in all.
func ChangePoints(series []float64, seed uint64) []int {
	skipped := max(0, len(series)-maxChangeRuns)
	rng := rand.New(rand.NewPCG(seed, 0x6368616e6765))
	var found []int
	var look func(from, to int)
	look = func(from, to int) {
		if to-from < 2*minSegment {
			return
		}
		var ranks []float64
		for _, twice := range doubledRanks(series[from:to]) {
			ranks = append(ranks, float64(twice)/2)
		}
		at, most := parting(ranks)
		beyond := 1
		for range permutations {
			rng.Shuffle(len(ranks), func(i, j int) { ranks[i], ranks[j] = ranks[j], ranks[i] })
			if _, by := parting(ranks); by >= most {
				beyond++
			}
		}
		if float64(beyond) > changeLevel*(permutations+1) {
			return
		}
		look(from, from+at)
		found = append(found, from+at)
		look(from+at, to)
	}
	look(skipped, len(series))
	return found
}

// parting returns the index at which the mean of the values from there on differs most from the mean of the values
// before it, and by how much, in standard errors up to a constant factor.
func parting(xs []float64) (at int, by float64) {
	n := float64(len(xs))
	total, sum := 0.0, 0.0
	for _, x := range xs {
		total += x
	}
	for i, x := range xs[:len(xs)-minSegment] {
		sum += x
		k := float64(i + 1)
		if i+1 < minSegment {
			continue
		}
		if d := math.Abs(sum/k-(total-sum)/(n-k)) * math.Sqrt(k*(n-k)/n); d > by+1e-12 {
			at, by = i+1, d
		}
	}
	return at, by
}
