package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
	"tare/test/port"
	"tare/test/speed"
	"tare/test/vm/guest"
)

// mustBeReady waits until a command is ready.
func mustBeReady(t *testing.T, r *Running) {
	t.Helper()
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// pidIn waits for a number in a file, written by a command.
func pidIn(t *testing.T, file string) int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if pid, err2 := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && err2 == nil {
			return pid
		}
	}
	t.Fatalf("nothing writes %s", file)
	return 0
}

// TestLife: a server becomes ready, is found where it listens, ends when asked to, and leaves no processes behind.
func TestLife(t *testing.T) {
	c := options(t, param.Values{
		"command": `python3 -u -m http.server --bind 127.0.0.1 {port}`, "dir": "{dir}", "env": "WHO=me",
		"ready-http": "http://127.0.0.1:{port}/", "ready-port": "127.0.0.1:{port}", "stop-signal": "INT",
	})
	if err := (Command{Argv: []string{"python3"}}).Installed(); err != nil {
		t.Skipf("needs a server that is not ours: %v", err)
	}
	r, e := start(t, c)
	mustBeReady(t, r)
	if got := r.Listening(); len(got) != 1 || got[0] != c.Ready.Port {
		t.Errorf("it listens at %q, want %s", got, c.Ready.Port)
	}
	if pids := r.Processes(); len(pids) != 1 || pids[0] != r.PID() {
		t.Errorf("its processes are %v, want %d", pids, r.PID())
	}
	if r.Stop() {
		t.Error("it was killed")
	}
	e.none(t)
	select {
	case <-r.Ended():
	default:
		t.Error("it has not ended")
	}
	r, _ = start(t, c) // its port is free again
	mustBeReady(t, r)
}

// TestReadyConditions: each condition is waited for, and a command is not ready before. How far a command gets in a
// given time depends on the machine.
func TestReadyConditions(t *testing.T) {
	for _, k := range []struct {
		name, script string
		v            param.Values
		ran          time.Duration // at least; 0 if the command creates a file before
	}{
		{"a line of standard error", `sleep 0.1; echo starting; touch done; echo "Ready." >&2; exec sleep 60`,
			param.Values{"ready-line": `^Ready\.$`}, 0},
		{"a line without an end", `sleep 0.1; touch done; printf Ready; exec >&- 2>&-; sleep 60`,
			param.Values{"ready-line": "Ready"}, 0},
		{"a file", `sleep 0.1; touch done socket; exec sleep 60`, param.Values{"ready-file": "socket"}, 0},
		{"a time", `exec sleep 60`, param.Values{"ready-after": "1s"}, time.Second},
		{"a line and a time", `sleep 0.1; touch done; echo go; exec sleep 60`,
			param.Values{"ready-line": "go", "ready-after": "300ms"}, 0},
		{"nothing", `exec sleep 60`, param.Values{}, settled},
	} {
		k.v["command"], k.v["dir"] = "sh -c "+quote(k.script), "{dir}"
		c := options(t, k.v)
		r, e := start(t, c)
		if err := r.Ready(t.Context()); err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
		if k.ran > 0 {
			if ran := r.Ran(); ran < k.ran {
				t.Errorf("%s: it is ready after %v", k.name, ran)
			}
		} else if _, err := os.Stat(filepath.Join(c.Dir, "done")); err != nil {
			t.Errorf("%s: it is ready too early", k.name)
		}
		e.none(t)
		r.Kill()
	}
}

// TestWithoutConditions: without conditions, a server is ready as soon as it listens, even if it prints nothing.
func TestWithoutConditions(t *testing.T) {
	if err := (Command{Argv: []string{"python3"}}).Installed(); err != nil {
		t.Skipf("needs a server that is not ours: %v", err)
	}
	const server = `import socket, time; time.sleep(0.8); s = socket.create_server(("", 0)); time.sleep(60)`
	c := options(t, param.Values{"command": "python3 -c " + quote(server)})
	c.Ready.Listen = true
	r, _ := start(t, c)
	mustBeReady(t, r)
	at := r.Listening()
	if len(at) != 1 {
		t.Fatalf("it listens at %q", at)
	}
	conn, err := net.Dial("tcp", at[0])
	if err != nil {
		t.Fatalf("what it listens at cannot be dialled: %v", err)
	}
	_ = conn.Close()
	if !strings.HasPrefix(at[0], "127.0.0.1:") {
		t.Errorf("all interfaces read as %s", at[0])
	}
}

// TestOffered: a program whose sockets cannot be seen from here is ready when it answers at the offered address.
func TestOffered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for at, ready := range map[string]bool{l.Addr().String(): true, "127.0.0.1:1": false} {
		c := shell(t, "exec sleep 60")
		c.Ready.Listen, c.Ready.Offered = true, at
		if !ready {
			c.ReadyTimeout = speed.Scale(300 * time.Millisecond) // time for attempts to connect
		}
		r, _ := start(t, c)
		err := r.Ready(t.Context())
		if (err == nil) != ready || !ready && !strings.Contains(err.Error(), "accepted no connections at "+at) {
			t.Errorf("at %s: %v", at, err)
		}
		r.Kill()
	}
}

// untilSleep waits, in a shell, until its last child has executed sleep, so that its name is sleep.
const untilSleep = `until read comm < /proc/$!/comm && [ $comm = sleep ]; do sleep 0.01; done`

// TestFailures: an error has the exit status, the last lines of output and a hint, and nothing is left behind.
func TestFailures(t *testing.T) {
	limit := speed.Scale(time.Second).String() // time for checks whether they are ready
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, k := range []struct {
		name, script string
		v            param.Values
		says         []string
		hint         string
	}{
		{"exits at once", `echo "bad option --x" >&2; exit 3`, nil,
			[]string{"sh: ended before it was ready", "after its start: exit status 3; its last words: bad option --x"},
			"try it by hand: sh -c"},
		{"exits with 0", `echo nothing to do; exit 0`,
			nil,
			[]string{"ended before it was ready", "exit status 0; its last words: nothing to do"},
			"must run until it is asked to end"},
		{"killed", `kill -9 $$`, nil, []string{"signal: killed"}, "try it by hand"},
		{"its port is taken", `echo "bind: Address already in use" >&2; exit 1`,
			nil,
			[]string{"already in use"}, "let {port} choose a free one"},
		{"never ready", `echo working; exec sleep 60`, param.Values{"ready-timeout": limit, "ready-line": "^ready"},
			[]string{`was not ready within ` + limit + `: no line that it wrote matched "^ready"`},
			"raise its ready-timeout"},
		{"never listens", `exec sleep 60`, param.Values{"ready-timeout": limit, "ready-port": "{port}"},
			[]string{"was not ready within " + limit + ": nothing accepted connections at 127.0.0.1:", "(connection refused)"},
			"raise its ready-timeout"},
		{"never answers", `exec sleep 60`,
			param.Values{"ready-timeout": limit, "ready-http": "http://" + port.Free(t) + "/x"},
			[]string{"/x was not answered with a status of 200 to 399 (connection refused)"}, "raise its ready-timeout"},
		{"answers nothing", `exec sleep 60`,
			param.Values{"ready-timeout": limit, "ready-http": "http://" + silent.Addr().String() + "/x"},
			[]string{"/x was not answered with a status of 200 to 399 (timeout)"}, "raise its ready-timeout"},
		{"no file", `exec sleep 60`,
			param.Values{"ready-timeout": limit, "ready-file": "socket"},
			[]string{"there was no file socket"}, ""},
		{"daemonizes", `setsid sleep 60 & echo $! > pid; ` + untilSleep + `; exit 0`, nil,
			[]string{"went into the background: it ended with status 0 and left sleep (process ", "running, killed now"},
			"--foreground"},
		{"leaves a child", `sleep 60 & echo $! > pid; exit 0`, nil, []string{"went into the background"}, "daemon off"},
		{"needs a terminal", `tty || { echo "stdin is not a tty" >&2; exit 1; }`,
			nil,
			[]string{"needs a terminal, and has none here: exit status 1"}, "--no-tui"},
		{"opens the terminal", `cat < /dev/tty`, nil, []string{"needs a terminal, and has none here"}, "--batch"},
		{"is stopped", `kill -STOP $$; sleep 60`,
			nil,
			[]string{"sh: does not run: its process ", "is stopped, by SIGSTOP"}, "let it go on"},
		{"escapes", `printf '\033[31mred\033[0m\n\n' >&2; exit 1`, nil, []string{"its last words: [31mred[0m"}, ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			v := param.Values{"ready-timeout": "30s", "ready-after": "10s"}
			if k.v != nil {
				v = k.v
			}
			v["command"], v["dir"] = "sh -c "+quote(k.script), "{dir}"
			c, g := options(t, v), group(t)
			c.CgroupDir = dirOf(t, g)
			r, err := Start(c, g.Start, newEnds().add)
			if err != nil {
				t.Fatal(err)
			}
			err = r.Ready(t.Context())
			r.Kill()
			if err == nil {
				t.Fatal("it is ready")
			}
			if fault.CodeOf(err) != fault.Usage || !strings.Contains(fault.HintOf(err), k.hint) {
				t.Errorf("the hint is %q, want %q", fault.HintOf(err), k.hint)
			}
			for _, says := range k.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("it says: %v, want %q", err, says)
				}
			}
			if left := cgroup.Members([]string{c.CgroupDir}); len(left) > 0 {
				t.Errorf("the processes %v are left behind", left)
			}
			if strings.Contains(k.script, "pid") {
				gonePID(t, pidIn(t, filepath.Join(c.Dir, "pid")))
			}
		})
	}
}

// TestBeforehand: a command is not started if it would appear ready from the beginning.
func TestBeforehand(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := shell(t, "exec sleep 60")
	c.Ready.Port = l.Addr().String()
	refused(t, c, "something accepts connections there already")
	c = shell(t, "exec sleep 60")
	c.Ready.File = filepath.Join(t.TempDir(), "stale")
	if err := os.WriteFile(c.Ready.File, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "exists already")
	c = shell(t, "exec sleep 60")
	c.Dir = filepath.Join(t.TempDir(), "none")
	refused(t, c, "the working directory of sh is not a directory")
}

// refused checks that a command is not started, with an error that its user can fix.
func refused(t *testing.T, c Command, says string) {
	t.Helper()
	_, err := Start(c, begin, nil)
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), says) {
		t.Errorf("it is started: %v, want %q", err, says)
	}
}

// TestNeverReady: the error shows the command's output from before it was ready.
func TestNeverReady(t *testing.T) {
	c := shell(t, "echo working; exec sleep 60")
	c.ReadyTimeout, c.Ready.After = time.Millisecond, time.Hour // deadline under test
	r, _ := start(t, c)
	for r.Process.LastWords() == "" {
		time.Sleep(time.Millisecond)
	}
	err := r.Ready(t.Context())
	const says = "was not ready within 1ms: 1h0m0s had not passed; its last words: working"
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("it says: %v", err)
	}
}

// TestInterrupted: if the context ends, the error is its cause.
func TestInterrupted(t *testing.T) {
	c := shell(t, "exec sleep 60")
	c.Ready.After = time.Hour
	r, _ := start(t, c)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := r.Ready(ctx); !errors.Is(err, cause) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestEndings: commands end unexpectedly, and when asked to.
func TestEndings(t *testing.T) {
	up := regexp.MustCompile("^up$")
	c := shell(t, "sleep 0.1; echo result; exit 0")
	c.Finishes, c.Capture = true, 1000
	r, e := start(t, c)
	mustBeReady(t, r)
	if err := e.one(t); err != nil || r.Err() != nil {
		t.Errorf("one that finishes: %v, %v", err, r.Err())
	}
	if out, cut := r.Output(); string(out) != "result\n" || cut != 0 {
		t.Errorf("its output is %q, without %d bytes", out, cut)
	}

	c = shell(t, "echo half done; exit 7")
	c.Finishes = true
	r, e = start(t, c)
	var exit *exec.ExitError
	if err := e.one(t); !errors.As(err, &exit) || exit.ExitCode() != 7 ||
		!strings.Contains(err.Error(), "its last words: half done") {
		t.Errorf("one that fails: %v", err)
	}
	if err := r.Ready(t.Context()); err == nil {
		t.Error("one that failed is ready")
	}

	c = shell(t, `trap '' TERM; echo up; while :; do sleep 1; done`)
	c.StopTime, c.Ready.Line = 100*time.Millisecond, up // before that, it has no trap
	r, e = start(t, c)
	mustBeReady(t, r)
	if !r.Stop() {
		t.Error("one that does not end is said to have ended")
	}
	e.none(t)
	gonePID(t, -r.PID()) // its child too
	if r.Stop() {
		t.Error("one that has ended is killed once more")
	}

	// A wrapper that only waits for the real program does not keep that from ending normally.
	c = shell(t, `trap : TERM; sh -c 'trap "echo bye; exit" TERM; echo up; while :; do sleep 0.01; done'; wait`)
	c.Capture, c.Ready.Line = 100, up
	r, _ = start(t, c)
	mustBeReady(t, r)
	if r.Stop() {
		t.Error("it was killed")
	}
	if out, _ := r.Output(); string(out) != "up\nbye\n" {
		t.Errorf("the child's last words are %q", out)
	}
}

// TestNothingIsLeft: children that made new sessions end with the command, with and without a control group.
func TestNothingIsLeft(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		const script = `setsid sh -c 'trap "" TERM; echo $$ > pid; while :; do sleep 1; done' & exec sleep 60`
		c := options(t, param.Values{"dir": "{dir}", "command": "sh -c " + quote(script)})
		c.StopTime = 200 * time.Millisecond
		from := begin
		if grouped {
			g := group(t)
			c.CgroupDir, from = dirOf(t, g), g.Start
		}
		e := newEnds()
		r, err := Start(c, from, e.add)
		if err != nil {
			t.Fatal(err)
		}
		pid := pidIn(t, filepath.Join(c.Dir, "pid"))
		r.Stop()
		e.none(t)
		gonePID(t, pid)
	}
}

// TestCapture: the end of the output is kept, and the number of dropped bytes is counted, however large the output is.
func TestCapture(t *testing.T) {
	c := shell(t, `i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done; yes x | head -c 3000000 >&2`)
	c.Capture, c.Finishes = 1000, true
	r, e := start(t, c)
	if err := e.one(t); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	want := all.String()
	out, cut := r.Output()
	if string(out) != want[len(want)-1000:] || cut != int64(len(want)-1000) {
		t.Errorf("%d bytes are kept and %d dropped, of %d", len(out), cut, len(want))
	}
	if cap(r.output) > 256<<10 {
		t.Errorf("%d bytes are held", cap(r.output))
	}
}

// TestParseListener: a line of /proc/net/tcp is parsed as the kernel of this machine prints it.
func TestParseListener(t *testing.T) {
	for _, c := range []struct {
		network, address string
	}{{"tcp4", "127.0.0.1:0"}, {"tcp4", "0.0.0.0:0"}, {"tcp6", "[::1]:0"}, {"tcp6", "[::]:0"}} {
		l, err := net.Listen(c.network, c.address)
		if err != nil {
			if strings.HasPrefix(c.network, "tcp6") {
				continue // a machine without IPv6
			}
			t.Fatal(err)
		}
		host := map[string]string{"0.0.0.0": "127.0.0.1", "::": "::1"}
		h, port, _ := net.SplitHostPort(l.Addr().String())
		if to, ok := host[h]; ok {
			h = to
		}
		want := net.JoinHostPort(h, port)
		found := false
		for _, at := range listening("/proc", []int{os.Getpid()}) {
			found = found || at == want
		}
		if !found {
			t.Errorf("%s is not among %q", want, listening("/proc", []int{os.Getpid()}))
		}
		_ = l.Close()
	}
}

// FuzzParseListener: any line is either rejected or gives a valid address.
func FuzzParseListener(f *testing.F) {
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100")
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode")
	f.Fuzz(func(t *testing.T, line string) {
		if a, inode, ok := parseListener(line); ok && (!a.IsValid() || inode == "" || a.Port() == 0) {
			t.Errorf("%q is read as %v of %q", line, a, inode)
		}
	})
}

// TestStartError: if a command cannot be started, nothing is left open.
func TestStartError(t *testing.T) {
	guest.KernelFree(t)
	broken := errors.New("no room")
	if _, err := Start(shell(t, "true"), func(*exec.Cmd) error { return broken }, nil); !errors.Is(err, broken) {
		t.Errorf("it is started: %v", err)
	}
}
