package engine

import (
	"fmt"
	"maps"
	"slices"

	"tare/internal/assertion"
	"tare/internal/measured"
	"tare/internal/metric"
	"tare/internal/near"
	"tare/internal/record"
)

// assert adds an assertion, unless it is there already. Its error reads on after the text.
func (s *Spec) assert(text string) error {
	a, err := ParseAssertion(text, measured.Definitions())
	if err != nil {
		return err
	}
	if err := s.checkAssertion(a); err != nil {
		return err
	}
	if slices.Contains(s.Assertions(), a.String()) {
		return nil
	}
	if len(s.Assert) == assertion.Most {
		return fmt.Errorf("is one more than the %d that a run may have", assertion.Most)
	}
	s.Assert = append(s.Assert, a)
	return nil
}

// checkAssertion checks that what an assertion names is in the experiment. Components are known only once it runs.
func (s *Spec) checkAssertion(a assertion.Assertion) error {
	if arms := s.AllArms(); a.Arm != "" && !slices.Contains(arms, a.Arm) {
		return fmt.Errorf("is of the arm %q, which there is not%s", near.Clip(a.Arm), near.Meant(a.Arm, arms))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Level)) {
		var factors []string
		for _, f := range s.Factors {
			factors = append(factors, f.Name)
		}
		f := s.factor(name)
		if f == nil {
			return fmt.Errorf("is of a level of %q, which is no factor of the experiment%s", near.Clip(name),
				near.Meant(name, append(factors, "arm", "component")))
		}
		level := a.Level[name]
		if ts, err := s.find(name); f.cases == nil && err == nil {
			if canonical, err := ts[0].knob.Canonical(level); err == nil {
				level = canonical
			}
		}
		if !slices.Contains(f.Levels, level) {
			return fmt.Errorf("is of %s %q, and its levels are %v", name, near.Clip(a.Level[name]), f.Levels)
		}
		a.Level[name] = level
	}
	return nil
}

// ParseAssertion reads an assertion of one of the metrics that are defined. Its error reads on after the text;
// assertion.Hint goes with it.
func ParseAssertion(text string, defined []metric.Definition) (assertion.Assertion, error) {
	a, err := assertion.Parse(text)
	var names []string
	for _, d := range defined {
		names = append(names, d.Name)
	}
	switch {
	case a.Metric != "" && !slices.Contains(names, a.Metric): // before its bound, whose unit depends on it
		return a, fmt.Errorf("is of the metric %q, which there is not%s; docs/metrics.md has those there are",
			near.Clip(a.Metric), near.Meant(a.Metric, names))
	case err == nil && metric.NewSet(defined).Of(a.Metric).Pool == metric.Counts && a.Against == assertion.Change:
		return a, fmt.Errorf("asks for a change in per cent of %s, which is counted over all trials together; write the "+
			"difference as +0.01", a.Metric)
	case err == nil && metric.NewSet(defined).Of(a.Metric).Pool == metric.Counts && a.Op == assertion.Equal:
		return a, fmt.Errorf("holds each trial against a bound, and %s is counted over all trials together; use <= or >=",
			a.Metric)
	case err == nil && a.Against != assertion.Value && a.Arm == record.Direct:
		return a, fmt.Errorf("holds the baseline against itself; leave out the sign of %s", a.Bounded())
	}
	return a, err
}

// Assertions are those of the spec in their canonical form.
func (s *Spec) Assertions() []string {
	var all []string
	for _, a := range s.Assert {
		all = append(all, a.String())
	}
	return all
}
