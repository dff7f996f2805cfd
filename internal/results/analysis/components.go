package analysis

import (
	"maps"
	"slices"

	"tare/internal/experiment/record"
)

// addComponents adds, behind the estimates of an arm as a whole, those of each component of its subject. They are made
// as the others are, from the values that trials have of the component: what a gate voids of a trial's metric it voids
// of the component's as well, and the difference is to the same component of the baseline, where it has one. Answers do
// not speak of them.
func (s *Summary) addComponents(run record.Run, trials []record.Trial) {
	names := map[string]bool{}
	for _, t := range trials {
		for name := range t.Components {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return
	}
	var all []Estimate
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all = append(all, s.ofComponent(name, run, trials)...)
	}
	type key struct{ metric, arm, level string }
	of := func(e Estimate) key { return key{e.Metric, e.Arm, record.LevelKey(e.Factors)} }
	parts := map[key][]Estimate{}
	for _, c := range all {
		parts[of(c)] = append(parts[of(c)], c)
	}
	var merged []Estimate
	for _, e := range s.Estimates {
		merged = append(append(merged, e), parts[of(e)]...)
		delete(parts, of(e))
	}
	for _, c := range all { // of what there is no whole
		if _, left := parts[of(c)]; left {
			merged = append(merged, c)
		}
	}
	s.Estimates = merged
}

// ofComponent estimates one component, as if its values were all that the trials have.
func (s *Summary) ofComponent(name string, run record.Run, trials []record.Trial) []Estimate {
	of := &Summary{Partial: s.Partial}
	t := componentTable(name, run, trials, of)
	dependences := t.dependences()
	for _, at := range t.Levels {
		for _, metric := range t.metrics {
			of.estimate(t, at, metric, dependences, run.Seed)
		}
	}
	of.withhold(run, t, nil)
	for i := range of.Estimates {
		of.Estimates[i].Component = name
	}
	for _, m := range fitModels(t) {
		m.Component = name
		s.ComponentModels = append(s.ComponentModels, m)
	}
	return of.Estimates
}

// componentTable is the table of one component, as if its values were all that the trials have.
func componentTable(name string, run record.Run, trials []record.Trial, s *Summary) *Table {
	own := slices.Clone(trials)
	for i := range own {
		own[i].Metrics, own[i].Counts, own[i].Loads = own[i].Components[name], nil, nil
	}
	t := newTable(run, own, s)
	t.judgeArms()
	return t
}
