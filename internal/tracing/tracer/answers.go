package tracer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	analysis.Register(analysis.Family{Metrics: []string{"events_lost"}, Answer: traceAnswers})
}

// prose writes this package's answers.
type prose struct{ analysis.Prose }

// traceAnswers returns which tracers delivered every event at every level, and then an answer for each tracer: what it
// lost and from which level on, what it cost, and how much it slowed the load.
func traceAnswers(s *analysis.Summary, t *analysis.Table) []analysis.Answer {
	verdict := &prose{analysis.Prose{Summary: s}}
	var whole, lossy, inventive, each = []string{}, []string{}, []string{}, []analysis.Answer{}
	for _, arm := range t.BaselineAndSubjects() { // the baseline may be a tracer, too
		p := &prose{analysis.Prose{Summary: s, Arm: arm}}
		l := p.losses(t, t.Levels...)
		if l.trials == 0 {
			continue
		}
		switch name := s.PlainName(arm); {
		case l.lost > 0:
			of := fmt.Sprintf("%s of %s events (%s)", count(l.lost), count(l.expected), part(l.lost, l.expected))
			lossy = append(lossy, name+" lost "+of)
		case l.extra > 0:
			inventive = append(inventive, name)
		default:
			whole = append(whole, name)
		}
		p.tracer(t, l)
		p.byNodes(t)
		verdict.Rest("events_lost", arm)
		each = append(each, p.Answer())
	}
	if len(each) == 0 {
		return nil
	}
	if len(lossy) > 0 {
		verdict.Add("%s.", analysis.Join(lossy))
	}
	if len(whole) > 0 {
		verdict.Add("%s delivered every event.", analysis.Join(whole))
	}
	if len(inventive) > 0 {
		verdict.Add("%s delivered every event, and some that never happened.", analysis.Join(inventive))
	}
	return append([]analysis.Answer{verdict.Answer()}, each...)
}

// loss holds the numbers of lost, late and extra events of a tracer, summed over its trials at one level or at all
// levels.
type loss struct {
	trials, lossy             int     // number of trials, and of those that lost events
	expected                  float64 // events that it should have delivered
	made, late                float64 // events that the load made, and how many of these came late
	lost, extra, unsaid, said float64 // said: losses that the tracer reports; unsaid: by how much these reports are wrong
	tells                     int     // trials in which the tracer reports its losses
}

// losses adds up the losses at the given levels.
func (p *prose) losses(t *analysis.Table, levels ...map[string]string) (l loss) {
	column := func(metric string) (all []float64) {
		for _, at := range levels {
			all = append(all, t.Column(at, p.Arm, metric)...)
		}
		return all
	}
	sum := func(metric string) (total float64, n int) {
		all := column(metric)
		for _, x := range all {
			total += x
		}
		return total, len(all)
	}
	for _, x := range column("events_lost") {
		l.trials++
		l.lost += x
		if x > 0 {
			l.lossy++
		}
	}
	l.made, _ = sum("events_generated")
	l.expected = l.made // records of older versions lack the expected number
	if n, trials := sum(eventsExpected); trials > 0 {
		l.expected = n
	}
	l.extra, _ = sum("events_extra")
	l.late, _ = sum("events_late")
	l.unsaid, l.tells = sum("events_unsaid")
	l.said, _ = sum("events_said_lost")
	return l
}

// tracer writes the answer about one tracer.
func (p *prose) tracer(t *analysis.Table, all loss) {
	switch {
	case all.lost == 0:
		// The rule of three (Hanley and Lippman-Hand, JAMA 1983) is applied to trials, because trials are independent of each
		// other and events are not.
		bound := "that is too few trials to rule out losses"
		if all.trials > 3 {
			bound = fmt.Sprintf("so fewer than 3 in %d such trials lose any, at 95 %%", all.trials)
		}
		p.Add("%s: of %s events in %s none was lost; %s.", p.Summary.ArmName(p.Arm), count(all.expected),
			counted(all.trials, "trial"), bound)
	default:
		p.Add("%s: of %s events in %s %s were lost (%s), in %d of the trials.",
			p.Summary.ArmName(p.Arm), count(all.expected), counted(all.trials, "trial"), count(all.lost),
			part(all.lost, all.expected), all.lossy)
		p.lossyAt(t)
	}
	switch {
	case all.lost == 0 && all.unsaid == 0:
	case all.tells == 0:
		p.Add("No report of its losses by itself was seen.")
	case all.unsaid == 0 && all.said < all.lost:
		p.Add("It says so itself of %s of them, and nothing of the others.", count(all.said))
	case all.unsaid == 0:
		p.Add("It says so itself, to the event.")
	case all.tells < all.trials:
		p.Add("What it says of its losses is wrong by %s events in the %s in which it says anything.", count(all.unsaid),
			counted(all.tells, "trial"))
	default:
		p.Add("What it says of its own losses is wrong by %s events in all.", count(all.unsaid))
	}
	if all.extra > 0 {
		p.Add("It delivered %s events that never happened.", count(all.extra))
	}
	if all.late > 0 {
		p.Add("%s of the load's events came late (%s), after it had ended.", count(all.late), part(all.late, all.made))
	}
	p.traceCost(t)
}

// lossyAt writes which part of the events was lost at each level, and at which levels none were.
func (p *prose) lossyAt(t *analysis.Table) {
	if len(t.Levels) < 2 {
		return
	}
	var clean []map[string]string
	var lossy []string
	for _, at := range t.Levels {
		l := p.losses(t, at)
		switch {
		case l.trials == 0:
		case l.lost == 0:
			clean = append(clean, at)
		default:
			lossy = append(lossy, part(l.lost, l.expected)+" "+p.Summary.At(at))
		}
	}
	text := "That is " + strings.Join(lossy, ", ")
	if len(clean) > 0 {
		text += "; none " + p.Summary.AtAll(clean)
	}
	p.Add("%s.", text)
}

// traceCost writes a tracer's cost per 1,000 events, at each level or at the first and last of many, its effect on the
// load at the last level, and its memory.
func (p *prose) traceCost(t *analysis.Table) {
	ends := t.Levels
	if len(ends) > 2 {
		ends = []map[string]string{t.Levels[0], t.Levels[len(t.Levels)-1]}
	}
	var costs []string
	for _, at := range ends {
		p.At = at
		whole, agent := p.Find("cpu_seconds_per_kiloevent"), p.Find("agent_cpu_seconds_per_kiloevent")
		if whole != nil {
			text := analysis.Said(whole)
			if bpf := p.Find("bpf_seconds_per_kiloevent"); agent != nil && bpf != nil {
				text += fmt.Sprintf(" (%s in its processes, %s in its programs)", analysis.Said(agent), analysis.Said(bpf))
			}
			costs = append(costs, text+p.Here())
		} else if agent != nil && p.inPods(t) {
			costs = append(costs, analysis.Said(agent)+" in its processes"+p.Here())
		}
	}
	switch {
	case len(costs) == 0:
	case p.inPods(t):
		p.Add("Its CPU time for 1,000 of the load's events, with whatever else it traced, is %s.", analysis.Join(costs))
	default:
		p.Add("The CPU time of 1,000 events is %s.", analysis.Join(costs))
	}
	if p.inPods(t) {
		p.Add("It runs beside the baseline too, so how much it slows the load is not known.")
	} else if e := p.Find("throughput_per_second"); e != nil && e.Difference != nil && e.Ratio != nil {
		base, at := p.Of("throughput_per_second", record.Direct), p.Here()
		if at != "" {
			at += ","
		}
		made := strings.TrimSpace(at + " the load made")
		switch {
		case base == nil:
		case e.Difference.Resolved && e.Ratio.Lo != nil:
			p.Add("%s %s events/s with it and %s without: %s.", analysis.Capital(made), analysis.Digits(e),
				analysis.Digits(base), changeOf(e.Ratio))
		default:
			p.Add("%s %s events/s with it and %s without; the difference is not resolved.", analysis.Capital(made),
				analysis.Digits(e), analysis.Digits(base))
		}
	}
	if e := p.Find("rss_bytes"); e != nil {
		text := fmt.Sprintf("Its processes hold %s of resident memory", analysis.Said(e))
		if peak := p.Find("rss_peak_bytes"); peak != nil {
			text += fmt.Sprintf(", %s at their peak", analysis.Said(peak))
		}
		if hard := p.Find("memory_hard_bytes"); hard != nil {
			text += fmt.Sprintf("; its group holds %s of hard memory", analysis.Said(hard))
		}
		p.Add("%s.", text)
	}
}

// inPods reports whether the tracer was installed in a cluster, where only the load itself counts its events.
func (p *prose) inPods(t *analysis.Table) bool {
	return !slices.ContainsFunc(t.Levels, func(at map[string]string) bool {
		return len(t.Column(at, p.Arm, "events_counted")) > 0
	})
}

// byNodes writes whether the cost on each node depends on the number of nodes, if the run varies that number, and how
// many nodes failed.
func (p *prose) byNodes(t *analysis.Table) {
	const factor = "nodes"
	failed, trials := 0.0, 0
	for _, at := range t.Levels {
		if _, many := at[factor]; !many {
			return
		}
		for _, x := range t.Column(at, p.Arm, "nodes_failed") {
			failed += x
			trials++
		}
	}
	for _, m := range []struct{ metric, what string }{
		{"cpu_seconds_per_kiloevent", "CPU time per 1,000 events"},
		{"agent_cpu_seconds_per_kiloevent", "part of its processes in that"},
		{"bpf_seconds_per_kiloevent", "part of its programs, which on one machine run for the events of all its nodes,"},
		{"memory_hard_bytes", map[bool]string{false: "hard memory of a node's tracer",
			true: "hard memory of all nodes' tracers"}[p.inPods(t)]},
	} {
		slope, model := p.slope(m.metric, factor)
		if model == nil || slope.Lo == nil || slope.Hi == nil {
			continue
		}
		per, of := slope.Written(model.Terms[0].Unit), model.ValidRange[factor]
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
			p.Add("The %s does not depend on the number of nodes as far as this run can see: "+
				"%s for each node more, from %g to %g.", m.what, per, of[0], of[1])
		case flat:
			p.Add("The %s is not the same for all numbers of nodes, though it neither grows nor falls with them on the whole "+
				"(%s for each node more, from %g to %g)%s.", m.what, per, of[0], of[1], values)
		case model.Linear:
			p.Add("The %s %s with the number of nodes: by %s for each, from %g to %g.", m.what, way, per, of[0], of[1])
		default:
			p.Add("The %s %s with the number of nodes: by %s for each, from %g to %g, but not on a line%s.",
				m.what, way, per, of[0], of[1], values)
		}
	}
	if failed > 0 {
		p.Add("%s failed in %d trials, which are named in the record.", counted(int(failed), "node"), trials)
	}
}

// overLevels lists the values of a metric at all levels.
func (p *prose) overLevels(t *analysis.Table, metric string) string {
	at := p.At
	defer func() { p.At = at }()
	var values []string
	for _, p.At = range t.Levels {
		if e := p.Find(metric); e != nil {
			values = append(values, analysis.Said(e)+p.Here())
		}
	}
	return analysis.Join(values)
}

// slope returns how much a metric grows with a factor, as a term of the arm's model, and that model. The model is nil
// if there is none, if it is withheld, or if it lacks the factor.
func (p *prose) slope(metric, factor string) (analysis.Term, *analysis.Model) {
	for i, m := range p.Summary.Models {
		if m.Metric != metric || m.Arm != p.Arm || m.Withheld != "" {
			continue
		}
		for _, term := range m.Terms {
			if term.Name == factor {
				p.Rest(metric, p.Arm)
				return term, &p.Summary.Models[i]
			}
		}
	}
	return analysis.Term{}, nil
}

// count formats a number of events.
func count(x float64) string { return quantity.Thousands(int(math.Round(x))) }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return quantity.Thousands(n) + " " + what + "s"
}

// part formats the fraction x/of, per million if it is small.
func part(x, of float64) string {
	switch {
	case of <= 0:
		return "of none"
	case x/of < 1e-3:
		return fmt.Sprintf("%.3g in a million", 1e6*x/of)
	}
	return quantity.Value(x/of, quantity.Part)
}

// changeOf formats a ratio to the baseline as a change in per cent: "36 % [34, 38] less".
func changeOf(r *analysis.Interval) string {
	if r.Value < 1 {
		return quantity.Interval(1-r.Value, 1-*r.Hi, 1-*r.Lo, quantity.Part) + " less"
	}
	return quantity.Interval(r.Value-1, *r.Lo-1, *r.Hi-1, quantity.Part) + " more"
}
