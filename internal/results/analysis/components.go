package analysis

import (
	"maps"
	"slices"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
)

// addComponents adds the estimates of each component of a subject, after those of the subject as a whole. They are
// computed in the same way, from the values that trials have for the component. A gate that voids a trial's metric
// voids it for the component as well. The difference is from the same component of the baseline, if the baseline has
// that component. Answers do not use these estimates.
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
	for _, c := range all { // those without an estimate of the whole
		if _, left := parts[of(c)]; left {
			merged = append(merged, c)
		}
	}
	s.Estimates = merged
}

// ofComponent returns the estimates of one component, as if the trials had no other values. It adds the component's
// models, and the metrics that it lost in every trial.
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
	for _, m := range of.Missing {
		if of.estimateOf(m.Metric, m.Arm, name, m.Factors) == nil { // an estimate says itself that it is withheld
			m.Component = name
			s.ComponentMissing = append(s.ComponentMissing, m)
		}
	}
	return of.Estimates
}

// componentTable returns the table of one component, as if the trials had no other values.
func componentTable(name string, run record.Run, trials []record.Trial, s *Summary) *Table {
	own := slices.Clone(trials)
	for i := range own {
		own[i].Metrics, own[i].Counts, own[i].Loads = own[i].Components[name], nil, maps.Clone(own[i].Loads)
		for name, r := range own[i].Loads { // the service times show whether the number of answers is known
			r.Histograms = map[string]string{load.Service: r.Histograms[load.Service]}
			own[i].Loads[name] = r
		}
	}
	t := newTable(run, own, s)
	t.judgeArms()
	return t
}
