package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRankSum(t *testing.T) {
	upTo := func(n int) (xs []float64) {
		for i := range n {
			xs = append(xs, float64(i))
		}
		return xs
	}
	for _, c := range []struct {
		name string
		a, b []float64
		want float64
	}{
		{"apart", []float64{1, 2, 3}, []float64{4, 5, 6}, 2.0 / 20},
		{"apart, the other way", []float64{4, 5, 6}, []float64{1, 2, 3}, 2.0 / 20},
		{"mixed", []float64{1, 3, 5}, []float64{2, 4, 6}, 14.0 / 20},
		{"ten and ten apart", upTo(20)[:10], upTo(20)[10:], 2.0 / 184756},
		{"all alike", []float64{7, 7, 7}, []float64{7, 7, 7}, 1},
		// The ranks are 1 3 3 and 3 5 6. 1 3 3 can be chosen in three ways, and so can 3 5 6, which is as far from the
		// middle.
		{"ties across", []float64{1, 2, 2}, []float64{2, 3, 4}, 6.0 / 20},
		{"uneven", []float64{1}, []float64{2, 3, 4}, 2.0 / 4},
		{"empty", nil, []float64{1}, 1},
		{"no numbers", []float64{math.NaN()}, []float64{math.Inf(1)}, 1},
	} {
		if got := RankSum(c.a, c.b); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRankSumBySimulation: if both samples have the same noise, the test rejects as often as its level says, whatever
// the noise.
func TestRankSumBySimulation(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 9))
	for _, noise := range noises {
		const runs, level = 2000, 0.05
		var spoke float64
		for range runs {
			xs := make([]float64, 20)
			for i := range xs {
				xs[i] = math.Round(20*noise.draw(r)) / 20 // with ties
			}
			if RankSum(xs[:10], xs[10:]) < level {
				spoke += 1.0 / runs
			}
		}
		if spoke < 0.035 || spoke > 0.06 {
			t.Errorf("%s: speaks in %.3f of runs at the level %g", noise.name, spoke, level)
		}
	}
}

func FuzzRankSum(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, 2)
	f.Fuzz(func(t *testing.T, raw []byte, cut int) {
		if len(raw) > 24 || cut < 0 || cut > len(raw) {
			return
		}
		var xs []float64
		for _, b := range raw {
			xs = append(xs, float64(b%7))
		}
		p, q := RankSum(xs[:cut], xs[cut:]), RankSum(xs[cut:], xs[:cut])
		slices.Reverse(xs)
		if p <= 0 || p > 1+1e-12 || math.Abs(p-q) > 1e-9 {
			t.Errorf("%v and, with the samples exchanged, %v", p, q)
		}
	})
}
