// Package stats holds the estimators that stand between trials and the sentences of a report. It is pure: numbers in,
// numbers out.
//
// Every interval says which method made it and which confidence that method reaches, since exact methods on few blocks
// cannot hit a round 95 %. The coverage of each is measured by simulation in the tests; docs/statistics.md has the
// figures and the reasons for each choice.
package stats

import "math"

// Confidence is the aim of every interval. An exact method reaches it or a little more, and reports what it reached.
const Confidence = 0.95

// MinBlocks is the smallest number of blocks that carries a 95 % interval: the signed-rank and the sign test reach 96.9
// % with six values, and only 93.8 % with five.
const MinBlocks = 6

// MinBlocksAt is the smallest number of blocks that carries an interval of a confidence: the signed-rank and the sign
// test of n values reach 1 - 2^(1-n) at most.
func MinBlocksAt(confidence float64) int {
	n := 2
	for 1-math.Exp2(float64(1-n)) < confidence {
		n++
	}
	return n
}

// Method names how an interval was made.
type Method string

// The methods.
const (
	None            Method = "none: fewer than 6 blocks" // a value without an interval
	OrderStatistics Method = "order-statistics"          // exact interval of a median, from the binomial (sign test)
	// exact interval of a pseudo-median, from the Wilcoxon signed-rank test
	SignedRank Method = "signed-rank"
	Bootstrap  Method = "bootstrap"        // percentile bootstrap over blocks
	Clustered  Method = "clustered Wilson" // score interval of a share, design effect and t over trials
)

// Estimate is a value with its interval. HasInterval is false where there are too few blocks; Lo and Hi are then 0 and
// mean nothing.
type Estimate struct {
	Value       float64
	Lo, Hi      float64
	HasInterval bool
	Confidence  float64 // that the method reaches, not the one that was asked for
	N           int     // blocks
	Effective   float64 // independent blocks that N are worth; 0: not asked
	Method      Method
}

// Excludes reports whether the interval lies wholly on one side of v. An estimate without an interval excludes nothing.
func (e Estimate) Excludes(v float64) bool { return e.HasInterval && (e.Lo > v || e.Hi < v) }
