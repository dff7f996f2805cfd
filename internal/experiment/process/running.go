package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// How often the output of a command is read.
const (
	pause   = 5 * time.Millisecond  // between two reads until a line has matched Ready.Line, and while it writes much
	calm    = 25 * time.Millisecond // between two reads while it writes little
	much    = 128 << 10             // bytes in one read
	maxLine = 64 << 10              // bytes of a line that are matched with Ready.Line
)

// lingering limits the time that processes of a command may outlive it if it ended by itself. Helpers need some time to
// notice its end.
const lingering = 250 * time.Millisecond

// gone limits the wait for killed processes. A process in the middle of a large write takes seconds to end.
const gone = 20 * time.Second

// Running is a started command. Its methods may be used concurrently. It has ended when all its processes have.
type Running struct {
	child.Process
	command Command

	out    child.Output // the lock of out guards the four fields below
	lines  [2][]byte    // the current, incomplete line of standard output and of standard error
	output []byte       // the end of standard output, up to twice Command.Capture bytes
	cut    int64        // bytes of standard output that were dropped before those in output
	saw    bool         // a line matched Ready.Line

	left []proc.Process // processes that had to be killed after it ended by itself; set at its end

	endMu    sync.Mutex
	deadline time.Time      // when its processes must have ended, after Stop or Kill
	hurry    bool           // set by Kill: processes that it leaves behind get no time
	seen     []proc.Process // its processes before Stop or Kill: some may outlive their parents
}

// Start runs a command; begin starts its process in the right place. The command gets no input and no terminal. onEnd
// is called once if the command ends by itself: with nil if it succeeded and that is its purpose (Finishes), else with
// the reason. The caller must call Stop or Kill in the end.
//
// The errors have the code fault.Usage if the command or its conditions are wrong: the program is not executable, its
// address is taken by another process, or its ready-file exists already. A program that is not installed has the code
// fault.Machine.
func Start(c Command, begin child.Starter, onEnd func(error)) (*Running, error) {
	if err := c.beforehand(); err != nil {
		return nil, err
	}
	if err := c.Installed(); err != nil {
		return nil, err
	}
	r := &Running{command: c}
	r.out.Take, r.out.Pause = r.take, r.pause
	// A separate session has no terminal: a program that asks for one is refused, instead of being stopped for good.
	cmd := child.Command{Argv: c.Argv, Dir: c.Dir, Env: c.Env, Session: true}
	err := child.Start(&r.Process, cmd, child.Options{
		Name: c.Name(), Begin: begin, Output: &r.out, Stop: c.Stop, Grace: c.StopTime, Linger: lingering,
		Ending: r.ending, Exited: r.settle,
		OnEnd: func() {
			if r.Err() == nil && c.Finishes {
				onEnd(nil)
			} else {
				onEnd(r.Failure("by itself"))
			}
		},
	})
	if errors.Is(err, unix.ENOEXEC) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		err = fault.Wrap(err, fault.Usage, c.Name(), "a script needs a first line such as #!/bin/sh, with a program "+
			"that exists", "cannot be started")
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// pause returns the time until the next read of the output, after a read of n bytes.
func (r *Running) pause(n int) time.Duration {
	if (r.saw || r.command.Ready.Line == nil) && n <= much {
		return calm
	}
	return pause
}

// take keeps a piece of output stream i; nil means that the stream has ended.
func (r *Running) take(i int, piece []byte) {
	if i == 0 && r.command.Capture > 0 {
		r.output = append(r.output, piece...)
		if over := len(r.output) - r.command.Capture; over > r.command.Capture {
			r.output, r.cut = append(r.output[:0], r.output[over:]...), r.cut+int64(over)
		}
	}
	if r.command.Ready.Line == nil || r.saw {
		return
	}
	if piece == nil {
		r.endLine(i)
	}
	for {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			break
		}
		r.lines[i] = append(r.lines[i], piece[:end]...)
		r.endLine(i)
		piece = piece[end+1:]
	}
	if room := maxLine - len(r.lines[i]); room > 0 {
		r.lines[i] = append(r.lines[i], piece[:min(room, len(piece))]...)
	}
}

// endLine matches a whole line with the pattern.
func (r *Running) endLine(i int) {
	line := r.lines[i]
	if !r.saw && len(line) > 0 {
		r.saw = r.command.Ready.Line.Match(bytes.TrimSuffix(line[:min(len(line), maxLine)], []byte("\r")))
	}
	r.lines[i] = line[:0]
}

// settle waits until the processes that the command left behind have ended too, and kills those that do not end in
// time. It returns an error if they do not end even then.
func (r *Running) settle() error {
	var left []proc.Process
	until := time.Now().Add(lingering)
	for {
		left = r.others()
		if len(left) == 0 {
			return nil
		}
		r.endMu.Lock()
		hurry := r.hurry
		if r.deadline.After(until) {
			until = r.deadline // the command was asked to end, and so were its processes
		}
		r.endMu.Unlock()
		if hurry || !time.Now().Before(until) {
			break
		}
		time.Sleep(pause)
	}
	for deadline := time.Now().Add(gone); ; time.Sleep(pause) {
		rest := r.others()
		if len(rest) == 0 {
			if !r.Asked() {
				r.left = left
			}
			return nil
		}
		if time.Now().After(deadline) {
			return fault.New(fault.Machine, r.command.Name(), "see what state they are in (ps -o pid,stat,wchan)",
				"its processes %s do not end", describe(rest))
		}
		r.killAll(rest)
	}
}

// others returns the living processes of the command except the one that was started.
func (r *Running) others() []proc.Process {
	r.endMu.Lock()
	seen := r.seen
	r.endMu.Unlock()
	all := r.processes()
	for _, p := range seen {
		now, err := proc.FS{}.Process(p.PID)
		known := func(o proc.Process) bool { return o.PID == p.PID }
		if err == nil && now.Start == p.Start && !slices.ContainsFunc(all, known) {
			all = append(all, now)
		}
	}
	return slices.DeleteFunc(all, func(p proc.Process) bool { return p.PID == r.PID() || !p.Alive() })
}

// ending records when the processes of the command must have ended, and which processes there are.
func (r *Running) ending(kill bool) {
	r.endMu.Lock()
	r.deadline, r.hurry = time.Now().Add(r.command.StopTime), r.hurry || kill
	r.endMu.Unlock()
	if r.Exited() {
		return
	}
	ps := r.processes()
	r.endMu.Lock()
	defer r.endMu.Unlock()
	r.seen = append(r.seen, ps...)
}

// killAll kills everything in the command's control group, if it has one, and the given processes, except where another
// process has taken the pid.
func (r *Running) killAll(ps []proc.Process) {
	if r.command.CgroupDir != "" && !slices.Contains(cgroup.Members([]string{r.command.CgroupDir}), os.Getpid()) {
		// One write kills all, even those that are just being started (Linux 5.14, cgroup v2).
		if f, err := os.OpenFile(r.command.CgroupDir+"/cgroup.kill", os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString("1") // a process that survives is found again
			_ = f.Close()
		}
	}
	for _, p := range ps {
		kill(p)
	}
}

// kill kills a process, unless another process has taken the pid.
func kill(p proc.Process) {
	_ = proc.Kill(p.PID, func() bool { // a process that survives is found again
		now, err := (proc.FS{}).Process(p.PID)
		return err == nil && now.Start == p.Start
	})
}

// Processes returns the living processes of the command in order of pid: the one that was started, and those of the
// control group if the command has one, else those of its session and their descendants.
func (r *Running) Processes() []int {
	var pids []int
	for _, p := range r.processes() {
		if p.Alive() {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// Err waits for the end of the command. It returns nil if the command ended with status 0 and left no process behind.
// If the command ended with another status, errors.As finds an *exec.ExitError in the error.
func (r *Running) Err() error {
	if err := r.Process.Err(); err != nil || len(r.left) == 0 {
		return err
	}
	return &daemonError{r.left}
}

// Output returns the end of the command's standard output, at most Command.Capture bytes, and how many bytes before it
// were dropped.
func (r *Running) Output() (text []byte, cut int64) {
	r.out.Lock()
	defer r.out.Unlock()
	text, cut = r.output, r.cut
	if over := len(text) - r.command.Capture; over > 0 {
		text, cut = text[over:], cut+int64(over)
	}
	return bytes.Clone(text), cut
}

// Failure waits for the end of the command and returns why it ended. The argument follows the word "ended" in the
// message. The error has the code fault.Usage, because the user writes the command line.
func (r *Running) Failure(when string) error {
	err := r.Err()
	after := "" // how long after its start it ended, if that is short
	if d := r.Ran(); d < 10*time.Second {
		after = fmt.Sprintf(", %.1f s after its start", d.Seconds())
	}
	var daemon *daemonError
	switch {
	case errors.As(err, &daemon):
		return r.fault(daemon, "run it in the foreground: many programs have an option for it, such as "+
			"-f, --foreground, --nodaemon or -D, or 'daemon off'", "went into the background")
	case err != nil && terminal().MatchString(r.Tail()):
		return r.fault(err, "look for an option to run it without one, such as --no-tui, --batch or -T; "+
			"or give it one with 'script -qec ... /dev/null'", "needs a terminal, and has none here")
	case err == nil:
		return r.fault(errors.New("exit status 0"), "a command that is to be weighed must run until it is asked to end; "+
			"try it: "+r.command.Line(), "ended %s%s", when, after)
	}
	return r.fault(err, r.advice(), "ended %s%s", when, after)
}

// fault returns an error with the code fault.Usage and the last output.
func (r *Running) fault(cause error, hint, format string, args ...any) error {
	return fault.Wrap(r.WithLastWords(cause), fault.Usage, r.command.Name(), hint, format, args...)
}

// daemonError is the error of a command that ended with status 0 and left processes behind.
type daemonError struct{ left []proc.Process }

func (e *daemonError) Error() string {
	return "it ended with status 0 and left " + describe(e.left) + " running, killed now"
}

// describe names up to four processes.
func describe(ps []proc.Process) string {
	const most = 4
	var names []string
	for i, p := range ps {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(ps)-most))
			break
		}
		names = append(names, fmt.Sprintf("%s (process %d)", text.Plain(p.Comm), p.PID))
	}
	return strings.Join(names, ", ")
}

// LastWords waits for the end of the command and returns the end of its output on one line: of standard error, or else
// of standard output.
func (r *Running) LastWords() string {
	<-r.Ended()
	return r.Process.LastWords()
}

// Words returns the end of the command's output so far on one line, as LastWords does after the end of the command.
func (r *Running) Words() string {
	r.out.Read()
	return r.Process.LastWords()
}

// Line returns the command line, quoted for a shell.
func (r *Running) Line() string { return r.command.Line() }

// Ready waits until the command is ready. Its error has the code fault.Usage if the command ended before, went into
// the background, waits for a terminal, or was not ready in time. If ctx ends first, the error is its cause.
func (r *Running) Ready(ctx context.Context) error {
	timeout := r.command.ReadyTimeout
	if timeout <= 0 {
		timeout = readyTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout-r.Ran(), errNotReady)
	defer cancel()
	for _, c := range r.conditions() {
		if err := r.await(ctx, c, timeout); err != nil {
			return err
		}
	}
	return nil
}

var errNotReady = errors.New("it is not ready in its time")
