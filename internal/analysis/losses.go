package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// tooFew is in Loss.By for values that no gate voided: the trial had too few samples to carry them, or nothing to
// measure.
const tooFew = "too few samples"

// selection is the significance at which losses of an arm are more than chance beside those of the twins. There are
// many metrics, which mostly are lost together.
const selection = 0.01

type armMetric struct{ arm, metric string }

// tried are the attempts of each arm at each level, by block. What was interrupted says nothing.
func tried(trials []record.Trial) map[levelArm]map[int][]record.Trial {
	all := map[levelArm]map[int][]record.Trial{}
	for _, t := range trials {
		if t.Validity.Failed == record.Interrupted {
			continue
		}
		k := levelArm{factors(t.Factors).key(), t.Arm}
		if all[k] == nil {
			all[k] = map[int][]record.Trial{}
		}
		all[k][t.Block] = append(all[k][t.Block], t)
	}
	for _, blocks := range all {
		for _, attempts := range blocks {
			slices.SortStableFunc(attempts, func(a, b record.Trial) int { return cmp.Compare(a.Attempt, b.Attempt) })
		}
	}
	return all
}

// lostTo says why a trial cannot tell a metric: the gates that void it, or that it failed. It is empty where it can.
func lostTo(t record.Trial, metric string) string {
	if t.Validity.Failed != "" {
		return "failed"
	}
	var gates []string
	for _, r := range t.Validity.Reasons {
		if !r.VoidsMetric(metric) {
			continue
		}
		gate := r.Gate
		if r.Cause != "" {
			gate += " (" + string(r.Cause) + ")"
		}
		gates = append(gates, gate)
	}
	if len(gates) == 0 && !t.Validity.Valid && len(t.Validity.Reasons) == 0 {
		return "invalid"
	}
	slices.Sort(gates)
	return strings.Join(slices.Compact(gates), ", ")
}

// fate is what became of a metric of an arm in the blocks in which the arm ran at a level.
type fate struct {
	tried    int
	lost     map[int]string // by block: to what
	repeated map[int]bool   // blocks whose value is not of the first attempt
}

func (t *table) fate(at factors, arm, metric string) fate {
	level := at.key()
	f := fate{lost: map[int]string{}, repeated: map[int]bool{}}
	for block, attempts := range t.tried[levelArm{level, arm}] {
		f.tried++
		v, ok := t.cells[cell{level, arm, block}]
		if ok {
			_, ok = v.metrics[metric]
		}
		switch {
		case !ok:
			why := lostTo(attempts[len(attempts)-1], metric)
			if why == "" {
				why = tooFew
			}
			f.lost[block] = why
		case lostTo(attempts[0], metric) != "":
			f.repeated[block] = true
		}
	}
	return f
}

// withheld is in how many blocks an arm has no value though no gate voided it.
func (t *table) withheld(at factors, arm, metric string) (n int) {
	for _, why := range t.fate(at, arm, metric).lost {
		if why == tooFew {
			n++
		}
	}
	return n
}

// lostPairs are the pairs of the baseline and an arm that stand in the worst case, in the order of blocks, and how many
// are lost: those of blocks in which both ran and one has no value. Where an arm's losses are beyond chance, values of
// later attempts count as lost as well, for they were chosen.
func (t *table) lostPairs(at factors, arm, metric string) (kept []stats.Pair, lost int) {
	level := at.key()
	var stand []int
	base, of := t.fate(at, record.Direct, metric), t.fate(at, arm, metric)
	selected := t.selected[armMetric{arm, metric}]
	for block := range t.tried[levelArm{level, arm}] {
		if _, ran := t.tried[levelArm{level, record.Direct}][block]; !ran {
			continue
		}
		_, baseLost := base.lost[block]
		_, ofLost := of.lost[block]
		if baseLost || ofLost || selected && of.repeated[block] {
			lost++
			continue
		}
		stand = append(stand, block)
	}
	slices.Sort(stand)
	return t.pairsOf(at, arm, metric, stand), lost
}

// findSelection finds the arms that lost more first attempts of a metric than the twins do beyond chance, over all
// levels (Fisher's exact test, one-sided). A gate that the subject itself trips more often leaves the trials in which
// it was fast.
func (t *table) findSelection() {
	t.selected = map[armMetric]bool{}
	for _, metric := range t.metrics {
		spoiled := func(arm string) (n, of int) {
			for _, at := range t.levels {
				if len(t.blocks(at.key(), hasMetric(metric), arm)) == 0 {
					continue // it does not have this metric
				}
				f := t.fate(at, arm, metric)
				n, of = n+len(f.lost)+len(f.repeated), of+f.tried
			}
			return n, of
		}
		n, of := spoiled(record.Direct)
		if again, more := spoiled(record.AA); more > 0 {
			n, of = n+again, of+more
		}
		for _, arm := range t.subjects() {
			if mine, all := spoiled(arm); of > 0 && all > 0 && stats.MoreOften(mine, all, n, of) < selection {
				t.selected[armMetric{arm, metric}] = true
			}
		}
	}
}

// lose lists the losses of each arm, metrics with the same fate together, and warns of those that are beyond chance.
func (s *Summary) lose(t *table) {
	s.Losses = []Loss{}
	beyond := map[string][]string{}
	for _, at := range t.levels {
		for _, arm := range t.arms {
			level := at.key()
			same := map[string]int{}
			for _, metric := range t.metrics {
				if len(t.blocks(level, hasMetric(metric), arm)) == 0 {
					continue
				}
				f := t.fate(at, arm, metric)
				if len(f.lost)+len(f.repeated) == 0 {
					continue
				}
				l := Loss{
					Arm: arm, Factors: at, Metrics: []string{metric}, Planned: f.tried, Lost: len(f.lost), Repeated: len(f.repeated),
					By: map[string]int{}, Beyond: t.selected[armMetric{arm, metric}],
				}
				for _, why := range f.lost {
					l.By[why]++
				}
				if l.Beyond && !slices.Contains(beyond[arm], quantity.Label(metric)) {
					beyond[arm] = append(beyond[arm], quantity.Label(metric))
				}
				key := fmt.Sprint(f.lost, f.repeated, l.Beyond) // maps are printed in the order of their keys
				if i, seen := same[key]; seen {
					s.Losses[i].Metrics = append(s.Losses[i].Metrics, metric)
					continue
				}
				same[key] = len(s.Losses)
				s.Losses = append(s.Losses, l)
			}
		}
	}
	for _, arm := range slices.Sorted(maps.Keys(beyond)) {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s lost more trials than its twins, beyond chance, in %s: what is left is chosen, and its "+
			"differences are resolved only where no value of the lost ones could change that", arm, strings.Join(beyond[arm], ", ")))
	}
}
