package cluster

import (
	"fmt"
	"time"
)

// ping and pong are a question for the time, and the answer. Times are CLOCK_MONOTONIC in nanoseconds, each of the
// machine that took it.
type ping struct {
	Number uint64 `json:"number"`
	Sent   int64  `json:"sent_ns"`
}

type pong struct {
	Ping     ping  `json:"ping"`
	Received int64 `json:"received_ns"`
	Sent     int64 `json:"sent_ns"`
}

// reading is one pong with the time at which it came, by the clock of who had asked.
type reading struct {
	pong
	got int64
}

// farthest is how far from 0 a clock of this kind can be, in ns: 73 years. Sums of such times do not overflow.
const farthest = 1 << 61

// check says whether the reading can be true: the answer took some time, and less than both ways with it. Clocks of two
// machines differ in speed by a thousandth at most.
func (r reading) check() error {
	for _, t := range []int64{r.Received, r.Sent} {
		if t < -farthest || t > farthest {
			return fmt.Errorf("its clock shows %d ns, which no machine has been up for", t)
		}
	}
	answering, elapsed := r.Sent-r.Received, r.got-r.Ping.Sent
	if answering < 0 || answering > elapsed+elapsed/1000+1000 {
		return fmt.Errorf("it says that it took %v to answer, and the answer came after %v", time.Duration(answering),
			time.Duration(elapsed))
	}
	return nil
}

// roundTrip is the time that both ways took together, without what the other side took to answer.
func (r reading) roundTrip() int64 { return (r.got - r.Ping.Sent) - (r.Sent - r.Received) }

// Offset is how far a node's clock is ahead of the coordinator's.
type Offset struct {
	Ahead time.Duration
	// the true value is no further from Ahead than this: half of the round trip, were one way to take all of it
	Error time.Duration
}

// offset is that of RFC 5905, section 8: exact where both ways take as long.
func (r reading) offset() Offset {
	return Offset{Ahead: time.Duration(((r.Received - r.Ping.Sent) + (r.Sent - r.got)) / 2),
		Error: time.Duration(max(r.roundTrip()+1, 0) / 2)}
}

// best is the offset by the reading with the least round trip, which has waited the least in queues and whose error is
// the smallest.
func best(readings []reading) Offset {
	least := readings[0]
	for _, r := range readings[1:] {
		if r.roundTrip() < least.roundTrip() {
			least = r
		}
	}
	return least.offset()
}
