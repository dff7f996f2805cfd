package analysis

import (
	"maps"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/load"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
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
func (p CurvePoint) Text() string { return written(p.Value, p.Lo, p.Hi, quantity.Seconds) }

// percentiles are those of the curves; each is given where the samples carry it.
var percentiles = []float64{
	0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
}

// curves holds the latency of every trial in which it stands.
type curves struct {
	seed    uint64
	table   *table
	metric  string // the median of latency, whose losses are those of all points
	latency map[cell]*hdrhistogram.Histogram
	lag     map[cell]*hdrhistogram.Histogram // of the generator, where it is known
	blocks  map[levelArm][]int
	learned map[float64]stats.Dependence
}

// Curves are made and judged as the summary's quantiles are: a quantile of every trial, then the median over blocks,
// and differences paired within blocks. What some trial of an arm cannot carry is left out. They are in order of
// level and arm.
func Curves(run record.Run, trials []record.Trial) []Curve {
	c := &curves{
		seed: run.Seed, table: newTable(run, trials, &Summary{}), metric: run.Defined().QuantileOf(load.Latency, 0.5),
		latency: map[cell]*hdrhistogram.Histogram{}, lag: map[cell]*hdrhistogram.Histogram{},
		blocks: map[levelArm][]int{}, learned: map[float64]stats.Dependence{},
	}
	c.table.findSelection()
	levels, arms := map[string]factors{}, map[string]bool{}
	for _, t := range trials {
		at := cell{factors(t.Factors).key(), t.Arm, t.Block}
		if c.latency[at] != nil || !t.Validity.Stands(c.metric) {
			continue // the first attempt counts in which latency stands
		}
		h, err := stats.MergeEncoded(encodedOf(t, load.Latency)...)
		if err != nil || h == nil {
			continue // the summary's warnings say that histograms could not be read
		}
		place := levelArm{at.level, at.arm}
		c.latency[at], c.blocks[place] = h, append(c.blocks[place], t.Block)
		if lag, err := stats.MergeEncoded(encodedOf(t, lagHistogram(t))...); err == nil && lag != nil {
			c.lag[at] = lag
		}
		levels[at.level], arms[t.Arm] = t.Factors, true
	}
	inOrder := slices.SortedFunc(maps.Values(levels), compareFactors)
	armsInOrder := slices.SortedFunc(maps.Keys(arms), CompareArms)
	for _, q := range percentiles {
		var series [][]float64
		for _, at := range inOrder {
			for _, arm := range armsInOrder {
				if pairs := c.pairs(at, arm, q); arm != record.Direct && pairs != nil {
					series = append(series, stats.Differences(pairs))
				}
			}
		}
		c.learned[q] = stats.LearnDependence(series...)
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

// column is one quantile by block, in seconds; nil where a trial cannot carry it.
func (c *curves) column(at factors, arm string, q float64) map[int]float64 {
	values := map[int]float64{}
	level := at.key()
	for _, b := range c.blocks[levelArm{level, arm}] {
		ns, ok := stats.Quantile(c.latency[cell{level, arm, b}], q)
		if !ok {
			return nil
		}
		values[b] = ns / 1e9
	}
	return values
}

// pairs are one quantile in the baseline and in an arm, by block; nil where there are none.
func (c *curves) pairs(at factors, arm string, q float64) (pairs []stats.Pair) {
	base, of := c.column(at, record.Direct, q), c.column(at, arm, q)
	for _, b := range slices.Sorted(maps.Keys(base)) {
		if v, both := of[b]; both {
			pairs = append(pairs, stats.Pair{Base: base[b], Arm: v})
		}
	}
	return pairs
}

func (c *curves) points(at factors, arm string) (points []CurvePoint) {
	for _, q := range percentiles {
		values := c.column(at, arm, q)
		if len(values) == 0 {
			continue
		}
		v := stats.Median(slices.Collect(maps.Values(values)))
		p := CurvePoint{Q: q, Value: v.Value}
		p.Lo, p.Hi = ends(v)
		c.compare(&p, at, arm)
		points = append(points, p)
	}
	return points
}

// compare gives a point its difference to the baseline, and the smallest that the twins let one see there.
func (c *curves) compare(p *CurvePoint, at factors, arm string) {
	twins := twinsOf(c.learned[p.Q], c.pairs(at, record.AA, p.Q), c.seed)
	if twins.shown {
		p.Visible = &twins.far
	}
	pairs := c.pairs(at, arm, p.Q)
	if arm == record.Direct || pairs == nil {
		return
	}
	of := comparison{
		arm: arm, pairs: pairs, dependence: c.learned[p.Q], twins: twins, seed: c.seed,
		lag: c.lagPairs(at, arm, p.Q), quantile: quantileName(p.Q),
	}
	var stand []int
	stand, of.lost, of.whole = c.table.lostPairs(at, arm, c.metric)
	base, mine := c.column(at, record.Direct, p.Q), c.column(at, arm, p.Q)
	for _, b := range stand {
		_, has := mine[b]
		if v, both := base[b]; both && has {
			of.kept = append(of.kept, stats.Pair{Base: v, Arm: mine[b]})
		}
	}
	p.Difference, _ = of.difference()
}

// lagPairs are the generator's lags at one quantile in the baseline and in an arm, in the order of blocks.
func (c *curves) lagPairs(at factors, arm string, q float64) (pairs []stats.Pair) {
	level := at.key()
	for _, b := range c.blocks[levelArm{level, arm}] {
		base, of := c.lag[cell{level, record.Direct, b}], c.lag[cell{level, arm, b}]
		if base == nil || of == nil {
			continue
		}
		x, carried := stats.Quantile(base, q)
		if y, ok := stats.Quantile(of, q); ok && carried {
			pairs = append(pairs, stats.Pair{Base: x / 1e9, Arm: y / 1e9})
		}
	}
	return pairs
}
