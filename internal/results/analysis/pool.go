package analysis

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// minPooled is the minimum number of samples for a pooled share.
const minPooled = 25

// PooledMethod is the method of estimates that are shares of the samples of all trials together.
const PooledMethod = "pooled samples, clustered Wilson"

// uneven is the reason why no claim rests on a pooled share whose interval ends close to the value it is compared with.
const uneven = "its trials differ too much in size or share: its interval may be too narrow"

// burstsOf returns, by metric, the largest design effect of its pooled shares over all levels and arms (stats.Bursts).
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

// pool adds the shares that are counted over all trials of an arm. Samples of one trial are not independent of each
// other, so the interval is computed from the differences between trials. unevenIn names the metrics whose trials
// differ too much for such an interval.
func (s *Summary) pool(t *Table, at factors, bursts map[string]float64) (unevenIn []string) {
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
			Factors: at, Interval: Interval{Value: share.Value},
			N: share.Samples, Trials: share.Trials, Method: PooledMethod,
		}
		if share.HasInterval {
			e.Lo, e.Hi, e.Confidence = &share.Lo, &share.Hi, stats.Confidence
		}
		if !math.IsNaN(share.DesignEffect) {
			e.DesignEffect = &share.DesignEffect
		}
		if share.Uneven {
			e.Notes = append(e.Notes, uneven)
			unevenIn = append(unevenIn, quantity.Label(key.metric))
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
			if open := (base.Uneven || share.Uneven) && !d.Beyond(0, stats.UnevenTimes); open && key.arm != record.AA {
				e.Difference.Unresolved = cmp.Or(e.Difference.Unresolved, uneven)
			}
			e.Difference.Resolved = e.Difference.Unresolved == ""
		}
		s.Estimates = append(s.Estimates, e)
	}
	return unevenIn
}

// warnOfUneven names the pooled shares whose trials differ too much.
func (s *Summary) warnOfUneven(in []string) {
	if len(in) > 0 {
		slices.Sort(in)
		s.Warnings = append(s.Warnings, "trials differ so much in size or share that intervals may be too narrow, and what "+
			"is not far outside of them is not resolved, in "+strings.Join(slices.Compact(in), ", "))
	}
}

func byBlock(counts map[int]record.Count) []stats.Count {
	return lists.Map(slices.Sorted(maps.Keys(counts)), func(block int) stats.Count { return stats.Count(counts[block]) })
}
