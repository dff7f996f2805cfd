package push

import (
	"fmt"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// Phrases for the descriptions of metrics: where timed intervals begin and end.
const (
	inProgram   = "until a new connection to each changed service gets an endpoint that came with it"
	fromSending = "From the end of `push_sent` "
)

// metrics are the metrics of configuration changes, as timed by the load and by a subject that reports its own times.
var metrics = slices.Concat(
	pushed(Whole, "From when the control plane gets a change of one service, or of all at once (with `cluster-services`: "+
		"from when the load asks for it), "+inProgram),
	pushed(Sent, "The control plane's part of `push`, until the response is encoded (absent, as are all times that "+
		"begin there, if the control plane does not report it)"),
	pushed(Accepted, "From when a change is sent to the cluster's API server until that has accepted all of it (with the "+
		"application `cluster-services`)"),
	pushed(Received, fromSending+"until the data plane (`work: push`) has received all of it"),
	pushed(Decoded, "The same until it has decoded and checked it"),
	pushed(Visible, "The same until programs find all of it in the maps"),
	pushed(Acked, "The same until the data plane hands its acknowledgement to the transport"),
	pushed(Usable, fromSending+inProgram+", by the load: too long by up to `push_gap`"),
	pushed(Gap, "Between the try that showed a change and the one before, which did not"),
	[]measured.Metric{
		tried("push_refused_ratio", Refused, "Connections refused, of those that the load `push` tried while a change "+
			"was under way: a service had no endpoint."),
		tried("push_wrong_ratio", Wrong, "The same of connections that reached no endpoint of their service."),
	},
)

// tried returns a metric: one of the loads' counts, divided by the number of connections that the loads tried.
func tried(name, count, how string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Merged, Better: metric.Lower,
			Needs: measured.NeedWorkCount, Headline: true, Family: "push", How: how,
		},
		Value: func(m *measured.Measured) (float64, bool) {
			of := func(name string) float64 {
				return m.Sum(func(r load.Result) float64 { return r.Counts[name] })
			}
			tries := of(Tries)
			return of(count) / tries, tries > 0
		},
	}
}

// histogramOf returns the named histogram: the subject's if the subject times changes, and otherwise the loads'.
func histogramOf(m *measured.Measured, name string) (*hdrhistogram.Histogram, bool) {
	if m.Work != nil && m.Work.Generator == Generator {
		if h, err := m.Work.Histogram(name); err == nil && h != nil {
			return h, true
		}
	}
	return m.Histogram(name)
}

// pushed returns the metrics of one histogram. A trial with a large mesh may make too few changes for quantiles; then
// only the mean and the maximum exist.
func pushed(histogram, how string) []measured.Metric {
	of := func(name, how string, value func(*hdrhistogram.Histogram) (float64, bool)) measured.Metric {
		return measured.Metric{
			Definition: metric.Definition{
				Name: histogram + name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
				Cost: name == "", Better: metric.Lower, Needs: measured.NeedLatency, How: how,
				Headline: (histogram == Usable || histogram == Whole) && (name == "" || name == "_p50"), Family: "push",
			},
			Value: func(m *measured.Measured) (float64, bool) {
				h, ok := histogramOf(m, histogram)
				if !ok {
					return 0, false
				}
				ns, ok := value(h)
				return ns / 1e9, ok
			},
		}
	}
	all := []measured.Metric{of("", how+": mean.", measured.Mean)}
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}} {
		how := fmt.Sprintf("%s: %s quantile; left out when fewer than %g changes lie beyond it.",
			how, q.name, stats.MinBeyond(q.q))
		all = append(all, of("_"+q.name, how, measured.Quantile(q.q)))
	}
	return append(all, of("_max", how+": maximum.", measured.Longest))
}
