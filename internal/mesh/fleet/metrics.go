package fleet

import (
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// gateEnds trips when connections of proxies end without the load having closed them.
var gateEnds = &measured.Gate{
	Name: "connections-ended", Breaks: []measured.Need{measured.Complete, measured.Connected}, Quiet: ledger.Subject,
	Why: "proxies that reconnect get everything again, which is no part of a change",
}

// Gates returns the load's gates in addition to the usual ones.
func (guest) Gates() []*measured.Gate { return []*measured.Gate{gateEnds} }

// metrics are the times to propagate a change, a rollout or a reconnection, and the CPU time and bytes that each costs
// the control plane.
var metrics = slices.Concat(
	timed(histogramFirst, "", "From when the control plane gets a change of one service's endpoints until the "+
		"first of the proxies concerned has the response"),
	timed(histogramMedian, "", "The same until half of them have it"),
	timed(histogramLast, "has told all proxies of a change after {}",
		"The same until all of them have it"),
	timed(histogramAnswered, "", "The same until all of them have acknowledged it"),
	timed(histogramEffect, "has a change at work in a real Envoy after {}",
		"The same until the new endpoint answers a request through an Envoy; each Envoy counts"),
	timed(histogramHalf, "", "From when the first of all proxies is asked to connect until half of them have all "+
		"that they ask for"),
	timed(histogramRollout, "has told all proxies everything after {}", "The same until all of them do"),
	timed(histogramChurn, "has told a tenth of the proxies everything after {}",
		"From when the first of the returning proxies is asked to connect until all of these have all that they ask for"),
	[]measured.Metric{
		{
			Definition: metric.Definition{
				Name: "fleet_cpu_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Mean, Cost: true,
				Better: metric.Lower, Needs: measured.NeedCost, Headline: true, Family: "fleet",
				Clause: "uses {} of CPU time for it",
				How:    "CPU time of the subject (the control plane) in the window, per change, rollout or returning tenth.",
			},
			Value: measured.Per(func(m *measured.Measured) (float64, bool) { return m.RoleRate(kind.Subject) }, pieceRate),
		},
		{
			Definition: metric.Definition{
				Name: "fleet_bytes", Unit: quantity.Bytes, Rank: metric.RankOther, Pool: metric.Mean, Cost: true,
				Better: metric.Lower, Needs: measured.NeedWorkCount, Family: "fleet", Clause: "sends {} of resources",
				How: "Bytes of resources sent to all proxies per change, rollout or returning tenth.",
			},
			Value: func(m *measured.Measured) (float64, bool) {
				n, ok := pieces(m)
				return m.Sum(func(r load.Result) float64 { return r.Counts[countBytes] }) / n, ok
			},
		},
	},
)

// pieces returns the number of pieces of work that count: changes, rollouts, or reconnections of a tenth of the
// proxies.
func pieces(m *measured.Measured) (n float64, ok bool) {
	n = m.Sum(func(r load.Result) float64 {
		if r.Generator != Generator {
			return 0
		}
		return float64(r.Done)
	})
	return n, n > 0
}

func pieceRate(m *measured.Measured) (float64, bool) {
	n := m.Sum(func(r load.Result) float64 { return r.Counts[countPieces] })
	return measured.Rate(n, m.Ledger.Window.Seconds), n > 0 && m.Ledger.Window.Seconds > 0 && !m.WindowCut()
}

// timed makes metrics of the mean and the maximum of a histogram: a trial has too few changes for quantiles. If there
// is a clause, the mean is a headline.
func timed(histogram, clause, how string) []measured.Metric {
	of := func(suffix, how string, value func(*hdrhistogram.Histogram) (float64, bool)) measured.Metric {
		d := measured.Metric{
			Definition: metric.Definition{
				Name: histogram + suffix, Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
				Cost:   suffix == "_seconds",
				Better: metric.Lower, Needs: measured.NeedWork, How: how, Family: "fleet",
			},
			Value: measured.Seconds(histogram, value),
		}
		if suffix == "_seconds" {
			d.Headline, d.Clause = clause != "", clause
		}
		return d
	}
	return []measured.Metric{
		of("_seconds", how+": mean.", measured.Mean),
		of("_max_seconds", how+": maximum.", measured.Longest),
	}
}
