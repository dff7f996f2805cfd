package analysis

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// tooFew is the reason in Loss.By for values that no gate voided: the trial had too few samples for the metric, or
// nothing to measure.
const tooFew = "too few samples"

// selection is the p-value below which an arm's losses are beyond chance, compared with those of the twins. The sign
// tests for carry-over and stalls use it, too. It is strict because there are many metrics, and most are lost together.
const selection = 0.01

type armMetric struct{ arm, metric string }

// lostPairs judges the blocks in which both the baseline and an arm ran. stand lists, in order, those whose pair of
// values counts even in the worst case. lost is the number of blocks in which at least one of the two has no value.
// whole is how many of the lost blocks the arm and both twins lost, each to the hypervisor or to neighbours alone.
//
// A repeated trial has lost its first attempt. If the arm lost more first attempts than the twins, the excess of its
// repeated trials counts as lost, too. If its losses are beyond chance, all of its repeated trials count as lost, and
// whole is 0.
func (t *Table) lostPairs(at factors, arm, metric string) (stand []int, lost, whole int) {
	return t.lostBlocks(at, arm, metric, true)
}

// lostBlocks does the work of lostPairs. If paired is false, it judges the values of the arm alone, without the
// baseline's.
func (t *Table) lostBlocks(at factors, arm, metric string, paired bool) (stand []int, lost, whole int) {
	level := record.LevelKey(at)
	of, base := t.fates(pool{level, arm, metric}), t.fates(pool{level, record.Direct, metric})
	twin := t.fates(pool{level, record.AA, metric})
	selected := t.selected[armMetric{arm, metric}]
	excess := t.excess(at, arm, metric)
	for block, f := range lists.ByKey(of) {
		b := base[block]
		has := f.told && (b.told || !paired)
		switch _, ran := base[block]; {
		case paired && !ran:
		case has && f.again && excess > 0:
			excess--
			lost++
		case has:
			stand = append(stand, block)
		default:
			lost++
			if !selected && f.others && b.others && twin[block].others {
				whole++
			}
		}
	}
	return stand, lost, whole
}

// excess returns how many of an arm's repeated trials count as lost for a metric: the number of blocks in which it
// spoiled the first attempt, beyond what its twins did. If that is positive, the upper end of its one-sided 95 %
// interval is used, because a few blocks often show less than the true excess. The trials that count are chosen by
// block order and not by value, so that the rest is not a selection. If the losses are beyond chance, all repeated
// trials count.
func (t *Table) excess(at factors, arm, metric string) int {
	if arm == record.Direct || arm == record.AA {
		return 0
	}
	level := record.LevelKey(at)
	again := t.count(pool{level, arm, metric}, func(f fate) bool { return f.again })
	if t.selected[armMetric{arm, metric}] {
		return again
	}
	var spoiled, planned [2]float64 // of the arm, and of its twins
	for i, arms := range [][]string{{arm}, {record.Direct, record.AA}} {
		for _, a := range arms {
			key := pool{level, a, metric}
			spoiled[i] += float64(t.count(key, spoiledFirst))
			planned[i] += float64(t.count(key, func(fate) bool { return true }))
		}
	}
	n, m := planned[0], planned[1]
	if m == 0 {
		return 0
	}
	more := spoiled[0] - spoiled[1]*n/m
	if more <= 0 {
		return 0
	}
	part := (spoiled[0] + spoiled[1]) / (n + m)
	const upper = 1.645 // standard errors: one-sided 95 %
	more += upper * math.Sqrt(part*(1-part)*n*(1+n/m))
	return min(again, int(math.Ceil(more)))
}

// spoiledFirst reports whether the first attempt at the trial had no valid value of the metric.
func spoiledFirst(f fate) bool { return !f.told || f.again }

// judgeArms finds the arms whose losses are a selection, and those that change the trial after them.
func (t *Table) judgeArms() {
	t.findSelection()
	t.findCarryOver()
}

// findSelection finds the arms that lost more first attempts of a metric than the twins did, beyond chance, over all
// levels (Fisher's exact test, one-sided). A gate that the subject trips more often when it is slow leaves only the
// fast trials.
func (t *Table) findSelection() {
	t.selected = map[armMetric]bool{}
	for _, metric := range slices.Sorted(maps.Keys(t.known)) {
		spoiled := func(arm string) (n, of int) {
			for _, at := range t.Levels {
				key := pool{record.LevelKey(at), arm, metric}
				if t.count(key, told) == 0 {
					continue // the arm does not have this metric here
				}
				n += t.count(key, spoiledFirst)
				of += t.count(key, func(fate) bool { return true })
			}
			return n, of
		}
		n, of := spoiled(record.Direct)
		if again, more := spoiled(record.AA); more > 0 {
			n, of = n+again, of+more
		}
		for _, arm := range t.Subjects() {
			if mine, all := spoiled(arm); of > 0 && all > 0 && stats.MoreOften(mine, all, n, of) < selection {
				t.selected[armMetric{arm, metric}] = true
			}
		}
	}
}

// lose lists the losses of each arm at each level, and warns of those beyond chance. Metrics that an arm lost in the
// same blocks for the same reasons share one Loss.
func (s *Summary) lose(t *Table) {
	s.Losses = []Loss{}
	beyond := map[string][]string{}
	for _, at := range t.Levels {
		for _, arm := range t.Arms {
			level := record.LevelKey(at)
			seen := map[string]int{}
			for _, metric := range slices.Sorted(maps.Keys(t.known)) {
				key := pool{level, arm, metric}
				if t.count(key, told) == 0 {
					continue
				}
				fates := t.fates(key)
				l := Loss{Arm: arm, Factors: at, Metrics: []string{metric}, Planned: len(fates), By: map[string]int{}}
				l.Beyond = t.selected[armMetric{arm, metric}]
				same := map[int]string{}
				for block, f := range fates {
					switch {
					case !f.told:
						l.Lost++
						l.By[f.why()]++
						same[block] = f.why()
					case f.again:
						l.Repeated++
						same[block] = "again"
					}
				}
				if l.Lost+l.Repeated == 0 {
					continue
				}
				if l.Beyond && !slices.Contains(beyond[arm], quantity.Label(metric)) {
					beyond[arm] = append(beyond[arm], quantity.Label(metric))
				}
				alike := fmt.Sprint(same, l.Beyond) // fmt prints maps in the order of their keys
				if i, known := seen[alike]; known {
					s.Losses[i].Metrics = append(s.Losses[i].Metrics, metric)
					continue
				}
				seen[alike] = len(s.Losses)
				s.Losses = append(s.Losses, l)
			}
		}
	}
	for arm, labels := range lists.ByKey(beyond) {
		s.addWarning("%s lost more trials than its twins, beyond chance, in %s: what is left is a selection, and its "+
			"differences are resolved only where no value of the lost trials could change that", arm,
			strings.Join(labels, ", "))
	}
}
