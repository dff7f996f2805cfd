package analysis

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
)

// headlines returns the metrics to show first: those of assertions, those that the answers rest on, and the run's
// headline metrics of which some estimate is not 0. After them comes one metric of each remaining family with a
// resolved difference, the largest relative difference first. It leaves out families about the load generator.
func (s *Summary) headlines(run record.Run, t *Table) []string {
	names := []string{}
	measured, some := map[string]bool{}, map[string]bool{} // whether a metric has an estimate, and one that is not 0
	for i := range s.Estimates {
		if e := &s.Estimates[i]; e.Component == "" && e.Arm != record.AA {
			measured[e.Metric] = true
			some[e.Metric] = some[e.Metric] || e.Value != 0 || e.Hi != nil && *e.Hi != 0
		}
	}
	add := func(name string) {
		if other := t.defined.Counterpart(name); measured[name] && !slices.Contains(names, name) &&
			!slices.Contains(names, other) {
			names = append(names, name)
		}
	}
	for _, v := range s.Verdicts {
		for i := range v.Checks {
			add(v.Checks[i].Metric)
		}
	}
	for _, a := range s.Answers {
		for _, evidence := range a.Evidence {
			name, _, _ := strings.Cut(evidence, " ")
			add(name)
		}
	}
	asked := slices.Clone(run.Headline)
	slices.SortStableFunc(asked, t.defined.Compare)
	for _, name := range asked {
		if some[name] {
			add(name)
		}
	}
	seen := lists.Keyed(names, func(name string) (string, bool) { return t.defined.FamilyOf(name), true })
	for _, name := range s.moving() {
		if family := t.defined.FamilyOf(name); !seen[family] && t.defined.Of(name).Rank != metric.RankGenerator {
			seen[family] = true
			add(name)
		}
	}
	return names
}

// moving returns the metrics with a resolved difference in some arm at some level, the largest relative difference
// first. A difference without a ratio, because some value is not above 0, counts as infinitely large.
func (s *Summary) moving() (names []string) {
	by := map[string]float64{}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		d := e.Difference
		if d == nil || !d.Resolved || e.Arm == record.AA || e.Component != "" {
			continue
		}
		size := math.Inf(1)
		if e.Ratio != nil && e.Ratio.Value > 0 {
			size = math.Abs(math.Log(e.Ratio.Value))
		}
		if was, has := by[e.Metric]; !has {
			names, by[e.Metric] = append(names, e.Metric), size
		} else {
			by[e.Metric] = max(was, size)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) })
	return names
}
