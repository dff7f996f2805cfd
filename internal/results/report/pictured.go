package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
)

// This file makes the displays that any guest can have in addition to its metrics: ladders of metrics, placements, and
// amounts over time. They depend on the contents of the record, not on the name of the guest.

// ladders returns the metrics that are rungs, by ladder, in the order in which they are defined.
func ladders(run record.Run) (rungs lists.Groups[string, metric.Definition]) {
	for _, d := range run.Metrics {
		if d.Ladder != "" {
			rungs.Add(d.Ladder, d)
		}
	}
	return rungs
}

// ladderTables returns the ladders of a run, one table for each level: a row for each rung, a cell for each arm. The
// twin is left out if there are other arms.
func ladderTables(s *analysis.Summary, run record.Run) (all []htmlTable) {
	levels, arms := placesOf(s)
	ladders := ladders(run)
	for title, rungs := range ladders.All() {
		for _, level := range levels {
			on := slices.DeleteFunc(slices.Clone(arms), func(arm string) bool {
				return !slices.ContainsFunc(rungs, func(d metric.Definition) bool { return s.Find(d.Name, arm, level) != nil })
			})
			t := htmlTable{Title: analysis.Capital(title), Level: s.At(level), Heads: lists.Map(on, s.ArmName)}
			for _, d := range rungs {
				found := lists.Map(on, func(arm string) *analysis.Estimate { return s.Find(d.Name, arm, level) })
				if slices.ContainsFunc(found, func(e *analysis.Estimate) bool { return e != nil }) {
					t.Rows = append(t.Rows, tableRow{Name: d.Rung, Cells: lists.Map(found, textOf)})
				}
			}
			if len(t.Rows) > 0 {
				all = append(all, t)
			}
		}
	}
	return all
}

// placesOf returns the levels and arms of the estimates, in their order. The twin is left out if there are other arms.
func placesOf(s *analysis.Summary) (levels []map[string]string, arms []string) {
	seen := map[string]bool{}
	found := map[string]bool{}
	for _, e := range s.Estimates {
		if key := record.LevelKey(e.Factors); !seen[key] {
			seen[key] = true
			levels = append(levels, e.Factors)
		}
		found[e.Arm] = true
	}
	if len(found) > 2 {
		delete(found, record.AA)
	}
	return levels, slices.SortedFunc(maps.Keys(found), analysis.CompareArms)
}

// placementTable shows where the memory and CPU time of one arm are charged: a column for each place.
type placementTable struct {
	Arm, Level string
	Rows       []placementRow
}

type placementRow struct {
	Name  string // a component, or the quantity that the whole row shows
	Whole bool
	Cells []placementCell // in the order of the places
}

type placementCell struct{ Memory, CPU string }

// placedNote is the text above the tables.
const placedNote = "means over the trials that did not fail. Components have the resident memory (PSS) of their " +
	"processes at the place where the next page would be charged, and CPU time at the place where it is charged. The " +
	"other rows have what the kernel charges to the control groups, including kernel memory"

// placementTables returns the tables of a summary, without the twin if there are other arms, and the places that are
// their columns.
func placementTables(s *analysis.Summary) (places []string, all []placementTable) {
	shown := withoutTwin(s.Placements, func(p analysis.Placement) string { return p.Arm })
	// The places are in the order of the placement with the most of them.
	longest := slices.Clone(shown)
	slices.SortStableFunc(longest, func(a, b analysis.Placement) int { return cmp.Compare(len(b.Places), len(a.Places)) })
	for _, p := range longest {
		for _, at := range p.Places {
			places = lists.Include(places, at.Name)
		}
	}
	for _, p := range shown {
		t := placementTable{Arm: s.ArmName(p.Arm), Level: s.At(p.Factors)}
		var components []string
		for _, at := range p.Places {
			for _, c := range at.Components {
				components = lists.Include(components, c.Component)
			}
		}
		row := func(name string, whole bool, of func(record.Place) (memory, cpu *float64, is bool)) {
			r := placementRow{Name: name, Whole: whole}
			for _, place := range places {
				i := slices.IndexFunc(p.Places, func(at record.Place) bool { return at.Name == place })
				cell := placementCell{}
				if i >= 0 {
					if memory, cpu, is := of(p.Places[i]); is {
						cell = placementCell{orDash(memory, quantity.Bytes), orDash(cpu, quantity.CPUs)}
					}
				}
				r.Cells = append(r.Cells, cell)
			}
			t.Rows = append(t.Rows, r)
		}
		for _, component := range components {
			row(component, false, func(at record.Place) (memory, cpu *float64, is bool) {
				for _, c := range at.Components {
					if c.Component == component {
						return c.Bytes, c.CPUs, true
					}
				}
				return nil, nil, false
			})
		}
		row("charged, hard", true, func(at record.Place) (memory, cpu *float64, is bool) {
			return at.HardBytes, at.CPUs, true
		})
		row("charged, page cache", true, func(at record.Place) (memory, cpu *float64, is bool) {
			return at.SoftBytes, nil, at.SoftBytes != nil
		})
		row("Kubernetes counts", true, func(at record.Place) (memory, cpu *float64, is bool) {
			return at.Kubernetes, at.CPUs, at.Kubernetes != nil
		})
		all = append(all, t)
	}
	return places, all
}

// String formats a cell for a line of text.
func (c placementCell) String() string {
	switch {
	case c.Memory == "":
		return "-"
	case c.CPU == "" || c.CPU == "-":
		return c.Memory
	}
	return c.Memory + ", " + c.CPU
}

// lines returns the rows of a table, its head first.
func (t htmlTable) lines(head string) [][]string {
	rows := [][]string{slices.Concat([]string{head}, t.Heads)}
	for _, r := range t.Rows {
		rows = append(rows, slices.Concat([]string{r.Name}, r.Cells))
	}
	return rows
}

// pictured writes ladders and placements for a terminal.
func (t *screen) pictured(s *analysis.Summary, run record.Run) {
	for _, l := range ladderTables(s, run) {
		t.columns(l.lines(strings.TrimSpace(l.Title+" "+l.Level)), nil, true)
	}
	places, tables := placementTables(s)
	for i, p := range tables {
		if i == 0 {
			t.wrap("", t.bold("Who is charged")+": "+placedNote)
		}
		rows := [][]string{slices.Concat([]string{strings.TrimSpace(p.Arm + " " + p.Level)}, places)}
		for _, r := range p.Rows {
			rows = append(rows, slices.Concat([]string{"  " + r.Name}, lists.Map(r.Cells, placementCell.String)))
		}
		t.columns(rows, nil, true)
	}
}

// picturedMarkdown returns ladders and placements in Markdown; empty if there is nothing to show.
func picturedMarkdown(s *analysis.Summary, run record.Run) string {
	var b strings.Builder
	for _, l := range ladderTables(s, run) {
		fmt.Fprintf(&b, "\n## %s\n\n%s", escape(strings.TrimSpace(l.Title+" "+l.Level)), text.MarkdownTable(l.lines(""), 1))
	}
	places, tables := placementTables(s)
	if len(tables) == 0 {
		return b.String()
	}
	rows := [][]string{slices.Concat([]string{"arm", ""}, places)}
	for _, p := range tables {
		arm := strings.TrimSpace(p.Arm + " " + p.Level)
		for _, r := range p.Rows {
			rows = append(rows, slices.Concat([]string{arm, r.Name}, lists.Map(r.Cells, placementCell.String)))
			arm = "" // only the first row has the name of the arm
		}
	}
	fmt.Fprintf(&b, "\n## Who is charged\n\n%s.\n\n%s", analysis.Capital(placedNote), text.MarkdownTable(rows, 2))
	return b.String()
}

// chartPlaced is an amount of one arm that is charged to one place.
type chartPlaced struct {
	place
	Group string  `json:"group"` // the kind of amount; each kind has its own chart
	Unit  string  `json:"unit"`
	Place string  `json:"part"`
	Value float64 `json:"value"`
	Text  string  `json:"text"`
}

// placed collects the charges of all shown arms.
func (m *dataMaker) placed() {
	places, _ := placementTables(m.s)
	for _, p := range m.s.Placements {
		at := m.placeOf(p.Arm, p.Factors)
		if !slices.Contains(m.shownArms(), at.Arm) {
			continue
		}
		add := func(what, unit, place string, v *float64) {
			if v != nil && *v > 0 && analysis.Usable(*v) {
				m.Placed = append(m.Placed, chartPlaced{place: at, Group: what, Unit: unit,
					Place: clean(place), Value: *v, Text: quantity.Value(*v, unit)})
			}
		}
		for _, place := range p.Places {
			add("hard memory", quantity.Bytes, place.Name, place.HardBytes)
			add("CPU time", quantity.CPUs, place.Name, place.CPUs)
		}
	}
	order := func(p chartPlaced) int {
		return slices.IndexFunc(places, func(name string) bool { return clean(name) == p.Place })
	}
	slices.SortStableFunc(m.Placed, func(a, b chartPlaced) int { return cmp.Compare(order(a), order(b)) })
}

// chartCourse is a series of one trial of an arm, drawn as stacked areas.
type chartCourse struct {
	place
	Name    string            `json:"name"`
	Unit    string            `json:"unit"`
	Trial   int               `json:"trial"` // from 1, as in the progress of the run
	Of      int               `json:"of"`
	Seconds []float64         `json:"seconds"`
	Parts   []chartCoursePart `json:"parts"`
}

type chartCoursePart struct {
	Of     string     `json:"of"`
	Kind   string     `json:"kind"`
	Values []*float64 `json:"values"`
}

// courses collects the series of all shown arms.
func (m *dataMaker) courses() {
	for _, c := range analysis.Courses(m.trials) {
		at := m.placeOf(c.Arm, c.Factors)
		if !slices.Contains(m.shownArms(), at.Arm) {
			continue
		}
		one := chartCourse{place: at, Name: clean(c.Name), Unit: c.Unit, Trial: c.Index + 1, Of: c.Of,
			Seconds: c.Seconds}
		for _, p := range c.Parts {
			one.Parts = append(one.Parts, chartCoursePart{clean(p.Of), clean(p.Kind), p.Values})
		}
		m.Courses = append(m.Courses, one)
	}
}

// courseTables returns the courses as tables, by series and level: a row for each part of each arm, with the amount at
// the first moment, at the last, and the largest.
func (d *chartData) courseTables() (all []htmlTable) {
	type head struct {
		name  string
		level int
	}
	var tables lists.Groups[head, tableRow]
	for _, c := range d.Courses {
		for n, p := range c.Parts {
			largest := 0.0
			for _, v := range p.Values {
				largest = max(largest, known.Or(v, 0))
			}
			row := d.row("", c.place, orDash(p.Values[0], c.Unit), orDash(p.Values[len(p.Values)-1], c.Unit),
				quantity.Value(largest, c.Unit))
			if row.Part, row.Note = p.Of, p.Kind; n == 0 {
				row.Name, row.First = fmt.Sprintf("%s, trial %d", row.Arm, c.Trial), true
			}
			tables.Add(head{c.Name, c.Level}, row)
		}
	}
	for of, rows := range tables.All() {
		all = append(all, htmlTable{Title: analysis.Capital(of.name), Level: d.Levels[of.level].Name, Rows: rows})
	}
	return all
}
