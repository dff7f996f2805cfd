package stats

import "math"

// FirstLook is the number of blocks at which a run that continues until it is precise enough is examined for the first
// time.
const FirstLook = 12

// NextLook is the number of blocks, above blocks, at which such a run is examined next. Looking seldom keeps the price
// of looking small: intervals that happen to be narrow stop a run early, and so cover less than they say.
func NextLook(blocks int) int {
	if blocks < FirstLook {
		return FirstLook
	}
	return max(blocks+2, blocks*5/4)
}

// Precise reports whether the interval of an estimate is narrow enough: its half-width is at most target times the size
// of scale, which is the value itself for a value, and the baseline's value for a difference. Whether a difference is
// resolved plays no part.
func Precise(e Estimate, scale, target float64) bool {
	return e.HasInterval && (e.Hi-e.Lo)/2 <= target*math.Abs(scale)
}
