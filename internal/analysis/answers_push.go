package analysis

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
)

// pushAnswers say for each arm and level how long a change takes until connections show it, and where that time goes.
func pushAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, at := range t.levels {
		for _, arm := range append([]string{record.Direct}, t.subjects()...) {
			w := &words{s: s, arm: arm, at: at}
			if w.pushed(t); len(w.text) > 0 {
				all = append(all, w.answer())
			}
		}
	}
	return all
}

// changed words what changes at a level: "one of 1000 services" or "all 1000 services at once".
func changed(at map[string]string) string {
	var services, what string
	for name, value := range at {
		switch {
		case strings.HasSuffix(name, "services"):
			services = value
		case strings.HasSuffix(name, "what"):
			what = value
		default:
			return Level(at)
		}
	}
	switch {
	case services == "" || what == "":
		return Level(at)
	case services == "1":
		return "the only service"
	case what == "all":
		return "all " + services + " services at once"
	}
	return "one of " + services + " services"
}

// taken words a time of changes: its median and 99th percentile, as far as the trials have enough changes for them; else their mean.
func (w *words) taken(metric string) string {
	mid, high := w.find(metric+"_p50_seconds", w.arm), w.find(metric+"_p99_seconds", w.arm)
	mean := w.s.Find(metric+"_seconds", w.arm, w.at)
	switch {
	case mid != nil && high != nil:
		return fmt.Sprintf("%s (p99 %s)", said(mid), said(high))
	case mid != nil:
		return said(mid)
	case mean != nil:
		w.find(metric+"_seconds", w.arm) // as evidence
		return said(mean) + " in the mean"
	}
	return ""
}

func (w *words) pushed(t *table) {
	usable := w.taken("push_usable")
	if usable == "" {
		return
	}
	change := "A change"
	if of := changed(w.at); of != "" {
		change += " of " + of
	}
	text := fmt.Sprintf("%s, %s: a new connection shows it %s after the control plane sent it", change, w.s.ArmName(w.arm), usable)
	if longest := t.column(w.at, w.arm, "push_usable_max_seconds"); len(longest) > 0 {
		text += ", " + quantity.Value(slices.Max(longest), quantity.Seconds) + " at the longest"
	}
	if e := w.find("push_usable_seconds", w.arm); e != nil && w.arm != record.Direct {
		switch d := e.Difference; {
		case d == nil || d.Lo == nil:
		case !d.Resolved:
			text += "; that is not resolved from " + w.s.Baseline
		default:
			text += fmt.Sprintf("; in the mean %s", strings.Replace(timesOf(e.Ratio), "times as long", "times as long as "+w.s.Baseline, 1))
			if e.Ratio != nil && e.Ratio.Value < 1 {
				text += " than " + w.s.Baseline
			}
		}
	}
	w.add("%s.", text)
	var steps []string
	for _, step := range []struct{ metric, what string }{{"push_received", "is received after"}, {"push_visible", "in the maps after"}, {"push_acked", "acknowledged after"}} {
		if v := w.taken(step.metric); v != "" {
			steps = append(steps, step.what+" "+v)
		}
	}
	if len(steps) > 0 {
		w.add("It %s.", strings.Join(steps, ", "))
	}
	if sent := w.taken("push_sent"); sent != "" {
		w.add("To make and encode it takes the control plane %s before that.", sent)
	}
	if r := w.find("push_refused_ratio", w.arm); r != nil && r.Value > 0 {
		w.add("%s of the connections tried meanwhile are refused.", said(r))
	}
	if r := w.find("push_wrong_ratio", w.arm); r != nil && r.Value > 0 {
		w.add("%s get what is no endpoint of the service.", said(r))
	}
}
