package role

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

const (
	// ReadyTimeout is from a process's start to its ready message; loading programs takes seconds on an emulated machine.
	ReadyTimeout = 30 * time.Second
	stopTimeout  = 3 * time.Second // from the end of its input to its exit
)

// Child is a process that speaks the protocol, as the one that started it sees it.
type Child struct {
	child.Process
	conn     *Conn
	stdin    io.Closer
	stdout   io.Closer
	ready    chan json.RawMessage
	result   chan json.RawMessage
	logs     chan string   // its latest lines of log
	finished chan struct{} // closed when its result has come
	heard    chan struct{} // closed when its messages have ended, and fault is set
	fault    error         // what it said went wrong, or what was wrong with its messages
}

// Launch starts argv by begin, which starts the command where it belongs. onEnd is called when it ends by itself
// without having given its result. Stop it in the end, whatever happened.
func Launch(name string, argv []string, begin func(*exec.Cmd) error, onEnd func(error)) (*Child, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Child{conn: NewConn(stdout, stdin), stdin: stdin, stdout: stdout,
		ready: make(chan json.RawMessage, 1), result: make(chan json.RawMessage, 1), logs: make(chan string, 16),
		finished: make(chan struct{}), heard: make(chan struct{})}
	err = child.Start(&p.Process, cmd, child.Options{
		Name: name, Begin: begin, Grace: stopTimeout, Linger: stopTimeout,
		Ending: func(bool) { p.End() }, Exited: p.exited,
		OnEnd: func() {
			select {
			case <-p.finished:
			default:
				onEnd(p.Failure("during the trial"))
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go p.listen()
	return p, nil
}

// exited waits for the last messages, but not for long: what the process has started may hold its output open, as a
// container does whose shim was killed.
func (p *Child) exited() error {
	timer := time.AfterFunc(stopTimeout, func() { _ = p.stdout.Close() }) // listen takes that as its end
	defer timer.Stop()
	<-p.heard
	return p.fault
}

// listen takes the process's messages until its output ends.
func (p *Child) listen() {
	defer close(p.heard)
	finished := false
	for {
		m, err := p.conn.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) && p.fault == nil {
				p.fault = err
			}
			break
		}
		switch m.Event {
		case Ready:
			offer(p.ready, m.Data)
		case Result:
			if !finished {
				close(p.finished)
			}
			finished = true
			offer(p.result, m.Data)
		case Error:
			var d ErrorData
			if json.Unmarshal(m.Data, &d) == nil {
				p.fault = &fault.Error{Code: max(d.Code, fault.Internal), What: d.Error, Where: d.Where, Hint: d.Hint}
			}
		case Log:
			var text string
			if json.Unmarshal(m.Data, &text) == nil {
				p.Note(text)
				offer(p.logs, text)
			}
		}
	}
	if p.fault != nil {
		_ = p.Signal(os.Kill) // it may not know that it has failed, where its messages made no sense
	}
}

// offer drops what nobody has taken: a process that repeats itself must not block its reader.
func offer[T any](c chan T, data T) {
	select {
	case c <- data:
	default:
	}
}

// Send sends it a message.
func (p *Child) Send(event string, data any) error { return p.conn.Send(event, data) }

// End closes its input, which asks it to end.
func (p *Child) End() { _ = p.stdin.Close() } // it may be gone already

// Stop ends the process and waits for it.
func (p *Child) Stop() { p.Process.Stop() }

// Result waits for its result, and decodes it into v.
func (p *Child) Result(ctx context.Context, timeout time.Duration, v any) error {
	return p.wait(ctx, p.result, "result", timeout, v)
}

// Ready waits for its ready message.
func (p *Child) Ready(ctx context.Context) (json.RawMessage, error) {
	return p.ReadyWithin(ctx, ReadyTimeout)
}

// ReadyWithin is Ready with another timeout.
func (p *Child) ReadyWithin(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	var raw json.RawMessage
	err := p.wait(ctx, p.ready, "ready message", timeout, &raw)
	return raw, err
}

// Log is its latest lines.
func (p *Child) Log() <-chan string { return p.logs }

// Finished is closed when its result has come.
func (p *Child) Finished() <-chan struct{} { return p.finished }

// wait gives the data of the next message on c, decoded into v.
func (p *Child) wait(ctx context.Context, c chan json.RawMessage, what string, timeout time.Duration, v any) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case data := <-c:
		return p.Decode(data, what, v)
	case <-p.Ended():
		select {
		case data := <-c: // it said it and left
			return p.Decode(data, what, v)
		default:
			return p.Failure("before its " + what)
		}
	case <-timer.C:
		err := fmt.Errorf("%s gave no %s within %v", p.Name(), what, timeout)
		if doing := (proc.FS{}).Doing(p.PID()); doing != "" {
			err = fmt.Errorf("%w: %s", err, doing)
		}
		err = p.WithLastWords(err)
		p.Quit() // it is of no use any more, and may say where it hangs
		if at := stacks(p.Tail()); at != "" {
			err = fmt.Errorf("%w; its goroutines: %s", err, at)
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stacks puts what a Go program wrote at SIGQUIT on one line: of each goroutine what it waits for, and the innermost of
// our functions that it is in.
func stacks(text string) string {
	const most = 12 // goroutines
	var all []string
	for _, m := range goroutine.FindAllStringSubmatch(text, most) {
		where := ours.FindString(m[2])
		all = append(all, strings.TrimSpace(m[1]+" "+where))
	}
	return strings.Join(all, ", ")
}

var (
	goroutine = regexp.MustCompile(`(?m)^goroutine \d+(?: gp=\S+ m=\S+)?(?: mp=\S+)? (\[[^\]\n]*\]):\n((?:.+\n?)*)`)
	ours      = regexp.MustCompile(`(?m)^tare/[\w./*()\[\]]*`)
)

// Decode decodes the data of a message that it sent; what names the message.
func (p *Child) Decode(data json.RawMessage, what string, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decoding the %s of %s: %w", what, p.Name(), err)
	}
	return nil
}
