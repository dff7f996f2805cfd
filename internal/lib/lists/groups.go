package lists

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// Groups holds values by key, in the order in which keys and values were added. The zero value is empty.
type Groups[K comparable, V any] struct {
	keys []K
	of   map[K][]V
}

// Add adds a value to a key.
func (g *Groups[K, V]) Add(key K, value V) {
	if g.of == nil {
		g.of = map[K][]V{}
	}
	if _, known := g.of[key]; !known {
		g.keys = append(g.keys, key)
	}
	g.of[key] = append(g.of[key], value)
}

// All yields each key with its values.
func (g *Groups[K, V]) All() iter.Seq2[K, []V] {
	return func(yield func(K, []V) bool) {
		for _, key := range g.keys {
			if !yield(key, g.of[key]) {
				return
			}
		}
	}
}

// ByKey yields the entries of a map in the order of their keys.
func ByKey[K cmp.Ordered, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
