package role

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

const (
	// ReadyTimeout is from a process's start to its ready message; loading programs takes seconds on an emulated machine.
	ReadyTimeout = 30 * time.Second
	stopTimeout  = 3 * time.Second // from the end of its input to its exit
)

// Child is a process that speaks the protocol, as the one that started it sees it. One goroutine reads what it says and
// then waits for it; Stop waits for that goroutine.
type Child struct {
	name     string
	cmd      *exec.Cmd
	conn     *Conn
	stdin    io.Closer
	stdout   io.Closer
	stderr   Tail
	ready    chan json.RawMessage
	result   chan json.RawMessage
	logs     chan string   // its latest lines of log
	finished chan struct{} // closed when its result has come
	ended    chan struct{} // closed when it has exited, and why is set
	why      error         // what it said went wrong, or how it exited
	onEnd    func(error)   // called when it ends without a result
}

// Launch starts argv by begin, which starts the command where it belongs. onEnd is called when it ends without having
// given its result. Stop it in the end, whatever happened.
func Launch(name string, argv []string, begin func(*exec.Cmd) error, onEnd func(error)) (*Child, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the run, which ends its processes in order
	p := &Child{name: name, cmd: cmd, onEnd: onEnd, ready: make(chan json.RawMessage, 1), result: make(chan json.RawMessage, 1), logs: make(chan string, 16), finished: make(chan struct{}), ended: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	cmd.Stderr = &p.stderr
	cmd.WaitDelay = stopTimeout // for a child of its own that holds standard error open
	if err := begin(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p.stdin, p.stdout, p.conn = stdin, stdout, NewConn(stdout, stdin)
	go p.listen()
	go p.watch()
	return p, nil
}

// watch ends the process's output a while after the process: what it has started may hold that open, as a container
// does whose shim was killed. It ends when the process has.
func (p *Child) watch() {
	if !awaitExit(p.cmd.Process.Pid) {
		return
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		_ = p.stdout.Close() // listen takes that as its end
	}
}

// awaitExit waits until a child of this process has ended, which nobody need have waited for; false where the kernel
// cannot tell (before Linux 5.3). It holds no thread.
func awaitExit(pid int) bool {
	fd, err := unix.PidfdOpen(pid, unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	c, err := f.SyscallConn()
	if err != nil {
		return false
	}
	return c.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	}) == nil
}

// listen takes the process's messages until its output ends, and then its exit.
func (p *Child) listen() {
	var said error
	finished := false
	for {
		m, err := p.conn.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) && said == nil {
				said = err
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
				said = &fault.Error{Code: max(d.Code, fault.Internal), What: d.Error, Where: d.Where, Mend: d.Mend}
			}
		case Log:
			var text string
			if json.Unmarshal(m.Data, &text) == nil {
				fmt.Fprintln(&p.stderr, text)
				offer(p.logs, text)
			}
		}
	}
	if said != nil {
		p.kill() // it may not know that it is done for, when it was its output that made no sense
	}
	exit := p.cmd.Wait()
	switch {
	case said != nil:
		p.why = said
	case exit != nil:
		p.why = exit
	default:
		p.why = errors.New("nobody told it to")
	}
	close(p.ended)
	if !finished {
		p.onEnd(p.failure("during the trial"))
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

// Result waits for its result, and decodes it into v.
func (p *Child) Result(ctx context.Context, timeout time.Duration, v any) error {
	return p.wait(ctx, p.result, "result", timeout, v)
}

// PID is that of the process.
func (p *Child) PID() int { return p.cmd.Process.Pid }

// Ready waits for its ready message.
func (p *Child) Ready(ctx context.Context) (json.RawMessage, error) {
	return p.ReadyWithin(ctx, ReadyTimeout)
}

// ReadyWithin is Ready of a process that may take so long.
func (p *Child) ReadyWithin(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	var raw json.RawMessage
	err := p.wait(ctx, p.ready, "ready message", timeout, &raw)
	return raw, err
}

// Log is its latest lines.
func (p *Child) Log() <-chan string { return p.logs }

// Signal sends it a signal.
func (p *Child) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Finished is closed when its result has come.
func (p *Child) Finished() <-chan struct{} { return p.finished }

// Ended is closed when it has exited.
func (p *Child) Ended() <-chan struct{} { return p.ended }

// Failure is why it ended, once it has. when reads on after "ended".
func (p *Child) Failure(when string) error { return p.failure(when) }

// wait gives the data of the next message on c, decoded into v.
func (p *Child) wait(ctx context.Context, c chan json.RawMessage, what string, timeout time.Duration, v any) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case data := <-c:
		return p.Decode(data, what, v)
	case <-p.ended:
		select {
		case data := <-c: // it said it and left
			return p.Decode(data, what, v)
		default:
			return p.failure("before its " + what)
		}
	case <-timer.C:
		err := fmt.Errorf("%s gave no %s within %v", p.name, what, timeout)
		if doing := (proc.FS{}).Doing(p.PID()); doing != "" {
			err = fmt.Errorf("%w: %s", err, doing)
		}
		return p.withLastWords(err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Decode decodes the data of a message that it sent; what names the message.
func (p *Child) Decode(data json.RawMessage, what string, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decoding the %s of %s: %w", what, p.name, err)
	}
	return nil
}

// failure is why the process ended, after it has. when reads on after "ended".
func (p *Child) failure(when string) error {
	return p.withLastWords(fmt.Errorf("%s ended %s: %w", p.name, when, p.why))
}

func (p *Child) withLastWords(err error) error {
	if text := p.stderr.Text(); text != "" {
		return fmt.Errorf("%w; its last words: %s", err, text)
	}
	return err
}

// Stop ends the process: politely, then not. It returns when it is gone.
func (p *Child) Stop() {
	_ = p.stdin.Close() // it may be gone already
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return
	case <-timer.C:
	}
	p.kill()
	<-p.ended
}

func (p *Child) kill() { _ = p.cmd.Process.Kill() } // it may be gone already
