// Package known calculates with numbers that may not be known. These are nil, and so is what follows from them: 0 is
// what was read as 0.
package known

// Number is what can be added up.
type Number interface{ ~int64 | ~uint64 | ~float64 }

// Sum adds numbers up; nil where one of them is not known. The sum of none is 0.
func Sum[N Number](parts ...*N) *N {
	total := new(N)
	for _, n := range parts {
		if n == nil {
			return nil
		}
		*total += *n
	}
	return total
}

// Minus is a number with the other sign.
func Minus[N Number](n *N) *N { return As(n, func(n N) N { return -n }) }

// As is what follows from a value; nil where that is not known.
func As[A, B any](v *A, of func(A) B) *B {
	if v == nil {
		return nil
	}
	return new(of(*v))
}
