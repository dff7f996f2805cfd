package stats

import (
	"cmp"
	"math"
	"slices"
)

// RankSum returns the probability that two samples of one population lie at least as far apart, in either direction,
// as these two: the exact rank-sum test of Wilcoxon, Mann and Whitney. It assumes nothing about the distribution of
// the values. Ties get the mean of their ranks, and the test uses the distribution of these ranks, so it is exact with
// ties, too. The work grows with the third power of the number of values, so it is meant for at most a hundred. The
// result is 1 if a sample is empty.
func RankSum(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	ranks := doubledRanks(slices.Concat(a, b))
	n, seen := len(ranks), 0
	for _, r := range ranks[:len(a)] {
		seen += r
	}
	slices.Sort(ranks) // counts above 2^53 are rounded; with sorted ranks, the order of values does not matter

	// ways[k][s] is the number of choices of k values whose ranks sum to s.
	largest := n * (n + 1)
	ways := make([][]float64, len(a)+1)
	for k := range ways {
		ways[k] = make([]float64, largest+1)
	}
	ways[0][0] = 1
	for _, r := range ranks {
		for k := len(a); k > 0; k-- {
			for s := largest; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	middle := len(a) * (n + 1)
	var far, total float64
	for s, n := range ways[len(a)] {
		total += n
		if math.Abs(float64(s-middle)) >= math.Abs(float64(seen-middle)) {
			far += n
		}
	}
	return far / total
}

// doubledRanks returns twice the ranks of values, starting at 1. Doubled ranks are whole numbers: equal values share
// the mean of their ranks.
func doubledRanks(xs []float64) []int {
	order := make([]int, len(xs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(xs[a], xs[b]) })
	ranks := make([]int, len(xs))
	for i := 0; i < len(order); {
		j := i + 1
		for j < len(order) && xs[order[j]] == xs[order[i]] {
			j++
		}
		for _, at := range order[i:j] {
			ranks[at] = i + 1 + j // twice the mean of i+1 .. j
		}
		i = j
	}
	return ranks
}
