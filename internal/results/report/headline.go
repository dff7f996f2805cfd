package report

import (
	"math"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// headline sums up in one sentence a run that compares an arm with a named baseline, as `tare try --against` does: how
// much higher or lower, in per cent, each metric of the table is. It is empty for all other runs, and for invalid
// ones.
func (m *leadMaker) headline(metrics []string, levels []map[string]string, arms []string) string {
	others := 0
	arm := ""
	for _, a := range arms {
		if a != record.Direct && a != record.AA {
			others, arm = others+1, a
		}
	}
	if m.s.Baseline == "" || !m.s.Valid || others != 1 || len(levels) != 1 || len(levels[0]) > 0 {
		return ""
	}
	var resolved, open []string
	for _, name := range metrics {
		e := m.at[leadPlace{name, arm, "", record.LevelKey(levels[0])}]
		if e == nil || e.Withheld != "" || e.Difference == nil || e.Difference.Lo == nil || e.Difference.Zero() {
			continue
		}
		if label := quantity.Label(name); e.Difference.Resolved {
			resolved = append(resolved, label+" "+moreOrLess(e))
		} else {
			open = append(open, label+e.Difference.FoundIn(e.Unit))
		}
	}
	text := ofPartial(m.s) + m.s.ArmName(arm) + " against " + baseline(m.s) + ": "
	switch unresolved := strings.Join(open, ", ") + "."; {
	case len(resolved) > 0 && len(open) > 0:
		return text + strings.Join(resolved, "; ") + ". Not resolved: " + unresolved
	case len(resolved) > 0:
		return text + strings.Join(resolved, "; ") + "."
	case len(open) > 0:
		return text + "no difference is resolved in " + unresolved
	}
	return ""
}

// moreOrLess describes a resolved difference as a fraction of the baseline. It uses the unit of the metric instead if
// the ratio has no interval, or one that does not exclude 1.
func moreOrLess(e *analysis.Estimate) string {
	v, lo, hi, unit := e.Difference.Value, *e.Difference.Lo, *e.Difference.Hi, e.Unit
	if r := e.Ratio; r != nil && r.Lo != nil && r.Hi != nil && (*r.Lo > 1) == (lo > 0) && (*r.Hi < 1) == (hi < 0) {
		v, lo, hi, unit = r.Value-1, *r.Lo-1, *r.Hi-1, quantity.Part
	}
	if hi < 0 {
		return quantity.Interval(math.Abs(v), -hi, -lo, unit) + " lower"
	}
	return quantity.Interval(v, lo, hi, unit) + " higher"
}
