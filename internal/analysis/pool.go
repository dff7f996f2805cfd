package analysis

import (
	"cmp"
	"maps"
	"slices"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// minPooled is how many samples a pooled part needs to be given at all.
const minPooled = 25

// PooledMethod is the method of estimates that are parts of samples of all trials together.
const PooledMethod = "pooled samples, Wilson"

// pool gives the parts that are counted over all trials of an arm. Their unit of replication is the sample, not the trial: samples of
// one trial are as good as of another, for each falls on a run of a program by chance.
func (s *Summary) pool(t *table, at factors) {
	for _, key := range slices.SortedFunc(maps.Keys(t.pools), func(a, b pool) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), CompareArms(a.arm, b.arm))
	}) {
		var c record.Count
		for _, of := range t.pools[key] {
			c.In, c.Of = c.In+of.In, c.Of+of.Of
		}
		if key.level != at.key() || c.Of < minPooled {
			continue
		}
		const confidence = 0.95
		lo, hi := stats.BinomialInterval(c.In, c.Of, confidence)
		s.Estimates = append(s.Estimates, Estimate{
			Metric: key.metric, Unit: quantity.UnitOf(key.metric), Arm: key.arm, Factors: at,
			Value: float64(c.In) / float64(c.Of), Lo: &lo, Hi: &hi, Confidence: confidence, N: c.Of, Method: PooledMethod,
		})
	}
}
