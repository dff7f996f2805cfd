package report

import (
	"fmt"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// The tables next to the charts show the same numbers, for readers who cannot see a chart or prefer text.

// htmlTable is a table of the page. Title and Level distinguish it from others of its kind.
type htmlTable struct {
	Title, Level string
	Heads        []string // heads of Cells; the columns before these have fixed heads
	Rows         []tableRow
}

// tableRow is a row about an arm at a level, or about something with a name: a node, an application, a kind of memory.
type tableRow struct {
	Name, Arm, Level string
	Part             string // what part of the named thing the row is about
	Note             string // details in the row: the kind of a part, or half the width of the A/A band
	First            bool   // the first of several rows that belong together
	Cells            []string
}

// row returns a row about an arm at a level. The name may be empty.
func (d *chartData) row(name string, at place, cells ...string) tableRow {
	return tableRow{Name: name, Arm: d.Arms[at.Arm].Name, Level: d.Levels[at.Level].Name, Cells: cells}
}

// at returns the arm of a row, with the level if there is one.
func (r tableRow) at() string { return strings.TrimSpace(r.Arm + " " + r.Level) }

// percentile formats a quantile as a percentage: "50 %", "99.9 %".
func percentile(q float64) string { return fmt.Sprintf("%.6g %%", 100*q) }

// curveTables returns a table of latency by percentile for each level: a cell for each arm, and a note with half
// the width of the A/A band.
func (d *chartData) curveTables() (all []htmlTable) {
	for level := range d.Levels {
		t := htmlTable{Level: d.Levels[level].Name}
		cells := map[float64]map[string]string{}
		visible := map[float64]string{}
		for _, c := range d.Curves {
			if c.Level != level {
				continue
			}
			arm := d.Arms[c.Arm].Name
			t.Heads = append(t.Heads, arm)
			for _, p := range c.Points {
				if cells[p.Q] == nil {
					cells[p.Q] = map[string]string{}
				}
				cells[p.Q][arm] = p.Text
				if p.Visible != nil {
					visible[p.Q] = quantity.Rough(*p.Visible, quantity.Seconds)
				}
			}
		}
		for q, of := range lists.ByKey(cells) {
			t.Rows = append(t.Rows, tableRow{Name: percentile(q), Note: visible[q],
				Cells: lists.Map(t.Heads, func(arm string) string { return of[arm] })})
		}
		if len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// cpuTables returns a table of the CPU budget for each level. It has a row for each part that some arm has, grouped by
// bar, with a cell for each arm. The last rows are the idle time and the capacity.
func (d *chartData) cpuTables() (all []htmlTable) {
	for level := range d.Levels {
		t := htmlTable{Level: d.Levels[level].Name}
		var sums []chartCPU
		for _, c := range d.CPUSum {
			if c.Level == level {
				t.Heads = append(t.Heads, d.Arms[c.Arm].Name)
				sums = append(sums, c)
			}
		}
		if len(sums) == 0 {
			continue
		}
		last := ""
		row := func(bar, part string, of func(chartCPU) float64) {
			r := tableRow{Part: part}
			some := false
			for _, c := range sums {
				v := of(c)
				some = some || v != 0
				r.Cells = append(r.Cells, inSeconds(v*c.Capacity)+" ["+quantity.Value(v, quantity.Part)+"]")
			}
			if !some {
				return
			}
			if bar != last {
				r.Name, last = bar, bar // only the first row of a bar has its name
			}
			t.Rows = append(t.Rows, r)
		}
		for _, part := range analysis.BudgetParts {
			row(part.Bar, part.Name, func(c chartCPU) float64 {
				x := lists.Find(d.CPU, func(x *chartPart) bool { return x.place == c.place && x.Part == part.Name })
				if x == nil {
					return 0
				}
				return x.Value
			})
		}
		row("idle", "idle", func(c chartCPU) float64 { return c.Idle })
		row("capacity", "capacity", func(chartCPU) float64 { return 1 })
		all = append(all, t)
	}
	return all
}

// trialRow is one trial in the table of trials. Its cells are in the order of the metrics in the head.
type trialRow struct {
	Index, Block int
	At           string
	Arm, Level   string
	Valid        bool
	Why          string
	Cells        []string
}

// maxTrialMetrics is the maximum number of metrics in the table of trials; trials.jsonl has all.
const maxTrialMetrics = 7

// trialRows returns the table of trials. Its metrics are the first maxTrialMetrics that differ between trials, without
// those about the load generator.
func (d *chartData) trialRows() (head []string, rows []trialRow) {
	var metrics []string
	for _, m := range d.Metrics {
		if !m.Lag && len(metrics) < maxTrialMetrics && d.varies(m.Name) {
			metrics, head = append(metrics, m.Name), append(head, m.Label)
		}
	}
	for _, t := range d.Trials {
		r := trialRow{Index: t.Index, Block: t.Block, At: fmt.Sprintf("%.1f s", t.At), Arm: d.Arms[t.Arm].Name,
			Level: d.Levels[t.Level].Name, Valid: t.Valid, Why: t.Why}
		for _, m := range metrics {
			text, ok := t.Texts[m]
			if !ok {
				text = "-"
			}
			r.Cells = append(r.Cells, text)
		}
		rows = append(rows, r)
	}
	return head, rows
}

// varies reports whether a metric has different values in different trials.
func (d *chartData) varies(metric string) bool {
	first, seen := 0.0, false
	for _, t := range d.Trials {
		v, ok := t.Values[metric]
		if ok && seen && v != first {
			return true
		}
		if ok && !seen {
			first, seen = v, true
		}
	}
	return false
}
