package connect

import (
	"fmt"
	"strings"

	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	analysis.Register(analysis.Family{Metrics: []string{"wrong_connect_share"}, Answer: consistencyAnswers})
}

// prose writes this package's answers.
type prose struct{ analysis.Prose }

// consistencyAnswers returns, for each level, an answer that says which arms lost or misdirected connections, and then
// an answer for each arm: how many of its connections went wrong, and for how long they still reached old endpoints.
func consistencyAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	var all []analysis.Answer
	for _, at := range t.Levels {
		verdict := &prose{analysis.Prose{Summary: s, At: at}}
		var clean, misled, lost []string
		var each []analysis.Answer
		for _, arm := range t.BaselineAndSubjects() {
			p := &prose{analysis.Prose{Summary: s, Arm: arm, At: at}}
			wrong, failed := verdict.Of("wrong_connect_share", arm), verdict.Of("failed_connect_share", arm)
			if wrong == nil || failed == nil {
				continue
			}
			name := s.PlainName(arm)
			switch {
			case wrong.Value > 0:
				misled = append(misled, name)
			case failed.Value > 0:
				lost = append(lost, name)
			default:
				clean = append(clean, name)
			}
			p.consistency(t)
			each = append(each, p.Answer())
		}
		if len(each) == 0 {
			continue
		}
		if len(t.Levels) > 1 {
			verdict.Add("%s:", analysis.Capital(s.At(at)))
		}
		if len(clean) > 0 {
			verdict.Add("With %s every connection went to an endpoint of the old or the new set, and none failed.",
				analysis.Join(clean))
		}
		if len(lost) > 0 {
			verdict.Add("With %s no connection went to a wrong endpoint, but some failed.", analysis.Join(lost))
		}
		if len(misled) > 0 {
			verdict.Add("With %s some went to an address in neither set.", analysis.Join(misled))
		}
		all = append(append(all, verdict.Answer()), each...)
	}
	return all
}

// consistency describes what one arm did to connections.
func (p *prose) consistency(t *analysis.Table) {
	wrong := p.Find("wrong_connect_share")
	name := p.Summary.ArmName(p.Arm)
	if trait := t.Traits[p.Arm]; trait != "" {
		name += " (" + trait + ")"
	}
	text := fmt.Sprintf("%s: of %s connections %s went to an address in neither the old nor the new set", name,
		quantity.Thousands(wrong.N), analysis.Pooled(wrong))
	if kinds := p.wrongKinds(); kinds != "" {
		text += ": " + kinds
	}
	for _, m := range []struct{ metric, what string }{
		{"failed_connect_share", "failed"},
		{"backward_connect_share", "went to an old endpoint after an earlier one had gone to a new one"},
	} {
		if e := p.Find(m.metric); e != nil {
			text += fmt.Sprintf("; %s %s", analysis.Pooled(e), m.what)
		}
	}
	p.Add("%s.", text)
	if e := p.Find("old_endpoint_max_seconds"); e != nil {
		text := fmt.Sprintf("Old endpoints were seen for at most %s after a change began", analysis.Said(e))
		if p50 := p.Find("old_endpoint_p50_seconds"); p50 != nil {
			text += fmt.Sprintf("; over the changes in which they were seen, the median is %s", analysis.Said(p50))
		}
		p.Add("%s.", text)
	}
	if e, each := p.Find("replacements_per_second"), p.Find("replacement_seconds"); e != nil && each != nil {
		p.Add("It made %s changes a second, each in %s, beside %s connections a second.",
			analysis.Digits(e), analysis.Said(each), analysis.Digits(p.Find("throughput_per_second")))
	}
}

// wrongKinds describes the kinds of wrong connections; empty if there are none.
func (p *prose) wrongKinds() string {
	var kinds []string
	for _, m := range []struct{ metric, what string }{
		{"stale_connect_share", "to endpoints of older sets"}, {"torn_connect_share", "to endpoints of no set, parts of two"},
		{"missed_connect_share", "past the mesh, to the service's own address"},
	} {
		if e := p.Find(m.metric); e != nil && e.Value > 0 {
			kinds = append(kinds, quantity.Thousands(e.Happened())+" "+m.what)
		}
	}
	return strings.Join(kinds, ", ")
}
