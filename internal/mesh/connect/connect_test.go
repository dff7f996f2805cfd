package connect

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh/generation"
)

func schedule(warmup, duration time.Duration) role.Schedule {
	return role.Schedule{Begin: pace.Now() + int64(2*time.Millisecond), Warmup: int64(warmup), Duration: int64(duration)}
}

// run starts a load, and runs it once it is ready, because starting it may take longer than a window.
func run(t *testing.T, o Options, warmup, duration time.Duration) *load.Result {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := l.Run(t.Context(), schedule(warmup, duration))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var loopback = netip.MustParseAddrPort("127.64.7.1:80")

// TestConnections: connections are made, timed and counted, in the window only.
func TestConnections(t *testing.T) {
	r := run(t, Options{First: loopback, Services: 1000}, 20*time.Millisecond, 300*time.Millisecond)
	h, err := r.Histogram(load.Connect)
	if err != nil || h == nil {
		t.Fatalf("histogram %v, %v", h, err)
	}
	sum := int64(0)
	for _, s := range r.Slices {
		sum += s.Done
	}
	if r.Done == 0 || r.Done != r.Intended || r.Opened != r.Done || h.TotalCount() != r.Done || sum != r.Done ||
		len(r.Slices) != load.Slices || len(r.Errors) != 0 {
		t.Errorf("%d of %d, %d opened, %d timed, %d in slices, errors %v", r.Done, r.Intended, r.Opened, h.TotalCount(), sum,
			r.Errors)
	}
	if r.Generator != Generator || r.Mode != load.Closed || r.Seconds != 0.3 || r.CPUSeconds <= 0 || r.Counts != nil ||
		r.Rate*r.Seconds < 0.999*float64(r.Done) {
		t.Errorf("%+v", r)
	}
	// There is one thread, so at most the connections in progress at the edges of the window take time outside it.
	if spent := float64(h.TotalCount()) * h.Mean() / 1e9; h.Min() < 50 || spent-float64(h.Max())/1e9 > r.Seconds {
		t.Errorf("the shortest connect() took %d ns, all together %g s of %g s", h.Min(), spent, r.Seconds)
	}
}

// TestServices: connections go to each of the services, from the first on, and nowhere else.
func TestServices(t *testing.T) {
	l, err := New(Options{First: loopback, Services: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i, want := range []string{"127.64.7.1:80", "127.64.7.2:80", "127.64.7.3:80"} {
		ip, port := l.service(i)
		if errno := l.connect(ip, port); errno != 0 {
			t.Fatal(errno)
		}
		sa, err := unix.Getpeername(l.fd)
		if err != nil {
			t.Fatal(err)
		}
		in := sa.(*unix.SockaddrInet4)
		if got := netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)).String(); got != want {
			t.Errorf("service %d is %s, want %s", i, got, want)
		}
		if gotIP, gotPort := l.peerOf(); gotIP != ip || gotPort != port {
			t.Errorf("its peer is %x:%d, not %x:%d", gotIP, gotPort, ip, port)
		}
	}
}

// TestJudges: without a data plane every connection reaches the service's own address, past the mesh. Such connections
// are judged, and do not count as failures.
func TestJudges(t *testing.T) {
	page, err := generation.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	r := run(t, Options{Replacer: os.Getpid()}, 0, 300*time.Millisecond)
	if c := r.Counts; r.Done == 0 || c[generation.Judged] != float64(r.Done) ||
		c[generation.MissedCount] != float64(r.Done) ||
		c[generation.StaleCount]+c[generation.TornCount]+c[generation.FailedCount] != 0 {
		t.Errorf("%d done, counts %v", r.Done, c)
	}
}

// TestTally: an old endpoint counts once for each change, with the last time that it was seen; a step backward is
// distinguished from a stale endpoint.
func TestTally(t *testing.T) {
	page, err := generation.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	l, err := New(Options{Replacer: os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tally := newTally(0, 1<<62)
	for g := uint64(1); g <= 3; g++ {
		page.Begin(g)
		page.End(g)
	}
	page.Begin(4)
	// The socket connects to endpoints directly, as if a data plane had replaced the service's address.
	found := func(g, done uint64, after int64) {
		t.Helper()
		ip, port := generation.Endpoint(0, g, 0)
		if errno := l.connect(ip, port); errno != 0 {
			t.Fatal(errno)
		}
		l.judge(tally, 0, done, page.BeganAt(g+1)+after)
	}
	found(3, 3, 10) // old, but the change has not returned
	found(3, 3, 20)
	found(1, 3, 1000) // gone
	found(4, 3, 0)    // new
	found(3, 3, 40)   // old after new: right, but backward
	r, err := tally.result(true)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Counts; c[generation.StaleCount] != 1 || c[generation.BackwardCount] != 1 || c[generation.TornCount] != 0 ||
		tally.verdicts[generation.Right] != 4 {
		t.Errorf("counts %v, verdicts %v", c, tally.verdicts)
	}
	h, err := r.Histogram(generation.OldEndpoint)
	if err != nil || h == nil || h.TotalCount() != 3 || h.Max() != 1000 || h.Min() != 20 {
		t.Errorf("old endpoints: %v, %v", h, err)
	}
}

// TestFailures: a refused connection is counted by its kind, and is not judged by the previous connection's peer.
func TestFailures(t *testing.T) {
	tally := newTally(0, 100)
	tally.add(0, 1, 0)
	tally.add(1, 2, unix.ECONNREFUSED)
	tally.add(2, 3, unix.EPERM)
	tally.add(3, 4, unix.EIO)
	r, err := tally.result(true)
	if err != nil {
		t.Fatal(err)
	}
	if r.Intended != 4 || r.Done != 1 || r.Errors["connect-refused"] != 1 || r.Errors["connect-unreachable"] != 1 ||
		r.Errors["connect-5"] != 1 || r.Counts[generation.FailedCount] != 3 {
		t.Errorf("%+v", r)
	}
}

func TestWrongUse(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		code fault.Code
	}{
		"nothing":     {Options{Services: 1}, fault.Usage},
		"IPv6":        {Options{First: netip.MustParseAddrPort("[::1]:80"), Services: 1}, fault.Usage},
		"no port":     {Options{First: netip.MustParseAddrPort("127.0.0.1:0"), Services: 1}, fault.Usage},
		"none":        {Options{First: loopback}, fault.Usage},
		"many":        {Options{First: loopback, Services: MaxServices + 1}, fault.Usage},
		"both":        {Options{First: loopback, Services: 1, Replacer: os.Getpid()}, fault.Usage},
		"no page":     {Options{Replacer: os.Getpid()}, fault.Usage},
		"no data":     {Options{First: loopback, Services: 1, Endpoints: true}, fault.Machine},
		"unreachable": {Options{First: netip.MustParseAddrPort("255.255.255.255:80"), Services: 1}, fault.Machine},
	} {
		if l, err := New(c.o); l != nil || fault.CodeOf(err) != c.code || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", name, err, fault.HintOf(err))
		}
	}
	l, err := New(Options{First: loopback, Services: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Run(t.Context(), role.Schedule{}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("no window: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := l.Run(ctx, schedule(0, time.Hour)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestRole goes through the role protocol (ready, start, result, end), and ends it early.
func TestRole(t *testing.T) {
	for _, early := range []string{"", "before the start", "while it runs"} {
		t.Run(early, func(t *testing.T) {
			childIn, parentOut := io.Pipe()
			parentIn, childOut := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- Run(context.Background(), Options{First: loopback, Services: 2}, role.NewConn(childIn, childOut))
				childOut.Close()
			}()
			parent := role.NewConn(parentIn, parentOut)
			var ready Ready
			if err := parent.Expect(role.Ready, &ready, nil); err != nil || ready.Services != 2 || ready.Judges {
				t.Fatalf("ready: %+v, %v", ready, err)
			}
			window := 300 * time.Millisecond
			if early == "while it runs" {
				window = time.Hour
			}
			if early != "before the start" {
				if err := parent.Send(role.Start, schedule(0, window)); err != nil {
					t.Fatal(err)
				}
			}
			if early == "" {
				var r load.Result
				if err := parent.Expect(role.Result, &r, nil); err != nil || r.Done == 0 {
					t.Errorf("%+v, %v", r, err)
				}
			}
			parentOut.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
