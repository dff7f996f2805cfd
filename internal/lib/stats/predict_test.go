package stats

import (
	"errors"
	"math"
	"testing"
)

// TestPredict: the prediction of an exact line, what its interval consists of, and the reasons why there may be none.
func TestPredict(t *testing.T) {
	at := func(blocks int, y func(b int, x float64) float64, levels ...float64) []Observation {
		var all []Observation
		for b := range blocks {
			for _, x := range levels {
				all = append(all, Observation{X: []float64{x}, Y: y(b, x), Block: b})
			}
		}
		return all
	}
	exact := func(_ int, x float64) float64 { return 2 + 3*x }
	for _, c := range []struct {
		name string
		all  []Observation
		err  error
	}{
		{"exact", at(6, exact, 1, 2, 3), nil},
		{"five blocks", at(5, exact, 1, 2, 3), errFewBlocks},
		{"one block", at(1, exact, 1, 2, 3, 4), errFewBlocks},
		{"a level that a block lacks", at(6, exact, 1, 2, 3, 4)[1:], errFewBlocks},
		{"two levels", at(6, exact, 1, 2), errNoResidual},
		{"two trials at a level", at(6, exact, 1, 2, 2, 3), errTwice},
		{"a bend", at(6, func(_ int, x float64) float64 { return x * x * x }, 1, 2, 3, 4), errBent},
	} {
		l, err := FitLine(c.all)
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Predict([]float64{5})
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if err == nil && (math.Abs(p.Value-17) > 1e-9 || p.Lo > p.Value || p.Hi-p.Lo > 1e-6) {
			t.Errorf("%s: %+v", c.name, p)
		}
		if _, err := l.Predict(nil); err == nil {
			t.Errorf("%s: without a level it predicts", c.name)
		}
	}

	// If a whole block shares noise in proportion to the value, the interval is exactly Student's t for one more value.
	off := []float64{-0.02, 0.01, 0.03, -0.01, 0, 0.02}
	l, err := FitLine(at(6, func(b int, x float64) float64 { return (2 + 3*x) * (1 + off[b]) }, 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Predict([]float64{10})
	mean, half := meanWithT(off, Confidence)
	near(t, "value", p.Value, 32*(1+mean), 1e-9)
	near(t, "half", (p.Hi-p.Lo)/2, 32*half*math.Sqrt(7), 1e-3)
	if err != nil {
		t.Error(err)
	}

	// A bend that does not matter widens the interval, though trials do not vary at all.
	l, err = FitLine(at(6, func(b int, x float64) float64 { return 100 + x + 0.02*x*x + 1e-6*off[b] }, 1, 2, 3, 4, 5))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = l.Predict([]float64{4.5}); err != nil || p.Lo > 100+4.5+0.02*4.5*4.5 || p.Hi < 100+4.5+0.02*4.5*4.5 ||
		p.Hi-p.Lo > 1 {
		t.Errorf("%+v, %v, of a line by %s, p = %g", p, err, l.Test, l.P)
	}
}
