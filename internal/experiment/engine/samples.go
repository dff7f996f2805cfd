package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// spare multiplies the recommended window, because a window sometimes has fewer random arrivals than on average.
const spare = 1.05

// mostNamed is the number of levels that a message names before it says how many more there are. One more level is
// named too.
const mostNamed = 4

// TooShort describes quantiles of latency for which the windows of a run have too few requests at the rates of its
// loads, and recommends a sufficient duration for each. It considers the quantiles at the beginning of a report, and
// quantiles that are asserted or decide when the run ends. It ignores levels with an unknown rate.
func TooShort(s *spec.Spec) (all []string) {
	for _, d := range quantiles(s) {
		need := stats.MinBeyond(d.Quantile) / (1 - d.Quantile)
		var levels []string
		least := math.Inf(1) // the lowest rate
		for _, l := range s.Levels() {
			here := s.At(l)
			rate := requestRate(here) * float64(max(1, here.Nodes()))
			if rate == 0 || rate*s.Duration.Seconds() >= need*(1-1e-9) {
				continue
			}
			levels, least = append(levels, record.LevelName(l)), min(least, rate)
		}
		if len(levels) == 0 {
			continue
		}
		at := ""
		if len(s.Factors) > 0 {
			if more := len(levels) - mostNamed; more > 1 {
				levels = append(levels[:mostNamed], fmt.Sprintf("%d more levels", more))
			}
			at = " at " + strings.Join(levels, "; ")
		}
		duration := time.Duration(math.Ceil(need*spare/least*10)) * 100 * time.Millisecond
		all = append(all, fmt.Sprintf("%s cannot be measured%s: it needs %s requests in each window, and %s at %g/s "+
			"has about %s; 'duration: %s' would give it", quantity.Label(d.Name), at, quantity.Thousands(int(math.Round(need))),
			s.Duration, least, quantity.Thousands(int(least*s.Duration.Seconds())), duration))
	}
	return all
}

// quantiles returns the quantiles of latency that readers of the run will look for, the lowest first.
func quantiles(s *spec.Spec) []metric.Definition {
	asked := lists.Keyed(s.Assert, func(a assertion.Assertion) (string, bool) { return a.Metric, true })
	if s.Precision != nil {
		for _, name := range s.Precision.Metrics {
			asked[name] = true
		}
	}
	var all []metric.Definition
	for _, d := range measured.Definitions() {
		of := d.Histogram == load.Latency || d.Histogram == load.LatencyRunning
		if of && d.Quantile != 0 && (d.Lead || asked[d.Name]) {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b metric.Definition) int { return cmp.Compare(a.Quantile, b.Quantile) })
	return all
}

// requestRate returns the rate of all loads at a level, or 0 if one is unknown.
func requestRate(s *spec.Spec) (total float64) {
	for _, p := range s.Loads {
		rate := p.Kind.About().Rate
		if rate == nil || rate(p.Options) == 0 {
			return 0
		}
		total += rate(p.Options)
	}
	return total
}
