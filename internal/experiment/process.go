package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"tare/internal/fault"
	"tare/internal/placement"
	"tare/internal/role"
)

const (
	readyTimeout = 30 * time.Second // from a process's start to its ready message; loading programs takes seconds on an emulated machine
	stopTimeout  = 3 * time.Second  // from the end of its input to its exit
)

// process is one application, load or subject of a trial, which speaks the role protocol. One goroutine reads what it says and then
// waits for it; stop waits for that goroutine.
type process struct {
	name     string
	cmd      *exec.Cmd
	conn     *role.Conn
	stdin    io.Closer
	stderr   role.Tail
	ready    chan json.RawMessage
	result   chan json.RawMessage
	logs     chan string   // its latest lines of log
	finished chan struct{} // closed when its result has come
	ended    chan struct{} // closed when it has exited, and why is set
	why      error         // what it said went wrong, or how it exited
	onEnd    func(error)   // called when it ends without a result
}

// launch starts argv inside the group.
func launch(name string, g *placement.Group, argv []string, onEnd func(error)) (*process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the run, which ends its processes in order
	p := &process{name: name, cmd: cmd, onEnd: onEnd, ready: make(chan json.RawMessage, 1), result: make(chan json.RawMessage, 1), logs: make(chan string, 16), finished: make(chan struct{}), ended: make(chan struct{})}
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
	if err := g.Start(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p.stdin, p.conn = stdin, role.NewConn(stdout, stdin)
	go p.listen()
	return p, nil
}

// listen takes the process's messages until its output ends, and then its exit.
func (p *process) listen() {
	var said error
	finished := false
	for {
		m, err := p.conn.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) && said == nil {
				said = err
			}
			break
		}
		switch m.Event {
		case role.Ready:
			offer(p.ready, m.Data)
		case role.Result:
			if !finished {
				close(p.finished)
			}
			finished = true
			offer(p.result, m.Data)
		case role.Error:
			var d role.ErrorData
			if json.Unmarshal(m.Data, &d) == nil {
				said = &fault.Error{Code: max(d.Code, fault.Internal), What: d.Error, Where: d.Where, Mend: d.Mend}
			}
		case role.Log:
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

// wait gives the data of the next message on c, decoded into v.
func (p *process) wait(ctx context.Context, c chan json.RawMessage, what string, timeout time.Duration, v any) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case data := <-c:
		return p.decode(data, what, v)
	case <-p.ended:
		select {
		case data := <-c: // it said it and left
			return p.decode(data, what, v)
		default:
			return p.failure("before its " + what)
		}
	case <-timer.C:
		return p.withLastWords(fmt.Errorf("%s gave no %s within %v", p.name, what, timeout))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *process) decode(data json.RawMessage, what string, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decoding the %s of %s: %w", what, p.name, err)
	}
	return nil
}

// failure is why the process ended, after it has. when reads on after "ended".
func (p *process) failure(when string) error {
	return p.withLastWords(fmt.Errorf("%s ended %s: %w", p.name, when, p.why))
}

func (p *process) withLastWords(err error) error {
	if text := p.stderr.Text(); text != "" {
		return fmt.Errorf("%w; its last words: %s", err, text)
	}
	return err
}

// stop ends the process: politely, then not. It returns when it is gone.
func (p *process) stop() {
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

func (p *process) kill() { _ = p.cmd.Process.Kill() } // it may be gone already
