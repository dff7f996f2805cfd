package analysis

import (
	"maps"
	"slices"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// Curve is the latency of one arm at one level by percentile.
type Curve struct {
	Arm     string
	Factors map[string]string
	Points  []CurvePoint
}

// CurvePoint is one percentile of latency in seconds: the median over blocks of the trials' quantiles, and its paired
// difference to the baseline.
type CurvePoint struct {
	Q float64 // part of the requests that are faster
	Interval
	Difference *Difference // nil of the baseline itself, and where it has no such quantile
	Visible    *float64    // the smallest visible difference here: half the width of the A/A band
}

// Text is the value with its interval.
func (p CurvePoint) Text() string { return p.Written(quantity.Seconds) }

// percentiles are the points of the curves, with their names; each is given if there are enough samples for it.
var percentiles = lists.Map([]float64{
	0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
}, func(q float64) percentile { return percentile{quantileName(q), q} })

type percentile struct {
	name string
	q    float64
}

// percentilesOf returns, by name and in seconds, the percentiles for which one histogram of all loads of a trial has
// enough samples; nil if there is no such histogram or it cannot be read. Only the percentiles are kept, because the
// histogram takes a hundred times as much memory.
func percentilesOf(trial record.Trial, histogram string) map[string]float64 {
	h, err := stats.MergeEncoded(encodedOf(trial, histogram)...)
	if err != nil || h == nil {
		return nil // the summary's warnings say that histograms could not be read
	}
	all := map[string]float64{}
	for _, p := range percentiles {
		if ns, ok := stats.Quantile(h, p.q); ok {
			all[p.name] = ns / 1e9
		}
	}
	return all
}

// curves are made of the latency of every trial in which it stands.
type curves struct {
	*Table // of percentiles by their names: those that every trial of an arm at a level has

	seed   uint64
	losses *Table
	metric string // the median of latency, whose losses are those of all points
}

// Curves are made and judged as the summary's quantiles are: a quantile of every trial, then the median over blocks,
// and differences paired within blocks. What some trial of an arm cannot carry is left out. They are in order of
// level and arm.
func Curves(run record.Run, trials []record.Trial) (all []Curve) {
	trials, _ = bounded(run, trials)
	c := curves{
		Table: &Table{cells: map[cell]*values{}, in: map[levelArm][]int{}}, seed: run.Seed,
		losses: newTable(run, trials, &Summary{}), metric: run.Defined().QuantileOf(load.Latency, 0.5),
	}
	c.losses.judgeArms()
	c.take(trials)
	learned := lists.Keyed(percentiles, func(p percentile) (string, map[string]stats.Dependence) { // by arm
		return p.name, c.dependence(p.name, stats.Differences)
	})
	for _, at := range c.Levels {
		for _, arm := range c.Arms {
			curve := Curve{Arm: arm, Factors: at}
			for _, p := range percentiles {
				if column := c.Column(at, arm, p.name); len(column) > 0 {
					curve.Points = append(curve.Points, c.point(p, stats.Median(column), at, arm, learned[p.name]))
				}
			}
			if len(curve.Points) > 0 {
				all = append(all, curve)
			}
		}
	}
	return all
}

// take fills the table. Of the attempts at a trial the first counts in which latency stands.
func (c *curves) take(trials []record.Trial) {
	levels, arms := map[string]factors{}, map[string]bool{}
	for _, t := range trials {
		at := cell{record.LevelKey(t.Factors), t.Arm, t.Block}
		if c.cells[at] != nil || !t.Validity.Stands(c.metric) {
			continue
		}
		v := &values{percentilesOf(t, load.Latency), percentilesOf(t, lagHistogram(t))}
		if v.metrics == nil {
			continue
		}
		place := levelArm{at.level, at.arm}
		c.cells[at], c.in[place] = v, append(c.in[place], t.Block)
		levels[at.level], arms[t.Arm] = t.Factors, true
	}
	for place, blocks := range c.in {
		slices.Sort(blocks)
		for _, p := range percentiles {
			if len(c.blocks(place.level, hasMetric(p.name), place.arm)) == len(blocks) {
				continue
			}
			for _, block := range blocks {
				delete(c.cells[cell{place.level, place.arm, block}].metrics, p.name)
			}
		}
	}
	c.Levels = slices.SortedFunc(maps.Values(levels), CompareLevels)
	c.Arms = slices.SortedFunc(maps.Keys(arms), CompareArms)
}

// point is a percentile of an arm at a level, with its difference to the baseline, and the smallest that the twins let
// one see there.
func (c *curves) point(
	of percentile, v stats.Estimate, at factors, arm string, learned map[string]stats.Dependence,
) CurvePoint {
	p := CurvePoint{Q: of.q, Interval: newInterval(v)}
	twins := twinsOf(learned[record.AA], c.pairs(at, record.AA, of.name), c.seed)
	if twins.shown {
		p.Visible = &twins.far
	}
	pairs := c.pairs(at, arm, of.name)
	if arm == record.Direct || pairs == nil {
		return p
	}
	stand, lost, whole := c.losses.lostPairs(at, arm, c.metric)
	both := c.blocks(record.LevelKey(at), hasMetric(of.name), record.Direct, arm)
	stand = slices.DeleteFunc(stand, func(block int) bool { return !slices.Contains(both, block) })
	compared := comparison{
		arm: arm, pairs: pairs, kept: c.pairsOf(at, arm, of.name, stand), lost: lost, whole: whole,
		selected: c.losses.selected[armMetric{arm, c.metric}], dependence: learned[arm],
		carried: c.losses.carried[armMetric{arm, c.metric}], twins: twins,
		lag: c.lagPairs(at, arm, of.name), quantile: of.name, seed: c.seed,
	}
	p.Difference, _ = compared.difference()
	return p
}
