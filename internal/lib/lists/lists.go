// Package lists complements the package slices of the standard library.
package lists

import "slices"

// Map returns the results of a function for each value, in the same order; nil if there are no values.
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

// Keyed returns a map of the results of a function for each value. If several have the same key, the last one counts.
func Keyed[T any, K comparable, V any](all []T, of func(T) (K, V)) map[K]V {
	m := make(map[K]V, len(all))
	for _, v := range all {
		key, value := of(v)
		m[key] = value
	}
	return m
}

// Include appends the values that are not yet in a list.
func Include[T comparable](list []T, values ...T) []T {
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// Find returns a pointer to the first element of a list that satisfies a condition, or nil if there is none.
func Find[T any](list []T, satisfies func(*T) bool) *T {
	for i := range list {
		if satisfies(&list[i]) {
			return &list[i]
		}
	}
	return nil
}
