package dataplane

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxResponseHead bounds the head of a response, in bytes.
	maxResponseHead = 256 << 10
	// maxInterim is how many interim responses (1xx) may come before the response.
	maxInterim = 16
	// smallBody is the length of a request's body that is read whole before a connection is taken, and sent before the
	// response is looked at. A server that does not read has room for so much in its socket.
	smallBody  = 32 << 10
	linkBuffer = 4 << 10
)

// link is a connection to an endpoint for HTTP/1.1. Whoever has it reads and writes: net/http's Transport, which has
// two goroutines of its own for each, spends more time on handing over between them than on the protocol.
//
// Whoever waits looks up every beat: for the client, which may have gone, and for the time, which may be up. So the
// deadlines of the socket are set once for many requests, and not for each.
type link struct {
	net.Conn
	raw   syscall.RawConn
	of    *upstream
	at    netip.AddrPort
	in    *bufio.Reader
	out   *bufio.Writer
	since time.Time // kept
	left  int64     // bytes that a head may still have; negative: no head is being read
	used  bool
	once  sync.Once

	probe  func(fd uintptr) // looks whether anything came, for quiet
	probed syscall.Errno

	client    context.Context // of the request under way
	deadline  time.Time       // of the request; zero: none
	idle      time.Duration   // that may pass without anything, where there is no deadline; 0: any
	heard     time.Time       // when something came last, where idle counts
	upload    *upload         // the request's body; nil: none
	readUntil time.Time       // deadlines of the socket
	sendUntil time.Time
}

// How often a wait is looked up from, and for how long a server may take nothing of a request.
const (
	beat      = time.Second
	sendLimit = 30 * time.Second
)

var errLongHead = errors.New("the head of the response is too long")

// Read bounds heads, and waits no longer than the request may.
func (l *link) Read(b []byte) (int, error) {
	if l.left == 0 {
		return 0, errLongHead
	}
	if l.left > 0 {
		b = b[:min(int64(len(b)), l.left)]
	}
	for {
		n, err := l.Conn.Read(b)
		if n > 0 || !isTimeout(err) {
			if l.left > 0 {
				l.left -= int64(n)
			}
			if l.idle > 0 {
				l.heard = time.Now()
			}
			if l.upload != nil {
				l.upload.touch()
			}
			return n, err
		}
		if err := l.wait(time.Now()); err != nil {
			return 0, err
		}
	}
}

// wait lets a read go on until the next beat, or says why not.
func (l *link) wait(now time.Time) error {
	if err := l.client.Err(); err != nil {
		return err
	}
	if !l.deadline.IsZero() && !now.Before(l.deadline) || l.idle > 0 && l.stalled(now) {
		return context.DeadlineExceeded
	}
	l.readUntil = now.Add(beat)
	if !l.deadline.IsZero() && l.deadline.Before(l.readUntil) {
		l.readUntil = l.deadline
	}
	return l.Conn.SetReadDeadline(l.readUntil)
}

// stalled says whether nothing has come for too long since the request was sent. Until then its upload says so.
func (l *link) stalled(now time.Time) bool {
	last := l.heard
	if l.upload != nil {
		if l.upload.open() {
			return false
		}
		if sent := l.upload.last(); sent.After(last) {
			last = sent
		}
	}
	return now.Sub(last) >= l.idle
}

// begin sets the socket's deadlines for a request, where those that it has will not do.
func (l *link) begin(x *exchange, client context.Context, now time.Time) error {
	l.client, l.deadline, l.idle, l.heard, l.upload = client, x.deadline, x.idle, now, x.upload
	if x.perTry > 0 {
		if try := now.Add(x.perTry); l.deadline.IsZero() || try.Before(l.deadline) {
			l.deadline = try
		}
	}
	if !l.deadline.IsZero() {
		l.idle = 0
	}
	if err := l.allowSend(now); err != nil {
		return err
	}
	if !l.readUntil.After(now) || !l.deadline.IsZero() && l.deadline.Before(l.readUntil) {
		return l.wait(now)
	}
	return nil
}

// allowSend gives the server sendLimit from now on, where less than half of it is left. Whoever sends calls it before
// each part of a request: a body may take as long as its client does.
func (l *link) allowSend(now time.Time) error {
	if l.sendUntil.Sub(now) >= sendLimit/2 {
		return nil
	}
	l.sendUntil = now.Add(sendLimit)
	return l.Conn.SetWriteDeadline(l.sendUntil)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// end closes the connection.
func (l *link) end() {
	l.once.Do(func() {
		if t, ok := l.Conn.(*tls.Conn); ok { // without waiting for the other side to take the farewell
			t.NetConn().Close()
		} else {
			l.Conn.Close()
		}
		l.of.release()
	})
}

// errLimit is where a cluster has as many connections as it may have.
var errLimit = errors.New("the cluster has as many connections as it may have")

// link is a connection to an endpoint, kept or new.
func (u *upstream) link(ctx context.Context, at netip.AddrPort, fresh bool) (*link, error) {
	if !fresh {
		if l := u.take(at); l != nil {
			return l, nil
		}
	}
	if !u.reserve() {
		return nil, errLimit
	}
	over, raw, err := u.dial(ctx, at)
	if err != nil {
		u.release()
		return nil, err
	}
	l := &link{Conn: over, of: u, at: at, left: -1}
	l.probe = func(fd uintptr) {
		var b [1]byte
		_, _, l.probed = unix.RawSyscall6(
			unix.SYS_RECVFROM,
			fd,
			uintptr(unsafe.Pointer(&b)),
			1,
			unix.MSG_PEEK|unix.MSG_DONTWAIT,
			0,
			0,
		)
	}
	if l.raw, err = raw.SyscallConn(); err != nil {
		raw.Close()
		u.release()
		return nil, fmt.Errorf("connecting to %s: %w", at, err)
	}
	l.in, l.out = bufio.NewReaderSize(l, linkBuffer), bufio.NewWriterSize(over, linkBuffer)
	return l, nil
}

// notSent is an error before which nothing of a request can have been heard.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// roundTrip sends a request and reads the head of its response, whose body it leaves for the caller. The connection
// goes back once that body was read to its end.
func (l *link) roundTrip(x *exchange, r *http.Request) (*http.Response, error) {
	if err := l.begin(x, r.Context(), time.Now()); err != nil {
		l.end()
		return nil, notSent{err}
	}
	sent, err := l.send(r)
	var resp *http.Response
	if err == nil {
		resp, err = l.receive(r)
	}
	if err != nil {
		l.end()
		return nil, err
	}
	x.body = body{link: l, from: resp.Body, sent: sent, keep: !resp.Close}
	if resp.Body == http.NoBody || r.Method == http.MethodHead {
		x.body.done(true)
		resp.Body = http.NoBody
		return resp, nil
	}
	resp.Body = &x.body
	return resp, nil
}

// send writes a request. Its body is in memory if it is small; else a goroutine of its own writes it, whose end the
// channel tells.
func (l *link) send(r *http.Request) (sent chan error, err error) {
	l.head(r)
	if r.Body == nil {
		err := l.out.Flush()
		return nil, err
	}
	if r.ContentLength > 0 && r.ContentLength <= smallBody {
		_, err := io.Copy(l.out, r.Body)
		if err == nil {
			err = l.out.Flush()
		}
		return nil, err
	}
	sent = make(chan error, 1)
	go func() {
		err := l.sendBody(r)
		if err != nil {
			l.end() // whoever waits for the response waits in vain
		}
		sent <- err
		close(sent)
	}()
	return sent, nil
}

func (l *link) sendBody(r *http.Request) error {
	b := l.of.proxy.buffers.Get()
	defer l.of.proxy.buffers.Put(b)
	left := r.ContentLength
	for {
		n, err := r.Body.Read(b)
		if err := l.allowSend(time.Now()); err != nil {
			return err
		}
		if n > 0 {
			if left >= 0 {
				if left -= int64(n); left < 0 {
					return errors.New("the body of the request is longer than it says")
				}
			} else {
				l.out.WriteString(strconv.FormatInt(int64(n), 16))
				l.out.WriteString("\r\n")
			}
			l.out.Write(b[:n])
			if left < 0 {
				l.out.WriteString("\r\n")
			}
			if err := l.out.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if left > 0 {
		return io.ErrUnexpectedEOF
	}
	if r.ContentLength < 0 {
		l.out.WriteString("0\r\n")
		for key, values := range r.Trailer {
			for _, v := range values {
				l.line(key, v)
			}
		}
		l.out.WriteString("\r\n")
	}
	return l.out.Flush()
}

func (l *link) line(key, value string) {
	l.out.WriteString(key)
	l.out.WriteString(": ")
	l.out.WriteString(value)
	l.out.WriteString("\r\n")
}

// head writes the first line and the headers. net/http has checked the headers as it read them; plain has checked the
// method, the path and the host.
func (l *link) head(r *http.Request) {
	w := l.out
	w.WriteString(r.Method)
	w.WriteByte(' ')
	w.WriteString(r.URL.Opaque) // the path, as the exchange put it there
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		w.WriteByte('?')
		w.WriteString(r.URL.RawQuery)
	}
	w.WriteString(" HTTP/1.1\r\n")
	l.line("Host", r.Host)
	for key, values := range r.Header {
		switch key {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Expect":
			continue
		case "User-Agent":
			if len(values) == 1 && values[0] == "" {
				continue
			}
		}
		for _, v := range values {
			l.line(key, v)
		}
	}
	switch {
	case r.Body != nil && r.ContentLength > 0:
		w.WriteString("Content-Length: ")
		var digits [20]byte
		w.Write(strconv.AppendInt(digits[:0], r.ContentLength, 10))
		w.WriteString("\r\n")
	case r.Body != nil:
		for key := range r.Trailer {
			l.line("Trailer", key)
		}
		w.WriteString("Transfer-Encoding: chunked\r\n")
	case r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		w.WriteString("Content-Length: 0\r\n")
	}
	w.WriteString("\r\n")
}

// receive reads the head of the response, by net/http.
func (l *link) receive(r *http.Request) (*http.Response, error) {
	l.left = maxResponseHead
	for range maxInterim {
		if _, err := l.in.Peek(1); err != nil {
			if l.used && errors.Is(err, io.EOF) {
				return nil, errStale
			}
			return nil, err
		}
		resp, err := http.ReadResponse(l.in, r)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 {
			l.left = -1
			l.used = true
			return resp, nil
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			break
		}
	}
	return nil, errors.New("there were interim responses that nobody asked for")
}

// errStale is where a connection that was kept ended instead of answering.
var errStale = errors.New("the connection ended before the response")

// body is that of a response. It belongs to the exchange, not to the link: by the time that it is closed, the link may
// serve another.
type body struct {
	link *link
	from io.ReadCloser
	sent chan error // nil: the request was sent
	keep bool
	over bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.over {
		return 0, io.EOF
	}
	n, err := b.from.Read(p)
	if err != nil {
		b.done(err == io.EOF)
	}
	return n, err
}

// Close ends the connection where the body was not read to its end.
func (b *body) Close() error {
	if !b.over {
		b.done(false)
	}
	return nil
}

// done gives the connection back, or ends it.
func (b *body) done(whole bool) {
	b.over = true
	l := b.link
	if whole && b.keep && l.in.Buffered() == 0 && b.wasSent() {
		l.client, l.upload = nil, nil
		l.of.give(l)
		return
	}
	l.end() // a goroutine that still sends the request ends by it, or with the client
}

// wasSent says whether the request's body was sent whole.
func (b *body) wasSent() bool {
	if b.sent == nil {
		return true
	}
	select {
	case err := <-b.sent:
		return err == nil
	default:
		return false
	}
}
