package analysis

import "fmt"

// pathAnswers returns answers for runs with a subject as the baseline and with loads that only make connections. They
// give the time that each subject's eBPF programs take for a connection, at the first and at the last level.
func pathAnswers(s *Summary, t *Table) []Answer {
	if s.Baseline == "" || !t.Has("connect_p50_seconds") || t.Has("latency_p50_seconds") {
		return nil
	}
	var all []Answer
	for _, arm := range t.BaselineAndSubjects() {
		p := &Prose{Summary: s, Arm: arm}
		if p.path(t); len(p.text) > 0 {
			all = append(all, p.Answer())
		}
	}
	return all
}

// path adds a sentence on the programs' time at the first and the last level, and on the number of levels at which it
// differs from the baseline's.
func (p *Prose) path(t *Table) {
	ends, verdict := p.Against(t, "bpf_seconds_per_connection")
	if len(ends) == 0 {
		return
	}
	text := fmt.Sprintf("%s: a connection takes %s in the programs", p.Summary.ArmName(p.Arm), Join(ends))
	p.Add("%s%s.", text, verdict)
	if e := p.Find("connect_p50_seconds"); e != nil {
		p.Add("The whole of connect() takes %s in the median%s.", Said(e), p.Here())
	}
}
