package measured

import (
	"fmt"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// runningMetrics are of the requests that no stall of the machine touched: what latency is while the machine runs. See
// docs/noise.md.
var runningMetrics = []Metric{
	whileRunning(load.LatencyRunning, NeedRunning, 0.5, "p50",
		"from the intended start of a request until its answer was read"),
	whileRunning(load.LatencyRunning, NeedRunning, 0.9, "p90",
		"from the intended start of a request until its answer was read"),
	whileRunning(load.LatencyRunning, NeedRunning, 0.99, "p99",
		"from the intended start of a request until its answer was read"),
	whileRunning(load.LatencyRunning, NeedRunning, 0.999, "p999",
		"from the intended start of a request until its answer was read"),
	whileRunning(load.ConnectRunning, NeedRunning, 0.5, "p50", "for a connection to be made"),
	whileRunning(load.ConnectRunning, NeedRunning, 0.99, "p99", "for a connection to be made"),
	whileRunning(load.OwnLagRunning, NeedNothing, 0.5, "p50", "that the generator itself was late"),
	whileRunning(load.OwnLagRunning, NeedNothing, 0.9, "p90", "that the generator itself was late"),
	whileRunning(load.OwnLagRunning, NeedNothing, 0.99, "p99", "that the generator itself was late"),
	whileRunning(load.OwnLagRunning, NeedNothing, 0.999, "p999", "that the generator itself was late"),
	{
		Definition: metric.Definition{Name: "disturbed_share", Unit: quantity.Part, Rank: metric.RankOther,
			Pool: metric.Merged, Better: metric.Lower, Needs: NeedNothing,
			How: "Requests that a stall of the machine touched (stolen CPU time, or a task from elsewhere that held a CPU), " +
				"of those answered while stalls were watched for, all loads together. Left out where nobody watched."},
		Value: (*Measured).disturbedShare,
	},
	{
		Definition: metric.Definition{Name: "throughput_running_per_second", Family: "throughput", Undisturbed: true,
			Unit: quantity.PerSecond, Rank: metric.RankThroughput, Pool: metric.Sum, Better: metric.Higher, Needs: NeedRunning,
			How: "Requests of all loads that were answered while no CPU stood still, per second of that time. Closed " +
				"loops only: at a fixed rate, what a stall held up is answered after it. Left out where less than a tenth of the " +
				"window was quiet."},
		Value: (*Measured).throughputWhileRunning,
	},
}

// undisturbedOf is the histogram of all requests, by that of the undisturbed ones.
var undisturbedOf = map[string]string{
	load.LatencyRunning: load.Latency, load.ConnectRunning: load.Connect, load.OwnLagRunning: load.OwnLag,
}

func whileRunning(histogram string, needs []Need, q float64, quantile, what string) Metric {
	least := stats.MinBeyond(q)
	family := undisturbedOf[histogram]
	return Metric{
		Definition: metric.Definition{
			Name: histogram + "_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: latencyRank(histogram),
			Pool: metric.Merged, Better: metric.Lower,
			Needs: needs, Headline: histogram == load.LatencyRunning && quantile != "p90", Tail: q > 0.5,
			Family: family, Histogram: histogram, Quantile: q, Undisturbed: true,
			How: fmt.Sprintf("Time %s, of the requests that no stall of the machine touched, weighted for the greater chance "+
				"of long ones to be touched: "+
				"%s quantile, all loads merged. Left out when those requests cannot carry it, as when fewer than %g of them lie "+
				"beyond it.",
				what, quantile, least),
		},
		Value: func(m *Measured) (float64, bool) { return m.quantileWhileRunning(histogram, quantile, q, least) },
	}
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
			continue // it tells nothing apart
		}
		sum.Disturbed += r.Running.Disturbed
		sum.Undisturbed += r.Running.Undisturbed
	}
	return sum.Share()
}

// leastQuiet is the part of a window that must be quiet for a rate in it.
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

// lagRunning is the gate of the generator's lag for the requests that no stall touched. Where too few are left to tell,
// nothing is told of them either, and there is nothing to void.
func (j *LoadJudge) lagRunning() {
	const q = 0.99
	if ok, _ := j.Result.Running.Tells(load.OwnLagRunning, "p99", q, stats.MinBeyond(q)); !ok ||
		j.Result.Mode != load.Open {
		return
	}
	h, err := j.Result.Histogram(load.OwnLagRunning)
	if err != nil || h == nil {
		return
	}
	seen, allowed := time.Duration(h.ValueAtQuantile(100*j.Result.Running.Rank(q))), j.m.Setup.Gates.Duration("lag")
	if seen > allowed {
		j.Trip(GateLagRunning, seen.Seconds(), allowed.Seconds(),
			"the generator started the 99th percentile of requests %v late while the machine was running, "+
				"and %v is allowed; lower the rate or give the load a CPU of its own", seen.Round(time.Microsecond), allowed)
	}
}
