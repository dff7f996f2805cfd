package analysis

import (
	"fmt"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// consistencyAnswers say first which stores lost or misled no connection, and then of each how many connections came
// where, and for how long old endpoints were seen.
func consistencyAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, at := range t.levels {
		verdict := &prose{s: s, at: at}
		var clean, misled, lost []string
		var each []Answer
		for _, arm := range append([]string{record.Direct}, t.subjects()...) {
			p := &prose{s: s, arm: arm, at: at}
			wrong, failed := verdict.of("wrong_connect_share", arm), verdict.of("failed_connect_share", arm)
			if wrong == nil || failed == nil {
				continue
			}
			name := s.armName(arm)
			switch {
			case wrong.Value > 0:
				misled = append(misled, name)
			case failed.Value > 0:
				lost = append(lost, name)
			default:
				clean = append(clean, name)
			}
			p.consistency(t)
			each = append(each, p.answer())
		}
		if len(each) == 0 {
			continue
		}
		if len(t.levels) > 1 {
			verdict.add("%s:", Capital(s.At(at)))
		}
		if len(clean) > 0 {
			verdict.add("With %s every connection went to an endpoint of the old or the new set, and none failed.", join(clean))
		}
		if len(lost) > 0 {
			verdict.add("With %s no connection went to a wrong endpoint, but some failed.", join(lost))
		}
		if len(misled) > 0 {
			verdict.add("With %s some went to an address in neither set.", join(misled))
		}
		all = append(append(all, verdict.answer()), each...)
	}
	return all
}

// armName is the name of an arm's design, without "(baseline)".
func (s *Summary) armName(arm string) string {
	if arm == record.Direct && s.Baseline != "" {
		return s.Baseline
	}
	return arm
}

// consistency words what one arm did to connections.
func (p *prose) consistency(t *table) {
	wrong := p.find("wrong_connect_share")
	name := p.s.ArmName(p.arm)
	if trait := t.traits[p.arm]; trait != "" {
		name += " (" + trait + ")"
	}
	text := fmt.Sprintf("%s: of %s connections %s went to an address in neither the old nor the new set", name,
		quantity.Thousands(wrong.N), pooled(wrong))
	if kinds := p.wrongKinds(); kinds != "" {
		text += ": " + kinds
	}
	for _, m := range []struct{ metric, what string }{
		{"failed_connect_share", "failed"},
		{"backward_connect_share", "went to an old endpoint after an earlier one had gone to a new one"},
	} {
		if e := p.find(m.metric); e != nil {
			text += fmt.Sprintf("; %s %s", pooled(e), m.what)
		}
	}
	p.add("%s.", text)
	if e := p.find("old_endpoint_max_seconds"); e != nil {
		text := fmt.Sprintf("Old endpoints were seen for at most %s after a change began", said(e))
		if p50 := p.find("old_endpoint_p50_seconds"); p50 != nil {
			text += fmt.Sprintf("; over the changes in which they were seen, the median is %s", said(p50))
		}
		p.add("%s.", text)
	}
	if e, each := p.find("replacements_per_second"), p.find("replacement_seconds"); e != nil && each != nil {
		p.add("It made %s changes a second, each in %s, beside %s connections a second.",
			digits(e), said(each), digits(p.find("throughput_per_second")))
	}
}

// wrongKinds is what wrong connections came to, where there are any.
func (p *prose) wrongKinds() string {
	var kinds []string
	for _, m := range []struct{ metric, what string }{
		{"stale_connect_share", "to endpoints of older sets"}, {"torn_connect_share", "to endpoints of no set, parts of two"},
		{"missed_connect_share", "past the mesh, to the service's own address"},
	} {
		if e := p.find(m.metric); e != nil && e.Value > 0 {
			kinds = append(kinds, quantity.Thousands(happened(e))+" "+m.what)
		}
	}
	return strings.Join(kinds, ", ")
}

// pathAnswers say for each store what its programs take of a connection at the ends of the scale, beside the baseline.
func pathAnswers(s *Summary, t *table) []Answer {
	var all []Answer
	for _, arm := range append([]string{record.Direct}, t.subjects()...) {
		p := &prose{s: s, arm: arm}
		if p.path(t); len(p.text) > 0 {
			all = append(all, p.answer())
		}
	}
	return all
}

// path words the time of the programs at the first and the last level, and at how many levels it is above the
// baseline's.
func (p *prose) path(t *table) {
	ends, verdict := p.against(t, "bpf_seconds_per_connection")
	if len(ends) == 0 {
		return
	}
	text := fmt.Sprintf("%s: a connection takes %s in the programs", p.s.ArmName(p.arm), join(ends))
	p.add("%s%s.", text, verdict)
	if e := p.find("connect_p50_seconds"); e != nil {
		p.add("The whole of connect() takes %s in the median%s.", said(e), p.here())
	}
}
