package snapshot

import (
	"math/rand/v2"
	"testing"
)

// TestRoom takes and gives back runs of lines at random, and compares them with a list of the owners of all lines.
func TestRoom(t *testing.T) {
	const lines = 5000
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRoom(lines)
		r.give(1, lines-1)
		owner := make([]int, lines)
		type held struct{ line, n uint32 }
		var all []held
		refused := 0
		for step := 1; step < 20000; step++ {
			if random.IntN(100) < 52 {
				n := 1 + uint32(random.IntN(1<<random.IntN(9)))
				line, ok := r.take(n)
				if !ok {
					refused++
					free := 0
					for i := 1; i < lines; i++ {
						if free++; owner[i] != 0 {
							free = 0
						}
						if free == int(n) {
							t.Fatalf("%d lines are free at %d, and were not found", n, i)
						}
					}
					continue
				}
				for i := line; i < line+n; i++ {
					if i == 0 || owner[i] != 0 {
						t.Fatalf("line %d was given twice", i)
					}
					owner[i] = step
				}
				all = append(all, held{line, n})
			} else if len(all) > 0 {
				i := random.IntN(len(all))
				h := all[i]
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
				for i := h.line; i < h.line+h.n; i++ {
					owner[i] = 0
				}
				r.give(h.line, h.n)
			}
		}
		if refused == 0 {
			t.Error("the room was never full: the test wants that too")
		}
		var c, other chain
		for i, h := range all {
			r.hang([]*chain{&c, &other}[i%2], h.line, h.n)
		}
		r.join(&c, &other)
		r.unhang(&c, len(all)/2)
		r.unhang(&c, len(all))
		if c != (chain{}) || other != (chain{}) || r.free != lines-1 {
			t.Errorf("chains are %v and %v, %d lines are free of %d", c, other, r.free, lines-1)
		}
		if line, ok := r.take(lines - 1); !ok || line != 1 {
			t.Error("free runs were not merged")
		}
	}
}
