package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// node is the coordinator's view of an agent.
type node struct {
	hello Hello
	out   chan *message // messages for the agent, which serve sends
	said  chan *message // the agent's messages, except pongs
	times chan reading  // readings of its clock
	heard atomic.Int64  // when it last sent anything, ns by pace.Now
	pings atomic.Uint64

	askedMu sync.Mutex
	asked   map[uint64]int64 // when unanswered pings were sent, by number

	hangUp func() // closes its connection
	once   sync.Once
	gone   chan struct{} // closed when it is gone; the field why is set before that
	why    error
}

// Capacities of the queues of received messages. An agent sends two messages in each trial, one of them large, so an
// agent that overflows the queue is broken. Pongs pile up when the network is slow.
const (
	roomForWords = 3
	roomForTimes = 16
)

func newNode() *node {
	n := &node{
		out: make(chan *message, 4), said: make(chan *message, roomForWords), times: make(chan reading, roomForTimes),
		gone: make(chan struct{}), asked: map[uint64]int64{},
	}
	n.heard.Store(pace.Now())
	return n
}

// end marks the node as gone. Only the first reason counts.
func (n *node) end(why error) {
	n.once.Do(func() {
		n.why = why
		close(n.gone)
	})
}

func (n *node) isGone() bool {
	select {
	case <-n.gone:
		return true
	default:
		return false
	}
}

// send queues m for the stream's writer, unless the node is gone.
func (n *node) send(m *message) {
	select {
	case n.out <- m:
	case <-n.gone:
	}
}

// leave tells the node that the run is over.
func (n *node) leave() {
	select {
	case n.out <- &message{Bye: &bye{}}:
	default:
		n.end(errors.New("the run is over")) // its writer is stuck
	}
}

// read receives the agent's messages until the stream ends.
func (n *node) read(stream grpc.ServerStream) {
	for {
		m := new(message)
		err := stream.RecvMsg(m)
		got := pace.Now()
		switch {
		case errors.Is(err, io.EOF):
			n.end(errors.New("it closed the connection"))
			return
		case status.Code(err) == codes.Canceled:
			n.end(errors.New("its connection broke")) // usually because the process has ended
			return
		case err != nil:
			n.end(fmt.Errorf("its message cannot be read: %s", text.ClipLine(words(err).Error(), maxWords)))
			return
		}
		if m.Pong != nil {
			r, err := n.answered(*m.Pong, got)
			if err != nil {
				n.end(err)
				return
			}
			n.heard.Store(got)
			select {
			case n.times <- r:
			default: // nobody is waiting for the time
			}
			continue
		}
		n.heard.Store(got)
		select {
		case n.said <- m:
		default:
			n.end(fmt.Errorf("it sent an unexpected message: %s", m.what()))
			return
		}
	}
}

// ask numbers a ping unless it has a number, sets its time to now, and remembers it until it is answered. If too many
// pings are unanswered, it forgets the oldest.
func (n *node) ask(p *ping) {
	n.askedMu.Lock()
	defer n.askedMu.Unlock()
	if p.Number == 0 {
		p.Number = n.pings.Add(1)
	}
	if len(n.asked) >= roomForTimes {
		delete(n.asked, slices.Min(slices.Collect(maps.Keys(n.asked))))
	}
	p.Sent = pace.Now()
	n.asked[p.Number] = p.Sent
}

// answered makes a reading from a pong, using the coordinator's own record of when it sent the ping.
func (n *node) answered(p pong, got int64) (reading, error) {
	n.askedMu.Lock()
	sent, ok := n.asked[p.Ping.Number]
	delete(n.asked, p.Ping.Number)
	n.askedMu.Unlock()
	if !ok {
		return reading{}, fmt.Errorf("it answered a question that was not asked, or twice: number %d", p.Ping.Number)
	}
	p.Ping.Sent = sent
	r := reading{p, got}
	return r, r.check()
}

// serve writes to the agent and checks that it is alive, until it is gone or the run is over. Silence is measured in
// unanswered pings, not in time: if the coordinator itself was delayed on a busy machine, it sent none in that time.
func (n *node) serve(stream grpc.ServerStream, c *Coordinator) error {
	tick := time.NewTicker(c.o.Heartbeat)
	defer tick.Stop()
	var heard int64
	asked, most := 0, max(int(c.o.Silence/c.o.Heartbeat), 2)
	for {
		var m *message
		select {
		case m = <-n.out:
		case <-tick.C:
			if last := n.heard.Load(); last != heard {
				heard, asked = last, 0
			}
			if pace.Now() < c.quiet.Load() {
				continue
			}
			if asked >= most {
				n.end(fmt.Errorf("it has said nothing for %v", time.Duration(pace.Now()-heard).Round(100*time.Millisecond)))
				continue
			}
			asked++
			m = &message{Ping: &ping{}}
		case <-n.gone:
			return status.Error(codes.Aborted, n.why.Error())
		}
		if m.Ping != nil {
			n.ask(m.Ping)
		}
		if err := n.write(stream, m, c.o.Send); err != nil {
			return err
		}
		if m.Bye != nil {
			n.end(errors.New("the run is over"))
			return nil
		}
	}
}

// write sends a message. A peer that reads nothing would block write forever, so write closes the connection after
// patience.
func (n *node) write(stream grpc.ServerStream, m *message, patience time.Duration) error {
	timer := time.AfterFunc(patience, func() {
		n.end(fmt.Errorf("it has not read its messages for %v", patience))
		n.hangUp()
	})
	defer timer.Stop()
	err := stream.SendMsg(m)
	if err != nil {
		n.end(fmt.Errorf("no message can be sent to it: %s", text.ClipLine(words(err).Error(), maxWords)))
	}
	return err
}

// askTime takes one reading of the agent's clock.
func (n *node) askTime(ctx context.Context, timeout time.Duration) (reading, error) {
	number := n.pings.Add(1)
	n.send(&message{Ping: &ping{Number: number}})
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case r := <-n.times:
			if r.Ping.Number == number {
				return r, nil
			}
		case <-n.gone:
			return reading{}, n.why
		case <-timer.C:
			return reading{}, fmt.Errorf("no answer within %v", timeout)
		case <-ctx.Done():
			return reading{}, context.Cause(ctx)
		}
	}
}
