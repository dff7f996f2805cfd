package push

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/lists"
)

// Generator is the generator in the results of this package, and of a data plane that times the load's changes.
const Generator = "push"

// The names of the load's histograms, with one value for each change.
const (
	// Sent is from when the control plane got the change until its response was about to be handed to the transport.
	Sent   = "push_sent"
	Usable = "push_usable" // from then until a new connection to each changed service shows it
	Whole  = "push"        // the sum: from when the control plane got the change until connections show it
	// Gap is from the last try that did not show the change until connections showed it. Usable can be too long by
	// this.
	Gap = "push_gap"
)

// The names of the load's counts, all of connections that were tried during a change.
const (
	Tries   = "tries"
	Refused = "refused" // of Tries
	Wrong   = "wrong"   // of Tries: with a peer that is not an endpoint of the service
)

// The names of the data plane's histograms, all from when the response was about to be handed to the transport (work
// "push" of package kernelmesh).
const (
	Received = "push_received" // until the complete response had arrived
	Decoded  = "push_decoded"  // until it was decoded and checked
	Visible  = "push_visible"  // until programs find all of it in the maps
	Acked    = "push_acked"    // until its acknowledgement was handed to the transport
)

// longest is the longest time that histograms distinguish, in ns.
const longest = int64(600e9)

// Times are the histograms of a result in progress, by name.
type Times map[string]*hdrhistogram.Histogram

// NewTimes makes empty histograms.
func NewTimes(names ...string) Times {
	return lists.Keyed(names,
		func(name string) (string, *hdrhistogram.Histogram) { return name, hdrhistogram.New(1, longest, 3) })
}

// Add adds a time in ns. A time below 1 counts as 1.
func (t Times) Add(name string, ns int64) {
	_ = t[name].RecordValue(min(max(ns, 1), longest)) // cannot fail: the value is within bounds
}
