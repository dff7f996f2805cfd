package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
	execload "tare/internal/tracing/exec"
)

// How what a tracer writes is read. Nothing waits on the pipes: they are looked at every few milliseconds, and take
// meanwhile what is written. So neither does the tracer pay for waking a reader with every line, nor the machine for
// the reader's running.
const (
	pause     = 5 * time.Millisecond
	pipeBytes = 1 << 20   // 200 MB/s between two looks; what the kernel lets anybody have (/proc/sys/fs/pipe-max-size)
	readBytes = 256 << 10 // at once
	rounds    = 16        // of reads of one pipe in one look
)

// leftTime is how long the output of a tracer that has ended is waited for, where a child of its own still holds it.
const leftTime = time.Second

// askTime is how long a tracer that was asked for its totals may take to say them.
const askTime = 500 * time.Millisecond

// probeEvery is how often an exec is made for a tracer to see, and lookEvery how often it is looked for.
const (
	probeEvery = 50 * time.Millisecond
	lookEvery  = 10 * time.Millisecond
)

// Running is a tracer under way. Its methods may be used concurrently.
type Running struct {
	tracer *Tracer
	cmd    *exec.Cmd
	group  *proc.Group
	url    string // of the metrics

	mu        sync.Mutex // guards all that is read from the pipes
	pipes     [2]pipe
	buf       []byte
	delivered *tally
	lost      *tally        // null where it does not say
	saw       chan struct{} // closed when the line that says it is ready has come

	told  chan struct{} // closed when it was told to end
	tell  sync.Once
	ended chan struct{} // closed when it has exited, what it wrote is read, and why is set
	why   error
	done  sync.WaitGroup
}

// pipe is one stream of the process.
type pipe struct {
	stream Stream
	fd     int
	open   bool
	feed   feed
}

// Start runs the tracer: begin starts the command where it belongs. onEnd is called when it ends without having been
// told to, with the reason. Stop or Kill it in the end, whatever happened.
func Start(t *Tracer, p Place, begin func(*exec.Cmd) error, onEnd func(error)) (*Running, error) {
	for name, text := range t.Files {
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte(p.fill(text)[0]), 0o600); err != nil {
			return nil, fmt.Errorf("writing a file for %s: %w", t.Argv[0], err)
		}
	}
	argv := withFilesystems(t.Filesystems, p.fill(t.Argv...))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), p.fill(t.Env...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it is told to end with its children, as by a terminal
	r := &Running{
		tracer: t, cmd: cmd, group: proc.NewGroup(cmd), buf: make([]byte, readBytes),
		saw: make(chan struct{}), told: make(chan struct{}), ended: make(chan struct{}),
		delivered: newTally(t.Delivered), url: p.fill(t.Delivered.URL)[0],
	}
	if t.Lost != nil {
		r.lost = newTally(*t.Lost)
	}
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
	if err := begin(cmd); err != nil {
		r.closePipes()
		return nil, err
	}
	r.done.Go(func() { r.look() })
	go r.wait(onEnd)
	return r, nil
}

// openPipes makes the pipes and gives the ends for the process. Only our ends do not block.
func (r *Running) openPipes() (writers []*os.File, err error) {
	r.pipes = [2]pipe{{stream: Stdout}, {stream: Stderr}}
	for i := range r.pipes {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			r.closePipes()
			return writers, fmt.Errorf("making a pipe for %s: %w", r.tracer.Argv[0], err)
		}
		r.pipes[i].fd, r.pipes[i].open = fds[0], true
		writers = append(writers, os.NewFile(uintptr(fds[1]), string(r.pipes[i].stream)))
		if err := unix.SetNonblock(fds[0], true); err != nil {
			r.closePipes()
			return writers, fmt.Errorf("making a pipe for %s: %w", r.tracer.Argv[0], err)
		}
		_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes) // what there is must do
		for _, t := range []*tally{r.delivered, r.lost} {
			if t != nil && t.source.Metric == nil && (t.source.Stream == "" || t.source.Stream == r.pipes[i].stream) {
				r.pipes[i].feed.tallies = append(r.pipes[i].feed.tallies, t)
			}
		}
		if r.tracer.Ready.Pattern != nil {
			r.pipes[i].feed.watch = r.readyLine
		} else if i == 0 {
			close(r.saw)
		}
	}
	return writers, nil
}

func (r *Running) closePipes() {
	for i := range r.pipes {
		if p := &r.pipes[i]; p.open {
			p.open = false
			_ = unix.Close(p.fd) // nothing was written
		}
	}
}

// readyLine looks for the line by which the tracer is ready.
func (r *Running) readyLine(line []byte) {
	if !r.tracer.Ready.Pattern.Match(line) {
		return
	}
	for i := range r.pipes {
		r.pipes[i].feed.watch = nil
	}
	close(r.saw)
}

// look reads the pipes until both have ended.
func (r *Running) look() {
	for r.read() {
		time.Sleep(pause)
	}
}

// read takes what is in the pipes. It is false when both have ended.
func (r *Running) read() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readLocked()
}

func (r *Running) readLocked() bool {
	any := false
	for i := range r.pipes {
		p := &r.pipes[i]
		for n := 0; p.open && n < rounds; n++ {
			got, err := unix.Read(p.fd, r.buf)
			if got > 0 {
				p.feed.write(r.buf[:got])
			}
			switch {
			case errors.Is(err, unix.EAGAIN):
				n = rounds
			case errors.Is(err, unix.EINTR):
			case err != nil || got == 0:
				p.open = false
				_ = unix.Close(p.fd) // nothing was written
			case got < len(r.buf)/2:
				n = rounds // that was all
			}
		}
		any = any || p.open
	}
	return any
}

// wait waits for the process, and for what it wrote.
func (r *Running) wait(onEnd func(error)) {
	exit := r.group.Wait()
	for deadline := time.Now().Add(leftTime); r.read() && time.Now().Before(deadline); {
		time.Sleep(pause)
	}
	r.mu.Lock()
	r.closePipes()
	r.mu.Unlock()
	r.done.Wait()
	r.why = exit
	if exit == nil {
		r.why = errors.New("nobody told it to")
	}
	close(r.ended)
	select {
	case <-r.told:
	default:
		onEnd(r.Failure("during the trial"))
	}
}

// PID is the process's.
func (r *Running) PID() int { return r.cmd.Process.Pid }

// Ready waits until the tracer has shown that it sees every exec from now on. probe makes an exec that it must see. The
// line that it writes, and the first of these execs that it delivers, are each waited for as long as the timeout.
func (r *Running) Ready(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	if err := r.sawLine(ctx, timeout); err != nil {
		return err
	}
	if err := r.pass(ctx, r.tracer.Ready.After); err != nil {
		return err
	}
	if !r.tracer.Ready.Probe {
		return nil
	}
	return r.probe(ctx, timeout, probe)
}

// sawLine waits for the line by which the tracer is ready.
func (r *Running) sawLine(ctx context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.saw:
		return nil
	case <-r.ended:
		return r.Failure("before it was ready")
	case <-timer.C:
		return r.withLastWords(fmt.Errorf("%s did not say within %v that it is ready: no line matched %q",
			r.name(), timeout, r.tracer.Ready.Pattern))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pass lets a time pass in which the tracer must not end.
func (r *Running) pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.ended:
		return r.Failure("before it was ready")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// probe makes execs until the tracer has delivered one. As long as its count cannot be read, as when its page of
// metrics is not there yet, none are made.
func (r *Running) probe(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	var first *int64 // what it had delivered before any was made
	var last time.Time
	made := 0
	for deadline := time.Now().Add(timeout); ; {
		said, unread := r.Counts(ctx)
		switch {
		case unread != nil:
		case first == nil:
			first = &said.Delivered
		case said.Delivered > *first:
			return nil
		}
		switch {
		case time.Now().After(deadline) && unread != nil:
			return fmt.Errorf("what %s delivers could not be read within %v: %w", r.name(), timeout, unread)
		case time.Now().After(deadline):
			return r.withLastWords(fmt.Errorf("%s delivered none of %d execs within %v, so it is not known that it sees any",
				r.name(), made, timeout))
		case first != nil && time.Since(last) >= probeEvery:
			if err := probe(ctx); err != nil {
				return err
			}
			made, last = made+1, time.Now()
		}
		if err := r.pass(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// name is what the tracer is called in messages: the program, or of a role of tare the role.
func (r *Running) name() string {
	if r.tracer.Self() && len(r.tracer.Argv) > 1 {
		return "tare " + r.tracer.Argv[1]
	}
	return filepath.Base(r.tracer.Argv[0])
}

// Counts are those of this moment: everything that the tracer has written by now is in them. One that is asked for its
// totals is asked.
func (r *Running) Counts(ctx context.Context) (execload.Said, error) {
	if r.tracer.Ask != 0 {
		r.ask()
	}
	if err := r.scrape(ctx); err != nil {
		return execload.Said{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readLocked()
	c := execload.Said{Delivered: r.delivered.n, Knows: r.delivered.seen}
	if r.lost != nil {
		c.Lost, c.Says = r.lost.n, r.lost.seen
	}
	return c, nil
}

// ask has the tracer say its totals, and waits for them as long as one that gets its share of CPU needs.
func (r *Running) ask() {
	updates := func() int64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.readLocked()
		return r.delivered.updates
	}
	before := updates()
	select {
	case <-r.told:
		return
	case <-r.ended:
		return
	default:
	}
	if r.cmd.Process.Signal(r.tracer.Ask) != nil {
		return // it has just ended
	}
	for deadline := time.Now().Add(askTime); updates() == before && time.Now().Before(deadline); {
		time.Sleep(pause)
	}
}

// scrape reads those counts that are metrics. After the end they stay what they were.
func (r *Running) scrape(ctx context.Context) error {
	if r.delivered.source.Metric == nil && (r.lost == nil || r.lost.source.Metric == nil) {
		return nil
	}
	select {
	case <-r.told:
		return nil
	case <-r.ended:
		return nil
	default:
	}
	page, err := scrape(ctx, r.url)
	if err != nil {
		return r.withLastWords(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range []*tally{r.delivered, r.lost} {
		if t == nil || t.source.Metric == nil {
			continue
		}
		n, seen, err := t.source.Metric.sum(page)
		if err != nil {
			return err
		}
		if seen {
			t.n, t.seen, t.updates = n, true, t.updates+1
		}
	}
	return nil
}

// Unmatched is how many lines came on the stream of what is delivered, where not one of them counted as an event:
// then the pattern may be wrong.
func (r *Running) Unmatched() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.delivered.source.Lines == nil || r.delivered.n > 0 {
		return 0
	}
	for i := range r.pipes {
		if p := &r.pipes[i]; p.stream == r.delivered.source.Stream {
			return p.feed.lines
		}
	}
	return 0
}

// Stop tells the tracer to end and waits until it has, and all that it wrote is read. One that takes longer than its
// time is killed: killed is then true.
func (r *Running) Stop() (killed bool) {
	r.tell.Do(func() { close(r.told) })
	select {
	case <-r.ended:
		return false
	default:
	}
	r.group.Signal(r.tracer.Stop)
	timer := time.NewTimer(r.tracer.StopTime)
	defer timer.Stop()
	select {
	case <-r.ended:
		return false
	case <-timer.C:
	}
	r.Kill()
	return true
}

// Kill ends the tracer at once, if it has not ended, and waits for it.
func (r *Running) Kill() {
	r.tell.Do(func() { close(r.told) })
	select {
	case <-r.ended:
		return
	default:
	}
	r.group.Signal(unix.SIGKILL)
	<-r.ended
}

// Ended is closed when the tracer has ended and all that it wrote is read.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Failure is why the tracer ended, after it has. when reads on after "ended".
func (r *Running) Failure(when string) error {
	return r.withLastWords(fmt.Errorf("%s ended %s: %w", r.name(), when, r.why))
}

// withLastWords adds what the tracer wrote last: to standard error, or else to standard output.
func (r *Running) withLastWords(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range []int{1, 0} {
		if text := lastLines(string(r.pipes[i].feed.tail)); text != "" {
			return fmt.Errorf("%w; its last words: %s", err, text)
		}
	}
	return err
}

// lastLines is text on one line.
func lastLines(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = printable(strings.TrimSpace(line)); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Unknown is why it is not known how many events the tracer delivered, where it never said. name is what the tracer is
// called.
func (r *Running) Unknown(name string) error {
	s := r.delivered.source
	if s.Metric != nil {
		return r.withLastWords(fmt.Errorf("%s never said how many events it delivered: its metrics at %s have no %s",
			name, r.url, s.Metric.name))
	}
	return r.withLastWords(fmt.Errorf("%s never said how many events it delivered: no line of its %s has a number at %s",
		name, s.Stream, strings.Join(s.JSON, ".")))
}
