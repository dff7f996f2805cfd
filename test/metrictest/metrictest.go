// Package metrictest checks definitions of metrics.
package metrictest

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
)

var pools = []metric.Pool{metric.Merged, metric.Sum, metric.Largest, metric.Mean, metric.PerConnection,
	metric.PerRequest, metric.PerEvent, metric.PerExpected, metric.Machine, metric.Counts, metric.Nodes}

// Check returns an error that says what is wrong with a definition, or nil if nothing is.
func Check(d metric.Definition) error {
	switch {
	case d.Name == "":
		return fmt.Errorf("a metric has no name")
	case d.Unit != quantity.UnitOf(d.Name):
		return fmt.Errorf("the metric %s is in %q, and its name ends in %q", d.Name, d.Unit, quantity.UnitOf(d.Name))
	case d.Better != metric.Neither && d.Better != metric.Lower && d.Better != metric.Higher:
		return fmt.Errorf("the metric %s is better when it is %q, which is no direction", d.Name, d.Better)
	case !slices.Contains(pools, d.Pool):
		return fmt.Errorf("the metric %s has the pool %q, which does not exist", d.Name, d.Pool)
	case d.Rank < metric.RankEvents || d.Rank > metric.RankGenerator:
		return fmt.Errorf("the metric %s has the rank %d, which does not exist", d.Name, d.Rank)
	case d.Needs == nil:
		return fmt.Errorf("the metric %s does not say what it needs", d.Name)
	case d.How == "":
		return fmt.Errorf("the metric %s does not say how it is measured", d.Name)
	case d.Clause != "" && strings.Count(d.Clause, "{}") != 1:
		return fmt.Errorf("the clause of the metric %s must contain {} once: %q", d.Name, d.Clause)
	case d.Sum != "" && strings.Count(d.Sum, "{}") != 1:
		return fmt.Errorf("the sum of the metric %s must contain {} once: %q", d.Name, d.Sum)
	case (d.PartOf == "") != (d.Part == ""):
		return fmt.Errorf("the metric %s is the part %q of %q, and has to be both or neither", d.Name, d.Part, d.PartOf)
	case (d.Histogram == "") != (d.Quantile == 0) || d.Quantile < 0 || d.Quantile >= 1:
		return fmt.Errorf("the metric %s is the quantile %g of the histogram %q", d.Name, d.Quantile, d.Histogram)
	case (d.What == "") != (d.Per == ""):
		return fmt.Errorf("the metric %s is %q per %q, and has to be both or neither", d.Name, d.What, d.Per)
	case d.TallyOf != "" && d.Tally == "":
		return fmt.Errorf("the metric %s is a part of the tally %q, but has no Tally", d.Name, d.TallyOf)
	case (d.Ladder == "") != (d.Rung == ""):
		return fmt.Errorf("the metric %s is the rung %q of the ladder %q, and has to be both or neither", d.Name, d.Rung,
			d.Ladder)
	case d.Cost && (d.Tail || d.Unit == quantity.Part || d.Pool == metric.Merged && d.Rank == metric.RankLatency):
		return fmt.Errorf("the metric %s is no cost that could be a sum of parts", d.Name)
	}
	return nil
}
