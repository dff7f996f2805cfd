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

// How often what a command writes is read.
const (
	pause   = 5 * time.Millisecond  // between two looks until it is ready, and while it writes much
	calm    = 25 * time.Millisecond // between two looks at one that writes little
	much    = 128 << 10             // bytes in one look
	maxLine = 64 << 10              // of a line that is held against Ready.Line
)

// lingering is how long processes of a command may live on after it, where it ended by itself: its helpers that end
// because it has.
const lingering = 250 * time.Millisecond

// gone is how long killed processes are waited for. One in the middle of a large write takes seconds.
const gone = 20 * time.Second

// Running is a command under way. Its methods may be used concurrently. It has ended when all its processes have.
type Running struct {
	child.Process
	command Command

	out    child.Output // its lock guards what is read
	lines  [2][]byte    // the last line of standard output and standard error, as far as it has come
	output []byte       // the end of standard output, up to Command.Capture bytes and as many again
	cut    int64        // bytes of standard output before it
	saw    bool         // a line matched Ready.Line

	left []proc.Process // those that had to be killed after it had ended by itself; once it has ended

	endMu    sync.Mutex
	deadline time.Time      // until when it may take to end, after Stop
	hurry    bool           // Kill: those that it leaves behind get no time
	seen     []proc.Process // its processes before Stop or Kill: some may outlive their parents
}

// Start runs a command: begin starts it where it belongs. It gets no input and no terminal. onEnd is called once, when
// it ends by itself: with nil where that is what it is for (Finishes), else with the reason. Stop or Kill it in the
// end, whatever happened.
//
// The errors are of code fault.Usage where the command or its conditions are wrong: its program is no file that can be
// run, its address is taken by another process, or its file is there already. A program that is not installed is one of
// code fault.Machine.
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

// pause is the time to the next look at what the command writes.
func (r *Running) pause(n int) time.Duration {
	if (r.saw || r.command.Ready.Line == nil) && n <= much {
		return calm
	}
	return pause
}

// take keeps what a stream has brought.
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

// endLine holds a whole line against the pattern.
func (r *Running) endLine(i int) {
	line := r.lines[i]
	if !r.saw && len(line) > 0 {
		r.saw = r.command.Ready.Line.Match(bytes.TrimSuffix(line[:min(len(line), maxLine)], []byte("\r")))
	}
	r.lines[i] = line[:0]
}

// settle waits until the processes that a command left behind have ended too, and kills those that do not.
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
			until = r.deadline // it was asked to end, and they with it
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

// others are the living processes of the command without the one that was started.
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

// ending notes how long the processes of the command have to end, and which they are.
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

// killAll kills processes, each only if it is still the one that was seen.
func (r *Running) killAll(ps []proc.Process) {
	if r.command.CgroupDir != "" && !slices.Contains(cgroup.Members([]string{r.command.CgroupDir}), os.Getpid()) {
		// One write for all, those just being started too (Linux 5.14, cgroup v2).
		if f, err := os.OpenFile(r.command.CgroupDir+"/cgroup.kill", os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString("1") // what is not killed is found again
			_ = f.Close()
		}
	}
	for _, p := range ps {
		kill(p)
	}
}

// kill kills a process if it is still the same.
func kill(p proc.Process) {
	_ = proc.Kill(p.PID, func() bool { // what is not killed is found again
		now, err := (proc.FS{}).Process(p.PID)
		return err == nil && now.Start == p.Start
	})
}

// Processes are the living processes of the command, the one that was started first: those of its control group where
// it has one, else those of its session and their descendants.
func (r *Running) Processes() []int {
	var pids []int
	for _, p := range r.processes() {
		if p.Alive() {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// Err waits for the end of the command and says how it ended: nil where it ended with status 0 and left no process
// behind. An *exec.ExitError in it has the status.
func (r *Running) Err() error {
	if err := r.Process.Err(); err != nil || len(r.left) == 0 {
		return err
	}
	return &daemonError{r.left}
}

// Output is the end of what the command has written to standard output, at most Command.Capture bytes, and how many
// bytes before it were dropped.
func (r *Running) Output() (text []byte, cut int64) {
	r.out.Lock()
	defer r.out.Unlock()
	text, cut = r.output, r.cut
	if over := len(text) - r.command.Capture; over > 0 {
		text, cut = text[over:], cut+int64(over)
	}
	return bytes.Clone(text), cut
}

// Failure waits for the end of the command and says why it ended. when reads on after "ended". It is of code
// fault.Usage, because a command line is the user's.
func (r *Running) Failure(when string) error {
	err := r.Err()
	after := "" // its start, where that is not long ago
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

// fault makes an error of code fault.Usage with the last words.
func (r *Running) fault(cause error, hint, format string, args ...any) error {
	return fault.Wrap(r.WithLastWords(cause), fault.Usage, r.command.Name(), hint, format, args...)
}

// daemonError is of a command that ended with status 0 and left processes behind.
type daemonError struct{ left []proc.Process }

func (e *daemonError) Error() string {
	return "it ended with status 0 and left " + describe(e.left) + " running, killed now"
}

// describe names processes, not too many of them.
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

// LastWords waits for the end of the command and gives what it wrote last, on one line: to standard error, or else to
// standard output.
func (r *Running) LastWords() string {
	<-r.Ended()
	return r.Process.LastWords()
}

// Words is what the command has written last so far, on one line, as LastWords is in the end.
func (r *Running) Words() string {
	r.out.Read()
	return r.Process.LastWords()
}

// Line is the command line as a shell would take it.
func (r *Running) Line() string { return r.command.Line() }

// Ready waits until the command is ready. Its error is of code fault.Usage where the command ended before, went into
// the background, waits for a terminal, or did not become ready in its time, and that of the context where that ends
// first.
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
