// Package connect is a load that only makes connections: UDP sockets that connect to services, as fast as they can.
// Connecting sends no packet, so nearly all of the work is the data plane's. The load runs as a separate process (tare
// load connect), in closed loop.
//
// If a data plane replaces its configuration meanwhile (package generation), the load also judges every connection: did
// it reach an endpoint that the configuration allowed at that moment?
package connect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh/generation"
)

// Generator is the name of this load in results.
const Generator = "connect"

// MaxServices bounds Options.Services.
const MaxServices = 1 << 20

// Options configures a load. It needs either First and Services, or Replacer.
type Options struct {
	First    netip.AddrPort // the first service; IPv4. The others have the following addresses
	Services int            // number of services; each connection goes to a random one
	// Endpoints makes New fail unless a connection to each service has an endpoint as its peer.
	Endpoints bool
	// Replacer is the id of a process that replaces its configuration. The load then connects to that process's services
	// in turn, and judges the connections.
	Replacer int
	Seed     uint64 // of the random choices
}

// Ready is the load's ready message.
type Ready struct {
	Services int  `json:"services"`
	Judges   bool `json:"judges"`
}

// Load is a load that is ready to run, once.
type Load struct {
	o    Options
	page *generation.Page      // nil: connections are not judged
	fd   int                   // the socket; -1: none
	to   unix.RawSockaddrInet4 // the argument of connect
	peer unix.RawSockaddrInet4 // the result of peerOf
}

// New makes the socket. It connects to every service once, and returns an error if a connection fails. It does not try
// the services of a Replacer.
func New(o Options) (l *Load, err error) {
	if o.Replacer == 0 {
		switch {
		case !o.First.IsValid() || !o.First.Addr().Unmap().Is4() || o.First.Port() == 0:
			return nil, fault.New(fault.Usage, "--service", "give --service 10.96.0.1:80, or --replacer",
				"there is no service to connect to, as an IPv4 address and a port")
		case o.Services < 1 || o.Services > MaxServices:
			return nil, fault.New(fault.Usage, "--services", "see 'tare load connect --help'",
				"must be 1 to %d, got %d", MaxServices, o.Services)
		}
	} else if o.First.IsValid() {
		return nil, fault.New(fault.Usage, "--replacer", "leave out --service", "a replacer has services already")
	}
	l = &Load{o: o, fd: -1}
	l.to.Family = unix.AF_INET
	defer func() {
		if err != nil {
			l, err = nil, errors.Join(err, l.Close())
		}
	}()
	if o.Replacer != 0 {
		l.o.Services = generation.Services
		if l.page, err = generation.Open(o.Replacer); err != nil {
			return l, err
		}
	}
	if l.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return l, fmt.Errorf("making a socket: %w", err)
	}
	return l, l.check()
}

// check connects to every service once, unless services are replaced.
func (l *Load) check() error {
	for i := 0; l.page == nil && i < l.o.Services; i++ {
		ip, port := l.service(i)
		at := generation.AddrPort(ip, port)
		if errno := l.connect(ip, port); errno != 0 {
			return fault.Wrap(errno, fault.Machine, at.String(),
				"see that a data plane serves it as a UDP service, or that there is a route to it",
				"the service cannot be connected to")
		}
		if gotIP, gotPort := l.peerOf(); l.o.Endpoints && gotIP == ip && gotPort == port {
			return fault.New(fault.Machine, at.String(),
				"see that a data plane serves it as a UDP service, with --peer endpoint",
				"a connection to the service shows no endpoint")
		}
	}
	return nil
}

// Ready describes the load.
func (l *Load) Ready() Ready { return Ready{Services: l.o.Services, Judges: l.page != nil} }

// Close closes the socket and the page.
func (l *Load) Close() error {
	var errs []error
	if l.fd >= 0 {
		errs = append(errs, unix.Close(l.fd))
		l.fd = -1
	}
	if l.page != nil {
		errs = append(errs, l.page.Close())
		l.page = nil
	}
	return errors.Join(errs...)
}

// service returns the address of the i-th service.
func (l *Load) service(i int) (ip uint32, port uint16) {
	if l.page != nil {
		return generation.Service(i)
	}
	b := l.o.First.Addr().Unmap().As4()
	return uint32(b[0])<<24 + uint32(b[1])<<16 + uint32(b[2])<<8 + uint32(b[3]) + uint32(i), l.o.First.Port()
}

// The two calls below bypass Go's scheduler. Neither can block, and informing the scheduler would cost as much as the
// faster of them. Worse, the runtime's monitor mistakes a thread that spends its time in such calls for a blocked one,
// and interrupts it every 20 us.

// connect connects the socket, which may be connected already: a UDP socket can be connected repeatedly.
func (l *Load) connect(ip uint32, port uint16) unix.Errno {
	*(*[4]byte)(unsafe.Pointer(&l.to.Addr)) = [4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}
	*(*[2]byte)(unsafe.Pointer(&l.to.Port)) = [2]byte{byte(port >> 8), byte(port)}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(l.fd), uintptr(unsafe.Pointer(&l.to)),
		unix.SizeofSockaddrInet4)
	return errno
}

// peerOf returns the address that the socket is connected to, or zeros if it is unknown.
func (l *Load) peerOf() (ip uint32, port uint16) {
	size := uint32(unix.SizeofSockaddrInet4)
	if _, _, errno := unix.RawSyscall(unix.SYS_GETPEERNAME, uintptr(l.fd), uintptr(unsafe.Pointer(&l.peer)),
		uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0, 0
	}
	a, p := l.peer.Addr, *(*[2]byte)(unsafe.Pointer(&l.peer.Port))
	return uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3]), uint16(p[0])<<8 | uint16(p[1])
}

// Run connects by the schedule, in closed loop, and returns the result. Connections that begin in the window count.
func (l *Load) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing is allocated in the loop
	thread, err := pace.LockThread(0)
	if err != nil {
		return nil, err
	}
	t := newTally(begin, end)
	if _, err = thread.Until(ctx, s.Begin); err == nil {
		var stop atomic.Bool
		defer context.AfterFunc(ctx, func() { stop.Store(true) })()
		t.cpu, err = s.CPUTime(func() error { l.loop(t, &stop); return nil })
	}
	if err = errors.Join(err, thread.Close()); err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return t.result(l.page != nil)
}

// loop makes connections until the window ends or stop is set, and counts those that begin in the window.
func (l *Load) loop(t *tally, stop *atomic.Bool) {
	random := l.o.Seed*0x9e3779b97f4a7c15 + 1
	for i, now := 0, pace.Now(); now < t.end && !stop.Load(); {
		var done uint64
		if l.page == nil {
			random = random*6364136223846793005 + 1442695040888963407
			i = int(random >> 32 * uint64(l.o.Services) >> 32)
		} else {
			i = (i + 1) % generation.Services
			done = l.page.Done()
		}
		ip, port := l.service(i)
		began := pace.Now()
		errno := l.connect(ip, port)
		now = pace.Now()
		if began < t.begin || began >= t.end {
			continue
		}
		t.add(began, now, errno)
		if l.page != nil && errno == 0 {
			l.judge(t, i, done, began)
		}
	}
}

// judge judges a connection to the i-th service. began is when it began (ns by pace.Now); done is the value of
// Page.Done before that.
func (l *Load) judge(t *tally, i int, done uint64, began int64) {
	ip, port := l.peerOf()
	begun := l.page.Begun()
	verdict, g := generation.Judge(i, ip, port, done, begun)
	t.verdicts[verdict]++
	if verdict == generation.Torn || verdict == generation.Missed {
		return
	}
	if verdict == generation.Right && g < t.last {
		t.backward++
	}
	t.last = max(t.last, g)
	if g < begun {
		if age := began - l.page.BeganAt(g+1); age > 0 {
			t.sawOld(g, age)
		}
	}
}

// longest is the longest time that histograms distinguish, in ns.
const longest = 100e9

// tally holds the counts of a run. Counting does not allocate.
type tally struct {
	begin, end int64                   // of the window, ns by pace.Now
	cpu        float64                 // seconds
	n          int64                   // connections that began in the window, failed ones included
	times      *hdrhistogram.Histogram // durations of connect(), in ns
	slices     [load.Slices]*hdrhistogram.Histogram
	errnos     [256]int64

	verdicts [4]int64                // by generation.Verdict
	backward int64                   // connections with the verdict Right that reached a generation older than last
	last     uint64                  // the latest generation that a connection has reached
	old      *hdrhistogram.Histogram // the last oldAge of each generation
	oldOf    uint64                  // the last generation that was seen after the next one had begun
	oldAge   int64                   // ns from the beginning of generation oldOf+1 until oldOf was last seen; 0: unset
}

func newTally(begin, end int64) *tally {
	t := &tally{begin: begin, end: end, times: hdrhistogram.New(1, longest, 3), old: hdrhistogram.New(1, longest, 3)}
	for i := range t.slices {
		t.slices[i] = hdrhistogram.New(1, longest, 2)
	}
	return t
}

func (t *tally) add(began, ended int64, errno unix.Errno) {
	t.n++
	if errno != 0 {
		t.errnos[min(int(errno), len(t.errnos)-1)]++
		return
	}
	count(t.times, ended-began)
	count(t.slices[(began-t.begin)*load.Slices/(t.end-t.begin)], ended-began)
}

// count adds a time to a histogram, limited to the histogram's range.
func count(h *hdrhistogram.Histogram, ns int64) { _ = h.RecordValue(min(max(ns, 1), longest)) }

// sawOld records that a connection reached generation g although the next generation had begun age ns earlier. Only the
// last such connection of each generation counts.
func (t *tally) sawOld(g uint64, age int64) {
	if t.oldAge > 0 && t.oldOf != g {
		count(t.old, t.oldAge)
	}
	t.oldOf, t.oldAge = g, age
}

func (t *tally) result(judged bool) (*load.Result, error) {
	failed := int64(0)
	r := &load.Result{
		Generator: Generator, Mode: load.Closed, Seconds: float64(t.end-t.begin) / 1e9, Intended: t.n, Sent: t.n,
		Connections: 1, MaxConnections: 1, Errors: map[string]int64{}, CPUSeconds: t.cpu, CPUs: 1,
	}
	for errno, n := range t.errnos {
		if n > 0 {
			r.Errors[errorName(unix.Errno(errno))] += n
			failed += n
		}
	}
	r.Done = t.n - failed
	r.Opened, r.Rate = r.Done, float64(r.Done)/r.Seconds
	r.SetSlices(t.slices[:])
	if judged {
		r.Counts = map[string]float64{
			generation.Judged: float64(t.n), generation.FailedCount: float64(failed),
			generation.BackwardCount: float64(t.backward),
			generation.StaleCount:    float64(t.verdicts[generation.Stale]),
			generation.TornCount:     float64(t.verdicts[generation.Torn]),
			generation.MissedCount:   float64(t.verdicts[generation.Missed]),
		}
		if t.oldAge > 0 {
			count(t.old, t.oldAge)
			t.oldAge = 0
		}
	}
	return r, r.SetHistograms(map[string]*hdrhistogram.Histogram{load.Connect: t.times, generation.OldEndpoint: t.old})
}

// errorName returns the kind of error of a failed connect. Kinds that also occur in a load of kind http have the same
// names there.
func errorName(errno unix.Errno) string {
	switch errno {
	case unix.ECONNREFUSED:
		return "connect-refused"
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EPERM:
		return "connect-unreachable"
	case unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EAGAIN:
		return "connect-no-ports"
	}
	return "connect-" + strconv.Itoa(int(errno))
}

// Run runs the load by the role protocol on conn (role.Work): it prepares the load, sends ready, waits for the start,
// connects, sends the result, and waits until the parent closes its end. If the parent closes earlier, Run ends without
// an error.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	l, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.Work(ctx, conn, l.Ready(), l.Run)
}
