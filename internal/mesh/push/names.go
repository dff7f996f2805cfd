package push

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/lists"
)

// Generator is the name of the generator in the results of this load, and in those of a data plane that times changes
// (work "push").
const Generator = "push"

// The names of the load's histograms, each with one value per change.
const (
	// Sent is the time from when the control plane got the change until its response was about to be handed to the
	// transport.
	Sent   = "push_sent"
	Usable = "push_usable" // from the end of Sent until a new connection to each changed service shows it
	Whole  = "push"        // Sent and Usable together: from when the control plane got the change
	// Accepted is the time from when the change was sent to a cluster's API server until the server had accepted it.
	Accepted = "push_accepted"
	// Gap is the time from the last try that did not show the change to the try that did. Usable can be too long by up to
	// this time.
	Gap = "push_gap"
)

// The names of the load's counts of connections that it tried while a change was under way.
const (
	Tries   = "tries"
	Refused = "refused" // a part of Tries
	Wrong   = "wrong"   // a part of Tries: with a peer that is not an endpoint of the service
)

// The names of the data plane's histograms (work "push" of package kernelmesh). Each interval begins when the control
// plane is about to hand the response to its transport.
const (
	Received = "push_received" // until the complete response had arrived
	Decoded  = "push_decoded"  // until it was decoded and checked
	Visible  = "push_visible"  // until programs find all of it in the maps
	Acked    = "push_acked"    // until its acknowledgement was handed to the transport
)

// longest is the longest time that histograms record, in ns. Longer times count as longest.
const longest = int64(600e9)

// Times holds the histograms of a result that is being collected, by name.
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
