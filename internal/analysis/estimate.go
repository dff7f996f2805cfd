package analysis

import (
	"fmt"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// estimate adds the estimates of one metric at one level, for every arm that has it, and the smallest visible difference.
func (s *Summary) estimate(t *table, at factors, metric string, seed uint64) {
	twins := t.twins(at, metric, seed)
	visible, visibleKnown := stats.SmallestVisible(twins)
	if visibleKnown {
		s.MDE = append(s.MDE, MDE{Metric: metric, Factors: at, Value: visible})
	}
	for _, arm := range t.arms {
		value := stats.Median(t.column(at, arm, metric))
		if value.N == 0 {
			continue
		}
		e := Estimate{
			Metric: metric, Unit: quantity.UnitOf(metric), Arm: arm, Factors: at,
			Value: value.Value, Confidence: value.Confidence, N: value.N, Method: string(value.Method),
		}
		e.Lo, e.Hi = ends(value)
		if pairs := t.pairs(at, arm, metric); arm != record.Direct && len(pairs) > 0 {
			e.Baseline = record.Direct
			d := stats.Difference(pairs, seed)
			e.Difference = &Difference{Value: d.Value, Confidence: d.Confidence, N: d.N, Method: string(d.Method)}
			e.Difference.Lo, e.Difference.Hi = ends(d)
			if r, ok := stats.Ratio(pairs, seed); ok {
				e.Ratio = &Ratio{Value: r.Value}
				e.Ratio.Lo, e.Ratio.Hi = ends(r)
			}
			e.Difference.Unresolved = unresolved(arm, d, visible, visibleKnown)
			if e.Difference.Unresolved == "" {
				lagGate(t, at, arm, &e, seed)
			}
			e.Difference.Resolved = e.Difference.Unresolved == ""
		}
		s.Estimates = append(s.Estimates, e)
	}
}

// unresolved says why a difference is not resolved; empty when it is.
func unresolved(arm string, d stats.Estimate, visible float64, visibleKnown bool) string {
	switch {
	case !d.HasInterval:
		return fmt.Sprintf("%d blocks carry no interval; %d are needed", d.N, stats.MinBlocks)
	case !d.Excludes(0):
		return "its interval holds 0"
	case arm == record.AA:
		return ""
	case !visibleKnown:
		return "the A/A twins gave no interval to hold it against"
	case !stats.Resolved(d, visible):
		return "it is not larger than what separates the A/A twins"
	}
	return ""
}

func ends(e stats.Estimate) (lo, hi *float64) {
	if !e.HasInterval {
		return nil, nil
	}
	return &e.Lo, &e.Hi
}
