package report

import (
	"fmt"
	"math"
	"slices"

	"tare/internal/experiment/metric"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// totalOf formats one sum, with the number of trials that have the metric if some do not; a dash if none has it.
func totalOf(s analysis.EventSum, metric string) string {
	v, ok := s.Total[metric]
	if !ok || math.Abs(v) > 1e15 {
		return "-"
	}
	total := quantity.Thousands(int(math.Round(v)))
	if known := s.Known[metric]; known < s.Trials {
		total += fmt.Sprintf(" (in %d of %d trials)", known, s.Trials)
	}
	return total
}

// partOf formats a sum as a fraction of the sum that it is part of, in brackets. It is empty if the sum is 0 or is not
// part of another, or if some trial lacks one of the two: they would be sums over different trials.
func partOf(s analysis.EventSum, d metric.Definition) string {
	if s.Known[d.Name] < s.Trials || s.Known[d.TallyOf] < s.Trials {
		return ""
	}
	if some, all := s.Total[d.Name], s.Total[d.TallyOf]; some != 0 && all > 0 {
		return " (" + quantity.Value(some/all, quantity.Part) + ")"
	}
	return ""
}

// eventTable returns exact counts: the outcomes of the events of all valid trials, by arm and level, with a column for
// each metric that is a tally. Counts that only a subject has are missing for the baseline.
func (m *dataMaker) eventTable() htmlTable {
	tallies := analysis.Tallies(m.run)
	all := htmlTable{Heads: []string{"trials"}}
	for _, d := range tallies {
		all.Heads = append(all.Heads, clean(d.Tally))
		if d.TallyOf != "" {
			all.Heads = append(all.Heads, "trials that "+clean(d.Tally))
		}
	}
	for _, s := range analysis.EventSums(m.run, m.trials) {
		at := m.placeOf(s.Arm, s.Factors)
		if !slices.Contains(m.shownArms(), at.Arm) {
			continue
		}
		row := m.row("", at, quantity.Thousands(s.Trials))
		for _, d := range tallies {
			row.Cells = append(row.Cells, totalOf(s, d.Name)+partOf(s, d))
			if d.TallyOf == "" {
				continue
			}
			some := "-"
			if _, counted := s.Total[d.Name]; counted {
				some = fmt.Sprintf("%d of %d", s.Some[d.Name], s.Known[d.Name])
			}
			row.Cells = append(row.Cells, some)
		}
		all.Rows = append(all.Rows, row)
	}
	return all
}

// nodeTable returns the counts by node, for runs on several nodes.
func (m *dataMaker) nodeTable() htmlTable {
	tallies, each := analysis.Tallies(m.run), analysis.EachNode(m.run)
	all := htmlTable{Heads: []string{"trials", "failed"}}
	all.Heads = append(all.Heads, lists.Map(tallies, func(d metric.Definition) string { return clean(d.Tally) })...)
	all.Heads = append(all.Heads, clean(quantity.Label(each.Name))+", median", "clock known to")
	for _, s := range analysis.NodeSums(m.run, m.trials) {
		row := m.row(s.Node, m.placeOf(s.Arm, s.Factors), quantity.Thousands(s.Trials), quantity.Thousands(s.Failed))
		for _, d := range tallies {
			row.Cells = append(row.Cells, totalOf(s.EventSum, d.Name))
		}
		row.Cells = append(row.Cells, orDash(s.Cost, each.Unit), orDash(s.Clock, quantity.Seconds))
		all.Rows = append(all.Rows, row)
	}
	return all
}
