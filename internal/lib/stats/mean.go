package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// StudentT is the method of intervals of means.
const StudentT Method = "mean, Student's t"

// MeanAt is the mean of values, with the interval of a confidence by Student's t. Unlike a median, a mean follows
// values that occur in few blocks, as a bill does. Its interval assumes that the values are independent and that their
// mean is about normal. It cannot account for what has happened in no block yet (NoneBound).
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

// MeanChange is the logarithm of the mean of the arm over the mean of its baseline, with the interval of a confidence
// by Student's t, linearized within blocks (the delta method of a ratio of paired means). Influences are what each
// block adds to it, in their order: their mean is the value. It is false where a mean is not above 0.
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

// Outlying is how many values are far above the others: beyond the upper quartile by more than three times the distance
// between the quartiles (Tukey's outer fence, Exploratory Data Analysis, 1977). Of fewer than MinBlocks none is.
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

// FamilyMean is the mean of values that are of one of several quantities, with an interval that holds together with
// those of all others of the family: each at a confidence of 1 - 0.05 / family (Bonferroni), by Student's t, so that at
// least 95 % of such families have no interval that misses. It needs MinBlocks values.
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
