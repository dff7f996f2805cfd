package role

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"tare/internal/experiment/child"
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
	Session
	stdin  io.Closer
	stdout io.Closer
}

// Launch starts argv by begin, which starts the command where it belongs. onEnd is called when it ends by itself
// without having given its result. Stop it in the end, whatever happened.
func Launch(name string, argv []string, begin child.Starter, onEnd func(error)) (*Child, error) {
	input, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer input.Close() // the process has its own
	stdout, output, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer output.Close()
	p := &Child{Session: newSession(name, NewConn(stdout, stdin)), stdin: stdin, stdout: stdout}
	p.failure, p.silent = p.Failure, p.hangs
	cmd := child.Command{Argv: argv, Stdin: input, Stdout: output}
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
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p.ended = p.Ended()
	go p.hear()
	return p, nil
}

// exited waits for the last messages, but not for long: what the process has started may hold its output open, as a
// container does whose shim was killed.
func (p *Child) exited() error {
	timer := time.AfterFunc(stopTimeout, func() { _ = p.stdout.Close() }) // listen takes that as its end
	defer timer.Stop()
	<-p.heard
	_ = p.stdout.Close() // nobody reads on
	p.End()
	return p.fault
}

// hear takes the process's messages until its output ends.
func (p *Child) hear() {
	p.listen(p.Note)
	if p.fault != nil {
		_ = p.Signal(os.Kill) // it may not know that it has failed, where its messages made no sense
	}
}

// End closes its input, which asks it to end.
func (p *Child) End() { _ = p.stdin.Close() } // it may be gone already

// Stop ends the process and waits for it.
func (p *Child) Stop() { p.Process.Stop() }

// hangs says of a process that gave no message in time what it does instead.
func (p *Child) hangs(err error) error {
	if doing := (proc.FS{}).Doing(p.PID()); doing != "" {
		err = fmt.Errorf("%w: %s", err, doing)
	}
	err = p.WithLastWords(err)
	p.Quit() // it is of no use any more, and may say where it hangs
	if at := stacks(p.Tail()); at != "" {
		err = fmt.Errorf("%w; its goroutines: %s", err, at)
	}
	return err
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
