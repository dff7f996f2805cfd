package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// How what a command writes is read. Nothing waits on the pipes: they are looked at every few milliseconds, so that
// neither does the command pay for waking a reader with every line, nor the machine for the reader's running.
const (
	pause     = 5 * time.Millisecond  // between two looks until it is ready, and while it writes much
	calm      = 25 * time.Millisecond // between two looks at one that writes little
	pipeBytes = 1 << 20               // what the kernel lets anybody have (/proc/sys/fs/pipe-max-size)
	readBytes = 64 << 10              // at once
	rounds    = 32                    // of reads of one pipe in one look
	maxLine   = 64 << 10              // of a line that is held against Ready.Line
)

// lingering is how long processes of a command may live on after it, where nobody told it to end: its helpers that end
// because it has.
const lingering = 250 * time.Millisecond

// gone is how long killed processes are waited for. One in the middle of a large write takes seconds.
const gone = 20 * time.Second

// Running is a command under way. Its methods may be used concurrently.
type Running struct {
	command Command
	cmd     *exec.Cmd
	group   *proc.Group
	begun   time.Time

	mu      sync.Mutex // guards all that is read from the pipes
	streams [2]stream  // standard output and standard error
	buf     []byte
	output  []byte // the end of standard output, up to Command.Capture bytes and as many again
	cut     int64  // bytes of standard output before it
	saw     bool   // a line matched Ready.Line
	busy    bool   // the last look found much

	told    chan struct{} // closed when it was told to end
	tell    sync.Once
	ended   chan struct{} // closed when all its processes have ended, what they wrote is read, and the next two are set
	why     error         // nil: it ended with status 0 and left nobody behind
	endedAt time.Time
	done    sync.WaitGroup

	endMu    sync.Mutex
	deadline time.Time      // until when it may take to end, after it was told to
	hurry    bool           // it was killed: those that it left behind get no time
	seen     []proc.Process // its processes when it was told to end: some may outlive their parents
}

// stream is one output of the process.
type stream struct {
	fd   int
	open bool
	tail role.Tail
	line []byte // the last line, as far as it has come
}

// Start runs a command: begin starts it where it belongs. It gets no input and no terminal. onEnd is called once, when
// it ends without having been told to: with nil where that is what it is for (Finishes), else with the reason. Stop or
// Kill it in the end, whatever happened.
//
// The errors are of code fault.Usage where the command or its conditions are wrong: its program is no file that can be
// run, its address is taken by another process, or its file is there already. A program that is not installed is one of
// code fault.Machine.
func Start(c Command, begin func(*exec.Cmd) error, onEnd func(error)) (*Running, error) {
	if err := c.beforehand(); err != nil {
		return nil, err
	}
	if err := c.Installed(); err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(cmd.Environ(), c.Env...)
	// A session of its own has no terminal: a program that asks for one is refused, instead of being stopped for good.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r := &Running{command: c, cmd: cmd, group: proc.NewGroup(cmd), buf: make([]byte, readBytes),
		told: make(chan struct{}), ended: make(chan struct{})}
	writers, err := r.openPipes()
	defer func() {
		for _, w := range writers {
			_ = w.Close() // the process has its own
		}
	}()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = writers[0], writers[1]
	r.begun = time.Now()
	if err := begin(cmd); err != nil {
		r.closePipes()
		if errors.Is(err, unix.ENOEXEC) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return nil, fault.Wrap(err, fault.Usage, c.Name(), "a script needs a first line such as #!/bin/sh, with a program "+
				"that exists", "cannot be started")
		}
		return nil, err
	}
	r.done.Go(r.look)
	go r.wait(onEnd)
	return r, nil
}

// openPipes makes the pipes and gives the ends for the process. Only our ends do not block.
func (r *Running) openPipes() (writers []*os.File, err error) {
	for i, name := range []string{"stdout", "stderr"} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			r.closePipes()
			return writers, fmt.Errorf("making a pipe for %s: %w", r.command.Name(), err)
		}
		r.streams[i].fd, r.streams[i].open = fds[0], true
		writers = append(writers, os.NewFile(uintptr(fds[1]), name))
		if err := unix.SetNonblock(fds[0], true); err != nil {
			r.closePipes()
			return writers, fmt.Errorf("making a pipe for %s: %w", r.command.Name(), err)
		}
		_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes) // what there is must do
	}
	return writers, nil
}

func (r *Running) closePipes() {
	for i := range r.streams {
		if s := &r.streams[i]; s.open {
			s.open = false
			_ = unix.Close(s.fd) // nothing was written
		}
	}
}

// look reads the pipes until both have ended.
func (r *Running) look() {
	for r.read() {
		wait := pause
		r.mu.Lock()
		if (r.saw || r.command.Ready.Line == nil) && !r.busy {
			wait = calm
		}
		r.mu.Unlock()
		time.Sleep(wait)
	}
}

// read takes what is in the pipes. It is false when both have ended.
func (r *Running) read() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	open, total := false, 0
	for i := range r.streams {
		s := &r.streams[i]
		for n := 0; s.open && n < rounds; n++ {
			got, err := unix.Read(s.fd, r.buf)
			if got > 0 {
				total += got
				r.take(i, r.buf[:got])
			}
			switch {
			case errors.Is(err, unix.EAGAIN):
				n = rounds
			case errors.Is(err, unix.EINTR):
			case err != nil || got == 0:
				s.open = false
				r.endLine(s)
				_ = unix.Close(s.fd) // nothing was written
			}
		}
		open = open || s.open
	}
	r.busy = total > pipeBytes/8
	return open
}

// take keeps what the stream i has brought.
func (r *Running) take(i int, text []byte) {
	s := &r.streams[i]
	_, _ = s.tail.Write(text) // it never fails
	if i == 0 && r.command.Capture > 0 {
		r.output = append(r.output, text...)
		if over := len(r.output) - r.command.Capture; over > r.command.Capture {
			r.output, r.cut = append(r.output[:0], r.output[over:]...), r.cut+int64(over)
		}
	}
	if r.command.Ready.Line == nil || r.saw {
		return
	}
	for {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			break
		}
		s.line = append(s.line, text[:end]...)
		r.endLine(s)
		text = text[end+1:]
	}
	if room := maxLine - len(s.line); room > 0 {
		s.line = append(s.line, text[:min(room, len(text))]...)
	}
}

// endLine holds a whole line against the pattern.
func (r *Running) endLine(s *stream) {
	if p := r.command.Ready.Line; p != nil && !r.saw && len(s.line) > 0 {
		r.saw = p.Match(bytes.TrimSuffix(s.line[:min(len(s.line), maxLine)], []byte("\r")))
	}
	s.line = s.line[:0]
}

// wait waits for the process, for those that it leaves behind, and for what they wrote.
func (r *Running) wait(onEnd func(error)) {
	// Until it is waited for, its pid is its own: so long its session can be told from a later one.
	r.group.Await()
	left, endErr := r.settle()
	exit := r.group.Wait() // at once
	r.endedAt = time.Now()
	for deadline := time.Now().Add(lingering); r.read() && time.Now().Before(deadline); {
		time.Sleep(pause)
	}
	r.mu.Lock()
	r.closePipes()
	r.mu.Unlock()
	r.done.Wait()
	told := r.wasTold()
	switch {
	case endErr != nil:
		r.why = endErr
	case exit != nil:
		r.why = exit
	case len(left) > 0 && !told:
		r.why = &daemonError{left}
	}
	close(r.ended)
	switch {
	case told:
	case r.why == nil && r.command.Finishes:
		onEnd(nil)
	default:
		onEnd(r.Failure("by itself"))
	}
}

func (r *Running) wasTold() bool {
	select {
	case <-r.told:
		return true
	default:
		return false
	}
}

// settle waits until the processes that a command left behind have ended too, and kills those that do not. It gives
// those that had to be killed.
func (r *Running) settle() (left []proc.Process, err error) {
	until := time.Now().Add(lingering)
	for {
		left = r.others()
		if len(left) == 0 {
			return nil, nil
		}
		r.endMu.Lock()
		hurry := r.hurry
		if r.deadline.After(until) {
			until = r.deadline // it was told to end, and they with it
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
			return left, nil
		}
		if time.Now().After(deadline) {
			return left, fault.New(fault.Machine, r.command.Name(), "see what state they are in (ps -o pid,stat,wchan)",
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

// remember notes the processes of a command that is about to end.
func (r *Running) remember() {
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

// PID is that of the process that was started.
func (r *Running) PID() int { return r.cmd.Process.Pid }

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

// Ended is closed when the command and all its processes have ended, and what they wrote is read.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Exited says whether the process that was started has exited, by what the kernel says now: Ended and the function
// given to Start follow once the processes that it left behind are gone too.
func (r *Running) Exited() bool {
	return r.group.Exited()
}

// Err is why the command ended, after it has: nil where it ended with status 0 and left no process behind, or was told
// to end and did so with status 0. An *exec.ExitError in it has the status.
func (r *Running) Err() error {
	<-r.ended
	return r.why
}

// Output is the end of what the command has written to standard output, at most Command.Capture bytes, and how many
// bytes before it were dropped.
func (r *Running) Output() (text []byte, cut int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, cut = r.output, r.cut
	if over := len(text) - r.command.Capture; over > 0 {
		text, cut = text[over:], cut+int64(over)
	}
	return bytes.Clone(text), cut
}

// Stop tells all processes of the command to end and waits until they have. What takes longer than its time is killed:
// killed is then true.
func (r *Running) Stop() (killed bool) {
	r.endMu.Lock()
	r.deadline = time.Now().Add(r.command.StopTime)
	r.endMu.Unlock()
	r.tell.Do(func() { close(r.told) })
	select {
	case <-r.ended:
		return false
	default:
	}
	r.remember()
	r.group.Signal(r.command.Stop)
	timer := time.NewTimer(r.command.StopTime)
	defer timer.Stop()
	select {
	case <-r.ended:
		return false
	case <-timer.C:
	}
	r.Kill()
	return true
}

// Kill ends all processes of the command at once and waits for them.
func (r *Running) Kill() {
	r.endMu.Lock()
	r.hurry = true
	r.endMu.Unlock()
	r.tell.Do(func() { close(r.told) })
	select {
	case <-r.ended:
		return
	default:
	}
	r.remember()
	r.group.Signal(unix.SIGKILL)
	<-r.ended
}

// Failure is why the command ended, after it has, or that it ended. when reads on after "ended". It is of code
// fault.Usage, for a command line is the user's.
func (r *Running) Failure(when string) error {
	<-r.ended
	took := r.endedAfter()
	var daemon *daemonError
	switch {
	case errors.As(r.why, &daemon):
		return r.fault(daemon, "run it in the foreground: many programs have an option for it, such as "+
			"-f, --foreground, --nodaemon or -D, or 'daemon off'", "went into the background")
	case r.why != nil && r.speaksOfTerminal():
		return r.fault(r.why, "look for an option to run it without one, such as --no-tui, --batch or -T; "+
			"or give it one with 'script -qec ... /dev/null'", "needs a terminal, and has none here")
	case r.why == nil:
		return r.fault(errors.New("exit status 0"), "a command that is to be weighed must run until it is told to end; "+
			"try it: "+r.command.Line(), "ended %s%s", when, took)
	}
	return r.fault(r.why, r.advice(), "ended %s%s", when, took)
}

// endedAfter is ", 0.1 s after its start" for a command that ended soon.
func (r *Running) endedAfter() string {
	if d := r.endedAt.Sub(r.begun); d < 10*time.Second {
		return fmt.Sprintf(", %.1f s after its start", d.Seconds())
	}
	return ""
}

// fault makes an error of code fault.Usage with the last words.
func (r *Running) fault(cause error, hint, format string, args ...any) error {
	if words := r.lastWords(); words != "" {
		cause = fmt.Errorf("%w; its last words: %s", cause, words)
	}
	return fault.Wrap(cause, fault.Usage, r.command.Name(), hint, format, args...)
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
		names = append(names, fmt.Sprintf("%s (process %d)", printable(p.Comm), p.PID))
	}
	return strings.Join(names, ", ")
}

// LastWords is what the command wrote last, on one line: to standard error, or else to standard output. It waits until
// the command has ended.
func (r *Running) LastWords() string {
	<-r.ended
	return r.lastWords()
}

// Words is what the command has written last so far, on one line, as LastWords is in the end.
func (r *Running) Words() string {
	r.read()
	return r.lastWords()
}

// Line is the command line as a shell would take it.
func (r *Running) Line() string { return r.command.Line() }

// lastWords is what the command wrote last, on one line: to standard error, or else to standard output.
func (r *Running) lastWords() string {
	for _, i := range []int{1, 0} {
		if text := lastLines(r.streams[i].tail.Text()); text != "" {
			return text
		}
	}
	return ""
}

// lastLines are the last lines of a text on one line, as many as are worth a message.
func lastLines(text string) string {
	const most = 600
	var lines []string
	length := 0
	all := strings.Split(text, "\n")
	for _, line := range slices.Backward(all) {
		line = printable(strings.TrimSpace(line))
		if line == "" {
			continue
		}
		if length += len(line); length > most && len(lines) > 0 {
			break
		}
		if len(line) > most {
			line = "..." + strings.ToValidUTF8(line[len(line)-most:], "")
		}
		lines = append(lines, line)
	}
	slices.Reverse(lines)
	return strings.Join(lines, "; ")
}

// printable is text for a terminal: what else is in it is left out.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// Ready waits until the command is ready. Its error is of code fault.Usage where the command ended before, went into
// the background, waits for a terminal, or did not become ready in its time, and that of the context where that ends
// first.
func (r *Running) Ready(ctx context.Context) error {
	timeout := r.command.ReadyTimeout
	if timeout <= 0 {
		timeout = readyTimeout
	}
	ctx, cancel := context.WithDeadlineCause(ctx, r.begun.Add(timeout), errNotReady)
	defer cancel()
	for _, c := range r.conditions() {
		if err := r.await(ctx, c, timeout); err != nil {
			return err
		}
	}
	return nil
}

var errNotReady = errors.New("it is not ready in its time")
