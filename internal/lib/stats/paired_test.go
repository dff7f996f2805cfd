package stats

import (
	"math"
	"testing"
)

func TestPseudoMedian(t *testing.T) {
	for _, c := range []struct {
		name       string
		xs         []float64
		value      float64
		lo, hi     float64
		confidence float64 // 0: no interval
		method     Method
	}{
		{"none", nil, 0, 0, 0, 0, None},
		{"one", []float64{3}, 3, 0, 0, 0, None},
		{"five", []float64{1, 2, 3, 4, 5}, 3, 0, 0, 0, None},
		{"six", []float64{6, 1, 2, 3, 4, 5}, 3.5, 1, 6, 0.96875, SignedRank},
		// R: wilcox.test(1:10, conf.int=TRUE) is 5.5 [3, 8]; its confidence is 1 - 2 x 25/1024.
		{"ten", []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5.5, 3, 8, 1 - 50.0/1024, SignedRank},
		{"all equal", []float64{7, 7, 7, 7, 7, 7, 7, 7}, 7, 7, 7, 1 - 10.0/256, SignedRank},
		{"all zero", make([]float64, 8), 0, 0, 0, 1 - 10.0/256, SignedRank},
		{"close to the largest float", []float64{1e308, 1e308, 1.5e308, 1e308, 1e308, 1e308}, 1e308, 1e308, 1.5e308, 0.96875,
			SignedRank},
	} {
		e := PseudoMedian(c.xs, 1)
		near(t, c.name+": value", e.Value, c.value, 1e-12*math.Abs(c.value))
		near(t, c.name+": lo", e.Lo, c.lo, 1e-12*math.Abs(c.lo))
		near(t, c.name+": hi", e.Hi, c.hi, 1e-12*math.Abs(c.hi))
		near(t, c.name+": confidence", e.Confidence, c.confidence, 1e-12)
		if e.Method != c.method || e.N != len(c.xs) || e.HasInterval != (c.confidence > 0) {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
}

// TestSignedRankDepth compares depths with the signed-rank table in any textbook (two-sided 5 %: the largest W that
// still rejects).
func TestSignedRankDepth(t *testing.T) {
	for n, want := range map[int]int{6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 12: 13, 15: 25, 20: 52, 25: 89, 30: 137, 50: 434} {
		depth, confidence := signedRankDepth(n, Confidence)
		if depth != want {
			t.Errorf("n=%d: depth %d, want %d", n, depth, want)
		}
		if confidence < 0.95 || confidence > 0.985 {
			t.Errorf("n=%d: confidence %g", n, confidence)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		n          int
		value      float64
		lo, hi     float64
		confidence float64
	}{ // of 1..n; the confidence is of the binomial
		{5, 3, 0, 0, 0}, {6, 3.5, 1, 6, 0.96875}, {8, 4.5, 1, 8, 0.9921875}, {9, 5, 2, 8, 0.9609375},
		{10, 5.5, 2, 9, 0.978515625}, {20, 10.5, 6, 15, 0.958610535},
	} {
		xs := make([]float64, c.n)
		for i := range xs {
			xs[i] = float64(c.n - i)
		}
		e := Median(xs)
		if e.Value != c.value || e.Lo != c.lo || e.Hi != c.hi {
			t.Errorf("n=%d: %+v, want %+v", c.n, e, c)
		}
		near(t, "confidence", e.Confidence, c.confidence, 1e-8)
	}
}

func TestRatio(t *testing.T) {
	var ps []Pair
	for i := 1; i <= 8; i++ {
		ps = append(ps, Pair{float64(i), 1.5 * float64(i)})
	}
	e, ok := Dependence{}.Ratio(ps, 1)
	if !ok {
		t.Fatal("no ratio")
	}
	near(t, "ratio", e.Value, 1.5, 1e-12)
	near(t, "lo", e.Lo, 1.5, 1e-12)
	for name, bad := range map[string][]Pair{"zero": {{0, 1}}, "negative": {{1, -1}}, "none": nil} {
		if _, ok := (Dependence{}).Ratio(bad, 1); ok {
			t.Errorf("%s: gave a ratio", name)
		}
	}
}

func TestResolved(t *testing.T) {
	twins := Estimate{Lo: -3, Hi: 2, HasInterval: true}
	mde, ok := SmallestVisible(twins)
	if mde != 3 || !ok {
		t.Errorf("smallest visible %g, %t", mde, ok)
	}
	for _, c := range []struct {
		name string
		e    Estimate
		mde  float64
		want bool
	}{
		{"larger and clear of 0", Estimate{Value: 5, Lo: 1, Hi: 9, HasInterval: true}, 3, true},
		{"below", Estimate{Value: -5, Lo: -9, Hi: -1, HasInterval: true}, 3, true},
		{"holds 0", Estimate{Value: 5, Lo: -1, Hi: 9, HasInterval: true}, 3, false},
		{"smaller than the twins", Estimate{Value: 2.9, Lo: 2, Hi: 4, HasInterval: true}, 3, false},
		{"no interval", Estimate{Value: 5}, 0, false},
		{"exactly nothing", Estimate{HasInterval: true}, 0, false},
		{"without noise", Estimate{Value: 1, Lo: 1, Hi: 1, HasInterval: true}, 0, true},
	} {
		if got := Resolved(c.e, c.mde); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestBootstrapIsSeeded(t *testing.T) {
	xs := make([]float64, 70)
	for i := range xs {
		xs[i] = math.Sin(float64(i * i))
	}
	a, b, c := PseudoMedian(xs, 1), PseudoMedian(xs, 1), PseudoMedian(xs, 2)
	if a != b {
		t.Errorf("one seed, two intervals: %+v and %+v", a, b)
	}
	if a.Method != Bootstrap || a.Lo == c.Lo && a.Hi == c.Hi {
		t.Errorf("two seeds, one interval: %+v and %+v", a, c)
	}
	if a.Lo > a.Value || a.Hi < a.Value {
		t.Errorf("the interval misses its value: %+v", a)
	}
}

func BenchmarkDifference(b *testing.B) {
	for name, blocks := range map[string]int{"exact/8": 8, "exact/50": 50, "bootstrap/60": 60} {
		ps := make([]Pair, blocks)
		for i := range ps {
			ps[i] = Pair{1, math.Sin(float64(i * i))}
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Difference(ps, 1)
			}
		})
	}
}
