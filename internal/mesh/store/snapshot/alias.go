package snapshot

// aliases makes alias tables after Walker and Vose: of n entries that are equally likely each has a threshold of 2^32,
// below which it is itself, and another that it is else. What it made last is in threshold and other.
type aliases struct {
	threshold, other []uint32
	scaled           []uint64
	small, large     []uint32
}

// make makes the table for weights that are all above 0. The caller's weights are shared out to within one part in 2^32
// for each entry.
func (a *aliases) make(weights []uint32) {
	a.threshold, a.other = a.threshold[:0], a.other[:0]
	equal := true
	for i, w := range weights {
		a.threshold = append(a.threshold, 1<<32-1)
		a.other = append(a.other, uint32(i))
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
		a.threshold[s], a.other[s] = uint32(min(float64(a.scaled[s])*unit, 1<<32-1)), l
		if a.scaled[l] -= total - a.scaled[s]; a.scaled[l] < total {
			a.large = a.large[:len(a.large)-1]
			a.small = append(a.small, l)
		}
	}
}
