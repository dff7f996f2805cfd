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

// uneven is the reason why a difference of pooled shares is not resolved, or an assertion about one undecided, although
// the interval does not contain the value that it is compared with. The interval ends too close to that value.
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
			e.Notes = append(e.Notes, t.loseShares(e.Difference, at, key, bursts[key.metric])...)
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

// loseShares sets the losses of a difference of shares, and its two worst cases: in the trials that the arm lost, no
// sample counts in the share, and in those that the baseline lost, all samples do; or the reverse. It returns a note on
// blocks that count as not run.
func (t *Table) loseShares(d *Difference, at factors, key pool, bursts float64) (notes []string) {
	base := pool{key.level, record.Direct, key.metric}
	stand, lost, whole := t.lostPairs(at, key.arm, key.metric)
	if d.Lost, d.LostWhole = lost, whole; !t.selected[armMetric{key.arm, key.metric}] {
		for block := range t.pools[key] {
			if _, both := t.pools[base][block]; both && !slices.Contains(stand, block) {
				d.LostRepeated++
			}
		}
		d.Lost -= d.LostRepeated
	}
	worst := func(whole int) (lo, hi *float64) {
		if d.Lo == nil {
			return nil, nil
		}
		few, many := t.worstShares(at, key, whole, func(base, arm []stats.Count) stats.Estimate {
			return stats.ShareDifference(stats.ClusteredShare(base, bursts), stats.ClusteredShare(arm, bursts))
		})
		return finite(min(*d.Lo, few)), finite(max(*d.Hi, many))
	}
	d.WorstLo, d.WorstHi = worst(0)
	if whole > 0 {
		d.RestLo, d.RestHi = worst(whole)
		notes = append(notes, notRun(whole))
	}
	return notes
}

// worstShares returns the ends of an interval in the two worst cases; of(base, arm) computes the interval from the
// counts of the baseline and of the arm. For lo, no sample of the trials that the arm lost counts in the share, and
// every sample of those that the baseline lost does; for hi, it is the reverse. whole is the number of lost blocks to
// treat as not run. An end is infinite if there is no interval.
func (t *Table) worstShares(
	at factors, key pool, whole int, of func(base, arm []stats.Count) stats.Estimate,
) (lo, hi float64) {
	counts := func(arm string, part int) []stats.Count {
		all := t.pools[pool{key.level, arm, key.metric}]
		stand, lost, _ := t.lostBlocks(at, arm, key.metric, false)
		samples := 0
		for _, n := range all {
			samples += n.Of
		}
		each := max(1, samples/max(1, len(all))) // a lost trial has as many samples as the average of the others
		return slices.Concat(lists.Map(stand, func(block int) stats.Count { return stats.Count(all[block]) }),
			slices.Repeat([]stats.Count{{In: part * each, Of: each}}, max(0, lost-whole)))
	}
	lo, hi = math.Inf(-1), math.Inf(1)
	if e := of(counts(record.Direct, 1), counts(key.arm, 0)); e.HasInterval {
		lo = e.Lo
	}
	if e := of(counts(record.Direct, 0), counts(key.arm, 1)); e.HasInterval {
		hi = e.Hi
	}
	return lo, hi
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
