package analysis

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
)

// sums adds a sentence for each metric that has parts, with the difference of the whole and of each part: "A request
// takes 181 us of the machine's CPU time, and 60 us in the baseline; paired by block, the difference is +121 us:
// proxy.client 61 us, proxy.server 58 us, applications +2 us ..."
//
// The parts are paired differences, so the difference of the whole is paired too; the difference of the two medians is
// another number, and has no interval. A part that the subject's components have is listed by component. If the answer
// has quoted another figure of the same kind, such as CPU time without kernel threads, the sentence says what its own
// figure covers.
func (p *Prose) sums(t *Table) {
	if len(p.text) == 0 {
		return
	}
	for _, name := range t.metrics {
		if d := t.defined.Of(name); d.Sum != "" {
			p.sum(t, d)
		}
	}
}

func (p *Prose) sum(t *Table, d metric.Definition) {
	whole, base := p.Peek(d.Name), p.Summary.Find(d.Name, record.Direct, p.At)
	if whole == nil || base == nil || whole.Difference == nil {
		return
	}
	var parts []string
	for _, name := range t.partsOf(d.Name) {
		of, e := t.defined.Of(name), p.Peek(name)
		if e == nil || e.Difference == nil || e.Difference.BaselineWithheld() {
			return // without this part, the others would look complete
		}
		p.Rest(name, p.Arm)
		if components := p.components(name); len(components) > 0 {
			parts = append(parts, components...)
		} else if e.Value != 0 || !p.baseIsZero(e) {
			parts = append(parts, of.Part+" "+e.signed())
		}
	}
	begin := Capital(d.Sum)
	if p.quotes(t, d) {
		begin = "Counted with all the parts that follow, " + d.Sum
	}
	p.Rest(d.Name, p.Arm)
	p.Rest(d.Name, record.Direct)
	verdict := ""
	if !whole.Difference.Resolved {
		verdict = " (not resolved)"
	}
	p.Add("%s, and %s in the baseline; paired by block, the difference is %s%s: %s.",
		strings.Replace(begin, "{}", Said(whole), 1), Said(base), whole.signed(), verdict,
		strings.Join(parts, ", "))
}

// quotes reports whether the answer has already quoted another figure of the same kind for the same work, which a
// reader could mistake for the whole.
func (p *Prose) quotes(t *Table, whole metric.Definition) bool {
	return slices.ContainsFunc(p.evidence, func(named string) bool {
		name, _, _ := strings.Cut(named, " ")
		d := t.defined.Of(name)
		return name != whole.Name && d.PartOf == "" && d.What != "" && d.Family == whole.Family && d.Unit == whole.Unit
	})
}

// growing lists further metrics, besides those in memories, whose growth Prose.lines describes.
var growing = []struct{ metric, name string }{{"subject_cpu_seconds_per_request", "CPU time of a request"}}

// lines adds sentences on how each component's memory and CPU time per request grow with the swept factor: "Hard memory
// by component: proxy.client 9.1 MB, and 26 MB more for every 1,000 connections."
func (p *Prose) lines() {
	if len(p.text) == 0 {
		return
	}
	for _, kind := range memories {
		p.componentLines(kind.metric, kind.name)
	}
	for _, kind := range growing {
		p.componentLines(kind.metric, kind.name)
	}
}

// componentLines adds a sentence on how a metric of each component grows. For a component that does not grow linearly,
// the sentence gives the mean slope alone. It leaves out components whose slope may be 0.
func (p *Prose) componentLines(metric, name string) {
	var all []string
	for _, m := range p.Summary.ComponentModels {
		if m.Metric != metric || m.Arm != p.Arm || len(m.Terms) != 2 || m.Terms[1].Value <= 0 ||
			m.HasIntervals() && *m.Terms[1].Lo <= 0 {
			continue
		}
		straight := m
		straight.Linear = true
		text := p.line(straight, m.Terms[0].Unit)
		if text == "" {
			continue
		}
		if !m.Linear {
			_, slope, _ := strings.Cut(text, fixedAnd)
			text = slope + " on average, not linearly"
		}
		all = append(all, m.Component+" "+text)
	}
	if len(all) > 0 {
		slices.Sort(all)
		p.Rest(metric, p.Arm)
		p.Add("%s by component: %s.", Capital(name), strings.Join(all, "; "))
	}
}

// partsOf returns the metrics that are the parts of another, in the order in which they are defined.
func (t *Table) partsOf(whole string) (names []string) {
	for name, d := range t.defined {
		if d.PartOf == whole {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.order[a], t.order[b]), strings.Compare(a, b))
	})
	return names
}

// components formats a metric of each component of the subject, such as "proxy.client 61 us", sorted by name. For a
// component that the baseline has as well, it formats the difference.
func (p *Prose) components(metric string) (all []string) {
	for i := range p.Summary.Estimates {
		e := &p.Summary.Estimates[i]
		if e.Metric != metric || e.Arm != p.Arm || e.Component == "" || e.Withheld != "" || !maps.Equal(e.Factors, p.At) {
			continue
		}
		text := Said(e)
		if e.Difference != nil {
			text = e.signed()
		}
		all = append(all, e.Component+" "+text)
	}
	slices.Sort(all)
	return all
}
