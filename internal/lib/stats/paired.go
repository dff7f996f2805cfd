package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"gonum.org/v1/gonum/stat/distuv"
)

// maxExact is the maximum number of values for which the exact signed-rank interval is used. That interval assumes that
// differences are symmetric about their centre; with more blocks, the bootstrap does as well without this assumption.
const maxExact = 50

// maxBootstrap is the maximum number of values that are averaged in pairs, because the work grows with its square. For
// more values, the median and its exact interval are used, which estimate the same quantity if the differences are
// symmetric.
const maxBootstrap = 300

// resamples is the number of resamples of the bootstrap. With it, the 2.5 % quantile varies by less than a tenth of
// the interval from seed to seed.
const resamples = 2000

// Pair holds the values of two arms in one block.
type Pair struct{ Base, Arm float64 }

// Difference estimates how far the arm lies above its baseline: the Hodges-Lehmann estimate (pseudo-median) of the
// differences within blocks, so effects of a block on both arms cancel. The two arms of a block differ in what was
// weighed and in noise. If the noise is exchangeable between them, the differences are symmetric about the shift,
// whatever the distribution of the noise, and this is what the signed-rank interval requires. Only the bootstrap uses
// the seed.
func Difference(pairs []Pair, seed uint64) Estimate { return PseudoMedian(Differences(pairs), seed) }

// Differences returns arm minus baseline for each pair.
func Differences(pairs []Pair) []float64 {
	ds := make([]float64, len(pairs))
	for i, p := range pairs {
		ds[i] = p.Arm - p.Base
	}
	return ds
}

// LogRatios returns the logarithm of arm over baseline for each pair. It returns false if a value is not above 0, or
// if there are no pairs.
func LogRatios(pairs []Pair) ([]float64, bool) {
	logs := make([]float64, len(pairs))
	for i, p := range pairs {
		if p.Base <= 0 || p.Arm <= 0 {
			return nil, false
		}
		logs[i] = math.Log(p.Arm) - math.Log(p.Base)
	}
	return logs, len(pairs) > 0
}

func exponentiated(e Estimate) Estimate {
	e.Value = math.Exp(e.Value)
	if e.HasInterval {
		e.Lo, e.Hi = math.Exp(e.Lo), math.Exp(e.Hi)
	}
	return e
}

// PseudoMedian returns the Hodges-Lehmann estimate: the median of the averages of all pairs of values, including each
// value with itself. Its interval is the exact signed-rank interval for up to 50 values, and from a seeded bootstrap
// for up to 300. For more values it returns the Median. The signed-rank interval is closed and read off the sorted
// averages, so tied values and zeros need no correction: they can only increase its coverage.
func PseudoMedian(xs []float64, seed uint64) Estimate { return PseudoMedianAt(xs, Confidence, seed) }

// Resampled returns the cost of the interval for the given number of values, in pairs of values per resample; 0 if the
// interval is not found by resampling.
func Resampled(values int) int {
	if values <= maxExact || values > maxBootstrap {
		return 0
	}
	return values * values
}

// PseudoMedianAt is like PseudoMedian with an interval of another confidence. There is no interval for fewer than
// MinBlocksAt blocks.
func PseudoMedianAt(xs []float64, confidence float64, seed uint64) Estimate {
	e := Estimate{N: len(xs), Method: None}
	if len(xs) == 0 || len(xs) > maxBootstrap {
		return MedianAt(xs, confidence)
	}
	walsh := walshAverages(xs)
	e.Value = middle(walsh, func(w walshAverage) float64 { return w.value })
	switch {
	case len(xs) < MinBlocksAt(confidence):
	case len(xs) <= maxExact:
		k, reached := signedRankDepth(len(xs), confidence)
		e.Lo, e.Hi = walsh[k].value, walsh[len(walsh)-1-k].value
		e.HasInterval, e.Confidence, e.Method = true, reached, SignedRank
	default:
		e.Lo, e.Hi = bootstrap(walsh, len(xs), confidence, seed)
		e.HasInterval, e.Confidence, e.Method = true, confidence, Bootstrap
	}
	return e
}

// Median returns the middle value, with the exact interval between two order statistics (the sign test). It assumes
// nothing about the distribution of the values, so it suits the values of one arm, which are seldom symmetric.
func Median(xs []float64) Estimate { return MedianAt(xs, Confidence) }

// MedianAt is like Median with an interval of another confidence. There is no interval for fewer than MinBlocksAt
// blocks.
func MedianAt(xs []float64, confidence float64) Estimate {
	e := Estimate{N: len(xs), Method: None}
	if len(xs) == 0 {
		return e
	}
	sorted := slices.Sorted(slices.Values(xs))
	e.Value = middle(sorted, func(x float64) float64 { return x })
	if len(xs) < MinBlocksAt(confidence) {
		return e
	}
	n := len(xs)
	signs := distuv.Binomial{N: float64(n), P: 0.5}
	k, reached := 0, 1-2*signs.CDF(0)
	for 2*(k+1) < n {
		next := 1 - 2*signs.CDF(float64(k+1))
		if next < confidence {
			break
		}
		k, reached = k+1, next
	}
	e.Lo, e.Hi = sorted[k], sorted[n-1-k]
	e.HasInterval, e.Confidence, e.Method = true, reached, OrderStatistics
	return e
}

// WorstCaseAt returns the interval of differences if the lost pairs, whose number is given, were all at minus infinity
// for the low end, and all at plus infinity for the high end. Whatever the values of these pairs, the interval of all
// pairs lies within the returned one. This holds only if losses are counted: repeating a trial and ignoring the first
// attempt is a selection. An end without a bound is infinite. There is no interval if PseudoMedianAt has none.
func WorstCaseAt(ds []float64, lost int, confidence float64, seed uint64) (lo, hi float64, ok bool) {
	least := PseudoMedianAt(ds, confidence, seed)
	if !least.HasInterval || lost <= 0 {
		return least.Lo, least.Hi, least.HasInterval
	}
	with := func(v float64) Estimate {
		all := slices.Clone(ds)
		for range lost {
			all = append(all, v)
		}
		return PseudoMedianAt(all, confidence, seed)
	}
	return with(math.Inf(-1)).Lo, with(math.Inf(1)).Hi, true
}

// FarEnd returns the largest difference that pairs of identical arms do not rule out: the far end of the interval of
// their difference or, with too few pairs for an interval, the largest difference seen. It returns false without
// pairs.
func FarEnd(pairs []Pair, seed uint64) (float64, bool) {
	if e := Difference(pairs, seed); e.HasInterval {
		return SmallestVisible(e)
	}
	var far float64
	for _, d := range Differences(pairs) {
		far = max(far, math.Abs(d))
	}
	return far, len(pairs) > 0
}

// SmallestVisible returns the smallest difference that a run can detect, from the interval of the difference between
// its A/A twins: the largest difference between two identical arms that the run does not rule out. It returns false if
// the twins have no interval.
func SmallestVisible(twins Estimate) (float64, bool) {
	return max(math.Abs(twins.Lo), math.Abs(twins.Hi)), twins.HasInterval
}

// Visible returns the smallest difference that a run can detect in an arm whose difference is d: the larger of the
// twins' smallest visible difference and half the width of d's interval, since an arm may be noisier than the twins.
func Visible(twins float64, d Estimate) float64 { return max(twins, (d.Hi-d.Lo)/2) }

// Found returns the effect that 80 % of runs like this one resolve. Only about every second run resolves an effect as
// large as the smallest visible one. Found therefore adds the 80 % quantile of two errors together: the error of the
// difference, and that of half-widths, which vary between runs with few blocks. The variance of a half-width is 1 / (2
// (n-1)) of its square, in this run and again in the next.
func Found(visible float64, d Estimate) float64 {
	blocks := max(d.N, 2)
	half, free := (d.Hi-d.Lo)/2, float64(blocks-1)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: free}
	return visible + t.Quantile(0.8)*math.Hypot(standardError(half, blocks), half/math.Sqrt(free))
}

// Resolved reports whether a difference may be claimed: its interval excludes 0, and it is larger than the smallest
// visible one.
func Resolved(difference Estimate, smallestVisible float64) bool {
	return difference.Excludes(0) && math.Abs(difference.Value) > smallestVisible
}

// walshAverage is the average of the values i and j, i <= j.
type walshAverage struct {
	value float64
	i, j  int
}

func walshAverages(xs []float64) []walshAverage {
	ws := make([]walshAverage, 0, len(xs)*(len(xs)+1)/2)
	for i := range xs {
		for j := i; j < len(xs); j++ {
			ws = append(ws, walshAverage{xs[i]/2 + xs[j]/2, i, j}) // halves first: no overflow
		}
	}
	sort.Slice(ws, func(a, b int) bool { return ws[a].value < ws[b].value })
	return ws
}

// signedRankDepth returns how many of the sorted averages of n values can be cut off at each end so that the interval
// of the rest still has at least the given confidence. It also returns the confidence reached: 1 - 2 P(W <= depth),
// where W is the signed-rank statistic. It computes the distribution of W exactly. n must be at least
// MinBlocksAt(confidence).
func signedRankDepth(n int, confidence float64) (depth int, reached float64) {
	// p[w] is P(W = w): each rank r is added to W or not, with equal probability.
	p := make([]float64, n*(n+1)/2+1)
	p[0] = 1
	for r := 1; r <= n; r++ {
		for w := len(p) - 1; w >= 0; w-- {
			p[w] /= 2
			if w >= r {
				p[w] += p[w-r] / 2
			}
		}
	}
	tail := p[0]
	for tail+p[depth+1] <= (1-confidence)/2 {
		depth++
		tail += p[depth]
	}
	return depth, 1 - 2*tail
}

// bootstrap resamples blocks and returns the ends of the central part of the pseudo-medians that corresponds to the
// confidence. A resample changes only how often each block, and so each pair of blocks, counts, so all resamples use
// the same sorted averages.
func bootstrap(walsh []walshAverage, n int, confidence float64, seed uint64) (lo, hi float64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	counts := make([]int, n)
	centres := make([]float64, resamples)
	total := n * (n + 1) / 2
	for r := range centres {
		clear(counts)
		for range n {
			counts[rng.IntN(n)]++
		}
		seen := 0
		for _, w := range walsh {
			if w.i == w.j {
				seen += counts[w.i] * (counts[w.i] + 1) / 2
			} else {
				seen += counts[w.i] * counts[w.j]
			}
			if 2*seen >= total {
				centres[r] = w.value
				break
			}
		}
	}
	slices.Sort(centres)
	cut := int((1 - confidence) / 2 * resamples)
	return centres[cut], centres[resamples-1-cut]
}

// middle returns the median of values that are sorted.
func middle[T any](sorted []T, value func(T) float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return value(sorted[n/2])
	}
	return value(sorted[n/2-1])/2 + value(sorted[n/2])/2
}
