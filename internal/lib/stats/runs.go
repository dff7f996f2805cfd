package stats

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"
)

// Effect is the difference between an arm and its own baseline in one run, with the standard error by the blocks of
// that run.
type Effect struct{ Value, Error float64 }

// EffectOf is the effect of an estimate with its interval. It is false where there is no interval, or it has no end.
func EffectOf(value, lo, hi float64, blocks int) (Effect, bool) {
	if blocks < MinBlocks || !(hi >= lo) || math.IsInf(hi-lo, 0) || math.IsInf(value, 0) || math.IsNaN(value) {
		return Effect{}, false
	}
	return Effect{Value: value, Error: standardError((hi-lo)/2, blocks)}, true
}

// Spread is by how much the effects of one thing differ from run to run for no reason.
type Spread struct {
	Variance float64 // of the effect of one run: the noise within it, and what differs from run to run
	Within   float64 // the part of it that noise within the runs explains that it is known from, the mean
	Freedom  float64 // degrees of freedom of Variance
}

// rounding is the part of a value below which a deviation is one of floating-point sums.
const rounding = 1e-9

// newSpread is the spread of effects with a variance that was seen. Runs cannot lie closer together than the noise
// within them, so that is the least. It is false where nothing varies, for then it is not known what could.
func newSpread(seen, freedom float64, effects []Effect) (Spread, bool) {
	within, largest := 0.0, 0.0
	for _, e := range effects {
		within += e.Error * e.Error / float64(len(effects))
		largest = max(largest, math.Abs(e.Value))
	}
	s := Spread{Variance: max(seen, within), Within: within, Freedom: freedom}
	return s, freedom >= 1 && s.Variance > rounding*rounding*largest*largest
}

// SpreadOfRepeats is the spread of runs of which those of a group were repeated without any change: the variance within
// groups. It is false where no group has two.
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

// SpreadOfTwins is the spread by the A/A twins of runs, whose effect is known: it is 0. Each run adds a degree of
// freedom.
func SpreadOfTwins(twins []Effect) (Spread, bool) {
	return newSpread(squaresAbout(0, twins)/max(float64(len(twins)), 1), float64(len(twins)), twins)
}

// SpreadOfHistory is the spread of the runs of a series, in order of time: by their successive differences, which a
// shift of the level hardly enters (von Neumann et al. 1941), or by the variance about the level between shifts, where
// that is larger, as of runs that drift. With normal noise the former have the degrees of freedom 2 (n-1)^2 / (3n-4).
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

// Change is how far the mean effect of some runs lies above that of others, with an interval by Student's t that holds
// the variance between runs. What the noise within each of these runs exceeds that of the runs by which the spread is
// known is added.
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
	permutations  = 1999  // of each test
	changeLevel   = 0.01  // at which a test finds one
	maxChangeRuns = 1_000 // of a series; of longer ones the last
)

// ChangePoints are the places in a series at which its level shifts: the index of the first value of each new level,
// in order. The place that parts the ranks of a segment most, in proportion to what chance does (CUSUM), is one if at
// most 1 % of 1,999 random orders part them as far; both sides are then looked at in turn. The values of a level must
// be independent of their order: a drift is found as one or several shifts. A shift has at least 3 values on both
// sides, and 10 values in all are the fewest in which one can be found.
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

// parting is where the mean of values parts most from that of those before, in standard errors but for a constant.
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
