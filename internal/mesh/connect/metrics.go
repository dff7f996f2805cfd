package connect

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/mesh/generation"
)

// metrics are the rate and the time of a subject's configuration changes, the shares of connections that failed or went
// to a wrong address during the changes, and the time until no connection reached an old endpoint any more.
var metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "replacements_per_second", Unit: quantity.PerSecond, Rank: metric.RankOther, Pool: metric.Sum,
			Better: metric.Higher, Needs: measured.NeedWork, Headline: true,
			How: "Configuration changes per second of a subject with `work: replace`, in closed loop: each gives one " +
				"service new endpoints and points another at a new cluster.",
		},
		Value: replacementRate,
	},
	{
		Definition: metric.Definition{
			Name: "replacement_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Cost: true,
			Better: metric.Lower, Needs: measured.NeedWork, Headline: true,
			How: "Time of such a change, from when the store gets it until the store returns.",
		},
		Value: measured.Per(measured.WorkCount(generation.ReplacementSeconds), measured.WorkCount(generation.Replacements)),
	},
	judgedPart("wrong_connect_share", "To an address in neither the old nor the new set of endpoints: the sum of "+
		"the shares of stale, torn and missed connections.",
		generation.StaleCount, generation.TornCount, generation.MissedCount),
	judgedPart("stale_connect_share", "To an endpoint of an older set, whose removal had returned before the "+
		"connection began.", generation.StaleCount),
	judgedPart("torn_connect_share", "To an address of no set that the service ever had: parts of two.",
		generation.TornCount),
	judgedPart("missed_connect_share", "To the address of the service itself, past the mesh.",
		generation.MissedCount),
	judgedPart("failed_connect_share", "Failed, though the service had endpoints all the time.", generation.FailedCount),
	judgedPart("backward_connect_share", "To an endpoint of the old set after a connection to the same or the other "+
		"changed service had reached one of the new.",
		generation.BackwardCount),
	oldEndpoint("p50", "p50 quantile",
		measured.Quantile(0.5)),
	oldEndpoint("p99", "p99 quantile", measured.Quantile(0.99)),
	oldEndpoint("max", "maximum", measured.Longest),
}

func replacementRate(m *measured.Measured) (float64, bool) {
	n, ok := measured.WorkCount(generation.Replacements)(m)
	if !ok || m.Work.Seconds <= 0 {
		return 0, false
	}
	return n / m.Work.Seconds, true
}

// ofJudged ends the description of a share of judged connections.
const ofJudged = " Part of the connections that a load of kind `connect` makes while configuration is replaced, " +
	"pooled over the trials of an arm."

// judgedPart returns the metric of the share of judged connections that are in some of the load's counts.
func judgedPart(name, how string, counts ...string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Counts, Better: metric.Lower,
			Needs: measured.NeedWorkCount, Headline: true, How: how + ofJudged,
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
			How: "From when a change was handed to the store until the start of the last connection that still reached an " +
				"old endpoint, over changes after which at least one did: " + which + ". Absent if there was no such change, " +
				"or too few for the quantile.",
		},
		Value: measured.Seconds(generation.OldEndpoint, value),
	}
}
