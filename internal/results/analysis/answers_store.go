package analysis

import (
	"fmt"
	"math"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// flushAnswers say first which store is fastest and how the others stand to the baseline over all levels, and then each
// level by itself.
func flushAnswers(s *Summary, t *table) []Answer {
	if s.Baseline == "" {
		return nil
	}
	var all []Answer
	for _, at := range t.levels {
		p := &prose{s: s, at: at}
		if p.of("flush_seconds", record.Direct) == nil {
			continue
		}
		p.add("%s%s.", p.where(), p.flush(record.Direct))
		for _, arm := range t.subjects() {
			if p.of("flush_seconds", arm) != nil {
				p.add("%s.", p.flush(arm))
			}
		}
		all = append(all, p.answer())
	}
	if len(all) == 0 {
		return nil
	}
	return append([]Answer{s.flushVerdict(t)}, all...)
}

// flush words what one arm takes at a level, and what that is made of.
func (p *prose) flush(arm string) string {
	e := p.of("flush_seconds", arm)
	text := fmt.Sprintf("%s takes %s for a flush", p.s.ArmName(arm), said(e))
	if d := e.Difference; arm != record.Direct && d != nil {
		switch ratio := timesOf(e.Ratio); {
		case d.Lo != nil && !d.Resolved:
			text += ", a difference from " + p.s.Baseline + " that is not resolved"
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
		if v := p.of(m.metric, arm); v != nil && v.Value >= 0.05 {
			made = append(made, fmt.Sprintf("%.3g %s", v.Value, m.what))
		}
	}
	if v := p.of("bytes_per_flush", arm); v != nil {
		made = append(made, quantity.Value(v.Value, quantity.Bytes))
	}
	if gp := p.s.Find("grace_periods_per_flush", arm, p.at); gp != nil && gp.Value >= 1 {
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
	p := &prose{s: s}
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
			p.add("%s has the shortest flushes%s.", s.ArmName(arm), map[bool]string{true: " at every level"}[counted > 1])
		} else if n > 0 {
			p.add("%s has the shortest flushes at %d of %d levels.", s.ArmName(arm), n, counted)
		}
	}
	var open []string
	for _, arm := range t.subjects() {
		var v span
		for _, at := range t.levels {
			p.at = at
			v.add(p.of("flush_seconds", arm))
		}
		switch {
		case v.n == 0:
		case v.resolved == 0:
			open = append(open, arm)
		default:
			text := strings.Replace(v.String(), "times as long", "times slower", 1)
			if v.resolved < v.n {
				text += fmt.Sprintf(" (resolved at %d of %d levels)", v.resolved, v.n)
			}
			p.add("Against %s, %s is %s.", s.Baseline, arm, text)
		}
	}
	switch len(open) {
	case 0:
	case 1:
		p.add("The difference between %s and %s is not resolved at any level.", open[0], s.Baseline)
	default:
		p.add("The differences of %s from %s are not resolved at any level.", join(open), s.Baseline)
	}
	return p.answer()
}

// scaleAnswers say for each store what a lookup, memory and start-up are at the ends of the scale, beside the baseline.
func scaleAnswers(s *Summary, t *table) []Answer {
	if s.Baseline == "" || len(t.levels) == 0 {
		return nil
	}
	var all []Answer
	for _, arm := range append([]string{record.Direct}, t.subjects()...) {
		p := &prose{s: s, arm: arm}
		if p.lookups(t); len(p.text) == 0 {
			continue
		}
		p.at = t.levels[len(t.levels)-1]
		p.holds(t)
		all = append(all, p.answer())
	}
	return all
}

// lookups: at the first and the last level, and whether they are above the baseline's anywhere.
func (p *prose) lookups(t *table) {
	name := p.s.ArmName(p.arm)
	ends, verdict := p.against(t, "lookup_seconds")
	if len(ends) == 0 {
		return
	}
	p.add("%s: a lookup takes %s%s.", name, join(ends), verdict)
	if e := p.find("lookup_first_seconds"); e != nil {
		p.add("The first lookup of another service, with cold caches, takes %s%s.", said(e), p.here())
	}
}

// holds: memory and start-up at the last level, and what a service adds.
func (p *prose) holds(t *table) {
	text := strings.TrimSpace(p.here() + " its maps have " + p.say("map_bytes"))
	for _, m := range p.s.Models {
		if m.Metric == "map_bytes" && m.Arm == p.arm && len(m.Terms) == 2 && m.Terms[1].Value >= 1 {
			text += fmt.Sprintf(" (%s and %s for each service)", term(m.Terms[0], quantity.Bytes), term(m.Terms[1], quantity.Bytes))
		}
	}
	if e := p.find("memory_hard_bytes"); e != nil {
		text += fmt.Sprintf("; its group has %s of hard memory in all, including the process", said(e))
	}
	p.add("%s.", Capital(text))
	if open, fill := p.find("store_open_seconds"), p.find("store_fill_seconds"); open != nil && fill != nil {
		p.add("It opens in %s and takes these services in %s.", said(open), said(fill))
	}
}

// against gives a metric of the arm at the first and the last level in words, and a verdict over all levels: at how
// many of them it is, resolved, more or less than the baseline's. It leaves the answer at the last level.
func (p *prose) against(t *table, metric string) (ends []string, verdict string) {
	above, below, n := 0, 0, 0
	for i, at := range t.levels {
		p.at = at
		e := p.find(metric)
		if e == nil {
			continue
		}
		if i == 0 || i == len(t.levels)-1 {
			ends = append(ends, said(e)+p.here())
		}
		if d := e.Difference; p.arm != record.Direct && d != nil {
			n++
			switch {
			case d.Resolved && d.Value > 0:
				above++
			case d.Resolved:
				below++
			}
		}
	}
	if n > 0 {
		verdict = verdictOf(p.s.Baseline, above, below, n)
	}
	return ends, verdict
}

// verdictOf words a comparison with the baseline at n levels, to go on a sentence: at how many it is resolved as more
// and as less.
func verdictOf(base string, above, below, n int) string {
	var sides []string
	for _, side := range []struct {
		word string
		at   int
	}{{"more", above}, {"less", below}} {
		switch {
		case side.at == n:
			return ", " + side.word + " than with " + base + map[bool]string{true: " at every level"}[n > 1]
		case side.at > 0:
			sides = append(sides, fmt.Sprintf("%s than with %s at %d of %d levels", side.word, base, side.at, n))
		}
	}
	rest := n - above - below
	switch {
	case rest == n:
		return "; the difference from " + base + " is not resolved" + map[bool]string{true: " at any level"}[n > 1]
	case rest > 0:
		sides = append(sides, fmt.Sprintf("not resolved at %d", rest))
	}
	return ", " + join(sides)
}
