package analysis

import (
	"math/rand/v2"
	"testing"

	"tare/internal/lib/stats"
	"tare/test/long"
)

// TestPowerBySimulation plans runs from pilot runs with the same noise, as PowerOf does, and simulates the planned
// runs: an arm and a twin with normal noise, and a difference of one standard deviation of a trial. Pilot runs whose
// lengths differ by two blocks give similar plans.
func TestPowerBySimulation(t *testing.T) {
	t.Log("| pilot | blocks, by the widened interval | blocks planned | decided % |")
	r := rand.New(rand.NewPCG(75, 195))
	pairs := func(n int, shift float64) (arm, twin []stats.Pair) {
		for range n {
			base := r.NormFloat64()
			arm = append(arm, stats.Pair{Base: base, Arm: r.NormFloat64() + shift})
			twin = append(twin, stats.Pair{Base: base, Arm: r.NormFloat64()})
		}
		return arm, twin
	}
	planned := map[int]float64{}
	for _, pilot := range []int{10, 12, 18} {
		tries := long.Repeat(60, 600)
		decided, widened := 0.0, 0.0
		for try := range tries {
			arm, twin := pairs(pilot, 1)
			ds := stats.Differences(arm)
			dependence := stats.LearnDependence([][]float64{stats.Differences(twin)}, [][]float64{ds}).WithOwn(ds)
			c := comparison{arm: "subject", pairs: arm, dependence: dependence, kept: arm, seed: uint64(try)}
			d, _ := c.difference()
			row := PowerRow{Half: d.half(), N: d.N, independent: d.independent()}
			n, dependent := row.blocks(1, 0.95)
			if n == nil {
				t.Fatalf("no plan by %+v", d)
			}
			planned[pilot] += float64(*n) / float64(tries)
			if dependent == nil {
				dependent = n
			}
			widened += float64(*dependent) / float64(tries)
			if arm, _ = pairs(*n, 1); stats.Difference(arm, uint64(try)).Lo > 0 {
				decided += 100 / float64(tries)
			}
		}
		t.Logf("| %d | %.0f | %.0f | %.1f |", pilot, widened, planned[pilot], decided)
		if decided < 90 {
			t.Errorf("a pilot of %d blocks: %.1f %% are decided", pilot, decided)
		}
	}
	if planned[12] > planned[10]*1.2 || planned[12] < planned[10]*0.5 {
		t.Errorf("10 blocks plan %.0f, and 12 plan %.0f", planned[10], planned[12])
	}
}
