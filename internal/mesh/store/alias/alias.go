// Package alias makes alias tables, from which an entry is chosen by weight with one random number and one comparison.
package alias

// Table is an alias table after Walker and Vose. To choose from it, split a random number into two parts. One part
// selects one of the n entries uniformly. If the other, of 32 bits, is below the entry's Threshold, the result is the
// entry itself, and otherwise the entry's Other. A Table can be reused.
type Table struct {
	Threshold, Other []uint32
	scaled           []uint64
	small, large     []uint32
}

// Make makes the table for weights, which must all be above 0. Each entry's share is exact to one part in 2^32.
func (a *Table) Make(weights []uint32) {
	a.Threshold, a.Other = a.Threshold[:0], a.Other[:0]
	equal := true
	for i, w := range weights {
		a.Threshold = append(a.Threshold, 1<<32-1)
		a.Other = append(a.Other, uint32(i))
		equal = equal && w == weights[0]
	}
	if equal {
		return
	}
	total := uint64(0)
	a.scaled, a.small, a.large = a.scaled[:0], a.small[:0], a.large[:0]
	for _, w := range weights {
		total += uint64(w)
		a.scaled = append(a.scaled, uint64(w)*uint64(len(weights)))
	}
	for i, s := range a.scaled {
		if s < total {
			a.small = append(a.small, uint32(i))
		} else {
			a.large = append(a.large, uint32(i))
		}
	}
	unit := (1 << 32) / float64(total)
	for len(a.small) > 0 && len(a.large) > 0 {
		s, l := a.small[len(a.small)-1], a.large[len(a.large)-1]
		a.small = a.small[:len(a.small)-1]
		a.Threshold[s], a.Other[s] = uint32(min(float64(a.scaled[s])*unit, 1<<32-1)), l
		if a.scaled[l] -= total - a.scaled[s]; a.scaled[l] < total {
			a.large = a.large[:len(a.large)-1]
			a.small = append(a.small, l)
		}
	}
}
