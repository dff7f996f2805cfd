package analysis

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// estimate adds the estimates of one metric at one level, for every arm that has it, and the smallest visible
// difference.
func (s *Summary) estimate(t *Table, at factors, metric string, dependences map[armMetric]stats.Dependence,
	seed uint64) {
	twins := twinsOf(dependences[armMetric{record.AA, metric}], t.pairs(at, record.AA, metric), seed)
	if twins.shown {
		s.MDE = append(s.MDE, MDE{Metric: metric, Factors: at, Value: twins.far})
	}
	defined := t.defined.Of(metric)
	for _, arm := range t.Arms {
		column := t.Column(at, arm, metric)
		value := stats.Median(column)
		if value.N == 0 {
			continue
		}
		e := Estimate{
			Metric: metric, Unit: defined.Unit, Rank: defined.Rank, Arm: arm, Factors: at,
			Interval: newInterval(value), Confidence: value.Confidence, N: value.N, Method: string(value.Method),
		}
		if defined.Cost {
			e.Mean = new(newInterval(stats.MeanAt(column, stats.Confidence)))
			e.Outlying = stats.Outlying(column)
		}
		if t.count(pool{record.LevelKey(at), arm, metric}, func(f fate) bool { return f.why() == tooFew }) > 0 {
			e.Notes = append(e.Notes, withheldNote(defined.Undisturbed))
		}
		if arm != record.Direct {
			s.compare(t, &e, dependences[armMetric{arm, metric}], twins, seed)
			e.noteOutlying(t)
		}
		s.Estimates = append(s.Estimates, e)
	}
}

// noteOutlying adds a note if an arm has more blocks far above the others than its baseline has, beyond chance. A user
// pays for such blocks too, and the median does not show them.
func (e *Estimate) noteOutlying(t *Table) {
	base := t.Column(e.Factors, record.Direct, e.Metric)
	of := stats.Outlying(base)
	if e.Outlying == 0 || stats.MoreOften(e.Outlying, e.N, of, len(base)) > outlyingChance {
		return
	}
	e.Notes = append(e.Notes, fmt.Sprintf("%d of %s cost far more than the others, and %d of the baseline's: the mean "+
		"is %s", e.Outlying, quantity.Counted(e.N, "trial"), of, e.Mean.Written(e.Unit)))
}

// outlyingChance is the largest p-value at which a note mentions outlying trials.
const outlyingChance = 0.05

// withheldNote returns the note on an estimate for which some blocks had too few samples.
func withheldNote(undisturbed bool) string {
	if undisturbed {
		return "blocks without a value had too few requests that no stall touched"
	}
	return "blocks without a value had too few samples for it; in a closed loop those are the slow ones"
}

// twins holds how far apart the A/A twins are in a metric at a level, in the unit of the metric.
type twins struct {
	far   float64
	known bool // the twins have the metric in some block
	shown bool // far is the end of an interval, rather than a difference without one
}

func twinsOf(dependence stats.Dependence, pairs []stats.Pair, seed uint64) (t twins) {
	if t.far, t.shown = stats.SmallestVisible(dependence.Difference(pairs, seed)); t.shown {
		t.known = true
		return t
	}
	// If the twin has too few blocks for an interval, the difference of an arm that has an interval can still be resolved:
	// the arm's own interval guards against false alarms.
	t.far, t.known = stats.FarEnd(pairs, seed)
	return t
}

// comparison compares a value of an arm with the baseline's. Only this type decides whether a difference is resolved,
// both for estimates and for the points of curves.
type comparison struct {
	arm   string
	pairs []stats.Pair // of the blocks in which both have the value
	kept  []stats.Pair // the pairs that keep their values in the worst case
	lost  int          // further blocks in which the arm or the baseline has no value
	whole int          // how many of the lost blocks the arm and both twins lost to the hypervisor or to neighbours

	selected   bool // the arm's losses are beyond chance
	dependence stats.Dependence
	carried    bool // the arm changes the trial after it
	twins      twins
	lag        []stats.Pair // lag of the load generator at the same quantile; empty if the metric has no lag
	quantile   string       // name of the quantile of the lag
	seed       uint64
}

// difference returns the difference with its verdict, and notes on it.
func (c *comparison) difference() (out *Difference, notes []string) {
	series := c.dependence.Of(stats.Differences(c.pairs))
	d := series.Widen(stats.Difference(c.pairs, c.seed))
	out = newDifference(d)
	if c.dependence.Known() {
		out.Effective = &d.Effective
	}
	out.carried = c.carried
	out.Lost, out.LostWhole = c.lost, c.whole
	if !c.selected {
		out.LostRepeated = len(c.pairs) - len(c.kept)
		out.Lost -= out.LostRepeated
	}
	worst := func(lost int) (lo, hi *float64) {
		worstLo, worstHi, bounded := c.dependence.WorstCase(c.kept, lost, c.seed)
		if !d.HasInterval || !bounded {
			return nil, nil
		}
		return finite(worstLo), finite(worstHi)
	}
	out.WorstLo, out.WorstHi = worst(c.lost)
	if c.whole > 0 {
		out.RestLo, out.RestHi = worst(c.lost - c.whole)
		notes = append(notes, notRun(c.whole))
	}
	out.judge(c.arm, d, c.twins.far, c.twins.known)
	if out.Unresolved == "" && c.arm != record.AA && series.Strong() {
		out.strong = true
		if d.Beyond(0, stats.StrongTimes) {
			notes = append(notes, tooNarrow)
		} else {
			out.Unresolved = tooNarrow
		}
	}
	if out.Unresolved == "" {
		var note string
		if out.Unresolved, note = lagGate(out.Value, c.lag, c.quantile, c.seed); note != "" {
			notes = append(notes, note)
		}
	}
	if out.Unresolved == "" && c.carried {
		out.Unresolved = carriesOver
	}
	out.Resolved = out.Unresolved == ""
	return out, notes
}

// notRun returns the note on blocks that count as not run.
func notRun(blocks int) string {
	return "taken as not run: " + quantity.Counted(blocks, "block") + " that this arm and both twins lost to the " +
		"hypervisor or to neighbours"
}

// compare adds the difference between an estimate and the baseline, if both have a value in some block.
func (s *Summary) compare(t *Table, e *Estimate, dependence stats.Dependence, twins twins, seed uint64) {
	c := comparison{
		arm: e.Arm, pairs: t.pairs(e.Factors, e.Arm, e.Metric), dependence: dependence, twins: twins, seed: seed,
		carried: t.carried[armMetric{e.Arm, e.Metric}],
	}
	if len(c.pairs) == 0 {
		return
	}
	e.Baseline = record.Direct
	if r, ok := dependence.Ratio(c.pairs, seed); ok {
		e.Ratio = new(newInterval(r))
	}
	var stand []int
	stand, c.lost, c.whole = t.lostPairs(e.Factors, e.Arm, e.Metric)
	c.selected = t.selected[armMetric{e.Arm, e.Metric}]
	c.kept = t.pairsOf(e.Factors, e.Arm, e.Metric, stand)
	c.lag, c.quantile = t.lagPairs(e.Factors, e.Arm, e.Metric), quantileName(t.defined.Of(e.Metric).Quantile)
	var notes []string
	e.Difference, notes = c.difference()
	if t.defined.Of(e.Metric).Cost {
		ds := stats.Differences(c.pairs)
		e.Difference.Mean = new(newInterval(dependence.Widen(stats.MeanAt(ds, stats.Confidence), ds)))
	}
	e.Notes = append(e.Notes, notes...)
}

func newDifference(d stats.Estimate) *Difference {
	return &Difference{Interval: newInterval(d), Confidence: d.Confidence, N: d.N, Method: string(d.Method)}
}

// judge sets the smallest visible difference and, if the difference is not resolved, the reason (Unresolved).
func (d *Difference) judge(arm string, e stats.Estimate, far float64, farKnown bool) {
	visible := stats.Visible(far, e)
	if e.HasInterval && farKnown {
		d.SmallestVisible, d.Found = &visible, new(stats.Found(visible, e))
	}
	d.Unresolved = unresolved(arm, e, visible, farKnown)
	lo, hi, lost := d.worst()
	open := (lo == nil || *lo <= 0) && (hi == nil || *hi >= 0)
	switch {
	case d.Interval.Zero() && !d.Zero():
		d.Unresolved = lostAnything(lost)
	case d.Unresolved == "" && lost > 0 && open:
		d.Unresolved = fmt.Sprintf("%s: the %s without a value could make it vanish", LossReason,
			quantity.Counted(lost, "block"))
		if d.LostRepeated > 0 {
			d.Unresolved = fmt.Sprintf("%s: %s could make it vanish, %d of them run again, more than of its twins",
				LossReason, quantity.Counted(lost, "lost block"), d.LostRepeated)
		}
	}
}

// worst returns the worst case of the lost blocks, and their number, without those that count as not run. An end is nil
// if it is unbounded.
func (d *Difference) worst() (lo, hi *float64, lost int) {
	if lo, hi = d.WorstLo, d.WorstHi; d.LostWhole > 0 {
		lo, hi = d.RestLo, d.RestHi
	}
	return lo, hi, d.Lost + d.LostRepeated - d.LostWhole
}

// Doubt returns the reason why the value of a difference, and not only its interval, may be wrong; empty if there is
// none. A difference whose interval contains 0 may be doubtful, too.
func (d *Difference) Doubt() string {
	lo, hi, lost := d.worst()
	switch {
	case d.carried:
		return carriesOver
	case d.BaselineWithheld(), strings.HasPrefix(d.Unresolved, LossReason),
		strings.HasPrefix(d.Unresolved, LagReason):
		return d.Unresolved
	case lost > 0 && (lo == nil || hi == nil):
		return lostAnything(lost)
	}
	return ""
}

// Zero reports whether the difference is exactly 0, and the lost blocks could not change that.
func (d *Difference) Zero() bool {
	lo, hi, lost := d.worst()
	return d.Interval.Zero() && (lost == 0 || lo != nil && hi != nil && *lo == 0 && *hi == 0)
}

// lostAnything is the reason why a difference is not resolved if lost blocks leave it unbounded.
func lostAnything(lost int) string {
	return fmt.Sprintf("%s: the %s without a value could change it by any amount", LossReason,
		quantity.Counted(lost, "block"))
}

// LossReason is the beginning of Difference.Unresolved if lost blocks are the reason.
const LossReason = "lost trials"

// tooNarrow is the reason why a difference is not resolved if blocks depend on each other strongly.
const tooNarrow = "neighbouring blocks resemble each other too much, or the twins differ: its interval may still be " +
	"too narrow"

// unresolved returns the reason why a difference is not resolved; empty if it is.
func unresolved(arm string, d stats.Estimate, visible float64, farKnown bool) string {
	switch {
	case !d.HasInterval:
		return fmt.Sprintf("%d of the %d blocks that an interval needs", d.N, stats.MinBlocks)
	case !d.Excludes(0):
		return "its interval contains 0"
	case arm == record.AA:
		return ""
	case !farKnown:
		return "there are no A/A twins to compare it with"
	case !stats.Resolved(d, visible):
		return "it is no larger than what separates the A/A twins, or than half its own interval"
	}
	return ""
}

// finite returns nil for infinities and NaN, which JSON cannot represent.
func finite(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// dependences estimates, for each metric of each arm, how much the differences of neighbouring blocks resemble each
// other. The blocks of one arm are too few for that, so the estimate also rests on those of all arms and levels.
func (t *Table) dependences() map[armMetric]stats.Dependence {
	all := map[armMetric]stats.Dependence{}
	for _, metric := range t.metrics {
		for arm, d := range t.dependence(metric, stats.Differences) {
			all[armMetric{arm, metric}] = d
		}
	}
	return all
}

// dependence estimates, for each arm, how much neighbouring blocks resemble each other in one metric. Calling of(pairs)
// computes the series of an arm at a level from its pairs.
func (t *Table) dependence(metric string, of func([]stats.Pair) []float64) map[string]stats.Dependence {
	series := map[string][][]float64{}
	for _, at := range t.Levels {
		for _, arm := range t.Arms {
			if arm != record.Direct {
				series[arm] = append(series[arm], of(t.pairs(at, arm, metric)))
			}
		}
	}
	return dependencesOf(series)
}

// dependencesOf learns from the series of all arms together, and then for each arm from its own.
func dependencesOf(series map[string][][]float64) map[string]stats.Dependence {
	var others [][]float64
	for _, arm := range slices.Sorted(maps.Keys(series)) {
		if arm != record.AA {
			others = append(others, series[arm]...)
		}
	}
	shared := stats.LearnDependence(series[record.AA], others)
	all := map[string]stats.Dependence{}
	for arm, own := range series {
		all[arm] = shared.WithOwn(own...)
	}
	return all
}

// strongDependence is the lag-1 autocorrelation above which even widened intervals covered only 90 to 93 % in
// simulations.
const strongDependence = 0.6

// warnOfDependence names the metrics whose blocks depend on each other so strongly that even widened intervals may be
// too narrow.
func (s *Summary) warnOfDependence(dependences map[armMetric]stats.Dependence) {
	var strong, claims []string
	unknown, known := false, false
	for _, e := range s.Estimates {
		d := dependences[armMetric{e.Arm, e.Metric}]
		if e.Difference != nil && e.Difference.strong {
			claim := quantity.Label(e.Metric) + " of " + e.Arm
			if !slices.Contains(claims, claim) {
				claims = append(claims, claim)
			}
		}
		unknown = unknown || e.Difference != nil && e.Difference.Lo != nil && d.Values > 0 && !d.Known()
		known = known || d.Known()
		if e.Arm == record.AA && d.Known() && d.Lag1 > strongDependence &&
			!slices.Contains(strong, quantity.Label(e.Metric)) {
			strong = append(strong, quantity.Label(e.Metric))
		}
	}
	// A single metric may vary too rarely to tell, however many blocks there are, so warn only if no metric can tell.
	if unknown && !known {
		s.Warnings = append(s.Warnings, "too few blocks to tell whether neighbouring ones resemble each other, so "+
			"intervals treat them as "+
			"independent; at a lag-1 autocorrelation of 0.5, those of 6 blocks cover 85 % rather than 97 %")
	}
	if len(strong) > 0 {
		s.addWarning("neighbouring blocks resemble each other strongly (lag-1 autocorrelation over %g) in %s: intervals are "+
			"wider for it and may still be too narrow", strongDependence, strings.Join(strong, ", "))
	}
	if len(claims) > 0 {
		s.addWarning("neighbouring blocks resemble each other, or the twins differ, so much that intervals may still be too "+
			"narrow, and what is not far outside of them is not resolved, in %s", strings.Join(claims, ", "))
	}
}
