package push

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/lists"
)

// Generator is what results of this package, and of a data plane that works beside it, name as their generator.
const Generator = "push"

// The names of the load's histograms, one value for each change.
const (
	// from when the control plane got the change until its response was about to be handed to the transport
	Sent   = "push_sent"
	Usable = "push_usable" // from then until a new connection to each service that was changed shows it
	Whole  = "push"        // both: from when the control plane got the change until connections show it
	// of the last of these: from the try before, which did not show it yet, until it did. It is what Usable can be too
	// long by
	Gap = "push_gap"
)

// The names of the load's counts, all of connections that were tried while a change was under way.
const (
	Tries   = "tries"
	Refused = "refused" // of these
	Wrong   = "wrong"   // of these, that got what is no endpoint of their service
)

// The names of the data plane's histograms, all from when the response was about to be handed to the transport (work
// "push" of package kernelmesh).
const (
	Received = "push_received" // the whole response had come, as a message
	Decoded  = "push_decoded"  // it was read and checked
	Visible  = "push_visible"  // programs find all of it in the maps
	Acked    = "push_acked"    // its acknowledgement was handed to the transport
)

// longest is the longest time that is distinguished from longer ones, in ns.
const longest = int64(600e9)

// Times are the histograms of a result under way, by name.
type Times map[string]*hdrhistogram.Histogram

// NewTimes makes empty ones.
func NewTimes(names ...string) Times {
	return lists.Keyed(names,
		func(name string) (string, *hdrhistogram.Histogram) { return name, hdrhistogram.New(1, longest, 3) })
}

// Add adds a time, in ns. What is below 1 counts as 1.
func (t Times) Add(name string, ns int64) {
	_ = t[name].RecordValue(min(max(ns, 1), longest)) // within its bounds
}
