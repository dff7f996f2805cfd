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

// The ends of what is timed, as worded in metrics.
const (
	inMaps      = "until programs find all of it in the maps"
	inProgram   = "until a new connection to each service that was changed gets an endpoint that came by it"
	fromSending = ", from when the response is encoded and about to be handed to the transport"
)

// metrics are the metrics of changes from a control plane, of the load and of a subject that times them.
var metrics = slices.Concat(
	pushed(Whole, "Time of a change of one service, or of all at once, from when the control plane is told "+
		inProgram+"."),
	pushed(Sent, "The control plane's own part: until the response is encoded and about to be handed to the "+
		"transport. Left out, as all that begins then, where the control plane does not report it."),
	pushed(Received, "Time of a change"+fromSending+", until the whole of it has come to the data plane as a message. "+
		"Told by the data plane (`work: push`), as the next three."),
	pushed(Decoded, "The same until it is read and checked."),
	pushed(Visible, "The same "+inMaps+"."),
	pushed(Acked, "The same until its acknowledgement is handed to the transport."),
	pushed(Usable, "The same "+inProgram+". Told by the load, which tries again and again: it is too long by up to "+
		"`push_gap`."),
	pushed(Gap, "Time between the try at which a change was seen and the one before, at which it was not."),
	[]measured.Metric{
		tried("push_refused_ratio", Refused, "Connections that were refused, of those that the load `push` tried while a "+
			"change was under way: moments in which a service has no endpoint."),
		tried("push_wrong_ratio", Wrong, "The same for connections that got what is no endpoint of their service."),
	},
)

// tried is the share of the tried connections that are in one of the loads' counts.
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

// histogramOf returns a histogram by name: that of a subject whose work is to time changes, or else of the loads.
func histogramOf(m *measured.Measured, name string) (*hdrhistogram.Histogram, bool) {
	if m.Work != nil && m.Work.Generator == Generator {
		if h, err := m.Work.Histogram(name); err == nil && h != nil {
			return h, true
		}
	}
	return m.Histogram(name)
}

// pushed makes the metrics of one histogram. A trial has few changes of a large mesh: then there is a mean and a
// maximum, and no quantile.
func pushed(histogram, how string) []measured.Metric {
	of := func(name, how string, value func(*hdrhistogram.Histogram) (float64, bool)) measured.Metric {
		return measured.Metric{
			Definition: metric.Definition{
				Name: histogram + name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
				Cost: name == "", Better: metric.Lower, Needs: measured.NeedLatency, How: how,
				Headline: histogram == Usable && (name == "" || name == "_p50"), Family: "push",
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
	all := []measured.Metric{of("", how+" Mean of all changes of the trial.", measured.Mean)}
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}} {
		how := fmt.Sprintf("The same: %s quantile; left out when fewer than %g changes lie beyond it.",
			q.name, stats.MinBeyond(q.q))
		all = append(all, of("_"+q.name, how, measured.Quantile(q.q)))
	}
	return append(all, of("_max", "The same: the longest.", measured.Longest))
}
