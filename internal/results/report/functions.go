package report

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
)

// functionsNote is the text above the tables of functions.
const functionsNote = "means over blocks by samples of stacks, and the difference to the baseline paired by block. " +
	"A function of user code has only the time of its own code; an entry into the kernel, such as a system call, has " +
	"all the time spent there. All intervals of a table hold at the same time (95 %, Bonferroni); ~: inside noise"

// functionTables returns a table for each arm at each level with the functions that make up its difference, unless that
// is withheld.
func functionTables(s *analysis.Summary) (all []htmlTable) {
	for i := range s.Functions {
		f := &s.Functions[i]
		if f.Withheld {
			continue
		}
		t := htmlTable{
			Title: analysis.Capital(f.What()) + " of " + s.ArmName(f.Arm), Level: s.At(f.Factors),
			Heads: []string{"baseline", "difference"},
		}
		add := func(name, part, baseline, difference string, resolved bool) {
			if !resolved {
				difference += unresolved
			}
			t.Rows = append(t.Rows, tableRow{Name: name, Part: part, Cells: []string{baseline, difference}})
		}
		for _, d := range f.Considered {
			add(d.String(), d.Part, quantity.Value(d.Baseline, f.Unit), d.Difference.Signed(f.Unit), d.Resolved)
		}
		add("all others", "", "", analysis.Interval{Value: f.Rest}.Signed(f.Unit), false)
		add("total", "", quantity.Value(f.Baseline, f.Unit), f.Difference.Signed(f.Unit), true)
		all = append(all, t)
	}
	return all
}

// title returns the title of a table with its level.
func (t htmlTable) title() string { return strings.TrimSpace(t.Title + " " + t.Level) }

// functions writes the tables for a terminal.
func (t *screen) functions(s *analysis.Summary) {
	for i, of := range functionTables(s) {
		if i == 0 {
			t.wrap("", t.bold("Where the difference is")+": "+functionsNote)
		}
		rows := [][]string{{clean(of.title()), "baseline", "difference", "part of the trial"}}
		for _, r := range of.Rows {
			rows = append(rows, []string{"  " + clean(r.Name), r.Cells[0], r.Cells[1], clean(r.Part)})
		}
		t.columns(rows, nil, false)
	}
}

// namedFunctions writes the functions with a resolved difference at the last level, at most analysis.MaxNamedFunctions
// of each arm.
func (t *screen) namedFunctions(s *analysis.Summary) {
	var rows [][]string
	for i := range s.Functions {
		f := &s.Functions[i]
		if record.LevelKey(f.Factors) != record.LevelKey(s.Functions[len(s.Functions)-1].Factors) {
			continue
		}
		named := f.Named()
		if len(named) == 0 {
			continue
		}
		rows = append(rows, []string{clean(strings.TrimSpace(fmt.Sprintf("%s of %s %s",
			analysis.Capital(f.What()), s.ArmName(f.Arm), s.At(f.Factors)))), f.Difference.Signed(f.Unit), ""})
		for _, d := range named[:min(len(named), analysis.MaxNamedFunctions)] {
			rows = append(rows, []string{"  " + clean(d.String()), d.Difference.Signed(f.Unit), clean(d.Part)})
		}
	}
	if len(rows) > 0 {
		head := []string{"Where the difference is", "by function", "part of the trial"}
		t.columns(slices.Concat([][]string{head}, rows), nil, false)
	}
}

// functionsMarkdown returns the tables in Markdown; empty if there are none.
func functionsMarkdown(s *analysis.Summary) string {
	var b strings.Builder
	for i, of := range functionTables(s) {
		if i == 0 {
			fmt.Fprintf(&b, "\n## Where the difference is\n\n%s.\n", analysis.Capital(functionsNote))
		}
		rows := [][]string{{of.title(), "part of the trial", "baseline", "difference"}}
		for _, r := range of.Rows {
			rows = append(rows, []string{r.Name, r.Part, r.Cells[0], r.Cells[1]})
		}
		b.WriteString("\n" + text.MarkdownTable(rows, 2))
	}
	return b.String()
}
