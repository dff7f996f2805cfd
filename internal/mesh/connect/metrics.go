package connect

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/mesh/generation"
)

// metrics are the metrics of the load, and of a subject that replaces its configuration meanwhile.
var metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "replacements_per_second", Unit: quantity.PerSecond, Rank: metric.RankOther, Pool: metric.Sum,
			Better: metric.Higher, Needs: measured.NeedWork, Headline: true,
			How: "Changes of configuration that a subject with `work: replace` makes in a second, in closed loop: each " +
				"gives one service new endpoints and points another at a new cluster.",
		},
		Value: replacementRate,
	},
	{
		Definition: metric.Definition{
			Name: "replacement_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Cost: true,
			Better: metric.Lower, Needs: measured.NeedWork, Headline: true,
			How: "Time of one such change, from when it is handed to the store until the store has returned: mean of all " +
				"that began in the window.",
		},
		Value: measured.Per(measured.WorkCount(generation.ReplacementSeconds), measured.WorkCount(generation.Replacements)),
	},
	judgedPart("wrong_connect_share", "Part of the connections of a load of kind `connect`, while configuration is "+
		"replaced, that reached an address in neither the old nor the new set of endpoints: the sum of the next "+
		"three. Pooled over the trials of an arm, as all of these.",
		generation.StaleCount, generation.TornCount, generation.MissedCount),
	judgedPart("stale_connect_share", "Of these, to an endpoint of an older set: the change that took it away had "+
		"returned before the connection began.", generation.StaleCount),
	judgedPart("torn_connect_share", "Of these, to an address of no set that the service ever had: parts of two.",
		generation.TornCount),
	judgedPart("missed_connect_share", "Of these, to the address of the service itself: past the mesh.",
		generation.MissedCount),
	judgedPart("failed_connect_share", "Part of these connections that failed, though the service had endpoints all the "+
		"time.", generation.FailedCount),
	judgedPart("backward_connect_share", "Part of these connections that reached an endpoint of the old set after "+
		"a connection to the same or the other changed service had reached one of the new.",
		generation.BackwardCount),
	oldEndpoint("p50", "50th percentile of the changes after whose beginning an old endpoint was seen at all",
		measured.Quantile(0.5)),
	oldEndpoint("p99", "99th percentile of the same", measured.Quantile(0.99)),
	oldEndpoint("max", "the longest", measured.Longest),
}

func replacementRate(m *measured.Measured) (float64, bool) {
	n, ok := measured.WorkCount(generation.Replacements)(m)
	if !ok || m.Work.Seconds <= 0 {
		return 0, false
	}
	return n / m.Work.Seconds, true
}

// judgedPart is the share of judged connections that are in some of the load's counts.
func judgedPart(name, how string, counts ...string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Counts, Better: metric.Lower,
			Needs: measured.NeedWorkCount, Headline: true, How: how,
		},
		Count: func(m *measured.Measured) (in, of int) {
			for _, r := range m.Loads {
				of += int(r.Counts[generation.Judged])
				for _, c := range counts {
					in += int(r.Counts[c])
				}
			}
			return in, of
		},
	}
}

func oldEndpoint(name, which string, value func(*hdrhistogram.Histogram) (float64, bool)) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: "old_endpoint_" + name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
			Better: metric.Lower, Needs: measured.NeedSeen, Headline: true, Tail: name != "p50", Family: "old endpoint",
			How: "How long after a change was handed to the store a connection began that still came to an old endpoint, " +
				"the last such of each change: " + which + ". Left out where it was never seen, or too seldom for the quantile.",
		},
		Value: measured.Seconds(generation.OldEndpoint, value),
	}
}
