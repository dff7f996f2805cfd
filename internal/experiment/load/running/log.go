// Package running separates the requests of a load that a stall of the machine touched from the others. A stall is CPU
// time that the hypervisor took, or a neighbour's task that held a CPU. The undisturbed requests show the latency of
// the same system on a machine that never stalls.
//
// # Which requests a stall touches
//
// A stall delays the requests in flight and, through the queue that it leaves, later ones. Its effect lasts until the
// system is empty: the next request then finds the system as if nothing had happened, and all that follows is
// independent of all that came before (a regeneration point). A busy period is a maximal stretch in which at least one
// request was due or in flight. The history of a request begins with its busy period and ends with its answer. The
// request is disturbed if a stall overlaps that history. Its own latency plays no role: a slow request that no stall
// overlaps stays, and is a result.
//
// # Why weights
//
// Dropping the disturbed requests alone biases the rest: a long history is more likely to be hit. Every busy period
// that begins in quiet time is a race between its end and the next stall. That is right-censoring, and the
// Kaplan-Meier estimator gives the probability G(a) that no stall has come by age a, from those that were still busy
// at each age. An undisturbed request whose history has the length a gets the weight 1/G(a) (inverse probability of
// censoring). The estimator asks only who was still busy when a stall came, so stalls that come more often while the
// machine is busy, as a hypervisor's do, are corrected for as well.
//
// Stalls must not depend on how long the busy period that they hit would have lasted. That is why nothing that the
// subject of a measurement does to the machine may be among them (interrupts off, softirq, its own tasks): it is a
// cost, and stays in.
package running

// Request is one request of a log: its times, in ns, and the other values that its histograms hold.
type Request struct {
	Intended int64   // CLOCK_MONOTONIC
	Sent     float32 // after Intended
	Done     float32 // when it ended, successfully or not; after Intended
	OwnLag   float32 // how late the generator itself was; negative: no schedule applies (closed loop)
	Connect  float32 // the handshake; negative: there was none
	failed   bool
}

func (r *Request) done() int64 { return r.Intended + int64(r.Done) }

// MostRequests is the largest number of requests in the log of a thread, and by convention in all logs of a load.
const MostRequests = 4 << 20

// Log keeps the requests of one thread of a load. It never grows: it appends to memory that was allocated beforehand.
// A nil Log keeps nothing.
type Log struct {
	requests []Request
	full     bool
}

// NewLog makes a log of at most n requests.
func NewLog(n int) *Log { return &Log{requests: make([]Request, 0, min(max(n, 0), MostRequests))} }

// Add appends a request that has ended, answered or not. Times are CLOCK_MONOTONIC in ns; ownLag and connect are
// lengths, negative if there is none. Requests that end before the measured window can be left out.
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
