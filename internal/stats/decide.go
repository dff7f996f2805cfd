package stats

import "math"

// Looking again and again at a run that goes on until its assertions are decided would let a 95 % interval miss the
// truth at some look in far more than 5 % of runs. SequentialConfidence is that of the intervals at each look, of
// which there are as many as NextLook gives up to LastLook, and one more when the time is up: all of them together
// then hold the truth in 95 % of runs (repeated confidence intervals of constant width in standard errors, after
// Pocock 1977 and Jennison and Turnbull 1989; the figure is from the simulation in docs/statistics.md).
const (
	SequentialConfidence = 0.993
	LastLook             = 300
)

// MayDecide reports whether a run that goes on until its assertions are decided is examined at a number of blocks.
func MayDecide(blocks int) bool {
	for n := NextLook(0); n <= LastLook; n = NextLook(n) {
		if n == blocks {
			return true
		}
	}
	return false
}

// power80 is by how much the distance from the value to a bound must exceed the half-width of a 95 % interval so that
// 80 % of runs decide: (1.96 + 0.84) / 1.96.
const power80 = 1.43

// maxBlocks is the most blocks that a forecast names. Beyond it the value is as good as on the bound.
const maxBlocks = 10_000

// BlocksToDecide is how many blocks in all would decide, in 8 of 10 runs, on which side of a bound a value lies, if the
// value and the noise stay as they are: half is the distance from the value to the end of its interval, after so many
// blocks, and away that to the bound. The half-width shrinks with the square root of the number. It is false where that
// would be more than 10,000, or where nothing is known of the noise.
func BlocksToDecide(blocks int, half, away float64) (int, bool) {
	if !(half > 0) || !(away > 0) || blocks <= 0 {
		return 0, false
	}
	n := math.Ceil(float64(blocks) * math.Pow(power80*half/away, 2))
	if !(n <= maxBlocks) {
		return 0, false
	}
	return max(int(n), blocks+1), true
}
