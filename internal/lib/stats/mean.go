package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// StudentT is the method by which intervals of means are computed.
const StudentT Method = "mean, Student's t"

// MeanAt returns the mean of values, with an interval of the given confidence by Student's t. Unlike a median, a mean
// reflects values that occur in only a few blocks. The interval assumes that the values are independent and that their
// mean is about normal. It cannot account for what has not happened in any block yet (see NoneBound).
func MeanAt(xs []float64, confidence float64) Estimate {
	e := Estimate{N: len(xs), Method: None}
	if len(xs) == 0 {
		return e
	}
	e.Value = stat.Mean(xs, nil)
	if len(xs) < MinBlocksAt(confidence) {
		return e
	}
	_, half := meanWithT(xs, confidence)
	e.Lo, e.Hi, e.HasInterval, e.Confidence, e.Method = e.Value-half, e.Value+half, true, confidence, StudentT
	return e
}

// MeanChange returns the logarithm of the ratio of the arm's mean to its baseline's, with an interval of the given
// confidence by Student's t, linearized within blocks (the delta method for a ratio of paired means). Influences holds
// the contribution of each pair, in order; their mean is the value. ok is false if there are no pairs or a mean is not
// above 0.
func MeanChange(pairs []Pair, confidence float64) (e Estimate, influences []float64, ok bool) {
	var base, arm []float64
	for _, p := range pairs {
		base, arm = append(base, p.Base), append(arm, p.Arm)
	}
	if len(pairs) == 0 {
		return Estimate{Method: None}, nil, false
	}
	meanBase, meanArm := stat.Mean(base, nil), stat.Mean(arm, nil)
	if !(meanBase > 0) || !(meanArm > 0) {
		return Estimate{N: len(pairs), Method: None}, nil, false
	}
	ratio := math.Log(meanArm / meanBase)
	for _, p := range pairs {
		influences = append(influences, ratio+p.Arm/meanArm-p.Base/meanBase)
	}
	return MeanAt(influences, confidence), influences, true
}

// Outlying returns the number of values that are far above the others: above the upper quartile by more than three
// times the distance between the quartiles (Tukey's outer fence, Exploratory Data Analysis, 1977). With fewer than
// MinBlocks values it returns 0.
func Outlying(xs []float64) int {
	if len(xs) < MinBlocks {
		return 0
	}
	sorted := slices.Sorted(slices.Values(xs))
	q1, q3 := stat.Quantile(0.25, stat.LinInterp, sorted, nil), stat.Quantile(0.75, stat.LinInterp, sorted, nil)
	n := 0
	for _, x := range sorted {
		if x > q3+3*(q3-q1) {
			n++
		}
	}
	return n
}

// FamilyMean returns the mean of one of several quantities, a family of the given size. Its interval, by Student's t,
// has a confidence of 1 - 0.05 / family (Bonferroni). If all quantities of a family get such intervals, every interval
// contains its true mean in at least 95 % of families. With fewer than MinBlocks values there is no interval.
func FamilyMean(xs []float64, family int) Estimate {
	if len(xs) < MinBlocks {
		return MeanAt(xs, Confidence)
	}
	confidence := 1 - (1-Confidence)/float64(max(family, 1))
	mean, half := meanWithT(xs, confidence)
	return Estimate{
		Value: mean, Lo: mean - half, Hi: mean + half, HasInterval: true, Confidence: confidence, N: len(xs),
		Method: StudentT,
	}
}
