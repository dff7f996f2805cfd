package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// minDependence is the number of values, over all series, from which on the dependence between blocks is learned and
// intervals are widened by it. Fewer values cannot distinguish dependent blocks from independent ones: intervals of six
// blocks would be widened by 1.6 on average whether or not the blocks are dependent (docs/statistics.md).
const minDependence = 24

// MinOwn is the number of values of one arm from which on the dependence of its differences is learned.
const MinOwn = 18

// correlation is the correlation between blocks caused by a state that follows a first-order autoregression and has a
// share of the variance. The rest of the variance is white noise, which would hide a slow state from the lag-1
// autocorrelation.
type correlation struct{ lag1, share float64 }

// autocorrelations are the models fitted to the differences of all arms. Half of the prior weight is on 0, since the
// order within blocks is random, and the rest is spread evenly. Real runs had lag-1 autocorrelations between 0.2 and
// 0.76.
var autocorrelations = correlations([]float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95}, []float64{1})

// states are the models fitted to one arm's own differences and, if there are enough values, to the differences of all
// arms. They are slow states, with lag-1 autocorrelations of up to 0.98, because a state slower than the run looks like
// an effect.
var states = correlations([]float64{0.7, 0.8, 0.9, 0.95, 0.98}, []float64{0.25, 0.5, 0.75, 1})

func correlations(lags, shares []float64) []correlation {
	all := []correlation{{0, 1}}
	for _, share := range shares {
		for _, lag := range lags {
			all = append(all, correlation{lag, share})
		}
	}
	return all
}

// The prior weights of independence, and of each alternative to it: a state of the arm alone, and a state of all arms.
const (
	priorOfIndependence = 0.5
	priorOfState        = 0.32
)

// Dependence describes how much neighbouring blocks of a run resemble each other. A noisy neighbour's activity outlasts
// a block, so the differences in one block predict the differences in the next, and n blocks are worth fewer than n
// independent ones.
type Dependence struct {
	Values  int     // number of values from which it was learned
	Lag1    float64 // lag-1 autocorrelation: mean of the posterior distribution
	models  []correlation
	weights []float64
	slow    *Dependence // states fitted to the same series
	own     *Dependence // states fitted to the series of the arm itself
}

// Known reports whether there were enough values to learn from. If neither Known nor OwnKnown is true, Widen leaves
// intervals unchanged.
func (d Dependence) Known() bool { return d.Values >= minDependence }

// LearnDependence learns the lag-1 autocorrelation from series of values in the order of blocks, all of one metric: the
// differences of the twins and of the arms, at each level. The likelihood is that of a first-order autoregression with
// unknown mean and variance, applied to the normal scores of the values, so that a few outliers do not hide the
// autocorrelation. Constant series have no information. The mean of the twins is known to be 0, so a state slower than
// the run, which does not vary within any series, shows as a shift of the twins as a whole.
func LearnDependence(twins, arms [][]float64) Dependence {
	d, slow := learn(autocorrelations, nil, slices.Concat(twins, arms)), learn(states, twins, arms)
	d.slow = &slow
	return d
}

// WithOwn adds the series of one arm. A state of one arm alone does not show in the A/A twins, and their white noise
// would outweigh it.
func (d Dependence) WithOwn(series ...[]float64) Dependence {
	own := learn(states, nil, series)
	d.own = &own
	return d
}

// LearnOwn learns from one series alone, such as the values of a coefficient, one for each block.
func LearnOwn(xs []float64) Dependence { return Dependence{}.WithOwn(xs) }

// OwnKnown reports whether there were enough values of the arm itself.
func (d Dependence) OwnKnown() bool { return d.own != nil && d.own.Values >= MinOwn }

// learn fits models to series, with an unknown mean, and to aboutZero, with a mean of 0.
func learn(models []correlation, aboutZero, series [][]float64) Dependence {
	d := Dependence{models: models}
	logs := make([]float64, len(models))
	for i := range logs {
		logs[i] = math.Log((1 - priorOfIndependence) / float64(len(logs)-1))
	}
	logs[0] = math.Log(priorOfIndependence)
	add := func(xs []float64, scores func([]float64) []float64, likelihood func(fitted) float64) {
		if !vary(xs) {
			return
		}
		d.Values += len(xs)
		for i, m := range fitAll(models, scores(xs)) {
			logs[i] += likelihood(m)
		}
	}
	for _, xs := range aboutZero {
		add(xs, signedScores, func(m fitted) float64 { return m.aboutZero })
	}
	for _, xs := range series {
		add(xs, normalScores, func(m fitted) float64 { return m.logLikelihood })
	}
	largest := slices.Max(logs)
	var total float64
	for _, l := range logs {
		d.weights = append(d.weights, math.Exp(l-largest))
		total += d.weights[len(d.weights)-1]
	}
	for i := range d.weights {
		d.weights[i] /= total
		d.Lag1 += d.weights[i] * models[i].lag1 * models[i].share
	}
	return d
}

// Series is one series of values under a dependence. Its values are fitted once, when this is first needed. It is not
// safe for concurrent use.
type Series struct {
	dependence Dependence
	values     []float64
	variance   float64  // cached result of inflation; 0 before
	states     []fitted // the models in the variable states, fitted to values; nil until first needed
}

// Of returns a series of values, in the order of blocks, under this dependence.
func (d Dependence) Of(xs []float64) *Series { return &Series{dependence: d, values: xs} }

// Widen widens the interval of an estimate from xs, in the order of blocks, to allow for their dependence.
func (d Dependence) Widen(e Estimate, xs []float64) Estimate { return d.Of(xs).Widen(e) }

// Widen widens the interval of an estimate from the series to allow for the dependence of its values.
func (s *Series) Widen(e Estimate) Estimate {
	inflation := s.inflation()
	e.Effective = float64(e.N) / inflation
	if e.HasInterval {
		e.Lo, e.Hi = widen(e.Value, e.Lo, inflation), widen(e.Value, e.Hi, inflation)
	}
	return e
}

func widen(value, end, inflation float64) float64 { return value - math.Sqrt(inflation)*(value-end) }

// vary reports whether a series has information about its dependence: at least three values, not all equal.
func vary(xs []float64) bool { return len(xs) >= 3 && slices.Min(xs) < slices.Max(xs) }

// inflation returns the factor by which dependence multiplies the variance of the mean of the series, averaged over
// the posterior distribution of the correlation.
func (s *Series) inflation() float64 {
	if s.variance == 0 {
		s.variance = s.inflate()
	}
	return s.variance
}

func (s *Series) inflate() float64 {
	if !vary(s.values) {
		return 1
	}
	inflation := 1.0
	if s.dependence.Known() {
		inflation = s.dependence.over(s.values)
	}
	if s.dependence.OwnKnown() {
		// Data without dependence still leave some weight on dependent states, which must not widen the interval.
		if independent, by := s.state(); independent < widensBelow {
			inflation = max(inflation, by)
		}
	}
	return max(1, inflation)
}

// state compares three explanations of the series: independent values, a state of this arm alone, and a state of all
// arms. It returns the posterior weight of independence, and the factor by which the variance of the mean of the series
// is multiplied, averaged over the three by their weights.
func (s *Series) state() (independent, inflation float64) {
	if s.states == nil {
		s.states = fitAll(states, normalScores(s.values))
	}
	d, fits := s.dependence, s.states
	total, inflation := 1.0, 1.0
	add := func(known bool, by *Dependence) {
		for i := 1; known && i < len(states); i++ {
			odds := priorOfState / priorOfIndependence * by.weights[i] / max(by.weights[0], math.SmallestNonzeroFloat32)
			total += odds
			inflation += odds * fits[i].variance / fits[0].variance
		}
	}
	add(d.OwnKnown(), d.own)
	add(d.Known() && d.slow != nil, d.slow)
	return 1 / total, inflation / total
}

// over returns the factor by which the dependence of all arms multiplies the variance of the mean of xs, averaged over
// the models by their weights.
func (d Dependence) over(xs []float64) (inflation float64) {
	fits := fitAll(d.models, normalScores(xs))
	for i, m := range fits {
		inflation += d.weights[i] * m.variance / fits[0].variance
	}
	return inflation
}

// The factors for Beyond, by which an interval that may be too narrow is widened before a value is compared with it.
const (
	StrongTimes = 5 // neighbouring blocks resemble each other strongly
	UnevenTimes = 3 // trials differ much in size; this factor makes intervals cover 95 % in the worst simulation
)

// Beyond reports whether a value lies outside of the interval after it is widened by a factor.
func (e Estimate) Beyond(v, times float64) bool {
	return e.HasInterval && (v < e.Value-times*(e.Value-e.Lo) || v > e.Value+times*(e.Hi-e.Value))
}

// Strong reports whether the arm, or all arms together, show such strong dependence that the widened interval of the
// series may still be too narrow. In simulations this is so for 2 to 5 % of independent series.
func (s *Series) Strong() bool {
	if !vary(s.values) {
		return false
	}
	independent, inflation := s.state()
	return independent < shownBelow && inflation > strongInflation
}

// If the weight of independence is below widensBelow, states widen intervals. If it is below shownBelow, and states
// multiply the variance by more than strongInflation, the widened intervals may still be too narrow (Strong).
const (
	widensBelow     = 0.72
	shownBelow      = 0.25
	strongInflation = 8
)

// Difference is like the function Difference, with the interval widened. Pairs are in the order of blocks.
func (d Dependence) Difference(pairs []Pair, seed uint64) Estimate {
	return d.Widen(Difference(pairs, seed), Differences(pairs))
}

// At returns the estimate of values in the order of blocks with a widened interval of the given confidence. worstLo
// and worstHi are the ends of the interval if the lost values, whose number is given, were at minus or plus infinity;
// an end without a bound is infinite.
func (d Dependence) At(xs []float64, lost int, confidence float64, seed uint64) (e Estimate, worstLo, worstHi float64) {
	s := d.Of(xs)
	e = s.Widen(PseudoMedianAt(xs, confidence, seed))
	switch {
	case !e.HasInterval:
		return e, math.Inf(-1), math.Inf(1)
	case lost <= 0:
		return e, e.Lo, e.Hi
	}
	inflation := s.inflation()
	lo, hi, _ := WorstCaseAt(xs, lost, confidence, seed)
	return e, widen(e.Value, lo, inflation), widen(e.Value, hi, inflation)
}

// WorstCase is like WorstCaseAt for the differences of pairs, with the interval widened. Pairs are in the order of
// blocks.
func (d Dependence) WorstCase(pairs []Pair, lost int, seed uint64) (lo, hi float64, ok bool) {
	e, lo, hi := d.At(Differences(pairs), lost, Confidence, seed)
	return lo, hi, e.HasInterval
}

// Ratio estimates arm over baseline, as the Difference of the logarithms. Pairs are in the order of blocks. It returns
// false if a value is not above 0, since there is no ratio then.
func (d Dependence) Ratio(pairs []Pair, seed uint64) (Estimate, bool) {
	logs, ok := LogRatios(pairs)
	if !ok {
		return Estimate{}, false
	}
	return exponentiated(d.Widen(PseudoMedian(logs, seed), logs)), true
}

// fitted is a correlation fitted to a series: the logarithms of the likelihood, first with mean and variance
// integrated out and then with a mean of 0, and the estimated variance of the mean.
type fitted struct{ logLikelihood, aboutZero, variance float64 }

// fitAll fits each of the correlations with the Kalman filter of the state, run on the series y and on ones. If R is
// the correlation matrix of the series, this gives |R|, 1'R^-1 1, 1'R^-1 y and y'R^-1 y.
func fitAll(models []correlation, ys []float64) []fitted {
	fits := make([]fitted, len(models))
	n := float64(len(ys))
	for i, m := range models {
		var logDeterminant, ones, cross, square float64
		var state, unit float64 // predicted from the previous values
		variance := m.share
		for _, y := range ys {
			total := variance + 1 - m.share
			dy, d1 := y-state, 1-unit
			logDeterminant += math.Log(total)
			ones, cross, square = ones+d1*d1/total, cross+d1*dy/total, square+dy*dy/total
			gain := variance / total
			state, unit = m.lag1*(state+gain*dy), m.lag1*(unit+gain*d1)
			variance = m.lag1*m.lag1*variance*(1-gain) + (1-m.lag1*m.lag1)*m.share
		}
		rest := square - cross*cross/ones
		fits[i] = fitted{
			logLikelihood: -(logDeterminant + math.Log(ones) + (n-1)*math.Log(rest)) / 2,
			aboutZero:     -(logDeterminant + n*math.Log(square)) / 2,
			variance:      rest / ones,
		}
	}
	return fits
}

// signedScores returns normal scores about 0: each value is ranked among all values and their negatives.
func signedScores(xs []float64) []float64 {
	both := slices.Clone(xs)
	for _, x := range xs {
		both = append(both, -x)
	}
	return normalScores(both)[:len(xs)]
}

// normalScores replaces each value by the normal quantile of its rank. Equal values share the mean of their ranks.
func normalScores(xs []float64) []float64 {
	ys := make([]float64, len(xs))
	for i, twice := range doubledRanks(xs) {
		ys[i] = distuv.UnitNormal.Quantile(float64(twice-1) / 2 / float64(len(xs)))
	}
	return ys
}
