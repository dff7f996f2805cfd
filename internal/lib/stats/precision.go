package stats

import "math"

// FirstLook is the number of blocks after which a run that continues until it is precise enough is first examined.
const FirstLook = 12

// NextLook returns the next number of blocks, above the given one, after which such a run is examined. Few looks limit
// the bias of looking: intervals that happen to be narrow stop a run early, and so cover less than stated.
func NextLook(blocks int) int {
	if blocks < FirstLook {
		return FirstLook
	}
	return max(blocks+2, blocks*5/4)
}

// Precise reports whether the interval of an estimate is narrow enough: its half-width is at most target times the
// size of scale, which is the value itself for a value, and the baseline's value for a difference. It does not matter
// whether a difference is resolved.
func Precise(e Estimate, scale, target float64) bool {
	return e.HasInterval && (e.Hi-e.Lo)/2 <= target*math.Abs(scale)
}
