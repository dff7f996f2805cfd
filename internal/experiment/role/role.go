// Package role defines how Tare communicates with the processes that it starts: applications, load generators and
// subjects, each a separate process in a separate cgroup ("nothing that is weighed runs inside the scale"). The binary
// starts itself again in such a role; any other program can take a role by implementing the protocol.
//
// The protocol is JSON lines. The child writes to standard output, the parent to the child's standard input:
//
//	child:  {"event":"ready","data":{...}}      set up; data has facts for other parts (an address, program ids)
//	parent: {"event":"start","data":{...}}      to loads, and subjects that work by themselves: when to run (Schedule)
//	parent: {"event":"stalls","data":{...}}     only to loads that ask for it when ready, after the window (Stalls)
//	child:  {"event":"result","data":{...}}     from loads, and subjects that work by themselves: all that was measured
//	child:  {"event":"error","data":{"error":"...","mend":"...","code":3}}
//	child:  {"event":"log","data":"..."}        anything worth a line in the record
//
// A load whose clock differs from the parent's sends its clock in its ready message, and gets its schedule by that
// clock (Wants).
//
// At the end of its standard input, the child stops, cleans up and exits. It also dies with its parent
// (PR_SET_PDEATHSIG); the processes that it forks do not inherit that.
package role

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// Message is one line of the protocol.
type Message struct {
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// The events of the protocol.
const (
	Ready  = "ready"
	Start  = "start"
	Halts  = "stalls"
	Result = "result"
	Error  = "error"
	Log    = "log"
)

// ErrorData is the data of an error message.
type ErrorData struct {
	Error string     `json:"error"`
	Where string     `json:"where,omitempty"`
	Hint  string     `json:"mend,omitempty"`
	Code  fault.Code `json:"code,omitempty"`

	Suspended bool `json:"suspended,omitempty"` // it is ErrSuspended
}

// suspended is an ErrSuspended that another process reported.
type suspended struct{ error }

func (suspended) Is(target error) bool { return target == ErrSuspended }

// Conn speaks the protocol over a pair of streams. Sends are safe for concurrent use; Receive is for one reader.
type Conn struct {
	mu  sync.Mutex
	enc *json.Encoder
	r   *bufio.Reader

	beforeReady func() error
}

// NewConn returns a Conn over r and w.
func NewConn(r io.Reader, w io.Writer) *Conn {
	return &Conn{enc: json.NewEncoder(w), r: bufio.NewReaderSize(r, 64<<10)}
}

// Stdio returns a Conn over standard input and output, for a child. It reads a pipe without blocking a thread in a
// system call for the next message, which may never come: if the runtime stops the process, as for garbage collection,
// while a thread is entering such a call, the stop may take minutes (see watched in package privilege).
func Stdio() *Conn {
	in := os.Stdin
	if info, err := in.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		// The pipe is opened again, because O_NONBLOCK on the inherited descriptor would affect every process that shares it.
		if f, err := os.OpenFile("/proc/self/fd/0", os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			in = f
		}
	}
	return NewConn(in, os.Stdout)
}

// BeforeReady sets a function to be called before a ready message is sent, when the process has set up all it needs.
// If f fails, the message is not sent.
func (c *Conn) BeforeReady(f func() error) { c.beforeReady = f }

// Send writes one message.
func (c *Conn) Send(event string, data any) error {
	if event == Ready && c.beforeReady != nil {
		if err := c.beforeReady(); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encoding %s message: %w", event, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.enc.Encode(Message{Event: event, Data: raw}); err != nil {
		return fmt.Errorf("sending %s message: %w", event, err)
	}
	return nil
}

// Fail sends err as an error message, with its exit code and hint.
func (c *Conn) Fail(err error) error {
	d := ErrorData{Error: err.Error(), Hint: fault.HintOf(err), Code: fault.CodeOf(err),
		Suspended: errors.Is(err, ErrSuspended)}
	var f *fault.Error
	if errors.As(err, &f) {
		d.Where = f.Where
		if f == err { //nolint:errorlint // only the outermost error repeats its place in its text
			d.Error = f.What
			if f.Err != nil {
				d.Error += ": " + f.Err.Error()
			}
		}
	}
	return c.Send(Error, d)
}

// maxMessage limits the bytes of a message, because the other side may be a sandbox, which is not trusted. The
// histograms of a load take about 100 KB.
const maxMessage = 32 << 20

// Receive reads the next message. It returns io.EOF when the other side has closed.
func (c *Conn) Receive() (Message, error) {
	var m Message
	var line []byte
	err := bufio.ErrBufferFull
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = c.r.ReadSlice('\n')
		if line = append(line, more...); len(line) > maxMessage {
			return m, fmt.Errorf("receiving a message: it has more than %d MiB", maxMessage>>20)
		}
	}
	if err != nil {
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return m, io.EOF
		}
		return m, fmt.Errorf("receiving a message: %w", err)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("receiving a message: %q is not of the role protocol: %w", clip(line), err)
	}
	return m, nil
}

// Expect reads until a message of the given event arrives. An error message becomes an error with its code; log lines
// go to log, which may be nil; any other event is an error.
func (c *Conn) Expect(event string, data any, log func(string)) error {
	for {
		m, err := c.Receive()
		if err != nil {
			return err
		}
		switch m.Event {
		case event:
			if data == nil {
				return nil
			}
			if err := json.Unmarshal(m.Data, data); err != nil {
				return fmt.Errorf("decoding %s message: %w", event, err)
			}
			return nil
		case Log:
			var s string
			if log != nil && json.Unmarshal(m.Data, &s) == nil {
				log(s)
			}
		case Error:
			var d ErrorData
			if err := json.Unmarshal(m.Data, &d); err != nil {
				return fmt.Errorf("decoding error message: %w", err)
			}
			return &fault.Error{Code: max(d.Code, fault.Internal), What: d.Error, Where: d.Where, Hint: d.Hint}
		default:
			return fmt.Errorf("waiting for %s: got %s", event, m.Event)
		}
	}
}

func clip(b []byte) string {
	if len(b) > 80 {
		return string(b[:80]) + "..."
	}
	return string(b)
}
