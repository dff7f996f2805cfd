package analysis

import (
	"iter"
	"maps"
	"slices"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/stats"
)

// These limits bound the cost of a summary, because trials are untrusted input. A summary beyond them
// (docs/formats.md) leaves out the least important metrics.
const (
	// maxEstimates is the maximum number of estimates: metrics by arm, level and component.
	maxEstimates = 30_000
	// maxWork bounds the work for intervals found by resampling, which grows with the square of the blocks. Its unit is a
	// pair of blocks, which takes about 5 us.
	maxWork = 40_000_000
	// maxUndefined is the maximum number of metrics that the run does not define. maxComponents is the maximum number of
	// components.
	maxUndefined  = 2000
	maxComponents = 100
)

// bounded returns the trials without the metrics that would take the summary beyond its limits, and the number of
// metrics left out. Headline metrics and asserted ones are left out last. Trials within the limits are returned
// unchanged.
func bounded(run record.Run, trials []record.Trial) (kept []record.Trial, left int) {
	names, components, unnamed := namesIn(run, trials)
	id := map[string]int{}
	for i, name := range names {
		id[name] = i
	}
	places := map[levelArm]int{}
	counts := map[[2]int]int{} // trials by metric and place, or by metric and component; components have negative numbers
	count := func(names iter.Seq[string], at int) {
		for name := range names {
			if i, has := id[name]; has {
				counts[[2]int{i, at}]++
			}
		}
	}
	for _, t := range trials {
		at := levelArm{record.LevelKey(t.Factors), t.Arm}
		place, seen := places[at]
		if !seen {
			place = len(places)
			places[at] = place
		}
		count(maps.Keys(t.Metrics), place)
		count(maps.Keys(t.Counts), place)
		for component, values := range t.Components {
			if i := slices.Index(components, component); i >= 0 {
				count(maps.Keys(values), -1-i)
			}
		}
	}
	estimates, work := make([]int, len(names)), make([]int, len(names))
	for key, n := range counts {
		cells := 1
		if key[1] < 0 {
			cells = min(n, len(places))
		}
		estimates[key[0]] += cells
		work[key[0]] += cells * stats.Resampled(n/cells)
	}
	keep := map[string]bool{}
	allEstimates, allWork := 0, 0
	for i, name := range names {
		if allEstimates+estimates[i] > maxEstimates || allWork+work[i] > maxWork {
			continue
		}
		allEstimates, allWork = allEstimates+estimates[i], allWork+work[i]
		keep[name] = true
	}
	if left = len(names) - len(keep) + unnamed; left == 0 {
		return trials, 0
	}
	kept = slices.Clone(trials)
	for i := range kept {
		t := &kept[i]
		t.Metrics, t.Counts = only(keep, t.Metrics), only(keep, t.Counts)
		all := map[string]map[string]float64{}
		for component, values := range t.Components {
			if slices.Contains(components, component) {
				all[component] = only(keep, values)
			}
		}
		t.Components = all
	}
	return kept, left
}

// namesIn returns the metrics of the trials, the most important first, and the components. The number of components,
// and of metrics that the run does not define, is limited; unnamed is a lower bound on the number of metrics left out.
func namesIn(run record.Run, trials []record.Trial) (names, components []string, unnamed int) {
	order := map[string]int{}
	add := func(name string) {
		if _, has := order[name]; !has {
			order[name] = len(order)
		}
	}
	for _, name := range run.Headline[:min(len(run.Headline), record.MaxMetrics)] {
		add(name)
	}
	for _, text := range run.Assert[:min(len(run.Assert), assertion.Most)] {
		if a, err := assertion.Parse(text); err == nil {
			add(a.Metric)
		}
	}
	for _, d := range run.Metrics {
		add(d.Name)
	}
	found, others, parts := map[string]bool{}, map[string]bool{}, map[string]bool{}
	see := func(name string) {
		switch _, defined := order[name]; {
		case defined:
			found[name] = true
		case others[name]:
		case len(others) < maxUndefined:
			others[name] = true
		default:
			unnamed = 1 // counting them exactly is not worth the memory for their names
		}
	}
	for _, t := range trials {
		for _, name := range slices.Sorted(maps.Keys(t.Metrics)) {
			see(name)
		}
		for _, name := range slices.Sorted(maps.Keys(t.Counts)) {
			see(name)
		}
		for component, values := range lists.ByKey(t.Components) {
			if !parts[component] && len(parts) == maxComponents {
				unnamed = 1
				continue
			}
			parts[component] = true
			for _, name := range slices.Sorted(maps.Keys(values)) {
				see(name)
			}
		}
	}
	names = slices.SortedFunc(maps.Keys(found), func(a, b string) int { return order[a] - order[b] })
	return append(names, slices.Sorted(maps.Keys(others))...), slices.Sorted(maps.Keys(parts)), unnamed
}

// only returns the entries of a map that are kept.
func only[V any](keep map[string]bool, of map[string]V) map[string]V {
	m := map[string]V{}
	for name, v := range of {
		if keep[name] {
			m[name] = v
		}
	}
	return m
}

// warnOfBounds warns if metrics were left out.
func (s *Summary) warnOfBounds(left int) {
	if left > 0 {
		s.addWarning("at least %d metrics or components are left out: there is more than a summary may hold (%d estimates, "+
			"and a bounded amount of resampling)", left, maxEstimates)
	}
}
