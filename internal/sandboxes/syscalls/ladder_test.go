package syscalls

import (
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// TestLadder: every call is made and timed, and more expensive ones take longer.
func TestLadder(t *testing.T) {
	l, err := newLadder(100 * time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	s := role.Schedule{Begin: pace.Now(), Warmup: int64(100 * time.Millisecond), Duration: int64(2 * time.Second)}
	r, err := l.run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) float64 { return r.Counts[name+"_seconds"] }
	for _, c := range calls {
		if at(c.name) <= 0 {
			t.Errorf("%s takes %g s", c.name, at(c.name))
		}
	}
	if at("getpid") >= at("open") || at("open") >= at("fork") || at("read") >= at("exec") {
		t.Errorf("%v", r.Counts)
	}
}

// TestMetricsOfSeveralLoads: with several loads of this kind, a time is the mean of theirs, and unknown unless all have
// it.
func TestMetricsOfSeveralLoads(t *testing.T) {
	m := &measured.Measured{}
	m.Loads = map[string]load.Result{"http": {Generator: "http"}}
	for i, getpid := range []float64{1e-6, 3e-6, 5e-6} {
		m.Loads[strconv.Itoa(i)] = load.Result{Generator: name, Counts: map[string]float64{"getpid_seconds": getpid}}
	}
	metrics := guest{}.Metrics()
	at := slices.IndexFunc(metrics, func(m measured.Metric) bool { return m.Name == "syscall_getpid_seconds" })
	if got, ok := metrics[at].Value(m); !ok || math.Abs(got-3e-6) > 1e-12 {
		t.Errorf("%g, %v, want 3e-6", got, ok)
	}
	m.Loads["1"] = load.Result{Generator: name}
	if got, ok := metrics[at].Value(m); ok {
		t.Errorf("%g though one load has none", got)
	}
}

// TestNoDescriptor: if a file cannot be opened, newLadder returns an error and closes the files that it has opened.
func TestNoDescriptor(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	})
	free, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free)
	for more := range 3 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free + more), Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		if _, err := newLadder(time.Millisecond); !errors.Is(err, unix.EMFILE) {
			t.Errorf("with %d more descriptors: %v", more, err)
		}
	}
}

// TestSizes: the sizes of batches approach the requested duration, also after an interrupted batch.
func TestSizes(t *testing.T) {
	n := 1
	for range 20 {
		n = next(n, int64(n)*100, 100*time.Microsecond)
	}
	if n != 1000 {
		t.Errorf("%d calls of 100 ns in 100 us", n)
	}
	if n := next(1000, int64(time.Second), 100*time.Microsecond); n != 1 {
		t.Errorf("%d calls of 1 ms in 100 us", n)
	}
}

// TestRole runs the load by the role protocol. The parent's clock differs from the load's, as that of a virtual
// machine's host does.
func TestRole(t *testing.T) {
	in, toChild := io.Pipe()
	fromChild, out := io.Pipe()
	ended := make(chan error, 1)
	values := param.Values{settingBatch: "50us"}
	go func() { ended <- guest{}.Play(t.Context(), role.NewConn(in, out), values); out.Close() }()
	conn := role.NewConn(fromChild, toChild)
	var wants role.Wants
	if err := conn.Expect(role.Ready, &wants, nil); err != nil {
		t.Fatal(err)
	}
	const ahead = int64(1e15)
	wants.Heard(wants.Clock + ahead) // the parent's clock is ahead
	parents := role.Schedule{Begin: pace.Now() + ahead, Duration: int64(time.Second)}
	if err := conn.Send(role.Start, wants.Translate(parents)); err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := conn.Expect(role.Result, &r, nil); err != nil || r.Counts["getpid_seconds"] <= 0 {
		t.Errorf("%v, %v", r.Counts, err)
	}
	toChild.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
