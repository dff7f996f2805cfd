package role

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"tare/internal/lib/fault"
)

// Session is the parent's side of the protocol over a pair of streams, which belong to a process (Child) or to a
// connection to a role elsewhere (Remote).
type Session struct {
	name     string
	conn     *Conn
	ready    chan json.RawMessage
	result   chan json.RawMessage
	logs     chan string   // log lines that nobody has received yet; while it is full, further lines are dropped
	dropped  atomic.Int64  // number of these
	finished chan struct{} // closed when the role's result has arrived
	heard    chan struct{} // closed after the role's last message; fault is set by then
	fault    error         // the error that the role reported, or an error in its messages

	ended   <-chan struct{}         // closed when the role has ended; failure then returns the reason
	failure func(when string) error // why the role ended; the error has the argument after the word "ended"
	silent  func(error) error       // adds details to the error of a role that sent no message in time
}

func newSession(name string, conn *Conn) Session {
	return Session{name: name, conn: conn, ready: make(chan json.RawMessage, 1), result: make(chan json.RawMessage, 1),
		logs: make(chan string, 16), finished: make(chan struct{}), heard: make(chan struct{})}
}

// listen receives the role's messages until its output ends. It passes each line of its log to note.
func (s *Session) listen(note func(string)) {
	defer close(s.heard)
	finished := false
	for {
		m, err := s.conn.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed) {
				s.fault = cmp.Or(s.fault, err)
			}
			return
		}
		switch m.Event {
		case Ready:
			offer(s.ready, m.Data)
		case Result:
			if !finished {
				close(s.finished)
			}
			finished = true
			offer(s.result, m.Data)
		case Error:
			var d ErrorData
			if json.Unmarshal(m.Data, &d) == nil {
				s.fault = &fault.Error{Code: max(d.Code, fault.Internal), What: d.Error, Where: d.Where, Hint: d.Hint}
				if d.Suspended {
					s.fault = suspended{s.fault}
				}
			}
		case Log:
			var text string
			if json.Unmarshal(m.Data, &text) == nil {
				note(text)
				if !offer(s.logs, text) {
					s.dropped.Add(1)
				}
			}
		}
	}
}

// offer sends data on c, or drops it and returns false if c is full: a process that repeats itself must not block its
// reader.
func offer[T any](c chan T, data T) bool {
	select {
	case c <- data:
		return true
	default:
		return false
	}
}

// Send sends a message to the role.
func (s *Session) Send(event string, data any) error { return s.conn.Send(event, data) }

// Result waits for the role's result, and decodes it into v.
func (s *Session) Result(ctx context.Context, timeout time.Duration, v any) error {
	return s.wait(ctx, s.result, "result", timeout, v)
}

// Ready waits for the role's ready message.
func (s *Session) Ready(ctx context.Context) (json.RawMessage, error) {
	return s.ReadyWithin(ctx, ReadyTimeout)
}

// ReadyWithin is Ready with another timeout.
func (s *Session) ReadyWithin(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	var raw json.RawMessage
	err := s.wait(ctx, s.ready, "ready message", timeout, &raw)
	return raw, err
}

// Log returns a channel of the role's log lines. While 16 lines wait to be received, further lines are dropped.
func (s *Session) Log() <-chan string { return s.logs }

// Dropped returns the number of log lines that were dropped.
func (s *Session) Dropped() int { return int(s.dropped.Load()) }

// Finished returns a channel that is closed when the role's result has arrived.
func (s *Session) Finished() <-chan struct{} { return s.finished }

// wait waits for the next message on c, and decodes its data into v.
func (s *Session) wait(ctx context.Context, c chan json.RawMessage, what string, timeout time.Duration, v any) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case data := <-c:
		return s.Decode(data, what, v)
	case <-s.ended:
		select {
		case data := <-c: // the message arrived before the end
			return s.Decode(data, what, v)
		default:
			return s.failure("before its " + what)
		}
	case <-timer.C:
		return s.silent(fmt.Errorf("%s gave no %s within %v", s.name, what, timeout))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Decode decodes the data of a message from the role into v. Errors name the message by the given text (what).
func (s *Session) Decode(data json.RawMessage, what string, v any) error {
	if err := CheckValues(data); err != nil {
		return fmt.Errorf("the %s of %s has %w", what, s.name, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decoding the %s of %s: %w", what, s.name, err)
	}
	return nil
}

// MaxValues is the largest number of JSON values in a message from a sandbox or another machine. The result of a load
// has some 100, the record of a node's trial some 2,000.
const MaxValues = 100_000

// CheckValues returns an error if JSON has more than MaxValues values, counted roughly. It must be called before the
// JSON is decoded, because two bytes of it can become hundreds in memory.
func CheckValues(text []byte) error {
	values := 0
	for _, c := range []byte{',', '[', '{'} {
		values += bytes.Count(text, []byte{c})
	}
	if values > MaxValues {
		return fmt.Errorf("more than %d values", MaxValues)
	}
	return nil
}

// Remote is the parent's view of a role that it reaches over a connection.
type Remote struct {
	Session
	stream io.Closer
	closed atomic.Bool
}

// Over starts a session with a role over conn. Close closes the underlying stream. onEnd is called if the connection
// ends without Close before the role has sent its result.
func Over(name string, conn *Conn, stream io.Closer, onEnd func(error)) *Remote {
	r := &Remote{Session: newSession(name, conn), stream: stream}
	r.ended = r.heard
	r.failure = func(when string) error {
		if r.fault != nil {
			return fmt.Errorf("%s ended %s: %w", name, when, r.fault)
		}
		return fmt.Errorf("%s ended %s", name, when)
	}
	r.silent = func(err error) error { return err }
	go func() {
		r.listen(func(string) {})
		select {
		case <-r.finished:
		default:
			if !r.closed.Load() {
				onEnd(r.failure("during the trial"))
			}
		}
	}()
	return r
}

// Close closes the connection, which asks the role to end.
func (r *Remote) Close() {
	r.closed.Store(true)
	_ = r.stream.Close() // it may be closed already
}
