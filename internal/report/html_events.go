package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// eventTable is a row: what became of the events of all valid trials of an arm at a level, exact counts that are added up.
type eventTable struct {
	Arm, Level string
	Cells      []string // trials, generated, counted, delivered, lost, in how many trials, late, said lost
}

// nodeTable is a row: what one node counted in all valid trials of an arm at a level.
type nodeTable struct {
	Node, Arm, Level string
	Cells            []string // trials, failed, generated, delivered, lost, CPU per 1,000 events, longest clock error
}

// sums adds up metrics of trials; one that no trial has is not there.
type sums struct {
	n     int
	total map[string]float64
	lossy int
}

func (s *sums) add(metrics map[string]float64) {
	s.n++
	if s.total == nil {
		s.total = map[string]float64{}
	}
	for name, v := range metrics {
		if finite(v) {
			s.total[name] += v
		}
	}
	if metrics["events_lost"] > 0 {
		s.lossy++
	}
}

func (s *sums) cell(name string) string {
	v, ok := s.total[name]
	if !ok || math.Abs(v) > 1e15 {
		return "-"
	}
	return quantity.Thousands(int(math.Round(v)))
}

// lost words what was lost with its part of what was counted.
func (s *sums) lost() string {
	lost, ok := s.total["events_lost"]
	counted := s.total["events_counted"]
	if !ok || lost == 0 || counted <= 0 {
		return s.cell("events_lost")
	}
	return s.cell("events_lost") + " (" + quantity.Value(lost/counted, quantity.Part) + ")"
}

// eventTables are the counts of events by arm and level, the baseline's without what only a tracer has.
func (m *dataMaker) eventTables() []eventTable {
	var all []eventTable
	trials := m.byPlaceOf(func(t record.Trial) bool { _, ok := t.Metrics["events_generated"]; return ok })
	for _, p := range slices.SortedFunc(maps.Keys(trials), comparePlaces) {
		if m.Arms[p.arm].Twin && len(m.Arms) > 2 {
			continue
		}
		var s sums
		for _, t := range trials[p] {
			s.add(t.Metrics)
		}
		lossy := "-"
		if _, traced := s.total["events_lost"]; traced {
			lossy = fmt.Sprintf("%d of %d", s.lossy, s.n)
		}
		all = append(all, eventTable{m.Arms[p.arm].Name, m.Levels[p.level].Name, []string{
			quantity.Thousands(s.n), s.cell("events_generated"), s.cell("events_counted"), s.cell("events_delivered"), s.lost(), lossy, s.cell("events_late"), s.cell("events_said_lost"),
		}})
	}
	return all
}

// byPlaceOf collects the valid trials that has is true of.
func (m *dataMaker) byPlaceOf(has func(record.Trial) bool) map[place][]record.Trial {
	at := map[place][]record.Trial{}
	for _, t := range m.trials {
		if t.Validity.Valid && t.Validity.Failed == "" && has(t) {
			at[m.place(t)] = append(at[m.place(t)], t)
		}
	}
	return at
}

// nodeTables are the counts by node, of runs on many.
func (m *dataMaker) nodeTables() []nodeTable {
	type row struct {
		place
		node string
	}
	type sum struct {
		sums
		failed int
		cpu    []float64
		clock  *float64 // longest error of the node's clock; null: not known
	}
	rows := map[row]*sum{}
	for _, t := range m.trials {
		for _, n := range t.Nodes {
			key := row{m.place(t), n.Name}
			if rows[key] == nil {
				rows[key] = &sum{}
			}
			s := rows[key]
			if n.ClockError != nil {
				known := math.Abs(float64(*n.ClockError)) / 1e9
				if s.clock == nil || known > *s.clock {
					s.clock = &known
				}
			}
			if n.Failed != "" || n.Trial == nil {
				s.failed++
				continue
			}
			s.add(n.Trial.Metrics)
			if v, ok := n.Trial.Metrics["cpu_seconds_per_kiloevent"]; ok && finite(v) {
				s.cpu = append(s.cpu, v)
			}
		}
	}
	var all []nodeTable
	for _, key := range slices.SortedFunc(maps.Keys(rows), func(a, b row) int {
		return cmp.Or(comparePlaces(a.place, b.place), cmp.Compare(len(a.node), len(b.node)), cmp.Compare(a.node, b.node))
	}) {
		s := rows[key]
		cpu, clock := "-", "-"
		if s.clock != nil {
			clock = quantity.Value(*s.clock, quantity.Seconds)
		}
		if len(s.cpu) > 0 {
			cpu = quantity.Value(stats.Median(s.cpu).Value, quantity.Seconds)
		}
		all = append(all, nodeTable{key.node, m.Arms[key.arm].Name, m.Levels[key.level].Name, []string{
			quantity.Thousands(s.n), quantity.Thousands(s.failed), s.cell("events_generated"), s.cell("events_delivered"), s.cell("events_lost"), cpu, clock,
		}})
	}
	return all
}
