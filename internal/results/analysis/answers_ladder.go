package analysis

import (
	"cmp"
	"fmt"
	"slices"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
)

// ladderAnswers returns answers for runs with metrics that are rungs of a ladder (metric.Definition.Ladder), that is,
// times of single steps. They say for each arm how many steps of the ladder take longer or shorter than in the
// baseline, and which differ least and most. All steps are in a table.
func ladderAnswers(s *Summary, t *Table) (all []Answer) {
	for _, arm := range t.Subjects() {
		for _, at := range t.Levels {
			p := &Prose{Summary: s, Arm: arm, At: at}
			var ladders lists.Groups[string, metric.Definition]
			for _, name := range t.stated {
				d := t.defined.Of(name)
				if e := p.Peek(name); d.Ladder == "" || e == nil || e.Difference == nil || e.Ratio == nil || p.base(e) == nil {
					continue
				}
				ladders.Add(d.Ladder, d)
			}
			for ladder, rungs := range ladders.All() {
				p.ladder(ladder, rungs)
			}
			if len(p.text) > 0 {
				all = append(all, p.Answer())
			}
		}
	}
	return all
}

func (p *Prose) ladder(name string, rungs []metric.Definition) {
	var longer, shorter, open []metric.Definition
	for _, d := range rungs {
		switch diff := p.Peek(d.Name).Difference; {
		case diff.Lo != nil && !diff.Resolved:
			open = append(open, d)
		case diff.Value < 0:
			shorter = append(shorter, d)
		default:
			longer = append(longer, d)
		}
	}
	begin := p.Where() + p.Arm + ": "
	of := func(n int) string { return fmt.Sprintf("%d of %d %s", n, len(rungs), name) }
	if len(longer)+len(shorter) == 0 {
		d := open[0]
		p.Add("%snone of %d %s differs by what this run can see: %s takes %s.", begin, len(rungs), name, d.Rung, p.rung(d))
		return
	}
	for _, some := range []struct {
		rungs []metric.Definition
		what  string
	}{{longer, "longer"}, {shorter, "less"}} {
		if len(some.rungs) == 0 {
			continue
		}
		ratio := func(d metric.Definition) float64 { return p.Peek(d.Name).Ratio.Value }
		slices.SortStableFunc(some.rungs, func(a, b metric.Definition) int { return cmp.Compare(ratio(a), ratio(b)) })
		least, most := some.rungs[0], some.rungs[len(some.rungs)-1]
		times := func(d metric.Definition) string {
			return fmt.Sprintf("%s (%s)", p.rung(d), TimesOf(p.Peek(d.Name).Ratio))
		}
		text := fmt.Sprintf("%s takes %s: %s, %s", of(1), some.what, most.Rung, times(most))
		if n := len(some.rungs); n > 1 {
			text = fmt.Sprintf("%s take %s, from %s, %s, to %s, %s", of(n), some.what, least.Rung, times(least), most.Rung,
				times(most))
		}
		p.Add("%s%s.", begin, text)
		begin = ""
	}
	if len(open) > 0 {
		var names []string
		for _, d := range open {
			names = append(names, d.Rung)
			p.Rest(d.Name, p.Arm)
		}
		p.Add("Not resolved: %s.", Join(names))
	}
}

// rung formats how long a step takes, and how long it takes in the baseline.
func (p *Prose) rung(d metric.Definition) string {
	return fmt.Sprintf("%s instead of %s", p.Say(d.Name), p.SayOf(d.Name, record.Direct))
}
