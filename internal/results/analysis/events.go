package analysis

import (
	"cmp"
	"math"
	"slices"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/stats"
)

// Tallies are the metrics of a run that are exact counts, in the order in which they are defined.
func Tallies(run record.Run) []metric.Definition {
	return slices.DeleteFunc(slices.Clone(run.Metrics), func(d metric.Definition) bool { return d.Tally == "" })
}

// EventSum is what happened to the events of all valid trials of an arm at a level: exact counts, added up.
type EventSum struct {
	Arm     string
	Factors map[string]string
	Trials  int
	Some    map[string]int     // of these: how many had any of a metric
	Total   map[string]float64 // by metric; one that no trial has is not there
}

func newEventSum(t record.Trial) EventSum {
	return EventSum{Arm: t.Arm, Factors: t.Factors, Some: map[string]int{}, Total: map[string]float64{}}
}

// add adds the counts of a trial.
func (s *EventSum) add(tallies []metric.Definition, trial record.Trial) {
	s.Trials++
	for _, d := range tallies {
		if v, has := trial.Metrics[d.Name]; has && Usable(v) {
			s.Total[d.Name] += v
			if v > 0 {
				s.Some[d.Name]++
			}
		}
	}
}

// EventSums are the counts of events by level and arm, of the trials in which any were counted.
func EventSums(run record.Run, trials []record.Trial) []EventSum {
	tallies := Tallies(run)
	counted := func(t record.Trial) bool {
		return slices.ContainsFunc(tallies, func(d metric.Definition) bool { _, has := t.Metrics[d.Name]; return has })
	}
	return lists.Map(suchByPlace(trials, counted), func(w weighed) EventSum {
		s := newEventSum(w.trials[0])
		for _, t := range w.trials {
			s.add(tallies, t)
		}
		return s
	})
}

// NodeSum is what one node counted in all trials of an arm at a level.
type NodeSum struct {
	EventSum
	Node   string
	Failed int      // trials in which the node failed
	Cost   *float64 // median of the metric of EachNode; nil: no trial has it
	Clock  *float64 // longest error of the node's clock in seconds; nil: not known
}

// EachNode is the metric of each node that one of all nodes together is made of; its name is empty where there is none.
func EachNode(run record.Run) metric.Definition {
	for _, d := range run.Metrics {
		if d.Of != "" {
			return run.Defined().Of(d.Of)
		}
	}
	return metric.Definition{}
}

// NodeSums are the counts of runs on many nodes, by level, arm and node.
func NodeSums(run record.Run, trials []record.Trial) []NodeSum {
	type key struct {
		levelArm
		node string
	}
	tallies, each := Tallies(run), EachNode(run)
	sums, costs := map[key]*NodeSum{}, map[key][]float64{}
	for _, t := range trials {
		for _, n := range t.Nodes {
			k := key{levelArm{record.LevelKey(t.Factors), t.Arm}, n.Name}
			if sums[k] == nil {
				sums[k] = &NodeSum{EventSum: newEventSum(t), Node: n.Name}
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
			s.add(tallies, *n.Trial)
			if v, ok := n.Trial.Metrics[each.Name]; ok && Usable(v) {
				costs[k] = append(costs[k], v)
			}
		}
	}
	var all []NodeSum
	for k, s := range sums {
		if len(costs[k]) > 0 {
			s.Cost = new(stats.Median(costs[k]).Value)
		}
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b NodeSum) int {
		return cmp.Or(
			comparePlaces(place{a.Arm, a.Factors}, place{b.Arm, b.Factors}),
			cmp.Compare(len(a.Node), len(b.Node)), cmp.Compare(a.Node, b.Node))
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
