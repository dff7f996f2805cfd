package tracer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cmdline "tare/internal/experiment/process"
	"tare/internal/scale/host/proc"
	execload "tare/internal/tracing/exec"
	"tare/test/vm/guest"
)

func begin(c *exec.Cmd) error { return c.Start() }

// unasked fails the test if the tracer ends unexpectedly.
func unasked(t *testing.T) func(error) {
	return func(err error) { t.Errorf("it ended by itself: %v", err) }
}

// shell returns a tracer that is a shell script.
func shell(script string) *Tracer {
	return &Tracer{
		Argv: []string{"sh", "-c", script}, Stop: syscall.SIGINT, StopTime: 10 * time.Second, Scope: execload.ScopeGroup,
		Ready: Ready{Pattern: regexp.MustCompile("^ready")}, Delivered: Source{Stream: Stdout, Lines: mustCompile("^event")},
	}
}

func start(t *testing.T, tr *Tracer, p cmdline.Place, onEnd func(error)) *Running {
	t.Helper()
	if p.Dir == "" {
		p.Dir = t.TempDir()
	}
	r, err := Start(tr, p, begin, onEnd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

func ready(t *testing.T, r *Running) {
	t.Helper()
	if err := r.Ready(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for counts that another process is about to reach.
func eventually(t *testing.T, r *Running, want execload.Said) {
	t.Helper()
	var got execload.Said
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var err error
		if got, err = r.Counts(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got == want {
			return
		}
	}
	t.Fatalf("it counts %+v, want %+v", got, want)
}

func TestLifeOfATracer(t *testing.T) {
	tr := shell(`trap 'echo event last; echo Lost 5 events >&2; exit 0' INT
		echo "event before"; echo "ready in $PWD" >&2; i=0
		while [ $i -lt 1000 ]; do echo "event $i"; echo noise; i=$((i+1)); done; echo Lost 12 events >&2
		while :; do sleep 0.01; done`)
	tr.Lost = &Source{Stream: Stderr, Sum: mustCompile(`^Lost ([0-9]+) events`)}
	r := start(t, tr, cmdline.Place{}, unasked(t))
	ready(t, r)
	eventually(t, r, execload.Said{Delivered: 1001, Knows: true, Lost: 12, Says: true})
	if killed := r.Stop(); killed {
		t.Error("it was killed")
	}
	c, err := r.Counts(t.Context())
	if want := (execload.Said{Delivered: 1002, Knows: true, Lost: 17, Says: true}); c != want || err != nil {
		t.Errorf("at its end it counts %+v (%v), want %+v", c, err, want)
	}
	if n := r.Unmatched(); n != 0 {
		t.Errorf("%d lines are said to match nothing", n)
	}
	if r.Stop() {
		t.Error("it was killed after its end")
	}
}

func TestTracersThatFail(t *testing.T) {
	ended := make(chan error, 1)
	r := start(t, shell(`echo ready; echo event; echo "no room left" >&2; exit 3`), cmdline.Place{},
		func(err error) { ended <- err })
	err := <-ended
	if text := err.Error(); !strings.Contains(text, "sh ended during the trial: exit status 3") ||
		!strings.Contains(text, "its last words: no room left") {
		t.Errorf("it says: %s", text)
	}
	if c, err := r.Counts(t.Context()); c.Delivered != 1 || err != nil {
		t.Errorf("what it had delivered is %+v, %v", c, err)
	}

	r = start(t, shell(`echo "cannot load programs: \033[31mdenied\033[0m" >&2; exit 1`), cmdline.Place{}, func(error) {})
	if err := r.Ready(t.Context(), time.Minute, nil); err == nil ||
		!strings.Contains(err.Error(), "before it was ready: exit status 1; its last words: cannot load programs: ") ||
		strings.Contains(err.Error(), "\033") {
		t.Errorf("one that cannot start: %v", err)
	}

	r = start(t, shell(`echo starting; exec sleep 1000`), cmdline.Place{}, unasked(t))
	if err := r.Ready(t.Context(), 50*time.Millisecond, nil); err == nil ||
		!strings.Contains(err.Error(), `no line matched "^ready"`) {
		t.Errorf("one that never says that it is ready: %v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := r.Ready(ctx, time.Minute, nil); !errors.Is(err, cause) {
		t.Errorf("interrupted: %v", err)
	}

	tr := shell(`trap '' INT TERM; echo ready; while :; do sleep 1; done`)
	tr.StopTime = 100 * time.Millisecond
	r = start(t, tr, cmdline.Place{}, unasked(t))
	ready(t, r)
	if !r.Stop() {
		t.Error("one that does not end is said to have ended")
	}
	// the child of the tracer ends, too, and must be reaped
	for !errors.Is(syscall.Kill(-r.PID(), 0), syscall.ESRCH) {
		time.Sleep(time.Millisecond)
	}

	if _, err := Start(&Tracer{Argv: []string{"no-such-tracer-anywhere"}}, cmdline.Place{Dir: t.TempDir()}, begin,
		unasked(t)); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
}

// TestStopAfterEnd: once a tracer has ended and was waited for, its pid may have become that of another process group.
// Stop and Kill must not send signals to it, even while another process holds the tracer's output open.
func TestStopAfterEnd(t *testing.T) {
	for name, stop := range map[string]func(*Running){"Stop": func(r *Running) { r.Stop() }, "Kill": (*Running).Kill} {
		file := filepath.Join(t.TempDir(), "pid")
		tr := shell(`sleep 1000 & echo $! > "$0"; exit 3`)
		tr.Argv = append(tr.Argv, file)
		r := start(t, tr, cmdline.Place{}, func(error) {})
		for !errors.Is(syscall.Kill(r.PID(), 0), syscall.ESRCH) {
			time.Sleep(time.Millisecond)
		}
		stop(r) // the sleep stands for another process group: its group still has the tracer's pid as its number
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := (proc.FS{}).Process(pid); err != nil || !p.Alive() {
			t.Errorf("%s killed what has the number of the tracer's group: %+v, %v", name, p, err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// TestChildrenAreToldToo: the signal to end also reaches the children of the process, because that may be a wrapper
// that only waits for the real tracer.
func TestChildrenAreToldToo(t *testing.T) {
	r := start(t, shell(`trap : INT; sh -c 'trap "echo event; exit" INT; echo ready; while :; do sleep 0.01; done'`),
		cmdline.Place{}, unasked(t))
	ready(t, r)
	if r.Stop() {
		t.Error("it was killed")
	}
	if c, _ := r.Counts(t.Context()); c.Delivered != 1 {
		t.Errorf("the child's last words are %+v", c)
	}
}

// TestFlood: a tracer that writes endlessly, on both streams, is read and can be ended.
func TestFlood(t *testing.T) {
	guest.KernelFree(t)
	r := start(t, shell(`echo ready; cat /dev/zero >&2 & exec yes event`), cmdline.Place{}, unasked(t))
	ready(t, r)
	var before int64
	for rises := 0; rises < 5; time.Sleep(time.Millisecond) {
		c, err := r.Counts(t.Context())
		if err != nil || c.Delivered < before {
			t.Fatalf("after %d events it counts %+v, %v", before, c, err)
		}
		if c.Delivered > before {
			rises++
		}
		before = c.Delivered
	}
	r.Stop()
	for i := range r.feeds {
		if cap(r.feeds[i].carry) > 2*maxLine {
			t.Errorf("%s: %d bytes of a line are kept", streams[i], cap(r.feeds[i].carry))
		}
	}
}

func TestAsking(t *testing.T) {
	tr := shell(`n=0; trap 'n=$((n+7)); echo "{\"delivered\":$n,\"lost\":0}" >&2' USR1; trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done`)
	tr.Delivered, tr.Lost, tr.Ask = Source{Stream: Stderr, JSON: []string{"delivered"}}, &Source{Stream: Stderr,
		JSON: []string{"lost"}}, syscall.SIGUSR1
	r := start(t, tr, cmdline.Place{}, unasked(t))
	ready(t, r)
	// a shell that lacks CPU time may answer too late, and pending signals are merged
	for last := int64(0); last < 21; {
		c, err := r.Counts(t.Context())
		if err != nil || c.Delivered < last || c.Delivered%7 != 0 || c.Knows != (c.Delivered > 0) || c.Says != c.Knows {
			t.Fatalf("asked after it had said %d it says %+v, %v", last, c, err)
		}
		last = c.Delivered
	}
	r.Stop()

	tr = shell(`trap 'exit 0' INT; echo ready; echo '{"sent":1}'; while :; do sleep 0.01; done`)
	tr.Delivered = Source{Stream: Stdout, JSON: []string{"stats", "delivered"}}
	r = start(t, tr, cmdline.Place{}, unasked(t))
	ready(t, r)
	r.Stop()
	if c, err := r.Counts(t.Context()); err != nil || c.Knows || c.Says {
		t.Errorf("one that says nothing is known to have %+v, %v", c, err)
	}
	if err := r.Unknown("mine"); !strings.Contains(err.Error(),
		"mine never said how many events it delivered: no line of its stdout has a number at stats.delivered") {
		t.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	guest.KernelFree(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := "events_total{type=\"exec\"} 40\nevents_total{type=\"exit\"} 9\n"
	status := http.StatusOK
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, page)
	})}
	go server.Serve(l) //nolint:errcheck // it ends with the test
	defer server.Close()
	tr := shell(`trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done`)
	exec, _ := parseSelector(`events_total{type="exec"}`)
	lost, _ := parseSelector("lost_total")
	tr.Delivered, tr.Lost = Source{Metric: exec, URL: "http://127.0.0.1:{port}/metrics"}, &Source{Metric: lost}
	r := start(t, tr, cmdline.Place{Port: l.Addr().(*net.TCPAddr).Port}, unasked(t))
	ready(t, r)
	if c, err := r.Counts(t.Context()); err != nil || c != (execload.Said{Delivered: 40, Knows: true}) {
		t.Errorf("%+v, %v", c, err)
	}
	page += "lost_total 2\n"
	if c, err := r.Counts(t.Context()); err != nil ||
		c != (execload.Said{Delivered: 40, Knows: true, Lost: 2, Says: true}) {
		t.Errorf("%+v, %v", c, err)
	}
	status = http.StatusNotFound
	if _, err := r.Counts(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("without a page: %v", err)
	}
	r.Stop()
	if c, err := r.Counts(t.Context()); err != nil || c.Delivered != 40 || c.Lost != 2 {
		t.Errorf("after its end: %+v, %v", c, err)
	}
}

// TestStartedAgain: if a total falls, or belongs to another process than before, the numbers of delivered and lost
// events are unknown, with the reason, and not 0.
func TestStartedAgain(t *testing.T) {
	guest.KernelFree(t)
	loss := func(r *Running) {
		t.Helper()
		if c, err := r.Counts(t.Context()); err != nil || c.Says || !c.Knows {
			t.Errorf("%+v, %v", c, err)
		}
	}
	said := func(script string, delivered, lost Source, says, lossSays string) {
		t.Helper()
		tr := shell(`trap 'printf "{\"delivered\":9}"; exit 0' INT; ` + script + `; echo ready; while :; do sleep 0.01; done`)
		tr.Delivered, tr.Lost = delivered, &lost
		r := start(t, tr, cmdline.Place{}, unasked(t))
		ready(t, r)
		r.Stop()
		c, err := r.Counts(t.Context())
		if says == "" && (err != nil || c.Delivered != 9) ||
			says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %+v, %v, want %q", script, c, err, says)
		}
		if says == "" && c.Says != (lossSays == "") {
			t.Errorf("%s: %+v, and the loss is unknown for %q", script, c, lossSays)
		}
		if why := r.LossUnknown(); (why == "") != (lossSays == "") || !strings.Contains(why, lossSays) {
			t.Errorf("%s: the loss is unknown, for %q, want %q", script, why, lossSays)
		} else if why != "" && says == "" {
			loss(r)
		}
	}
	total, lost := Source{Stream: Stdout, JSON: []string{"delivered"}}, Source{Stream: Stdout, JSON: []string{"lost"}}
	sum := Source{Stream: Stdout, Sum: mustCompile(`^Lost (\S+) events`)}
	said(`echo '{"delivered":7,"lost":2}'`, total, lost, "", "")
	said(`echo '{"delivered":12}'`, total, lost, "its total fell from 12 to 9, as when a tracer is started again",
		"no line of its stdout has a number at lost")
	said(`echo '{"lost":3}'; echo '{"lost":0}'`, total, lost, "", "its total fell from 3 to 0")
	said(`echo Lost 3 events`, total, sum, "", "")
	said(`echo nothing lost`, total, sum, "", "")
	said(`echo Lost 99999999999999999999 events`, total, sum, "", `it wrote "99999999999999999999", which is not a count`)

	page := ""
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })}
	go server.Serve(l) //nolint:errcheck // it ends with the test
	defer server.Close()
	for _, c := range []struct{ name, first, then, says, lossSays string }{
		{"it goes on", "a 5\nlost 1\nprocess_start_time_seconds 100\n",
			"a 7\nlost 1\nprocess_start_time_seconds 100\n", "", ""},
		{"it falls", "a 5\nlost 1\n", "a 4\nlost 1\n", "its total fell from 5 to 4", ""},
		{"another process", "a 5\nlost 1\nprocess_start_time_seconds 100\n",
			"a 7\nlost 1\nprocess_start_time_seconds 160\n", "its process was started again", "its process was started again"},
		{"it is gone", "a 5\nlost 1\n", "b 7\nlost 1\n", "its metrics no longer have a", ""},
		{"the loss is gone", "a 5\nlost 1\n", "a 7\n", "", "its metrics no longer have lost"},
		{"the loss falls", "a 5\nlost 3\n", "a 7\nlost 1\n", "", "its total fell from 3 to 1"},
		{"no loss", "a 5\n", "a 7\n", "", "it never said so: its metrics at http"},
	} {
		tr := shell(`trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done`)
		tr.Delivered = Source{Metric: &selector{name: "a"}, URL: "http://" + l.Addr().String() + "/metrics"}
		tr.Lost = &Source{Metric: &selector{name: "lost"}}
		r := start(t, tr, cmdline.Place{}, unasked(t))
		ready(t, r)
		page = c.first
		if _, err := r.Counts(t.Context()); err != nil {
			t.Error(err)
		}
		page = c.then
		_, err := r.Counts(t.Context())
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if why := r.LossUnknown(); (why == "") != (c.lossSays == "") || !strings.Contains(why, c.lossSays) {
			t.Errorf("%s: the loss is unknown, for %q, want %q", c.name, why, c.lossSays)
		} else if why != "" && err == nil {
			loss(r)
		}
		r.Stop()
	}
}

func TestPlace(t *testing.T) {
	tr := shell(`echo ready; cat "$F"; echo "$V"; exec sleep 1000`)
	tr.Files, tr.Env = map[string]string{"rules.yaml": "event {cgroup_id} {port} {x}\n"}, []string{"F={dir}/rules.yaml",
		"V=event {cgroup_path} {cgroup_dir}"}
	tr.Delivered.Lines = mustCompile("^event (4711 80 {x}|/a/b /sys/a/b)$")
	dir := t.TempDir()
	place := cmdline.Place{CgroupID: 4711, Port: 80, CgroupDir: "/sys/a/b", CgroupPath: "/a/b", Dir: dir}
	r := start(t, tr, place, unasked(t))
	ready(t, r)
	eventually(t, r, execload.Said{Delivered: 2, Knows: true})
	if _, err := os.Stat(filepath.Join(dir, "rules.yaml")); err != nil {
		t.Error(err)
	}
}

// TestFilesystems: file systems that a tracer needs are mounted for the tracer, and for no other process.
func TestFilesystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts filesystems")
	}
	mounts := func() string {
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := mounts()
	tr := shell(`trap 'exit 0' INT; echo ready
for dir in /sys/kernel/tracing /sys/kernel/debug/tracing; do
	grep '^name: ' $dir/events/sched/sched_process_exec/format && break
done
grep -o ' /sys/kernel/debug debugfs ' /proc/self/mounts
while :; do sleep 0.01; done`)
	tr.Filesystems = []filesystem{debugfs, tracefs}
	tr.Delivered.Lines = mustCompile("^(name: sched_process_exec$| /sys/kernel/debug debugfs )")
	r := start(t, tr, cmdline.Place{}, unasked(t))
	ready(t, r)
	eventually(t, r, execload.Said{Delivered: 2, Knows: true})
	if mounts() != before {
		t.Errorf("the mounts of the machine are others:\n%s", mounts())
	}
	r.Stop()
	none := []string{"a", "b c"}
	if got := withFilesystems(nil, none); !slices.Equal(got, none) {
		t.Errorf("one that needs none is started by %q", got)
	}
	absent := []filesystem{{"x", 1, []string{"/no/x"}}, {"y", 1, []string{"/no/y", "/no/z"}}}
	script := `mount -t x none /no/x && mount -t y none /no/y && exec "$@"`
	want := []string{"unshare", "--mount", "sh", "-c", script, "sh", "a", "b c"}
	if got := withFilesystems(absent, none); !slices.Equal(got, want) {
		t.Errorf("it is started by %q", got)
	}
}

func TestNoLineMatches(t *testing.T) {
	r := start(t, shell(`trap 'exit 0' INT; echo ready; echo EVENT; echo EVENT; while :; do sleep 0.01; done`), cmdline.Place{},
		unasked(t))
	ready(t, r)
	for r.Unmatched() != 3 {
		time.Sleep(time.Millisecond)
	}
	r.Stop()
}
