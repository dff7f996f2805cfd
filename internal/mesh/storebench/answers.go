package storebench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	analysis.Register(analysis.Family{Metrics: []string{"flush_seconds"}, Answer: flushAnswers})
	analysis.Register(analysis.Family{Metrics: []string{"lookup_seconds"}, Answer: scaleAnswers})
}

// prose writes this package's answers.
type prose struct{ analysis.Prose }

// flushAnswers returns an answer about all levels, which says which store is fastest and how each compares with the
// baseline, and then an answer for each level.
func flushAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	if s.Baseline == "" {
		return nil
	}
	var all []analysis.Answer
	for _, at := range t.Levels {
		p := &prose{analysis.Prose{Summary: s, At: at}}
		if p.Of("flush_seconds", record.Direct) == nil {
			continue
		}
		p.Add("%s%s.", p.Where(), p.flush(record.Direct))
		for _, arm := range t.Subjects() {
			if p.Of("flush_seconds", arm) != nil {
				p.Add("%s.", p.flush(arm))
			}
		}
		all = append(all, p.Answer())
	}
	if len(all) == 0 {
		return nil
	}
	return append([]analysis.Answer{flushVerdict(s, t)}, all...)
}

// flush describes how long a flush of one arm takes at a level, and which operations it consists of.
func (p *prose) flush(arm string) string {
	e := p.Of("flush_seconds", arm)
	text := fmt.Sprintf("%s takes %s for a flush", p.Summary.ArmName(arm), analysis.Said(e))
	if d := e.Difference; arm != record.Direct && d != nil {
		switch ratio := analysis.TimesOf(e.Ratio); {
		case d.Lo != nil && !d.Resolved:
			text += ", a difference from " + p.Summary.Baseline + " that is not resolved"
		case ratio != "":
			text += ", " + ratio
		}
	}
	var made []string
	for _, m := range []struct{ metric, what string }{
		{"records_per_flush", "records"}, {"map_updates_per_flush", "map updates"}, {"map_deletes_per_flush", "deletes"},
		{"syscalls_per_flush", "system calls"},
		{"grace_periods_per_flush", "grace periods"},
	} {
		if v := p.Of(m.metric, arm); v != nil && v.Value >= 0.05 {
			made = append(made, quantity.Value(v.Value, quantity.Count)+" "+m.what)
		}
	}
	if v := p.Of("bytes_per_flush", arm); v != nil {
		made = append(made, quantity.Value(v.Value, quantity.Bytes))
	}
	if gp := p.Summary.Find("grace_periods_per_flush", arm, p.At); gp != nil && gp.Value >= 1 {
		made = append(made, quantity.Rough(e.Value/gp.Value, quantity.Seconds)+" for each grace period")
	}
	if len(made) > 0 {
		text += " (" + strings.Join(made, ", ") + ")"
	}
	return text
}

// span holds the minimum and the maximum, over levels, of a ratio to the baseline.
type span struct {
	lo, hi   float64
	n        int
	resolved int
}

func (v *span) add(e *analysis.Estimate) {
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
		return analysis.TimesOf(&analysis.Interval{Value: v.hi})
	case v.lo >= 1:
		return analysis.Times(v.lo) + " to " + analysis.Times(v.hi) + " times as long"
	case v.hi < 1:
		return analysis.Times(1/v.hi) + " to " + analysis.Times(1/v.lo) + " times faster"
	}
	return fmt.Sprintf("%.2g to %.2g times as long", v.lo, v.hi)
}

// flushVerdict returns the answer over all levels.
func flushVerdict(s *analysis.Summary, t *analysis.Table) analysis.Answer {
	p := &prose{analysis.Prose{Summary: s}}
	fastest, counted := map[string]int{}, 0
	for _, at := range t.Levels {
		var all []*analysis.Estimate
		for _, arm := range t.Arms {
			if e := s.Find("flush_seconds", arm, at); arm != record.AA && e != nil {
				all = append(all, e)
			}
		}
		if len(all) < 2 {
			continue
		}
		counted++
		slices.SortFunc(all, func(a, b *analysis.Estimate) int { return cmp.Compare(a.Value, b.Value) })
		first := all[0]
		if !slices.ContainsFunc(all[1:], func(e *analysis.Estimate) bool {
			return first.Hi == nil || e.Lo == nil || *first.Hi >= *e.Lo
		}) {
			fastest[first.Arm]++
		}
	}
	for _, arm := range t.Arms {
		if n := fastest[arm]; n > 0 && n == counted {
			p.Add("%s has the shortest flushes%s.", s.ArmName(arm), map[bool]string{true: " at every level"}[counted > 1])
		} else if n > 0 {
			p.Add("%s has the shortest flushes at %d of %d levels.", s.ArmName(arm), n, counted)
		}
	}
	if len(fastest) == 0 && counted > 0 {
		p.Add("No store clearly has the shortest flushes: the intervals of the fastest overlap.")
	}
	var open []string
	for _, arm := range t.Subjects() {
		var v span
		for _, at := range t.Levels {
			p.At = at
			v.add(p.Of("flush_seconds", arm))
		}
		switch {
		case v.n == 0:
		case v.resolved == 0:
			open = append(open, arm)
		default:
			text := v.String()
			if v.lo >= 1 {
				text = strings.Replace(text, "times as long", "times slower", 1)
			}
			if v.resolved < v.n {
				text += fmt.Sprintf(" (resolved at %d of %d levels)", v.resolved, v.n)
			}
			p.Add("Against %s, %s is %s.", s.Baseline, arm, text)
		}
	}
	switch len(open) {
	case 0:
	case 1:
		p.Add("The difference between %s and %s is not resolved at any level.", open[0], s.Baseline)
	default:
		p.Add("The differences of %s from %s are not resolved at any level.", analysis.Join(open), s.Baseline)
	}
	return p.Answer()
}

// scaleAnswers returns an answer for each store: the time of a lookup at the first and the last level, compared with
// the baseline, and memory and start-up at the last level.
func scaleAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	if s.Baseline == "" || len(t.Levels) == 0 {
		return nil
	}
	var all []analysis.Answer
	for _, arm := range t.BaselineAndSubjects() {
		p := &prose{analysis.Prose{Summary: s, Arm: arm}}
		if p.lookups(t); p.Empty() {
			continue
		}
		p.At = t.Levels[len(t.Levels)-1]
		p.holds()
		all = append(all, p.Answer())
	}
	return all
}

// lookups describes lookups at the first and the last level, and whether they are slower than the baseline's at any
// level.
func (p *prose) lookups(t *analysis.Table) {
	name := p.Summary.ArmName(p.Arm)
	ends, verdict := p.Against(t, "lookup_seconds")
	if len(ends) == 0 {
		return
	}
	p.Add("%s: a lookup takes %s%s.", name, analysis.Join(ends), verdict)
	if e := p.Find("lookup_first_seconds"); e != nil {
		p.Add("The first lookup of another service, with cold caches, takes %s%s.", analysis.Said(e), p.Here())
	}
}

// holds describes memory and start-up at the last level, and how much memory each service adds.
func (p *prose) holds() {
	text := strings.TrimSpace(p.Here() + " its maps have " + p.Say("map_bytes"))
	for _, m := range p.Summary.Models {
		if m.Metric == "map_bytes" && m.Arm == p.Arm && m.Linear && m.Withheld == "" && len(m.Terms) == 2 &&
			m.Terms[1].Value >= 1 {
			text += fmt.Sprintf(" (%s and %s for each service)", m.Terms[0].In(quantity.Bytes), m.Terms[1].In(quantity.Bytes))
		}
	}
	if e := p.Find("memory_hard_bytes"); e != nil {
		text += fmt.Sprintf("; its group has %s of hard memory in all, including the process", analysis.Said(e))
	}
	p.Add("%s.", analysis.Capital(text))
	if open, fill := p.Find("store_open_seconds"), p.Find("store_fill_seconds"); open != nil && fill != nil {
		p.Add("It opens in %s and takes these services in %s.", analysis.Said(open), analysis.Said(fill))
	}
}
