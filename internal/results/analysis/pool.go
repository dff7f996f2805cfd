package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// minPooled is how many samples a pooled part needs to be given at all.
const minPooled = 25

// PooledMethod is the method of estimates that are parts of samples of all trials together.
const PooledMethod = "pooled samples, clustered Wilson"

// burstsOf is, by metric, how unequal trials are in the counts that are pooled, at all levels and in all arms together.
func burstsOf(t *Table) map[string]float64 {
	shares := map[string][]stats.Share{}
	for key, counts := range t.pools {
		shares[key.metric] = append(shares[key.metric], stats.ClusteredShare(byBlock(counts), math.Inf(1)))
	}
	bursts := map[string]float64{}
	for metric, all := range shares {
		bursts[metric] = stats.Bursts(all...)
	}
	return bursts
}

// pool gives the parts that are counted over all trials of an arm. Samples of one trial are not independent of each
// other, so their interval rests on how far trials differ.
func (s *Summary) pool(t *Table, at factors, bursts map[string]float64) {
	shares := map[pool]stats.Share{}
	level := record.LevelKey(at)
	for key, counts := range t.pools {
		if key.level != level {
			continue
		}
		if share := stats.ClusteredShare(byBlock(counts), bursts[key.metric]); share.Samples >= minPooled {
			shares[key] = share
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(shares), func(a, b pool) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), CompareArms(a.arm, b.arm))
	}) {
		share := shares[key]
		e := Estimate{
			Metric: key.metric, Unit: t.defined.Of(key.metric).Unit, Rank: t.defined.Of(key.metric).Rank, Arm: key.arm,
			Factors: at, Value: share.Value,
			N: share.Samples, Trials: share.Trials, Method: PooledMethod,
		}
		if share.HasInterval {
			e.Lo, e.Hi, e.Confidence = &share.Lo, &share.Hi, stats.Confidence
		}
		if !math.IsNaN(share.DesignEffect) {
			e.DesignEffect = &share.DesignEffect
		}
		if share.HasInterval && share.Most > 2*share.Fewest {
			e.Notes = append(e.Notes, fmt.Sprintf("its trials have %s to %s samples: where they differ more than twofold, "+
				"intervals may be too narrow", quantity.Thousands(share.Fewest), quantity.Thousands(share.Most)))
		}
		if base, ok := shares[pool{key.level, record.Direct, key.metric}]; ok && key.arm != record.Direct {
			e.Baseline = record.Direct
			d := stats.ShareDifference(base, share)
			e.Difference = newDifference(d)
			e.Difference.WorstLo, e.Difference.WorstHi = e.Difference.Lo, e.Difference.Hi
			var far float64
			twin, known := shares[pool{key.level, record.AA, key.metric}]
			if known {
				far, known = stats.SmallestVisible(stats.ShareDifference(base, twin))
			}
			e.Difference.judge(key.arm, d, far, known)
			e.Difference.Resolved = e.Difference.Unresolved == ""
		}
		s.Estimates = append(s.Estimates, e)
	}
}

func byBlock(counts map[int]record.Count) []stats.Count {
	return lists.Map(slices.Sorted(maps.Keys(counts)), func(block int) stats.Count { return stats.Count(counts[block]) })
}
