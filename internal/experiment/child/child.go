// Package child starts processes, watches them and ends them. Tare represents each process that it starts by a Process:
// Start starts it, Await waits until it is ready, Stop asks it to end and kills its process group if it does not, and
// Failure says how it ended, with its last output. Process.run shows the life of a process from top to bottom.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killPatience limits the wait for a process that was killed. One in uninterruptible sleep, for example because a
// network file system does not answer, may never end.
const killPatience = 20 * time.Second

// Options configure how a process is started, read and ended. Only Name is required.
type Options struct {
	Name string // the name of the process in messages

	// Begin starts the command in the right place. Without it, the process starts as usual, and dies with this process
	// unless Outlives is true.
	Begin    Starter
	Outlives bool

	// Output polls both streams. Without it, streams that the command does not direct elsewhere are read as output
	// arrives, and Log gets a copy.
	Output *Output
	Log    io.Writer

	Stop   syscall.Signal // Process.Stop sends it to the process group; 0: Process.Stop only calls Ending
	Grace  time.Duration  // how long Process.Stop then waits before it kills the group
	Linger time.Duration  // how long after the exit to read output, while other processes hold the streams open

	// Ending is called by Stop and Kill before they send a signal.
	Ending func(kill bool)
	// Exited is called after the process exits and before it is reaped, so its pid cannot have been reused yet. A
	// non-nil error replaces the exit status as the reason that the process ended.
	Exited func() error
	// OnEnd is called after the end of the process, unless Stop, Kill or Quit was called before.
	OnEnd func()
}

// Process is a child process that leads a process group. Start starts it, and Stop or Kill must end it, even after an
// error. Its methods may be used concurrently.
type Process struct {
	o     Options
	cmd   *exec.Cmd
	tails [2]Tail // ends of standard output and of standard error; without Options.Output the second has both
	begun time.Time
	done  time.Time // when it was reaped

	mu     sync.Mutex
	reaped bool // the process has been reaped, or is about to be: its pid may be reused

	asked chan struct{} // closed by Stop, Kill and Quit
	ask   sync.Once
	ended chan struct{} // closed after the end of the process and of its output, once the field why is set
	why   error

	patience time.Duration // killPatience, except in tests
	give     sync.Once
	stuck    chan struct{} // closed if Kill gave up, once the field state is set
	state    error         // says what the process was doing then
}

// Start starts a command as p. Stop may be called even if Start fails.
func Start(p *Process, c Command, o Options) error {
	cmd := c.cmd()
	p.o, p.cmd = o, cmd
	p.asked, p.ended, p.stuck = make(chan struct{}), make(chan struct{}), make(chan struct{})
	p.patience = killPatience
	if o.Output == nil {
		cmd.WaitDelay = o.Linger
		w := io.Writer(&p.tails[1])
		if o.Log != nil {
			w = io.MultiWriter(w, o.Log)
		}
		for _, stream := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
			if *stream == nil {
				*stream = w
			}
		}
	} else if err := o.Output.open(cmd, &p.tails); err != nil {
		close(p.ended)
		return fmt.Errorf("making a pipe for %s: %w", o.Name, err)
	}
	started := make(chan error)
	go p.run(started)
	return <-started
}

// run starts the process, waits until it has exited and its output has been read, and closes p.ended.
func (p *Process) run(started chan<- error) {
	begin := p.o.Begin
	switch {
	case begin != nil:
	case p.o.Outlives:
		begin = outliving
	default:
		// A process gets its parent-death signal when the thread that started it ends (PR_SET_PDEATHSIG(2const)).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
		begin = (*exec.Cmd).Start
	}
	p.begun = time.Now()
	err := begin(p.cmd)
	if p.o.Output != nil {
		p.o.Output.begin(err == nil)
	}
	if err != nil {
		p.why = err
		close(p.ended)
		started <- err
		return
	}
	started <- nil
	Await(p.cmd.Process.Pid)
	if p.o.Exited != nil {
		p.why = p.o.Exited()
	}
	exit := p.reap()
	p.done = time.Now()
	if p.o.Output != nil {
		p.o.Output.end(p.o.Linger)
	}
	if p.why == nil && !errors.Is(exit, exec.ErrWaitDelay) {
		p.why = exit
	}
	close(p.ended)
	if p.o.OnEnd != nil && !p.Asked() {
		p.o.OnEnd()
	}
}

// Await waits until a child of this process has exited, without reaping it. It blocks no thread if the kernel has
// non-blocking pidfds (Linux 5.10).
func Await(pid int) {
	if fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer f.Close()
		c, err := f.SyscallConn()
		exited := func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		}
		if err == nil && c.Read(exited) == nil {
			return
		}
	}
	var info unix.Siginfo
	for errors.Is(unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}

// reap waits for a process that has exited. From then on, its pid, and so its group's number, may be reused.
func (p *Process) reap() error {
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	return p.cmd.Wait()
}

// PID returns the pid of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Name returns the name of the process in messages.
func (p *Process) Name() string { return p.o.Name }

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Exited asks the kernel whether the process has exited. The channel of Ended is closed a little later.
func (p *Process) Exited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return true
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && info.Signo != 0 // for a running process, info is not filled in
		}
	}
}

// Ended returns a channel that is closed when the process has exited and its output has been read.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Asked reports whether Stop, Kill or Quit was called.
func (p *Process) Asked() bool { return closed(p.asked) }

// Err waits for the end of the process and returns why it ended: nil for exit status 0, the error of Options.Exited,
// the error of a failed start, or an *exec.ExitError. If Kill gave up, the error says so.
func (p *Process) Err() error {
	select {
	case <-p.ended:
	case <-p.stuck:
		if !closed(p.ended) {
			return p.state
		}
	}
	return p.why
}

// Status returns how the process ended. The process must have ended.
func (p *Process) Status() syscall.WaitStatus {
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus) // the type is the same for every process on Linux
}

// Ran returns how long the process has run, until now or its end.
func (p *Process) Ran() time.Duration {
	if closed(p.ended) {
		return p.done.Sub(p.begun)
	}
	return time.Since(p.begun)
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Await calls ready, with pauses, until it returns true. If the process ends first, Await returns the error of
// Failure. If the context ends first, it returns the context's cause.
func (p *Process) Await(ctx context.Context, pause time.Duration, ready func() bool) error {
	for !ready() {
		select {
		case <-p.ended:
			return p.Failure("before it was ready")
		case <-ctx.Done():
			if closed(p.ended) && !p.Asked() { // OnEnd may have ended the context
				return p.Failure("before it was ready")
			}
			if ready() { // after a stall of the machine, the process may be ready although the context has ended
				return nil
			}
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
	return nil
}

// Stop asks the process group to end, waits for the process, and kills the group after Options.Grace. It reports
// whether it killed the group.
func (p *Process) Stop() (killed bool) {
	return p.end(p.o.Stop, false) && p.killAfterGrace()
}

// killAfterGrace waits for the process, and kills its group after Options.Grace. It reports whether it killed the
// group.
func (p *Process) killAfterGrace() (killed bool) {
	timer := time.NewTimer(p.o.Grace)
	defer timer.Stop()
	select {
	case <-p.ended:
		return false
	case <-timer.C:
	}
	p.Kill()
	return true
}

// Quit ends a hanging process with SIGQUIT, which makes a Go program print the stacks of its goroutines; Tail returns
// them. After Options.Grace it kills the group. No core file is written.
func (p *Process) Quit() {
	p.ask.Do(func() { close(p.asked) })
	p.mu.Lock()
	if !p.reaped {
		_ = unix.Prlimit(p.PID(), unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	}
	p.mu.Unlock()
	_ = p.Signal(unix.SIGQUIT) // it may have ended already
	p.killAfterGrace()
}

// Kill ends the process group at once and waits for the process. It gives up after 20 s; Err then names the process and
// its state.
func (p *Process) Kill() {
	if !p.end(unix.SIGKILL, true) {
		return
	}
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-p.stuck:
	case <-timer.C:
		p.give.Do(p.giveUp)
	}
}

func (p *Process) giveUp() {
	doing := "other processes hold its output open"
	if !p.Exited() {
		doing = Doing(p.PID())
	}
	p.state = fmt.Errorf("%s (process %d) has not ended %s after it was killed: %s", p.o.Name, p.PID(), p.patience, doing)
	close(p.stuck)
}

// end sends a signal to the process group. It returns false if there is nothing to end.
func (p *Process) end(s syscall.Signal, kill bool) bool {
	if p.ended == nil { // never started
		return false
	}
	p.ask.Do(func() { close(p.asked) })
	if closed(p.ended) {
		return false
	}
	if p.o.Ending != nil {
		p.o.Ending(kill)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped && s != 0 {
		_ = unix.Kill(-p.PID(), s) // it may have ended already
	}
	return true
}

// Failure waits for the end of the process and returns how it ended, with its last output. The argument follows the
// word "ended" in the message: "before it was ready".
func (p *Process) Failure(when string) error {
	err := p.Err()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return p.WithLastWords(fmt.Errorf("%s ended %s: %w", p.o.Name, when, err))
}

// WithLastWords adds the last output of the process to an error.
func (p *Process) WithLastWords(err error) error {
	if words := p.LastWords(); words != "" {
		return fmt.Errorf("%w; its last words: %s", err, words)
	}
	return err
}

// LastWords returns the end of the process's output on one line: of standard error, or else of standard output.
func (p *Process) LastWords() string {
	for _, i := range []int{1, 0} {
		if words := lastLines(p.tails[i].Text()); words != "" {
			return words
		}
	}
	return ""
}

// Note adds a line to the recorded standard error, for a process that reports such lines by other means.
func (p *Process) Note(line string) { fmt.Fprintln(&p.tails[1], line) }

// Tail returns the end of the process's standard error, and then the end of its standard output.
func (p *Process) Tail() string {
	return strings.TrimSpace(p.tails[1].Text() + "\n" + p.tails[0].Text())
}
