package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// What any guest can have shown beside its metrics: a ladder of metrics, who is charged, and amounts over time. They
// hang on what the record has, and on no guest's name.

// ladderTable is a ladder at one level: a row for each rung, a column for each arm.
type ladderTable struct {
	Title, Level string
	Arms         []string
	Rows         []ladderRow
}

type ladderRow struct {
	Rung  string
	Cells []string
}

// ladders are the metrics that are rungs, by ladder, in the order in which they are defined.
func ladders(run record.Run) (rungs lists.Groups[string, metric.Definition]) {
	for _, d := range run.Metrics {
		if d.Ladder != "" {
			rungs.Add(d.Ladder, d)
		}
	}
	return rungs
}

// ladderTables are those of a run, without the twin where there are other arms.
func ladderTables(s *analysis.Summary, run record.Run) (all []ladderTable) {
	levels, arms := placesOf(s)
	ladders := ladders(run)
	for title, rungs := range ladders.All() {
		for _, level := range levels {
			t := ladderTable{Title: analysis.Capital(title), Level: s.At(level)}
			for _, arm := range arms {
				if slices.ContainsFunc(rungs, func(d metric.Definition) bool { return s.Find(d.Name, arm, level) != nil }) {
					t.Arms = append(t.Arms, arm)
				}
			}
			for _, d := range rungs {
				r := ladderRow{Rung: d.Rung}
				some := false
				for _, arm := range t.Arms {
					e := s.Find(d.Name, arm, level)
					some = some || e != nil
					r.Cells = append(r.Cells, textOf(e))
				}
				if some {
					t.Rows = append(t.Rows, r)
				}
			}
			for i, arm := range t.Arms {
				t.Arms[i] = s.ArmName(arm)
			}
			if len(t.Rows) > 0 {
				all = append(all, t)
			}
		}
	}
	return all
}

// placesOf are the levels and the arms of the estimates, in their order; the twin only where there is no other arm.
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

// placementTable says who is charged for what runs in one arm: a column for each place.
type placementTable struct {
	Arm, Level string
	Rows       []placementRow
}

type placementRow struct {
	Name  string // a component, or what the whole row is of
	Whole bool
	Cells []placementCell // in the order of the places
}

type placementCell struct{ Memory, CPU string }

// placedNote stands above the tables.
const placedNote = "means over the trials that did not fail; of a component, resident memory (PSS) of its " +
	"processes where their next page is charged, and CPU time where it is; then what the kernel charges to the control " +
	"groups, kernel memory among it"

// placementTables are those of a summary, without the twin where there are other arms, and the places that they name.
func placementTables(s *analysis.Summary) (places []string, all []placementTable) {
	shown := withoutTwin(s.Placements, func(p analysis.Placement) string { return p.Arm })
	// In the order of an arm that has the most of them, which the others follow.
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
						cell = placementCell{orDash(memory, quantity.Bytes), "-"}
						if cpu != nil {
							cell.CPU = fmt.Sprintf("%.2f", *cpu)
						}
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

// String is a cell as it stands in a line of text.
func (c placementCell) String() string {
	switch {
	case c.Memory == "":
		return "-"
	case c.CPU == "" || c.CPU == "-":
		return c.Memory
	}
	return c.Memory + ", " + c.CPU + " CPU"
}

// rows are those of the ladder as text, below the names of the arms.
func (l ladderTable) rows(head string) [][]string {
	rows := [][]string{slices.Concat([]string{head}, l.Arms)}
	for _, r := range l.Rows {
		rows = append(rows, slices.Concat([]string{r.Rung}, r.Cells))
	}
	return rows
}

// pictured writes ladders and placements for a terminal.
func (t *screen) pictured(s *analysis.Summary, run record.Run) {
	for _, l := range ladderTables(s, run) {
		t.columns(l.rows(strings.TrimSpace(l.Title+" "+l.Level)), nil, true)
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

// picturedMarkdown is the same in Markdown; empty where there is nothing.
func picturedMarkdown(s *analysis.Summary, run record.Run) string {
	var b strings.Builder
	for _, l := range ladderTables(s, run) {
		fmt.Fprintf(&b, "\n## %s\n\n%s", escape(strings.TrimSpace(l.Title+" "+l.Level)), markdownTable(l.rows(""), 1))
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
			arm = "" // which stands on its first row only
		}
	}
	fmt.Fprintf(&b, "\n## Who is charged\n\n%s.\n\n%s", analysis.Capital(placedNote), markdownTable(rows, 2))
	return b.String()
}

// chartPlaced is an amount that one place is charged, of one arm.
type chartPlaced struct {
	Arm   int     `json:"arm"`
	Level int     `json:"level"`
	Group string  `json:"group"` // what is charged, a chart of its own
	Unit  string  `json:"unit"`
	Place string  `json:"part"`
	Value float64 `json:"value"`
	Text  string  `json:"text"`
}

// placed are the charges of all arms but the twin.
func (m *dataMaker) placed() {
	places, _ := placementTables(m.s)
	for _, p := range m.s.Placements {
		at := m.placeOf(p.Arm, p.Factors)
		if !slices.Contains(m.shownArms(), at.arm) {
			continue
		}
		add := func(what, unit, place string, v *float64) {
			if v != nil && *v > 0 && analysis.Usable(*v) {
				m.Placed = append(m.Placed, chartPlaced{Arm: at.arm, Level: at.level, Group: what, Unit: unit,
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

// chartCourse is a series of one trial of an arm, to be stacked.
type chartCourse struct {
	Arm     int               `json:"arm"`
	Level   int               `json:"level"`
	Name    string            `json:"name"`
	Unit    string            `json:"unit"`
	Trial   int               `json:"trial"` // from 1, as the progress of the run counts
	Of      int               `json:"of"`
	Seconds []float64         `json:"seconds"`
	Parts   []chartCoursePart `json:"parts"`
}

type chartCoursePart struct {
	Of     string     `json:"of"`
	Kind   string     `json:"kind"`
	Values []*float64 `json:"values"`
}

// courseTable is one series at one level: a row for each part of each arm.
type courseTable struct {
	Title, Level string
	Rows         []courseRow
}

type courseRow struct {
	Arm, Of, Kind string
	First         bool // of its arm
	Trial         int
	Cells         []string // at the first moment, at the last, the largest
}

// courses are the series of all arms but the twin.
func (m *dataMaker) courses() {
	for _, c := range analysis.Courses(m.trials) {
		at := m.placeOf(c.Arm, c.Factors)
		if !slices.Contains(m.shownArms(), at.arm) {
			continue
		}
		one := chartCourse{Arm: at.arm, Level: at.level, Name: clean(c.Name), Unit: c.Unit, Trial: c.Index + 1, Of: c.Of,
			Seconds: c.Seconds}
		for _, p := range c.Parts {
			one.Parts = append(one.Parts, chartCoursePart{clean(p.Of), clean(p.Kind), p.Values})
		}
		m.Courses = append(m.Courses, one)
	}
}

// courseTables are the courses as tables, by series and level.
func (d *chartData) courseTables() (all []courseTable) {
	type head struct {
		name  string
		level int
	}
	var tables lists.Groups[head, courseRow]
	for _, c := range d.Courses {
		for n, p := range c.Parts {
			largest := 0.0
			for _, v := range p.Values {
				if v != nil {
					largest = max(largest, *v)
				}
			}
			tables.Add(head{c.Name, c.Level}, courseRow{
				Arm: d.Arms[c.Arm].Name, Of: p.Of, Kind: p.Kind, First: n == 0, Trial: c.Trial,
				Cells: []string{orDash(p.Values[0], c.Unit), orDash(p.Values[len(p.Values)-1], c.Unit),
					quantity.Value(largest, c.Unit)},
			})
		}
	}
	for of, rows := range tables.All() {
		all = append(all, courseTable{analysis.Capital(of.name), d.Levels[of.level].Name, rows})
	}
	return all
}
