package stats

import (
	"cmp"
	"math"
	"slices"
)

// RankSum is the probability that two samples of one population lie at least as far apart, to either side, as these two
// do: the exact rank-sum test of Wilcoxon, Mann and Whitney. It asks nothing of the shape of the values. Ties get the
// mean of their ranks, and the distribution is that of the ranks as they stand, so it is exact with ties, too. The work
// grows with the third power of the number of values, so it is meant for up to a hundred. It is 1 when a sample is
// empty.
func RankSum(a, b []float64) float64 {
	type value struct {
		x     float64
		first bool
	}
	var all []value
	for _, x := range a {
		all = append(all, value{x, true})
	}
	for _, x := range b {
		all = append(all, value{x, false})
	}
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	slices.SortFunc(all, func(v, w value) int { return cmp.Compare(v.x, w.x) })

	ranks := make([]int, len(all)) // doubled, so that the mean of two is whole
	seen := 0
	for i := 0; i < len(all); {
		j := i + 1
		for j < len(all) && all[j].x == all[i].x {
			j++
		}
		for k := i; k < j; k++ {
			if ranks[k] = i + 1 + j; all[k].first { // twice the mean of i+1 .. j
				seen += ranks[k]
			}
		}
		i = max(j, i+1)
	}

	// ways[k][s]: how many choices of k values have ranks that sum to s.
	largest := len(all) * (len(all) + 1)
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
	middle := len(a) * (len(all) + 1)
	var far, total float64
	for s, n := range ways[len(a)] {
		total += n
		if math.Abs(float64(s-middle)) >= math.Abs(float64(seen-middle)) {
			far += n
		}
	}
	return far / total
}
