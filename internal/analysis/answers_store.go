package analysis

import (
	"fmt"
	"math"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
)

// timesOf words a ratio to the baseline: "24 times faster" or "7,400 times as long".
func timesOf(r *Ratio) string {
	switch {
	case r == nil || r.Value <= 0:
		return ""
	case r.Value >= 1:
		return factor(r.Value) + " times as long"
	}
	return factor(1/r.Value) + " times faster"
}

// factor is a number of times with as many digits as say something.
func factor(x float64) string {
	switch {
	case x < 10:
		return fmt.Sprintf("%.1f", x)
	case x < 1000:
		return fmt.Sprintf("%.0f", x)
	}
	text := fmt.Sprintf("%.0f", x/100)
	return text[:len(text)-1] + "," + text[len(text)-1:] + "00"
}

// flushAnswers say first which store is fastest and how the others stand to the baseline over all levels, and then each level by itself.
func flushAnswers(s *Summary, t *table) []Answer {
	if s.Baseline == "" {
		return nil
	}
	var all []Answer
	for _, at := range t.levels {
		w := &words{s: s, at: at}
		if w.find("flush_seconds", record.Direct) == nil {
			continue
		}
		w.add("At %s: %s.", Level(at), w.flush(record.Direct))
		for _, arm := range t.subjects() {
			if w.find("flush_seconds", arm) != nil {
				w.add("%s.", w.flush(arm))
			}
		}
		all = append(all, w.answer())
	}
	if len(all) == 0 {
		return nil
	}
	return append([]Answer{s.flushVerdict(t)}, all...)
}

// flush words what one arm takes at a level, and what that is made of.
func (w *words) flush(arm string) string {
	e := w.find("flush_seconds", arm)
	text := fmt.Sprintf("%s takes %s for a flush", w.s.ArmName(arm), said(e))
	if d := e.Difference; arm != record.Direct && d != nil {
		switch ratio := timesOf(e.Ratio); {
		case d.Lo != nil && !d.Resolved:
			text += ", which is not resolved from " + w.s.Baseline
		case ratio != "":
			text += ", " + ratio
		}
	}
	var made []string
	for _, m := range []struct{ metric, what string }{
		{"records_per_flush", "records"}, {"map_updates_per_flush", "map updates"}, {"map_deletes_per_flush", "deletes"}, {"syscalls_per_flush", "system calls"},
		{"grace_periods_per_flush", "grace periods"},
	} {
		if v := w.find(m.metric, arm); v != nil && v.Value >= 0.05 {
			made = append(made, fmt.Sprintf("%.3g %s", v.Value, m.what))
		}
	}
	if v := w.find("bytes_per_flush", arm); v != nil {
		made = append(made, quantity.Value(v.Value, quantity.Bytes))
	}
	if gp := w.s.Find("grace_periods_per_flush", arm, w.at); gp != nil && gp.Value >= 1 {
		made = append(made, quantity.Rough(e.Value/gp.Value, quantity.Seconds)+" for each grace period")
	}
	if len(made) > 0 {
		text += " (" + strings.Join(made, ", ") + ")"
	}
	return text
}

// span is the least and the most of a ratio to the baseline over levels.
type span struct {
	lo, hi   float64
	n        int
	resolved int
}

func (v *span) add(e *Estimate) {
	if e == nil || e.Ratio == nil || e.Ratio.Value <= 0 {
		return
	}
	if v.n == 0 {
		v.lo, v.hi = math.Inf(1), 0
	}
	v.lo, v.hi, v.n = min(v.lo, e.Ratio.Value), max(v.hi, e.Ratio.Value), v.n+1
	if e.Difference != nil && e.Difference.Resolved {
		v.resolved++
	}
}

func (v *span) String() string {
	switch {
	case v.n == 1 || v.hi/v.lo < 1.05:
		return timesOf(&Ratio{Value: v.hi})
	case v.lo >= 1:
		return factor(v.lo) + " to " + factor(v.hi) + " times as long"
	case v.hi < 1:
		return factor(1/v.hi) + " to " + factor(1/v.lo) + " times faster"
	}
	return fmt.Sprintf("%.2g to %.2g times as long", v.lo, v.hi)
}

// flushVerdict is the answer over all levels.
func (s *Summary) flushVerdict(t *table) Answer {
	w := &words{s: s}
	fastest, counted := map[string]int{}, 0
	for _, at := range t.levels {
		best, least := "", math.Inf(1)
		for _, arm := range t.arms {
			if e := s.Find("flush_seconds", arm, at); arm != record.AA && e != nil && e.Value < least {
				best, least = arm, e.Value
			}
		}
		if best != "" {
			fastest[best]++
			counted++
		}
	}
	for _, arm := range t.arms {
		if n := fastest[arm]; n == counted {
			w.add("%s has the shortest flushes%s.", s.ArmName(arm), map[bool]string{true: " at every level"}[counted > 1])
		} else if n > 0 {
			w.add("%s has the shortest flushes at %d of %d levels.", s.ArmName(arm), n, counted)
		}
	}
	for _, arm := range t.subjects() {
		var v span
		for _, at := range t.levels {
			w.at = at
			v.add(w.find("flush_seconds", arm))
		}
		switch {
		case v.n == 0:
		case v.resolved == 0:
			w.add("%s is not resolved from %s at any level.", arm, s.Baseline)
		case v.resolved == v.n:
			w.add("Against %s, %s is %s.", s.Baseline, arm, strings.Replace(v.String(), "times as long", "times slower", 1))
		default:
			w.add("Against %s, %s is %s (resolved at %d of %d levels).", s.Baseline, arm, strings.Replace(v.String(), "times as long", "times slower", 1), v.resolved, v.n)
		}
	}
	return w.answer()
}

// scaleAnswers say for each store what a lookup, memory and start-up are at the ends of the scale, beside the baseline.
func scaleAnswers(s *Summary, t *table) []Answer {
	if s.Baseline == "" || len(t.levels) == 0 {
		return nil
	}
	var all []Answer
	for _, arm := range append([]string{record.Direct}, t.subjects()...) {
		w := &words{s: s, arm: arm}
		if w.lookups(t); len(w.text) == 0 {
			continue
		}
		w.at = t.levels[len(t.levels)-1]
		w.holds(t)
		all = append(all, w.answer())
	}
	return all
}

// lookups: at the first and the last level, and whether they are above the baseline's anywhere.
func (w *words) lookups(t *table) {
	name := w.s.ArmName(w.arm)
	ends, above, below, n := w.against(t, "lookup_seconds")
	if len(ends) == 0 {
		return
	}
	text := fmt.Sprintf("%s: a lookup takes %s", name, strings.Join(ends, " and "))
	switch {
	case n == 0:
	case below == n:
		text += ", less than " + w.s.Baseline + " at every level"
	case above > 0:
		text += fmt.Sprintf(", more than %s at %d of %d levels", w.s.Baseline, above, n)
	default:
		text += fmt.Sprintf(", less than %s at %d of %d levels and at no level more that is resolved", w.s.Baseline, below, n)
	}
	w.add("%s.", text)
	if e := w.find("lookup_first_seconds", w.arm); e != nil {
		w.add("The first for a service after others, with what the processor has forgotten, takes %s at %s.", said(e), Level(w.at))
	}
}

// holds: memory and start-up at the last level, and what a service adds.
func (w *words) holds(t *table) {
	text := fmt.Sprintf("With %s its maps have %s", Level(w.at), w.say("map_bytes", w.arm))
	for _, m := range w.s.Models {
		if m.Metric == "map_bytes" && m.Arm == w.arm && len(m.Terms) == 2 && m.Terms[1].Value >= 1 {
			text += fmt.Sprintf(" (%s and %s for each service)", term(m.Terms[0], quantity.Bytes), term(m.Terms[1], quantity.Bytes))
		}
	}
	if e := w.find("memory_hard_bytes", w.arm); e != nil {
		text += fmt.Sprintf("; its group has %s of hard memory in all, the process with it", said(e))
	}
	w.add("%s.", text)
	if open, fill := w.find("store_open_seconds", w.arm), w.find("store_fill_seconds", w.arm); open != nil && fill != nil {
		w.add("It opens in %s and takes these services in %s.", said(open), said(fill))
	}
}

// against gives a metric of the arm at the first and the last level in words, and at how many of n levels it is, resolved, above and below the baseline's. It
// leaves the answer at the last level.
func (w *words) against(t *table, metric string) (ends []string, above, below, n int) {
	for i, at := range t.levels {
		w.at = at
		e := w.find(metric, w.arm)
		if e == nil {
			continue
		}
		if i == 0 || i == len(t.levels)-1 {
			ends = append(ends, said(e)+" at "+Level(at))
		}
		if d := e.Difference; w.arm != record.Direct && d != nil {
			n++
			switch {
			case d.Resolved && d.Value > 0:
				above++
			case d.Resolved:
				below++
			}
		}
	}
	return ends, above, below, n
}
