package role

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Stalls is the data of a stalls message: the times in the measured window at which a CPU of the machine did not run
// the processes that wanted to run on it. Times are CLOCK_MONOTONIC in nanoseconds.
type Stalls struct {
	From  int64      `json:"from_ns"` // stalls were watched from this time
	To    int64      `json:"to_ns"`   // to this time
	Spans [][2]int64 `json:"spans_ns"`

	// Unknown says why stalls are not known; empty if they are.
	Unknown string `json:"unknown,omitempty"`
}

// Wants is the part of a ready message for the parent: whether the role asks for a stalls message, and its clock.
type Wants struct {
	Stalls bool `json:"stalls,omitempty"`

	// Clock is CLOCK_MONOTONIC of the process when it sent the message, in nanoseconds. It differs from the parent's in a
	// sandbox with its own kernel. 0: it is the parent's.
	Clock int64 `json:"clock_ns,omitempty"`

	ahead int64 // the parent's clock minus the process's, ns
}

// apart is the smallest difference between two readings, in ns, that shows that they are from different clocks. A
// message takes far less time, and the kernel of a sandbox boots later than the parent's kernel by more than this.
const apart = int64(time.Second)

// Heard compares the process's clock with the parent's. now is the time on the parent's clock at which the message
// arrived. The difference is known to within the time that the message took.
func (w *Wants) Heard(now int64) {
	if ahead := now - w.Clock; w.Clock != 0 && (ahead > apart || ahead < -apart) {
		w.ahead = ahead
	}
}

// Translate converts a schedule to the clock of the process.
func (w Wants) Translate(s Schedule) Schedule {
	s.Begin -= w.ahead
	return s
}

// WorkThenStalls is Work for a load that needs to know the machine's stalls: its ready message must contain Wants.
// When run has ended, finish completes the result with the stalls that the parent sends, or with nil if it sends none.
func WorkThenStalls[R any](ctx context.Context, conn *Conn, ready any,
	run func(context.Context, Schedule) (R, error), finish func(R, *Stalls) error) error {
	if err := conn.Send(Ready, ready); err != nil {
		return err
	}
	var s Schedule
	started := make(chan error, 1)
	go func() { started <- conn.Expect(Start, &s, nil) }() // ends when the parent closes the pipe
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
	if why := s.awake(); why != nil {
		err = why
	}
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

// told is a stalls message, or the error in reading it.
type told struct {
	stalls *Stalls
	err    error
}

// listen reads the parent's messages until the stream ends, and passes on the first stalls message.
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
		default: // only the first counts
		}
	}
}
