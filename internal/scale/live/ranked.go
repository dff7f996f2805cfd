package live

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// count is a running total in nanoseconds that never decreases. Amounts are occasionally negative, because the
// kernel's counters are not read at the same instant; the total then stays as it is until later amounts have made up
// for it.
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

// Ranked holds a running total for each of the biggest keys, and one for all other keys. When a key ends, or a bigger
// one takes its place, its total is added to a separate total of ended keys. If it were added to that of all other keys
// instead, they would seem to have used all of it at once. The sum of all totals never decreases.
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
	recent float64 // ns, multiplied by fading in each tick; decides which keys are the biggest
}

// NewRanked returns a Ranked that keeps separate totals for at most the given number of keys; 0 is no limit.
func NewRanked[K comparable](most int) *Ranked[K] {
	return &Ranked[K]{most: most, rows: map[K]*ranked{}}
}

const (
	fading  = 0.9 // factor for recent in each tick
	usurper = 2   // a key replaces one that is smaller by this factor, so two of about the same size do not alternate
)

// Tick adds what each key has used, in nanoseconds. The total of a key ends if the key is not in used and alive(key)
// returns false.
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
	var smallest []K // keys with a total, smallest first; sorted when needed
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

// renewed reports whether the last tick replaced the rows: see renewal.
func (r *Ranked[K]) renewed() bool { return r.ticks%renewal == 0 }

func (r *Ranked[K]) drop(key K) {
	r.gone.take(r.rows[key].count)
	delete(r.rows, key)
}

// All iterates over the keys that have a total, and their totals in seconds.
func (r *Ranked[K]) All() iter.Seq2[K, float64] {
	return func(yield func(K, float64) bool) {
		for key, row := range r.rows {
			if !yield(key, seconds(row.shown)) {
				return
			}
		}
	}
}

// Has reports whether a key has a total.
func (r *Ranked[K]) Has(key K) bool { return r.rows[key] != nil }

// Rest returns what all other keys used while they had no total, in seconds, and how many of them were in the last
// Tick. The last result is false if no key was ever without a total.
func (r *Ranked[K]) Rest() (total float64, omitted int, any bool) {
	return seconds(r.rest.shown), r.omitted, r.omitted > 0 || r.rest != count{}
}

// Gone returns the sum, in seconds, of the totals that ended: their keys are gone, or bigger ones took their place.
func (r *Ranked[K]) Gone() float64 { return seconds(r.gone.shown) }

// Sum returns the total of all keys, in seconds.
func (r *Ranked[K]) Sum() float64 {
	sum := r.rest.shown + r.gone.shown
	for _, row := range r.rows {
		sum += row.shown
	}
	return seconds(sum)
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }
