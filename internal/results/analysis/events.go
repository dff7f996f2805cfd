package analysis

import (
	"cmp"
	"math"
	"slices"

	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
)

// EventSum is what became of the events of all valid trials of an arm at a level: exact counts, which are added up.
type EventSum struct {
	Arm     string
	Factors map[string]string
	Trials  int
	Lossy   int                // of these: any event was lost
	Total   map[string]float64 // by metric; one that no trial has is not there
}

func (s *EventSum) add(metrics map[string]float64) {
	s.Trials++
	for name, v := range metrics {
		if Usable(v) {
			s.Total[name] += v
		}
	}
	if metrics["events_lost"] > 0 {
		s.Lossy++
	}
}

// compareEvents orders sums by level, and then by arm.
func compareEvents(a, b EventSum) int {
	return cmp.Or(compareFactors(a.Factors, b.Factors), CompareArms(a.Arm, b.Arm))
}

// EventSums are the counts of events by level and arm, of the trials in which events were made.
func EventSums(trials []record.Trial) []EventSum {
	sums := map[levelArm]*EventSum{}
	for _, t := range trials {
		if _, made := t.Metrics["events_generated"]; !made || !valid(t) {
			continue
		}
		key := levelArm{record.LevelKey(t.Factors), t.Arm}
		if sums[key] == nil {
			sums[key] = &EventSum{Arm: t.Arm, Factors: t.Factors, Total: map[string]float64{}}
		}
		sums[key].add(t.Metrics)
	}
	var all []EventSum
	for _, s := range sums {
		all = append(all, *s)
	}
	slices.SortFunc(all, compareEvents)
	return all
}

// NodeSum is what one node counted in all trials of an arm at a level.
type NodeSum struct {
	EventSum
	Node   string
	Failed int      // trials in which the node failed
	CPU    *float64 // median of the CPU seconds per 1,000 events; nil: no trial has it
	Clock  *float64 // longest error of the node's clock in seconds; nil: not known
}

// NodeSums are the counts of runs on many nodes, by level, arm and node.
func NodeSums(trials []record.Trial) []NodeSum {
	type key struct {
		levelArm
		node string
	}
	sums, cpu := map[key]*NodeSum{}, map[key][]float64{}
	for _, t := range trials {
		for _, n := range t.Nodes {
			k := key{levelArm{record.LevelKey(t.Factors), t.Arm}, n.Name}
			if sums[k] == nil {
				sums[k] = &NodeSum{EventSum: EventSum{Arm: t.Arm, Factors: t.Factors, Total: map[string]float64{}}, Node: n.Name}
			}
			s := sums[k]
			if n.ClockError != nil {
				known := math.Abs(float64(*n.ClockError)) / 1e9
				if s.Clock == nil || known > *s.Clock {
					s.Clock = &known
				}
			}
			if n.Failed != "" || n.Trial == nil {
				s.Failed++
				continue
			}
			s.add(n.Trial.Metrics)
			if v, ok := n.Trial.Metrics["cpu_seconds_per_kiloevent"]; ok && Usable(v) {
				cpu[k] = append(cpu[k], v)
			}
		}
	}
	var all []NodeSum
	for k, s := range sums {
		if len(cpu[k]) > 0 {
			median := stats.Median(cpu[k]).Value
			s.CPU = &median
		}
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b NodeSum) int {
		return cmp.Or(compareEvents(a.EventSum, b.EventSum), cmp.Compare(len(a.Node), len(b.Node)), cmp.Compare(a.Node, b.Node))
	})
	return all
}

// Largest is the largest value of a metric in the valid trials of an arm at a level; false where none has it.
func Largest(trials []record.Trial, metric, arm string, at map[string]string) (largest float64, found bool) {
	for _, t := range trials {
		if t.Arm != arm || !valid(t) || record.LevelKey(t.Factors) != record.LevelKey(at) {
			continue
		}
		if v, has := t.Metrics[metric]; has && Usable(v) && (!found || v > largest) {
			largest, found = v, true
		}
	}
	return largest, found
}
