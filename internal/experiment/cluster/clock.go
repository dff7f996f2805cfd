package cluster

import (
	"fmt"
	"time"
)

// ping asks for the time, and pong is the answer. Times are CLOCK_MONOTONIC in nanoseconds, each by the machine that
// read it.
type ping struct {
	Number uint64 `json:"number"`
	Sent   int64  `json:"sent_ns"`
}

type pong struct {
	Ping     ping  `json:"ping"`
	Received int64 `json:"received_ns"`
	Sent     int64 `json:"sent_ns"`
}

// reading is a pong with the time of its arrival, by the clock of the side that asked.
type reading struct {
	pong
	got int64
}

// farthest is the largest plausible absolute value of a clock's time, in nanoseconds: 73 years. The sum of two such
// times does not overflow.
const farthest = 1 << 61

// check returns an error if the reading is implausible: the time to answer must not be negative, nor longer than the
// whole exchange. It allows for clocks whose speeds differ by up to a thousandth.
func (r reading) check() error {
	for _, t := range []int64{r.Received, r.Sent} {
		if t < -farthest || t > farthest {
			return fmt.Errorf("its clock shows %d ns, and no machine has been up for that long", t)
		}
	}
	answering, elapsed := r.Sent-r.Received, r.got-r.Ping.Sent
	if answering < 0 || answering > elapsed+elapsed/1000+1000 {
		return fmt.Errorf("it claims that it took %v to answer, and the answer came after %v", time.Duration(answering),
			time.Duration(elapsed))
	}
	return nil
}

// roundTrip returns the travel time of both messages, in ns, without the time that the other side took to answer.
func (r reading) roundTrip() int64 { return (r.got - r.Ping.Sent) - (r.Sent - r.Received) }

// Offset describes the difference between a node's clock and the coordinator's.
type Offset struct {
	Ahead time.Duration // the node's time minus the coordinator's
	// Error bounds the error of Ahead. It is half of the round trip, because one way may have taken all of that time.
	Error time.Duration
}

// offset computes the offset as in RFC 5905, section 8: it is exact if both ways take the same time.
func (r reading) offset() Offset {
	return Offset{Ahead: time.Duration(((r.Received - r.Ping.Sent) + (r.Sent - r.got)) / 2),
		Error: time.Duration(max(r.roundTrip()+1, 0) / 2)}
}

// best returns the offset from the reading with the shortest round trip, which waited the least in queues and has the
// smallest error bound.
func best(readings []reading) Offset {
	least := readings[0]
	for _, r := range readings[1:] {
		if r.roundTrip() < least.roundTrip() {
			least = r
		}
	}
	return least.offset()
}
