package kernelmesh

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestAliasTable adds up what each endpoint gets of the slots: it must be its weight's share.
func TestAliasTable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tables := [][]uint32{{1}, {3, 1}, {0, 5, 0}, {1, 1, 1}, {MaxWeight, 1}, {1, 2, 3, 4, 5, 6, 7}}
	for range 50 {
		weights := make([]uint32, 1+random.IntN(300))
		for i := range weights {
			weights[i] = uint32(random.IntN(MaxWeight + 1))
		}
		weights[0] |= 1
		tables = append(tables, weights)
	}
	for _, weights := range tables {
		total, taking := 0.0, 0
		ids := make([]uint32, len(weights))
		for i, w := range weights {
			ids[i] = uint32(1000 + i)
			total += float64(w)
			if w > 0 {
				taking++
			}
		}
		slots := aliasTable(ids, weights)
		if len(slots) != taking {
			t.Fatalf("weights %v: %d slots", weights, len(slots))
		}
		got := map[uint32]float64{}
		for _, s := range slots {
			own := float64(s.Threshold) / (1 << 32)
			got[s.Own] += own / float64(taking)
			got[s.Alias] += (1 - own) / float64(taking)
		}
		for i, w := range weights {
			if want := float64(w) / total; math.Abs(got[ids[i]]-want) > 1e-6 {
				t.Errorf("weights %v: endpoint %d gets %g, want %g", weights, i, got[ids[i]], want)
			}
		}
	}
}

func TestExtents(t *testing.T) {
	const size = 100
	random := rand.New(rand.NewPCG(3, 4))
	x := newExtents(size)
	var taken []extent
	owner := make([]bool, size)
	for range 10000 {
		if n := len(taken); n > 0 && random.IntN(2) == 0 {
			i := random.IntN(n)
			e := taken[i]
			taken[i] = taken[n-1]
			taken = taken[:n-1]
			for j := e.base; j < e.base+e.size; j++ {
				owner[j] = false
			}
			x.give(e)
			continue
		}
		e, ok := x.take(uint32(random.IntN(12)))
		if !ok {
			continue
		}
		for j := e.base; j < e.base+e.size; j++ {
			if owner[j] {
				t.Fatalf("slot %d handed out twice", j)
			}
			owner[j] = true
		}
		taken = append(taken, e)
	}
	for _, e := range taken {
		x.give(e)
	}
	if len(x.free) != 1 || x.free[0] != (extent{0, size}) {
		t.Errorf("after all is given back, free is %v", x.free)
	}
}
