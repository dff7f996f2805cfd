package http

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/experiment/role"
	"tare/internal/lib/files"
	"tare/internal/lib/pace"
)

// worker is one thread with an epoll set, its share of the connections and its share of the schedule. It does not
// allocate memory while it runs, except for HTTP/2 and TLS.
type worker struct {
	o        *Options
	schedule role.Schedule
	arrivals *pace.Schedule // nil in closed loop
	thread   *pace.Thread
	stop     atomic.Bool

	epoll  int
	slots  []slot
	free   queue // slots without a request
	rest   queue // slots that pause after an error (closed loop)
	oldest int32 // the first slot in the list of requests in flight, which is ordered by slot.sent; -1: the list is empty
	newest int32 // the last slot in that list
	busy   int   // requests in flight
	open   int   // number of open connections
	mux    *mux  // for HTTP/2, where slots are streams; nil for other protocols

	source *address // address for the next connection, if source addresses are spread
	ip     [4]byte  // source address used last
	events []unix.EpollEvent
	buffer []byte

	warm, end int64 // edges of the measured window, ns by pace.Now
	held      held  // connections in the window
	count     counts
	log       *running.Log // nil if stalls are not reported
}

// counts holds the counts of a worker.
type counts struct {
	load.Tally
	opened   int64
	maxOpen  int
	connect  *hdrhistogram.Histogram
	failures [kinds]int64
	statuses [600]int64          // responses by status, for 400 and above
	codes    [lastCode + 1]int64 // responses by gRPC status, except 0
}

func newCounts() counts {
	c := counts{Tally: load.NewTally()}
	c.connect = c.Histogram(load.Connect)
	return c
}

// failure is the reason why a request failed.
type failure uint8

const (
	none failure = iota
	connectRefused
	connectUnreachable
	connectPorts
	connectDescriptors
	connectTimeout
	connectOther
	tlsFailed
	writeFailed
	readReset
	readOther
	closedEarly
	badResponse
	requestTimeout
	streamReset
	streamRefused
	connectionLeft
	badStatus // counted by its status
	badGRPC   // counted by its code
	kinds
)

// gRPC's codes are 0 to 16. Any other code counts as unknown (grpc/grpc, doc/statuscodes.md).
const (
	unknownCode = 2
	lastCode    = 16
)

var failureNames = [kinds]string{
	connectRefused:     "connect-refused",
	connectUnreachable: "connect-unreachable",
	connectPorts:       "connect-no-ports",
	connectDescriptors: "connect-no-descriptors",
	connectTimeout:     "connect-timeout",
	connectOther:       "connect",
	tlsFailed:          "tls",
	writeFailed:        "write",
	readReset:          "reset",
	readOther:          "read",
	closedEarly:        "closed",
	badResponse:        "response",
	requestTimeout:     "timeout",
	streamReset:        "stream-reset",
	streamRefused:      "stream-refused",
	connectionLeft:     "goaway",
}

func connectFailure(errno unix.Errno) failure {
	switch errno {
	case unix.ECONNREFUSED:
		return connectRefused
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EPERM:
		return connectUnreachable
	case unix.EADDRNOTAVAIL, unix.EADDRINUSE:
		return connectPorts
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		return connectDescriptors
	case unix.ETIMEDOUT:
		return connectTimeout
	case unix.EPROTO: // secure returned it
		return tlsFailed
	}
	return connectOther
}

// readFailure classifies an error of an established connection.
func readFailure(errno unix.Errno) failure {
	switch errno {
	case unix.ECONNRESET, unix.EPIPE:
		return readReset
	case unix.EPROTO: // secure returned it
		return tlsFailed
	}
	return readOther
}

func writeFailure(errno unix.Errno) failure {
	if kind := readFailure(errno); kind != readOther {
		return kind
	}
	return writeFailed
}

// errors adds the failures to m, by name.
func (c *counts) errors(m map[string]int64) {
	for kind, n := range c.failures {
		if n > 0 && failureNames[kind] != "" {
			m[failureNames[kind]] += n
		}
	}
	for status, n := range c.statuses {
		if n > 0 {
			m["status-"+strconv.Itoa(status)] += n
		}
	}
	for code, n := range c.codes {
		if n > 0 {
			m["grpc-status-"+strconv.Itoa(code)] += n
		}
	}
}

// slot is one connection with its current request or, in HTTP/2, one stream.
type slot struct {
	fd         int     // -1 when closed
	tls        *secure // TLS on the connection; nil: cleartext
	target     *target
	state      state
	dissolved  bool  // the socket exists, but is not connected (Options.Recycle)
	watched    bool  // epoll watches it
	writable   bool  // epoll also watches for room to write
	written    int   // bytes of the request that were written
	intended   int64 // ns by pace.Now, like the next three times
	sent       int64
	dialled    int64 // start of the handshake; 0 if the connection already existed
	freed      int64 // end of the previous request
	shook      int64 // length of the handshake, ns; -1 if there was none
	prev, next int32 // neighbours in the list of requests in flight; -1 at the ends
	response   response

	// Only for HTTP/2.
	carrier *connection // connection that carries the request; nil without a request
	code    int         // grpc-status of the response
	resends int
}

type state uint8

const (
	idle state = iota
	connecting
	sending
	receiving
)

// held integrates the number of open connections over time, for their mean.
type held struct {
	open        int     // connections that were open at the last observation
	from, to    int64   // the observed time, ns by pace.Now; 0 before the first observation
	connections float64 // the integral over that time of the open connections, in connections times ns
}

// until adds the time up to now to the observation. The argument open is the number of open connections from then on.
func (h *held) until(now int64, open int) {
	if h.from == 0 {
		h.from, h.to = now, now
	}
	h.connections += float64(h.open) * float64(now-h.to)
	h.open, h.to = open, now
}

// mean returns the mean number of open connections.
func (h *held) mean() float64 {
	if h.to == h.from {
		return float64(h.open)
	}
	return h.connections / float64(h.to-h.from)
}

// queue is a ring of slot numbers with room for all of them.
type queue struct {
	ring    []int32
	at, len int
}

func (q *queue) push(i int32) {
	q.ring[(q.at+q.len)%len(q.ring)] = i
	q.len++
}

func (q *queue) first() int32 { return q.ring[q.at] }

func (q *queue) pop() int32 {
	i := q.ring[q.at]
	q.at = (q.at + 1) % len(q.ring)
	q.len--
	return i
}

// newWorker returns the worker with the index part, of parts workers in all. Its connections are not open yet.
func newWorker(o *Options, targets []*target, part, parts int) (*worker, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an epoll set: %w", err)
	}
	n := o.Connections / parts
	if part < o.Connections%parts {
		n++
	}
	connections := n
	if o.Protocol.multiplexed() {
		n *= o.Streams
	}
	w := &worker{
		o: o, epoll: epoll, oldest: -1, newest: -1,
		slots:  make([]slot, n),
		free:   queue{ring: make([]int32, n)},
		rest:   queue{ring: make([]int32, n)},
		events: make([]unix.EpollEvent, 64),
		buffer: make([]byte, 64<<10),
		count:  newCounts(),
	}
	w.ip, w.source = [4]byte{127, byte(part%250) + 1, 0,
		0}, newAddress(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0))
	for i := range w.slots {
		w.slots[i] = slot{fd: -1, target: targets[(part+i*parts)%len(targets)], prev: -1, next: -1}
		w.free.push(int32(i))
	}
	if o.Protocol.multiplexed() {
		w.mux = newMux(w, targets, part, parts, connections)
	}
	return w, nil
}

// close closes the connections, with a reset as everywhere in this package, and the epoll set.
func (w *worker) close() {
	for i := range w.slots {
		w.hangUp(&w.slots[i])
	}
	if w.mux != nil {
		w.mux.close()
	}
	files.CloseRaw(w.epoll)
}

// run processes the worker's share of the schedule. It returns when all requests have ended, the drain is over, or the
// context has ended.
func (w *worker) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { w.stop.Store(true) })()
	thread, err := pace.LockThread(w.o.Spin)
	if err != nil {
		return err
	}
	w.thread = thread
	err = w.loop(w.end + int64(w.o.Drain))
	now := pace.Now()
	for i := w.oldest; i >= 0; i = w.slots[i].next { // requests still without an answer
		w.keep(&w.slots[i], now, false)
	}
	for i := range w.slots { // connections whose handshake is not complete
		if w.slots[i].state == connecting {
			w.hangUp(&w.slots[i])
		}
	}
	if w.mux != nil {
		w.mux.abandon()
	}
	for ; w.owing(); w.arrivals.Advance() { // requests that were never sent
		if w.arrivals.Peek() >= w.warm {
			w.count.Intended++
			w.log.Add(w.arrivals.Peek(), now, now, 0, -1, false)
		}
	}
	return errors.Join(err, thread.Close())
}

func (w *worker) loop(drained int64) error {
	for !w.stop.Load() {
		now := w.startDue(pace.Now())
		w.expire(now)
		w.held.until(min(max(now, w.warm), w.end), w.open)
		over := !w.owing() && (w.arrivals != nil || now >= w.end)
		if over && w.busy == 0 || now >= drained {
			return nil
		}
		if err := w.wait(now, drained); err != nil {
			return err
		}
	}
	return nil
}

// owing reports whether the schedule has another start before the end of the window.
func (w *worker) owing() bool { return w.arrivals != nil && w.arrivals.Peek() < w.end }

// startDue starts the requests that are due, as long as connections are free, and returns the current time. Requests
// that must wait stay in the schedule, so no intended start is lost or reordered.
func (w *worker) startDue(now int64) int64 {
	if w.arrivals == nil {
		if now < w.schedule.Begin || now >= w.end {
			return now
		}
		for w.rest.len > 0 && w.slots[w.rest.first()].freed+restAfterError <= now {
			w.free.push(w.rest.pop())
		}
		for n := w.free.len; n > 0; n-- {
			w.start(w.free.pop(), now, now)
			now = pace.Now()
		}
		w.flush()
		return now
	}
	for w.free.len > 0 && w.arrivals.Peek() <= now && w.owing() {
		intended := w.arrivals.Peek()
		w.arrivals.Advance()
		w.start(w.free.pop(), intended, now)
		w.flush()
		now = pace.Now()
	}
	return now
}

// flush writes the pending output of HTTP/2. Other protocols write at once.
func (w *worker) flush() {
	if w.mux != nil {
		w.mux.flush()
	}
}

// wait waits for events until a start or a timeout is due, and handles them.
func (w *worker) wait(now, drained int64) error {
	until := min(now+50e6, drained) // so that w.stop is checked every 50 ms
	due, precise := w.due(now)
	if w.oldest >= 0 {
		if expiry := w.slots[w.oldest].sent + int64(w.o.Timeout); expiry < due {
			due, precise = expiry, false
		}
	}
	until, precise = min(until, due), precise && due < until

	var n int
	var errno unix.Errno
	if until <= now {
		n, errno = sysPoll(w.epoll, w.events) // spin, because the start is less than a margin away
	} else {
		n, errno = sysWait(w.epoll, w.events, until-now)
		if precise && n == 0 && errno == 0 {
			w.thread.Woke(until, pace.Now())
		}
	}
	if errno == unix.EINTR { // interrupted by a signal of the Go runtime
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("waiting for connections: %w", errno)
	}
	for i := range w.events[:n] {
		w.handle(w.events[i].Fd, w.events[i].Events)
		if w.arrivals != nil && w.free.len > 0 { // a long batch must not delay the schedule
			w.startDue(pace.Now())
		}
	}
	return nil
}

// due returns when to check the schedule again, and whether the check must be precise.
func (w *worker) due(now int64) (at int64, precise bool) {
	switch {
	case w.owing():
		if w.free.len > 0 {
			return w.arrivals.Peek() - w.thread.Margin(), true
		}
	case w.arrivals == nil && now < w.schedule.Begin:
		return w.schedule.Begin, false
	case w.rest.len > 0:
		return w.slots[w.rest.first()].freed + restAfterError, false
	}
	return math.MaxInt64, false
}

// start sends a request on slot i, over a new connection if the slot has none. The caller must have removed i from the
// free queue.
func (w *worker) start(i int32, intended, now int64) {
	s := &w.slots[i]
	s.intended, s.sent, s.dialled, s.written, s.shook = intended, now, 0, 0, -1
	s.response.reset(w.o.Method == "HEAD")
	if w.o.Protocol == TCP {
		s.response.echoOf(s.target.request)
	}
	w.busy++
	s.prev, s.next = w.newest, -1
	if w.newest >= 0 {
		w.slots[w.newest].next = i
	} else {
		w.oldest = i
	}
	w.newest = i
	if w.counted(s) {
		lag := int64(-1)
		if w.arrivals != nil {
			lag = max(now-max(intended, s.freed), 0)
		}
		w.count.Began(intended, now, lag)
	}
	if w.mux != nil {
		s.resends = 0
		w.mux.start(i, now)
		return
	}
	s.state = sending
	if s.fd < 0 || s.dissolved {
		if !w.o.KeepAlive {
			s.target = s.target.next
		}
		s.state, s.dialled = connecting, now
		if errno := w.dial(s); errno != 0 {
			w.finish(i, pace.Now(), connectFailure(errno))
			return
		}
	}
	w.write(i)
}

// counted reports whether the slot's request belongs to the measured window.
func (w *worker) counted(s *slot) bool { return s.intended >= w.warm && s.intended < w.end }

var (
	optionOn  int32 = 1
	resetOnly       = unix.Linger{Onoff: 1, Linger: 0}
)

// dial begins a connection. Over loopback the handshake is complete when dial returns, although connect reports
// EINPROGRESS: the kernel processes the whole exchange before it releases the socket. The write that follows shows
// whether the handshake is complete.
func (w *worker) dial(s *slot) unix.Errno {
	if s.dissolved {
		if errno := sysConnect(s.fd, s.target.address); errno != 0 && errno != unix.EINPROGRESS {
			w.hangUp(s)
			return errno
		}
		s.dissolved, s.tls = false, s.target.secure(s.fd)
		w.open++
		return 0
	}
	// TCP_NODELAY, so that the end of a request does not wait until its beginning is acknowledged. A single short write
	// never waits.
	fd, errno := w.socket(s.target, w.o.KeepAlive || len(s.target.request) > 1000)
	if errno != 0 {
		return errno
	}
	s.fd, s.tls, s.watched, s.writable = fd, s.target.secure(fd), false, false
	w.open++
	return 0
}

// socket creates a socket and begins its connection.
func (w *worker) socket(t *target, noDelay bool) (int, unix.Errno) {
	fd, errno := sysSocket(t.address.family)
	if errno != 0 {
		return -1, errno
	}
	errno = sysSetsockopt(fd, unix.SOL_SOCKET, unix.SO_LINGER, unsafe.Pointer(&resetOnly), unsafe.Sizeof(resetOnly))
	if errno == 0 && noDelay {
		errno = sysSetsockopt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, unsafe.Pointer(&optionOn), unsafe.Sizeof(optionOn))
	}
	if errno == 0 && t.spread {
		errno = w.bind(fd)
	}
	if errno == 0 {
		errno = sysConnect(fd, t.address)
	}
	if errno != 0 && errno != unix.EINPROGRESS {
		files.CloseRaw(fd)
		return -1, errno
	}
	return fd, 0
}

// bind gives the socket this worker's next source address. The kernel chooses the port in connect(2), so connections to
// different destinations can share a port.
func (w *worker) bind(fd int) unix.Errno {
	const spread = 250 // addresses per worker, with 28,000 ports each
	w.ip[3] = w.ip[3]%spread + 1
	w.source.setIPv4(w.ip)
	errno := sysSetsockopt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, unsafe.Pointer(&optionOn),
		unsafe.Sizeof(optionOn))
	if errno != 0 {
		return errno
	}
	return sysBind(fd, w.source)
}

// watch makes epoll report each arrival on the slot's connection once (edge-triggered), and also room to write if
// writable is set.
func (w *worker) watch(i int32, op int, writable bool) unix.Errno {
	s := &w.slots[i]
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | edgeTriggered, Fd: i}
	if writable {
		event.Events |= unix.EPOLLOUT
	}
	s.watched, s.writable = true, writable
	return sysEpollCtl(w.epoll, op, s.fd, &event)
}

const edgeTriggered = 1 << 31 // EPOLLET; the constant of package unix is negative

// write writes as much of the rest of the request as the socket has room for.
func (w *worker) write(i int32) {
	s := &w.slots[i]
	var before int64
	if s.state == connecting {
		before = pace.Now()
	}
	n, errno := put(s.fd, s.tls, s.target.request[s.written:])
	if errno == 0 && s.state == connecting {
		w.connected(s, s.tls.shookAt(before))
	}
	switch {
	case errno == unix.EAGAIN:
		n = 0
	case errno != 0 && s.state == connecting:
		w.finish(i, pace.Now(), connectFailure(errno))
		return
	case errno != 0:
		w.finish(i, pace.Now(), writeFailure(errno))
		return
	}
	s.written += n
	all := s.written == len(s.target.request) && !s.tls.pending()
	if all {
		s.state = receiving
	}
	switch {
	case !s.watched:
		errno = w.watch(i, unix.EPOLL_CTL_ADD, !all)
	case !all && !s.writable:
		errno = w.watch(i, unix.EPOLL_CTL_MOD, true)
	default:
		return
	}
	if errno != 0 {
		w.finish(i, pace.Now(), connectFailure(errno))
	}
}

// connected records that the handshake of a slot's connection ended at the given time, which is before the request was
// written: the size and cost of the request are no part of the handshake.
func (w *worker) connected(s *slot, now int64) {
	s.state = sending
	w.count.maxOpen = max(w.count.maxOpen, w.open)
	if now >= w.warm && now < w.end {
		w.count.opened++
	}
	s.shook = now - s.dialled
	if w.counted(s) {
		load.Record(w.count.connect, s.shook)
	}
}

// handle processes one event of the connection of slot i.
func (w *worker) handle(i int32, events uint32) {
	if w.mux != nil {
		w.mux.handle(i, events)
		return
	}
	s := &w.slots[i]
	if s.fd < 0 || s.dissolved {
		return // closed earlier in the same batch, or dissolved by this side
	}
	if s.state == connecting || s.state == sending && events&unix.EPOLLOUT != 0 {
		if w.write(i); s.fd < 0 || s.state == connecting {
			return
		}
	}
	const ends = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	for {
		n, errno := take(s.fd, s.tls, w.buffer)
		if errno == unix.EAGAIN {
			return
		}
		if s.state == idle { // the server closed an idle connection, or sent data without a request
			w.hangUp(s)
			return
		}
		if errno != 0 {
			w.finish(i, pace.Now(), readFailure(errno))
			return
		}
		if n == 0 {
			kind := none
			if s.response.eof() != nil {
				kind = closedEarly
			}
			w.finish(i, pace.Now(), kind)
			return
		}
		took, done, err := s.response.feed(w.buffer[:n])
		if err != nil || done && took < n { // bytes beyond the end: the length in the response was wrong
			w.finish(i, pace.Now(), badResponse)
			return
		}
		if done {
			w.finish(i, pace.Now(), none)
			return
		}
		if n < len(w.buffer) && events&ends == 0 && s.tls == nil {
			return // drained: later data is a new edge
		}
	}
}

// finish ends the request of slot i at the given time. If kind is none, the request was answered, and otherwise it
// failed.
func (w *worker) finish(i int32, now int64, kind failure) {
	s := &w.slots[i]
	if s.prev >= 0 {
		w.slots[s.prev].next = s.next
	} else {
		w.oldest = s.next
	}
	if s.next >= 0 {
		w.slots[s.next].prev = s.prev
	} else {
		w.newest = s.prev
	}
	w.busy--
	reuse := kind == none && w.o.KeepAlive && s.state == receiving && s.response.reusable()
	if kind == none && s.response.status >= 400 {
		kind = badStatus
	}
	w.tally(s, now, kind)
	w.keep(s, now, kind == none)
	s.state, s.freed = idle, now
	switch {
	case w.mux != nil:
		w.mux.release(i, kind)
	case reuse:
	case kind == none && w.o.Recycle:
		w.dissolve(s)
	default:
		w.hangUp(s)
	}
	switch {
	case w.arrivals != nil || now >= w.end:
		w.free.push(i)
	case kind == none:
		w.start(i, now, now)
	default:
		w.rest.push(i)
	}
}

// restAfterError is the pause of a slot after a failed request in closed loop, in ns. Without the pause, requests to a
// dead server would fail as fast as the CPU allows.
const restAfterError = 10e6

// tally counts a request that has ended. Failures count if the request belongs to the measured window.
func (w *worker) tally(s *slot, now int64, kind failure) {
	c := &w.count
	if kind == none {
		c.Answered(s.intended, s.sent, now, w.warm, w.end)
	} else if !w.counted(s) {
		return
	} else if kind == badStatus {
		c.statuses[s.response.status]++
	} else if kind == badGRPC {
		code := s.code
		if code > lastCode {
			code = unknownCode
		}
		c.codes[code]++
	} else {
		c.failures[kind]++
	}
}

// keep logs a request that ends in the window or later. Warm-up requests do not count, but later requests may have
// waited for them.
func (w *worker) keep(s *slot, now int64, answered bool) {
	if w.log == nil || now < w.warm {
		return
	}
	lag := int64(-1)
	if w.arrivals != nil {
		lag = s.sent - max(s.intended, s.freed)
	}
	w.log.Add(s.intended, s.sent, now, lag, s.shook, answered)
}

// expire fails the requests that have waited for their response longer than the timeout.
func (w *worker) expire(now int64) {
	for w.oldest >= 0 && now-w.slots[w.oldest].sent >= int64(w.o.Timeout) {
		kind := requestTimeout
		if w.slots[w.oldest].state == connecting {
			kind = connectTimeout
		}
		w.finish(w.oldest, now, kind)
	}
	w.flush()
}

// hangUp closes the slot's connection, if it has one. SO_LINGER of 0 turns the close into a reset, so neither side
// keeps the pair of ports in TIME_WAIT. A server that has sent its whole response loses nothing; if it reads again, it
// gets ECONNRESET instead of the end of the stream.
func (w *worker) hangUp(s *slot) {
	if s.fd < 0 {
		return
	}
	s.tls.close()
	files.CloseRaw(s.fd)
	if !s.dissolved {
		w.open--
	}
	s.fd, s.tls, s.dissolved = -1, nil, false
}

// dissolve resets the slot's connection, but keeps the socket with its options and source address.
func (w *worker) dissolve(s *slot) {
	if sysConnect(s.fd, noAddress) != 0 {
		w.hangUp(s)
		return
	}
	s.dissolved = true
	w.open--
}
