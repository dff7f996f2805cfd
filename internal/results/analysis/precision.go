package analysis

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/scale/ledger"
)

// Enough reports whether a run with a target precision may end: all values of the metrics that decide, and their
// differences from the baseline as fractions of the baseline's value, are known to within the target. Otherwise the
// text says what is missing. Whether a difference is resolved does not matter.
//
// If both the latency of all requests and the latency while the machine was running are listed, the one that answers
// use decides: if stalls are frequent, the median of all requests mostly shows the stalls, and no number of blocks
// makes it precise.
//
// A metric that no trial has does not count, nor does one that is void because the subject does not keep up: more
// blocks would not help. A metric that is missing for any other reason keeps the run going.
func Enough(run record.Run, trials []record.Trial) (bool, string, error) {
	if run.Precision == nil {
		return false, "", nil
	}
	s, err := Summarize(run, trials)
	if err != nil {
		return false, "", err
	}
	listed := func(metric string) bool { return slices.Contains(run.Precision.Metrics, metric) }
	defined := run.Defined()
	decides := func(metric, arm string, at factors) bool {
		return listed(metric) && !(listed(defined.Counterpart(metric)) && s.answeredBy(defined, metric, arm, at))
	}
	var wide []string
	all := 0
	miss := func(e *Estimate, width float64) {
		name := quantity.Label(e.Metric) + " of " + e.Arm
		if at := s.At(e.Factors); at != "" {
			name += " " + at
		}
		if width > 0 {
			name += " (" + quantity.Rough(width, quantity.Part) + ")"
		}
		wide = append(wide, name)
	}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		if !decides(e.Metric, e.Arm, e.Factors) || e.Arm == record.AA || e.Withheld != "" || e.Component != "" {
			continue
		}
		all++
		if value := e.estimate(); !stats.Precise(value, e.Value, run.Precision.Target) {
			miss(e, halfWidth(value, e.Value))
			continue
		}
		if d := e.Difference; d != nil {
			scale := e.Value // if the baseline's value is 0 or unknown
			if base := s.Find(e.Metric, record.Direct, e.Factors); base != nil && base.Value != 0 {
				scale = base.Value
			}
			if difference := d.estimate(); !stats.Precise(difference, scale, run.Precision.Target) {
				miss(e, halfWidth(difference, scale))
			}
		}
	}
	for _, m := range s.Missing {
		if decides(m.Metric, m.Arm, m.Factors) && m.Arm != record.AA && m.Cause != ledger.Subject {
			all++
			wide = append(wide, fmt.Sprintf("%s of %s (%s)", quantity.Label(m.Metric), m.Arm, m.Because()))
		}
	}
	switch {
	case all == 0:
		return false, "none of the metrics that must be precise was measured", nil
	case len(wide) == 0:
		return true, "", nil
	}
	const most = 2
	named := strings.Join(wide[:min(len(wide), most)], ", ")
	if more := len(wide) - most; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return false, fmt.Sprintf("%d of %d intervals are wider than %.3g %%: %s", len(wide), all, 100*run.Precision.Target,
		named), nil
}

func (i Interval) estimate() stats.Estimate {
	e := stats.Estimate{Value: i.Value}
	if i.Lo != nil && i.Hi != nil {
		e.Lo, e.Hi, e.HasInterval = *i.Lo, *i.Hi, true
	}
	return e
}

// halfWidth returns half the width of an interval as a fraction of scale; 0 if there is no interval or scale is 0.
func halfWidth(e stats.Estimate, scale float64) float64 {
	if !e.HasInterval || scale == 0 {
		return 0
	}
	return (e.Hi - e.Lo) / 2 / max(scale, -scale)
}
