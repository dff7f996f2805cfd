package report

import (
	"fmt"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// The tables beside the charts: the same numbers, for who cannot see a chart or would rather read.

// tableRow is a row that is of an arm at a level and, where the table has several for these, of something with a name:
// a node, an application, a kind of memory.
type tableRow struct {
	Name, Arm, Level string
	Cells            []string
}

// row is one of something with a name, which may be empty, of an arm at a level.
func (d *chartData) row(name string, at place, cells ...string) tableRow {
	return tableRow{name, d.Arms[at.arm].Name, d.Levels[at.level].Name, cells}
}

// at is the arm of a row, with the level where there is one.
func (r tableRow) at() string { return strings.TrimSpace(r.Arm + " " + r.Level) }

// curveTable is latency by percentile at one level: a column for each arm, and the half-width of the A/A twins.
type curveTable struct {
	Level string
	Arms  []string
	Rows  []curveRow
}

type curveRow struct {
	Percentile string
	Cells      []string
	Visible    string
}

// percentile is q as people write it: "50 %", "99.9 %".
func percentile(q float64) string { return fmt.Sprintf("%.6g %%", 100*q) }

func (d *chartData) curveTables() []curveTable {
	var all []curveTable
	for level := range d.Levels {
		t := curveTable{Level: d.Levels[level].Name}
		cells := map[float64]map[string]string{}
		visible := map[float64]string{}
		for _, c := range d.Curves {
			if c.Level != level {
				continue
			}
			arm := d.Arms[c.Arm].Name
			t.Arms = append(t.Arms, arm)
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
			r := curveRow{Percentile: percentile(q), Visible: visible[q]}
			r.Cells = lists.Map(t.Arms, func(arm string) string { return of[arm] })
			t.Rows = append(t.Rows, r)
		}
		if len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// cpuTable is the CPU budget at one level: a column for each arm, a row for each part.
type cpuTable struct {
	Level string
	Arms  []string
	Rows  []cpuRow
}

type cpuRow struct {
	Bar, Part string // Bar stands on its first row only
	Cells     []string
}

func (d *chartData) cpuTables() []cpuTable {
	var all []cpuTable
	for level := range d.Levels {
		t := cpuTable{Level: d.Levels[level].Name}
		var sums []chartCPU
		for _, c := range d.CPUSum {
			if c.Level == level {
				t.Arms = append(t.Arms, d.Arms[c.Arm].Name)
				sums = append(sums, c)
			}
		}
		if len(sums) == 0 {
			continue
		}
		last := ""
		row := func(bar, part string, of func(chartCPU) float64) {
			r := cpuRow{Part: part}
			if bar != last {
				r.Bar, last = bar, bar
			}
			any := false
			for _, c := range sums {
				v := of(c)
				any = any || v != 0
				r.Cells = append(r.Cells, quantity.Value(v*c.Capacity, quantity.Seconds)+" ["+quantity.Value(v,
					quantity.Part)+"]")
			}
			if any {
				t.Rows = append(t.Rows, r)
			} else if r.Bar != "" {
				last = "" // the next row of this bar names it
			}
		}
		for _, part := range analysis.BudgetParts {
			row(part.Bar, part.Name, func(c chartCPU) float64 {
				for _, x := range d.CPU {
					if x.Arm == c.Arm && x.Level == c.Level && x.Part == part.Name {
						return x.Value
					}
				}
				return 0
			})
		}
		row("idle", "idle", func(c chartCPU) float64 { return c.Idle })
		row("capacity", "capacity", func(chartCPU) float64 { return 1 })
		all = append(all, t)
	}
	return all
}

// trialRow is one trial with the metrics of the head.
type trialRow struct {
	Index, Block int
	At           string
	Arm, Level   string
	Valid        bool
	Why          string
	Cells        []string
}

// maxTrialMetrics is how many metrics the table of trials has; trials.jsonl has all.
const maxTrialMetrics = 7

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

// varies says whether a metric is not the same in all trials that have it.
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
