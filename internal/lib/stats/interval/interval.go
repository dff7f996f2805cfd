// Package interval computes intervals for counts of samples or events. It is separate from package stats because the
// packages that weigh a machine (internal/scale) need only these, without the linear algebra.
package interval

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// Binomial returns Wilson's score interval for the probability of success, given k successes in n independent trials.
// It is not exact: averaged over probabilities its coverage is the requested confidence, while the exact
// (Clopper-Pearson) interval is much too wide for small n; at single probabilities near 0 or 1 it falls short (Brown,
// Cai and DasGupta 2001; measured in the tests). With k = 0 the lower end is 0, with k = n the upper end is 1, and
// with n = 0 the interval is [0, 1]. A k outside [0, n] is moved to the nearest end. A confidence outside (0, 1) is
// treated as the nearest limit: a point, or [0, 1].
func Binomial(k, n int, confidence float64) (lo, hi float64) {
	if n <= 0 || confidence >= 1 {
		return 0, 1
	}
	k = min(max(k, 0), n)
	z := math.Sqrt2 * math.Erfinv(max(confidence, 0)) // P(|Z| <= z) = confidence
	lo, hi = Wilson(float64(k)/float64(n), float64(n), z)
	if k == 0 {
		lo = 0 // exactly, without the rounding error of centre - half
	}
	if k == n {
		hi = 1
	}
	return lo, hi
}

// Poisson returns the exact (Garwood) interval for the mean of a Poisson distribution, given a count k. Its coverage
// is at least the requested confidence. With k = 0 the lower end is 0. A negative k is taken as 0. The ends are
// quantiles of the gamma distribution.
func Poisson(k int, confidence float64) (lo, hi float64) {
	k = max(k, 0)
	if confidence >= 1 {
		return 0, math.Inf(1)
	}
	tail := (1 - max(confidence, 0)) / 2
	if k == 0 {
		return 0, -math.Log(tail) // the gamma distribution is exponential here
	}
	lo = mathext.GammaIncRegInv(float64(k), tail)
	return lo, mathext.GammaIncRegInv(float64(k)+1, 1-tail)
}

// Wilson returns the score interval around the proportion p of n trials, with the normal quantile z.
func Wilson(p, n, z float64) (lo, hi float64) {
	centre := (p + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(centre-half, 0), min(centre+half, 1)
}

// Student returns the t with P(|T| <= t) = confidence, for Student's distribution with df degrees of freedom.
func Student(df, confidence float64) float64 {
	x := mathext.InvRegIncBeta(df/2, 0.5, 1-confidence)
	return math.Sqrt(df * (1/x - 1))
}
