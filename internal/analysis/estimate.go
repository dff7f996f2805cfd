package analysis

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// estimate adds the estimates of one metric at one level, for every arm that has it, and the smallest visible
// difference.
func (s *Summary) estimate(t *table, at factors, metric string, dependence stats.Dependence, seed uint64) {
	twinPairs := t.pairs(at, record.AA, metric)
	twins := dependence.Difference(twinPairs, seed)
	far, farKnown := stats.SmallestVisible(twins)
	if farKnown {
		s.MDE = append(s.MDE, MDE{Metric: metric, Factors: at, Value: far})
	} else {
		// Too few blocks of the twin for an interval must not silence arms that have one: its interval is what guards
		// against false alarms.
		far, farKnown = stats.FarEnd(twinPairs, seed)
	}
	for _, arm := range t.arms {
		value := stats.Median(t.column(at, arm, metric))
		if value.N == 0 {
			continue
		}
		e := Estimate{
			Metric: metric, Unit: t.defined.Of(metric).Unit, Rank: t.defined.Of(metric).Rank, Arm: arm, Factors: at,
			Value: value.Value, Confidence: value.Confidence, N: value.N, Method: string(value.Method),
		}
		e.Lo, e.Hi = ends(value)
		if t.count(pool{at.key(), arm, metric}, func(f fate) bool { return f.why() == tooFew }) > 0 {
			e.Notes = append(e.Notes, withheldNote(metric))
		}
		if arm != record.Direct {
			s.compare(t, &e, dependence, far, farKnown, seed)
		}
		s.Estimates = append(s.Estimates, e)
	}
}

// withheldNote says what to know of an estimate that some blocks had too few samples for.
func withheldNote(metric string) string {
	if strings.Contains(metric, "_"+runningPrefix) {
		return "blocks without a value had too few requests that no stall touched"
	}
	return "blocks without a value had too few samples for it; in a closed loop those are the slow ones"
}

// compare adds the difference of an estimate to the baseline, where both have a value in some block.
func (s *Summary) compare(t *table, e *Estimate, dependence stats.Dependence, far float64, farKnown bool, seed uint64) {
	pairs := t.pairs(e.Factors, e.Arm, e.Metric)
	if len(pairs) == 0 {
		return
	}
	e.Baseline = record.Direct
	d := dependence.Difference(pairs, seed)
	e.Difference = newDifference(d)
	if dependence.Known() {
		e.Difference.Effective = &d.Effective
	}
	if r, ok := dependence.Ratio(pairs, seed); ok {
		e.Ratio = &Ratio{Value: r.Value}
		e.Ratio.Lo, e.Ratio.Hi = ends(r)
	}
	kept, lost, whole := t.lostPairs(e.Factors, e.Arm, e.Metric)
	e.Difference.Lost, e.Difference.LostWhole = lost, whole
	worst := func(lost int) (lo, hi *float64) {
		worstLo, worstHi, bounded := dependence.WorstCase(kept, lost, seed)
		if !d.HasInterval || !bounded {
			return nil, nil
		}
		return finite(worstLo), finite(worstHi)
	}
	e.Difference.WorstLo, e.Difference.WorstHi = worst(lost)
	if whole > 0 {
		e.Difference.RestLo, e.Difference.RestHi = worst(lost - whole)
		e.Notes = append(e.Notes, "taken as not run: "+blocks(whole)+" that this arm and both twins lost to the hypervisor or to neighbours")
	}
	e.Difference.judge(e.Arm, d, far, farKnown)
	if e.Difference.Unresolved == "" {
		lagGate(t, e.Factors, e.Arm, e, seed)
	}
	e.Difference.Resolved = e.Difference.Unresolved == ""
}

func newDifference(d stats.Estimate) *Difference {
	out := &Difference{Value: d.Value, Confidence: d.Confidence, N: d.N, Method: string(d.Method)}
	out.Lo, out.Hi = ends(d)
	return out
}

// judge sets the smallest visible difference, and why the difference is not resolved if it is not.
func (d *Difference) judge(arm string, e stats.Estimate, far float64, farKnown bool) {
	visible := stats.Visible(far, e)
	if e.HasInterval && farKnown {
		d.SmallestVisible = &visible
	}
	d.Unresolved = unresolved(arm, e, visible, farKnown)
	lo, hi := d.WorstLo, d.WorstHi
	if d.LostWhole > 0 {
		lo, hi = d.RestLo, d.RestHi
	}
	if lost := d.Lost - d.LostWhole; d.Unresolved == "" && lost > 0 && (lo == nil || *lo <= 0) && (hi == nil || *hi >= 0) {
		d.Unresolved = fmt.Sprintf("%s: the %s without a value could make it vanish", LossReason, blocks(lost))
	}
}

// LossReason is how Difference.Unresolved begins when lost blocks are the reason.
const LossReason = "lost trials"

func blocks(n int) string {
	if n == 1 {
		return "1 block"
	}
	return fmt.Sprintf("%d blocks", n)
}

// unresolved says why a difference is not resolved; empty when it is.
func unresolved(arm string, d stats.Estimate, visible float64, farKnown bool) string {
	switch {
	case !d.HasInterval:
		return fmt.Sprintf("%d blocks carry no interval; %d are needed", d.N, stats.MinBlocks)
	case !d.Excludes(0):
		return "its interval holds 0"
	case arm == record.AA:
		return ""
	case !farKnown:
		return "there are no A/A twins to hold it against"
	case !stats.Resolved(d, visible):
		return "it is not larger than the smallest visible difference: what separates the A/A twins, and half its own interval"
	}
	return ""
}

func ends(e stats.Estimate) (lo, hi *float64) {
	if !e.HasInterval {
		return nil, nil
	}
	return &e.Lo, &e.Hi
}

// finite is nil for what has no bound, which JSON cannot say otherwise.
func finite(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// dependences are what the run shows, for each metric, of how much the differences of neighbouring blocks resemble each
// other: over all arms and levels, for a handful of blocks alone cannot tell.
func (t *table) dependences() map[string]stats.Dependence {
	all := map[string]stats.Dependence{}
	for _, metric := range t.metrics {
		var series [][]float64
		for _, at := range t.levels {
			for _, arm := range t.arms {
				if arm == record.Direct {
					continue
				}
				series = append(series, stats.Differences(t.pairs(at, arm, metric)))
			}
		}
		all[metric] = stats.LearnDependence(series...)
	}
	return all
}

// strongDependence is the lag-1 autocorrelation from which widened intervals fall short of 93 % in simulations, by up
// to 3 points.
const strongDependence = 0.6

// warnOfDependence names the metrics whose blocks depend on each other so strongly that even widened intervals may be
// too narrow.
func (s *Summary) warnOfDependence(dependences map[string]stats.Dependence) {
	var strong []string
	unknown, known := false, false
	for _, e := range s.Estimates {
		d := dependences[e.Metric]
		unknown = unknown || e.Difference != nil && e.Difference.Lo != nil && d.Values > 0 && !d.Known()
		known = known || d.Known()
		if e.Arm == record.AA && d.Known() && d.Lag1 > strongDependence && !slices.Contains(strong, quantity.Label(e.Metric)) {
			strong = append(strong, quantity.Label(e.Metric))
		}
	}
	if unknown && !known { // one metric by itself can vary too seldom to tell; that is no matter of how many blocks there are
		s.Warnings = append(s.Warnings, "too few blocks to tell whether neighbouring ones resemble each other: intervals take them as "+
			"independent; where their lag-1 autocorrelation is 0.5, those of 6 blocks cover 85 % rather than 97 %")
	}
	if len(strong) > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("neighbouring blocks resemble each other strongly (lag-1 autocorrelation over %g) in %s: "+
			"intervals are wider for it and may still be too narrow", strongDependence, strings.Join(strong, ", ")))
	}
}
