package stats

import (
	"cmp"
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/lib/stats/interval"
)

// Count holds the number of samples of one trial that were in a part (In), and the number of all its samples (Of).
type Count struct{ In, Of int }

// Share is the share of a part in the samples of several trials together.
type Share struct {
	Value       float64
	Lo, Hi      float64
	HasInterval bool // there are at least two trials
	Samples, In int
	Trials      int
	Some        int // trials with any samples in the part; 0 also if DesignEffect is NaN

	Fewest, Most int // samples of a trial
	// DesignEffect is the ratio of the variance, estimated between trials, to that of independent samples: 1 or more. It
	// is NaN if nothing, or everything, was in the part, because there is then no variance to compare.
	DesignEffect float64
	// Uneven reports whether trials differ so much, in size or in their shares, that the interval may be too narrow: a
	// few trials rarely include those with the largest weight. It is false for bounds, when nothing, or everything, was
	// in the part.
	Uneven bool
}

// Trials are uneven if their sizes differ more than twofold and by more than counts do by chance. They are also uneven
// if their shares come in bursts and have a standard deviation, less that of independent samples, above a fraction of
// the share. This fraction is the one caused by ten equal bursts in each trial, by a one-sided chi-squared test at 5 %.
// Neither the skewness of the residuals nor the weight of the largest trial adds information: the runs whose intervals
// miss the true share saw no large burst, and look as if there were none.
const (
	unevenSizes  = 2
	unevenShares = 0.316 // 1 / sqrt(10)
	unevenBursts = 4     // design effect
)

// ClusteredShare returns a share of samples that are independent between trials, but not within one. Its interval is
// Wilson's score interval for the number of samples divided by the design effect, with Student's t over the trials
// instead of the normal quantile, as surveys do with clusters (Korn and Graubard 1998; Dean and Pagano 2015). If only a
// few trials had any samples in the part, only these show how unequal trials are: t then has one degree of freedom more
// than their number. The variance is that of the jackknife, which leaves out one trial at a time, because a large trial
// pulls the share towards itself. If a few trials make up most of the variance, there are few degrees of freedom:
// 3 (sum d^2)^2 / sum d^4 - 2 of the residuals d, which is the number of trials less 2 if they are normal and alike,
// and 1 if one outweighs the others.
//
// If no trial had any, the samples do not show how many would have come together. bursts stands in for that: the design
// effect of other shares of the metric that had some. The upper bound is that for the number of samples divided by
// bursts, or for the number of trials if that is larger. If bursts is infinite, nothing is assumed, and the bound is on
// the fraction of trials that have any at all. If everything was in the part, there is a lower bound instead, computed
// in the same way.
func ClusteredShare(counts []Count, bursts float64) Share {
	return ClusteredShareAt(counts, bursts, Confidence)
}

// ClusteredShareAt is like ClusteredShare with an interval of another confidence.
func ClusteredShareAt(counts []Count, bursts, confidence float64) Share {
	s := Share{DesignEffect: math.NaN()}
	for _, c := range counts {
		if c.Of > 0 {
			s.In += min(max(c.In, 0), c.Of)
			s.Samples += c.Of
			if s.Trials++; s.Trials == 1 {
				s.Fewest = c.Of
			}
			s.Fewest, s.Most = min(s.Fewest, c.Of), max(s.Most, c.Of)
		}
	}
	if s.Trials == 0 {
		return s
	}
	n, trials := float64(s.Samples), float64(s.Trials)
	s.Value = float64(s.In) / n
	s.HasInterval = s.Trials > 1
	none := noneBound(max(trials, n/max(bursts, 1)), confidence)
	switch {
	case !s.HasInterval:
	case s.In == 0:
		s.Hi = none
	case s.In == s.Samples:
		s.Lo, s.Hi = 1-none, 1
	default:
		var squares, fourths float64
		others := 0 // trials with anything outside of the part
		for _, c := range counts {
			if c.Of > 0 {
				if c.In > 0 {
					s.Some++
				}
				if c.In < c.Of {
					others++
				}
				d := (float64(c.In) - s.Value*float64(c.Of)) / (1 - float64(c.Of)/n)
				squares += d * d
				fourths += d * d * d * d
			}
		}
		s.DesignEffect = max(1, (trials-1)/trials*squares/(n*s.Value*(1-s.Value)))
		free := math.Min(trials-1, float64(min(s.Some, others)+1))
		if fourths > 0 {
			free = min(free, max(1, 3*squares*squares/fourths-2))
		}
		t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: free}.Quantile((1 + confidence) / 2)
		s.Lo, s.Hi = interval.Wilson(s.Value, n/s.DesignEffect, t)
		part := min(s.Value, 1-s.Value)
		between := math.Sqrt((s.DesignEffect - 1) * trials / n * (1 - part) / part)
		chance := math.Sqrt(distuv.ChiSquared{K: trials - 1}.Quantile(Confidence) / (trials - 1))
		fewest, most := float64(s.Fewest), float64(s.Most)
		s.Uneven = s.DesignEffect > unevenBursts && between > unevenShares*chance ||
			most > unevenSizes*fewest && math.Sqrt(most)-math.Sqrt(fewest) > 2 // a square root varies by 0.5 by chance
	}
	return s
}

// NoneBound returns the upper bound, at 95 %, on the fraction of trials that have a property if none of the given
// number had it.
func NoneBound(trials int) float64 { return noneBound(float64(trials), Confidence) }

// noneBound returns the probability of an event at which n trials show no event with a probability of 1 - confidence.
func noneBound(n, confidence float64) float64 { return 1 - math.Pow(1-confidence, 1/n) }

// Bursts returns the largest design effect among shares of one metric that had samples in the part in at least three
// trials: how many of the metric's events may come together. It is infinite if there is no such share, because nothing
// is known then.
func Bursts(shares ...Share) float64 {
	largest := 0.0
	for _, s := range shares {
		if s.Some >= 3 && s.DesignEffect > largest { // false for NaN
			largest = s.DesignEffect
		}
	}
	return cmp.Or(largest, math.Inf(1))
}

// ShareDifference returns the difference of two shares, arm minus base. It combines the intervals of both (Newcombe's
// hybrid score interval, 1998; Zou and Donner 2008). It treats the shares as independent, so if a block affects both
// alike, the interval is too wide.
func ShareDifference(base, arm Share) Estimate {
	d := Estimate{Value: arm.Value - base.Value, N: min(base.Trials, arm.Trials), Method: None}
	if base.HasInterval && arm.HasInterval {
		d.Lo = d.Value - math.Hypot(arm.Value-arm.Lo, base.Hi-base.Value)
		d.Hi = d.Value + math.Hypot(arm.Hi-arm.Value, base.Value-base.Lo)
		d.HasInterval, d.Confidence, d.Method = true, Confidence, Clustered
	}
	return d
}
