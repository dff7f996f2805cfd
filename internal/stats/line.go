package stats

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Limits of the test of straightness.
const (
	// significance below which a departure from the line is not chance.
	significance = 0.05
	// material is the departure, as a part of the largest value, below which nobody plans differently. Counters are often so
	// steady that a test finds departures of no consequence.
	material = 0.02
	// slopeTolerance is how far the slope between two neighbouring levels may lie from that of the line, as a part of it.
	slopeTolerance = 1.0 / 3
)

// ErrTooFew is returned when there are not more observations, or not enough distinct levels, for the terms of a line.
var ErrTooFew = errors.New("too few levels to fit a line")

// ErrCollinear is returned when two factors moved together, so that their costs cannot be told apart.
var ErrCollinear = errors.New("the factors move together: their slopes cannot be told apart")

// Observation is one trial: the levels of its factors, in one order for all, and what was measured.
type Observation struct {
	X []float64
	Y float64
}

// Coefficient is one term of a line with its 95 % interval (Student's t on the residuals).
type Coefficient struct{ Value, Lo, Hi float64 }

// Line is y = fixed + sum of slope x level, fitted by least squares.
type Line struct {
	Coefficients []Coefficient // the fixed part first, then one slope for each factor
	Residuals    []float64     // by observation
	R2           float64
	Range        [][2]float64 // of each factor: where the line holds

	// HeldOut is the root of the mean square error of predicting the mean of each level from a line fitted without that level,
	// as a part of the mean size of all values. The outermost levels are extrapolated. False: too few levels to hold one out.
	HeldOut    float64
	HasHeldOut bool

	Straight bool   // no departure from the line was shown
	Test     string // by which test, and what it said against the line
	P        float64
}

// FitLine fits by least squares and tests whether the data are a line at all.
//
// Where levels have replicates, that is the lack-of-fit F test: do the means of the levels stray from the line further than
// replicates of a level stray from their mean? Where they have none, two things speak against a line: squares of the factors that
// improve the fit significantly and, for one factor, a local slope between neighbouring levels that is more than a third off.
// The second is no test of significance, which a handful of points cannot give, but what would mislead a planner. Either must
// also be material: a departure of 2 % of the largest value.
func FitLine(observations []Observation) (*Line, error) {
	if len(observations) == 0 {
		return nil, ErrTooFew
	}
	factors := len(observations[0].X)
	terms := factors + 1
	levels := byLevel(observations)
	if len(observations) <= terms || len(levels) < terms {
		return nil, ErrTooFew
	}
	f, err := leastSquares(observations, linear)
	if err != nil {
		return nil, err
	}
	line := &Line{Residuals: f.residuals, Range: ranges(observations), Straight: true}
	free := float64(len(observations) - terms)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: free}.Quantile((1 + Confidence) / 2)
	for i, c := range f.coefficients {
		half := t * math.Sqrt(f.rss/free*f.variances[i])
		line.Coefficients = append(line.Coefficients, Coefficient{c, c - half, c + half})
	}
	line.R2 = 1
	if total := sumOfSquares(observations); total > 0 {
		line.R2 = max(0, 1-f.rss/total)
	}
	line.holdOut(observations, levels)
	line.testStraightness(observations, levels, f)
	return line, nil
}

// At predicts y at the given levels.
func (l *Line) At(x []float64) float64 {
	y := l.Coefficients[0].Value
	for i, v := range x {
		y += l.Coefficients[i+1].Value * v
	}
	return y
}

// level is the observations that share all factors.
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

// holdOut predicts each level from the others.
func (l *Line) holdOut(observations []Observation, levels []level) {
	if len(levels) < len(l.Coefficients)+1 {
		return
	}
	var size, square float64
	for _, o := range observations {
		size += math.Abs(o.Y) / float64(len(observations))
	}
	for _, left := range levels {
		rest := slices.DeleteFunc(slices.Clone(observations), func(o Observation) bool { return slices.Compare(o.X, left.x) == 0 })
		f, err := leastSquares(rest, linear)
		if err != nil {
			return // without this level the factors move together: nothing to predict from
		}
		miss := left.mean - f.at(linear(left.x))
		square += miss * miss / float64(len(levels))
	}
	if size > 0 {
		l.HeldOut, l.HasHeldOut = math.Sqrt(square)/size, true
	}
}

func (l *Line) testStraightness(observations []Observation, levels []level, f *fit) {
	var largest, stray float64
	for _, v := range levels {
		largest = max(largest, math.Abs(v.mean))
		stray = max(stray, math.Abs(v.mean-l.At(v.x)))
	}
	terms, n := len(l.Coefficients), len(observations)
	switch {
	case len(levels) <= terms:
		l.Test, l.P = "none: as many terms as levels", 1
	case n > len(levels):
		l.P = lackOfFit(observations, levels, f, terms)
		l.Test = "lack of fit"
		l.Straight = l.P >= significance || stray <= material*largest
	default:
		l.Test, l.P = "squares", squares(observations, f)
		l.Straight = l.P >= significance || stray <= material*largest
		if terms == 2 && l.Straight && strayingSlope(levels, l.Coefficients[1].Value, material*largest) {
			l.Straight, l.Test = false, "local slopes"
		}
	}
}

// lackOfFit is the p-value of the F test of level means about the line against replicates about their level mean.
func lackOfFit(observations []Observation, levels []level, f *fit, terms int) float64 {
	var pure, lack float64
	for _, o := range observations {
		i, _ := slices.BinarySearchFunc(levels, o.X, func(v level, x []float64) int { return slices.Compare(v.x, x) })
		d := o.Y - levels[i].mean
		pure += d * d
	}
	for _, v := range levels {
		d := v.mean - f.at(linear(v.x))
		lack += float64(v.n) * d * d
	}
	return fTest(lack, float64(len(levels)-terms), pure, float64(len(observations)-len(levels)))
}

// squares is the p-value of the F test of what the squares of the factors add to the fit; 1 where too few points are left to tell.
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

// strayingSlope reports whether the slope between two neighbouring levels of the one factor is off by more than the tolerance,
// and that by something material.
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

// fit is a least-squares solution; variances are the diagonal of the inverse of X'X.
type fit struct {
	coefficients, variances, residuals []float64
	rss                                float64
}

func (f *fit) at(row []float64) float64 {
	var y float64
	for i, v := range row {
		y += f.coefficients[i] * v
	}
	return y
}

// linear and quadratic make the row of the design matrix for one observation.
func linear(x []float64) []float64 { return append([]float64{1}, x...) }

func quadratic(x []float64) []float64 {
	row := linear(x)
	for _, v := range x {
		row = append(row, v*v)
	}
	return row
}

// leastSquares solves by QR. Columns are scaled to 1 first: rates in thousands beside connections in tens would look singular.
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
	var solution, r, inverse mat.Dense
	if err := qr.SolveTo(&solution, false, y); err != nil {
		return nil, ErrCollinear
	}
	qr.RTo(&r)
	if err := inverse.Inverse(r.Slice(0, p, 0, p)); err != nil {
		return nil, ErrCollinear
	}
	f := &fit{}
	for j := range p {
		f.coefficients = append(f.coefficients, solution.At(j, 0)/scale[j])
		var variance float64 // of R^-1 R^-T
		for k := range p {
			variance += inverse.At(j, k) * inverse.At(j, k)
		}
		f.variances = append(f.variances, variance/(scale[j]*scale[j]))
	}
	for _, o := range observations {
		d := o.Y - f.at(row(o.X))
		f.residuals = append(f.residuals, d)
		f.rss += d * d
	}
	return f, nil
}
