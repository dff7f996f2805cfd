package live

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// count is a running total in nanoseconds that never falls. What is added is now and then negative, because the
// kernel's counters are read one after another: the total then stays as it is until later time has made up for it.
type count struct{ sum, shown int64 }

func (c *count) add(ns int64) {
	c.sum += ns
	c.shown = max(c.shown, c.sum)
}

// take adds another total to this one.
func (c *count) take(o count) {
	c.sum += o.sum
	c.shown = max(c.shown+o.shown, c.sum)
}

// Ranked holds a running total for each of the biggest keys, and one for all others. When a key is gone, or a bigger
// one takes its place, its total moves to the total of those that are gone. Added to the others, it would look as if
// they had used all of it at once. The sum of the three never falls.
type Ranked[K comparable] struct {
	most    int // keys with a separate total; 0 is no limit
	rows    map[K]*ranked
	rest    count
	gone    count
	omitted int
	ticks   int
}

type ranked struct {
	count
	recent float64 // ns, older ones fading: it decides which keys are the biggest
}

// NewRanked keeps totals for at most that many keys; 0 is no limit.
func NewRanked[K comparable](most int) *Ranked[K] {
	return &Ranked[K]{most: most, rows: map[K]*ranked{}}
}

const (
	fading  = 0.9 // of recent, in each tick
	usurper = 2   // a key replaces one that is smaller by this factor: two of the same size do not take turns
)

// Tick adds what each key has used, in nanoseconds. Keys that are neither in used nor alive are gone.
func (r *Ranked[K]) Tick(used map[K]int64, alive func(K) bool) {
	for key, row := range r.rows {
		row.recent *= fading
		if _, has := used[key]; !has && !alive(key) {
			r.drop(key)
		}
	}
	var waiting []K
	for key, ns := range used {
		row := r.rows[key]
		if row == nil {
			waiting = append(waiting, key)
			continue
		}
		row.add(ns)
		row.recent += float64(ns)
	}
	slices.SortFunc(waiting, func(a, b K) int { return cmp.Compare(used[b], used[a]) })
	r.omitted = 0
	var smallest []K // of those that have a total, the smallest first; made when it is needed
	for _, key := range waiting {
		ns := used[key]
		if r.most > 0 && len(r.rows) >= r.most {
			if smallest == nil {
				smallest = slices.SortedFunc(maps.Keys(r.rows), func(a, b K) int {
					return cmp.Compare(r.rows[a].recent, r.rows[b].recent)
				})
			}
			if len(smallest) == 0 || float64(ns) <= usurper*r.rows[smallest[0]].recent {
				r.rest.add(ns)
				r.omitted++
				continue
			}
			r.drop(smallest[0])
			smallest = smallest[1:]
			r.omitted++
		}
		row := &ranked{recent: float64(ns)}
		row.add(ns)
		r.rows[key] = row
	}
	if r.ticks++; r.renewed() {
		r.rows = maps.Collect(maps.All(r.rows))
	}
}

// renewed says whether the last tick has made the rows anew: see renewal.
func (r *Ranked[K]) renewed() bool { return r.ticks%renewal == 0 }

func (r *Ranked[K]) drop(key K) {
	r.gone.take(r.rows[key].count)
	delete(r.rows, key)
}

// All gives each key that has a total, with it in seconds.
func (r *Ranked[K]) All() iter.Seq2[K, float64] {
	return func(yield func(K, float64) bool) {
		for key, row := range r.rows {
			if !yield(key, seconds(row.shown)) {
				return
			}
		}
	}
}

// Has says whether a key has a total.
func (r *Ranked[K]) Has(key K) bool { return r.rows[key] != nil }

// Rest is what all other keys used while they had no total, in seconds, and how many of them were in the last Tick. any
// is false if there never was one.
func (r *Ranked[K]) Rest() (total float64, omitted int, any bool) {
	return seconds(r.rest.shown), r.omitted, r.omitted > 0 || r.rest != count{}
}

// Gone is the sum, in seconds, of the totals that ended: their keys are gone, or bigger ones took their place.
func (r *Ranked[K]) Gone() float64 { return seconds(r.gone.shown) }

// Sum is the total of all keys, in seconds.
func (r *Ranked[K]) Sum() float64 {
	sum := r.rest.shown + r.gone.shown
	for _, row := range r.rows {
		sum += row.shown
	}
	return seconds(sum)
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
