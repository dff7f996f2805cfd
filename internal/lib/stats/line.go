package stats

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Limits of the test of straightness.
const (
	// significance is the p-value below which a departure from the line is not attributed to chance.
	significance = 0.05
	// material is the departure, as a fraction of the largest value, below which plans do not change. Counters are often
	// so steady that a test finds departures of no consequence.
	material = 0.02
	// slopeTolerance is how far the slope between two neighbouring levels may differ from the line's slope, as a fraction
	// of the line's slope.
	slopeTolerance = 1.0 / 3
	// MaxHeldOut is the largest error on held-out levels, as a fraction of the mean value, of a line that counts as
	// straight. A line with a larger error is useless for prediction, whether because it is not straight or for lack of
	// data.
	MaxHeldOut = 0.25
)

// ErrTooFew is returned if there are too few observations or distinct levels for the terms of a line.
var ErrTooFew = errors.New("too few levels to fit a line")

// ErrCollinear is returned if two factors varied together, so that their costs cannot be separated.
var ErrCollinear = errors.New("the factors move together: their slopes cannot be told apart")

// Observation is one trial: the levels of its factors, in the same order in all observations, the measured value, and
// the block.
type Observation struct {
	X     []float64
	Y     float64
	Block int
}

// The methods by which the intervals of a line's coefficients are computed.
const (
	// ByBlock fits a line to each block separately, and takes Student's t over the blocks.
	ByBlock Method = "least squares by block, t over blocks"
	// Together is for a single block, or if fewer than two blocks have enough levels. It gives no intervals: noise grows
	// with the level, and an interval from the residuals of one block would cover its slope in only 10 to 76 % of runs.
	Together Method = "least squares of all trials together, without intervals"
)

// Coefficient is one term of a line with its 95 % interval, which is infinite if there is none.
type Coefficient struct{ Value, Lo, Hi float64 }

// Line is y = fixed + sum of slope x level, fitted by least squares.
type Line struct {
	Coefficients []Coefficient // the fixed part first, then one slope for each factor
	R2           float64
	Method       Method
	Blocks       int          // blocks that were fitted; others had too few levels
	Range        [][2]float64 // by factor: the lowest and the highest level of the observations

	// Effective is the number of independent blocks that the blocks of the line are worth, for the coefficient with the
	// strongest dependence; 0 if there are too few blocks to learn it. If Strong is set, the intervals may still be too
	// narrow.
	Effective float64
	Strong    bool

	// HeldOut is the root mean square error of predicting the mean of each level from a line fitted without that level,
	// as a fraction of the mean absolute value. The outermost levels are extrapolated. HasHeldOut is false if there are
	// too few levels to hold one out.
	HeldOut    float64
	HasHeldOut bool

	Straight bool   // no departure from the line was found
	Test     string // the test, or the finding, that decided Straight
	P        float64

	spread      *spread // for Predict; if nil, unpredicted is the reason
	unpredicted error
}

// FitLine fits a line to each block separately. The coefficients are means over blocks, with intervals by Student's t.
// This allows for noise that grows with the level or that the trials of a block share, while a single fit of all trials
// would assume independent noise of one size. Blocks without all levels are used only if fewer than MinBlocks have all
// of them, and then only those with more levels than terms. Observations of a single block are fitted together, without
// intervals.
//
// FitLine then tests whether the data lie on a line at all. With several blocks, it tests the residuals of each level
// from the line of its block: t over blocks, with Bonferroni's correction for the number of levels. Within one block
// whose levels have replicates, it uses the lack-of-fit F test, which compares the deviations of the level means from
// the line with those of replicates from their mean. Without replicates, two findings reject a line: squares of the
// factors that improve the fit significantly and, for one factor, a local slope between neighbouring levels that
// differs by more than a third. The latter is not a test of significance, for which there are too few points, but such
// a slope would mislead a planner. A departure must also be material: more than 2 % of the largest value. And a line
// that predicts held-out levels with an error of more than MaxHeldOut is never called straight.
func FitLine(observations []Observation) (*Line, error) {
	if len(observations) == 0 {
		return nil, ErrTooFew
	}
	terms := len(observations[0].X) + 1
	levels := byLevel(observations)
	if len(observations) <= terms || len(levels) < terms {
		return nil, ErrTooFew
	}
	blocks, err := fitBlocks(observations, len(levels), terms)
	if err != nil {
		return nil, err
	}
	line := &Line{Range: ranges(observations), Straight: true, Blocks: len(blocks)}
	if len(blocks) > 1 {
		observations = nil
		for _, b := range blocks {
			observations = append(observations, b.observations...)
		}
		levels = byLevel(observations)
		line.coefficientsByBlock(blocks)
	} else if err := line.coefficientsTogether(observations); err != nil {
		return nil, err
	}
	var rss float64
	for _, o := range observations {
		d := o.Y - line.At(o.X)
		rss += d * d
	}
	line.R2 = 1
	if total := sumOfSquares(observations); total > 0 {
		line.R2 = max(0, 1-rss/total)
	}
	line.holdOut(observations, levels)
	if err := line.testStraightness(observations, levels, blocks); err != nil {
		return nil, err
	}
	if line.Straight && line.HasHeldOut && line.HeldOut > MaxHeldOut {
		line.Straight, line.Test = false, "held-out error"
	}
	line.spread, line.unpredicted = line.newSpread(levels, blocks)
	return line, nil
}

// blockFit is the line of one block.
type blockFit struct {
	observations []Observation
	levels       []level
	*fit
}

// fitBlocks fits a line to each block with enough levels. It returns nil if fewer than two blocks have enough: all
// observations are then to be fitted together.
func fitBlocks(observations []Observation, levels, terms int) ([]blockFit, error) {
	sorted := slices.Clone(observations)
	slices.SortStableFunc(sorted, func(a, b Observation) int { return cmp.Compare(a.Block, b.Block) })
	var whole, enough [][]Observation
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n].Block == sorted[0].Block {
			n++
		}
		block := sorted[:n]
		sorted = sorted[n:]
		has := len(byLevel(block))
		if has == levels {
			whole = append(whole, block)
		}
		if has > terms || has == levels {
			enough = append(enough, block)
		}
	}
	if len(whole) >= MinBlocks {
		enough = whole
	}
	var fits []blockFit
	for _, block := range enough {
		f, err := leastSquares(block, linear)
		switch {
		case err == nil:
			fits = append(fits, blockFit{block, byLevel(block), f})
		case len(enough) == len(whole):
			return nil, err // the factors vary together even with all levels
		}
	}
	if len(fits) < 2 {
		return nil, nil
	}
	return fits, nil
}

func (l *Line) coefficientsByBlock(blocks []blockFit) {
	l.Method = ByBlock
	for i := range blocks[0].coefficients {
		xs := make([]float64, len(blocks))
		for j, b := range blocks {
			xs[j] = b.coefficients[i]
		}
		mean, half := meanWithT(xs, Confidence)
		if d := LearnOwn(xs); d.OwnKnown() {
			series := d.Of(xs)
			inflation := series.inflation()
			half *= math.Sqrt(inflation)
			if effective := float64(len(xs)) / inflation; i == 0 || effective < l.Effective {
				l.Effective = effective
			}
			l.Strong = l.Strong || series.Strong()
		}
		l.Coefficients = append(l.Coefficients, Coefficient{mean, mean - half, mean + half})
	}
}

// meanWithT returns the mean of two or more values, and the half-width of its interval by Student's t.
func meanWithT(xs []float64, confidence float64) (mean, half float64) {
	n := float64(len(xs))
	mean, deviation := stat.MeanStdDev(xs, nil)
	return mean, distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile((1+confidence)/2) * deviation / math.Sqrt(n)
}

func (l *Line) coefficientsTogether(observations []Observation) error {
	f, err := leastSquares(observations, linear)
	if err != nil {
		return err
	}
	l.Method, l.Blocks = Together, 1
	for _, c := range f.coefficients {
		l.Coefficients = append(l.Coefficients, Coefficient{c, math.Inf(-1), math.Inf(1)})
	}
	return nil
}

// At predicts y at the given levels.
func (l *Line) At(x []float64) float64 {
	y := l.Coefficients[0].Value
	for i, v := range x {
		y += l.Coefficients[i+1].Value * v
	}
	return y
}

// level summarizes the observations with the same levels of all factors.
type level struct {
	x    []float64
	mean float64
	n    int
}

func byLevel(observations []Observation) []level {
	sorted := slices.Clone(observations)
	slices.SortStableFunc(sorted, func(a, b Observation) int { return slices.Compare(a.X, b.X) })
	var levels []level
	for _, o := range sorted {
		if n := len(levels); n == 0 || slices.Compare(levels[n-1].x, o.X) != 0 {
			levels = append(levels, level{x: o.X})
		}
		l := &levels[len(levels)-1]
		l.n++
		l.mean += (o.Y - l.mean) / float64(l.n)
	}
	return levels
}

// find returns the index of a level, and reports whether it is there.
func find(levels []level, x []float64) (int, bool) {
	return slices.BinarySearchFunc(levels, x, func(v level, x []float64) int { return slices.Compare(v.x, x) })
}

func ranges(observations []Observation) [][2]float64 {
	rs := make([][2]float64, len(observations[0].X))
	for i := range rs {
		rs[i] = [2]float64{math.Inf(1), math.Inf(-1)}
		for _, o := range observations {
			rs[i][0], rs[i][1] = min(rs[i][0], o.X[i]), max(rs[i][1], o.X[i])
		}
	}
	return rs
}

func sumOfSquares(observations []Observation) float64 {
	var mean, total float64
	for _, o := range observations {
		mean += o.Y / float64(len(observations))
	}
	for _, o := range observations {
		total += (o.Y - mean) * (o.Y - mean)
	}
	return total
}

// holdOut predicts each level from a fit of the others, and sets HeldOut.
func (l *Line) holdOut(observations []Observation, levels []level) {
	if len(levels) < len(l.Coefficients)+1 {
		return
	}
	var size, square float64
	for _, o := range observations {
		size += math.Abs(o.Y) / float64(len(observations))
	}
	for _, left := range levels {
		rest := slices.DeleteFunc(slices.Clone(observations),
			func(o Observation) bool { return slices.Compare(o.X, left.x) == 0 })
		f, err := leastSquares(rest, linear)
		if err != nil {
			return // without this level the factors vary together, and nothing can be predicted
		}
		miss := left.mean - f.at(linear(left.x))
		square += miss * miss / float64(len(levels))
	}
	if size > 0 {
		l.HeldOut, l.HasHeldOut = math.Sqrt(square)/size, true
	}
}

func (l *Line) testStraightness(observations []Observation, levels []level, blocks []blockFit) error {
	var largest, stray float64
	for _, v := range levels {
		largest = max(largest, math.Abs(v.mean))
		stray = max(stray, math.Abs(v.mean-l.At(v.x)))
	}
	terms, n := len(l.Coefficients), len(observations)
	if len(levels) <= terms {
		l.Test, l.P = "none: as many terms as levels", 1
		return nil
	}
	if len(blocks) > 1 {
		l.Test, l.P = "lack of fit by level over blocks", lackOfFitByBlock(levels, blocks, terms)
		l.Straight = l.P >= significance || stray <= material*largest
		return nil
	}
	f, err := leastSquares(observations, linear)
	if err != nil {
		return err
	}
	if n > len(levels) {
		l.P = lackOfFit(observations, levels, f, terms)
		l.Test = "lack of fit"
		l.Straight = l.P >= significance || stray <= material*largest
		return nil
	}
	l.Test, l.P = "squares", squares(observations, f)
	l.Straight = l.P >= significance || stray <= material*largest
	if terms == 2 && l.Straight && strayingSlope(levels, l.Coefficients[1].Value, material*largest) {
		l.Straight, l.Test = false, "local slopes"
	}
	return nil
}

// lackOfFitByBlock returns the p-value of the largest departure of a level from the lines of its blocks: t over blocks
// of the residuals at each level, times the number of levels (Bonferroni). With one more level than terms, all
// residuals are equivalent, and the p-value is not multiplied.
func lackOfFitByBlock(levels []level, blocks []blockFit, terms int) float64 {
	p, tests := 1.0, 0
	for _, v := range levels {
		var residuals []float64
		for _, b := range blocks {
			if i, ok := find(b.levels, v.x); ok {
				residuals = append(residuals, b.levels[i].mean-b.at(linear(v.x)))
			}
		}
		if len(residuals) < 2 {
			continue
		}
		tests++
		p = min(p, tTest(residuals))
	}
	if len(levels) == terms+1 {
		tests = 1
	}
	return min(1, p*float64(tests))
}

// tTest returns the two-sided p-value for the mean of xs being 0.
func tTest(xs []float64) float64 {
	n := float64(len(xs))
	mean, deviation := stat.MeanStdDev(xs, nil)
	switch {
	case mean == 0:
		return 1
	case deviation == 0:
		return 0
	}
	return 2 * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Survival(math.Abs(mean)/deviation*math.Sqrt(n))
}

// lackOfFit returns the p-value of the F test that compares how far level means lie from the line with how far
// replicates lie from the mean of their level.
func lackOfFit(observations []Observation, levels []level, f *fit, terms int) float64 {
	var pure, lack float64
	for _, o := range observations {
		i, _ := find(levels, o.X)
		d := o.Y - levels[i].mean
		pure += d * d
	}
	for _, v := range levels {
		d := v.mean - f.at(linear(v.x))
		lack += float64(v.n) * d * d
	}
	return fTest(lack, float64(len(levels)-terms), pure, float64(len(observations)-len(levels)))
}

// squares returns the p-value of the F test for adding the squares of the factors to the fit; 1 if there are too few
// points.
func squares(observations []Observation, f *fit) float64 {
	wider, err := leastSquares(observations, quadratic)
	if err != nil {
		return 1
	}
	added := float64(len(wider.coefficients) - len(f.coefficients))
	return fTest(f.rss-wider.rss, added, wider.rss, float64(len(observations)-len(wider.coefficients)))
}

func fTest(explained, explainedFree, rest, restFree float64) float64 {
	switch {
	case restFree < 1 || explained <= 0:
		return 1
	case rest <= 0:
		return 0
	}
	return distuv.F{D1: explainedFree, D2: restFree}.Survival((explained / explainedFree) / (rest / restFree))
}

// strayingSlope reports whether the slope between two neighbouring levels of the only factor differs from the line's
// slope by more than slopeTolerance, with a material effect.
func strayingSlope(levels []level, slope, materially float64) bool {
	for i := 1; i < len(levels); i++ {
		run := levels[i].x[0] - levels[i-1].x[0]
		off := (levels[i].mean - levels[i-1].mean) - slope*run
		if math.Abs(off) > slopeTolerance*math.Abs(slope*run) && math.Abs(off) > materially {
			return true
		}
	}
	return false
}

// fit is a least-squares solution.
type fit struct {
	coefficients []float64
	rss          float64
}

func (f *fit) at(row []float64) float64 {
	var y float64
	for i, v := range row {
		y += f.coefficients[i] * v
	}
	return y
}

// linear and quadratic return the row of the design matrix for one observation.
func linear(x []float64) []float64 { return append([]float64{1}, x...) }

func quadratic(x []float64) []float64 {
	row := linear(x)
	for _, v := range x {
		row = append(row, v*v)
	}
	return row
}

// leastSquares solves by QR. It first scales each column to a maximum of 1, because a matrix with rates in the
// thousands and connections in the tens would look singular.
func leastSquares(observations []Observation, row func([]float64) []float64) (*fit, error) {
	n, p := len(observations), len(row(observations[0].X))
	if n < p {
		return nil, ErrTooFew
	}
	design, y := mat.NewDense(n, p, nil), mat.NewVecDense(n, nil)
	scale := make([]float64, p)
	for i, o := range observations {
		r := row(o.X)
		design.SetRow(i, r)
		y.SetVec(i, o.Y)
		for j, v := range r {
			scale[j] = max(scale[j], math.Abs(v))
		}
	}
	for j, s := range scale {
		if s == 0 {
			return nil, ErrCollinear
		}
		for i := range n {
			design.Set(i, j, design.At(i, j)/s)
		}
	}
	var qr mat.QR
	qr.Factorize(design)
	if !(qr.Cond() < 1e10) {
		return nil, ErrCollinear
	}
	var solution mat.Dense
	if err := qr.SolveTo(&solution, false, y); err != nil {
		return nil, ErrCollinear
	}
	f := &fit{}
	for j := range p {
		f.coefficients = append(f.coefficients, solution.At(j, 0)/scale[j])
	}
	for _, o := range observations {
		d := o.Y - f.at(row(o.X))
		f.rss += d * d
	}
	return f, nil
}
