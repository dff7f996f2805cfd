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

// Tallies returns the metrics of a run that are exact counts, in the order in which they are defined.
func Tallies(run record.Run) []metric.Definition {
	return slices.DeleteFunc(slices.Clone(run.Metrics), func(d metric.Definition) bool { return d.Tally == "" })
}

// EventSum adds up the exact counts of events over all valid trials of an arm at a level.
type EventSum struct {
	Arm     string
	Factors map[string]string
	Trials  int
	Known   map[string]int     // by metric: number of trials whose counts are in Total
	Some    map[string]int     // by metric: number of trials with a count above 0
	Total   map[string]float64 // by metric; a metric that no trial has is absent
}

func newEventSum(t record.Trial) EventSum {
	return EventSum{
		Arm: t.Arm, Factors: t.Factors, Known: map[string]int{}, Some: map[string]int{}, Total: map[string]float64{},
	}
}

func (s *EventSum) add(tallies []metric.Definition, trial record.Trial) {
	s.Trials++
	for _, d := range tallies {
		if v, has := trial.Metrics[d.Name]; has && Usable(v) {
			s.Total[d.Name] += v
			s.Known[d.Name]++
			if v > 0 {
				s.Some[d.Name]++
			}
		}
	}
}

// EventSums returns the sums of exact counts by level and arm, over the trials that have such counts.
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

// NodeSum holds what one node counted in all valid trials of an arm at a level.
type NodeSum struct {
	EventSum
	Node   string
	Failed int      // planned trials in which the node failed; each counts with its valid attempt, or else its last
	Cost   *float64 // median of the metric that EachNode returns; nil if no trial has it
	Clock  *float64 // largest error of the node's clock in seconds; nil if unknown
}

// EachNode returns a metric of single nodes: the one that the run's first metric over all nodes combines
// (metric.Definition.Of). If the run has no metric over all nodes, the name of the returned definition is empty.
func EachNode(run record.Run) metric.Definition {
	for _, d := range run.Metrics {
		if d.Of != "" {
			return run.Defined().Of(d.Of)
		}
	}
	return metric.Definition{}
}

// NodeSums returns the counts of runs on several nodes, by level, arm and node.
func NodeSums(run record.Run, trials []record.Trial) []NodeSum {
	type key struct {
		levelArm
		node string
	}
	tallies, each := Tallies(run), EachNode(run)
	sums, costs := map[key]*NodeSum{}, map[key][]float64{}
	for _, attempts := range attemptsOf(trials) {
		t := attempts[len(attempts)-1]
		if i := slices.IndexFunc(attempts, valid); i >= 0 {
			t = attempts[i]
		}
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
			if !valid(t) {
				continue
			}
			s.add(tallies, *n.Trial)
			if v, ok := n.Trial.Metrics[each.Name]; ok && Usable(v) && reliable(each, v, t) {
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

// Largest returns the largest value of a metric over the trials of an arm at a level, and whether any trial has one. As
// in Table, each trial counts with its first attempt in which the metric is valid.
func Largest(trials []record.Trial, metric, arm string, at map[string]string) (largest float64, found bool) {
	for _, attempts := range attemptsOf(trials) {
		if attempts[0].Arm != arm || record.LevelKey(attempts[0].Factors) != record.LevelKey(at) {
			continue
		}
		for _, t := range attempts {
			if v, has := t.Metrics[metric]; has && Usable(v) && t.Validity.Stands(metric) {
				if !found || v > largest {
					largest, found = v, true
				}
				break
			}
		}
	}
	return largest, found
}
