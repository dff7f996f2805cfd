package role

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Stalls is the data of a stalls message: when the machine stood still in the measured window, for those who wanted to
// run on one of its CPUs. Times are CLOCK_MONOTONIC in nanoseconds.
type Stalls struct {
	From  int64      `json:"from_ns"` // stalls were watched for from here
	To    int64      `json:"to_ns"`   // to here
	Spans [][2]int64 `json:"spans_ns"`

	// Unknown says why nothing is known of stalls; empty where it is.
	Unknown string `json:"unknown,omitempty"`
}

// Wants is the part of a ready message that is for the parent: that it asks for a stalls message, and what its clock
// shows.
type Wants struct {
	Stalls bool `json:"stalls,omitempty"`

	// Clock is CLOCK_MONOTONIC of the process as it sent the message, in nanoseconds. In a sandbox with a kernel of its
	// own that is another clock than the parent's. 0: it has the parent's.
	Clock int64 `json:"clock_ns,omitempty"`

	ahead int64 // how far the parent's clock is ahead of it, ns
}

// apart is from when on two clocks are two. One message takes far less, and a kernel that boots takes longer.
const apart = int64(time.Second)

// Heard notes what the parent's clock showed when the message came. The process's clock is then known to within the
// time that the message took.
func (w *Wants) Heard(now int64) {
	if ahead := now - w.Clock; w.Clock != 0 && (ahead > apart || ahead < -apart) {
		w.ahead = ahead
	}
}

// Translate gives a schedule by the clock of the process.
func (w Wants) Translate(s Schedule) Schedule {
	s.Begin -= w.ahead
	return s
}

// WorkThenStalls is Work for a load that wants to know of the machine's stalls: its ready message must hold Wants.
// When run has ended, finish completes the result with the stalls that the parent sends; nil where the parent does not
// say them.
func WorkThenStalls[R any](ctx context.Context, conn *Conn, ready any,
	run func(context.Context, Schedule) (R, error), finish func(R, *Stalls) error) error {
	if err := conn.Send(Ready, ready); err != nil {
		return err
	}
	var s Schedule
	started := make(chan error, 1)
	go func() { started <- conn.Expect(Start, &s, nil) }() // ends with the parent's end of the pipe, or with the process
	select {
	case err := <-started:
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	told := make(chan told, 1)
	go func() { // ends when the parent closes its end of the pipe, which is awaited below
		defer close(ended)
		defer cancel()
		listen(conn, told)
	}()
	gone := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	r, err := run(ctx, s)
	if err == nil && finish != nil {
		var stalls *Stalls
		if s.Stalls {
			select {
			case t := <-told:
				stalls, err = t.stalls, t.err
			case <-ended:
				return nil
			}
		}
		if err == nil {
			err = finish(r, stalls)
		}
	}
	if err != nil {
		if gone() {
			return nil
		}
		return err
	}
	if err := conn.Send(Result, r); err != nil {
		return err
	}
	<-ended
	return nil
}

// told is a stalls message, or why it could not be read.
type told struct {
	stalls *Stalls
	err    error
}

// listen reads what the parent says until it goes, and passes on the first stalls message.
func listen(conn *Conn, to chan<- told) {
	for {
		m, err := conn.Receive()
		if err != nil {
			return
		}
		if m.Event != Halts {
			continue
		}
		t := told{stalls: &Stalls{}}
		if err := json.Unmarshal(m.Data, t.stalls); err != nil {
			t.err = fmt.Errorf("decoding %s message: %w", Halts, err)
		}
		select {
		case to <- t:
		default: // a second one says nothing new
		}
	}
}
