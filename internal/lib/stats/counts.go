package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// BinomialInterval is Wilson's score interval for the probability behind k successes in n independent tries. It is not
// exact: averaged over probabilities it covers at the confidence asked for, where the exact (Clopper-Pearson) interval
// is much too wide for small n; single probabilities near 0 or 1 fall short (Brown, Cai and DasGupta 2001; measured in
// the tests). With k = 0 the lower end is 0, with k = n the upper end is 1, and without tries the interval is [0, 1]. A
// k outside [0, n] is moved to the nearest end; a confidence outside (0, 1) is taken as the nearest limit: a point, or
// [0, 1].
func BinomialInterval(k, n int, confidence float64) (lo, hi float64) {
	if n <= 0 || confidence >= 1 {
		return 0, 1
	}
	k = min(max(k, 0), n)
	z := normalQuantile(confidence)
	lo, hi = wilson(float64(k)/float64(n), float64(n), z)
	if k == 0 {
		lo = 0 // exactly, without the rounding of centre - half
	}
	if k == n {
		hi = 1
	}
	return lo, hi
}

// PoissonInterval is the exact (Garwood) interval for the mean of a Poisson count that came out as k: it covers at
// least at the confidence asked for. With k = 0 the lower end is 0. A negative k is taken as 0.
func PoissonInterval(k int, confidence float64) (lo, hi float64) {
	k = max(k, 0)
	if confidence >= 1 {
		return 0, math.Inf(1)
	}
	tail := (1 - max(confidence, 0)) / 2
	if k > 0 {
		lo = distuv.ChiSquared{K: 2 * float64(k)}.Quantile(tail) / 2
	}
	return lo, distuv.ChiSquared{K: 2*float64(k) + 2}.Quantile(1-tail) / 2
}

// normalQuantile is the z with P(|Z| <= z) = confidence.
func normalQuantile(confidence float64) float64 {
	return distuv.UnitNormal.Quantile((1 + max(confidence, 0)) / 2)
}

// SignTest is the two-sided p-value of as many values above as below, if either were equally likely.
func SignTest(above, below int) float64 {
	n := above + below
	if n == 0 {
		return 1
	}
	binomial := distuv.Binomial{N: float64(n), P: 0.5}
	return min(1, 2*binomial.CDF(float64(min(above, below))))
}

// MoreOften is the probability that at least a of n would be the ones lost, against b of m, if all were equally likely
// to be: Fisher's exact test, one-sided.
func MoreOften(a, n, b, m int) float64 {
	choose := func(n, k int) float64 {
		up, _ := math.Lgamma(float64(n + 1))
		low, _ := math.Lgamma(float64(k + 1))
		rest, _ := math.Lgamma(float64(n - k + 1))
		return up - low - rest
	}
	var p float64
	lost := a + b
	for k := max(a, lost-m); k <= min(n, lost); k++ {
		p += math.Exp(choose(n, k) + choose(m, lost-k) - choose(n+m, lost))
	}
	return min(p, 1)
}
