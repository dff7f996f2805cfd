package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

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

// BlocksToDecide is how many blocks in all would decide, in 8 of 10 runs, on which side of a bound a value lies, if
// the value and the noise stay as they are: half is the distance from the value to the end of its interval after the
// given number of blocks, and away the distance to the bound. The half-width shrinks with the square root of the
// number. It is false where that would be more than 10,000, or where nothing is known of the noise.
func BlocksToDecide(blocks int, half, away float64) (int, bool) {
	n, ok := forecast(blocks, power80*half, away)
	if !ok {
		return 0, false
	}
	return max(n, blocks+1), true
}

// resolve80 is by how much a difference must exceed the half-width of its 95 % interval so that 80 % of runs resolve
// it. It must exceed what the A/A twins show as well, which is why this is more than power80; the figure is from the
// simulation in runs_test.go.
const resolve80 = 1.75

// BlocksToResolve is how many blocks in all would resolve a difference of a size in 8 of 10 runs, if the noise stays
// as it is: half is the half-width of its 95 % interval after the given number of blocks, or that of the A/A twins
// where it is wider. It is false where that would be more than 10,000, or where nothing is known of the noise.
func BlocksToResolve(blocks int, half, size float64) (int, bool) {
	if blocks < MinBlocks {
		return 0, false
	}
	normal := distuv.UnitNormal.Quantile((1 + Confidence) / 2)
	n, ok := forecast(blocks, resolve80*normal*standardError(half, blocks), size)
	if !ok {
		return 0, false
	}
	return n + fewBlocks, true
}

// fewBlocks is what an interval of few blocks loses compared with the normal distribution, in blocks.
const fewBlocks = 2

// standardError returns the standard error that the half-width of a 95 % interval of the given number of blocks
// implies, by Student's t, which is wider for few blocks.
func standardError(half float64, blocks int) float64 {
	return half / distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(blocks - 1)}.Quantile((1+Confidence)/2)
}

// assurance is how sure a plan is that the noise is no larger than it takes it for: of 10 pilots of the same length 8
// give a number of blocks that is large enough.
const assurance = 0.8

// PlannedBlocks is how many blocks a run needs so that, with a probability (the power), its 95 % interval lies wholly
// on one side of a bound at distance away from the truth, given the half-width of such an interval after the given
// number of blocks. What these blocks do not know of the noise themselves is allowed for. It is false where it would
// be more than 10,000, or where nothing is known of the noise.
func PlannedBlocks(blocks int, half, away, power float64) (int, bool) {
	if blocks < MinBlocks {
		return 0, false
	}
	free := float64(blocks - 1)
	sure := math.Sqrt(free / distuv.ChiSquared{K: free}.Quantile(1-assurance))
	normal := distuv.UnitNormal
	needs := normal.Quantile((1+Confidence)/2) + normal.Quantile(power)
	n, ok := forecast(blocks, sure*standardError(half, blocks)*needs, away)
	if !ok {
		return 0, false
	}
	return max(n+fewBlocks, MinBlocks), true
}

// forecast is after how many blocks a distance that a run can tell shrinks to another one: with the square root of
// their number.
func forecast(blocks int, now, wanted float64) (int, bool) {
	if !(now > 0) || !(wanted > 0) || blocks <= 0 {
		return 0, false
	}
	n := float64(blocks) * math.Pow(now/wanted, 2)
	if n > maxBootstrap && blocks <= maxBootstrap {
		n *= math.Pi / 2 // beyond, the median replaces the pseudo-median, and takes this factor more blocks
	}
	if !(n <= maxBlocks) {
		return 0, false
	}
	return int(math.Ceil(n)), true
}
