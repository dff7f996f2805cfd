package report

import (
	"math"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
)

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// statistic is one number of an estimate, with its name and help text in exports to monitoring systems.
type statistic struct{ name, help string }

// statistics lists the statistics of an estimate.
var statistics = []statistic{
	{"estimate", "The value, the median over blocks or the pooled share."},
	{"estimate_lower", "The lower end of the 95 % interval of the value."},
	{"estimate_upper", "The upper end of the 95 % interval of the value."},
	{"difference", "The difference to the baseline, paired by block."},
	{"difference_lower", "The lower end of the 95 % interval of the difference."},
	{"difference_upper", "The upper end of the 95 % interval of the difference."},
	{"difference_resolved", "1 where the difference is larger than noise explains, else 0."},
	{"smallest_visible", "The larger of what the A/A twins show and of half the interval's width."},
}

// numbersOf returns the values of the statistics of an estimate, in their order. Unknown ones are nil and are not
// exported.
func numbersOf(e *analysis.Estimate) []*float64 {
	numbers := make([]*float64, len(statistics))
	numbers[0], numbers[1], numbers[2] = &e.Value, e.Lo, e.Hi
	if d := e.Difference; d != nil && !d.BaselineWithheld() {
		copy(numbers[3:], []*float64{&d.Value, d.Lo, d.Hi, new(truth(d.Resolved)), d.SmallestVisible})
	}
	return numbers
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// exported calls the given function for each number of a summary that may be quoted. This excludes withheld estimates,
// and differences from a withheld value.
func exported(s *analysis.Summary, call func(statistic, *analysis.Estimate, float64)) {
	for n, of := range statistics {
		for i := range s.Estimates {
			e := &s.Estimates[i]
			if v := numbersOf(e)[n]; e.Withheld == "" && v != nil && finite(*v) {
				call(of, e, *v)
			}
		}
	}
}

// labelOf turns the name of a factor into a label name: letters, digits and underscores.
func labelOf(factor string) string {
	return "factor_" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, factor)
}

// attributes returns the labels of an estimate. Factors whose names differ only in punctuation share a label, with
// their levels in the order of their names.
func attributes(e *analysis.Estimate) map[string]string {
	all := map[string]string{"arm": clean(e.Arm), "unit": clean(e.Unit)}
	if e.Component != "" {
		all["component"] = clean(e.Component)
	}
	for name, level := range lists.ByKey(e.Factors) {
		label := labelOf(name)
		if was, is := all[label]; is {
			all[label] = was + "," + clean(level)
		} else {
			all[label] = clean(level)
		}
	}
	return all
}
