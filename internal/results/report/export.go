package report

import (
	"math"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
)

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// statistic is one number of an estimate, as exports for monitoring name it.
type statistic struct {
	name, help string
	of         func(*analysis.Summary, *analysis.Estimate) *float64
}

// statistics are those of estimates. What is not known has no sample.
var statistics = []statistic{
	{"estimate", "The value, the median over blocks or the pooled share.",
		func(_ *analysis.Summary, e *analysis.Estimate) *float64 { return &e.Value }},
	{"estimate_lower", "The lower end of the 95 % interval of the value.",
		func(_ *analysis.Summary, e *analysis.Estimate) *float64 { return e.Lo }},
	{"estimate_upper", "The upper end of the 95 % interval of the value.",
		func(_ *analysis.Summary, e *analysis.Estimate) *float64 { return e.Hi }},
	{"difference", "The difference to the baseline, paired by block.", ofDifference(func(d *analysis.Difference) *float64 {
		return &d.Value
	})},
	{"difference_lower", "The lower end of the 95 % interval of the difference.",
		ofDifference(func(d *analysis.Difference) *float64 { return d.Lo })},
	{"difference_upper", "The upper end of the 95 % interval of the difference.",
		ofDifference(func(d *analysis.Difference) *float64 { return d.Hi })},
	{"difference_resolved", "1 where the difference is larger than noise explains, else 0.",
		ofDifference(func(d *analysis.Difference) *float64 { return new(truth(d.Resolved)) })},
	{"smallest_visible", "The larger of what the A/A twins show and of half the interval's width.",
		ofDifference(func(d *analysis.Difference) *float64 { return d.SmallestVisible })},
}

func ofDifference(of func(*analysis.Difference) *float64) func(*analysis.Summary, *analysis.Estimate) *float64 {
	return func(_ *analysis.Summary, e *analysis.Estimate) *float64 {
		if e.Difference == nil {
			return nil
		}
		return of(e.Difference)
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// exported calls with each number of a summary that may be quoted: of withheld estimates there are none.
func exported(s *analysis.Summary, call func(statistic, *analysis.Estimate, float64)) {
	for _, of := range statistics {
		for i := range s.Estimates {
			e := &s.Estimates[i]
			if v := of.of(s, e); e.Withheld == "" && v != nil && finite(*v) {
				call(of, e, *v)
			}
		}
	}
}

// labelOf is a factor as the name of a label: letters, digits and underscores.
func labelOf(factor string) string {
	return "factor_" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, factor)
}

// attributes are what an estimate is of. Factors whose names differ in their punctuation alone share a label, with
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
