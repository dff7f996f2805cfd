package experiment

import (
	"errors"
	"fmt"

	"tare/internal/fault"
	"tare/internal/metric"
	"tare/internal/quantity"
	"tare/internal/stats"
	"tare/internal/subject/mesh/store"
	"tare/internal/subject/mesh/storebench"
)

// storeTrait is how much of a change the design of a store shows at once.
func storeTrait(o Options) string {
	design, _, err := store.Lookup(o["store"])
	if err != nil {
		return "" // none is named, or the subject will say what is wrong with it
	}
	return "whole " + design.Atomic.String()
}

// How the settings of a flush read in a sentence: "for a cluster inserted from decoded form".
var (
	flushed = map[string]string{storebench.Insert: "inserted", storebench.Replace: "replaced", storebench.Delete: "deleted"}
	decoded = map[string]string{storebench.Struct: "from decoded form", storebench.Bytes: "from bytes on the wire"}
)

// storeSubject is the subject that is a store: it flushes by itself, and needs no load.
var storeSubject = &Kind{
	Name:    "store",
	Summary: "a store of mesh configuration in BPF maps, by design, which flushes changes as fast as it goes",
	Knobs: []Knob{
		{Name: "store", Type: TypeText, Doc: "design, or design:variant: `naive`, `pooled` (`ahead`, `background`, `ondemand`), `sized` (`replace`, `ordered`), `value`, `snapshot`"},
		{Name: "resource", Type: TypeWord, Default: storebench.Cluster, Words: storebench.Resources, Phrase: map[string]string{"": "for a {}"}, Doc: "what is flushed: a cluster of 10 localities with one endpoint each and circuit breakers, or a listener with 5 filter chains"},
		{Name: "operation", Type: TypeWord, Default: storebench.Replace, Words: storebench.Operations, Phrase: flushed, Doc: "what a flush does with it; `lookup`: no flush at all, but questions for the services by a program in the kernel"},
		{Name: "from", Type: TypeWord, Default: storebench.Struct, Words: storebench.Forms, Phrase: decoded, Doc: "the form in which a change comes: decoded, or as an xDS resource on the wire"},
		{Name: knobServices, Type: TypeCount, Min: 1, Max: storebench.MaxServices, Phrase: withServices, Doc: "services in the store beside what is flushed, each a cluster and a listener; none when left out"},
		{Name: "endpoints", Type: TypeCount, Min: 1, Max: storebench.MaxEndpoints, Doc: "endpoints of each of these services; 20 when left out"},
		{Name: "max-clusters", Type: TypeCount, Min: 1, Max: 1 << 20, Doc: "clusters that the store is made for; the store's own choice when left out"},
		{Name: "max-listeners", Type: TypeCount, Min: 1, Max: 1 << 20, Doc: "listeners that the store is made for, likewise"},
		{Name: "max-endpoints", Type: TypeCount, Min: 1, Max: 1 << 24, Doc: "endpoints of all clusters that the store is made for, likewise"},
	},
	Works: true,
	label: "store",
	trait: storeTrait,
	check: func(o Options) error {
		_, hasServices := o[knobServices]
		switch {
		case o["store"] == "":
			return errors.New(`a store needs a "store", the name of a design`)
		case o["operation"] == storebench.Lookup && !hasServices:
			return errors.New(`to look up services there must be some: give "services"`)
		}
		if _, _, err := store.Lookup(o["store"]); err != nil {
			return fmt.Errorf("%w; %s", err, fault.MendOf(err))
		}
		return nil
	},
}

// storeMetrics are what stores tell of their work.
var storeMetrics = []Metric{
	{Definition: metric.Definition{Name: "flush_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWork, Headline: true, How: "Time of one flush of a `store`, a change of one resource: from when it is handed over until programs find it and the store is ready for the next. Mean of all that began in the window."},
		value: perFlush(storebench.FlushSeconds)},
	flushTime(0.5, "p50"),
	flushTime(0.99, "p99"),
	{Definition: metric.Definition{Name: "records_per_flush", Unit: "per flush", Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Needs: needWorkCount, How: "Records that a flush writes, as the design counts its own."}, value: perFlush(storebench.Records)},
	{Definition: metric.Definition{Name: "map_updates_per_flush", Unit: "per flush", Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWorkCount, How: "Elements of maps that a flush updates by system call."}, value: perFlush(storebench.Updates)},
	{Definition: metric.Definition{Name: "map_deletes_per_flush", Unit: "per flush", Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWorkCount, How: "Elements of maps that a flush deletes by system call."}, value: perFlush(storebench.Deletes)},
	{Definition: metric.Definition{Name: "syscalls_per_flush", Unit: "per flush", Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWorkCount, How: "System calls of a flush, also those that only read."}, value: perFlush(storebench.Syscalls)},
	{Definition: metric.Definition{Name: "grace_periods_per_flush", Unit: "per flush", Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWorkCount, How: "Waits for readers (RCU grace periods) in which a flush stands still."}, value: perFlush(storebench.GracePeriods)},
	{Definition: metric.Definition{Name: "bytes_per_flush", Unit: quantity.Bytes + " per flush", Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWorkCount, How: "Bytes, keys and values, that a flush hands to the kernel or stores into mapped memory."}, value: perFlush(storebench.WorkBytes)},
	{Definition: metric.Definition{Name: "lookup_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needSeen, Headline: true, How: "Time of one question for a service, asked by a program in the kernel (BPF_PROG_TEST_RUN) of a store that is not changed: mean over 1,000 runs with one service, and of such calls with services by chance the mean of the middle half. What it takes to run the program and to read the question is in it, alike for all designs."},
		value: worked(storebench.LookupMiddle)},
	{Definition: metric.Definition{Name: "lookup_first_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needSeen, How: "Time of the first such question for a service, by chance, after many for others: what the processor has forgotten of the store is in it, and what one call of the kernel's takes by itself, alike for all designs. Mean of the middle half."},
		value: worked(storebench.LookupFirst)},
	{Definition: metric.Definition{Name: "store_open_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needSeen, How: "Time to open a `store`, empty. `start_seconds` has this too, with the start of the process and what comes next."}, value: worked(storebench.OpenSeconds)},
	{Definition: metric.Definition{Name: "store_fill_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needSeen, How: "Time to put all `services` into the empty store, as one change. Left out where there are none."}, value: func(m *measurement) (float64, bool) {
		v, ok := worked(storebench.FillSeconds)(m)
		return v, ok && v > 0
	}},
}

// worked is a count of a subject that works by itself.
func worked(name string) func(*measurement) (float64, bool) {
	return func(m *measurement) (float64, bool) {
		if m.work == nil {
			return 0, false
		}
		v, ok := m.work.Counts[name]
		return v, ok
	}
}

func perFlush(name string) func(*measurement) (float64, bool) {
	return per(worked(name), worked(storebench.Flushes))
}

func flushTime(q float64, quantile string) Metric {
	return Metric{
		Definition: metric.Definition{
			Name: "flush_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Merged, Better: metric.Lower, Needs: needWork,
			How: fmt.Sprintf("The same: %s quantile of all flushes of the trial. Left out when fewer than %g lie beyond it.", quantile, stats.MinBeyond(q)),
		},
		value: func(m *measurement) (float64, bool) {
			if m.work == nil {
				return 0, false
			}
			h, err := m.work.Histogram(storebench.FlushTime)
			if err != nil || h == nil {
				return 0, false
			}
			ns, ok := stats.Quantile(h, q)
			return ns / 1e9, ok
		},
	}
}
