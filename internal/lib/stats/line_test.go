package stats

import (
	"encoding/csv"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

func readTable(t *testing.T, path string) []Observation {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var obs []Observation
	for _, row := range rows {
		x, errX := strconv.ParseFloat(row[0], 64)
		y, errY := strconv.ParseFloat(row[1], 64)
		if err := errors.Join(errX, errY); err != nil {
			t.Fatal(err)
		}
		obs = append(obs, Observation{X: []float64{x}, Y: y})
	}
	return obs
}

// TestPublishedTables: published tables must give the result that follows from their own data, even where the published
// text differs.
func TestPublishedTables(t *testing.T) {
	for _, c := range []struct {
		file               string
		fixed, fixedWithin float64
		slope, slopeWithin float64
		r2                 float64
		straight           bool
	}{
		{"osm-sidecar-cpu", 0, 0.01, 0.30e-3, 0.005e-3, 0.998, true},
		{"osm-control-plane-memory", 274, 0.5, 1.17, 0.005, 0.994, false},
		{"osm-rollout-cpu", 0.38, 0.01, 1.17e-3, 0.01e-3, 0.985, true},
	} {
		t.Run(c.file, func(t *testing.T) {
			l, err := FitLine(readTable(t, "testdata/"+c.file+".csv"))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("fixed %+v, slope %+v, R2 %.4f, held out %.1f %%, %s: p = %.3f", l.Coefficients[0], l.Coefficients[1], l.R2,
				100*l.HeldOut, l.Test, l.P)
			near(t, "fixed", l.Coefficients[0].Value, c.fixed, c.fixedWithin)
			near(t, "slope", l.Coefficients[1].Value, c.slope, c.slopeWithin)
			if l.R2 < c.r2 {
				t.Errorf("R2 = %.4f, want at least %.3f", l.R2, c.r2)
			}
			if l.Straight != c.straight {
				t.Errorf("straight = %t by %s", l.Straight, l.Test)
			}
			if !l.HasHeldOut || l.HeldOut > 0.2 {
				t.Errorf("held-out error %.3f", l.HeldOut)
			}
		})
	}
}

// TestFitLineBySimulation: in one block with replicates, a bend is flagged, and a line is seldom flagged.
func TestFitLineBySimulation(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	const runs = 250
	var flaggedLine, flaggedBend int
	for range runs {
		var line, bend []Observation
		for _, rate := range []float64{500, 1000, 2000, 4000} {
			for _, connections := range []float64{16, 64, 256} {
				for range 6 {
					noise := 0.02 * r.NormFloat64()
					y := 0.1 + 0.3e-3*rate + 1e-3*connections + noise
					line = append(line, Observation{X: []float64{rate, connections}, Y: y})
					bend = append(bend, Observation{X: []float64{rate, connections}, Y: y + 3e-8*rate*rate})
				}
			}
		}
		l, err := FitLine(line)
		if err != nil {
			t.Fatal(err)
		}
		if !l.Straight {
			flaggedLine++
		}
		b, err := FitLine(bend)
		if err != nil {
			t.Fatal(err)
		}
		if !b.Straight {
			flaggedBend++
		}
	}
	t.Logf("of %d: lines flagged %d, bends flagged %d", runs, flaggedLine, flaggedBend)
	if flaggedLine > runs*9/100 {
		t.Errorf("%d of %d lines were called bent", flaggedLine, runs)
	}
	if flaggedBend < runs*95/100 {
		t.Errorf("%d of %d bends were seen", flaggedBend, runs)
	}
}

func TestFitLineEdges(t *testing.T) {
	obs := func(xy ...float64) (o []Observation) {
		for i := 0; i < len(xy); i += 2 {
			o = append(o, Observation{X: []float64{xy[i]}, Y: xy[i+1]})
		}
		return o
	}
	for _, c := range []struct {
		name     string
		obs      []Observation
		err      error
		straight bool
		slope    float64
	}{
		{"nothing", nil, ErrTooFew, false, 0},
		{"two points", obs(1, 1, 2, 2), ErrTooFew, false, 0},
		{"one level", obs(1, 1, 1, 2, 1, 3), ErrTooFew, false, 0},
		{"constant", obs(1, 5, 2, 5, 3, 5), nil, true, 0},
		{"constant but for a hair", obs(1, 5, 2, 5.01, 3, 5), nil, true, 0},
		{"exact line", obs(1, 2, 2, 4, 3, 6, 4, 8), nil, true, 2},
		{"exact line twice", obs(1, 2, 1, 2, 2, 4, 2, 4, 3, 6, 3, 6), nil, true, 2},
		{"steps of exact replicates", obs(1, 1, 1, 1, 2, 1, 2, 1, 3, 4, 3, 4), nil, false, 1.5},
		{"parabola", obs(1, 1, 2, 4, 3, 9, 4, 16, 5, 25), nil, false, 6},
		{"factors that move together", []Observation{{X: []float64{1, 2}, Y: 1}, {X: []float64{2, 4}, Y: 2},
			{X: []float64{3, 6}, Y: 3}, {X: []float64{4, 8}, Y: 4}}, ErrCollinear, false, 0},
		{"a factor that is always 0", []Observation{{X: []float64{1, 0}, Y: 1}, {X: []float64{2, 0}, Y: 2},
			{X: []float64{3, 0}, Y: 3}, {X: []float64{4, 0}, Y: 4}}, ErrCollinear, false, 0},
	} {
		l, err := FitLine(c.obs)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.err)
		}
		if err != nil || c.err != nil {
			continue
		}
		if l.Straight != c.straight {
			t.Errorf("%s: straight = %t by %s, p = %g", c.name, l.Straight, l.Test, l.P)
		}
		near(t, c.name+": slope", l.Coefficients[1].Value, c.slope, 1e-3)
		for _, c := range l.Coefficients {
			if math.IsNaN(c.Lo) || math.IsNaN(c.Hi) {
				t.Errorf("an interval is not a number: %+v", l.Coefficients)
			}
		}
	}
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within {
		t.Errorf("%s = %g, want %g within %g", what, got, want, within)
	}
}
