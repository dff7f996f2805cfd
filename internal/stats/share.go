package stats

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// Count is how many of the samples of one trial were in a part.
type Count struct{ In, Of int }

// Share is a part of the samples of several trials together.
type Share struct {
	Value       float64
	Lo, Hi      float64
	HasInterval bool // with two trials or more
	Samples, In int
	Trials      int
	// DesignEffect is how many times larger the variance is than that of independent samples, estimated between trials: 1 or more. NaN
	// where nothing, or everything, was in the part: there is no variance to compare.
	DesignEffect float64
}

// ClusteredShare is a share out of samples that are independent between trials, but not within one. Its interval is Wilson's score
// interval for as many samples as are left after division by the design effect, with Student's t on the trials instead of the normal
// quantile, as surveys do with clusters (Korn and Graubard 1998; Dean and Pagano 2015). Where few trials had any, they alone say how
// unequal trials are: t then has one degree of freedom more than they are.
//
// Where no trial had any, the samples say nothing of how many would have come together. What the trials say is bounded: at 95 %, at
// most 1 - 0.05^(1/trials) of such trials have any at all. Times largest, the largest share that one trial may plausibly reach, that
// is the bound. A largest of 1 assumes nothing. The same from above where everything was in the part.
func ClusteredShare(counts []Count, largest float64) Share {
	s := Share{DesignEffect: math.NaN()}
	for _, c := range counts {
		if c.Of > 0 {
			s.In += min(max(c.In, 0), c.Of)
			s.Samples += c.Of
			s.Trials++
		}
	}
	if s.Trials == 0 {
		return s
	}
	n, trials := float64(s.Samples), float64(s.Trials)
	s.Value = float64(s.In) / n
	s.HasInterval = s.Trials > 1
	largest = min(max(largest, 0), 1)
	anyOf := NoneBound(s.Trials)
	switch {
	case !s.HasInterval:
	case s.In == 0:
		s.Hi = max(anyOf*largest, 1-math.Pow(1-Confidence, 1/n))
	case s.In == s.Samples:
		s.Lo, s.Hi = min(1-anyOf*largest, math.Pow(1-Confidence, 1/n)), 1
	default:
		var squares float64
		some, others := 0, 0 // trials with anything in the part, and with anything outside of it
		for _, c := range counts {
			if c.Of > 0 {
				if c.In > 0 {
					some++
				}
				if c.In < c.Of {
					others++
				}
				d := float64(c.In) - s.Value*float64(c.Of)
				squares += d * d
			}
		}
		s.DesignEffect = max(1, trials/(trials-1)*squares/(n*s.Value*(1-s.Value)))
		t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(min(s.Trials-1, min(some, others)+1))}.Quantile((1 + Confidence) / 2)
		s.Lo, s.Hi = wilson(s.Value, n/s.DesignEffect, t)
	}
	return s
}

// NoneBound is the part of trials that may have had something, at 95 %, when none of so many had.
func NoneBound(trials int) float64 { return 1 - math.Pow(1-Confidence, 1/float64(trials)) }

// LargestShare is the largest share in one trial among all that are given: what a trial may plausibly reach, where at least three
// trials had anything; else 1, for too little is known.
func LargestShare(counts []Count) float64 {
	var largest float64
	some := 0
	for _, c := range counts {
		if c.Of > 0 && c.In > 0 {
			some++
			largest = max(largest, float64(c.In)/float64(c.Of))
		}
	}
	if some < 3 {
		return 1
	}
	return largest
}

// ShareDifference is the difference of two shares, arm less base, with the interval that follows from theirs (Newcombe's hybrid score
// interval, 1998; Zou and Donner 2008). It takes them as independent, so what a block does to both makes it too wide.
func ShareDifference(base, arm Share) Estimate {
	d := Estimate{Value: arm.Value - base.Value, N: min(base.Trials, arm.Trials), Method: None}
	if base.HasInterval && arm.HasInterval {
		d.Lo = d.Value - math.Hypot(arm.Value-arm.Lo, base.Hi-base.Value)
		d.Hi = d.Value + math.Hypot(arm.Hi-arm.Value, base.Value-base.Lo)
		d.HasInterval, d.Confidence, d.Method = true, Confidence, Clustered
	}
	return d
}

// wilson is the score interval around p of n tries, with the quantile z.
func wilson(p, n, z float64) (lo, hi float64) {
	centre := (p + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(centre-half, 0), min(centre+half, 1)
}
