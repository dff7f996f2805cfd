// Package push is the load that changes a mesh's configuration and makes connections until they show the change, to
// measure how long a change takes from the control plane to new connections. It runs as a separate process (tare load
// push) in a control group that the data plane serves. It requests changes, one at a time, from an application of kind
// mesh (package services).
//
// A connection here is a UDP socket's connect(), which sends nothing. The socket's peer address is that of the endpoint
// that the data plane chose, and encodes the change that added the endpoint. If the mesh's services use TCP, the load
// makes a TCP connection and resets it at once. The endpoints of a real mesh, such as those of a cluster's Services
// (package clusterservices), identify themselves: they send their service and the change that added them
// (services.Answer). Between two tries the load sleeps, to leave the CPU to the data plane; a measured time can
// therefore be too long by up to one such gap. The gaps are measured too.
package push

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/mesh/services"
)

// Values of Options.What: what a change affects.
const (
	One = "one" // one random service
	All = "all" // every service at once
)

// Whats are the values of Options.What.
var Whats = []string{One, All}

// Defaults of Options.
const (
	DefaultInterval = 50 * time.Microsecond
	DefaultPause    = time.Millisecond
)

// Limits of Options.Interval.
const (
	MinInterval = 5 * time.Microsecond
	MaxInterval = 100 * time.Millisecond
)

// Options configures the load: where the mesh is, what to change and how often.
type Options struct {
	Mesh string // host:port at which the mesh accepts changes
	Key  string // services.Ready.Key of the mesh; may be empty
	What string // One or All
	// Interval is the time from one try to the next until the change is seen. If a fiftieth of the time since the change
	// was requested is longer, the load waits that long instead.
	Interval time.Duration
	Pause    time.Duration // mean pause between changes; each is a random 0.5 to 1.5 times as long
	Seed     uint64
	Patience time.Duration // how long a change may take to be seen; default 20 s
	Peer     string        // AnyPeer (default) or EndpointPeer
}

// Values of Options.Peer, for meshes whose endpoints identify themselves. With EndpointPeer, a connection counts only
// if its peer address is not the service's, as with an eBPF data plane that shows endpoints. With AnyPeer, a connection
// also counts if something else, such as kube-proxy beside a mesh, directed it to the endpoint.
const (
	AnyPeer      = "any"
	EndpointPeer = "endpoint"
)

// Ready is the load's ready message.
type Ready struct {
	What     string `json:"what"`
	Services int    `json:"services"`
}

// Push is a load that is ready to run, once.
type Push struct {
	o      Options
	mesh   *services.Client
	seen   []int // the number of the last change that connections showed, by service
	random *rand.Rand
	thread *pace.Thread
	tries  int // the number of connections tried since the last garbage collection
}

// Prepare connects to the mesh, and waits until connections to all services show their endpoints.
func Prepare(ctx context.Context, o Options) (p *Push, err error) {
	if o.Patience == 0 {
		o.Patience = 20 * time.Second
	}
	if err := (param.Values{"what": o.What, "interval": o.Interval.String(),
		"pause": o.Pause.String()}).Check(Settings); err != nil {
		return nil, err
	}
	p = &Push{o: o, random: rand.New(rand.NewPCG(o.Seed, 0))}
	if p.mesh, err = services.Dial(ctx, o.Mesh, o.Key); err != nil {
		return nil, err
	}
	if p.mesh.Mesh.Services == 0 {
		return nil, errors.Join(fault.New(fault.Usage, o.Mesh, "give the mesh some services",
			"the mesh has nothing to change"),
			p.mesh.Close())
	}
	p.seen = make([]int, p.mesh.Mesh.Services)
	if p.thread, err = pace.LockThread(0); err != nil {
		return nil, errors.Join(err, p.mesh.Close())
	}
	if err = p.wait(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close disconnects from the mesh. The goroutine that called Prepare must call it.
func (p *Push) Close() error { return errors.Join(p.mesh.Close(), p.thread.Close()) }

// Ready describes the load.
func (p *Push) Ready() Ready { return Ready{p.o.What, len(p.seen)} }

// wait waits until connections to each service have reached one of its endpoints. It gives up after Options.Patience.
func (p *Push) wait(ctx context.Context) error {
	late := pace.Now() + int64(p.o.Patience)
	for i := 0; i < len(p.seen); {
		reached, err := p.connect(i)
		if err != nil && !p.notYet(err) {
			return fmt.Errorf("connecting to service %d: %w", i, err)
		}
		if reached.ok {
			p.seen[i] = reached.change
			i++
			continue
		}
		if pace.Now() > late {
			return p.never(i, reached, err)
		}
		if err := p.sleep(ctx, pace.Now()+int64(time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// never returns the error for a service whose connections have not reached one of its endpoints.
func (p *Push) never(service int, at reached, err error) error {
	where := p.mesh.Mesh.Service(service).String()
	if p.answers() {
		const hint = "see whether pods of this node reach Services: kubectl get endpointslices"
		if err == nil {
			err = fmt.Errorf("its peer is %s", at.peer)
		}
		return fault.Wrap(err, fault.Machine, where, hint, "a connection to service %d does not reach its endpoint", service)
	}
	const hint = "the load must be in the control group of a data plane that has its configuration from this mesh and " +
		"shows endpoints as peers: --peer endpoint"
	return fault.New(fault.Machine, where, hint,
		"a connection to service %d has the peer %s, which is not one of its endpoints", service, at.peer)
}

// answers reports whether endpoints identify themselves (services.Answer). The mesh may then be on another machine,
// with another clock.
func (p *Push) answers() bool { return len(p.mesh.Mesh.Addresses) > 0 }

func (p *Push) sleep(ctx context.Context, until int64) error {
	if err := ctx.Err(); err != nil {
		return err // Until checks the context only before long waits
	}
	_, err := p.thread.Until(ctx, until)
	return err
}

// reached describes the peer that a connection to a service has reached.
type reached struct {
	peer   netip.AddrPort
	ok     bool // the peer is an endpoint of the service
	change int  // the change that added the endpoint
}

// connect makes a connection to a service.
func (p *Push) connect(service int) (r reached, err error) {
	of := 0
	switch to := p.mesh.Mesh.Service(service); {
	case p.answers():
		r.peer, err = connect(unix.SOCK_STREAM, to, answerTimeout, func(fd int) (err error) {
			of, r.change, err = services.ReadAnswer(reader(fd))
			return err
		})
		r.ok = err == nil && of == service && (p.o.Peer != EndpointPeer || r.peer != to)
	case p.mesh.Mesh.Port != 0:
		r.peer, err = connect(unix.SOCK_STREAM, to, connectTimeout, nil)
	default:
		r.peer, err = connect(unix.SOCK_DGRAM, to, connectTimeout, nil)
	}
	if !p.answers() && err == nil {
		of, r.change, r.ok = p.mesh.Mesh.ChangeOf(r.peer)
		r.ok = r.ok && of == service
	}
	return r, err
}

// reader reads from a socket with a timeout.
type reader int

func (fd reader) Read(b []byte) (int, error) {
	for {
		switch n, err := unix.Read(int(fd), b); {
		case errors.Is(err, unix.EINTR): // by a signal of the Go runtime
		case err != nil: // reset, or nothing came in time
			return 0, errors.Join(errNoAnswer, err)
		case n == 0:
			return 0, errNoAnswer
		default:
			return n, nil
		}
	}
}

// errNoAnswer means that a connection was made but ended without a services.Answer: a proxy accepted it, or an endpoint
// that is being replaced.
var errNoAnswer = errors.New("no answer")

// connectTimeout is how long a TCP connection may take. A listener on this machine answers at once, unless its backlog
// is full.
const connectTimeout = time.Second

// answerTimeout is how long a connection to another machine, and its answer, may each take: less than the second after
// which a lost packet is sent again (RFC 6298), because a try that hangs delays the next.
const answerTimeout = 200 * time.Millisecond

// connect makes a connection with a socket of the given kind, calls read with the socket unless read is nil, and
// returns the address of the peer. For TCP, the time limit applies to the connection and to each read.
func connect(
	kind int, to netip.AddrPort, within time.Duration, read func(fd int) error,
) (peer netip.AddrPort, err error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return peer, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was sent
	if kind == unix.SOCK_STREAM {
		timeout := unix.NsecToTimeval(within.Nanoseconds())
		err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			// Closing resets the connection, so that thousands of tries leave no connections in TIME_WAIT.
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
		if err != nil {
			return peer, err
		}
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if errors.Is(err, unix.EINTR) { // by a signal of the Go runtime; the connection is still being made
		err = connected(fd, within)
	}
	if err != nil {
		return peer, err
	}
	name, err := unix.Getpeername(fd)
	if errors.Is(err, unix.ENOTCONN) {
		return netip.AddrPortFrom(to.Addr(), 0), nil // the kernel's error for a socket that was connected to port 0
	}
	if err != nil {
		return peer, err
	}
	v4, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return peer, fmt.Errorf("a peer of type %T", name)
	}
	if read != nil {
		err = read(fd)
	}
	return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), uint16(v4.Port)), err
}

// connected waits until a connection that is being made is complete.
func connected(fd int, within time.Duration) error {
	late := pace.Now() + int64(within)
	for left := int64(within); left > 0; left = late - pace.Now() {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(left/1e6)+1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n > 0:
			code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil || code == 0 {
				return err
			}
			return unix.Errno(code)
		}
	}
	return unix.EINPROGRESS
}

// Run makes changes one after the other, as scheduled, and returns how long they took. A change that begins in the
// window counts, even if it is seen after the window. At least one change counts, even if it takes longer than the
// window. After the window, Run makes one more change, which does not count: when it arrives, the data plane knows that
// it has received all earlier ones. If endpoints identify themselves, Run makes no such change.
func (p *Push) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	// Garbage is collected only between changes: during a change it would look like a slow data plane.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	w := &window{begin: begin, end: end, times: NewTimes(Sent, Usable, Accepted, Whole, Gap), errors: map[string]int64{}}
	cpu, err := s.CPUTime(func() error {
		if err := p.sleep(ctx, s.Begin); err != nil {
			return err
		}
		for began := pace.Now(); began < w.end || w.n == 0; began = pace.Now() {
			if err := p.turn(ctx, w, p.what(), began >= w.begin); err != nil {
				return err
			}
		}
		if p.answers() {
			return nil
		}
		return p.turn(ctx, w, 0, false)
	})
	if err != nil {
		return nil, err
	}
	return w.result(cpu)
}

// keptWaiting is how long the load waits for the mesh's answer to a change after it has given up waiting for
// connections to show the change.
const keptWaiting = time.Second

// enoughTries is the number of tries after which the load collects garbage, before it makes the next change. Each try
// leaves about 200 bytes of garbage.
const enoughTries = 200_000

// what returns the next service to change, or services.All.
func (p *Push) what() int {
	if p.o.What == All {
		return services.All
	}
	return p.random.IntN(len(p.seen))
}

// turn makes one change of a service (or services.All), waits until it is seen, and then pauses. If counts is set, it
// adds the measurements to w.
func (p *Push) turn(ctx context.Context, w *window, service int, counts bool) error {
	asked := pace.Now()
	if err := p.mesh.Ask(service); err != nil {
		return err
	}
	changed := []int{service}
	if service == services.All {
		changed = lastFirst(len(p.seen))
	}
	seen, err := p.watch(ctx, changed, w, counts)
	if err != nil && p.answers() {
		if refused := p.mesh.Refused(keptWaiting); refused != nil {
			return refused
		}
	}
	if err != nil {
		return err
	}
	made, err := p.mesh.Changed()
	if err != nil {
		return err
	}
	if p.answers() {
		made.Set = asked // by the clock of this machine, and before the request was on its way to the mesh
	}
	if counts {
		w.add(made, seen)
		for _, i := range changed {
			if p.seen[i] != made.Number {
				w.errors[another]++
			}
		}
	}
	if p.tries > enoughTries {
		p.tries = 0
		runtime.GC()
	}
	if p.o.Pause > 0 && pace.Now() < w.end {
		return p.sleep(ctx, pace.Now()+int64((0.5+p.random.Float64())*float64(p.o.Pause)))
	}
	return nil
}

// notYet reports whether a connection failed in a way that is expected while the data plane has no configuration or no
// endpoint. The connection may have been refused, or closed without an answer. It may also have gone to the service's
// own address, to which there may be no route, and which may not answer in time. Cilium and Calico refuse with EPERM
// (github.com/cilium/cilium/issues/45184, github.com/projectcalico/felix/pull/3069).
func (p *Push) notYet(err error) bool {
	for _, e := range []error{unix.ECONNREFUSED, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINPROGRESS, errNoAnswer} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.Is(err, unix.EPERM) && p.answers()
}

// lastFirst returns the services in the order in which the load checks them: the last, and then the others from the
// first on. A data plane that updates services one by one in the order of their names updates the last service last;
// one that goes in reverse order updates the first service last.
func lastFirst(n int) []int {
	order := []int{n - 1}
	for i := range n - 1 {
		order = append(order, i)
	}
	return order
}

// sight records when connections showed a change.
type sight struct {
	at  int64 // when a connection that showed it was complete, ns by pace.Now
	gap int64 // ns from the start of the last try without it until at; if there is none, from the start of the first try
}

// watch makes connections until all of the services have shown a change that they did not show before. A service that
// shows the change at its first try may have changed long before, so watch returns the sight of the last service whose
// first try did not show the change, or of the first service if there is none.
func (p *Push) watch(ctx context.Context, services []int, w *window, counts bool) (seen sight, err error) {
	asked := pace.Now()
	late := asked + int64(p.o.Patience)
	failed := int64(0) // when the previous try began, if it did not show the change
	for at := 0; at < len(services); {
		i := services[at]
		began := pace.Now()
		reached, err := p.connect(i)
		now := pace.Now()
		p.tries++
		// While a data plane applies a change piece by piece, a service may have no endpoint, an incomplete one, or not
		// exist, so these errors are expected.
		refused := errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM)
		if err != nil && !p.notYet(err) {
			return seen, fmt.Errorf("connecting to service %d: %w", i, err)
		}
		if counts {
			w.tries++
			switch {
			case refused:
				w.refused++
			case !reached.ok:
				w.wrong++
			}
		}
		if reached.ok && p.newer(reached.change, p.seen[i]) {
			p.seen[i] = reached.change
			if seen.at == 0 || failed != 0 {
				seen = sight{at: now, gap: now - began}
				if failed != 0 {
					seen.gap = now - failed
				}
			}
			failed, at = 0, at+1
			continue
		}
		failed = began
		if now > late {
			return seen, fault.New(fault.Machine, p.mesh.Mesh.Service(i).String(),
				"see what the data plane logs about its control plane",
				"connections to service %d have not shown a change in %v", i, p.o.Patience)
		}
		// A change that takes long is looked for less often: tries cost CPU time, and a resolution of 2 % is enough.
		if err := p.sleep(ctx, began+max(int64(p.o.Interval), (now-asked)/50)); err != nil {
			return seen, err
		}
	}
	return seen, nil
}

// newer reports whether a change is newer than the last one that a service has shown. If endpoints identify themselves,
// the numbers of changes only rise; connections may show an older change again, for example through another thread of a
// proxy. Otherwise numbers start again at some point, so any other number counts as newer.
func (p *Push) newer(change, last int) bool {
	if p.answers() {
		return change > last
	}
	return change != last
}

// another is the name of the error for services whose connections showed a change other than the one that was made.
const another = "another-change"

// window collects the measurements of the changes that count.
type window struct {
	begin, end int64
	times      Times
	n          int64
	tries      int64
	refused    int64
	wrong      int64
	errors     map[string]int64
	slices     [load.Slices]int64
}

func (w *window) add(made services.Change, seen sight) {
	w.n++
	if made.Sent != 0 {
		w.times.Add(Sent, made.Sent-made.Set)
		w.times.Add(Usable, seen.at-made.Sent)
	}
	if made.Accepted != 0 {
		w.times.Add(Accepted, made.Accepted)
	}
	w.times.Add(Whole, seen.at-made.Set)
	w.times.Add(Gap, seen.gap)
	w.slices[min(max(made.Set-w.begin, 0)*load.Slices/(w.end-w.begin), load.Slices-1)]++
}

func (w *window) result(cpu float64) (*load.Result, error) {
	r := &load.Result{
		Generator: Generator, Mode: load.Closed, Seconds: float64(w.end-w.begin) / 1e9,
		Intended: w.n, Sent: w.n, Done: w.n, Errors: w.errors, CPUSeconds: cpu, CPUs: float64(runtime.NumCPU()),
		Counts: map[string]float64{Tries: float64(w.tries), Refused: float64(w.refused), Wrong: float64(w.wrong)},
	}
	r.Rate = float64(w.n) / r.Seconds
	for _, n := range w.slices {
		r.Slices = append(r.Slices, load.Slice{Done: n})
	}
	return r, r.SetHistograms(w.times)
}

// Run runs a load by the role protocol on conn: it prepares, sends ready, waits for the start, makes changes, sends
// the result, and stays until the parent closes its end. If the parent does so earlier, Run ends without an error.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	p, err := Prepare(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return role.Work(ctx, conn, p.Ready(), p.Run)
}
