package analysis

import (
	"fmt"
	"math"
	"strings"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/stats"
)

// lagPart is how large the generator's lag may be, as a part of a difference in latency that is claimed (METHOD: a late generator
// shows as lag, not as a fast or slow server).
const lagPart = 0.1

// LagReason is how Difference.Unresolved begins when the load generator's lag is the reason.
const LagReason = "the load generator lags"

// lagGate holds a difference in latency against the lag of the generator at the same quantile. What the two arms' lags differ by is
// part of the difference claimed, so a lag that may be more than a tenth of it, by the far end of its interval, leaves the difference
// unresolved. Lag that both arms share cancels
// out of the difference, though not out of the values: it is noted.
func lagGate(t *table, at factors, arm string, e *Estimate, seed uint64) {
	q, ok := strings.CutPrefix(strings.TrimSuffix(e.Metric, "_seconds"), "latency_")
	if !ok {
		return
	}
	var pairs []stats.Pair
	var largest float64
	level := at.key()
	for _, b := range t.blocks(level, func(v *values) bool { _, ok := v.lag[q]; return ok }, record.Direct, arm) {
		p := stats.Pair{Base: t.cells[cell{level, record.Direct, b}].lag[q], Arm: t.cells[cell{level, arm, b}].lag[q]}
		pairs = append(pairs, p)
	}
	if len(pairs) == 0 {
		return
	}
	limit := lagPart * math.Abs(e.Difference.Value)
	apart, _ := stats.FarEnd(pairs, seed)
	for _, side := range []func(stats.Pair) float64{func(p stats.Pair) float64 { return p.Base }, func(p stats.Pair) float64 { return p.Arm }} {
		xs := make([]float64, len(pairs))
		for i, p := range pairs {
			xs[i] = side(p)
		}
		largest = max(largest, stats.Median(xs).Value)
	}
	switch {
	case apart > limit:
		e.Difference.Unresolved = fmt.Sprintf("%s: the %s of its lag may be %s apart between the arms, over a tenth of the difference",
			LagReason, q, quantity.Rough(apart, quantity.Seconds))
	case largest > limit:
		e.Notes = append(e.Notes, fmt.Sprintf("the lag of the load generator, alike in both arms, is over a tenth of the difference (%s %s)",
			q, quantity.Rough(largest, quantity.Seconds)))
	}
}
