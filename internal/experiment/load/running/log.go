// Package running tells the requests that a load made while the machine was running from those that a stall of the
// machine touched: CPU time that the hypervisor took, or a neighbour's task that held a CPU. What the load then shows
// is the latency of the same system on a machine that never stalls.
//
// # Which requests a stall touches
//
// A stall delays the requests in flight, and through the queue that it leaves those that come after. What it does
// lives on until the system is empty: the next request then finds it as if nothing had happened, and all that follows
// is independent of all that came before (a regeneration point). So the history of a request begins when the busy
// period it belongs to began, the longest stretch in which at least one request was due or in flight, and ends with
// its answer. It is disturbed if a stall overlaps that history. Its own latency plays no part: a slow request that no
// stall overlaps stays, and is a result.
//
// # Why weights
//
// Dropping the disturbed ones alone biases the rest: a long history has a greater chance to be hit. Every busy period
// that begins in quiet time runs a race between its end and the next stall. That is right-censoring, and the
// Kaplan-Meier estimator gives the probability G(a) that no stall has come by age a, from those that were still busy
// at each age. An undisturbed request whose history is a long gets the weight 1/G(a) (inverse probability of
// censoring). The estimator asks only who was still busy when a stall came, so stalls that come more often while the
// machine is busy, as a hypervisor's do, are corrected for as well.
//
// Stalls must not depend on how long the busy period that they hit would have lasted. That is why nothing that the
// subject of a measurement does to the machine may be among them (interrupts off, softirq, its own tasks): it is a
// cost, and stays in.
package running

// Request is one request of a log: its three clocks, in ns, and what else its histograms hold.
type Request struct {
	Intended int64   // CLOCK_MONOTONIC
	Sent     float32 // after Intended
	Done     float32 // after Intended; the end, however it ended
	OwnLag   float32 // of the generator; negative: the schedule is not its concern (closed loop)
	Connect  float32 // the handshake; negative: there was none
	failed   bool
}

func (r *Request) done() int64 { return r.Intended + int64(r.Done) }

// MostRequests bounds the log of a load.
const MostRequests = 4 << 20

// Log keeps the requests of one thread of a load. It never grows: appending is a store into memory that is there. The
// nil Log keeps nothing.
type Log struct {
	requests []Request
	full     bool
}

// NewLog makes a log of at most n requests.
func NewLog(n int) *Log { return &Log{requests: make([]Request, 0, min(max(n, 0), MostRequests))} }

// Add appends a request that was answered, or that ended otherwise. Times are CLOCK_MONOTONIC in ns; ownLag and
// connect are lengths, negative where there is none. Requests whose end lies before the measured window can be left
// out.
func (l *Log) Add(intended, sent, done, ownLag, connect int64, answered bool) {
	if l == nil {
		return
	}
	if len(l.requests) == cap(l.requests) {
		l.full = true
		return
	}
	l.requests = append(l.requests, Request{
		Intended: intended, Sent: float32(sent - intended), Done: float32(done - intended),
		OwnLag: float32(ownLag), Connect: float32(connect), failed: !answered,
	})
}
