package analysis

import (
	"fmt"
	"math"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
)

// traceAnswers say first which tracers delivered every event at every level, and then of each what it lost, from when on, what it cost and
// what it took from the work.
func traceAnswers(s *Summary, t *table) []Answer {
	verdict := &words{s: s}
	var whole, lossy, each = []string{}, []string{}, []Answer{}
	for _, arm := range t.subjects() {
		w := &words{s: s, arm: arm}
		l := w.losses(t)
		if l.trials == 0 {
			continue
		}
		if l.lost+l.extra == 0 {
			whole = append(whole, arm)
		} else {
			lossy = append(lossy, arm)
		}
		w.tracer(t, l)
		w.byNodes(t)
		verdict.evidence = append(verdict.evidence, "events_lost "+arm)
		each = append(each, w.answer())
	}
	if len(each) == 0 {
		return nil
	}
	if len(whole) > 0 {
		verdict.add("%s delivered every event.", join(whole))
	}
	if len(lossy) > 0 {
		verdict.add("%s did not.", join(lossy))
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
func (w *words) lossAt(t *table, at factors) (l loss) {
	sum := func(metric string) (total float64, n int) {
		for _, x := range t.column(at, w.arm, metric) {
			total += x
			n++
		}
		return total, n
	}
	for _, x := range t.column(at, w.arm, "events_lost") {
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
func (w *words) losses(t *table) (all loss) {
	for _, at := range t.levels {
		l := w.lossAt(t, at)
		all.trials, all.lossy = all.trials+l.trials, all.lossy+l.lossy
		all.made, all.lost, all.extra, all.unsaid, all.late = all.made+l.made, all.lost+l.lost, all.extra+l.extra, all.unsaid+l.unsaid, all.late+l.late
		all.tells = all.tells || l.tells
	}
	return all
}

// count is a whole number of events.
func count(x float64) string { return quantity.Thousands(int(math.Round(x))) }

// part is x of y in words: as a share, or per million where it is small.
func part(x, of float64) string {
	switch {
	case of <= 0:
		return "of none"
	case x/of < 1e-3:
		return fmt.Sprintf("%.3g in a million", 1e6*x/of)
	}
	return quantity.Value(x/of, quantity.Part)
}

// tracer words one arm.
func (w *words) tracer(t *table, all loss) {
	switch {
	case all.lost == 0:
		// Trials, not events, are independent of each other: the rule of three (Hanley and Lippman-Hand, JAMA 1983) is over them.
		bound := "they are too few to say in how many such trials any would be"
		if all.trials > 3 {
			bound = fmt.Sprintf("so fewer than 3 in %d such trials lose any, at 95 %%", all.trials)
		}
		w.add("%s: of %s events in %d trials none was lost; %s.", w.arm, count(all.made), all.trials, bound)
	default:
		w.add("%s: of %s events in %d trials %s were lost (%s), in %d of the trials.", w.arm, count(all.made), all.trials, count(all.lost), part(all.lost, all.made), all.lossy)
		w.where(t)
	}
	switch {
	case all.lost == 0 && all.unsaid == 0:
	case !all.tells:
		w.add("It says nothing of what it loses.")
	case all.unsaid == 0:
		w.add("It says so itself, to the event.")
	default:
		w.add("What it says of its own losses is wrong by %s events in all.", count(all.unsaid))
	}
	if all.extra > 0 {
		w.add("It delivered %s events that never were.", count(all.extra))
	}
	if all.late > 0 {
		w.add("%s came late (%s), when the load had ended.", count(all.late), part(all.late, all.made))
	}
	w.traceCost(t)
}

// where names the levels at which events were lost, with how much.
func (w *words) where(t *table) {
	if len(t.levels) < 2 {
		return
	}
	var clean, lossy []string
	for _, at := range t.levels {
		l := w.lossAt(t, at)
		switch {
		case l.trials == 0:
		case l.lost == 0:
			clean = append(clean, Level(at))
		default:
			lossy = append(lossy, fmt.Sprintf("%s at %s", part(l.lost, l.made), Level(at)))
		}
	}
	text := "That is " + strings.Join(lossy, ", ")
	if len(clean) > 0 {
		text += "; none at " + strings.Join(clean, ", ")
	}
	w.add("%s.", text)
}

// traceCost words what a tracer takes per 1,000 events, at each level or at the ends of many, what it takes from the work at the last, and its memory.
func (w *words) traceCost(t *table) {
	ends := t.levels
	if len(ends) > 2 {
		ends = []factors{t.levels[0], t.levels[len(t.levels)-1]}
	}
	var costs []string
	for _, at := range ends {
		w.at = at
		if e := w.find("cpu_seconds_per_kiloevent", w.arm); e != nil {
			text := said(e)
			if agent, bpf := w.find("agent_cpu_seconds_per_kiloevent", w.arm), w.find("bpf_seconds_per_kiloevent", w.arm); agent != nil && bpf != nil {
				text += fmt.Sprintf(" (%s in its processes, %s in its programs)", said(agent), said(bpf))
			}
			if name := Level(at); name != "" {
				text += " at " + name
			}
			costs = append(costs, text)
		}
	}
	if len(costs) > 0 {
		w.add("The CPU time of 1,000 events is %s.", join(costs))
	}
	if e := w.find("throughput_per_second", w.arm); e != nil && e.Difference != nil && e.Ratio != nil {
		base := w.find("throughput_per_second", record.Direct)
		at := ""
		if name := Level(w.at); name != "" {
			at = "At " + name + " "
		}
		switch {
		case e.Difference.Resolved && e.Ratio.Lo != nil && base != nil:
			w.add("%s%s execs a second come about with it and %s without: %s.", at, digits(e), digits(base), changeOf(e.Ratio))
		case base != nil:
			w.add("%s%s execs a second come about with it and %s without, which is not resolved.", at, digits(e), digits(base))
		}
	}
	if e := w.find("rss_bytes", w.arm); e != nil {
		text := fmt.Sprintf("Its processes hold %s of resident memory", said(e))
		if peak := w.find("rss_peak_bytes", w.arm); peak != nil {
			text += fmt.Sprintf(", %s at the most", said(peak))
		}
		if hard := w.find("memory_hard_bytes", w.arm); hard != nil {
			text += fmt.Sprintf("; its group holds %s that could not be given back", said(hard))
		}
		w.add("%s.", text)
	}
}

// changeOf words a ratio to the baseline as a change in per cent: "36 % [34, 38] less".
func changeOf(r *Ratio) string {
	if r.Value < 1 {
		return quantity.Interval(1-r.Value, 1-*r.Hi, 1-*r.Lo, quantity.Part) + " less"
	}
	return quantity.Interval(r.Value-1, *r.Lo-1, *r.Hi-1, quantity.Part) + " more"
}

// byNodes says of a run on many nodes whether the costs of each depend on how many there are, and which nodes failed.
func (w *words) byNodes(t *table) {
	const factor = "nodes"
	failed, trials := 0.0, 0
	for _, at := range t.levels {
		if _, many := at[factor]; !many {
			return
		}
		for _, x := range t.column(at, w.arm, "nodes_failed") {
			failed += x
			trials++
		}
	}
	for _, m := range []struct{ metric, what string }{
		{"cpu_seconds_per_kiloevent", "CPU time per 1,000 events"}, {"agent_cpu_seconds_per_kiloevent", "part of its processes in that"},
		{"bpf_seconds_per_kiloevent", "part of its programs, which on one machine run for the events of all its nodes,"}, {"memory_hard_bytes", "hard memory of a node's tracer"},
	} {
		slope, model := w.slope(m.metric, factor)
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
			values = ": it is " + w.overLevels(t, m.metric)
		}
		switch flat := *slope.Lo <= 0 && *slope.Hi >= 0; {
		case flat && model.Linear:
			w.add("The %s does not depend on the number of nodes as far as this run can see: %s for each node more, from %g to %g.", m.what, per, of[0], of[1])
		case flat:
			w.add("The %s is not the same for all numbers of nodes, though it neither grows nor falls with them on the whole (%s for each node more, from %g to %g)%s.", m.what, per, of[0], of[1], values)
		case model.Linear:
			w.add("The %s %s with the number of nodes: by %s for each, from %g to %g.", m.what, way, per, of[0], of[1])
		default:
			w.add("The %s %s with the number of nodes: by %s for each, from %g to %g, but not on a line%s.", m.what, way, per, of[0], of[1], values)
		}
	}
	if failed > 0 {
		w.add("%s failed in %d trials, which are named in the record.", counted(int(failed), "node"), trials)
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return quantity.Thousands(n) + " " + what + "s"
}

// overLevels are the values of a metric at every level.
func (w *words) overLevels(t *table, metric string) string {
	at := w.at
	defer func() { w.at = at }()
	var values []string
	for _, w.at = range t.levels {
		if e := w.find(metric, w.arm); e != nil {
			values = append(values, said(e)+" at "+Level(w.at))
		}
	}
	return join(values)
}

// slope is how much a metric grows with a factor, by the model of the arm; without a model there is none.
func (w *words) slope(metric, factor string) (Term, *Model) {
	for i, m := range w.s.Models {
		if m.Metric != metric || m.Arm != w.arm {
			continue
		}
		for _, term := range m.Terms {
			if term.Name == factor {
				w.evidence = append(w.evidence, metric+" "+w.arm)
				return term, &w.s.Models[i]
			}
		}
	}
	return Term{}, nil
}
