package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/experiment/assertion"
	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
)

// checked is one check of an assertion as it is shown. Its names are those that the HTML template sees.
type checked struct {
	Result                 analysis.Result
	Assertion, Place, Seen string
	Why                    string // what to know of it, and what would decide it; empty: nothing
}

func (v checked) cells() []string { return []string{string(v.Result), v.Assertion, v.Place, v.Seen} }

// verdicts are the checks of all assertions, each assertion by level and arm.
func verdicts(s *analysis.Summary) []checked {
	var all []checked
	for _, v := range s.Verdicts {
		if len(v.Checks) == 0 {
			all = append(all, checked{v.Result, v.Assertion, "", "-", "it matches no trial of the run"})
		}
		for i := range v.Checks {
			c := &v.Checks[i]
			shown := checked{c.Result, v.Assertion, s.Place(c), c.Seen(), c.Why}
			if c.Lo != nil && !shownAs(s, c) {
				shown.Seen += fmt.Sprintf(" at %.1f %%", 100*c.Confidence)
			}
			if advice := c.Advice(); advice != "" {
				shown.Why = strings.TrimPrefix(shown.Why+"; "+advice, "; ")
			}
			all = append(all, shown)
		}
	}
	return all
}

// shownAs reports whether the interval of a check is that of an estimate, which stands in tables and answers. That of a
// run that goes on until it is decided is wider.
func shownAs(s *analysis.Summary, c *analysis.Check) bool {
	same := func(lo, hi *float64) bool { return lo != nil && hi != nil && *lo == *c.Lo && *hi == *c.Hi }
	return slices.ContainsFunc(s.Estimates, func(e analysis.Estimate) bool {
		if e.Metric != c.Metric || e.Arm != c.Arm || e.Component != c.Component || !maps.Equal(e.Factors, c.Factors) {
			return false
		}
		switch {
		case c.Against == assertion.Value:
			return same(e.Lo, e.Hi)
		case c.Against == assertion.Change:
			return true // its interval belongs to the change, which is shown nowhere else
		}
		return e.Difference != nil && same(e.Difference.Lo, e.Difference.Hi)
	})
}

// verdictsMarkdown is the table of the assertions; empty where there are none.
func verdictsMarkdown(s *analysis.Summary) string {
	all := verdicts(s)
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n## Assertions\n\n| result | assertion | of | seen | note |\n|---|---|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(&b, "| **%s** | `%s` | %s | %s | %s |\n", escape(string(v.Result)),
			strings.NewReplacer("`", "'", "|", `\|`).Replace(clean(v.Assertion)), escape(v.Place), escape(v.Seen), escape(v.Why))
	}
	return b.String()
}

// result words the verdict of the run, and what it is based on.
func result(s *analysis.Summary) string {
	all := lists.Map(s.Answers, func(a analysis.Answer) string { return a.Answer })
	return strings.Join(append(all, validity(s)), " ")
}
