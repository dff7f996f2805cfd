package push

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	analysis.Register(analysis.Family{
		Metrics: []string{"push_usable_seconds", "push_usable_p50_seconds", "push_seconds"}, Answer: pushAnswers,
	})
}

// prose writes this package's answers.
type prose struct{ analysis.Prose }

// pushAnswers returns, for each arm and level, how long a change takes until connections show it, and where that time
// goes.
func pushAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	var all []analysis.Answer
	for _, at := range t.Levels {
		for _, arm := range t.BaselineAndSubjects() {
			p := &prose{analysis.Prose{Summary: s, Arm: arm, At: at}}
			if p.pushed(t); !p.Empty() {
				all = append(all, p.Answer())
			}
		}
	}
	return all
}

// taken formats the duration of changes by a metric: its median and 99th percentile if the trials have enough changes
// for them, and otherwise its mean.
func (p *prose) taken(metric string) string {
	mid, high := p.Find(metric+"_p50_seconds"), p.Find(metric+"_p99_seconds")
	mean := p.Summary.Find(metric+"_seconds", p.Arm, p.At)
	switch {
	case mid != nil && high != nil:
		return fmt.Sprintf("%s (p99 %s)", analysis.Said(mid), analysis.Said(high))
	case mid != nil:
		return analysis.Said(mid)
	case mean != nil:
		p.Find(metric + "_seconds") // as evidence
		return analysis.Said(mean) + " on average"
	}
	return ""
}

func (p *prose) pushed(t *analysis.Table) {
	whole, since := "push_usable", "the control plane sent it"
	usable := p.taken(whole)
	if usable == "" { // the control plane does not report when it sent the change
		whole, since = "push", "the control plane got it"
		usable = p.taken(whole)
	}
	if usable == "" {
		return
	}
	text := fmt.Sprintf("A change%s, %s: a new connection shows it %s after %s",
		p.Here(), p.Summary.ArmName(p.Arm), usable, since)
	if longest := t.Column(p.At, p.Arm, whole+"_max_seconds"); len(longest) > 0 {
		text += ", and " + quantity.Value(slices.Max(longest), quantity.Seconds) + " after at the latest"
	}
	if e := p.Find(whole + "_seconds"); e != nil && p.Arm != record.Direct {
		baseline := cmp.Or(p.Summary.Baseline, "the baseline")
		switch d := e.Difference; {
		case d == nil || d.Lo == nil:
		case !d.Resolved:
			text += "; the difference from " + baseline + " is not resolved"
		default:
			switch times := analysis.TimesOf(e.Ratio); {
			case strings.HasSuffix(times, "as long"):
				text += "; on average " + times + " as " + baseline
			case times != "":
				text += "; on average " + times + " than " + baseline
			}
		}
	}
	p.Add("%s.", text)
	var steps []string
	for _, step := range []struct{ metric, what string }{
		{"push_received", "is received after"}, {"push_visible", "in the maps after"}, {"push_acked", "acknowledged after"},
	} {
		if v := p.taken(step.metric); v != "" {
			steps = append(steps, step.what+" "+v)
		}
	}
	if len(steps) > 0 {
		p.Add("It %s.", strings.Join(steps, ", "))
	}
	if sent := p.taken("push_sent"); sent != "" {
		p.Add("Before that, the control plane takes %s to make and encode it.", sent)
	}
	if r := p.Find("push_refused_ratio"); r != nil && r.Value > 0 {
		p.Add("%s of the connections tried meanwhile are refused.", analysis.Said(r))
	}
	if r := p.Find("push_wrong_ratio"); r != nil && r.Value > 0 {
		p.Add("%s reach no endpoint of the service.", analysis.Said(r))
	}
}
