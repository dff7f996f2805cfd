package analysis

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// pushAnswers say for each arm and level how long a change takes until connections show it, and where that time goes.
func pushAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, at := range t.levels {
		for _, arm := range append([]string{record.Direct}, t.subjects()...) {
			p := &prose{s: s, arm: arm, at: at}
			if p.pushed(t); len(p.text) > 0 {
				all = append(all, p.answer())
			}
		}
	}
	return all
}

// taken words a time of changes: its median and 99th percentile, as far as the trials have enough changes for them;
// else their mean.
func (p *prose) taken(metric string) string {
	mid, high := p.find(metric+"_p50_seconds"), p.find(metric+"_p99_seconds")
	mean := p.s.Find(metric+"_seconds", p.arm, p.at)
	switch {
	case mid != nil && high != nil:
		return fmt.Sprintf("%s (p99 %s)", said(mid), said(high))
	case mid != nil:
		return said(mid)
	case mean != nil:
		p.find(metric + "_seconds") // as evidence
		return said(mean) + " on average"
	}
	return ""
}

func (p *prose) pushed(t *table) {
	whole, since := "push_usable", "the control plane sent it"
	usable := p.taken(whole)
	if usable == "" { // a control plane that does not say when it sent it
		whole, since = "push", "the control plane was told"
		usable = p.taken(whole)
	}
	if usable == "" {
		return
	}
	text := fmt.Sprintf("A change%s, %s: a new connection shows it %s after %s",
		p.here(), p.s.ArmName(p.arm), usable, since)
	if longest := t.column(p.at, p.arm, whole+"_max_seconds"); len(longest) > 0 {
		text += ", and " + quantity.Value(slices.Max(longest), quantity.Seconds) + " after at the latest"
	}
	if e := p.find(whole + "_seconds"); e != nil && p.arm != record.Direct {
		switch d := e.Difference; {
		case d == nil || d.Lo == nil:
		case !d.Resolved:
			text += "; the difference from " + p.s.Baseline + " is not resolved"
		default:
			text += fmt.Sprintf("; on average %s", strings.Replace(timesOf(e.Ratio), "times as long", "times as long as "+p.s.Baseline, 1))
			if e.Ratio != nil && e.Ratio.Value < 1 {
				text += " than " + p.s.Baseline
			}
		}
	}
	p.add("%s.", text)
	var steps []string
	for _, step := range []struct{ metric, what string }{
		{"push_received", "is received after"}, {"push_visible", "in the maps after"}, {"push_acked", "acknowledged after"},
	} {
		if v := p.taken(step.metric); v != "" {
			steps = append(steps, step.what+" "+v)
		}
	}
	if len(steps) > 0 {
		p.add("It %s.", strings.Join(steps, ", "))
	}
	if sent := p.taken("push_sent"); sent != "" {
		p.add("Before that, the control plane takes %s to make and encode it.", sent)
	}
	if r := p.find("push_refused_ratio"); r != nil && r.Value > 0 {
		p.add("%s of the connections tried meanwhile are refused.", said(r))
	}
	if r := p.find("push_wrong_ratio"); r != nil && r.Value > 0 {
		p.add("%s reach no endpoint of the service.", said(r))
	}
}
