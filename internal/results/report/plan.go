package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/plan"
)

// planBasis explains the figures of a plan and the rules by which they were derived.
const planBasis = "Values are means. Brackets are 95 % prediction intervals of a trial in one more block of the " +
	"run, on its machine: they know nothing of other machines and days. Totals add intervals end by end. A request is " +
	"the upper end, rounded up to 1m of a CPU or 1 MiB. No limits: trials measure means over windows and memory at " +
	"their end, and a limit must hold for peaks."

// Plan writes a plan for a terminal.
func Plan(w io.Writer, p *plan.Plan, o Options) error {
	t := newText(w, o)
	for _, a := range p.Arms {
		t.wrap("", planSentence(p, a))
		t.line("")
		if rows := planRows(a); len(rows) > 1 {
			t.columns(rows, nil, false)
		}
	}
	for _, n := range planNotes(p) {
		t.wrap(fmt.Sprintf("%-11s", n[0]+":"), n[1])
	}
	t.wrap("", planBasis)
	return put(w, t.b.String(), "the plan")
}

// planMarkdown writes a plan for a pull request or a page.
func planMarkdown(w io.Writer, p *plan.Plan, _ Options) error {
	var b strings.Builder
	for _, a := range p.Arms {
		b.WriteString(escape(planSentence(p, a)) + "\n\n")
		if rows := planRows(a); len(rows) > 1 {
			b.WriteString(text.MarkdownTable(rows, 1) + "\n")
		}
	}
	for _, n := range planNotes(p) {
		fmt.Fprintf(&b, "- %s: %s\n", n[0], escape(n[1]))
	}
	fmt.Fprintf(&b, "\n%s\n", escape(planBasis))
	return put(w, b.String(), "the plan as Markdown")
}

// planSentence sums up the needs of one arm in one sentence.
func planSentence(p *plan.Plan, a plan.Arm) string {
	asked := lists.Map(slices.Sorted(maps.Keys(p.For)), func(name string) string {
		return record.FactorName(name) + " " + asSet(p.For[name])
	})
	cpus, memory := "an unknown amount of CPU", "an unknown amount of memory"
	if a.CPUs != nil {
		cpus = planAmount(*a.CPUs, quantity.CPUs)
	}
	if a.Memory != nil {
		memory = planAmount(*a.Memory, quantity.Bytes) + " of memory"
	}
	said := fmt.Sprintf("%s at %s needs %s and %s", a.Arm, strings.Join(asked, ", "), cpus, memory)
	if p.Copies > 1 {
		said += fmt.Sprintf(" for all %s copies (below: for one)", asSet(p.Copies))
	}
	if n := a.Node; n != nil {
		said += fmt.Sprintf(": %s of %s CPUs and %s GiB (filled by %s first; %.0f at the mean)",
			quantity.Counted(int(min(n.Count, math.MaxInt32)), "node"), asSet(n.CPUs),
			asSet(math.Round(n.MemoryBytes/(1<<30)*100)/100), n.Bound, n.AtMean)
	}
	if m := a.PerHour; m != nil {
		said += fmt.Sprintf(", at a price of %s per hour", planAmount(*m, quantity.Count))
	}
	if len(p.Missing) > 0 {
		said += "; never swept: " + strings.Join(lists.Map(p.Missing, func(m plan.Missing) string { return m.Factor }), ", ")
	}
	if len(p.Beyond) > 0 {
		said += "; beyond what was measured"
	}
	return said + "."
}

func planAmount(a plan.Amount, unit string) string {
	return quantity.Interval(a.Value, a.Lo, a.Hi, unit)
}

// planRows returns the table by component, its head first.
func planRows(a plan.Arm) [][]string {
	rows := [][]string{{"component", "CPUs", "memory", "request", "held-out error", "from"}}
	for _, part := range a.Parts {
		row := []string{part.Component, "-", "-"}
		var request, heldOut, from []string
		for i, f := range []*plan.Forecast{part.CPUs, part.Memory} {
			if f == nil {
				continue
			}
			unit, format, step := quantity.CPUs, "cpu %.0fm", 1.0/1000
			if i == 1 {
				unit, format, step = quantity.Bytes, "memory %.0fMi", 1<<20
			}
			row[1+i] = planAmount(f.Amount, unit)
			from = lists.Include(from, f.Experiment)
			if f.Request != nil {
				request = append(request, fmt.Sprintf(format, *f.Request/step))
			}
			if f.HeldoutError == nil {
				heldOut = append(heldOut, "-")
			} else {
				heldOut = append(heldOut, heldOutError(*f.HeldoutError))
			}
		}
		asked := cmp.Or(strings.Join(request, ", "), "-")
		rows = append(rows, append(row, asked, strings.Join(heldOut, ", "), strings.Join(from, ", ")))
	}
	return rows
}

// planNotes returns what a plan lacks or depends on, each as a kind and a text.
func planNotes(p *plan.Plan) (all [][2]string) {
	add := func(kind, format string, args ...any) {
		all = append(all, [2]string{kind, fmt.Sprintf(format, args...)})
	}
	for _, m := range p.Missing {
		add("not swept", "%s: the figures of %s are of the level that the run had; %s", m.Factor, strings.Join(m.Of, ", "),
			measureIt(m.Command))
	}
	for _, b := range p.Beyond {
		add("beyond", "%s; %s", b.Says(), measureIt(b.Command))
	}
	for _, a := range p.Arms {
		for _, part := range a.Parts {
			for i, f := range []*plan.Forecast{part.CPUs, part.Memory} {
				if f != nil && f.Bent != "" {
					add("not a line", "%s of %s in %s (%s): its interval has room for how far the measured levels lie from one",
						[]string{"CPU", "memory"}[i], part.Component, a.Arm, f.Bent)
				}
			}
		}
		for _, u := range a.Unplanned {
			add("no figure", "%s of %s in %s: %s", quantity.Label(u.Metric), u.Component, a.Arm, u.Why)
		}
	}
	for _, c := range p.Conflicts {
		add("conflict", "%s", c)
	}
	for _, w := range p.Warnings {
		add("warning", "%s", w)
	}
	return all
}

func measureIt(command string) string {
	if command == "" {
		return "no built-in experiment can measure it"
	}
	return "measure it: " + command
}
