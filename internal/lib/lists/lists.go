// Package lists has what package slices of the standard library lacks.
package lists

import "slices"

// Map is what becomes of each of some values, in their order; nil of none.
func Map[T, U any](all []T, of func(T) U) []U {
	if len(all) == 0 {
		return nil
	}
	mapped := make([]U, len(all))
	for i, v := range all {
		mapped[i] = of(v)
	}
	return mapped
}

// Include is a list with those of some values at its end that it did not have.
func Include[T comparable](list []T, values ...T) []T {
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// Find is the first in a list that is such; nil where none is.
func Find[T any](list []T, such func(*T) bool) *T {
	for i := range list {
		if such(&list[i]) {
			return &list[i]
		}
	}
	return nil
}
