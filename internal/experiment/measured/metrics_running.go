package measured

import (
	"fmt"
	"slices"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// runningMetrics cover the requests that no stall of the machine touched: latency while the machine runs. See
// docs/noise.md.
var runningMetrics = slices.Concat(
	whileRunning(load.LatencyRunning, NeedRunning, untilAnswered, 0.5, 0.9, 0.99, 0.999),
	whileRunning(load.ConnectRunning, NeedRunning, untilConnected, 0.5, 0.99),
	whileRunning(load.OwnLagRunning, NeedNothing, generatorLate, 0.5, 0.9, 0.99, 0.999),
	quietMetrics,
)

const generatorLate = "that the generator itself was late, once the request was due and a connection free"

// quietMetrics measure the fraction of requests that a stall touched, and the throughput outside stalls.
var quietMetrics = []Metric{
	{
		Definition: metric.Definition{Name: "disturbed_share", Unit: quantity.Part, Rank: metric.RankOther,
			Pool: metric.Merged, Better: metric.Lower, Needs: NeedNothing,
			How: "Requests that a stall of the machine touched, of those answered while stalls were watched for."},
		Value: (*Measured).disturbedShare,
	},
	{
		Definition: metric.Definition{Name: "throughput_running_per_second", Family: "throughput", Undisturbed: true,
			Unit: quantity.PerSecond, Rank: metric.RankThroughput, Pool: metric.Sum, Better: metric.Higher, Needs: NeedRunning,
			Rule: 1, // by rule 0, answers to requests of the warm-up were left out
			How: "Requests of all loads answered while no CPU stood still, per second of that time. Closed loops only; " +
				"absent where less than a tenth of the window was quiet."},
		Value: (*Measured).throughputWhileRunning,
	},
}

// whileRunning makes the same metrics as requestTimes, but of the requests that no stall touched. histogram names the
// weighted histogram of these requests.
func whileRunning(histogram string, needs []Need, what string, quantiles ...float64) []Metric {
	all := requestTimes(histogram, needs, what, quantiles...)
	for i, q := range quantiles {
		quantile, least := load.QuantileName(q), stats.MinBeyond(q)
		all[i].How = fmt.Sprintf("Time %s: %s quantile. Left out when fewer than %g requests lie beyond it. Of the "+
			"requests that no stall of the machine touched, weighted because long ones are touched more often; absent "+
			"when they are too few or no fair sample.", what, quantile, least)
		all[i].Value = func(m *Measured) (float64, bool) { return m.quantileWhileRunning(histogram, quantile, q, least) }
	}
	return all
}

func (m *Measured) quantileWhileRunning(histogram, quantile string, q, least float64) (float64, bool) {
	run := load.RunningOf(m.Loads, histogram)
	if ok, _ := run.Tells(histogram, quantile, q, least); !ok {
		return 0, false
	}
	h, ok := m.Histogram(histogram)
	if !ok {
		return 0, false
	}
	return float64(h.ValueAtQuantile(100*run.Rank(q))) / 1e9, true
}

func (m *Measured) disturbedShare() (float64, bool) {
	sum := load.Running{}
	for _, r := range m.Loads {
		if r.Running == nil {
			continue // this load does not classify its requests
		}
		sum.Disturbed += r.Running.Disturbed
		sum.Undisturbed += r.Running.Undisturbed
	}
	return sum.Share()
}

// leastQuiet is the fraction of a window that must be free of stalls for throughput_running_per_second to exist.
const leastQuiet = 0.1

func (m *Measured) throughputWhileRunning() (total float64, ok bool) {
	for _, r := range m.Loads {
		run := r.Running
		if r.Mode != load.Closed || run == nil || run.QuietSeconds <= leastQuiet*r.Seconds {
			return 0, false
		}
		total += float64(run.DoneQuiet) / run.QuietSeconds
	}
	return total, len(m.Loads) > 0
}

// lagRunning checks the generator's lag for the requests that no stall touched. If too few are left for the quantile,
// no metric has it either, and there is nothing to void.
func (j *LoadJudge) lagRunning() {
	const q = 0.99
	if ok, _ := j.Result.Running.Tells(load.OwnLagRunning, "p99", q, stats.MinBeyond(q)); ok {
		j.late(GateLagRunning, load.OwnLagRunning, j.Result.Running.Rank(q), " while the machine was running")
	}
}
