package report

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// briefLines is the maximum number of lines in the brief report of a run without levels, including the line with the
// path of the page. The table by level of a sweep is not counted.
const briefLines = 40

const (
	maxMoreLabels = 8 // metrics listed by name only
	maxWarnings   = 3
	sweepLines    = 12 // for the answers of a run with levels
)

// brief writes what a reader wants first: the verdicts, the leading table, its summary in words, and whether all this
// can be trusted.
func (t *screen) brief(s *analysis.Summary, run record.Run) {
	top, answers, table, bottom := t.part(), t.part(), t.part(), t.part()
	top.title(s)
	top.verdicts(s)
	lead := newLead(s, run)
	top.headline(lead)
	shown := table.lead(lead)
	table.namedFunctions(s)
	bottom.others(s, run, shown)
	bottom.basis(s, run, bracketed(s, shown))
	if text := lead.short(s, run); text != "" {
		answers.wrap("", text)
		answers.line("")
	} else {
		room := briefLines - 1 - top.lines() - table.lines() - bottom.lines() // 1: the line with the path of the page
		if lead.Swept() {
			room = max(room, sweepLines)
		}
		answers.leads(s, room)
	}
	for _, p := range []*screen{top, table, answers, bottom} {
		t.b.WriteString(p.b.String())
	}
}

// title writes the name of the experiment and its question.
func (t *screen) title(s *analysis.Summary) {
	p := t.part()
	p.wrap("", s.Experiment+": "+s.Question)
	name := clean(s.Experiment)
	t.b.WriteString(strings.Replace(p.b.String(), name+":", t.bold(name)+":", 1) + "\n")
}

// part returns an empty screen with the same options, for one part of the report.
func (t *screen) part() *screen { return &screen{Options: t.Options, wide: t.wide, style: t.style} }

func (t *screen) lines() int { return strings.Count(t.b.String(), "\n") }

// leads writes the beginning of each answer, cut at the end of a clause, in at most the given number of lines in all,
// and the number of answers left out.
func (t *screen) leads(s *analysis.Summary, room int) {
	begun := t.lines()
	for i, a := range s.Answers {
		left := len(s.Answers) - i
		free := room - (t.lines() - begun)
		need := 3 // two lines and a blank one
		if left > 1 {
			need += 2 // to say how many are left out
		}
		if i > 0 && free < need {
			t.linef("%s: --all", quantity.Counted(left, "more answer"))
			t.line("")
			return
		}
		t.begin(a.Answer, max(free/left-1, 2))
		t.line("")
	}
}

// begin writes as many clauses of an answer as fit into the given number of lines, at least the first.
func (t *screen) begin(answer string, lines int) {
	const more = " ..."
	fits := func(text string) bool {
		p := t.part()
		p.wrap("", text)
		return p.lines() <= lines
	}
	cut := answer
	for !fits(cut) {
		shorter := strings.TrimSuffix(cut, more)
		at := max(strings.LastIndex(shorter, ". "), strings.LastIndex(shorter, "; "))
		if at < 0 {
			break
		}
		cut = shorter[:at+1] + more
	}
	t.wrap("", cut)
}

// others lists what the table leaves out: first the metrics with resolved differences, then the number of other
// metrics, notes and models.
func (t *screen) others(s *analysis.Summary, run record.Run, shown []string) {
	metrics, resolved := map[string]bool{}, map[string]bool{}
	for _, e := range s.Estimates {
		metrics[e.Metric] = true
		if e.Difference != nil && e.Difference.Resolved && e.Arm != record.AA {
			resolved[e.Metric] = true
		}
	}
	var named []string
	for _, name := range s.Headlines {
		if resolved[name] && !slices.Contains(shown, name) {
			named = append(named, quantity.Label(name))
		}
	}
	if len(named) > 0 {
		t.wrap("also:      ", "resolved differences in "+strings.Join(analysis.FirstOf(named, maxMoreLabels), ", "))
	}
	if len(shown) == 0 || len(shown) == len(metrics) {
		return
	}
	rest := []string{fmt.Sprintf("%d of %d metrics", len(shown), len(metrics))}
	if n := len(notes(s, run)); n > 0 {
		rest = append(rest, quantity.Counted(n, "note"))
	}
	if n := len(models(s)); n > 0 {
		rest = append(rest, quantity.Counted(n, "model"))
	}
	t.wrap("shown:     ", rest[0]+"; --all adds the others"+strings.Join(append([]string{""}, rest[1:]...), " and "))
}

// bracketed reports whether the brief report shows any intervals: of assertions, of values in the table, or of the
// differences and fitted lines of metrics that the table shows or an answer mentions.
func bracketed(s *analysis.Summary, shown []string) bool {
	speaks := func(metric string) bool {
		return slices.Contains(shown, metric) || slices.ContainsFunc(s.Answers, func(a analysis.Answer) bool {
			return slices.ContainsFunc(a.Evidence, func(e string) bool { return strings.HasPrefix(e, metric+" ") })
		})
	}
	return slices.ContainsFunc(s.Verdicts, func(v analysis.Verdict) bool {
		return slices.ContainsFunc(v.Checks, func(c analysis.Check) bool { return c.Lo != nil && c.Hi != nil })
	}) || slices.ContainsFunc(s.Estimates, func(e analysis.Estimate) bool {
		d := e.Difference
		return e.Lo != nil && e.Hi != nil && slices.Contains(shown, e.Metric) ||
			d != nil && d.Lo != nil && d.Hi != nil && speaks(e.Metric)
	}) || slices.ContainsFunc(slices.Concat(s.Models, s.ComponentModels), func(m analysis.Model) bool {
		return m.HasIntervals() && speaks(m.Metric)
	})
}

// basis writes whether the run can be trusted, which machine it ran on, where its files are, and the command that runs
// it again. bracketed reports whether there are intervals to explain.
func (t *screen) basis(s *analysis.Summary, run record.Run, bracketed bool) {
	for _, text := range absent(s) {
		t.wrap("note:      ", text)
	}
	for i, warning := range s.Warnings {
		if i == maxWarnings {
			t.wrap("warning:   ", quantity.Counted(len(s.Warnings)-i, "more warning")+": --all")
			break
		}
		t.wrap("warning:   ", warning)
	}
	text := validity(s)
	if bracketed {
		text += "; brackets are 95 % intervals"
	}
	t.wrap("run:       ", text)
	if text := machine(run); text != "" {
		t.wrap("machine:   ", text)
	}
	if t.Dir != "" {
		t.line("files:     " + clean(t.Dir))
	}
	if len(run.Command) > 0 {
		t.line("again:     " + clean(again(run)))
	}
}

// machine describes the machine in one line.
func machine(run record.Run) string {
	e := run.Environment
	cpus := ""
	if e.CPUs != 0 {
		cpus = quantity.Counted(e.CPUs, "CPU")
	}
	return listed(e.Hostname, e.CPUModel, cpus, e.Virtual, named("kernel", e.Kernel))
}
