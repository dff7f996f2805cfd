package cluster

import "time"

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

// roundTrip is the time that both ways took together, without what the other side took to answer.
func (r reading) roundTrip() int64 { return (r.got - r.Ping.Sent) - (r.Sent - r.Received) }

// Offset is how far a node's clock is ahead of the coordinator's.
type Offset struct {
	Ahead time.Duration
	Error time.Duration // the true value is no further from Ahead than this: half of the round trip, were one way to take all of it
}

// offset is that of RFC 5905, section 8: exact where both ways take as long.
func (r reading) offset() Offset {
	return Offset{Ahead: time.Duration(((r.Received - r.Ping.Sent) + (r.Sent - r.got)) / 2), Error: time.Duration(max(r.roundTrip()+1, 0) / 2)}
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
