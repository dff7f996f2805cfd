package storebench

import (
	"fmt"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// metrics lists what a trial of the subject measures.
var metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "flush_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Merged, Cost: true,
			Family: "flush",
			Better: metric.Lower, Needs: measured.NeedWork, Headline: true,
			How: "From the start of a flush of a `store`, a change of one resource, until programs find it and the store is " +
				"ready for the next: mean.",
		},
		Value: perFlush(FlushSeconds),
	},
	flushTime(0.5, "p50"),
	flushTime(0.99, "p99"),
	counted("records_per_flush", "per flush", metric.Neither, Records,
		"Records that a flush writes, as the design counts them."),
	counted("map_updates_per_flush", "per flush", metric.Lower, Updates,
		"Map elements that a flush updates by system call."),
	counted("map_deletes_per_flush", "per flush", metric.Lower, Deletes,
		"Map elements that a flush deletes by system call."),
	counted("syscalls_per_flush", "per flush", metric.Lower, Syscalls,
		"System calls of a flush, reads included."),
	counted("grace_periods_per_flush", "per flush", metric.Lower, GracePeriods,
		"RCU grace periods that a flush waits for."),
	counted("bytes_per_flush", quantity.Bytes+" per flush", metric.Lower, WorkBytes,
		"Bytes of keys and values that a flush hands to the kernel or stores into mapped memory."),
	timed(metric.Definition{
		Name: "lookup_seconds", Rank: metric.RankWork, Family: "lookup", Headline: true,
		How: "Time of one lookup of a random service by a program in the kernel (BPF_PROG_TEST_RUN), with the time to run " +
			"the program, in a store that does not change. The mean is of the middle half of the calls, each of 1,000 runs.",
	}, measured.WorkCount(LookupMiddle)),
	timed(metric.Definition{
		Name: "lookup_first_seconds", Rank: metric.RankWork, Family: "lookup",
		How: "The same of the first lookup of a service after many others, with cache misses and one call into the kernel.",
	}, measured.WorkCount(LookupFirst)),
	timed(metric.Definition{
		Name: "store_open_seconds", Rank: metric.RankOther, Family: "store",
		How: "Time to open an empty `store`; `start_seconds` includes it.",
	}, measured.WorkCount(OpenSeconds)),
	timed(metric.Definition{
		Name: "store_fill_seconds", Rank: metric.RankOther, Family: "store",
		How: "Time to put all `services` into the empty store, as one change. Absent without services.",
	}, fillSeconds),
}

// timed returns a metric of a duration that each trial measures once.
func timed(d metric.Definition, value func(*measured.Measured) (float64, bool)) measured.Metric {
	d.Unit, d.Pool, d.Cost, d.Better, d.Needs = quantity.Seconds, metric.Mean, true, metric.Lower, measured.NeedSeen
	return measured.Metric{Definition: d, Value: value}
}

func fillSeconds(m *measured.Measured) (float64, bool) {
	v, ok := measured.WorkCount(FillSeconds)(m)
	return v, ok && v > 0
}

func perFlush(count string) func(*measured.Measured) (float64, bool) {
	return measured.Per(measured.WorkCount(count), measured.WorkCount(Flushes))
}

// counted returns the metric of a count, divided by the number of flushes.
func counted(name, unit string, better metric.Direction, count, how string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: unit, Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: better,
			Needs: measured.NeedWorkCount, How: how,
		},
		Value: perFlush(count),
	}
}

func flushTime(q float64, quantile string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: "flush_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Merged,
			Better: metric.Lower, Needs: measured.NeedWork, Family: "flush",
			How: fmt.Sprintf("From the start of a flush of a `store`, a change of one resource, until programs find it and "+
				"the store is ready for the next: %s quantile. Left out when fewer than %g lie beyond it.",
				quantile, stats.MinBeyond(q)),
		},
		Value: func(m *measured.Measured) (float64, bool) {
			if m.Work == nil {
				return 0, false
			}
			h, err := m.Work.Histogram(FlushTime)
			if err != nil || h == nil {
				return 0, false
			}
			ns, ok := stats.Quantile(h, q)
			return ns / 1e9, ok
		},
	}
}
