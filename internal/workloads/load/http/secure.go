package http

import (
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// TLS selects whether connections are encrypted, and how the server's certificate is verified.
type TLS string

// The modes of TLS.
const (
	TLSOff        TLS = "off"        // cleartext, except for https URLs
	TLSOn         TLS = "on"         // the certificate must name the URL's host and chain to the machine's roots
	TLSUnverified TLS = "unverified" // any certificate is accepted
)

// config returns the TLS configuration of connections to host, or nil for cleartext. Every handshake is a full one, as
// for a new client, because resuming a session would cost less.
func (o *Options) config(host string, https bool) *tls.Config {
	if !https && (o.TLS == TLSOff || o.TLS == "") {
		return nil
	}
	c := &tls.Config{
		ServerName: host, InsecureSkipVerify: o.TLS == TLSUnverified, SessionTicketsDisabled: true,
		DynamicRecordSizingDisabled: true, // each record costs a write
	}
	switch {
	case o.Protocol.multiplexed():
		c.NextProtos = []string{"h2"}
	case o.Protocol == HTTP1:
		c.NextProtos = []string{"http/1.1"}
	}
	return c
}

// put writes as much of p as a socket has room for, through TLS if t is not nil.
func put(fd int, t *secure, p []byte) (int, unix.Errno) {
	if t != nil {
		return t.write(p)
	}
	return sysWrite(fd, p)
}

// take reads the data that has arrived, through TLS if t is not nil.
func take(fd int, t *secure, p []byte) (int, unix.Errno) {
	if t != nil {
		return t.read(p)
	}
	return sysRead(fd, p)
}

// secure is TLS over a non-blocking socket. Its reads and writes behave like the socket's: they do what they can at
// once, and otherwise return EAGAIN.
//
// crypto/tls can resume a record after a read that got too little data (a Temporary error), but not a handshake. The
// handshake is therefore a coroutine, which is suspended while it would wait. The thread that started it must also
// resume it: the Go runtime ends the program if another thread resumes a coroutine of a locked thread.
type secure struct {
	fd    int
	conn  *tls.Conn
	out   []byte     // records for which the socket had no room yet
	errno unix.Errno // the socket's error, if it failed
	err   error      // the error of TLS, if that failed

	shaking bool
	shook   int64                   // when the handshake ended, ns by pace.Now
	proceed func() (struct{}, bool) // resumes the handshake until it must wait; false: it has ended
	abandon func()
	wait    func(struct{}) bool // suspends the coroutine; false: it has been abandoned
}

// secureOver sets up TLS on a socket that may still be connecting. It writes nothing yet.
func secureOver(fd int, config *tls.Config) *secure {
	s := &secure{fd: fd, shaking: true}
	s.conn = tls.Client(below{s}, config)
	return s
}

// shake continues the handshake. It returns EAGAIN if the handshake must wait for the server, and EPROTO, with s.err
// set, if TLS itself failed.
func (s *secure) shake() unix.Errno {
	if s.proceed == nil {
		s.proceed, s.abandon = iter.Pull(func(wait func(struct{}) bool) {
			s.wait = wait
			s.err = s.conn.Handshake()
		})
	}
	if _, waits := s.proceed(); waits {
		return unix.EAGAIN
	}
	s.shaking, s.shook = false, pace.Now()
	return s.failed(s.err)
}

// shookAt returns when the TLS handshake ended or, without TLS, the given time at which the TCP handshake ended.
func (s *secure) shookAt(connected int64) int64 {
	if s == nil {
		return connected
	}
	return s.shook
}

// failed converts an error of crypto/tls to a number: the socket's error if there was one, and otherwise EPROTO.
func (s *secure) failed(err error) unix.Errno {
	switch {
	case err == nil:
		return 0
	case s.errno != 0:
		return s.errno
	}
	s.err = err
	return unix.EPROTO
}

// close abandons a handshake in progress. It does not close the socket.
func (s *secure) close() {
	if s != nil && s.shaking && s.abandon != nil {
		s.abandon()
		s.shaking, s.err = false, nil
	}
}

// explain returns an error that describes a failed handshake with the named server. The cause is s.err, or err if s.err
// is nil. The result is nil without TLS, or if both errors are nil.
func (s *secure) explain(name string, err error) error {
	if s == nil {
		return nil
	}
	if s.err != nil {
		err = s.err
	}
	if err == nil {
		return nil
	}
	hint := "check that this port speaks TLS"
	if _, bad := errors.AsType[*tls.CertificateVerificationError](err); bad {
		hint = "add its authority to the roots (SSL_CERT_FILE), or use --tls unverified"
	} else if strings.Contains(err.Error(), "no application protocol") { // RFC 7301, section 3.2
		hint = "check that the server offers this protocol, such as HTTP/2, over TLS"
	}
	return fault.Wrap(err, fault.Machine, name, hint, "the TLS handshake failed")
}

// pending reports whether encrypted bytes are still to be written. A write of no bytes flushes them.
func (s *secure) pending() bool { return s != nil && len(s.out) > 0 }

// flush writes as many of the waiting records as the socket has room for.
func (s *secure) flush() unix.Errno {
	for len(s.out) > 0 {
		n, errno := sysWrite(s.fd, s.out)
		if errno != 0 {
			return errno
		}
		s.out = s.out[:copy(s.out, s.out[n:])]
	}
	return 0
}

// largestRecord is the largest content of one record, in bytes (RFC 8446, section 5.1).
const largestRecord = 16 << 10

// write encrypts p and writes as much of it as the socket has room for. It completes the handshake first.
func (s *secure) write(p []byte) (n int, errno unix.Errno) {
	if s.shaking {
		if errno := s.shake(); errno != 0 {
			return 0, errno
		}
	}
	for errno = s.flush(); errno == 0 && n < len(p) && len(s.out) == 0; {
		took, err := s.conn.Write(p[n:min(len(p), n+largestRecord)])
		n += took
		errno = s.failed(err)
	}
	if errno == unix.EAGAIN && n > 0 {
		errno = 0
	}
	return n, errno
}

// read decrypts data that has arrived into p. It returns EAGAIN if none has arrived, and 0 bytes if the server has
// closed the connection.
func (s *secure) read(p []byte) (int, unix.Errno) {
	n, err := s.conn.Read(p)
	switch {
	case n > 0 || err == nil:
		return n, 0
	case err == unix.EAGAIN:
		return 0, unix.EAGAIN
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, 0
	}
	return 0, s.failed(err)
}

// below is the socket, as a net.Conn for crypto/tls.
type below struct{ *secure }

func (b below) Read(p []byte) (int, error) {
	for {
		if errno := b.flush(); errno != 0 && errno != unix.EAGAIN {
			b.errno = errno
			return 0, errno
		}
		n, errno := sysRead(b.fd, p)
		switch {
		case errno == unix.EAGAIN && !b.shaking:
			return 0, unix.EAGAIN // crypto/tls can retry it, because it is a Temporary error
		case errno == unix.EAGAIN:
			if !b.wait(struct{}{}) {
				return 0, net.ErrClosed
			}
		case errno != 0:
			b.errno = errno
			return 0, errno
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write accepts all of p. Bytes for which the socket has no room wait in secure.out, and nothing more is encrypted
// until they are written.
func (b below) Write(p []byte) (int, error) {
	b.out = append(b.out, p...)
	if errno := b.flush(); errno != 0 && errno != unix.EAGAIN {
		b.errno = errno
		return 0, errno
	}
	return len(p), nil
}

func (b below) Close() error                     { return nil }
func (b below) LocalAddr() net.Addr              { return nil }
func (b below) RemoteAddr() net.Addr             { return nil }
func (b below) SetDeadline(time.Time) error      { return nil }
func (b below) SetReadDeadline(time.Time) error  { return nil }
func (b below) SetWriteDeadline(time.Time) error { return nil }
