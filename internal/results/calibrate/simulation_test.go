package calibrate

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"tare/test/long"
)

// TestMajorityBySimulation: a weight that chance alone lets pass must do so in most tries. The share is off by 7 points
// and has a standard error of 1.5; its tolerance is that of a part in one of two groups.
func TestMajorityBySimulation(t *testing.T) {
	r := rand.New(rand.NewPCG(30, 7))
	const deviation = 0.0148
	once := func(p float64) Weight {
		off := 0.0
		if r.Float64() >= p {
			off = 1
		}
		return known("x", "s", 0, off, Tolerance{Absolute: 0.5}, "").estimated()
	}
	share := func(bias float64) Weight {
		x, half := 0.75+bias+deviation*r.NormFloat64(), 1.96*deviation
		return known("x", "", 0.75, x, Tolerance{Absolute: 0.01, HalfWidths: 2}, "").within(x-half, x+half).estimated()
	}
	for _, c := range []struct {
		name   string
		read   func() Weight
		passes float64 // %, at most
		fewest float64
	}{
		{"passes 30 % of tries", func() Weight { return once(0.3) }, 21.6, 0},
		{"passes 95 % of tries", func() Weight { return once(0.95) }, 100, 99.3},
		{"a share that is right", func() Weight { return share(0) }, 100, 100},
		{"a share 7 points off", func() Weight { return share(0.07) }, 41.3, 0},
		{"a share off by what is detected with 95 %", func() Weight { return share(0.01 + (2*1.96+1.1)*deviation) }, 5, 0},
	} {
		runs := long.Repeat(500, 5000)
		passed, tried := 0.0, 0.0
		for range runs {
			b := newBench()
			err := b.weigh(t.Context(), "cpu", planting{"a test", func(context.Context) ([]Weight, error) {
				tried += 1 / float64(runs)
				b.observe(observed{seconds: 1})
				return []Weight{c.read()}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			passed += 100 * float64(b.report.Passed) / float64(runs)
		}
		t.Logf("| %s | %.1f %% pass | %.1f tries |", c.name, passed, tried)
		slack := 3 * 100 * math.Sqrt(0.25/float64(runs))
		if passed > c.passes+slack || passed < c.fewest-slack {
			t.Errorf("%s: %.1f %%", c.name, passed)
		}
	}
}
