package analysis

import (
	"maps"
	"math"
	"slices"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
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
	Q          float64 // part of the requests that are faster
	Value      float64
	Lo, Hi     *float64
	Difference *Difference // nil of the baseline itself, and where it has no such quantile
	Visible    *float64    // the smallest visible difference here: half the width of the A/A band
}

// Text is the value with its interval.
func (p CurvePoint) Text() string { return Written(p.Value, p.Lo, p.Hi, quantity.Seconds) }

// percentiles are those of the curves; each is given where the samples carry it.
var percentiles = [...]float64{
	0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
}

// quantiles are those of one trial at the percentiles, in seconds; NaN what its samples do not carry. They are what is
// kept of a histogram, which takes a thousand times as much.
type quantiles [len(percentiles)]float64

// quantilesAt are the quantiles of one histogram of all loads of a trial together; false where there is none, or it
// cannot be read.
func quantilesAt(trial record.Trial, histogram string) (quantiles, bool) {
	var all quantiles
	h, err := stats.MergeEncoded(encodedOf(trial, histogram)...)
	if err != nil || h == nil {
		return all, false // the summary's warnings say that histograms could not be read
	}
	for i, q := range percentiles {
		all[i] = math.NaN()
		if ns, ok := stats.Quantile(h, q); ok {
			all[i] = ns / 1e9
		}
	}
	return all, true
}

// curves holds the latency of every trial in which it stands.
type curves struct {
	seed    uint64
	table   *Table
	metric  string // the median of latency, whose losses are those of all points
	latency map[cell]quantiles
	lag     map[cell]quantiles // of the generator, where it is known
	blocks  map[levelArm][]int
	learned [len(percentiles)]map[string]stats.Dependence // by arm
}

// Curves are made and judged as the summary's quantiles are: a quantile of every trial, then the median over blocks,
// and differences paired within blocks. What some trial of an arm cannot carry is left out. They are in order of
// level and arm.
func Curves(run record.Run, trials []record.Trial) []Curve {
	trials, _ = bounded(run, trials)
	c := &curves{
		seed: run.Seed, table: newTable(run, trials, &Summary{}), metric: run.Defined().QuantileOf(load.Latency, 0.5),
		latency: map[cell]quantiles{}, lag: map[cell]quantiles{}, blocks: map[levelArm][]int{},
	}
	c.table.judgeArms()
	levels, arms := map[string]factors{}, map[string]bool{}
	for _, t := range trials {
		at := cell{record.LevelKey(t.Factors), t.Arm, t.Block}
		if _, has := c.latency[at]; has || !t.Validity.Stands(c.metric) {
			continue // the first attempt counts in which latency stands
		}
		latency, has := quantilesAt(t, load.Latency)
		if !has {
			continue
		}
		place := levelArm{at.level, at.arm}
		c.latency[at], c.blocks[place] = latency, append(c.blocks[place], t.Block)
		if lag, has := quantilesAt(t, lagHistogram(t)); has {
			c.lag[at] = lag
		}
		levels[at.level], arms[t.Arm] = t.Factors, true
	}
	inOrder := slices.SortedFunc(maps.Values(levels), compareFactors)
	armsInOrder := slices.SortedFunc(maps.Keys(arms), CompareArms)
	for i := range percentiles {
		series := map[string][][]float64{}
		for _, at := range inOrder {
			for _, arm := range armsInOrder {
				if pairs := c.pairs(at, arm, i); arm != record.Direct && pairs != nil {
					series[arm] = append(series[arm], stats.Differences(pairs))
				}
			}
		}
		c.learned[i] = dependencesOf(series)
	}
	var all []Curve
	for _, at := range inOrder {
		for _, arm := range armsInOrder {
			if points := c.points(at, arm); len(points) > 0 {
				all = append(all, Curve{arm, at, points})
			}
		}
	}
	return all
}

// column is the quantile at a percentile by block, in seconds; nil where a trial cannot carry it.
func (c *curves) column(at factors, arm string, percentile int) map[int]float64 {
	values := map[int]float64{}
	level := record.LevelKey(at)
	for _, b := range c.blocks[levelArm{level, arm}] {
		v := c.latency[cell{level, arm, b}][percentile]
		if math.IsNaN(v) {
			return nil
		}
		values[b] = v
	}
	return values
}

// pairs are the quantiles at a percentile in the baseline and in an arm, by block; nil where there are none.
func (c *curves) pairs(at factors, arm string, percentile int) (pairs []stats.Pair) {
	base, of := c.column(at, record.Direct, percentile), c.column(at, arm, percentile)
	for _, b := range slices.Sorted(maps.Keys(base)) {
		if v, both := of[b]; both {
			pairs = append(pairs, stats.Pair{Base: base[b], Arm: v})
		}
	}
	return pairs
}

func (c *curves) points(at factors, arm string) (points []CurvePoint) {
	for i, q := range percentiles {
		values := c.column(at, arm, i)
		if len(values) == 0 {
			continue
		}
		v := stats.Median(slices.Collect(maps.Values(values)))
		p := CurvePoint{Q: q, Value: v.Value}
		p.Lo, p.Hi = ends(v)
		c.compare(&p, at, arm, i)
		points = append(points, p)
	}
	return points
}

// compare gives a point its difference to the baseline, and the smallest that the twins let one see there.
func (c *curves) compare(p *CurvePoint, at factors, arm string, percentile int) {
	twins := twinsOf(c.learned[percentile][record.AA], c.pairs(at, record.AA, percentile), c.seed)
	if twins.shown {
		p.Visible = &twins.far
	}
	pairs := c.pairs(at, arm, percentile)
	if arm == record.Direct || pairs == nil {
		return
	}
	of := comparison{
		arm: arm, pairs: pairs, dependence: c.learned[percentile][arm], twins: twins, seed: c.seed,
		carried: c.table.carried[armMetric{arm, c.metric}],
		lag:     c.lagPairs(at, arm, percentile), quantile: quantileName(p.Q),
	}
	var stand []int
	stand, of.lost, of.whole = c.table.lostPairs(at, arm, c.metric)
	of.selected = c.table.selected[armMetric{arm, c.metric}]
	base, mine := c.column(at, record.Direct, percentile), c.column(at, arm, percentile)
	for _, b := range stand {
		_, has := mine[b]
		if v, both := base[b]; both && has {
			of.kept = append(of.kept, stats.Pair{Base: v, Arm: mine[b]})
		}
	}
	p.Difference, _ = of.difference()
}

// lagPairs are the generator's lags at a percentile in the baseline and in an arm, in the order of blocks.
func (c *curves) lagPairs(at factors, arm string, percentile int) (pairs []stats.Pair) {
	level := record.LevelKey(at)
	for _, b := range c.blocks[levelArm{level, arm}] {
		base, known := c.lag[cell{level, record.Direct, b}]
		of, has := c.lag[cell{level, arm, b}]
		if x, y := base[percentile], of[percentile]; known && has && !math.IsNaN(x) && !math.IsNaN(y) {
			pairs = append(pairs, stats.Pair{Base: x, Arm: y})
		}
	}
	return pairs
}
