// Package known calculates with numbers that may be unknown. An unknown number is nil, and so is every result that
// depends on it. A 0 is always a measured 0.
package known

// Number is a type whose values can be added up.
type Number interface{ ~int64 | ~uint64 | ~float64 }

// Sum adds up numbers; nil if one of them is unknown. The sum of no numbers is 0.
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

// Minus negates a number; nil if it is unknown.
func Minus[N Number](n *N) *N { return As(n, func(n N) N { return -n }) }

// Or returns a value, or other if the value is unknown.
func Or[N any](v *N, other N) N {
	if v == nil {
		return other
	}
	return *v
}

// As applies a function to a value; nil if the value is unknown.
func As[A, B any](v *A, of func(A) B) *B {
	if v == nil {
		return nil
	}
	return new(of(*v))
}
