package report

import (
	"slices"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/vm/guest"
)

// TestWithheldQuantiles: a note on a quantile that no trial could give says how many requests beyond it are needed,
// which depends on the quantile. There is no such note if a gate voided the quantile. Only definitions matter, not
// names.
func TestWithheldQuantiles(t *testing.T) {
	guest.KernelFree(t)
	defined := []metric.Definition{
		{Name: "middle_seconds", Histogram: load.Latency, Quantile: 0.5},
		{Name: "slow_seconds", Histogram: load.Latency, Quantile: 0.99},
		{Name: "slowest_seconds", Histogram: load.Latency, Quantile: 0.999},
	}
	middle, slow := analysis.Estimate{Metric: "middle_seconds"}, analysis.Estimate{Metric: "slow_seconds"}
	for want, s := range map[string]analysis.Summary{
		"slow time is withheld: a trial has fewer than 10 requests beyond it": {
			Estimates: []analysis.Estimate{middle}},
		"slowest time is withheld: a trial has fewer than 100 requests beyond it": {
			Estimates: []analysis.Estimate{middle, slow}},
		"": {Estimates: []analysis.Estimate{middle}, Missing: []analysis.Missing{{Metric: "slow_seconds", Gate: "lag"}}},
	} {
		all := notes(&s, record.Run{Metrics: defined})
		if want == "" && len(all) != 0 || want != "" && !slices.Equal(all, []string{want}) {
			t.Errorf("noted %q, want %q", all, want)
		}
	}
}
