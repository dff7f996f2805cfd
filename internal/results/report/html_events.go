package report

import (
	"fmt"
	"math"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// eventTable is a row: what became of the events of all valid trials of an arm at a level.
type eventTable struct {
	Arm, Level string
	Cells      []string // trials, generated, counted, delivered, lost, in how many trials, late, said lost
}

// nodeTable is a row: what one node counted in all valid trials of an arm at a level.
type nodeTable struct {
	Node, Arm, Level string
	Cells            []string // trials, failed, generated, delivered, lost, CPU per 1,000 events, longest clock error
}

// totalOf writes one sum; a dash where no trial has the metric.
func totalOf(s analysis.EventSum, metric string) string {
	v, ok := s.Total[metric]
	if !ok || math.Abs(v) > 1e15 {
		return "-"
	}
	return quantity.Thousands(int(math.Round(v)))
}

// lostOf writes what was lost with its part of what was counted.
func lostOf(s analysis.EventSum) string {
	text, lost, counted := totalOf(s, "events_lost"), s.Total["events_lost"], s.Total["events_counted"]
	if lost != 0 && counted > 0 {
		text += " (" + quantity.Value(lost/counted, quantity.Part) + ")"
	}
	return text
}

func (m *dataMaker) armAndLevel(s analysis.EventSum) (arm chartArm, level string) {
	return m.Arms[m.arms[s.Arm]], m.Levels[m.levels[record.LevelKey(s.Factors)]].Name
}

// eventTables are the counts of events by arm and level, the baseline's without what only a tracer has.
func (m *dataMaker) eventTables() []eventTable {
	var all []eventTable
	for _, s := range analysis.EventSums(m.trials) {
		arm, level := m.armAndLevel(s)
		if arm.Twin && len(m.Arms) > 2 {
			continue
		}
		lossy := "-"
		if _, traced := s.Total["events_lost"]; traced {
			lossy = fmt.Sprintf("%d of %d", s.Lossy, s.Trials)
		}
		all = append(all, eventTable{arm.Name, level, []string{
			quantity.Thousands(s.Trials), totalOf(s, "events_generated"), totalOf(s, "events_counted"), totalOf(s, "events_delivered"),
			lostOf(s), lossy, totalOf(s, "events_late"), totalOf(s, "events_said_lost"),
		}})
	}
	return all
}

// nodeTables are the counts by node, of runs on many.
func (m *dataMaker) nodeTables() []nodeTable {
	seconds := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return quantity.Value(*v, quantity.Seconds)
	}
	var all []nodeTable
	for _, s := range analysis.NodeSums(m.trials) {
		arm, level := m.armAndLevel(s.EventSum)
		all = append(all, nodeTable{s.Node, arm.Name, level, []string{
			quantity.Thousands(s.Trials), quantity.Thousands(s.Failed), totalOf(s.EventSum, "events_generated"),
			totalOf(s.EventSum, "events_delivered"), totalOf(s.EventSum, "events_lost"), seconds(s.CPU), seconds(s.Clock),
		}})
	}
	return all
}
