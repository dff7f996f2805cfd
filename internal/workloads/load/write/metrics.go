package write

import (
	"fmt"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// metrics are the load's metrics in addition to those of every load. They cover only loads of kind write.
var metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "written_bytes_per_second", Unit: quantity.Bytes + " per second", Rank: metric.RankThroughput,
			Pool: metric.Sum, Better: metric.Higher, Needs: measured.NeedThroughput,
			Headline: true, Free: true, Outcome: true, Answers: true, Clause: "lets loads write {} a second",
			How: "Bytes per second of the writes of loads of kind `write` that ended in the window without error, with their " +
				"sync.",
		},
		Value: bytesPerSecond,
	},
	took(0.5, "p50"),
	took(0.99, "p99"),
}

// bytesPerSecond adds up the write rates of the trial's loads of this kind.
func bytesPerSecond(m *measured.Measured) (total float64, ok bool) {
	for _, r := range m.Loads {
		n, counted := r.Counts[CountBytes]
		if !counted || r.Generator != Name {
			continue
		}
		if _, known := r.Answers(); !known {
			return 0, false // an older record, whose bytes include those written after the window
		}
		total, ok = total+measured.Rate(n, r.Seconds), true
	}
	return total, ok
}

// took returns the metric of a quantile of the service time of writes.
func took(q float64, quantile string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: "write_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: metric.RankLatency, Pool: metric.Merged,
			Better: metric.Lower, Needs: measured.NeedLatency, Tail: q > 0.5,
			How: fmt.Sprintf("Time of a write of a load of kind `write`, with its sync: %s quantile. Left out when fewer "+
				"than %g lie beyond it. Writes that failed or did not end count as the slowest; left out where it is one of "+
				"these.", quantile, stats.MinBeyond(q)),
		},
		Value: func(m *measured.Measured) (float64, bool) {
			var encoded []string
			var missing int64 // writes that began and have no time
			for _, r := range m.Loads {
				if text, has := r.Histograms[load.Service]; has && r.Generator == Name {
					encoded = append(encoded, text)
					missing += max(r.Sent-r.Done, 0)
				}
			}
			h, err := stats.MergeEncoded(encoded...)
			if err != nil || h == nil {
				return 0, false
			}
			ns, ok := stats.QuantileWithout(h, missing, q)
			return ns / 1e9, ok
		},
	}
}
