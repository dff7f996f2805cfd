// Package stats computes the estimates and intervals in reports from the values of trials. It is pure: it takes and
// returns numbers.
//
// Every interval has its method and the confidence that the method reaches, since exact methods on few blocks cannot
// reach exactly 95 %. The coverage of each is measured by simulation in the tests; docs/statistics.md has the figures
// and the reasons for each choice.
package stats

import "math"

// Confidence is the target of every interval. An exact method reaches it or a little more, and reports what it
// reached.
const Confidence = 0.95

// MinBlocks is the smallest number of blocks with a 95 % interval: the signed-rank and the sign test reach 96.9 % with
// six values, but only 93.8 % with five.
const MinBlocks = 6

// MinBlocksAt returns the smallest number of blocks with an interval of a confidence: the signed-rank and the sign
// test of n values reach at most 1 - 2^(1-n).
func MinBlocksAt(confidence float64) int {
	n := 2
	for 1-math.Exp2(float64(1-n)) < confidence {
		n++
	}
	return n
}

// Method names how an interval was computed.
type Method string

// The methods.
const (
	None            Method = "none: fewer than 6 blocks" // a value without an interval
	OrderStatistics Method = "order-statistics"          // exact interval of a median, from the binomial (sign test)
	// Exact interval of a pseudo-median, from the Wilcoxon signed-rank test.
	SignedRank Method = "signed-rank"
	Bootstrap  Method = "bootstrap"        // percentile bootstrap over blocks
	Clustered  Method = "clustered Wilson" // score interval of a share, with design effect and t over trials
)

// Estimate is a value with its interval. HasInterval is false if there are too few blocks; Lo and Hi are then
// meaningless.
type Estimate struct {
	Value       float64
	Lo, Hi      float64
	HasInterval bool
	Confidence  float64 // reached by the method, which may differ from the requested one
	N           int     // blocks
	Effective   float64 // number of independent blocks that the N blocks are worth; 0 if not computed
	Method      Method
}

// Excludes reports whether the interval lies wholly on one side of v. An estimate without an interval excludes nothing.
func (e Estimate) Excludes(v float64) bool { return e.HasInterval && (e.Lo > v || e.Hi < v) }
