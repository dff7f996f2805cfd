package analysis

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// fitModels fits a fixed part and slopes to every cost of every arm but the twin. It returns nil if the run has fewer
// than three levels, or a factor whose levels are not numbers.
func fitModels(t *Table) []Model {
	if len(t.Levels) < 3 {
		return nil
	}
	names := slices.Sorted(maps.Keys(t.Levels[0]))
	var models []Model
	for _, metric := range t.metrics {
		for _, arm := range t.Arms {
			if arm == record.AA || !t.defined.Of(metric).Cost {
				continue
			}
			if m, ok := fitModel(t, metric, arm, names); ok {
				models = append(models, m)
			}
		}
	}
	return models
}

func fitModel(t *Table, metric, arm string, names []string) (Model, bool) {
	var observations []stats.Observation
	for _, at := range t.Levels {
		var x []float64
		for _, name := range names {
			v, ok := LevelNumber(at[name])
			if !ok {
				return Model{}, false
			}
			x = append(x, v)
		}
		level := record.LevelKey(at)
		for _, b := range t.blocks(level, hasMetric(metric), arm) {
			observations = append(observations, stats.Observation{X: x, Y: t.cells[cell{level, arm, b}].metrics[metric],
				Block: b})
		}
	}
	line, err := stats.FitLine(observations)
	if err != nil {
		// Too few levels, or factors that change together: there is no model, but the run is fine.
		return Model{}, false
	}
	unit := t.defined.Of(metric).Unit
	m := Model{
		Metric: metric, Arm: arm, R2: line.R2, Linear: line.Straight, Test: line.Test, ValidRange: map[string][2]float64{},
		Method: string(line.Method), Blocks: line.Blocks, strong: line.Strong, line: line,
	}
	if line.Effective > 0 {
		m.Effective = &line.Effective
	}
	for i, c := range line.Coefficients {
		term := Term{Name: "fixed", Unit: unit, Interval: Interval{Value: c.Value}}
		switch known := line.Method == stats.ByBlock; {
		case !Usable(c.Value) || known && (!Usable(c.Lo) || !Usable(c.Hi)):
			return Model{}, false
		case known:
			term.Lo, term.Hi = &c.Lo, &c.Hi
		}
		if i > 0 {
			term.Name, term.Unit = names[i-1], unit+" per unit of "+names[i-1]
			m.ValidRange[names[i-1]] = line.Range[i-1]
		}
		m.Terms = append(m.Terms, term)
	}
	if line.HasHeldOut {
		m.HeldoutError = &line.HeldOut
	}
	return m, true
}

// withheldLevel returns why a model must not be quoted: a level that it was fitted to is withheld. The trials that are
// left of that level are a biased sample, so the fit is biased, too. It returns "" if no such level is withheld.
func (s *Summary) withheldLevel(m *Model) string {
	e := lists.Find(s.Estimates, func(e *Estimate) bool {
		return e.Metric == m.Metric && e.Arm == m.Arm && e.Component == m.Component && e.Withheld != ""
	})
	if e == nil {
		return ""
	}
	return fmt.Sprintf("its value %s is withheld: %s", s.At(e.Factors), e.Withheld)
}

// Predict returns the value of the model at the given levels of its factors, by name, with the interval for a trial in
// a new block (stats.Line.Predict). Levels of other factors are ignored.
func (m *Model) Predict(levels map[string]float64) (Interval, error) {
	if m.line == nil {
		return Interval{}, errors.New("it was not fitted to trials")
	}
	var x []float64
	for _, t := range m.Terms[1:] {
		v, known := levels[t.Name]
		if !known {
			return Interval{}, fmt.Errorf("it needs a level of %s", record.FactorName(t.Name))
		}
		x = append(x, v)
	}
	p, err := m.line.Predict(x)
	if err != nil {
		return Interval{}, err
	}
	return Interval{p.Value, &p.Lo, &p.Hi}, nil
}

// warnOfModels warns if the coefficients of neighbouring blocks resemble each other strongly, or if there are too few
// blocks to tell.
func (s *Summary) warnOfModels() {
	var strong []string
	few := 0
	for _, m := range slices.Concat(s.Models, s.ComponentModels) {
		if m.strong {
			of := strings.TrimSpace(m.Arm + " " + m.Component)
			strong = append(strong, quantity.Label(m.Metric)+" of "+of)
		}
		if m.Blocks > 1 && m.Blocks < stats.MinOwn {
			few = max(few, m.Blocks)
		}
	}
	if few > 0 {
		s.addWarning("%s are too few to tell whether the lines of neighbouring ones resemble each other: the intervals of "+
			"coefficients take blocks as independent", quantity.Counted(few, "block"))
	}
	if len(strong) > 0 {
		s.Warnings = append(s.Warnings, "the lines of neighbouring blocks resemble each other so much that the intervals "+
			"of their coefficients may still be too narrow, in "+strings.Join(strong, ", "))
	}
}
