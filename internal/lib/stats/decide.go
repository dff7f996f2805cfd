package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// A run that goes on until its assertions are decided looks at its intervals repeatedly. With 95 % intervals, at least
// one of these looks would miss the truth in far more than 5 % of runs. SequentialConfidence is the confidence of the
// intervals at each look. The looks are those that NextLook returns up to LastLook, and one more when the time is up;
// all their intervals together then contain the truth in 95 % of runs (repeated confidence intervals of constant width
// in standard errors, after Pocock 1977 and Jennison and Turnbull 1989; the figure is from the simulation in
// docs/statistics.md).
const (
	SequentialConfidence = 0.993
	LastLook             = 300
)

// MayDecide reports whether a run that goes on until its assertions are decided is examined after a number of blocks.
func MayDecide(blocks int) bool {
	for n := NextLook(0); n <= LastLook; n = NextLook(n) {
		if n == blocks {
			return true
		}
	}
	return false
}

// power80 is the factor by which the distance from the value to a bound must exceed the half-width of a 95 % interval
// for 80 % of runs to decide: (1.96 + 0.84) / 1.96.
const power80 = 1.43

// maxBlocks is the largest number of blocks that a forecast returns. If more were needed, the value would be so close
// to the bound that no run of a practical length could distinguish them.
const maxBlocks = 10_000

// BlocksToDecide returns how many blocks in all would decide, in 8 of 10 runs, on which side of a bound a value lies,
// if the value and the noise stay as they are. half is the distance from the value to the end of its interval after
// the given number of blocks, and away is the distance to the bound. The half-width shrinks with the square root of
// the number of blocks. It returns false if the result would be more than 10,000, or if the noise is unknown.
func BlocksToDecide(blocks int, half, away float64) (int, bool) {
	n, ok := forecast(blocks, power80*half, away)
	if !ok {
		return 0, false
	}
	return max(n, blocks+1), true
}

// resolve80 is the factor by which a difference must exceed the half-width of its 95 % interval for 80 % of runs to
// resolve it. It is larger than power80 because the difference must also exceed that of the A/A twins. The figure is
// from the simulation in runs_test.go.
const resolve80 = 1.75

// BlocksToResolve returns how many blocks in all would resolve a difference of a given size in 8 of 10 runs, if the
// noise stays as it is. half is the half-width of its 95 % interval after the given number of blocks, or that of the
// A/A twins if it is wider. It returns false if the result would be more than 10,000, or if the noise is unknown.
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

// fewBlocks is the number of blocks that a run needs beyond what the normal distribution gives, because intervals from
// few blocks are wider.
const fewBlocks = 2

// standardError returns the standard error that the half-width of a 95 % interval of the given number of blocks
// implies, by Student's t, which is wider for few blocks.
func standardError(half float64, blocks int) float64 {
	return half / distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(blocks - 1)}.Quantile((1+Confidence)/2)
}

// assurance is the probability that the noise is no larger than a plan assumes: for 8 of 10 pilots of the same length,
// the planned number of blocks is large enough.
const assurance = 0.8

// PlannedBlocks returns how many blocks a run needs for its 95 % interval to lie wholly on one side of a bound with a
// probability (the power). away is the distance from the truth to the bound. half is the half-width of such an interval
// after the given number of blocks. The uncertainty of the noise in these blocks is allowed for. It returns false if
// the result would be more than 10,000, or if the noise is unknown.
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

// forecast returns the number of blocks with which a run resolves a distance (wanted), given the distance that it
// resolves with a given number of blocks (now): this distance shrinks with the square root of the number of blocks. It
// returns false if the result would be more than maxBlocks, or if an argument is not above 0.
func forecast(blocks int, now, wanted float64) (int, bool) {
	if !(now > 0) || !(wanted > 0) || blocks <= 0 {
		return 0, false
	}
	n := float64(blocks) * math.Pow(now/wanted, 2)
	if n > maxBootstrap && blocks <= maxBootstrap {
		n *= math.Pi / 2 // above maxBootstrap the median replaces the pseudo-median, and needs this factor more blocks
	}
	if !(n <= maxBlocks) {
		return 0, false
	}
	return int(math.Ceil(n)), true
}
