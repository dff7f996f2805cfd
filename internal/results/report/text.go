package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
)

func init() {
	register(Format{
		Name: "text", Help: "for a terminal",
		Run:        func(w io.Writer, r *Run, o Options) error { return Text(w, r.Summary, r.Record, o) },
		Comparison: Comparison, History: History, Power: Power, Plan: Plan, Ledger: Ledger,
		Series: SeriesText,
	})
}

// Options control the output for a terminal.
type Options struct {
	Color bool   // use colors and bold text; nothing depends on them alone
	Width int    // columns for prose; 0: 100. Tables are not wrapped
	Dir   string // the run directory, shown so that readers find the files; empty: not shown
	All   bool   // show every metric, note and model, not only answers and headlines

	Ledger LedgerOptions
}

// Text writes a summary for a terminal: a brief report or, with Options.All, one with every metric, note and model.
func Text(w io.Writer, s *analysis.Summary, run record.Run, o Options) error {
	t := newText(w, o)
	if o.All {
		t.write(s, run)
	} else {
		t.brief(s, run)
	}
	return put(w, t.b.String(), "the report")
}

// put writes a document in one call. Errors refer to it by the given text, such as "the report".
func put(w io.Writer, document, what string) error {
	if _, err := io.WriteString(w, document); err != nil {
		return fmt.Errorf("writing %s: %w", what, err)
	}
	return nil
}

func newText(w io.Writer, o Options) *screen {
	t := &screen{Options: o, wide: o.Width, style: lipgloss.NewRenderer(w)}
	if o.Width <= 0 {
		t.Width, t.wide = 100, 120
	}
	t.style.SetColorProfile(termenv.Ascii)
	if o.Color {
		t.style.SetColorProfile(termenv.ANSI)
	}
	return t
}

// screen collects the text of a report, which is written at the end.
type screen struct {
	Options
	wide  int // columns for the table at the top of a report
	b     strings.Builder
	style *lipgloss.Renderer

	titles ledger.Titles
}

func (t *screen) write(s *analysis.Summary, run record.Run) {
	t.line(t.bold(clean(s.Experiment)) + "  " + clean(s.Question))
	t.line("")
	t.verdicts(s)
	lead := newLead(s, run)
	t.headline(lead)
	t.lead(lead)
	for _, a := range s.Answers {
		t.wrap("", a.Answer)
		t.line("")
	}
	for _, sec := range sections(s) {
		if sec.title != "" {
			t.line(t.bold(clean(sec.title)))
		}
		t.table(header(s), sec.rows)
	}
	t.functions(s)
	t.pictured(s, run)
	t.gross(s)
	for _, n := range notes(s, run) {
		t.wrap("note: ", n)
	}
	for _, m := range models(s) {
		t.wrap("model: ", m)
	}
	for _, warning := range s.Warnings {
		t.wrap("warning: ", warning)
	}
	for _, x := range excluded(s) {
		t.wrap("", x)
	}
	if !strings.HasSuffix(t.b.String(), "\n\n") {
		t.line("")
	}
	t.wrap("run:       ", validity(s))
	t.wrap("intervals: ", intervals(s))
	t.wrap("scale:     ", selfCost(s))
	for _, e := range environment(run) {
		if e != "" {
			t.wrap("machine:   ", e)
		}
	}
	t.wrap("started:   ", fmt.Sprintf("%s, seed %d", started(run), s.Seed))
	if t.Dir != "" {
		t.line("files:     " + clean(t.Dir))
	}
	if len(run.Command) > 0 {
		t.line("again:     " + clean(again(run)))
	}
}

// verdicts writes a table of the assertions, with a note on each that needs one.
func (t *screen) verdicts(s *analysis.Summary) {
	all := verdicts(s)
	if len(all) == 0 {
		return
	}
	cells := lists.Map(all, checked.cells)
	widths := text.Widths(cells)
	t.line(t.bold("Assertions"))
	for i, v := range all {
		t.line(text.Aligned(cells[i], widths, false))
		if v.Why != "" {
			t.wrap(strings.Repeat(" ", widths[0]+2), v.Why)
		}
	}
	t.line("")
}

func (t *screen) line(s string) { t.b.WriteString(strings.TrimRight(s, " ") + "\n") }

func (t *screen) linef(format string, args ...any) { t.line(fmt.Sprintf(format, args...)) }

func (t *screen) bold(s string) string { return t.style.NewStyle().Bold(true).Render(s) }
func (t *screen) faint(s string) string {
	return t.style.NewStyle().Faint(true).Render(s)
}

// wrap wraps prose between words. The lines after the first are indented to where the prose begins.
func (t *screen) wrap(lead, prose string) { t.b.WriteString(text.Wrap(t.Width, lead, prose)) }

// hidden writes how many rows are left out, if any.
func (t *screen) hidden(n int, row, which string) {
	if n > 0 {
		t.wrap("", quantity.Counted(n, row)+which+" are left out: --all.")
	}
}

func (t *screen) table(head row, rows []row) {
	rows = append([]row{head}, rows...)
	cells := lists.Map(rows, row.cells)
	if !slices.ContainsFunc(rows[1:], func(r row) bool { return r.Takes != "" }) {
		for i := range cells {
			cells[i] = cells[i][:len(cells[i])-1]
		}
	}
	muted := map[int]bool{}
	for n, r := range rows {
		muted[n] = r.Muted
	}
	t.columns(cells, muted, false)
}

// columns writes rows of text in aligned columns, the head first, and a blank line. All columns are left-aligned, or
// all but the first right-aligned. Muted rows are fainter.
func (t *screen) columns(rows [][]string, muted map[int]bool, right bool) {
	widths := text.Widths(rows)
	for i, r := range rows {
		line := text.Aligned(r, widths, right)
		switch {
		case i == 0:
			line = t.bold(line)
		case muted[i]:
			line = t.faint(line)
		}
		t.line(line)
	}
	t.line("")
}

func clean(s string) string { return text.Clean(s) }
