package report

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/comparison"
)

// comparisonPage is the page of a comparison or a history: tables, and for a history an SVG picture of each line,
// drawn here. It has no script and fetches nothing.
var comparisonPage = template.Must(template.New("comparison").Parse(comparisonSource))

//go:embed comparison.tmpl
var comparisonSource string

type comparisonData struct {
	Title, Question, Answer, Heading string
	Notes, Warnings, Head, Runs      []string
	Rows                             []comparisonRow
	Style                            template.CSS
}

type comparisonRow struct {
	Cells   []string
	Picture *picture
}

// picture is a line over the runs in a box of 320 by 50 units, of which 6 are margin at each edge.
type picture struct {
	Label  string
	Points []pictured
	Shifts []pictured
}

type pictured struct {
	X, Y, Lo, Hi string
	Text         string
}

func (d *comparisonData) write(w io.Writer) error {
	d.Style = template.CSS(pageStyle) // our own file
	for _, texts := range [][]string{d.Notes, d.Warnings, d.Head, d.Runs} {
		for i := range texts {
			texts[i] = clean(texts[i])
		}
	}
	return execute(w, comparisonPage, d, "the comparison as HTML")
}

// ComparisonHTML writes what changed between runs as a page.
func ComparisonHTML(w io.Writer, c *comparison.Comparison) error {
	missing, _ := missingTexts(c, true)
	d := comparisonData{
		Title: clean(c.Experiment), Question: "What changed between the old runs and the new ones?",
		Answer:  clean(verdictOf(c)),
		Heading: "Changes", Notes: slices.Concat([]string{changeNote}, betweenTexts(c), missing),
		Warnings: slices.Clone(c.Warnings),
		Head:     []string{"metric", "arm", "old", "new", "change", "sees"},
	}
	for _, x := range c.Changes {
		d.Rows = append(d.Rows, comparisonRow{Cells: changeCells(x)})
	}
	d.Runs = append(d.Runs, lists.Map(c.Old, func(r comparison.Ref) string { return "old: " + refLine(r) })...)
	d.Runs = append(d.Runs, lists.Map(c.New, func(r comparison.Ref) string { return "new: " + refLine(r) })...)
	return d.write(w)
}

// HistoryHTML writes the course of an experiment as a page, lines with a shift first.
func HistoryHTML(w io.Writer, c *comparison.Course) error {
	d := comparisonData{
		Title: clean(c.Experiment), Question: "How did it change over its runs?", Heading: "Courses",
		Notes: append([]string{historyNote(c)}, leftOutTexts(c, c.Lines)...),
		Head:  []string{"metric", "arm", "first", "last", "shifts", "course"},
	}
	lines := slices.Clone(c.Lines)
	slices.SortStableFunc(lines, func(a, b comparison.Line) int { return min(len(b.Shifts), 1) - min(len(a.Shifts), 1) })
	for _, l := range lines {
		cells := historyCells(c, l)
		d.Rows = append(d.Rows, comparisonRow{Cells: append(cells[:2:2], cells[3:]...), Picture: pictureOf(c, l)})
	}
	d.Answer = clean(courseAnswer(c, lines))
	d.Runs = lists.Map(c.Runs, refLine)
	return d.write(w)
}

// pictureOf draws a line: a point with its interval for each run, and a mark at each shift.
func pictureOf(c *comparison.Course, l comparison.Line) *picture {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, p := range l.Points {
		lo, hi = min(lo, p.Lo), max(hi, p.Hi)
	}
	if !(hi > lo) {
		lo, hi = lo-1, hi+1
	}
	x := func(run float64) string { return fmt.Sprintf("%.1f", 6+308*run/math.Max(float64(len(c.Runs)-1), 1)) }
	y := func(v float64) string { return fmt.Sprintf("%.1f", 44-38*(v-lo)/(hi-lo)) }
	p := &picture{Label: clean(fmt.Sprintf("%s of %s over %d runs; %s", quantity.Label(l.Metric),
		placeOf(l.Arm, l.Component, l.Factors), len(c.Runs), shiftText(c, l)))}
	for _, point := range l.Points {
		p.Points = append(p.Points, pictured{
			X: x(float64(point.Run)), Y: y(point.Value), Lo: y(point.Lo), Hi: y(point.Hi),
			Text: clean(strings.Join([]string{
				c.Runs[point.Run].Started.UTC().Format(time.DateTime), effectText(point.Value, l.Scale, l.Unit),
			}, ": ")),
		})
	}
	for _, s := range l.Shifts {
		p.Shifts = append(p.Shifts, pictured{X: x(float64(s.Run) - 0.5)})
	}
	return p
}
