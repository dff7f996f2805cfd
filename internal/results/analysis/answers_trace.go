package analysis

import (
	"fmt"
	"strings"

	"tare/internal/experiment/record"
)

// traceAnswers say first which tracers delivered every event at every level, and then of each what it lost, from when
// on, what it cost and what it took from the work.
func traceAnswers(s *Summary, t *table) []Answer {
	verdict := &prose{s: s}
	var whole, lossy, inventive, each = []string{}, []string{}, []string{}, []Answer{}
	for _, arm := range append([]string{record.Direct}, t.subjects()...) { // the baseline may be a tracer, too
		p := &prose{s: s, arm: arm}
		l := p.losses(t)
		if l.trials == 0 {
			continue
		}
		switch name := s.armName(arm); {
		case l.lost > 0:
			of := fmt.Sprintf("%s of %s events (%s)", count(l.lost), count(l.made), part(l.lost, l.made))
			lossy = append(lossy, name+" lost "+of)
		case l.extra > 0:
			inventive = append(inventive, name)
		default:
			whole = append(whole, name)
		}
		p.tracer(t, l)
		p.byNodes(t)
		verdict.rest("events_lost", arm)
		each = append(each, p.answer())
	}
	if len(each) == 0 {
		return nil
	}
	if len(lossy) > 0 {
		verdict.add("%s.", join(lossy))
	}
	if len(whole) > 0 {
		verdict.add("%s delivered every event.", join(whole))
	}
	if len(inventive) > 0 {
		verdict.add("%s delivered every event, and some that never happened.", join(inventive))
	}
	return append([]Answer{verdict.answer()}, each...)
}

// loss is what a tracer did not deliver, over all its trials at one level or at all.
type loss struct {
	trials, lossy             int // and how many of them lost any
	made, lost, extra, unsaid float64
	late                      float64
	tells                     bool // it says what it lost
}

// lossAt sums up one level.
func (p *prose) lossAt(t *table, at factors) (l loss) {
	sum := func(metric string) (total float64, n int) {
		for _, x := range t.column(at, p.arm, metric) {
			total += x
			n++
		}
		return total, n
	}
	for _, x := range t.column(at, p.arm, "events_lost") {
		l.trials++
		l.lost += x
		if x > 0 {
			l.lossy++
		}
	}
	l.made, _ = sum("events_generated")
	l.extra, _ = sum("events_extra")
	l.late, _ = sum("events_late")
	unsaid, n := sum("events_unsaid")
	l.unsaid, l.tells = unsaid, n > 0
	return l
}

// losses sums up all levels.
func (p *prose) losses(t *table) (all loss) {
	for _, at := range t.levels {
		l := p.lossAt(t, at)
		all.trials, all.lossy = all.trials+l.trials, all.lossy+l.lossy
		all.made, all.lost, all.extra = all.made+l.made, all.lost+l.lost, all.extra+l.extra
		all.unsaid, all.late = all.unsaid+l.unsaid, all.late+l.late
		all.tells = all.tells || l.tells
	}
	return all
}

// tracer words one arm.
func (p *prose) tracer(t *table, all loss) {
	switch {
	case all.lost == 0:
		// Trials, not events, are independent of each other: the rule of three (Hanley and Lippman-Hand, JAMA 1983) is
		// over them.
		bound := "that is too few trials to rule out losses"
		if all.trials > 3 {
			bound = fmt.Sprintf("so fewer than 3 in %d such trials lose any, at 95 %%", all.trials)
		}
		p.add("%s: of %s events in %s none was lost; %s.", p.s.ArmName(p.arm), count(all.made), counted(all.trials, "trial"),
			bound)
	default:
		p.add("%s: of %s events in %s %s were lost (%s), in %d of the trials.",
			p.s.ArmName(p.arm), count(all.made), counted(all.trials, "trial"), count(all.lost), part(all.lost, all.made), all.lossy)
		p.lossyAt(t)
	}
	switch {
	case all.lost == 0 && all.unsaid == 0:
	case !all.tells:
		p.add("It says nothing of what it loses.")
	case all.unsaid == 0:
		p.add("It says so itself, to the event.")
	default:
		p.add("What it says of its own losses is wrong by %s events in all.", count(all.unsaid))
	}
	if all.extra > 0 {
		p.add("It delivered %s events that never happened.", count(all.extra))
	}
	if all.late > 0 {
		p.add("%s came late (%s), when the load had ended.", count(all.late), part(all.late, all.made))
	}
	p.traceCost(t)
}

// lossyAt names the levels at which events were lost, with how much.
func (p *prose) lossyAt(t *table) {
	if len(t.levels) < 2 {
		return
	}
	var clean []factors
	var lossy []string
	for _, at := range t.levels {
		l := p.lossAt(t, at)
		switch {
		case l.trials == 0:
		case l.lost == 0:
			clean = append(clean, at)
		default:
			lossy = append(lossy, part(l.lost, l.made)+" "+p.s.At(at))
		}
	}
	text := "That is " + strings.Join(lossy, ", ")
	if len(clean) > 0 {
		text += "; none " + p.s.atAll(clean)
	}
	p.add("%s.", text)
}

// traceCost words what a tracer takes per 1,000 events, at each level or at the ends of many, what it takes from the
// work at the last, and its memory.
func (p *prose) traceCost(t *table) {
	ends := t.levels
	if len(ends) > 2 {
		ends = []factors{t.levels[0], t.levels[len(t.levels)-1]}
	}
	var costs []string
	for _, at := range ends {
		p.at = at
		if e := p.find("cpu_seconds_per_kiloevent"); e != nil {
			text := said(e)
			agent, bpf := p.find("agent_cpu_seconds_per_kiloevent"), p.find("bpf_seconds_per_kiloevent")
			if agent != nil && bpf != nil {
				text += fmt.Sprintf(" (%s in its processes, %s in its programs)", said(agent), said(bpf))
			}
			costs = append(costs, text+p.here())
		}
	}
	if len(costs) > 0 {
		p.add("The CPU time of 1,000 events is %s.", join(costs))
	}
	if e := p.find("throughput_per_second"); e != nil && e.Difference != nil && e.Ratio != nil {
		base, at := p.of("throughput_per_second", record.Direct), p.here()
		if at != "" {
			at += ","
		}
		made := strings.TrimSpace(at + " the load made")
		switch {
		case base == nil:
		case e.Difference.Resolved && e.Ratio.Lo != nil:
			p.add("%s %s events/s with it and %s without: %s.", Capital(made), digits(e), digits(base), changeOf(e.Ratio))
		default:
			p.add("%s %s events/s with it and %s without; the difference is not resolved.", Capital(made), digits(e), digits(base))
		}
	}
	if e := p.find("rss_bytes"); e != nil {
		text := fmt.Sprintf("Its processes hold %s of resident memory", said(e))
		if peak := p.find("rss_peak_bytes"); peak != nil {
			text += fmt.Sprintf(", %s at their peak", said(peak))
		}
		if hard := p.find("memory_hard_bytes"); hard != nil {
			text += fmt.Sprintf("; its group holds %s of hard memory", said(hard))
		}
		p.add("%s.", text)
	}
}

// byNodes says of a run on many nodes whether the costs of each depend on how many there are, and which nodes failed.
func (p *prose) byNodes(t *table) {
	const factor = "nodes"
	failed, trials := 0.0, 0
	for _, at := range t.levels {
		if _, many := at[factor]; !many {
			return
		}
		for _, x := range t.column(at, p.arm, "nodes_failed") {
			failed += x
			trials++
		}
	}
	for _, m := range []struct{ metric, what string }{
		{"cpu_seconds_per_kiloevent", "CPU time per 1,000 events"},
		{"agent_cpu_seconds_per_kiloevent", "part of its processes in that"},
		{"bpf_seconds_per_kiloevent", "part of its programs, which on one machine run for the events of all its nodes,"},
		{"memory_hard_bytes", "hard memory of a node's tracer"},
	} {
		slope, model := p.slope(m.metric, factor)
		if model == nil || slope.Lo == nil || slope.Hi == nil {
			continue
		}
		per, of := written(slope.Value, slope.Lo, slope.Hi, model.Terms[0].Unit), model.ValidRange[factor]
		way := "grows"
		if slope.Value < 0 {
			way = "falls"
		}
		values := ""
		if !model.Linear {
			values = ": it is " + p.overLevels(t, m.metric)
		}
		switch flat := *slope.Lo <= 0 && *slope.Hi >= 0; {
		case flat && model.Linear:
			p.add("The %s does not depend on the number of nodes as far as this run can see: "+
				"%s for each node more, from %g to %g.", m.what, per, of[0], of[1])
		case flat:
			p.add("The %s is not the same for all numbers of nodes, though it neither grows nor falls with them on the whole "+
				"(%s for each node more, from %g to %g)%s.", m.what, per, of[0], of[1], values)
		case model.Linear:
			p.add("The %s %s with the number of nodes: by %s for each, from %g to %g.", m.what, way, per, of[0], of[1])
		default:
			p.add("The %s %s with the number of nodes: by %s for each, from %g to %g, but not on a line%s.",
				m.what, way, per, of[0], of[1], values)
		}
	}
	if failed > 0 {
		p.add("%s failed in %d trials, which are named in the record.", counted(int(failed), "node"), trials)
	}
}

// overLevels are the values of a metric at every level.
func (p *prose) overLevels(t *table, metric string) string {
	at := p.at
	defer func() { p.at = at }()
	var values []string
	for _, p.at = range t.levels {
		if e := p.find(metric); e != nil {
			values = append(values, said(e)+p.here())
		}
	}
	return join(values)
}

// slope is how much a metric grows with a factor, by the model of the arm; without a model there is none.
func (p *prose) slope(metric, factor string) (Term, *Model) {
	for i, m := range p.s.Models {
		if m.Metric != metric || m.Arm != p.arm {
			continue
		}
		for _, term := range m.Terms {
			if term.Name == factor {
				p.rest(metric, p.arm)
				return term, &p.s.Models[i]
			}
		}
	}
	return Term{}, nil
}
