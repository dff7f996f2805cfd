package measured

import (
	"math"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/lib/lists"
	"tare/internal/lib/stats"
)

// driftChance is the probability with which chance alone may make the halves of a window look different: one in a
// thousand, so a run of a few hundred trials is unlikely to lose one.
const driftChance = 0.001

// minInSlice is the least number of requests in a slice of the window that gives a meaningful median.
const minInSlice = 5

// Drift checks that the window was steady, because the fixed length of the warm-up may have been too short. It
// compares the slices of the two halves of the window: for an open load their median latencies, for a closed load
// their counts of requests. The gate trips if the halves differ by more than chance explains (exact rank-sum test) and
// by more than the gate allows.
func (j *LoadJudge) Drift() {
	const lengthen = "lengthen the warm-up, "
	const pin = ", or pin applications and loads to CPUs of their own"
	hint := lengthen + "use fewer connections" + pin
	if j.works {
		hint = "lengthen the duration, or stop what else is running"
	}
	if j.Result.Mode == load.Closed {
		if before, after, seen, trips := j.halves(func(s load.Slice) float64 { return float64(s.Done) }, mean, 1); trips {
			perSecond := float64(len(j.Result.Slices)) / j.Result.Seconds
			j.Trip(GateDriftRate, seen, j.m.Setup.Gates.Float("drift"),
				"throughput went from %.0f/s in the first half of the window to %.0f/s in the second, %.0f %% apart, and %g %% "+
					"is allowed; "+hint,
				before*perSecond, after*perSecond, 100*seen, 100*j.m.Setup.Gates.Float("drift"))
		}
		return
	}
	for _, s := range j.Result.Slices {
		if s.Done < minInSlice {
			return
		}
	}
	if before, after, seen, trips := j.halves(func(s load.Slice) float64 { return s.P50 }, median, 1e-9); trips {
		duration := func(seconds float64) time.Duration { return time.Duration(seconds * 1e9).Round(time.Microsecond) }
		j.Trip(GateDriftLatency, seen, j.m.Setup.Gates.Float("drift"),
			"the median latency went from %v in the first half of the window to %v in the second, %.0f %% apart, and %g %% "+
				"is allowed; "+lengthen+"lower the rate"+pin,
			duration(before), duration(after), 100*seen, 100*j.m.Setup.Gates.Float("drift"))
	}
}

// halves compares the two halves of the window. It calls middle with the values of the slices of each half, and returns
// the results as before and after. The result seen is their difference as a fraction of the smaller one, or of least if
// that is larger, and trips reports whether the difference trips the gate. A window with fewer than minInSlice requests
// per slice, on average, is not compared.
func (j *LoadJudge) halves(value func(load.Slice) float64, middle func([]float64) float64,
	least float64) (before, after, seen float64, trips bool) {
	if len(j.Result.Slices) < 2 || j.Result.Done < minInSlice*int64(len(j.Result.Slices)) {
		return 0, 0, 0, false
	}
	values := lists.Map(j.Result.Slices, value)
	first, second := values[:len(values)/2], values[len(values)/2:]
	before, after = middle(first), middle(second)
	seen = math.Abs(after-before) / max(min(before, after), least)
	return before, after, seen, seen > j.m.Setup.Gates.Float("drift") && stats.RankSum(first, second) < driftChance
}

func median(xs []float64) float64 { return stats.Median(xs).Value }

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}
