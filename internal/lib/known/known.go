// Package known calculates with numbers that may be unknown. An unknown number is nil, and so is every result that
// depends on it. A 0 was always measured as 0.
package known

// Number is a type whose values can be added up.
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

// Minus negates a number; nil where it is not known.
func Minus[N Number](n *N) *N { return As(n, func(n N) N { return -n }) }

// Or returns a value, or another where it is not known.
func Or[N any](v *N, other N) N {
	if v == nil {
		return other
	}
	return *v
}

// As applies a function to a value; nil where the value is not known.
func As[A, B any](v *A, of func(A) B) *B {
	if v == nil {
		return nil
	}
	return new(of(*v))
}
