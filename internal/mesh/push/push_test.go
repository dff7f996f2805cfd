package push

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/mesh/services"
	"tare/test/port"
)

func TestLastFirst(t *testing.T) {
	for n, want := range map[int][]int{1: {0}, 2: {1, 0}, 5: {4, 0, 1, 2, 3}} {
		if got := lastFirst(n); !slices.Equal(got, want) {
			t.Errorf("%d services: %v, not %v", n, got, want)
		}
	}
}

// TestPrepareRefuses: Prepare returns an error for invalid options, without a mesh, and without a data plane that would
// show changes. The load is tested with a data plane in package kernelmesh.
func TestPrepareRefuses(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	is, ended := make(chan services.Ready, 1), make(chan error, 1)
	go func() {
		ended <- services.Serve(ctx, services.Options{Listen: "127.0.0.1:0", Services: 2, Endpoints: 1},
			func(r services.Ready) error { is <- r; return nil })
	}()
	control := (<-is).Control
	good := Options{Mesh: control, What: One, Interval: DefaultInterval, Patience: time.Millisecond} // deadline under test
	for want, change := range map[string]func(*Options){
		"must be one of one, all":           func(o *Options) { o.What = "some" },
		"must be at least 0.000005s":        func(o *Options) { o.Interval = time.Nanosecond },
		"must be at least 0s, not -1ns":     func(o *Options) { o.Pause = -1 },
		"there is no mesh to ask":           func(o *Options) { o.Mesh = "127.0.0.1:1" },
		"which is not one of its endpoints": func(*Options) {},
		"connecting to the mesh at 127":     func(o *Options) { o.Mesh = closing(t) },
	} {
		o := good
		change(&o)
		if _, err := Prepare(ctx, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestWindow: each time is counted in the right histogram of the result.
func TestWindow(t *testing.T) {
	w := &window{begin: 1000, end: 2000, times: NewTimes(Sent, Usable, Accepted, Whole, Gap), errors: map[string]int64{},
		tries: 7, refused: 2}
	w.add(services.Change{Set: 1000, Sent: 1100}, sight{at: 1400, gap: 50})
	w.add(services.Change{Set: 1990, Sent: 2010}, sight{at: 2010, gap: 30})
	r, err := w.result(1)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]int64{Sent: {20, 100}, Usable: {1, 300}, Whole: {20, 400}, Gap: {30, 50}} {
		h, err := r.Histogram(name)
		if err != nil || h.Min() != want[0] || h.Max() != want[1] || h.TotalCount() != 2 {
			t.Errorf("%s: %d to %d, not %v (%v)", name, h.Min(), h.Max(), want, err)
		}
	}
	if r.Done != 2 || r.Rate != 2e6 || r.Counts[Tries] != 7 || r.Counts[Refused] != 2 || r.Counts[Wrong] != 0 {
		t.Errorf("%+v", r)
	}
	if first, last := r.Slices[0].Done, r.Slices[load.Slices-1].Done; first != 1 || last != 1 {
		t.Errorf("slices: %v", r.Slices)
	}
}

// TestNotSaid: for a control plane that does not report when it sent a change there is only the time of the whole.
func TestNotSaid(t *testing.T) {
	w := &window{begin: 1000, end: 2000, times: NewTimes(Sent, Usable, Accepted, Whole, Gap), errors: map[string]int64{}}
	w.add(services.Change{Set: 1000}, sight{at: 1400, gap: 50})
	r, err := w.result(1)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{Sent: false, Usable: false, Whole: true, Gap: true} {
		if h, err := r.Histogram(name); err != nil || (h != nil) != want {
			t.Errorf("%s: %v (%v)", name, h, err)
		}
	}
}

// TestConnectTCP: connect returns the peer of a TCP connection, and its error for a port without a listener counts as
// notYet.
func TestConnectTCP(t *testing.T) {
	l, err := net.Listen("tcp", port.Free(t))
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	if peer, err := connect(unix.SOCK_STREAM, at, connectTimeout, nil); err != nil || peer != at {
		t.Errorf("%v, %v", peer, err)
	}
	l.Close()
	if _, err := connect(unix.SOCK_STREAM, at, connectTimeout, nil); err == nil || !new(Push).notYet(err) {
		t.Errorf("%v", err)
	}
}

// TestConnected: connected waits for a connection that is still being made, and returns its error if it fails.
func TestConnected(t *testing.T) {
	l, err := net.Listen("tcp", port.Free(t))
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	for _, want := range []error{nil, unix.ECONNREFUSED} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
		if errors.Is(err, unix.EINPROGRESS) {
			err = connected(fd, connectTimeout)
		}
		if !errors.Is(err, want) {
			t.Errorf("got %v, not %v", err, want)
		}
		unix.Close(fd)
		l.Close()
	}
}

// closing returns the address of a server that accepts connections and sends nothing.
func closing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l.Addr().String()
}

// TestConnectToPortZero: half a record of an endpoint leads a connection to port 0, which is a wrong endpoint, and no
// failure of the load.
func TestConnectToPortZero(t *testing.T) {
	peer, err := connect(unix.SOCK_DGRAM, netip.MustParseAddrPort("127.0.0.1:0"), connectTimeout, nil)
	if err != nil || peer.Port() != 0 {
		t.Fatalf("a connection to port 0 has the peer %v, %v", peer, err)
	}
	if _, _, ok := services.ChangeOf(peer); ok {
		t.Errorf("%v passes for an endpoint", peer)
	}
}

// TestAnswers: with a mesh whose endpoints say which they are, a change counts from when the load asked for it,
// whatever the mesh's clock says, until the answer of the service is the new one. Connections without an answer are
// wrong.
func TestAnswers(t *testing.T) {
	service, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	const follows = 20 * time.Millisecond // after a change: the first half of it without an answer
	var shown, silent atomic.Int64
	shown.Store(1)
	go func() {
		for {
			c, err := service.Accept()
			if err != nil {
				return
			}
			if silent.Load() == 0 {
				_, _ = c.Write(services.Answer(0, int(shown.Load()))) // the load may have gone
			}
			_ = c.Close()
		}
	}()
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := services.Ready{Services: 1, Endpoints: 1, Key: "k", Addresses: []netip.AddrPort{
		service.Addr().(*net.TCPAddr).AddrPort()}}
	served := make(chan error, 1)
	go func() {
		served <- services.ServeChanges(ctx, control, ready, 1000,
			func(_ context.Context, number int, _ []int) (services.Change, error) {
				silent.Store(1)
				time.AfterFunc(follows/2, func() { silent.Store(0) })
				time.AfterFunc(follows, func() { shown.Store(int64(number)) })
				return services.Change{Set: 1, Accepted: int64(time.Millisecond)}, nil
			})
	}()
	p, err := Prepare(ctx, Options{Mesh: control.Addr().String(), Key: "k", What: One,
		Interval: time.Millisecond, Peer: AnyPeer})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, err := p.Run(ctx, role.Schedule{Begin: pace.Now(), Duration: int64(200 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := r.Histogram(Whole)
	if err != nil || whole.Min() < int64(follows) || r.Done < 1 || r.Failures() != 0 {
		t.Errorf("%d changes, the fastest in %v; errors %v, %v", r.Done, time.Duration(whole.Min()), r.Errors, err)
	}
	if h, err := r.Histogram(Accepted); err != nil || h.TotalCount() != r.Done || h.Max() < int64(time.Millisecond) {
		t.Errorf("the API server's part: %+v, %v", h, err)
	}
	if r.Counts[Wrong] < 1 || r.Counts[Wrong] >= r.Counts[Tries] {
		t.Errorf("%v", r.Counts)
	}
	p.o.Peer = EndpointPeer
	if at, err := p.connect(0); at.ok || err != nil {
		t.Errorf("a connection whose peer is the service: %+v, %v", at, err)
	}
	_ = service.Close()
	if at, err := p.connect(0); !p.notYet(err) || at.ok {
		t.Errorf("%+v, %v", at, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
