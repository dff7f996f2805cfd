// Package http is the application that experiments put behind a mesh: an HTTP, gRPC or TCP echo server with a known
// delay, in a separate process (tare app http). It is plain net/http or grpc-go, like a real application. With a faster
// server, the measured subject would look more expensive than it is in practice.
//
// HTTP/2, with prior knowledge if there is no TLS, is served beside HTTP/1.1 only on request, because net/http needs a
// separate read of 14 bytes on each new connection to detect the protocol.
package http

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/delay"
	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// Options configures the server's answers.
type Options struct {
	Listen   string   // host:port; port 0 takes a free one
	Protocol Protocol // default HTTP1
	Body     int      // bytes of the response to a request without a body; for gRPC, of the value in the message
	Deaf     bool     // a request with a body also gets this response, not its echo
	TLS      bool     // with a self-signed certificate for the host of Listen

	delay.Options // from the request's arrival in the handler to its answer
}

// Protocol is the protocol of the server.
type Protocol string

// The protocols.
const (
	HTTP1 Protocol = "http1"
	HTTP2 Protocol = "http2" // and HTTP/1.1 on the same port; without TLS, with prior knowledge
	GRPC  Protocol = "grpc"  // over HTTP/2
	TCP   Protocol = "tcp"   // echoes data: RFC 862
)

// maxStreams is the maximum number of concurrent HTTP/2 or gRPC requests on a connection. It is the most that package
// load/http can send.
const maxStreams = 1000

// maxEcho is the maximum length of an echoed body, in bytes.
const maxEcho = 16 << 20

// Ready is the data of the server's ready message.
type Ready = delay.Started

// Serve listens, calls ready, and serves until the context ends. If it cannot listen, the error has the code
// fault.Machine (the port is in use, or the address is not one of this machine's) or fault.Usage (the address is
// invalid).
func Serve(ctx context.Context, o Options, ready func(Ready) error) error {
	_, err := serveAndRecord(ctx, o, ready)
	return err
}

// serveAndRecord does the same as Serve, and returns what was served if recording is on.
func serveAndRecord(ctx context.Context, o Options, ready func(Ready) error) (*delay.Served, error) {
	o.Protocol = cmp.Or(o.Protocol, HTTP1)
	values := param.Values{"body": strconv.Itoa(o.Body), "delay": o.Delay.String(), "protocol": string(o.Protocol)}
	if err := values.Check(Settings); err != nil {
		return nil, err
	}
	if err := o.Stall.Check(); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, fault.New(fault.Usage, "protocol", "use http1, http2 or grpc", "%s", err)
	}
	listener, err := limit.TCP(ctx, o.Listen)
	if err != nil {
		return nil, err
	}
	w := delay.NewWaits(o.Options, pace.Now())
	var secured *tls.Config
	if o.TLS {
		host, _, _ := net.SplitHostPort(o.Listen) // valid, because the listener exists
		if secured, err = selfSigned(host); err != nil {
			return nil, errors.Join(err, listener.Close())
		}
	}
	server := newServer(&answers{waits: w, body: filling(o.Body), echo: !o.Deaf}, o.Protocol, secured)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err = ready(Ready{Address: listener.Addr().String(), StallsFrom: w.StallsFrom()}); err == nil {
		select {
		case <-ctx.Done():
		case err = <-served:
			served <- err
		}
	}
	_ = server.Close() // an error means that it has already been closed
	if e := <-served; !errors.Is(e, http.ErrServerClosed) && err == nil {
		err = e
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return nil, fmt.Errorf("serving HTTP on %s: %w", o.Listen, err)
	}
	return w.Served()
}

// check returns an error if options contradict each other.
func (o *Options) check() error {
	if o.Protocol == TCP && (o.Delay > 0 || o.Distribution != nil || o.Stall.For > 0) {
		return errors.New("a delay applies to requests, and over TCP it is not known where one ends")
	}
	return nil
}

// server is a server of any protocol. Its Serve returns http.ErrServerClosed after Close.
type server interface {
	Serve(net.Listener) error
	Close() error
}

// newServer makes a server, without TLS if secured is nil.
func newServer(a *answers, p Protocol, secured *tls.Config) server {
	switch p {
	case GRPC:
		return newGRPC(a, secured)
	case TCP:
		return newEcho(secured)
	}
	s := &http.Server{Handler: a, TLSConfig: secured, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	if p == HTTP2 {
		s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams}
		s.Protocols.SetHTTP2(secured != nil)
		s.Protocols.SetUnencryptedHTTP2(secured == nil)
	}
	if secured != nil {
		s.ErrorLog = log.New(io.Discard, "", 0) // errors of clients that abandon handshakes are of no interest
		return encrypted{s}
	}
	return s
}

// answers decides what the server answers, and when.
type answers struct {
	waits *delay.Waits
	body  []byte
	echo  bool
}

func filling(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}

// to returns the response to a request, once it is due. The delay includes the time for reading the body with receive.
// If the client disconnects first, the error is the context's.
func (a *answers) to(ctx context.Context, receive func() ([]byte, error)) ([]byte, error) {
	arrived := pace.Now()
	due, recorded := a.waits.Due(arrived)
	body, err := receive()
	if err != nil {
		return nil, err
	}
	if due > arrived {
		if err := waitUntil(ctx, due); err != nil {
			return nil, err
		}
	}
	if recorded {
		a.waits.Record(arrived)
	}
	if len(body) == 0 || !a.echo {
		body = a.body
	}
	return body, nil
}

// ServeHTTP echoes a body, or responds with a body of the configured size.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var unread error
	answer, err := a.to(r.Context(), func() (body []byte, err error) {
		if r.ContentLength != 0 {
			body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxEcho))
			unread = err
		}
		return body, err
	})
	switch {
	case unread != nil:
		status := http.StatusBadRequest
		if _, tooLarge := errors.AsType[*http.MaxBytesError](unread); tooLarge {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, unread.Error(), status)
	case err == nil: // otherwise the client has gone
		w.Header()["Content-Type"] = contentType
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer) // an error means that the client has gone
	}
}

var contentType = []string{"application/octet-stream"}

// waitUntil waits until the given time (ns by pace.Now). Go's timers are up to 1 ms late, so it sleeps on a locked
// thread for the last part.
func waitUntil(ctx context.Context, at int64) error {
	const last = 2 * time.Millisecond
	if coarse := time.Duration(at-pace.Now()) - last; coarse > 0 {
		timer := time.NewTimer(coarse)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	thread, err := pace.LockThread(pace.DefaultSpin)
	if err != nil {
		return err
	}
	_, err = thread.Until(ctx, at)
	return errors.Join(err, thread.Close())
}

// Run runs the application by the role protocol on conn: it sends the ready message with the address, and serves until
// the parent closes its end or ctx ends. If the options include a distribution or stalls, Run sends a record of what it
// served once the parent has closed its end.
func Run(ctx context.Context, o Options, conn *role.Conn) error {
	var served any
	err := role.Play(ctx, conn, func(ctx context.Context) error {
		s, err := serveAndRecord(ctx, o, func(r Ready) error { return conn.Send(role.Ready, r) })
		if s != nil {
			served = s
		}
		return err
	})
	if err != nil || served == nil || ctx.Err() != nil {
		return err
	}
	return conn.Send(role.Result, served)
}
