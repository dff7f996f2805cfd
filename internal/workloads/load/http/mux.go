package http

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/pace"
)

// mux is a worker's side of HTTP/2: connections that carry several requests at once. The worker's slots are streams:
// with n places for connections, slot i is stream i/n of the connection at place i%n, so consecutive slots are on
// different connections.
//
// Sessions only fill their output. flush writes it once everything that is due has been added.
type mux struct {
	w       *worker
	codec   *codec
	streams int // number of streams on each connection
	places  []place
	byID    []*connection // by the id that epoll reports; nil if the id is free
	freeIDs []int32
	dirty   []*connection // connections that flush must process
}

// place holds one of the worker's connections. When the connection ends, another one takes its place.
type place struct {
	target *target
	now    *connection // connection for new requests; nil if the next request must dial
}

// connection is an HTTP/2 connection. After GOAWAY it stays open until its requests have ended, while another
// connection takes its place.
type connection struct {
	*session
	mux        *mux
	id         int32
	place      int32
	fd         int
	tls        *secure // TLS on the connection; nil: cleartext
	written    int     // bytes of the session's output that were written
	waiting    []int32 // slots whose requests wait because of the server's limit on streams
	opener     int32   // the slot whose request dialled; -1: none
	dialled    int64   // ns by pace.Now
	heard      int64   // when data last arrived, ns by pace.Now
	connecting bool
	watched    bool // epoll watches it
	writable   bool // epoll also watches for room to write
	marked     bool // it is in mux.dirty
	gone       bool
	why        error // why it is gone
}

// maxResends is the maximum number of times that a request is sent again after servers left it unprocessed.
const maxResends = 3

func newMux(w *worker, targets []*target, part, parts, connections int) *mux {
	m := &mux{w: w, codec: newCodec(), streams: w.o.Streams, places: make([]place, connections)}
	for i := range m.places {
		m.places[i].target = targets[(part+i*parts)%len(targets)]
	}
	return m
}

// at returns the place of slot i, and the index of the slot's stream there.
func (m *mux) at(i int32) (p *place, index int) {
	n := int32(len(m.places))
	return &m.places[i%n], int(i / n)
}

// slot returns the slot of a stream of the connection; it is the inverse of mux.at.
func (c *connection) slot(index int) int32 { return int32(index*len(c.mux.places)) + c.place }

// start sends the request of slot i.
func (m *mux) start(i int32, now int64) {
	p, index := m.at(i)
	s := &m.w.slots[i]
	c := p.now
	if c == nil || c.leaving {
		if !m.w.o.KeepAlive {
			p.target = p.target.next
		}
		var errno unix.Errno
		if c, errno = m.dial(i%int32(len(m.places)), now); errno != 0 {
			m.w.finish(i, pace.Now(), connectFailure(errno))
			return
		}
		c.opener, s.dialled = i, now
	}
	s.carrier, s.state = c, sending
	if c.connecting {
		s.state = connecting
	}
	c.mark()
	if len(c.waiting) > 0 || !c.open() {
		c.waiting = append(c.waiting, i)
		return
	}
	m.send(c, i, index)
}

func (m *mux) send(c *connection, i int32, index int) {
	if c.send(index) != nil { // not expected: Prepare has already encoded the same header
		m.w.finish(i, pace.Now(), writeFailed)
	}
}

// dial begins a connection for a place. The connection's output begins with the greeting.
func (m *mux) dial(place int32, now int64) (*connection, unix.Errno) {
	p := &m.places[place]
	fd, errno := m.w.socket(p.target, true)
	if errno != 0 {
		return nil, errno
	}
	if len(m.freeIDs) == 0 {
		m.freeIDs = append(m.freeIDs, int32(len(m.byID)))
		m.byID = append(m.byID, nil)
	}
	last := len(m.freeIDs) - 1
	c := &connection{mux: m, id: m.freeIDs[last], place: place, fd: fd, tls: p.target.secure(fd),
		opener: -1, dialled: now, connecting: true}
	m.freeIDs = m.freeIDs[:last]
	c.session = newSession(c, m.codec, p.target.request2, m.streams)
	m.byID[c.id], p.now = c, c
	m.w.open++
	return c, 0
}

// mark adds the connection to those that flush processes.
func (c *connection) mark() {
	if !c.marked {
		c.marked = true
		c.mux.dirty = append(c.mux.dirty, c)
	}
}

// flush writes pending output, and closes connections that are finished.
func (m *mux) flush() {
	for len(m.dirty) > 0 {
		last := len(m.dirty) - 1
		c := m.dirty[last]
		m.dirty = m.dirty[:last]
		c.marked = false
		if c.gone {
			continue
		}
		if c.leaving {
			if m.places[c.place].now == c {
				m.places[c.place].now = nil
			}
			waiting := c.waiting
			c.waiting = nil
			for _, i := range waiting {
				m.start(i, pace.Now())
			}
		}
		for len(c.waiting) > 0 && c.open() {
			i := c.waiting[0]
			c.waiting = c.waiting[:copy(c.waiting, c.waiting[1:])]
			_, index := m.at(i)
			m.send(c, i, index)
		}
		if c.leaving && c.active == 0 {
			m.hangUp(c)
			continue
		}
		m.write(c)
	}
}

// write writes as much of the connection's output as the socket has room for.
func (m *mux) write(c *connection) {
	for len(c.out) > 0 || c.tls.pending() {
		var before int64
		if c.connecting {
			before = pace.Now()
		}
		n, errno := put(c.fd, c.tls, c.out[c.written:])
		if errno == 0 && c.connecting {
			m.connected(c, c.tls.shookAt(before))
		}
		switch {
		case errno == unix.EAGAIN:
			n = 0
		case errno != 0 && c.connecting:
			m.lose(c, connectFailure(errno), errno)
			return
		case errno != 0:
			m.lose(c, writeFailure(errno), errno)
			return
		}
		if c.written += n; c.written < len(c.out) || c.tls.pending() {
			break
		}
		c.written = 0
		c.wrote()
	}
	m.watch(c)
}

// watch makes epoll report arriving data, and room to write while output is pending. Reports are level-triggered, so
// one read for each report is enough, and no connection delays the others.
func (m *mux) watch(c *connection) {
	full := len(c.out) > 0 || c.tls.pending()
	if c.tls != nil && c.tls.shaking { // c.out waits for the handshake; epoll would report room all the time
		full = c.tls.pending()
	}
	if c.watched && c.writable == full {
		return
	}
	op := unix.EPOLL_CTL_MOD
	if !c.watched {
		op = unix.EPOLL_CTL_ADD
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: c.id}
	if full {
		event.Events |= unix.EPOLLOUT
	}
	c.watched, c.writable = true, full
	if errno := sysEpollCtl(m.w.epoll, op, c.fd, &event); errno != 0 {
		m.lose(c, connectFailure(errno), errno)
	}
}

// connected records that the handshake of a connection ended at the given time.
func (m *mux) connected(c *connection, now int64) {
	c.connecting = false
	w := m.w
	w.count.maxOpen = max(w.count.maxOpen, w.open)
	if now >= w.warm && now < w.end {
		w.count.opened++
	}
	for index := range c.streams {
		if c.streams[index].id != 0 {
			w.slots[c.slot(index)].state = sending
		}
	}
	if c.opener < 0 || w.slots[c.opener].carrier != c {
		return
	}
	s := &w.slots[c.opener]
	s.shook = now - c.dialled
	if w.counted(s) {
		load.Record(w.count.connect, s.shook)
	}
}

// handle handles an event of the connection with the given id.
func (m *mux) handle(id int32, events uint32) {
	c := m.byID[id]
	if c == nil {
		return // it ended earlier in the same batch
	}
	if c.connecting || events&unix.EPOLLOUT != 0 {
		m.write(c)
	}
	for again := true; again && !c.gone && !c.connecting; {
		again = m.read(c) && c.tls != nil // TLS may hold more data than the socket shows
	}
	m.flush()
}

// read reads once and processes the data. It reports whether there was data.
func (m *mux) read(c *connection) bool {
	buffer := m.w.buffer
	kept := len(c.torn)
	n, errno := take(c.fd, c.tls, buffer[kept:])
	switch {
	case errno == unix.EAGAIN:
		return false
	case errno != 0:
		m.lose(c, readFailure(errno), errno)
		return false
	case n == 0:
		m.lose(c, closedEarly, errClosed)
		return false
	}
	c.heard = pace.Now()
	all := buffer[:copy(buffer, c.torn)+n]
	used, err := c.feed(all)
	if c.gone { // without keep-alive, its only request has ended
		return true
	}
	if err != nil {
		m.lose(c, badResponse, err)
		return true
	}
	c.torn = append(c.torn[:0], all[used:]...)
	c.mark()
	return true
}

var errClosed = errors.New("the server closed the connection")

// streamEnded implements owner: it ends the stream's request, or sends it again.
func (c *connection) streamEnded(index int, e ending) {
	m := c.mux
	i := c.slot(index)
	s := &m.w.slots[i]
	c.mark()
	if e.unread && s.resends < maxResends {
		s.resends++
		m.start(i, pace.Now())
		return
	}
	s.response.status, s.code = e.status, e.code
	m.w.finish(i, pace.Now(), e.kind)
}

// release removes the request of slot i, which has ended, from its connection.
func (m *mux) release(i int32, kind failure) {
	s := &m.w.slots[i]
	c := s.carrier
	s.carrier = nil
	if c == nil || c.gone {
		return
	}
	if !m.w.o.KeepAlive { // the connection's only request has ended
		m.hangUp(c)
		return
	}
	_, index := m.at(i)
	if c.streams[index].id != 0 {
		c.cancel(index, http2.ErrCodeCancel)
		// If nothing has arrived since the request was sent, the server is probably dead.
		c.leaving = c.leaving || kind == requestTimeout && c.heard < s.sent
	} else if at := slices.Index(c.waiting, i); at >= 0 {
		c.waiting = slices.Delete(c.waiting, at, at+1)
	}
	c.mark()
}

// lose closes a connection that failed, and fails the requests on it.
func (m *mux) lose(c *connection, kind failure, why error) {
	if c.why = why; kind == tlsFailed {
		c.why = c.tls.err
	}
	m.hangUp(c)
	now := pace.Now()
	for index := range c.streams {
		if c.streams[index].id != 0 {
			m.w.finish(c.slot(index), now, kind)
		}
	}
	for _, i := range c.waiting {
		m.w.finish(i, now, kind)
	}
}

// hangUp closes a connection with a reset, like all connections in this package.
func (m *mux) hangUp(c *connection) {
	c.tls.close()
	files.CloseRaw(c.fd)
	m.w.open--
	c.gone = true
	m.byID[c.id] = nil
	m.freeIDs = append(m.freeIDs, c.id)
	if p := &m.places[c.place]; p.now == c {
		p.now = nil
	}
}

// abandon closes connections whose handshake is not complete.
func (m *mux) abandon() {
	for _, c := range m.byID {
		if c != nil && c.connecting {
			m.hangUp(c)
		}
	}
}

func (m *mux) close() {
	for _, c := range m.byID {
		if c != nil {
			m.hangUp(c)
		}
	}
}

// try opens a connection to a target and closes it.
func (m *mux) try(ctx context.Context, t *target) error {
	p := &m.places[0]
	own := p.target
	p.target = t
	c, err := m.establish(ctx, 0)
	p.target = own
	if err == nil {
		m.hangUp(c)
	}
	return err
}

// establish opens the connection of a place, and waits until the server has sent its settings.
func (m *mux) establish(ctx context.Context, place int32) (*connection, error) {
	hint := "see that the server speaks HTTP/2 without TLS and without an upgrade (h2c with prior knowledge)"
	if m.places[place].target.config != nil {
		hint = "see that the server speaks HTTP/2 over TLS"
	}
	name := m.places[place].target.name
	c, errno := m.dial(place, pace.Now())
	if errno != 0 {
		return nil, fault.Wrap(errno, fault.Machine, name, startServer, "no connection could be made")
	}
	m.write(c)
	for deadline := pace.Now() + patience; !c.gone && !c.settled; {
		ready := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
		if c.writable {
			ready[0].Events |= unix.POLLOUT
		}
		n, err := unix.Poll(ready, 50)
		switch {
		case ctx.Err() != nil:
			m.hangUp(c)
			return nil, ctx.Err()
		case err != nil && err != unix.EINTR:
			m.lose(c, readOther, err)
		case n > 0:
			m.handle(c.id, uint32(ready[0].Revents))
		case pace.Now() > deadline:
			m.lose(c, connectTimeout, unix.ETIMEDOUT)
		}
	}
	if !c.gone && c.tls != nil && c.tls.conn.ConnectionState().NegotiatedProtocol != "h2" {
		m.hangUp(c)
		c.why = errors.New("it did not select h2 in the TLS handshake (ALPN)")
	}
	if c.gone {
		if kind := c.tls.explain(name, nil); kind != nil {
			return nil, kind
		}
		if c.connecting {
			return nil, fault.Wrap(c.why, fault.Machine, name, startServer, "no connection could be made")
		}
		return nil, fault.Wrap(c.why, fault.Machine, name, hint, "the server does not speak HTTP/2")
	}
	if most := c.maxStreams; uint64(m.streams) > uint64(most) {
		m.hangUp(c)
		return nil, fault.New(fault.Usage, "streams", fmt.Sprintf("give at most %d, and more connections", most),
			"%s takes %d requests at once on a connection, not %d", name, most, m.streams)
	}
	return c, nil
}
