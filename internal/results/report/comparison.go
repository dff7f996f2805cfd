package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
)

// Comparison writes what changed between runs for a terminal: a verdict, and a table of the changes. Unless Options.All
// is set, the table leaves out changes that are neither resolved nor of a headline metric.
func Comparison(w io.Writer, c *comparison.Comparison, o Options) error {
	t := newText(w, o)
	t.comparison(c)
	return put(w, t.b.String(), "the comparison")
}

func (t *screen) comparison(c *comparison.Comparison) {
	t.line(t.bold(clean(c.Experiment)) + ": new against old")
	t.wrap("", verdictOf(c))
	t.line("")
	for _, side := range []struct {
		name string
		runs []comparison.Ref
	}{{"old:   ", c.Old}, {"new:   ", c.New}} {
		for _, r := range side.runs {
			t.wrap(side.name, refLine(r))
		}
	}
	t.line("")
	rows := [][]string{{"", "arm", "old", "new", "change", "sees"}}
	hidden := 0
	muted := map[int]bool{}
	for _, x := range c.Changes {
		if !t.All && !x.Headline && !x.Resolved {
			hidden++
			continue
		}
		muted[len(rows)] = !x.Resolved
		rows = append(rows, changeCells(x))
	}
	if len(c.Changes) > 0 {
		t.columns(rows, muted, false)
		t.wrap("", changeNote)
	}
	for _, text := range betweenTexts(c) {
		t.wrap("", text)
	}
	t.hidden(hidden, "further row", " without a resolved change")
	texts, more := missingTexts(c, t.All)
	for _, text := range texts {
		t.wrap("", text)
	}
	t.hidden(more, "further figure", " without a value in some run")
	for _, warning := range c.Warnings {
		t.wrap("warning: ", warning)
	}
}

// changeNote explains the columns.
const changeNote = "Old and new are against the baseline of the same run: a change in per cent, a difference, or " +
	"the value where the baseline has none of it. A change is resolved where its 95 % interval, which holds the " +
	"variance between runs, excludes 0, and no run has lost too many trials for it; \"sees\" is half of that interval."

func changeCells(x comparison.Change) []string {
	return []string{
		clean(quantity.Label(x.Metric)), clean(placeOf(x.Arm, x.Component, x.Factors)), effectText(x.Old, x.Scale, x.Unit),
		effectText(x.New, x.Scale, x.Unit), changeText(x), seesText(x),
	}
}

// refLine describes a run: its directory, its start, and the versions of what it measured.
func refLine(r comparison.Ref) string {
	text := r.Dir + ", " + r.Started.UTC().Format(time.DateTime) + " UTC, tare " + r.Version
	for name, v := range lists.ByKey(r.Subjects) {
		if v != "" && v != r.Version {
			text += ", " + name + " " + v
		}
	}
	return text
}

// verdictOf sums up the comparison in one sentence, and names what could not be compared in a second one.
func verdictOf(c *comparison.Comparison) string {
	return strings.TrimSpace(changesOf(c) + " " + notCompared(c))
}

// notCompared names the headline figures that no run of one side has. If only other figures are missing, it counts
// them.
func notCompared(c *comparison.Comparison) string {
	var named []string
	all := 0
	for _, m := range c.Missing {
		if m.Compared {
			continue
		}
		all++
		if m.Headline {
			named = append(named, quantity.Label(m.Metric)+" of "+placeOf(m.Arm, m.Component, m.Factors))
		}
	}
	switch {
	case all == 0:
		return ""
	case len(named) == 0:
		return fmt.Sprintf("Not compared: %s.", quantity.Counted(all, "figure"))
	}
	return "Not compared: " + strings.Join(analysis.FirstOf(named, maxMoreLabels), "; ") + "."
}

// missingTexts returns a sentence for each run, place and reason, which names the figures that the run does not have.
// Unless all is set, it leaves out figures that are no headlines, and returns their number.
func missingTexts(c *comparison.Comparison, all bool) (texts []string, hidden int) {
	type reason struct{ dir, place, why string }
	var labels lists.Groups[reason, string]
	for _, m := range c.Missing {
		if !all && !m.Headline {
			hidden++
			continue
		}
		for _, in := range m.In {
			labels.Add(reason{in.Dir, placeOf(m.Arm, m.Component, m.Factors), in.Why}, quantity.Label(m.Metric))
		}
	}
	for r, of := range labels.All() {
		texts = append(texts, fmt.Sprintf("No value in %s: %s of %s (%s).", r.dir,
			strings.Join(analysis.FirstOf(of, maxMoreLabels), ", "), r.place, r.why))
	}
	return texts, hidden
}

// changesOf sums up the changes in one sentence.
func changesOf(c *comparison.Comparison) string {
	if len(c.Changes) == 0 {
		return "The runs have no estimate with an interval in common."
	}
	var named []string
	for _, x := range c.Changes {
		if x.Resolved && x.Headline {
			named = append(named, fmt.Sprintf("%s of %s (%s)", quantity.Label(x.Metric),
				placeOf(x.Arm, x.Component, x.Factors), changeText(x)))
		}
	}
	switch {
	case c.Compared == 0:
		return "No verdict: by how much these figures differ from run to run is not known. Run both again and name the " +
			"directories that hold the repeats, or name a --history with more comparable runs."
	case len(named) == 0 && c.Resolved == 0:
		return fmt.Sprintf("No change is resolved in %s.", quantity.Counted(c.Compared, "comparison"))
	case len(named) == 0:
		return fmt.Sprintf("No change of a headline is resolved; %d of %d comparisons are.", c.Resolved, c.Compared)
	}
	return "Changed: " + strings.Join(analysis.FirstOf(named, maxMoreLabels), "; ") + "."
}

func placeOf(arm, component string, factors map[string]string) string {
	text := strings.TrimSpace(arm + " " + component)
	if len(factors) > 0 {
		text += ", " + record.LevelName(factors)
	}
	return text
}

// effectText formats the effect of a run; a ratio is shown as a change from the baseline.
func effectText(v float64, scale comparison.Scale, unit string) string {
	switch scale {
	case comparison.Ratio:
		return percent(v)
	case comparison.Difference:
		return quantity.DeltaValue(v, unit)
	}
	return quantity.Value(v, unit)
}

// changeUnit returns the unit of a change; the change of a ratio is a fraction.
func changeUnit(x comparison.Change) string {
	if x.Scale == comparison.Ratio {
		return quantity.Part
	}
	return x.Unit
}

func changeText(x comparison.Change) string {
	unit := changeUnit(x)
	switch {
	case x.Lo == nil || x.Hi == nil:
		return quantity.DeltaValue(x.Value, unit) + ", no verdict"
	case !x.Resolved:
		return "not resolved"
	}
	return quantity.Delta(x.Value, *x.Lo, *x.Hi, unit)
}

func seesText(x comparison.Change) string {
	if x.Lo == nil || x.Hi == nil {
		return "-"
	}
	return quantity.Rough((*x.Hi-*x.Lo)/2, changeUnit(x))
}

// betweenTexts returns a sentence for each source of the variance between runs.
func betweenTexts(c *comparison.Comparison) (texts []string) {
	count := map[comparison.Between]int{}
	freedom := map[comparison.Between][2]float64{}
	for _, x := range c.Changes {
		r := freedom[x.Between]
		if count[x.Between]++; count[x.Between] == 1 {
			r = [2]float64{x.Freedom, x.Freedom}
		}
		freedom[x.Between] = [2]float64{min(r[0], x.Freedom), max(r[1], x.Freedom)}
	}
	for _, from := range []struct {
		name comparison.Between
		text string
	}{
		{comparison.Repeats, "repeats of the same among these runs"},
		{comparison.History, fmt.Sprintf("the history of %s", quantity.Counted(len(c.History), "run"))},
		{comparison.Twins, "the A/A twins, which give the wider interval"},
	} {
		if n := count[from.name]; n > 0 {
			degrees := fmt.Sprintf("%.3g", freedom[from.name][0])
			if r := freedom[from.name]; r[1] > r[0] {
				degrees += fmt.Sprintf(" to %.3g", r[1])
			}
			texts = append(texts, fmt.Sprintf("In %s the variance between runs is from %s (%s degrees of freedom).",
				quantity.Counted(n, "comparison"), from.text, degrees))
		}
	}
	if n := count[comparison.Unknown]; n > 0 && c.Compared > 0 {
		texts = append(texts, fmt.Sprintf("In %s it is not known, so there is no verdict.",
			quantity.Counted(n, "comparison")))
	}
	return texts
}

// History writes the history of an experiment for a terminal: a sparkline for each metric, and its shifts.
func History(w io.Writer, c *comparison.Course, o Options) error {
	t := newText(w, o)
	t.history(c)
	return put(w, t.b.String(), "the history")
}

func (t *screen) history(c *comparison.Course) {
	first, last := c.Runs[0], c.Runs[len(c.Runs)-1]
	t.linef("%s: %s, %s to %s", t.bold(clean(c.Experiment)), quantity.Counted(len(c.Runs), "run"),
		first.Started.UTC().Format(time.DateOnly), last.Started.UTC().Format(time.DateOnly))
	t.line("")
	rows := [][]string{{"", "arm", "course", "first", "last", "shifts"}}
	var shown []comparison.Line
	for _, l := range c.Lines {
		if t.All || l.Headline || len(l.Shifts) > 0 {
			shown = append(shown, l)
			rows = append(rows, historyCells(c, l))
		}
	}
	t.columns(rows, nil, false)
	t.wrap("", historyNote(c)+fmt.Sprintf(" A course is drawn from its lowest to its highest run, of the last %d "+
		"runs; a dot is a run without a comparable figure.", maxSpark))
	for _, text := range leftOutTexts(c, shown) {
		t.wrap("", text)
	}
	t.hidden(len(c.Lines)-len(shown), "further line", " without a shift")
}

// historyNote explains what a line of the history shows, and what counts as a shift.
func historyNote(c *comparison.Course) string {
	const own = "Each run is against its own baseline; - is a run without a comparable figure."
	if len(c.Runs) < comparison.MinShiftRuns {
		return own + fmt.Sprintf(" Shifts can be found in %d runs or more.", comparison.MinShiftRuns)
	}
	text := own + " A shift is where the runs before and after lie further apart than in 99 % of random orders"
	if n := len(c.Lines) / 100; n > 0 {
		text += fmt.Sprintf("; of %d lines chance alone shifts about %d", len(c.Lines), n)
	}
	return text + "."
}

// leftOutTexts returns a sentence for each group of runs that lines leave out.
func leftOutTexts(c *comparison.Course, lines []comparison.Line) (texts []string) {
	var labels lists.Groups[string, string]
	for _, l := range lines {
		if len(l.LeftOut) > 0 {
			runs := lists.Map(l.LeftOut, func(run int) string { return c.Runs[run].Dir })
			labels.Add(fmt.Sprintf("%d of %s, whose versions of Tare measured these in another way (%s)", len(runs),
				quantity.Counted(len(c.Runs), "run"), strings.Join(analysis.FirstOf(runs, maxMoreLabels), ", ")),
				quantity.Label(l.Metric)+" of "+placeOf(l.Arm, l.Component, l.Factors))
		}
	}
	for runs, of := range labels.All() {
		texts = append(texts, fmt.Sprintf("Left out: %s: %s.", runs,
			strings.Join(analysis.FirstOf(of, maxMoreLabels), "; ")))
	}
	return texts
}

func historyCells(c *comparison.Course, l comparison.Line) []string {
	at := func(p comparison.Point, run int) string {
		if p.Run != run {
			return "-"
		}
		return effectText(p.Value, l.Scale, l.Unit)
	}
	return []string{
		clean(quantity.Label(l.Metric)), clean(placeOf(l.Arm, l.Component, l.Factors)), sparkline(l, len(c.Runs)),
		at(l.Points[0], 0), at(l.Points[len(l.Points)-1], len(c.Runs)-1), clean(shiftText(c, l)),
	}
}

// shiftText describes each shift of a line: the levels before and after it, and the first run after it.
func shiftText(c *comparison.Course, l comparison.Line) string {
	var all []string
	for _, s := range l.Shifts {
		r := c.Runs[s.Run]
		all = append(all, fmt.Sprintf("from %s to %s since %s (%s)", effectText(s.Before, l.Scale, l.Unit),
			effectText(s.After, l.Scale, l.Unit), r.Started.UTC().Format(time.DateTime), r.Dir))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, "; ")
}

// courseAnswer sums up in one sentence which lines shifted. Lines with a shift must come first.
func courseAnswer(c *comparison.Course, lines []comparison.Line) string {
	var named []string
	for _, l := range lines {
		if len(l.Shifts) > 0 {
			named = append(named, fmt.Sprintf("%s of %s %s", quantity.Label(l.Metric), placeOf(l.Arm, l.Component, l.Factors),
				shiftText(c, l)))
		}
	}
	over := quantity.Counted(len(c.Runs), "run")
	if len(named) == 0 {
		return fmt.Sprintf("None of %s shifted over %s.", quantity.Counted(len(lines), "figure"), over)
	}
	return fmt.Sprintf("%d of %s shifted over %s: %s.", len(named), quantity.Counted(len(lines), "figure"), over,
		strings.Join(analysis.FirstOf(named, maxMoreLabels), "; "))
}

// bars are the blocks of a sparkline, from lowest to highest.
var bars = []rune("▁▂▃▄▅▆▇█")

// maxSpark is the maximum number of runs that a sparkline shows. It shows the latest.
const maxSpark = 40

// sparkline draws a line over the runs as blocks, scaled between its lowest and its highest effect.
func sparkline(l comparison.Line, runs int) string {
	at := map[int]float64{}
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, p := range l.Points {
		at[p.Run] = p.Value
		lo, hi = min(lo, p.Value), max(hi, p.Value)
	}
	var b strings.Builder
	for run := max(0, runs-maxSpark); run < runs; run++ {
		v, has := at[run]
		switch {
		case !has:
			b.WriteRune('.')
		case hi == lo:
			b.WriteRune(bars[len(bars)/2])
		default:
			b.WriteRune(bars[min(max(int((v-lo)/(hi-lo)*float64(len(bars)-1)+0.5), 0), len(bars)-1)])
		}
	}
	return b.String()
}
