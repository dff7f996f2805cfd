package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// briefLines is how many lines the brief report of a run without levels has at most, with the one that says where the
// page is. A sweep has its table by level beside these.
const briefLines = 40

const (
	manyArms      = 5  // from which on the table may show a single metric, else two at least
	maxSweepRows  = 36 // of a table by level
	maxColumns    = 5  // metrics in a table by level
	maxMoreLabels = 8  // metrics that are named without being shown
	maxWarnings   = 3
)

// brief writes what a reader wants first: the answers, the verdicts, the metrics that the answers rest on, and whether
// all this can be trusted.
func (t *screen) brief(s *analysis.Summary, run record.Run) {
	top, answers, asserted, table, bottom := t.part(), t.part(), t.part(), t.part(), t.part()
	top.title(s)
	asserted.verdicts(s)
	bottom.basis(s, run)
	room := briefLines - 1 - top.lines() - bottom.lines() - asserted.lines() // 1: where the page is
	var shown []string
	if levels, arms := placesOf(s); len(levels) > 1 {
		answers.leads(s, max(room, briefLines/2))
		shown = table.byLevel(s, levels, arms)
	} else {
		const around = 2 + 3 // the header and a blank line, and what others writes
		answers.leads(s, room-around-leastMetrics(len(arms))*len(arms))
		shown = table.headlines(s, room-around-answers.lines(), leastMetrics(len(arms)))
	}
	table.others(s, run, shown)
	for _, p := range []*screen{top, answers, asserted, table, bottom} {
		t.b.WriteString(p.b.String())
	}
}

// leastMetrics is how many metrics the table shows, however long the answers are.
func leastMetrics(arms int) int {
	if arms >= manyArms {
		return 1
	}
	return 2
}

// title writes what was run and what was asked.
func (t *screen) title(s *analysis.Summary) {
	p := t.part()
	p.wrap("", s.Experiment+": "+s.Question)
	name := clean(s.Experiment)
	t.b.WriteString(strings.Replace(p.b.String(), name+":", t.bold(name)+":", 1) + "\n")
}

// part is a piece of the report that is put together by itself.
func (t *screen) part() *screen { return &screen{Options: t.Options, style: t.style} }

func (t *screen) lines() int { return strings.Count(t.b.String(), "\n") }

// leads writes the answers into so many lines: of each its beginning, to the end of a clause, and how many more there
// are.
func (t *screen) leads(s *analysis.Summary, room int) {
	begun := t.lines()
	for i, a := range s.Answers {
		left := len(s.Answers) - i
		free := room - (t.lines() - begun)
		need := 3 // two lines and a blank one
		if left > 1 {
			need += 2 // to say how many more there are
		}
		if i > 0 && free < need {
			t.line(fmt.Sprintf("%s: --all", quantity.Counted(left, "more answer")))
			t.line("")
			return
		}
		t.lead(a.Answer, max(free/left-1, 2))
		t.line("")
	}
}

// lead writes as much of an answer as goes into so many lines, at least its first clause.
func (t *screen) lead(answer string, lines int) {
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

// headlines writes a table of the first metrics that go into so many rows, and at least so many, and gives their names.
func (t *screen) headlines(s *analysis.Summary, room, least int) (shown []string) {
	rows := map[string][]row{}
	for _, e := range withoutTwin(s.Estimates, armOfEstimate) {
		if e.Component == "" && slices.Contains(s.Headlines, e.Metric) {
			rows[e.Metric] = append(rows[e.Metric], rowOf(s, e))
		}
	}
	n := 0
	for _, name := range s.Headlines {
		if n += len(rows[name]); n > room && len(shown) >= least {
			break
		}
		shown = append(shown, name)
	}
	if len(shown) == 0 {
		return nil
	}
	var all []row
	for _, name := range inOrder(s, shown) {
		for i, r := range rows[name] {
			if i > 0 {
				r.Metric = ""
			}
			all = append(all, r)
		}
	}
	t.table(header(s), all)
	return shown
}

// inOrder puts metrics into the order of all tables: by rank, and then as the estimates stand.
func inOrder(s *analysis.Summary, names []string) []string {
	type place struct{ rank, at int }
	places := map[string]place{}
	for i, e := range s.Estimates {
		if _, seen := places[e.Metric]; !seen {
			places[e.Metric] = place{e.Rank, i}
		}
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return cmp.Or(cmp.Compare(places[a].rank, places[b].rank), cmp.Compare(places[a].at, places[b].at))
	})
	return sorted
}

// byLevel writes a table of the first metrics that go into its width, with a row for each arm at each level, and gives
// their names: the values of the baseline, and the differences of the others.
func (t *screen) byLevel(s *analysis.Summary, levels []map[string]string, arms []string) (shown []string) {
	type place struct{ metric, arm, level string }
	cells := map[place]string{}
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Component == "" {
			cells[place{e.Metric, e.Arm, record.LevelKey(e.Factors)}] = changeCell(s, *e)
		}
	}
	levels, between := outer(levels, max(maxSweepRows/max(len(arms), 1), 2))
	var rows [][]string
	var at []place
	for i, level := range levels {
		for n, arm := range arms {
			name := ""
			if n == 0 {
				name = strings.TrimPrefix(s.At(level), "at ")
			}
			if i == len(levels)/2 && n == 0 && between > 0 {
				rows = append(rows, []string{fmt.Sprintf("(%s between)", quantity.Counted(between, "level")), ""})
				at = append(at, place{})
			}
			rows = append(rows, []string{clean(name), clean(s.ArmName(arm))})
			at = append(at, place{"", arm, record.LevelKey(level)})
		}
	}
	head := []string{"", "arm"}
	for _, name := range s.Headlines {
		column := make([]string, len(rows))
		some := false
		for i, p := range at {
			column[i] = cells[place{name, p.arm, p.level}]
			some = some || column[i] != ""
		}
		wide := make([][]string, 0, len(rows)+1)
		wide = append(wide, slices.Concat(head, []string{quantity.Label(name)}))
		for i, r := range rows {
			wide = append(wide, slices.Concat(r, []string{column[i]}))
		}
		total := 0
		for _, w := range widthsOf(wide) {
			total += w + 2
		}
		if !some || len(shown) > 0 && total > t.Width+2 {
			continue
		}
		shown, head, rows = append(shown, name), wide[0], wide[1:]
		if len(shown) == maxColumns {
			break
		}
	}
	if len(shown) == 0 {
		return nil
	}
	t.columns(append([][]string{head}, rows...), nil)
	return shown
}

// outer keeps so many levels from both ends, and counts those between.
func outer(levels []map[string]string, most int) (kept []map[string]string, between int) {
	if between = len(levels) - most; between <= 0 {
		return levels, 0
	}
	return slices.Concat(levels[:most/2], levels[len(levels)-(most-most/2):]), between
}

// changeCell is an estimate in a table by level: of the baseline its value, and of others the difference to it, where
// there is one.
func changeCell(s *analysis.Summary, e analysis.Estimate) string {
	r := rowOf(s, e)
	d := e.Difference
	switch {
	case e.Withheld != "":
		return "withheld"
	case d == nil || d.Lo == nil:
		return r.Value
	case d.Resolved:
		return quantity.Delta(d.Value, *d.Lo, *d.Hi, e.Unit)
	}
	return r.Difference
}

// others says what the table leaves out: first the metrics with resolved differences, and then how much there is.
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

// basis says whether the run can be trusted, on which machine it was, and where the rest is.
func (t *screen) basis(s *analysis.Summary, run record.Run) {
	for _, arm := range slices.Sorted(maps.Keys(s.Absent)) {
		t.wrap("note:      ", fmt.Sprintf("the arm %s did not run: %s", arm, s.Absent[arm]))
	}
	for i, warning := range s.Warnings {
		if i == maxWarnings {
			t.wrap("warning:   ", quantity.Counted(len(s.Warnings)-i, "more warning")+": --all")
			break
		}
		t.wrap("warning:   ", warning)
	}
	text := validity(s)
	if intervals(s) != "none" {
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

// machine is the machine in a line.
func machine(run record.Run) string {
	e := run.Environment
	var all []string
	for _, text := range []string{e.Hostname, e.CPUModel, quantity.Counted(e.CPUs, "CPU"), e.Virtual,
		"kernel " + e.Kernel} {
		if text != "" && text != "0 CPUs" && text != "kernel " {
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}
