package analysis

import (
	"fmt"
	"math"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// lagPart is the maximum lag of the generator, as a fraction of a claimed difference in latency. With a larger lag, a
// late generator could look like a fast or slow server.
const lagPart = 0.1

// LagReason is the beginning of Difference.Unresolved if the load generator's lag is the reason.
const LagReason = "the load generator lags"

// lagOf returns, for each metric of latency, how late the load generator was at the same quantile, in seconds. For
// requests that no stall touched, the lag is a metric of the trial; for all requests, it comes from the histogram.
func lagOf(trial record.Trial, metrics map[string]float64, defined metric.Set) (map[string]float64, error) {
	lag, _, err := quantilesOf(trial, lagHistogram(trial), defined)
	// Few metrics are lags, so this is cheaper than a search of all definitions for each quantile.
	for name, v := range metrics {
		d := defined.Of(name)
		if d.Histogram != load.OwnLagRunning || name != defined.QuantileOf(load.OwnLagRunning, d.Quantile) {
			continue
		}
		if of := defined.QuantileOf(load.LatencyRunning, d.Quantile); of != "" {
			lag[of] = v
		}
	}
	return lag, err
}

// lagHistogram returns the name of the histogram of the generator's lag. If the part of the lag that the generator
// itself caused was recorded separately, it is the histogram of that part.
func lagHistogram(trial record.Trial) string {
	if len(encodedOf(trial, load.OwnLag)) > 0 {
		return load.OwnLag
	}
	return load.Lag
}

// lagPairs returns the generator's lags in the baseline and in an arm at the quantile of a metric of latency, by
// block; none for other metrics.
func (t *Table) lagPairs(at factors, arm, metric string) (pairs []stats.Pair) {
	level := record.LevelKey(at)
	has := func(v *values) bool { _, ok := v.lag[metric]; return ok }
	for _, b := range t.blocks(level, has, record.Direct, arm) {
		pairs = append(pairs, stats.Pair{
			Base: t.cells[cell{level, record.Direct, b}].lag[metric], Arm: t.cells[cell{level, arm, b}].lag[metric],
		})
	}
	return pairs
}

// lagGate compares a difference in latency with the lag of the generator at the same quantile, in pairs of the baseline
// and the arm. The difference between the two arms' lags is part of the claimed difference. If that part may exceed a
// tenth of the claimed difference, by the far end of its interval, the claimed difference is not resolved. Lag that
// both arms share cancels out of the difference, but not out of the values, and only causes a note.
func lagGate(difference float64, pairs []stats.Pair, quantile string, seed uint64) (unresolved, note string) {
	if len(pairs) == 0 {
		return "", ""
	}
	limit := lagPart * math.Abs(difference)
	apart, _ := stats.FarEnd(pairs, seed)
	largest := 0.0
	for _, side := range []func(stats.Pair) float64{
		func(p stats.Pair) float64 { return p.Base }, func(p stats.Pair) float64 { return p.Arm },
	} {
		largest = max(largest, stats.Median(lists.Map(pairs, side)).Value)
	}
	switch {
	case apart > limit:
		return fmt.Sprintf("%s: the %s of its lag may be %s apart between the arms, over a tenth of the difference",
			LagReason, quantile, quantity.Rough(apart, quantity.Seconds)), ""
	case largest > limit:
		return "", fmt.Sprintf("the lag of the load generator, alike in both arms, is over a tenth of the difference (%s %s)",
			quantile, quantity.Rough(largest, quantity.Seconds))
	}
	return "", ""
}
