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
// difference from the baseline.
type CurvePoint struct {
	Q float64 // the quantile: fraction of requests that take at most this long
	Interval
	Difference *Difference // nil for the baseline itself, and if the baseline has no such quantile
	Visible    *float64    // the smallest visible difference here: half the width of the A/A band
}

// Text formats the value with its interval.
func (p CurvePoint) Text() string { return p.Written(quantity.Seconds) }

// percentiles are the points of the curves, with their names. Those with too few samples are left out.
var percentiles = lists.Map([]float64{
	0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
}, func(q float64) percentile { return percentile{quantileName(q), q} })

type percentile struct {
	name string
	q    float64
}

// percentilesOf returns, by name and in seconds, the percentiles for which a histogram, merged over all loads of a
// trial, has enough samples; nil if there is no such histogram or it cannot be read. Only the percentiles are kept,
// because the histogram takes a hundred times as much memory.
func percentilesOf(trial record.Trial, histogram string) map[string]float64 {
	h, err := stats.MergeEncoded(encodedOf(trial, histogram)...)
	if err != nil || h == nil {
		return nil // the summary warns of unreadable histograms
	}
	all := map[string]float64{}
	for _, p := range percentiles {
		if ns, ok := stats.QuantileWithout(h, load.Missing(trial.Loads, histogram), p.q); ok {
			all[p.name] = ns / 1e9
		}
	}
	return all
}

// curves holds the latency percentiles of every trial with valid latency.
type curves struct {
	*Table // with percentiles in place of metrics, but only those that every trial of an arm at a level has

	seed   uint64
	losses *Table
	metric string // the median of latency, whose losses count for all points
}

// Curves returns the latency curves in order of level and arm. They are computed and judged like the quantiles of the
// summary: a quantile of every trial, then the median over blocks, and differences paired within blocks. A percentile
// for which some trial has too few samples is left out.
func Curves(run record.Run, trials []record.Trial) (all []Curve) {
	trials, _ = bounded(run, trials)
	c := curves{
		Table: &Table{cells: map[cell]*values{}, in: map[levelArm][]int{}}, seed: run.Seed,
		losses: newTable(run, trials, &Summary{}), metric: run.Defined().QuantileOf(load.Latency, 0.5),
	}
	c.losses.judgeArms()
	c.take(trials)
	// By percentile and arm.
	learned := lists.Keyed(percentiles, func(p percentile) (string, map[string]stats.Dependence) {
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

// take fills the table. Each trial counts with its first attempt in which latency is valid.
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

// point returns a percentile of an arm at a level, with its difference from the baseline, and the smallest difference
// that is visible there.
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
