package live

import (
	"iter"
	"maps"
)

// Counts holds whole numbers, such as runs, for the keys of a Ranked: a key has a separate number as long as it has a
// separate total there, and all other keys share one. As with totals, the sum of all numbers, including Rest and Gone,
// never decreases.
type Counts[K comparable] struct {
	beside     *Ranked[K]
	rows       map[K]uint64
	rest, gone uint64
}

// NewCounts returns Counts for the keys of a Ranked.
func NewCounts[K comparable](beside *Ranked[K]) *Counts[K] {
	return &Counts[K]{beside: beside, rows: map[K]uint64{}}
}

// Tick adds what each key counted. It must be called after Tick of the Ranked.
func (c *Counts[K]) Tick(counted map[K]uint64) {
	for key, n := range c.rows {
		if !c.beside.Has(key) {
			c.gone += n
			delete(c.rows, key)
		}
	}
	for key, n := range counted {
		if c.beside.Has(key) {
			c.rows[key] += n
		} else {
			c.rest += n
		}
	}
	if c.beside.renewed() {
		c.rows = maps.Collect(maps.All(c.rows))
	}
}

// All iterates over the keys that have a number, and their numbers.
func (c *Counts[K]) All() iter.Seq2[K, uint64] { return maps.All(c.rows) }

// Rest returns the number that all other keys share. The second result is false if no key was ever without a total.
func (c *Counts[K]) Rest() (n uint64, any bool) {
	_, _, any = c.beside.Rest()
	return c.rest, any
}

// Gone returns the sum of the numbers whose keys ended.
func (c *Counts[K]) Gone() uint64 { return c.gone }
