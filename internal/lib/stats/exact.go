package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/combin"
	"gonum.org/v1/gonum/stat/distuv"
)

// SignTest returns the two-sided p-value of the hypothesis that a value is as likely to lie above a point as below it,
// given the numbers of values above and below the point.
func SignTest(above, below int) float64 {
	n := above + below
	if n == 0 {
		return 1
	}
	binomial := distuv.Binomial{N: float64(n), P: 0.5}
	return min(1, 2*binomial.CDF(float64(min(above, below))))
}

// MoreOften compares two groups, in which a of n and b of m were lost, by Fisher's exact test, one-sided. It returns
// the probability that at least a of the a+b losses are in the first group, if each of the n+m is equally likely to be
// lost.
func MoreOften(a, n, b, m int) float64 {
	choose := func(n, k int) float64 { return combin.LogGeneralizedBinomial(float64(n), float64(k)) }
	var p float64
	lost := a + b
	for k := max(a, lost-m); k <= min(n, lost); k++ {
		p += math.Exp(choose(n, k) + choose(m, lost-k) - choose(n+m, lost))
	}
	return min(p, 1)
}
