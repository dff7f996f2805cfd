package live

import (
	"iter"
	"maps"
)

// Counts holds whole numbers, such as runs, beside the totals of a Ranked: a key has a number here while it has a total
// there, and all other keys have one together. As with totals, the sum of the keys, the rest and those that are gone
// never falls.
type Counts[K comparable] struct {
	beside     *Ranked[K]
	rows       map[K]uint64
	rest, gone uint64
}

// NewCounts goes with a Ranked.
func NewCounts[K comparable](beside *Ranked[K]) *Counts[K] {
	return &Counts[K]{beside: beside, rows: map[K]uint64{}}
}

// Tick adds what each key counted. The Ranked has ticked.
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

// All gives each key that has a number, with it.
func (c *Counts[K]) All() iter.Seq2[K, uint64] { return maps.All(c.rows) }

// Rest is the number of all other keys; false where no key was ever without a total.
func (c *Counts[K]) Rest() (n uint64, any bool) {
	_, _, any = c.beside.Rest()
	return c.rest, any
}

// Gone is what keys had when their totals ended.
func (c *Counts[K]) Gone() uint64 { return c.gone }
