// Package http is the application that experiments put behind a mesh: an HTTP echo server with a known delay, in a
// process of its own (tare app http). It is plain net/http, as an application would be; a faster server would make
// whatever is weighed look dearer than it is to anybody's real one.
package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/pace"
	"tare/internal/param"
	"tare/internal/role"
)

// Options is how the server answers.
type Options struct {
	Listen string        // host:port; port 0 takes a free one
	Delay  time.Duration // from the request's arrival in the handler to its answer
	Body   int           // bytes of the answer to a request without a body

	Distribution *Distribution // of the delay; nil for always Delay
	Seed         uint64        // of the distribution
	Stall        Stall         // none when zero
	Skip         int64         // requests at the beginning whose waits are left out of the record: those of a load's warm-up
}

// maxEcho bounds a body that is echoed, in bytes.
const maxEcho = 16 << 20

// Ready is what the server says when it listens.
type Ready struct {
	Address    string `json:"address"`                  // host:port
	StallsFrom int64  `json:"stalls_from_ns,omitempty"` // CLOCK_MONOTONIC: see Stall
}

// Served is what a server with a distribution or with stalls says at its end, when its parent has closed its input: how
// long requests really waited in its handler. On a busy machine that is longer than was asked for.
type Served struct {
	Requests int64  `json:"requests"`
	Waits    string `json:"waits"` // HDR histogram of nanoseconds, 3 significant digits, V2 compressed and base64 encoded
}

// Serve listens, calls ready, and serves until the context ends. Not being able to listen is an error of code Machine
// (the port is taken, the address is not this machine's) or Usage (the address makes no sense).
func Serve(ctx context.Context, o Options, ready func(Ready) error) error {
	_, err := serveAndRecord(ctx, o, ready)
	return err
}

// serveAndRecord is Serve, and says at the end what was served where that was to be recorded.
func serveAndRecord(ctx context.Context, o Options, ready func(Ready) error) (*Served, error) {
	if err := (param.Values{"body": strconv.Itoa(o.Body), "delay": o.Delay.String()}).Check(Settings); err != nil {
		return nil, err
	}
	if err := o.Stall.check(); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, listenError(o.Listen, err)
	}
	w := newWaits(o, pace.Now())
	server := &http.Server{Handler: handler(o, w)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err = ready(Ready{Address: listener.Addr().String(), StallsFrom: w.stallsFrom()}); err == nil {
		select {
		case <-ctx.Done():
		case err = <-served:
			served <- err
		}
	}
	_ = server.Close() // listener and connections; nobody is left to hear that one had gone already
	if e := <-served; !errors.Is(e, http.ErrServerClosed) && err == nil {
		err = e
	}
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return nil, fmt.Errorf("serving HTTP on %s: %w", o.Listen, err)
	}
	return w.served()
}

func listenError(address string, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		_, port, _ := net.SplitHostPort(address)
		return fault.Wrap(err, fault.Machine, address, fmt.Sprintf("'ss -ltnp sport = :%s' names its holder; or use port 0 for a free one", port), "the port is in use")
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fault.Wrap(err, fault.Machine, address, "'ip address' lists those it has", "this machine does not have that address")
	case errors.Is(err, unix.EACCES):
		return fault.Wrap(err, fault.Machine, address, "use a port above 1023, or run as root", "no permission to use this port")
	}
	return fault.Wrap(err, fault.Usage, address, "give it as host:port, like 127.0.0.1:0", "cannot listen on this address")
}

// handler echoes a body, or answers with one of the size that was asked for.
func handler(o Options, waits *waits) http.Handler {
	body := make([]byte, o.Body)
	for i := range body {
		body[i] = 'a' + byte(i%26)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived := pace.Now()
		due, recorded := waits.due(arrived)
		answer := body
		if r.ContentLength != 0 {
			var err error
			if answer, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxEcho)); err != nil {
				status := http.StatusBadRequest
				if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
					status = http.StatusRequestEntityTooLarge
				}
				http.Error(w, err.Error(), status)
				return
			}
		}
		if due > arrived && waitUntil(r.Context(), due) != nil {
			return // the client has gone
		}
		if recorded {
			waits.record(arrived)
		}
		w.Header()["Content-Type"] = contentType
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer) // the client's going is the client's business
	})
}

var contentType = []string{"application/octet-stream"}

// waitUntil waits for time at (ns by pace.Now). Go's timers are up to 1 ms late, so the last of it is slept on a
// thread.
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

// Run plays the application's part in the role protocol on conn: says ready with the address, and serves until the
// parent closes its end or the context ends. A server with a distribution or stalls then says what it served.
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
