package stats

import (
	"math/rand/v2"
	"testing"
)

func TestStoppingBySimulation(t *testing.T) {
	t.Log("| noise | deviation | fixed 18 covers % | covers % | alarms % | blocks | reached % |")
	const base, target, most = 100.0, 0.05, 100
	for _, noise := range noises {
		for _, scale := range []float64{3, 6, 10, 15} {
			runs := repetitions(300)
			r := rand.New(rand.NewPCG(uint64(scale), 77))
			var covered, alarms, blocks, reached, plain float64
			for i := range runs {
				var pairs, twins []Pair
				grow := func(n int) {
					for len(pairs) < n {
						drift := 5 * r.NormFloat64()
						b := base + drift + scale*noise.draw(r)
						pairs = append(pairs, Pair{b, base + drift + scale*noise.draw(r)})
						twins = append(twins, Pair{b, base + drift + scale*noise.draw(r)})
					}
				}
				var e Estimate
				n := 0
				for n < most {
					n = min(NextLook(n), most)
					grow(n)
					d := LearnDependence(Differences(pairs), Differences(twins))
					e = d.Difference(pairs, uint64(i))
					if Precise(e, base, target) {
						reached++
						break
					}
				}
				p := Difference(pairs, uint64(i))
				if !p.Excludes(0) {
					plain++
				}
				if !e.Excludes(0) {
					covered++
				}
				far, _ := FarEnd(twins, uint64(i))
				if Resolved(e, Visible(far, e)) {
					alarms++
				}
				blocks += float64(n)
			}
			f := 100 / float64(runs)
			t.Logf("| %s | %g | %.1f | %.1f | %.1f | %.1f | %.0f |", noise.name, scale, plain*f, covered*f, alarms*f, blocks/float64(runs), reached*f)
		}
	}
}
