package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
)

// leadTable is the table at the top of a report. It has a row for each arm at each level, followed by rows for the
// arm's components, and a column for each leading metric (see leadMaker.columns).
type leadTable struct {
	Metrics []string // one per column, in their order
	Levels  []leadLevel
	Note    string // explains the marks in the cells; empty: there are none

	Headline string // a sentence that compares two versions; empty for other kinds of runs

	byWeight []string // the same metrics, the most important first
}

type leadLevel struct {
	Title string // empty if nothing was swept
	Rows  []leadRow
}

type leadRow struct {
	Name  string
	Part  bool // a component of the arm in a row above
	Cells []string
}

func (r leadRow) name() string {
	if r.Part {
		return "  " + r.Name
	}
	return r.Name
}

const (
	maxColumns    = 6  // in the table
	enoughColumns = 4  // with this many, only metrics defined as leading are added
	maxLeadRows   = 60 // at a terminal; the other forms have all levels
	manyAnswers   = 2  // with more answers than this, a paragraph may replace them
	unresolved    = " ~"
)

// Head returns the names of the columns.
func (l *leadTable) Head() []string {
	return append([]string{"arm"}, lists.Map(l.Metrics, quantity.Label)...)
}

// Columns returns the number of columns, including that of the arms.
func (l *leadTable) Columns() int { return len(l.Metrics) + 1 }

// Swept reports whether the rows are about several levels.
func (l *leadTable) Swept() bool {
	return len(l.Levels) > 1 || len(l.Levels) == 1 && l.Levels[0].Title != ""
}

// newLead makes the table of a summary. It has no columns if there are no estimates.
func newLead(s *analysis.Summary, run record.Run) *leadTable {
	m := leadMaker{s: s, defined: run.Defined(), at: map[leadPlace]*analysis.Estimate{}}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		m.at[leadPlace{e.Metric, e.Arm, e.Component, record.LevelKey(e.Factors)}] = e
	}
	levels, arms := placesOf(s)
	l := &leadTable{byWeight: m.columns(run.Metrics)}
	l.Metrics = inOrder(s, l.byWeight)
	m.split = lists.Map(l.Metrics, m.splitOf)
	for _, level := range levels {
		of := leadLevel{Title: clean(strings.TrimPrefix(s.At(level), "at "))}
		for _, arm := range arms {
			of.Rows = append(of.Rows, m.rows(l.Metrics, arm, level)...)
		}
		l.Levels = append(l.Levels, of)
	}
	l.Headline = m.headline(l.byWeight, levels, arms)
	if m.marked {
		l.Note = strings.TrimSpace(unresolved) + ": no resolved difference from " + baseline(s)
	}
	return l
}

type leadPlace struct{ metric, arm, component, level string }

type leadMaker struct {
	s       *analysis.Summary
	defined metric.Set
	at      map[leadPlace]*analysis.Estimate
	split   []string // for each column, the metric whose components are shown in it; empty: none
	marked  bool
}

// columns returns the leading metrics: those with an assertion, the first headline that an answer rests on, those that
// are defined as leading, and then other headlines that answers rest on. It leaves out a metric that repeats another
// column for the same arms at the same levels, and one that is 0 everywhere.
func (m *leadMaker) columns(defined []metric.Definition) (names []string) {
	add := func(name string, always bool) {
		if len(names) < maxColumns && !slices.Contains(names, name) && (always || m.some(name) && !m.known(name, names)) {
			names = append(names, name)
		}
	}
	for _, v := range m.s.Verdicts {
		for i := range v.Checks {
			if m.has(v.Checks[i].Metric) {
				add(v.Checks[i].Metric, true)
			}
		}
	}
	if i := slices.IndexFunc(m.s.Headlines, m.answered); i >= 0 {
		add(m.s.Headlines[i], true)
	}
	for _, d := range defined {
		if d.Lead {
			add(m.spoken(d.Name), false)
		}
	}
	for _, name := range m.s.Headlines {
		if len(names) < enoughColumns && m.answered(name) {
			add(name, false)
		}
	}
	return names
}

// spoken returns the metric that answers use for the given one: itself or its counterpart (metric.Set.Counterpart).
func (m *leadMaker) spoken(name string) string {
	other := m.defined.Counterpart(name)
	if other != "" && (slices.Contains(m.s.Headlines, other) || !m.has(name)) {
		return other
	}
	return name
}

func (m *leadMaker) has(name string) bool {
	return slices.ContainsFunc(m.s.Estimates, func(e analysis.Estimate) bool {
		return e.Metric == name && e.Component == ""
	})
}

// answered reports whether an answer rests on a metric.
func (m *leadMaker) answered(name string) bool {
	return slices.ContainsFunc(m.s.Answers, func(a analysis.Answer) bool {
		return slices.ContainsFunc(a.Evidence, func(e string) bool { return strings.HasPrefix(e, name+" ") })
	})
}

// some reports whether a metric is other than 0 in any arm.
func (m *leadMaker) some(name string) bool {
	return slices.ContainsFunc(m.s.Estimates, func(e analysis.Estimate) bool {
		return e.Metric == name && e.Component == "" && e.Arm != record.AA && (e.Value != 0 || e.Hi != nil && *e.Hi != 0)
	})
}

// known reports whether the columns already cover a metric. They do if each arm at each level that has the metric also
// has a metric of the same family in some column, such as the same cost per another unit of work. Different quantiles
// do not cover each other.
func (m *leadMaker) known(name string, columns []string) bool {
	alike := slices.DeleteFunc(slices.Clone(columns), func(column string) bool {
		return m.defined.FamilyOf(column) != m.defined.FamilyOf(name) ||
			m.defined.Of(column).Quantile != m.defined.Of(name).Quantile
	})
	for p := range m.at {
		in := func(column string) bool { return m.at[leadPlace{column, p.arm, "", p.level}] != nil }
		if p.metric == name && p.component == "" && !slices.ContainsFunc(alike, in) {
			return false
		}
	}
	return true
}

// rows returns the row of an arm at a level, followed by those of its components if it has several.
func (m *leadMaker) rows(columns []string, arm string, level map[string]string) []leadRow {
	key := record.LevelKey(level)
	whole := leadRow{Name: clean(m.s.ArmName(arm))}
	parts := map[string][]string{}
	for i, name := range columns {
		cell := ""
		if e := m.at[leadPlace{name, arm, "", key}]; e != nil {
			cell = m.cell(e)
		}
		whole.Cells = append(whole.Cells, cell)
		for place, e := range m.at {
			if place.metric != m.split[i] || place.arm != arm || place.component == "" || place.level != key {
				continue
			}
			if parts[place.component] == nil {
				parts[place.component] = make([]string, len(columns))
			}
			parts[place.component][i] = rowOf(m.s, *e).Value
		}
	}
	rows := []leadRow{whole}
	if len(parts) < 2 {
		return rows
	}
	for component, cells := range lists.ByKey(parts) {
		rows = append(rows, leadRow{Name: clean(component), Part: true, Cells: cells})
	}
	return rows
}

// splitOf returns the metric whose components are shown in a column: the column's own, or else a part of it; empty if
// neither has components.
func (m *leadMaker) splitOf(name string) string {
	has := func(name string) bool {
		return slices.ContainsFunc(m.s.Estimates, func(e analysis.Estimate) bool {
			return e.Metric == name && e.Component != ""
		})
	}
	if has(name) {
		return name
	}
	whole := m.defined.Of(name)
	for of, d := range lists.ByKey(m.defined) {
		if d.PartOf != "" && d.Family == whole.Family && d.Unit == whole.Unit && has(of) {
			return of
		}
	}
	return ""
}

// cell formats an estimate with its interval, marked if its difference is not resolved.
func (m *leadMaker) cell(e *analysis.Estimate) string {
	if e.Withheld != "" {
		return "withheld"
	}
	text := rowOf(m.s, *e).Value
	if d := e.Difference; d != nil && d.Lo != nil && !d.Resolved && !d.Zero() && e.Arm != record.AA {
		m.marked = true
		text += unresolved
	}
	return text
}

// inOrder sorts metrics as all tables do: by rank, then by the order of the estimates. Asserted metrics come first.
func inOrder(s *analysis.Summary, names []string) []string {
	type place struct{ rank, at int }
	places := map[string]place{}
	for i, e := range s.Estimates {
		if _, seen := places[e.Metric]; !seen {
			places[e.Metric] = place{e.Rank, i}
		}
	}
	for _, v := range s.Verdicts {
		for i := range v.Checks {
			name := v.Checks[i].Metric
			places[name] = place{0, places[name].at}
		}
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return cmp.Or(cmp.Compare(places[a].rank, places[b].rank), cmp.Compare(places[a].at, places[b].at))
	})
	return sorted
}

// headline writes the sentence, if there is one.
func (t *screen) headline(l *leadTable) {
	if l.Headline != "" {
		t.wrap("", l.Headline)
		t.line("")
	}
}

// lead writes the table for a terminal, and returns the metrics that it shows. It drops the least important columns
// until a line fits, and levels in the middle if there are too many.
func (t *screen) lead(l *leadTable) (shown []string) {
	if len(l.Metrics) == 0 {
		return nil
	}
	most := 1
	for _, level := range l.Levels {
		most = max(most, len(level.Rows)+1)
	}
	levels, between := outer(l.Levels, max(maxLeadRows/most, 2))
	lines := [][]string{l.Head()}
	for _, level := range levels {
		for _, r := range level.Rows {
			lines = append(lines, slices.Concat([]string{r.name()}, r.Cells))
		}
	}
	shown = slices.Clone(l.Metrics)
	for _, least := range slices.Backward(l.byWeight) {
		if total(text.Widths(lines)) <= t.wide || len(shown) == 1 {
			break
		}
		at := slices.Index(shown, least)
		shown = slices.Delete(shown, at, at+1)
		for i := range lines {
			lines[i] = slices.Delete(lines[i], at+1, at+2)
		}
	}
	widths := text.Widths(lines)
	t.line(t.bold(text.Aligned(lines[0], widths, false)))
	n := 1
	for i, level := range levels {
		if i == len(levels)/2 && between > 0 {
			t.line(t.faint(fmt.Sprintf("(%s between)", quantity.Counted(between, "level"))))
		}
		if level.Title != "" {
			t.line(t.bold(level.Title))
		}
		for _, r := range level.Rows {
			line := text.Aligned(lines[n], widths, false)
			if r.Part {
				line = t.faint(line)
			}
			t.line(line)
			n++
		}
	}
	if l.Note != "" {
		t.wrap("", l.Note)
	}
	t.line("")
	return shown
}

// total returns the width of a line of columns.
func total(widths []int) int {
	sum := -2 // no gap after the last column
	for _, w := range widths {
		sum += w + 2
	}
	return sum
}

// outer keeps at most the given number of levels, from both ends, and returns how many are left out.
func outer[T any](levels []T, most int) (kept []T, between int) {
	if between = len(levels) - most; between <= 0 {
		return levels, 0
	}
	return slices.Concat(levels[:most/2], levels[len(levels)-(most-most/2):]), between
}

// leadMarkdown returns the table in Markdown, with the level in each row; empty if there are no estimates.
func leadMarkdown(l *leadTable) string {
	if len(l.Metrics) == 0 {
		return ""
	}
	rows := [][]string{slices.Concat([]string{"level"}, l.Head())}
	for _, level := range l.Levels {
		for _, r := range level.Rows {
			name := r.Name
			if r.Part {
				name = "\u2013 " + name
			}
			rows = append(rows, slices.Concat([]string{level.Title, name}, r.Cells))
		}
	}
	left := 2
	if !l.Swept() {
		left, rows = 1, lists.Map(rows, func(r []string) []string { return r[1:] })
	}
	table := "\n" + text.MarkdownTable(rows, left)
	if l.Note != "" {
		table += "\n" + escape(l.Note) + "\n"
	}
	return table
}

// short returns the paragraph that replaces the answers if there are many and all only go through the metrics of an
// arm at a level, as the table already does. Otherwise it is empty: the answers say more than the table.
func (l *leadTable) short(s *analysis.Summary, run record.Run) string {
	worded := func(a analysis.Answer) bool { return !a.General }
	if len(s.Answers) <= manyAnswers || !s.Valid || slices.ContainsFunc(s.Answers, worded) {
		return ""
	}
	text := l.differences(s)
	if text == "" {
		return ""
	}
	text = ofPartial(s) + text + lacking(s, run)
	for arm, lacks := range lists.ByKey(run.Lacks) {
		if lacks != "" {
			text += fmt.Sprintf(" %s is not the same service: %s.", s.ArmName(arm), lacks)
		}
	}
	return text
}

// ofPartial returns the beginning of a sentence about a partial run; empty for a complete one.
func ofPartial(s *analysis.Summary) string {
	if !s.Partial {
		return ""
	}
	return fmt.Sprintf("From a partial run (%d of %d trials): ", s.Trials.Done, s.Trials.Planned)
}

// lacking names the headline metrics that were withheld in some arm because too many trials were lost, with the first
// reason. The answers, which the paragraph replaces, say this for each arm.
func lacking(s *analysis.Summary, run record.Run) string {
	var labels, reasons []string
	for _, m := range s.Missing {
		if !slices.Contains(run.Headline, m.Metric) {
			continue
		}
		labels = lists.Include(labels, quantity.Label(m.Metric))
		reasons = lists.Include(reasons, m.Because())
	}
	if len(labels) == 0 {
		return ""
	}
	more := ""
	if n := len(reasons) - 1; n > 0 {
		more = "; " + quantity.Counted(n, "more reason") + ": --all"
	}
	return fmt.Sprintf(" Not measured in every arm: %s (%s%s).", strings.Join(labels, ", "), reasons[0], more)
}

// differences describes how the arms differ from the baseline at the last level, by metric. It is empty if there is no
// difference to describe.
func (l *leadTable) differences(s *analysis.Summary) string {
	levels, arms := placesOf(s)
	if len(levels) == 0 {
		return ""
	}
	last := levels[len(levels)-1]
	var clauses []string
	intervals := false
	for _, name := range l.Metrics {
		var moved, open []string
		withheld := "" // why no difference of the metric is stated
		for _, arm := range arms {
			e := s.Find(name, arm, last)
			if e == nil || e.Difference == nil || arm == record.AA {
				continue
			}
			switch d := e.Difference; {
			case d.BaselineWithheld():
				withheld = "not resolved (" + d.Unresolved + ")"
				continue
			case d.Value == 0 && (d.Lo == nil || d.Zero()):
			case d.Resolved || d.Lo == nil:
				moved = append(moved, s.ArmName(arm)+" "+d.Signed(e.Unit))
			default:
				open = append(open, s.ArmName(arm)+d.FoundIn(e.Unit))
			}
			intervals = intervals || e.Difference.Lo != nil
		}
		if len(open) > 0 {
			moved = append(moved, "not resolved for "+analysis.Join(open))
		}
		if withheld != "" {
			moved = []string{withheld} // the reason applies to every arm
		}
		if len(moved) > 0 {
			clauses = append(clauses, quantity.Label(name)+": "+strings.Join(moved, ", "))
		}
	}
	if len(clauses) == 0 {
		return ""
	}
	begin := strings.TrimPrefix(s.At(last)+", compared with ", ", ") + baseline(s)
	if !intervals {
		begin += ", without intervals"
	}
	return fmt.Sprintf("%s: %s.", analysis.Capital(begin), strings.Join(clauses, "; "))
}
