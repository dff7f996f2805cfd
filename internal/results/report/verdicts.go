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

// checked is one check of an assertion for display. The HTML template uses the exported fields.
type checked struct {
	Result                 analysis.Result
	Assertion, Place, Seen string
	Why                    string // a note on the result, and what would decide it; may be empty
}

func (v checked) cells() []string { return []string{string(v.Result), v.Assertion, v.Place, v.Seen} }

// verdicts returns the checks of all assertions, in their order.
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

// shownAs reports whether the interval of a check needs no note of its confidence. It needs none if the tables show the
// same interval, or if it is the interval of a change, which the tables do not show. It needs one if the run went on
// until its assertions were decided, because the intervals of its checks are then wider than those of the tables.
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
			return true // shown nowhere else
		}
		return e.Difference != nil && same(e.Difference.Lo, e.Difference.Hi)
	})
}

// verdictsMarkdown returns the table of the assertions; empty if there are none.
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

// result returns the answers of the run and its validity as one text.
func result(s *analysis.Summary) string {
	all := lists.Map(s.Answers, func(a analysis.Answer) string { return a.Answer })
	return strings.Join(append(all, validity(s)), " ")
}
