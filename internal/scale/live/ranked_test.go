package live

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// Whatever keys come, go, grow and shrink: neither the total of a remaining key nor the sum decreases, there are no
// more totals than allowed, and the sum is what was used, once negative amounts are made up for.
func TestRankedNeverFalls(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		most := random.IntN(6) // 0 is no limit
		r := NewRanked[int](most)
		var all int64
		alive := map[int]bool{}
		for tick := range 100 {
			used := map[int]int64{}
			for range random.IntN(8) {
				key := random.IntN(20)
				used[key] = random.Int64N(1e9)
				if random.IntN(5) == 0 {
					used[key] = -random.Int64N(1e7)
				}
				alive[key] = random.IntN(3) > 0
			}
			for _, ns := range used {
				all += ns
			}
			before, rest, gone, sum := maps.Collect(r.All()), first(r.Rest()), r.Gone(), r.Sum()
			r.Tick(used, func(key int) bool { return alive[key] })
			for key, s := range r.All() {
				if s < before[key] {
					t.Fatalf("seed %d, tick %d: the total of %d fell from %g to %g", seed, tick, key, before[key], s)
				}
			}
			if first(r.Rest()) < rest || r.Gone() < gone || r.Sum() < sum {
				t.Fatalf("seed %d, tick %d: others, gone, sum were %g, %g, %g, and are %g, %g, %g", seed, tick, rest, gone, sum,
					first(r.Rest()), r.Gone(), r.Sum())
			}
			if n := len(maps.Collect(r.All())); most > 0 && n > most {
				t.Fatalf("seed %d, tick %d: %d totals, allowed are %d", seed, tick, n, most)
			}
			if r.Sum() < seconds(all)-1e-9 {
				t.Fatalf("seed %d, tick %d: the sum is %g s, and %g s were used", seed, tick, r.Sum(), seconds(all))
			}
		}
		// Large amounts make up for the negative ones; then nothing is counted twice.
		paid := map[int]int64{}
		for key := range r.rows {
			paid[key] = 1e12
		}
		for _, ns := range paid {
			all += ns
		}
		r.Tick(paid, func(int) bool { return true })
		owed := r.rest.shown - r.rest.sum + r.gone.shown - r.gone.sum
		if got, want := r.Sum(), seconds(all+owed); got < want-1e-6 || got > want+1e-6 {
			t.Errorf("seed %d: the sum is %.9f s, and %.9f s were used", seed, got, want)
		}
	}
}

func first(total float64, _ int, _ bool) float64 { return total }

// The total of an ended key is added to that of the ended ones, not to that of the others: these would seem to have
// used in one tick what the key used in all its life.
func TestRankedGone(t *testing.T) {
	r := NewRanked[string](0)
	none := func(string) bool { return false }
	r.Tick(map[string]int64{"a": 5e9, "b": 1e9}, none)
	r.Tick(map[string]int64{"b": 1e9}, none)
	if _, _, any := r.Rest(); any || r.Has("a") || r.Gone() != 5 || r.Sum() != 7 {
		t.Errorf("gone %g s, sum %g s, others %v; want 5, 7, false", r.Gone(), r.Sum(), any)
	}
	r.Tick(map[string]int64{"a": 2e9, "b": 0}, none)
	if got := maps.Collect(r.All())["a"]; got != 2 || r.Sum() != 9 {
		t.Errorf("a came back: it has %g s, and the sum is %g s; want 2 and 9", got, r.Sum())
	}
}

// If there are ten times as many keys as totals, the biggest keys have the totals. Two keys of equal size do not
// alternate.
func TestRankedLimit(t *testing.T) {
	r := NewRanked[string](10)
	for tick := range 30 {
		used := map[string]int64{}
		for i := range 100 {
			used[fmt.Sprint(i)] = 1e6 + rand.Int64N(1e4)
			if i < 9 {
				used[fmt.Sprint(i)] = int64(i+1) * 1e9
			}
		}
		before := maps.Collect(r.All())
		r.Tick(used, func(string) bool { return false })
		if _, omitted, _ := r.Rest(); omitted != 90 {
			t.Fatalf("tick %d: %d are left out, want 90", tick, omitted)
		}
		for key := range before {
			if !r.Has(key) && tick > 1 {
				t.Errorf("tick %d: %s gave way to one of its size", tick, key)
			}
		}
	}
	for i := range 9 {
		if !r.Has(fmt.Sprint(i)) {
			t.Errorf("%d is one of the biggest and has no total", i)
		}
	}
	if got := first(r.Rest()); got < 30*90*1e-3 || got > 30*90*1.01e-3 {
		t.Errorf("the others have %g s", got)
	}
	r.Tick(map[string]int64{"big": 1e12}, func(string) bool { return true })
	if !r.Has("big") {
		t.Error("the biggest of all has no total")
	}
}
