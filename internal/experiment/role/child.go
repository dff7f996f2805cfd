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
	// ReadyTimeout is the limit from a process's start to its ready message. Loading programs takes seconds on an
	// emulated machine.
	ReadyTimeout = 30 * time.Second
	stopTimeout  = 3 * time.Second // from the end of a process's input to its exit
)

// Child is the parent's view of a process that speaks the protocol.
type Child struct {
	child.Process
	Session
	stdin  io.Closer
	stdout io.Closer
}

// Launch starts the command argv with begin, which decides where it runs. onEnd is called if the process ends by
// itself before it has sent its result. The caller must stop the child.
func Launch(name string, argv []string, begin child.Starter, onEnd func(error)) (*Child, error) {
	input, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer input.Close() // the process has its own copy
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

// exited waits for the last messages, but not for long: descendants of the process, such as a container whose shim was
// killed, may hold its output open.
func (p *Child) exited() error {
	timer := time.AfterFunc(stopTimeout, func() { _ = p.stdout.Close() }) // this ends listen
	defer timer.Stop()
	<-p.heard
	_ = p.stdout.Close() // there is no other reader
	p.End()
	return p.fault
}

// hear receives the process's messages until its output ends.
func (p *Child) hear() {
	p.listen(p.Note)
	if p.fault != nil {
		_ = p.Signal(os.Kill) // a process that sends invalid messages may not know that it has failed
	}
}

// End closes the process's input, which asks the process to end.
func (p *Child) End() { _ = p.stdin.Close() } // it may be closed already

// Stop ends the process and waits for it.
func (p *Child) Stop() { p.Process.Stop() }

// hangs ends a process that sent no message in time, and adds to err a description of its state and its goroutines.
func (p *Child) hangs(err error) error {
	if doing := (proc.FS{}).Doing(p.PID()); doing != "" {
		err = fmt.Errorf("%w: %s", err, doing)
	}
	err = p.WithLastWords(err)
	p.Quit() // a Go program then prints its stacks
	if at := stacks(p.Tail()); at != "" {
		err = fmt.Errorf("%w; its goroutines: %s", err, at)
	}
	return err
}

// stacks summarizes on one line the output of a Go program on SIGQUIT: for each goroutine its wait reason, and the
// innermost function of this project on its stack.
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
