package spec

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

// assert adds an assertion, unless the spec has it already. Its error continues a sentence that begins with the text.
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
		return fmt.Errorf("is one too many: a run may have at most %d assertions", assertion.Most)
	}
	s.Assert = append(s.Assert, a)
	return nil
}

// checkAssertion checks that the experiment has the arm and the levels that an assertion names. Components are known
// only once it runs.
func (s *Spec) checkAssertion(a assertion.Assertion) error {
	if arms := s.AllArms(); a.Arm != "" && !slices.Contains(arms, a.Arm) {
		return fmt.Errorf("names the arm %q, which does not exist%s", text.Clip(a.Arm), text.DidYouMean(a.Arm, arms))
	}
	labels := []string{"arm", "component"}
	for _, f := range s.Factors {
		labels = append(labels, f.Name)
	}
	for name, level := range lists.ByKey(a.Level) {
		f := s.factor(name)
		if f == nil {
			return fmt.Errorf("names %q, which is not a factor of the experiment%s", text.Clip(name),
				text.DidYouMean(name, labels))
		}
		if ts, err := s.find(name); f.cases == nil && err == nil {
			if canonical, err := ts[0].setting.Canonical(level); err == nil {
				level = canonical
			}
		}
		if !slices.Contains(f.Levels, level) {
			return fmt.Errorf("names %s %q, which is not one of its levels %v", name, text.Clip(level), f.Levels)
		}
		a.Level[name] = level
	}
	return nil
}

// ParseAssertion reads an assertion about one of the defined metrics. Its error continues a sentence that begins with
// raw; assertion.Hint is the hint to give with the error.
func ParseAssertion(raw string, defined []metric.Definition) (assertion.Assertion, error) {
	a, err := assertion.Parse(raw)
	names := lists.Map(defined, func(d metric.Definition) string { return d.Name })
	at := slices.Index(names, a.Metric)
	if a.Metric != "" && at < 0 { // checked before the bound, whose unit depends on the metric
		return a, fmt.Errorf("names the metric %q, which does not exist%s; docs/metrics.md has those there are",
			text.Clip(a.Metric), text.DidYouMean(a.Metric, names))
	}
	if err != nil {
		return a, err
	}
	pooled := defined[at].Pool == metric.Counts
	switch {
	case strings.HasSuffix(a.Metric, "_share") && !strings.HasSuffix(a.Bounded(), "%") && math.Abs(a.Bound) >= 2:
		err = fmt.Errorf("has the bound %s, and %s is a fraction, which is 1 at most or hardly more; write %s%%",
			a.Bounded(), a.Metric, a.Bounded())
	case pooled && a.Against == assertion.Change:
		err = fmt.Errorf("asks for a change in per cent of %s, which is counted over all trials together; write the "+
			"difference as +0.01", a.Metric)
	case pooled && a.Op == assertion.Equal:
		err = fmt.Errorf("compares each trial with a bound, and %s is counted over all trials together; use <= or >=",
			a.Metric)
	case a.Against != assertion.Value && a.Arm == record.Direct:
		err = fmt.Errorf("compares the baseline with itself; leave out the sign of %s", a.Bounded())
	}
	return a, err
}

// Assertions returns the assertions of the spec in canonical form.
func (s *Spec) Assertions() []string {
	return lists.Map(s.Assert, assertion.Assertion.String)
}
