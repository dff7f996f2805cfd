package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// minute is longer than any step of these tests takes on any machine.
const minute = time.Minute

// start starts a shell script, and kills it at the end of the test.
func start(t *testing.T, script string, o Options) *Process {
	t.Helper()
	p := new(Process)
	o.Name = "it"
	if err := Start(p, Command{Argv: []string{"sh", "-c", script}}, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// await waits until a process is ready.
func await(t *testing.T, p *Process, ready func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), minute)
	defer cancel()
	if err := p.Await(ctx, time.Millisecond, ready); err != nil {
		t.Fatal(err)
	}
}

func (p *Process) says(word string) func() bool {
	return func() bool { return strings.Contains(p.Tail(), word) }
}

// outputs are the ways to read what a process writes.
var outputs = map[string]func() *Output{
	"as it comes": func() *Output { return nil },
	"polled":      func() *Output { return &Output{Take: func(int, []byte) {}} },
}

// TestEnds: the unexpected end of a process is reported once, with the last lines of its output.
func TestEnds(t *testing.T) {
	for name, output := range outputs {
		for _, k := range []struct{ script, want string }{
			{`echo one; echo two >&2; exit 3`, "it ended before it was ready: exit status 3; its last words: "},
			{`printf 'red \033[31m\nlast\n' >&2`, "it ended before it was ready: exit status 0; its last words: red [31m; last"},
			{`kill -9 $$`, "it ended before it was ready: signal: killed"},
		} {
			var ends atomic.Int64
			ended := make(chan bool, 1)
			p := start(t, k.script, Options{Output: output(), Linger: minute, OnEnd: func() { ends.Add(1); ended <- true }})
			err := p.Await(t.Context(), time.Millisecond, func() bool { return false })
			if err == nil || !strings.HasPrefix(err.Error(), k.want) {
				t.Errorf("%s, %s: %v, want %s", name, k.script, err, k.want)
			}
			<-ended
			if p.Stop(); ends.Load() != 1 {
				t.Errorf("%s, %s: it ended %d times", name, k.script, ends.Load())
			}
		}
	}
}

// TestEndsTheContext: if the end of a process ends the context, the error is about the process, not the context.
func TestEndsTheContext(t *testing.T) {
	for range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		p := start(t, `exit 3`, Options{OnEnd: func() { cancel(errors.New("it ended")) }})
		err := p.Await(ctx, time.Minute, func() bool {
			<-ctx.Done()
			return false
		})
		if err == nil || !strings.Contains(err.Error(), "before it was ready: exit status 3") {
			t.Fatal(err)
		}
	}
}

// TestStop: Stop asks the process group to end and kills it after the grace period, and this does not count as an
// unexpected end.
func TestStop(t *testing.T) {
	unexpected := func() { t.Error("it ended by itself") }
	for name, output := range outputs {
		o := Options{Output: output(), Stop: unix.SIGTERM, Grace: minute, Linger: minute, OnEnd: unexpected}
		// The shell waits for its child, which gets the signal as well.
		p := start(t, `trap : TERM; sh -c 'trap "echo bye; exit" TERM; echo up; while :; do sleep 0.01; done'; wait`, o)
		await(t, p, p.says("up"))
		if p.Stop() || p.Err() != nil || !p.says("bye")() {
			t.Errorf("%s: it ended with %v, after %q", name, p.Err(), p.Tail())
		}

		o = Options{Output: output(), Stop: unix.SIGTERM, Grace: 100 * time.Millisecond, Linger: minute, OnEnd: unexpected}
		p = start(t, `trap '' TERM; echo up; while :; do sleep 1; done`, o)
		await(t, p, p.says("up"))
		if !p.Stop() || p.Status().Signal() != unix.SIGKILL {
			t.Errorf("%s: it ended with %v", name, p.Err())
		}
		if p.Stop() {
			t.Errorf("%s: it was killed a second time", name)
		}
	}
}

// TestKillGivesUp: a process whose end is not seen does not hold up those who end it, and Err says what it was doing.
func TestKillGivesUp(t *testing.T) {
	release := make(chan struct{})
	p := start(t, "sleep 600", Options{Exited: func() error { <-release; return nil }})
	p.patience = 10 * time.Millisecond // deadline under test
	for range 2 {                      // the second does not wait
		p.Kill()
		err := p.Err()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(process %d) has not ended 10ms after", p.PID())) {
			t.Errorf("got %v", err)
		}
		p.patience = time.Hour
	}
	close(release)
	<-p.Ended()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("after its end: %v", err)
	}
}

// TestLinger: a process counts as ended even if a grandchild holds its output open.
func TestLinger(t *testing.T) {
	for name, output := range outputs {
		p := start(t, `sleep 300 & echo $!; exit 0`, Options{Output: output(), Linger: 100 * time.Millisecond})
		if err := p.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		pid, err := strconv.Atoi(p.Tail())
		if err != nil {
			t.Fatalf("%s: %q", name, p.Tail())
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Errorf("%s: the grandchild: %v", name, err)
		}
	}
}

// TestExited: between exit and wait, no other process can have the PID.
func TestExited(t *testing.T) {
	broken := errors.New("broken")
	p := new(Process)
	pid := make(chan int, 1)
	err := Start(p, Command{Argv: []string{"true"}}, Options{Name: "it", Exited: func() error {
		pid <- p.PID()
		if !p.Exited() || unix.Kill(p.PID(), 0) != nil {
			t.Error("it is not there any more")
		}
		return broken
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Failure("early"); !errors.Is(err, broken) {
		t.Errorf("its end is %v", err)
	}
	if err := unix.Kill(<-pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("it is left: %v", err)
	}
}

// TestNotStarted: a process that did not start can be stopped, and leaves no descriptor open.
func TestNotStarted(t *testing.T) {
	new(Process).Stop()
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	before := count()
	for name, output := range outputs {
		var p Process
		err := Start(&p, Command{Argv: []string{filepath.Join(t.TempDir(), "none")}}, Options{Name: "it", Output: output()})
		if !errors.Is(err, os.ErrNotExist) || p.Stop() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors are open, and were %d", after, before)
	}
}

// TestPolled: Take receives all output, piece by piece, and the ends of both streams.
func TestPolled(t *testing.T) {
	var got [2]bytes.Buffer
	var ends [2]int
	out := &Output{Take: func(i int, piece []byte) {
		got[i].Write(piece)
		if piece == nil {
			ends[i]++
		}
	}}
	p := start(t, `head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2; printf end`,
		Options{Output: out, Linger: minute})
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	if got[0].Len() != 3000003 || got[1].Len() != 2000000 || ends != [2]int{1, 1} {
		t.Errorf("%d and %d bytes were taken, with %v ends", got[0].Len(), got[1].Len(), ends)
	}
}

// TestTail: exactly the end of the output is kept, whatever the size of the writes.
func TestTail(t *testing.T) {
	all := strings.Repeat("0123456789abcdef", 3*tailBytes/16)
	for _, size := range []int{1, 7, tailBytes - 1, tailBytes, tailBytes + 1, len(all)} {
		var tail Tail
		for text := []byte(all); len(text) > 0; {
			n, _ := tail.Write(text[:min(size, len(text))])
			text = text[n:]
		}
		if tail.Text() != all[len(all)-tailBytes:] || cap(tail.buf) > 2*tailBytes {
			t.Errorf("in pieces of %d: %d bytes are kept, in %d", size, len(tail.Text()), cap(tail.buf))
		}
		_, _ = tail.Write([]byte("the end\xff\n"))
		if text := tail.Text(); !strings.HasSuffix(text, "efthe end") || len(text) > tailBytes {
			t.Errorf("%d bytes are kept, with the end %q", len(text), text[len(text)-20:])
		}
	}
}

// TestDeath: without Begin, a process gets its parent-death signal from a thread that lives as long as it does.
func TestDeath(t *testing.T) {
	p := start(t, `echo up; exec sleep 300`, Options{})
	await(t, p, p.says("up"))
	if got := p.cmd.SysProcAttr; got.Pdeathsig != syscall.SIGKILL || !got.Setpgid {
		t.Errorf("it was started with %+v", got)
	}
	if p.Exited() {
		t.Error("it has exited")
	}
}
