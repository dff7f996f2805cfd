package stats

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// minDependence is how many values, over all series, must speak of the dependence between blocks for intervals to be
// widened by it. Fewer cannot tell dependent blocks from independent ones: six blocks would be widened by 1.6 on
// average whether they depend on each other or not (docs/statistics.md).
const minDependence = 24

// autocorrelations are the lag-1 autocorrelations considered, with 70 % of the prior weight on 0, since order within
// blocks is random, and the rest spread evenly. What real runs showed lay between 0.2 and 0.76.
var autocorrelations = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95}

const priorOfIndependence = 0.5

// Dependence is what a run shows of how much neighbouring blocks resemble each other. A busy neighbour outlasts a
// block, so the differences of one block tell of the next, and n blocks are worth fewer than n independent ones.
type Dependence struct {
	Values  int     // that it was learned from
	Lag1    float64 // lag-1 autocorrelation: mean of the posterior distribution
	weights []float64
}

// Known reports whether there were enough values to learn from. If not, Widen leaves intervals as they are.
func (d Dependence) Known() bool { return d.Values >= minDependence }

// LearnDependence learns the lag-1 autocorrelation from series of values in the order of blocks, all of one metric:
// each arm's differences at each level. The likelihood is that of a first-order autoregression with unknown mean and
// variance, on the normal scores of the values, so that a few wild values do not hide it. A constant series says
// nothing.
func LearnDependence(series ...[]float64) Dependence {
	d := Dependence{}
	logs := make([]float64, len(autocorrelations))
	for i := range logs {
		logs[i] = math.Log((1 - priorOfIndependence) / float64(len(logs)-1))
	}
	logs[0] = math.Log(priorOfIndependence)
	for _, xs := range series {
		if len(xs) < 3 || slices.Min(xs) == slices.Max(xs) {
			continue
		}
		d.Values += len(xs)
		for i, m := range autoregressions(normalScores(xs)) {
			logs[i] += m.logLikelihood
		}
	}
	largest := slices.Max(logs)
	var total float64
	for _, l := range logs {
		d.weights = append(d.weights, math.Exp(l-largest))
		total += d.weights[len(d.weights)-1]
	}
	for i := range d.weights {
		d.weights[i] /= total
		d.Lag1 += d.weights[i] * autocorrelations[i]
	}
	return d
}

// Widen widens the interval of an estimate from xs, in the order of blocks, by what their dependence takes from it.
func (d Dependence) Widen(e Estimate, xs []float64) Estimate {
	inflation := d.inflation(xs)
	e.Effective = float64(e.N) / inflation
	if e.HasInterval {
		e.Lo, e.Hi = widen(e.Value, e.Lo, inflation), widen(e.Value, e.Hi, inflation)
	}
	return e
}

func widen(value, end, inflation float64) float64 { return value - math.Sqrt(inflation)*(value-end) }

// inflation is by how much dependence multiplies the variance of the mean of xs: the mean over what the autocorrelation
// may be.
func (d Dependence) inflation(xs []float64) float64 {
	if len(xs) < 3 || !d.Known() || slices.Min(xs) == slices.Max(xs) {
		return 1
	}
	models := autoregressions(normalScores(xs))
	var inflation float64
	for i, m := range models {
		inflation += d.weights[i] * m.variance / models[0].variance
	}
	return max(1, inflation)
}

// Difference is Difference with its interval widened. Pairs are in the order of blocks.
func (d Dependence) Difference(pairs []Pair, seed uint64) Estimate {
	return d.Widen(Difference(pairs, seed), Differences(pairs))
}

// At is the estimate of values in the order of blocks with an interval of a confidence, widened; lost further values at
// minus and plus infinity widen it to WorstLo and WorstHi, which are infinite where there is no bound.
func (d Dependence) At(xs []float64, lost int, confidence float64, seed uint64) (e Estimate, worstLo, worstHi float64) {
	e = d.Widen(PseudoMedianAt(xs, confidence, seed), xs)
	switch {
	case !e.HasInterval:
		return e, math.Inf(-1), math.Inf(1)
	case lost <= 0:
		return e, e.Lo, e.Hi
	}
	inflation := d.inflation(xs)
	lo, hi, _ := WorstCaseAt(xs, lost, confidence, seed)
	return e, widen(e.Value, lo, inflation), widen(e.Value, hi, inflation)
}

// WorstCase is WorstCaseAt of the differences of pairs, with its interval widened. Pairs are in the order of blocks.
func (d Dependence) WorstCase(pairs []Pair, lost int, seed uint64) (lo, hi float64, ok bool) {
	e, lo, hi := d.At(Differences(pairs), lost, Confidence, seed)
	return lo, hi, e.HasInterval
}

// Ratio estimates arm over baseline: Difference on the logarithms. Pairs are in the order of blocks. It is false when a
// value is not above 0, since there is no ratio then.
func (d Dependence) Ratio(pairs []Pair, seed uint64) (Estimate, bool) {
	logs, ok := LogRatios(pairs)
	if !ok {
		return Estimate{}, false
	}
	return exponentiated(d.Widen(PseudoMedian(logs, seed), logs)), true
}

// autoregression is a first-order autoregression of one autocorrelation, fitted to a series: the log of the likelihood,
// with mean and variance integrated out, and the estimated variance of the mean.
type autoregression struct{ logLikelihood, variance float64 }

// autoregressions fits one for each of the autocorrelations. With R the correlation matrix of the series, all follows
// from 1'R^-1 1, 1'R^-1 y, y'R^-1 y and |R|, and R^-1 has three diagonals.
func autoregressions(ys []float64) []autoregression {
	n := float64(len(ys))
	var sum, inner, square, innerSquare, cross float64
	for i, y := range ys {
		sum += y
		square += y * y
		if i > 0 {
			cross += y * ys[i-1]
		}
		if i > 0 && i < len(ys)-1 {
			inner += y
			innerSquare += y * y
		}
	}
	models := make([]autoregression, len(autocorrelations))
	for i, r := range autocorrelations {
		ones := (n - (n-2)*r) / (1 + r)
		mean := (sum - r*inner) / (1 + r) / ones
		rest := (square+r*r*innerSquare-2*r*cross)/(1-r*r) - mean*mean*ones
		models[i] = autoregression{
			logLikelihood: -((n-1)*math.Log(1-r*r) + math.Log(ones) + (n-1)*math.Log(rest)) / 2,
			variance:      rest / ones,
		}
	}
	return models
}

// normalScores replaces each value by the normal quantile of its rank. Equal values share the mean of their ranks.
func normalScores(xs []float64) []float64 {
	order := make([]int, len(xs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(xs[a], xs[b]) })
	ys := make([]float64, len(xs))
	for i := 0; i < len(order); {
		j := i + 1
		for j < len(order) && xs[order[j]] == xs[order[i]] {
			j++
		}
		score := distuv.UnitNormal.Quantile(float64(i+j) / 2 / float64(len(xs)))
		for _, k := range order[i:j] {
			ys[k] = score
		}
		i = j
	}
	return ys
}
