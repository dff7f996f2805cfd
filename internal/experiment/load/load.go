// Package load defines the result that every load generator reports. The generators are guests (package kind), and
// most of them run as separate processes.
package load

import (
	"encoding/json"
	"math"
)

// The modes of a generator.
const (
	Open   = "open"   // starts requests by an absolute schedule
	Closed = "closed" // starts requests as fast as answers come

	// Outside is the mode of a program that reports nothing for the window alone: it is measured from outside, and all
	// counts and times of requests in its Result are meaningless.
	Outside = "outside"
)

// The names of histograms.
const (
	Latency = "latency" // intended -> done
	Service = "service" // sent -> done
	Connect = "connect" // the handshake, if there is one
	Lag     = "lag"     // intended -> sent: how late the request was, whatever the cause
	OwnLag  = "own_lag" // the generator's share of lag: from when the start was due and a connection was free
)

// Slices is the number of equal parts of a window. It is even, because the halves are compared.
const Slices = 20

// Slice is one part of a window.
type Slice struct {
	Done int64   `json:"done"`                // requests answered without error
	P50  float64 `json:"latency_p50_seconds"` // median latency of these requests, to 1 %; 0 if there are none
}

// Result holds the measurements of a load generator between the two edges of its schedule (role.Schedule). Requests
// count by their intended start: one that was intended inside the window counts, whenever it ended. Finished and Rate
// count by the end of requests instead, because the CPU time of the window was spent on those.
type Result struct {
	Generator string `json:"generator"` // http, exec, ...
	Mode      string `json:"mode"`      // open (absolute schedule), closed (as fast as answers come) or outside
	Arrivals  string `json:"arrivals"`  // constant or poisson; empty when closed

	Seconds        float64 `json:"seconds"`         // length of the measured window
	TargetRate     float64 `json:"target_rate"`     // per second; 0 when closed
	Rate           float64 `json:"rate"`            // requests answered without error in the window, per second
	Intended       int64   `json:"intended"`        // requests in the schedule
	Sent           int64   `json:"sent"`            // requests of Intended that were started
	Done           int64   `json:"done"`            // requests of Sent that were answered without error, also in the drain
	Late           int64   `json:"late"`            // requests of Done that were answered after the window (in the drain)
	Unfinished     int64   `json:"unfinished"`      // sent, but neither done nor failed when the drain ended
	Connections    int     `json:"connections"`     // requested number of concurrent connections
	MaxConnections int     `json:"max_connections"` // the most that were open at once
	Opened         int64   `json:"opened"`          // connections made in the window

	// MeanConnections is the mean number of open connections over the part of the window in which the generator had
	// something to do; 0 if it does not report that. Servers may close kept connections that are idle for long.
	MeanConnections float64 `json:"mean_connections,omitempty"`

	// Finished counts the requests that were answered without error inside the window, whenever they were intended. It
	// is nil if the load does not count them, and in older records. Answers returns it.
	Finished *int64 `json:"finished,omitempty"`

	// Streams is the most requests that a connection carries at once; 0 means 1.
	Streams int `json:"streams,omitempty"`

	Errors map[string]int64 `json:"errors"` // by kind: connect, read, write, status-500, timeout, ...

	// Histograms are HDR histograms of nanoseconds, V2 compressed and base64 encoded, 3 significant digits, by the names
	// above. Empty histograms are left out. Read them with Histogram.
	Histograms map[string]string `json:"histograms"`

	// Slices divide the window into Slices equal parts, in order of time, by the intended start of requests. They show
	// whether the trial was steady. Empty if the generator does not report them.
	Slices []Slice `json:"slices,omitempty"`

	// Running describes the requests that the machine's stalls did not touch; nil if the generator received no stalls.
	Running *Running `json:"running,omitempty"`

	// Counts are counts of the work done, by name, from a generator that has them (such as a configuration store).
	Counts map[string]float64 `json:"counts,omitempty"`

	// Own holds results that only this generator reports, in a form that its package declares; nil if there are none.
	Own json.RawMessage `json:"own,omitempty"`

	CPUSeconds float64 `json:"cpu_seconds"` // CPU time of the generator's process in the window
	CPUs       float64 `json:"cpus"`        // CPUs that the generator could have used: its limit or affinity
}

// mostQueued limits how many requests of an open load may still wait when its window ends, as a fraction of Done. With
// more, Done cannot be used in place of Finished.
const mostQueued = 0.01

// Answers returns how many requests were answered without error inside the window. If Finished is nil, their number is
// Done, because as many requests are in flight when the window begins as when it ends. For an open load whose queue has
// grown by the end, the number is unknown.
func (r *Result) Answers() (n int64, known bool) {
	if r.Finished != nil {
		return *r.Finished, true
	}
	over := float64(r.Late + r.Unfinished + r.Intended - r.Sent) // requests that had not ended when the window did
	most := mostQueued * float64(r.Done)
	return r.Done, r.Mode == Closed || over <= most || over <= most+float64(r.UnderWay())
}

// AnswersKnown reports whether Answers is known for all loads.
func AnswersKnown(loads map[string]Result) bool {
	for _, r := range loads {
		if _, known := r.Answers(); !known {
			return false
		}
	}
	return true
}

// UnderWay returns how many requests may be in flight at once when nothing queues: twice the number that Little's law
// gives (the rate times the median time from sending to the answer), limited to MostAtOnce if the load has connections.
func (r *Result) UnderWay() int64 {
	h, err := r.Histogram(Service)
	if err != nil || h == nil || r.Seconds <= 0 {
		return 0
	}
	n := int64(math.Ceil(2 * float64(r.Intended) / r.Seconds * float64(h.ValueAtQuantile(50)) / 1e9))
	if most := r.MostAtOnce(); most > 0 {
		n = min(n, int64(most))
	}
	return n
}

// MostAtOnce returns how many requests can be in flight at once; 0 if the load has no connections.
func (r *Result) MostAtOnce() int { return r.Connections * max(r.Streams, 1) }
