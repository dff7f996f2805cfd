package alias

import (
	"math/rand/v2"
	"testing"
)

func TestTable(t *testing.T) {
	var a Table
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		weights := make([]uint32, 1+random.IntN(40))
		for i := range weights {
			weights[i] = max(1, random.Uint32()>>random.IntN(32))
		}
		a.Make(weights)
		total, sum := 0.0, 0.0
		share := make([]float64, len(weights))
		for i, w := range weights {
			total += float64(w)
			own := float64(a.Threshold[i]) / (1 << 32)
			share[i] += own
			share[a.Other[i]] += 1 - own
		}
		for i, w := range weights {
			want := float64(w) / total * float64(len(weights))
			sum += share[i]
			if diff := share[i] - want; diff > 1e-7 || diff < -1e-7 {
				t.Fatalf("weights %v: entry %d has a share of %g instead of %g", weights, i, share[i], want)
			}
		}
		if len(a.Other) != len(weights) || sum < float64(len(weights))-1e-6 {
			t.Fatalf("weights %v: shares sum to %g", weights, sum)
		}
	}
}
