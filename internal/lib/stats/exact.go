package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/combin"
	"gonum.org/v1/gonum/stat/distuv"
)

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
	choose := func(n, k int) float64 { return combin.LogGeneralizedBinomial(float64(n), float64(k)) }
	var p float64
	lost := a + b
	for k := max(a, lost-m); k <= min(n, lost); k++ {
		p += math.Exp(choose(n, k) + choose(m, lost-k) - choose(n+m, lost))
	}
	return min(p, 1)
}
