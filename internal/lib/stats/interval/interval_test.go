package interval

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within {
		t.Errorf("%s = %g, want %g within %g", what, got, want, within)
	}
}

func TestBinomialEnds(t *testing.T) {
	for _, c := range []struct {
		name       string
		k, n       int
		confidence float64
		lo, hi     float64
	}{
		{"no tries", 0, 0, 0.95, 0, 1},
		{"none of ten", 0, 10, 0.95, 0, 0.27753}, // z^2/(n+z^2)
		{"all of ten", 10, 10, 0.95, 0.72247, 1},
		{"half", 50, 100, 0.95, 0.40383, 0.59617},
		{"three in four", 75, 100, 0.95, 0.65696, 0.82455},
		{"k above n", 12, 10, 0.95, 0.72247, 1},
		{"k below 0", -1, 10, 0.95, 0, 0.27753},
		{"no confidence", 5, 10, 0, 0.5, 0.5},
		{"full confidence", 5, 10, 1, 0, 1},
		{"many", 500_000, 1_000_000, 0.95, 0.49902, 0.50098},
	} {
		lo, hi := Binomial(c.k, c.n, c.confidence)
		near(t, c.name+" lo", lo, c.lo, 1e-5)
		near(t, c.name+" hi", hi, c.hi, 1e-5)
	}
	for n := 1; n < 200; n++ {
		for k := 0; k <= n; k++ {
			lo, hi := Binomial(k, n, 0.95)
			if p := float64(k) / float64(n); lo < 0 || hi > 1 || lo > p || hi < p {
				t.Fatalf("k=%d n=%d: [%g, %g] does not hold %g within [0, 1]", k, n, lo, hi, p)
			}
		}
	}
}

// TestBinomialCoverage: coverage is summed exactly over all outcomes, without simulation noise. From one probability to
// the next it varies, because outcomes are discrete, so the test checks its mean over probabilities, and its minimum.
func TestBinomialCoverage(t *testing.T) {
	for _, n := range []int{10, 20, 50, 100, 400} {
		var mean, worst float64
		worst = 1
		const steps = 400
		for i := 0; i < steps; i++ {
			p := 0.02 + 0.96*(float64(i)+0.5)/steps
			var covered float64
			dist := distuv.Binomial{N: float64(n), P: p}
			for k := 0; k <= n; k++ {
				if lo, hi := Binomial(k, n, 0.95); lo <= p && p <= hi {
					covered += dist.Prob(float64(k))
				}
			}
			mean += covered / steps
			worst = min(worst, covered)
		}
		t.Logf("n=%3d: mean coverage %.1f %%, worst %.1f %%", n, 100*mean, 100*worst)
		if mean < 0.945 || mean > 0.965 {
			t.Errorf("n=%d: mean coverage %.4f, want 0.945..0.965", n, mean)
		}
		if worst < 0.88 {
			t.Errorf("n=%d: worst coverage %.4f, want at least 0.88", n, worst)
		}
	}
}

func TestPoisson(t *testing.T) {
	for _, c := range []struct {
		k      int
		lo, hi float64
	}{ // Garwood's table
		{0, 0, 3.6889}, {1, 0.0253, 5.5716}, {2, 0.2422, 7.2247}, {5, 1.6235, 11.6683}, {10, 4.7954, 18.3904},
		{100, 81.3636, 121.6272}, {-1, 0, 3.6889},
	} {
		lo, hi := Poisson(c.k, 0.95)
		near(t, "lo", lo, c.lo, 1e-3)
		near(t, "hi", hi, c.hi, 1e-3)
	}
	lo, hi := Poisson(1_000_000, 0.95) // close to the normal distribution
	near(t, "lo of a million", lo, 1e6-1960, 3)
	near(t, "hi of a million", hi, 1e6+1960, 5)

	for _, mean := range []float64{0.1, 0.5, 1, 3, 10, 50, 300} {
		var covered float64
		for k := 0; k < int(mean+20*math.Sqrt(mean)+20); k++ {
			if lo, hi := Poisson(k, 0.95); lo <= mean && mean <= hi {
				covered += distuv.Poisson{Lambda: mean}.Prob(float64(k))
			}
		}
		if covered < 0.95 {
			t.Errorf("mean %g: coverage %.4f, want at least 0.95", mean, covered)
		}
	}
}

// TestStudent compares Student's t with tables.
func TestStudent(t *testing.T) {
	for df, want := range map[float64]float64{1: 12.706, 2: 4.303, 10: 2.228, 1e6: 1.960} {
		near(t, "Student", Student(df, 0.95), want, 6e-4)
	}
}
