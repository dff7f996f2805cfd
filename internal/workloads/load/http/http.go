// Package http sends requests to servers of HTTP/1.1, HTTP/2, gRPC and plain TCP, and measures their responses. It runs
// as a separate process (tare load http).
//
// Each of its threads drives its connections through epoll, with raw system calls and without goroutines for
// connections: a request must cost little more than the kernel's share, or the generator would be measured along with
// the server. In open loop, requests start on an absolute schedule (package pace), and latency counts from the intended
// start, whether or not a connection was free then. In closed loop, each connection sends again as soon as it has a
// response.
//
// # Connections
//
// With keep-alive, each connection lives as long as the server allows. Without it, each request opens a connection and
// sends "Connection: close", and the handshake is part of the latency. Once the response is complete, the load closes
// the connection by a reset (SO_LINGER of 0). An orderly close would leave the pair of ports in TIME_WAIT for a minute
// on the side that closes first, and the 28,000 ephemeral ports of one pair of addresses would last a second or two. A
// server that has sent its whole response does not notice the reset; one that reads again gets ECONNRESET. With
// loopback servers, successive connections also use different source addresses in 127.0.0.0/8.
//
// With Recycle, the socket outlives its connection: connecting it to AF_UNSPEC dissolves the connection, with the same
// reset, and the next connect uses the socket again. That saves creating, registering and freeing a socket, about a
// third of a connection's cost to the client. But few real clients do this, and programs that watch the creation and
// release of sockets (cgroup/sock_create, cgroup/sock_release) see neither, so their state for a socket lives on.
// Recycle is for loads that must leave CPU time to others; it is never the default.
//
// # HTTP/2 and gRPC
//
// HTTP/2 is used without TLS, with prior knowledge (RFC 9113, section 3.3), or over TLS. A connection carries up to
// Streams requests at once. In open loop, a start takes the stream that has been free for longest, so requests rotate
// over all connections. x/net implements frames and HPACK; the event loop and the sockets are the same as for HTTP/1.1.
// All requests on one connection are the same, so all but the first consist of references to the server's HPACK table.
//
// When a server sends GOAWAY, requests that it has not processed are sent again over a new connection, up to three
// times, with their start times unchanged; RFC 9113 allows that for any method. Other requests fail if their stream is
// reset, or if their connection violates the protocol or ends. A request that times out is cancelled by RST_STREAM. Its
// connection stays in use if anything was received from the server since the request was sent.
//
// gRPC calls are unary and without compression. They succeed with one message and a grpc-status of 0.
//
// # TLS
//
// TLS is crypto/tls on the load's own threads, so its CPU time counts as the generator's. The TLS handshake counts as
// part of connecting, and is always a full one. Connections end by the same reset as without TLS, without close_notify.
//
// # TCP
//
// A request over TCP is a sequence of bytes that the server returns: the echo protocol of RFC 862. Connections work as
// for HTTP/1.1, with or without keep-alive.
package http

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// Source selects the source addresses of connections.
type Source string

// The kinds of source.
const (
	SourceAuto Source = "auto" // loopback if the target is a loopback IPv4 address, else none
	SourceNone Source = "none" // the kernel's choice
	// SourceLoopback spreads addresses over 127.0.0.0/8, for service addresses that a data plane rewrites to loopback
	// addresses
	SourceLoopback Source = "loopback"
)

// Protocol is the protocol of the load.
type Protocol string

// The protocols.
const (
	HTTP1 Protocol = "http1"
	HTTP2 Protocol = "http2" // with prior knowledge, unless over TLS
	GRPC  Protocol = "grpc"  // unary calls; otherwise like HTTP2
	TCP   Protocol = "tcp"   // the server returns the bytes: RFC 862
)

// multiplexed reports whether a connection can carry several requests at once.
func (p Protocol) multiplexed() bool { return p == HTTP2 || p == GRPC }

// EchoMethod is the gRPC method that is called if a URL names none. Its argument and its result are
// google.protobuf.BytesValue (see package app/http).
const EchoMethod = "/tare.Echo/Echo"

// Options configures the load. A zero field means its default, or the default of its setting.
type Options struct {
	Targets     []string      // URLs: http[s]://host[:port][/path]; connections use them in turn
	TLS         TLS           // default off: cleartext, except for https URLs
	Protocol    Protocol      // default http1
	Streams     int           // concurrent requests on a connection, for HTTP/2 and gRPC; default 1
	Rate        float64       // requests per second over all connections; 0 for closed loop
	Arrivals    pace.Arrivals // distribution of starts in open loop
	Seed        uint64        // seed of Poisson arrivals
	Connections int           // number of connections that are open at once
	KeepAlive   bool
	Threads     int           // default: 1 up to 50,000/s in open loop, else 2 if there are 2 CPUs; at most Connections
	Drain       time.Duration // how long to wait for responses after the window; negative: not at all
	Timeout     time.Duration // limit for one request, from when it was sent
	Method      string        // default GET, or POST with a body or for gRPC
	Body        int           // bytes of request body; for gRPC, of the value in the message; for TCP, at least 1
	Headers     []string      // additional headers, "Name: value"
	Source      Source        // default auto
	// Recycle dissolves connections instead of closing their sockets. It requires KeepAlive to be false. See the package
	// comment.
	Recycle bool
	Spin    time.Duration // longest wait during which a thread spins; default pace.DefaultSpin, negative: none
}

// maxBody is the maximum of Options.Body, in bytes.
const maxBody = 64 << 20

// maxStreams is the maximum of Options.Streams.
const maxStreams = 1000

// oneThread is the rate per second up to which one thread easily keeps an open-loop schedule.
const oneThread = 50_000

// complete fills in defaults, and checks options against each other. An error has the code fault.Usage, or
// fault.Machine if the limit of open files is too low for the connections.
func (o *Options) complete() error {
	defaults := param.Defaults(Settings)
	o.Drain = max(cmp.Or(o.Drain, defaults.Duration("drain")), 0)
	o.Timeout = cmp.Or(o.Timeout, defaults.Duration("timeout"))
	o.Spin = max(cmp.Or(o.Spin, pace.DefaultSpin), 0)
	o.Protocol = cmp.Or(o.Protocol, Protocol(defaults["protocol"]))
	o.Streams = cmp.Or(o.Streams, defaults.Int("streams"))
	if o.Method == "" {
		if o.Method = "GET"; o.Body > 0 || o.Protocol == GRPC {
			o.Method = "POST"
		}
	}
	o.Arrivals = cmp.Or(o.Arrivals, pace.Arrivals(defaults["arrivals"]))
	o.Source = cmp.Or(o.Source, SourceAuto)
	o.Connections = cmp.Or(o.Connections, defaults.Int("connections"))
	cpus := pace.CPUs()
	if o.Threads == 0 {
		if o.Threads = 2; o.Rate > 0 && o.Rate <= oneThread {
			o.Threads = 1
		}
		o.Threads = min(o.Threads, cpus)
	}
	usage := func(where, hint, format string, args ...any) error {
		return fault.New(fault.Usage, where, hint, format, args...)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("reading the limit of open files: %w", err)
	}
	const spare = 64 // descriptors for other uses
	switch {
	case len(o.Targets) == 0:
		return usage("url", "give one like http://127.0.0.1:8080/", "there is nothing to put under load")
	case uint64(o.Connections)+spare > files.Cur:
		return fault.New(fault.Machine, "connections", fmt.Sprintf("raise it (ulimit -n %d) or use fewer connections",
			o.Connections+spare),
			"%d connections need more than the %d open files that are allowed", o.Connections, files.Cur)
	case o.Recycle && o.KeepAlive:
		return usage("recycle", "use it without keep-alive", "connections that are kept are not made again")
	case o.Recycle && len(o.Targets) > 1:
		return usage("recycle", "give one URL", "a socket that is recycled stays with its target")
	case o.Protocol.multiplexed() && o.Recycle:
		return usage("recycle", "use it with protocol http1", "sockets of HTTP/2 are not recycled")
	case o.Protocol == GRPC && o.Method != "POST":
		return usage("method", "leave it out", "calls of gRPC are POST, not %s", o.Method)
	case strings.Trim(o.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || o.Method == "CONNECT":
		return usage("method", "use one like GET or POST", "%q is not a method this load can use", o.Method)
	}
	for _, h := range o.Headers {
		name, _, ok := strings.Cut(h, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") || strings.ContainsAny(h, "\r\n\x00") {
			return usage("header", `give it as "Name: value"`, "%q is not a header", h)
		}
	}
	o.Threads = min(o.Threads, o.Connections)
	if err := o.streams(); err != nil {
		return fault.New(fault.Usage, "streams", "leave it out, or use http2 or grpc with keepalive", "%s", err)
	}
	return nil
}

// streams checks the number of streams against the other options.
func (o *Options) streams() error {
	switch {
	case o.Streams <= 1:
	case !o.Protocol.multiplexed():
		return errors.New("a connection of HTTP/1.1 or TCP carries one request at a time, so streams do not apply")
	case !o.KeepAlive:
		return errors.New("without keepalive each request has a connection of its own, so there is one stream on each")
	}
	return nil
}

// target is one server, with the request prepared for it.
type target struct {
	name    string // address, for messages
	address *address
	spread  bool    // whether to spread its connections over many source addresses
	next    *target // in the ring of all targets

	request  []byte      // for HTTP/1.1 and TCP
	request2 *request2   // for HTTP/2 and gRPC
	config   *tls.Config // nil: cleartext
}

// secure sets up TLS over a new socket to t. It returns nil for cleartext.
func (t *target) secure(fd int) *secure {
	if t.config == nil {
		return nil
	}
	return secureOver(fd, t.config)
}

// resolve returns the targets of the URLs.
func (o *Options) resolve(ctx context.Context) ([]*target, error) {
	var all []*target
	for _, raw := range o.Targets {
		t, err := o.target(ctx, raw)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	for i, t := range all {
		t.next = all[(i+1)%len(all)]
	}
	return all, nil
}

func (o *Options) target(ctx context.Context, raw string) (*target, error) {
	const form = "give it as http://host:port/path, or https://"
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, raw, form, "this is not a URL")
	}
	https := u.Scheme == "https"
	if u.Scheme != "http" && !https && !(o.Protocol == TCP && u.Scheme == "tcp") || u.Hostname() == "" {
		return nil, fault.New(fault.Usage, raw, form, "only http and https URLs can be put under load")
	}
	config := o.config(u.Hostname(), https)
	port := uint64(80)
	if config != nil {
		port = 443
	}
	if p := u.Port(); p != "" {
		if port, err = strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			return nil, fault.New(fault.Usage, raw, form, "the port must be 1 to 65535, got %s", p)
		}
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, raw, "check its spelling, or give the address",
				"no address is known for %s", u.Hostname())
		}
		ip = ips[0].Unmap()
		for _, other := range ips { // prefer IPv4, because only its source addresses can be spread
			if other.Unmap().Is4() {
				ip = other.Unmap()
				break
			}
		}
	}
	ip = ip.Unmap()
	if o.Source == SourceLoopback && !ip.Is4() {
		return nil, fault.New(fault.Usage, raw, "use an IPv4 address, or source auto", "loopback has only one IPv6 address")
	}
	ap := netip.AddrPortFrom(ip, uint16(port))
	t := &target{
		name:    ap.String(),
		address: newAddress(ap),
		spread:  o.Source == SourceLoopback || o.Source == SourceAuto && ip.Is4() && ip.IsLoopback(),
		config:  config,
	}
	switch o.Protocol {
	case HTTP1:
		t.request = o.request(u)
	case TCP:
		t.request = filling(max(o.Body, 1))
	default:
		t.request2, err = o.request2(u, config != nil)
	}
	return t, err
}

// request returns the text of the HTTP/1.1 request to u.
func (o *Options) request(u *url.URL) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", o.Method, u.RequestURI(), u.Host)
	if !o.KeepAlive {
		b.WriteString("Connection: close\r\n")
	}
	if o.Body > 0 || o.Method == "POST" || o.Method == "PUT" || o.Method == "PATCH" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", o.Body)
	}
	for _, h := range o.Headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n")
	return append([]byte(b.String()), filling(o.Body)...)
}

// ofConnections are HTTP/1.1 headers that HTTP/2 does not allow (RFC 9113, section 8.2.2), and headers that this load
// sets itself.
var ofConnections = []string{
	"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "host", "content-length", "te",
}

// request2 returns the HTTP/2 request to u.
func (o *Options) request2(u *url.URL, encrypted bool) (*request2, error) {
	path, scheme := u.RequestURI(), "http"
	if encrypted {
		scheme = "https"
	}
	if o.Protocol == GRPC && path == "/" {
		path = EchoMethod
	}
	r := &request2{grpc: o.Protocol == GRPC}
	add := func(name, value string) { r.fields = append(r.fields, hpack.HeaderField{Name: name, Value: value}) }
	add(":method", o.Method)
	add(":scheme", scheme)
	add(":path", path)
	add(":authority", u.Host)
	if r.grpc {
		r.body = grpcMessage(o.Body)
		add("content-type", "application/grpc")
		add("te", "trailers")
	} else {
		r.body = filling(o.Body)
		if o.Body > 0 || o.Method == "POST" || o.Method == "PUT" || o.Method == "PATCH" {
			add("content-length", strconv.Itoa(o.Body))
		}
	}
	for _, h := range o.Headers {
		name, value, _ := strings.Cut(h, ":")
		name = strings.ToLower(name)
		if slices.Contains(ofConnections, name) || !httpguts.ValidHeaderFieldName(name) {
			return nil, fault.New(fault.Usage, "header", "leave it out", "HTTP/2 cannot have the header %q", name)
		}
		add(name, strings.TrimSpace(value))
	}
	if err := r.encode(); err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	if len(r.first) > largestFrame {
		return nil, fault.New(fault.Usage, "header", "use fewer or shorter ones",
			"the header has %d bytes, and HTTP/2 guarantees room for %d in a frame", len(r.first), largestFrame)
	}
	return r, nil
}

// Generator is a load that is ready to run: names are resolved, at least one server has accepted a connection, and with
// keep-alive the connections are open, unless one could not be opened.
type Generator struct {
	o         Options
	workers   []*worker
	encrypted bool // some connections use TLS
}

// Prepare makes a generator. An error has the code fault.Usage for invalid options, and fault.Machine if no server
// accepts a connection or the limit of open files is too low. The caller must close the generator.
func Prepare(ctx context.Context, o Options) (*Generator, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	targets, err := o.resolve(ctx)
	if err != nil {
		return nil, err
	}
	g := &Generator{o: o, encrypted: slices.ContainsFunc(targets, func(t *target) bool { return t.config != nil })}
	for part := range o.Threads {
		w, err := newWorker(&g.o, targets, part, o.Threads)
		if err != nil {
			g.Close()
			return nil, err
		}
		g.workers = append(g.workers, w)
	}
	if err := g.connect(ctx, targets); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// connect tries every target once, and with keep-alive opens the connections until one cannot be opened. It fails if no
// target accepts a connection. Errors with the code fault.Usage take precedence over others.
func (g *Generator) connect(ctx context.Context, targets []*target) error {
	var answered int
	var first error
	for _, t := range targets {
		switch err := g.workers[0].try(ctx, t); {
		case err == nil:
			answered++
		case first == nil || fault.CodeOf(err) == fault.Usage:
			first = err
		}
	}
	if answered == 0 || fault.CodeOf(first) == fault.Usage {
		return first
	}
	if !g.o.KeepAlive {
		return nil
	}
	for _, w := range g.workers {
		if all, err := w.openAll(ctx); !all {
			return err
		}
	}
	return nil
}

// try opens a connection to a target and closes it.
func (w *worker) try(ctx context.Context, t *target) error {
	if w.mux != nil {
		return w.mux.try(ctx, t)
	}
	s := slot{target: t, fd: -1}
	err := w.establish(ctx, &s)
	w.hangUp(&s)
	return err
}

// openAll opens the worker's connections, and reports whether it could open all of them. It stops at the first that
// cannot be opened, which is not an error here: the load opens the others when it needs them, and counts a failure if
// that is not possible.
func (w *worker) openAll(ctx context.Context) (all bool, err error) {
	if w.mux != nil {
		for place := range w.mux.places {
			if _, err := w.mux.establish(ctx, int32(place)); err != nil {
				return false, ctx.Err()
			}
		}
		return true, nil
	}
	for i := range w.slots {
		if err := w.establish(ctx, &w.slots[i]); err != nil {
			return false, ctx.Err()
		}
		if errno := w.watch(int32(i), unix.EPOLL_CTL_ADD, false); errno != 0 {
			return false, fmt.Errorf("watching a connection: %w", errno)
		}
		w.count.maxOpen = max(w.count.maxOpen, w.open)
	}
	return true, nil
}

// startServer is the hint in an error about a connection that could not be made.
const startServer = "start the server, or correct the URL"

// patience limits the time that a server may take to accept a connection before the start, in ns.
const patience = 5e9

// establish opens the slot's connection and waits until it is established.
func (w *worker) establish(ctx context.Context, s *slot) error {
	errno := w.dial(s)
	if errno != 0 {
		return fault.Wrap(errno, fault.Machine, s.target.name, startServer, "no connection could be made")
	}
	events := int16(unix.POLLOUT)
	for deadline := pace.Now() + patience; ; {
		ready := []unix.PollFd{{Fd: int32(s.fd), Events: events}}
		n, err := unix.Poll(ready, 50)
		switch {
		case ctx.Err() != nil:
			err = ctx.Err()
		case err == unix.EINTR || err == nil && n == 0 && pace.Now() < deadline:
			continue
		case err == nil && n == 0:
			err = unix.ETIMEDOUT
		case err == nil:
			var code int
			if code, err = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
				err = unix.Errno(code)
			} else if err == nil {
				errno, awaited := s.shake()
				if errno == 0 {
					return nil
				}
				if errno == unix.EAGAIN && pace.Now() < deadline {
					events = awaited
					continue
				}
				err = errno
			}
		}
		var explained error
		if s.tls != nil && s.tls.proceed != nil { // otherwise there was no connection yet
			explained = s.tls.explain(s.target.name, err)
		}
		w.hangUp(s)
		if ctx.Err() != nil {
			return err
		}
		if explained != nil {
			return explained
		}
		return fault.Wrap(err, fault.Machine, s.target.name, startServer, "no connection could be made")
	}
}

// shake continues the slot's TLS handshake, if there is one. If it returns EAGAIN, the second result is the poll events
// to wait for.
func (s *slot) shake() (errno unix.Errno, awaited int16) {
	if s.tls == nil {
		return 0, 0
	}
	if s.tls.shaking {
		errno = s.tls.shake()
	}
	if errno == 0 {
		errno = s.tls.flush()
	}
	if awaited = unix.POLLIN; s.tls.pending() {
		awaited |= unix.POLLOUT
	}
	return errno, awaited
}

// Close closes all connections. It must not be called while the generator runs.
func (g *Generator) Close() {
	for _, w := range g.workers {
		w.close()
	}
}

// Ready is the data of the generator's ready message.
type Ready struct {
	Targets     []string `json:"targets"`
	Threads     int      `json:"threads"`
	Connections int      `json:"connections"` // open now
	role.Wants
}

// Ready describes the generator.
func (g *Generator) Ready() Ready {
	r := Ready{Targets: g.o.Targets, Threads: len(g.workers), Wants: role.Wants{Stalls: true}}
	for _, w := range g.workers {
		r.Connections += w.open
	}
	return r
}

// Run generates the load on the schedule and returns its result. If ctx ends first, Run returns its error. A generator
// runs only once.
func (g *Generator) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	for part, w := range g.workers {
		w.schedule, w.warm, w.end = s, begin, end
		if g.o.Rate > 0 {
			w.arrivals = pace.NewSchedule(s.Begin, g.o.Rate, g.o.Arrivals, g.o.Seed, part, len(g.workers))
		}
		if s.Stalls {
			w.log = running.NewLog(g.logged(s))
		}
	}
	// HTTP/1.1 in cleartext does not allocate. HTTP/2 and TLS allocate little while connections are kept, and some
	// kilobytes for each new one.
	garbage := g.o.Protocol.multiplexed() || g.encrypted
	cpu, err := running.Drive(ctx, s, len(g.workers), garbage, func(ctx context.Context, part int) error {
		return g.workers[part].run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return g.result(s, cpu)
}

// logged returns the capacity of a worker's log, in requests: a third more than the schedule has, plus a reserve.
func (g *Generator) logged(s role.Schedule) int {
	parts := float64(len(g.workers))
	most := running.MostRequests / parts
	if g.o.Rate > 0 {
		most = min(most, g.o.Rate*float64(s.Duration)/1e9/parts*4/3+float64(2*g.o.Connections)+1000)
	}
	return int(most)
}

// classify adds to a result the measurements of requests that stalls of the machine did not affect, if the workers
// logged their requests.
func (g *Generator) classify(r *load.Result, stalls *role.Stalls) error {
	logs := lists.Map(g.workers, func(w *worker) *running.Log { return w.log })
	return running.Classify(r, logs, stalls, g.workers[0].warm, g.workers[0].end)
}

// result merges the counts of the workers.
func (g *Generator) result(s role.Schedule, cpu float64) (*load.Result, error) {
	r := &load.Result{
		Generator:   "http",
		Mode:        load.Closed,
		Seconds:     float64(s.Duration) / 1e9,
		TargetRate:  g.o.Rate,
		Connections: g.o.Connections,
		Errors:      map[string]int64{},
		Histograms:  map[string]string{},
		CPUSeconds:  cpu,
		CPUs:        float64(min(len(g.workers), pace.CPUs())),
	}
	if g.o.Rate > 0 {
		r.Mode, r.Arrivals = load.Open, string(g.o.Arrivals)
	}
	if g.o.Protocol.multiplexed() {
		r.Streams = g.o.Streams
	}
	sum := load.NewTally()
	for _, w := range g.workers {
		c := &w.count
		r.Opened += c.opened
		r.MaxConnections += c.maxOpen
		r.MeanConnections += w.held.mean()
		c.errors(r.Errors)
		sum.Merge(&c.Tally)
	}
	return r, sum.Into(r)
}

// Run runs the load by the role protocol on conn: it prepares, sends the ready message, waits for the start, runs,
// sends the result, and waits until the parent closes its end. If the parent closes earlier, Run ends without an error.
func Run(ctx context.Context, o Options, conn *role.Conn) error {
	g, err := Prepare(ctx, o)
	if err != nil {
		return err
	}
	defer g.Close()
	return role.WorkThenStalls(ctx, conn, g.Ready(), g.Run, g.classify)
}
