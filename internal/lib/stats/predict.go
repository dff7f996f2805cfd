package stats

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// The reasons why a line has no predictions.
var (
	errFewBlocks   = errors.New("fewer than 6 blocks have a trial at every level")
	errNoResidual  = errors.New("it has as many terms as levels, so nothing shows how far a level lies from the line")
	errBent        = errors.New("it is not a line")
	errTwice       = errors.New("blocks have several trials at one level")
	errWrongLevels = errors.New("a level is needed for each factor")
)

// spread describes how far trials lie from a line that was fitted by block, in blocks that all have the same levels.
type spread struct {
	levels    [][]float64 // rows of the design: 1, then the factors
	blocks    [][]float64 // coefficients of each block
	between   []float64   // variance over blocks of the trials at each level
	size      []float64   // the line's value at each level
	correlate float64     // correlation of the deviations of two trials of one block
	misfit    float64     // variance of levels about the line; 0 unless the test showed that they stray
}

// newSpread returns the spread of blocks, which must all have the same levels.
func (l *Line) newSpread(levels []level, blocks []blockFit) (*spread, error) {
	terms := len(l.Coefficients)
	switch {
	case len(blocks) < MinBlocks:
		return nil, errFewBlocks
	case len(levels) <= terms:
		return nil, errNoResidual
	}
	n := len(blocks)
	s := &spread{}
	off := make([][]float64, n) // by block: deviation of each trial from the mean of its level, in standard deviations
	for _, b := range blocks {
		switch {
		case len(b.levels) != len(levels):
			return nil, errFewBlocks
		case len(b.observations) != len(levels):
			return nil, errTwice
		}
		s.blocks = append(s.blocks, b.coefficients)
	}
	for j, v := range levels {
		ys := make([]float64, n)
		stray := 0.0
		for i, b := range blocks {
			ys[i] = b.levels[j].mean
			stray += (ys[i] - b.at(linear(v.x))) / float64(n)
		}
		mean, variance := stat.MeanVariance(ys, nil)
		for i, y := range ys {
			z := 0.0
			if variance > 0 {
				z = (y - mean) / math.Sqrt(variance)
			}
			off[i] = append(off[i], z)
		}
		s.levels = append(s.levels, linear(v.x))
		s.between = append(s.between, variance)
		s.size = append(s.size, l.At(v.x))
		if l.P < significance {
			s.misfit += stray * stray / float64(len(levels)-terms)
		}
	}
	s.correlate = withinBlocks(off)
	return s, nil
}

// withinBlocks returns the correlation of two values of a block, given values with mean 0 and variance 1 over blocks:
// their mean product over all pairs of levels, or 0 if it is negative.
func withinBlocks(off [][]float64) float64 {
	var product, pairs float64
	for _, zs := range off {
		for j := range zs {
			for k := range j {
				product += zs[j] * zs[k]
			}
		}
	}
	levels := float64(len(off[0]))
	pairs = levels * (levels - 1) / 2 * float64(len(off)-1)
	return min(1, max(0, product/pairs))
}

// Predict returns the value of the line at the given levels, one for each factor, and the interval that contains the
// trial of one new block at those levels with a probability of 95 %: a block of the same run on the same machine,
// including whatever the trials of a block share. It is not an interval of the mean, which is narrower, and it does
// not cover differences between runs or machines. Outside of the range of the fitted levels, the prediction is right
// only if the line continues there.
//
// Let p(b) be the prediction at x from the line of block b alone, and v(x) the variance of trials at x over blocks. A
// new trial differs from the mean of the n predictions with a variance of
//
//	v(x) + var(p)/n + m (1 + h'h)
//
// because the trial is independent of the measured blocks (Seber and Lee, Linear Regression Analysis, 2nd edition,
// section 5.3.1; here var(p) is taken from the blocks instead of from residuals, since trials of a block share noise,
// and noise grows with the level). v grows with the line's value y: as a + b y, a + b y^2 or a y + b y^2, whichever
// fits the variances of the measured levels best by weighted least squares with a and b of at least 0. var(p)/n is
// multiplied by the inflation from dependence between blocks, as for coefficients. m is 0 unless the test of
// straightness showed that levels stray from the line; then m is the mean square of their departures, and h holds the
// weights of the levels in the prediction. If levels stray by a material amount, there is a prediction only within the
// range of the levels, and only if the error on held-out levels is at most MaxHeldOut. It treats the departures as
// random. Student's t has the degrees of freedom of the sum by Satterthwaite (Biometrics Bulletin 2, 1946). The
// correlation within blocks reduces the degrees of freedom of v, because the levels are then not independent. The
// degrees of freedom are at least 2, or 1 with only one level more than terms, because the approximation is meaningless
// below that.
//
// TestPredictionsBySimulation and TestBentPredictionsBySimulation show the coverage.
func (l *Line) Predict(x []float64) (Coefficient, error) {
	switch {
	case !l.Straight && (!l.HasHeldOut || l.HeldOut > MaxHeldOut || !l.within(x)):
		return Coefficient{}, errBent
	case l.spread == nil:
		return Coefficient{}, l.unpredicted
	case len(x) != len(l.Range):
		return Coefficient{}, errWrongLevels
	}
	s, y, row := l.spread, l.At(x), linear(x)
	n := float64(len(s.blocks))
	own, ownRelative := s.variance(y)
	predicted := make([]float64, len(s.blocks))
	for i, coefficients := range s.blocks {
		predicted[i] = (&fit{coefficients: coefficients}).at(row)
	}
	mean := stat.Variance(predicted, nil) / n
	if d := LearnOwn(predicted); d.OwnKnown() {
		mean *= d.Of(predicted).inflation()
	}
	bend := 0.0
	if s.misfit > 0 {
		h, err := s.weights(row)
		if err != nil {
			return Coefficient{}, err
		}
		bend = s.misfit * (1 + h)
	}
	total := own + mean + bend
	if total == 0 {
		return Coefficient{y, y, y}, nil
	}
	// own and mean come from the same blocks, so their errors add up. The error of bend is independent of them.
	levels := float64(len(s.levels) - len(row))
	relative := math.Hypot(own*ownRelative+mean/math.Sqrt(n-1), bend/math.Sqrt(levels)) / total
	free := max(min(fewestFree, levels), 1/(relative*relative))
	half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: free}.Quantile((1+Confidence)/2) * math.Sqrt(total)
	return Coefficient{y, y - half, y + half}, nil
}

// within reports whether levels lie in the range of those that were fitted.
func (l *Line) within(x []float64) bool {
	for i, r := range l.Range {
		if i >= len(x) || x[i] < r[0] || x[i] > r[1] {
			return false
		}
	}
	return true
}

// fewestFree is the least number of degrees of freedom taken from Satterthwaite's approximation. With fewer, simulated
// intervals were up to 1e5 times as wide as the predicted value, and covered 98 to 99 %.
const fewestFree = 2

// passes is the maximum number of repetitions of weighted least squares. They end earlier, when no variance changes by
// more than a small fraction of it (settled).
const (
	passes  = 20
	settled = 1e-6
)

// growth is one term of a variance, as a function of the measured value y.
type growth func(y float64) float64

// growths are the sums that are fitted to variances over blocks, each term with a factor of at least 0: constant noise,
// noise like that of counts, and proportional noise.
var growths = func() [][]growth {
	one, count, part := func(float64) float64 { return 1 }, math.Abs, func(y float64) float64 { return y * y }
	return [][]growth{{one}, {count}, {part}, {one, count}, {one, part}, {count, part}}
}()

// variance returns the variance of trials over blocks where the line has the value y, and 1 over the square root of
// its degrees of freedom.
func (s *spread) variance(y float64) (v, relative float64) {
	most := slices.Max(s.between)
	if most == 0 {
		return 0, 0
	}
	// The variance of a variance is proportional to its square, so each pass weights levels by the variances that the
	// previous pass fitted.
	thought, weighed := slices.Repeat([]float64{most}, len(s.between)), []float64(nil)
	var best []growth
	for range passes {
		least := math.Inf(1)
		weighed = slices.Clone(thought)
		for _, gs := range growths {
			factors := s.grow(gs, s.between, weighed)
			if factors == nil || slices.Min(factors) < 0 {
				continue
			}
			miss, all := 0.0, make([]float64, len(s.between))
			for j, size := range s.size {
				all[j] = max(sumOf(gs, factors, size), 1e-9*most)
				miss += math.Pow((s.between[j]-all[j])/weighed[j], 2)
			}
			if miss < least {
				least, best, thought = miss, gs, all
			}
		}
		changed := 0.0
		for j, v := range thought {
			changed = max(changed, math.Abs(v-weighed[j])/weighed[j])
		}
		if changed <= settled {
			break
		}
	}
	share := make([]float64, len(s.between)) // weight of each level's variance in v
	for j, between := range s.between {
		alone := make([]float64, len(s.between))
		alone[j] = 1
		share[j] = sumOf(best, s.grow(best, alone, weighed), y)
		v += share[j] * between
	}
	if v <= 0 {
		return 0, 0
	}
	var square float64
	for j, c := range share {
		for k, d := range share {
			both := c * thought[j] * d * thought[k]
			if j != k {
				both *= s.correlate * s.correlate
			}
			square += both
		}
	}
	return v, math.Sqrt(max(0, square)/float64(len(s.blocks)-1)) / v
}

// grow fits the factors of growths to variances, each weighted by the inverse square of its supposed value. It returns
// nil if the factors are not determined.
func (s *spread) grow(gs []growth, variances, thought []float64) []float64 {
	var all []Observation
	for j, v := range variances {
		all = append(all, Observation{X: []float64{s.size[j], thought[j]}, Y: v / thought[j]})
	}
	f, err := leastSquares(all, func(x []float64) (row []float64) {
		for _, g := range gs {
			row = append(row, g(x[0])/x[1])
		}
		return row
	})
	if err != nil {
		return nil
	}
	return f.coefficients
}

func sumOf(gs []growth, factors []float64, y float64) (sum float64) {
	for i, g := range gs {
		sum += factors[i] * g(y)
	}
	return sum
}

// weights returns the sum of the squares of the levels' weights in the prediction for a row of the design.
func (s *spread) weights(row []float64) (square float64, err error) {
	design, scaled := mat.NewDense(len(s.levels), len(row), nil), mat.NewVecDense(len(row), nil)
	for i, v := range row {
		scale := 0.0
		for _, at := range s.levels {
			scale = max(scale, math.Abs(at[i]))
		}
		for j, at := range s.levels {
			design.Set(j, i, at[i]/scale)
		}
		scaled.SetVec(i, v/scale)
	}
	var qr mat.QR
	qr.Factorize(design)
	var h mat.VecDense // the shortest of all weights with which the levels add up to row
	if err := qr.SolveVecTo(&h, true, scaled); err != nil {
		return 0, ErrCollinear
	}
	return mat.Dot(&h, &h), nil
}
