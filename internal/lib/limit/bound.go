package limit

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// saysEvery is the shortest time between two reports of a bounded listener about closed connections.
const saysEvery = 10 * time.Second

// AtMost returns a listener that limits the number of open connections to most. It accepts and closes each further
// connection, because the peer would otherwise wait in the kernel's queue without an error. It calls turned for the
// first of these, and then at most every 10 s, with the number closed since the previous call. turned must not use the
// listener or its connections, because it runs while their mutex is held.
func AtMost(l net.Listener, most int, turned func(connections int)) net.Listener {
	return &bounded{Listener: l, most: most, turned: turned}
}

// AtMostKnown is like AtMost, for peers that are unknown until Settle is called with their connections, for example
// after a handshake. At the limit, a new connection closes the oldest one of an unknown peer, so silent peers cannot
// keep others out. If all peers are known, the new connection is closed.
func AtMostKnown(l net.Listener, most int, turned func(connections int)) net.Listener {
	return &bounded{Listener: l, most: most, turned: turned, unknown: list.New()}
}

// Settle marks the peer of a connection as known, if a listener of AtMostKnown accepted the connection.
func Settle(c net.Conn) {
	if a, is := c.(*admitted); is {
		a.by.mu.Lock()
		defer a.by.mu.Unlock()
		a.settle()
	}
}

// AtMostIdle is like AtMost, for an HTTP server. At the limit, a new connection closes the one that has been without a
// request for the longest time. If new connections were rejected instead, idle ones would keep others out until their
// deadlines. A new connection is closed only if all others have requests in progress.
//
// AtMostIdle sets s.ConnContext and wraps s.Handler, which must not be nil. It must be called before the server serves,
// with the listener below TLS.
func AtMostIdle(l net.Listener, most int, s *http.Server) net.Listener {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if t, is := c.(*tls.Conn); is {
			c = t.NetConn()
		}
		return context.WithValue(ctx, connKey{}, c)
	}
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, is := r.Context().Value(connKey{}).(*admitted); is {
			a.use(1)
			defer a.use(-1)
		}
		handler.ServeHTTP(w, r)
	})
	return AtMostKnown(l, most, func(int) {})
}

// connKey is the context key of a request's connection.
type connKey struct{}

type bounded struct {
	net.Listener
	most   int
	turned func(int)

	mu      sync.Mutex
	open    int
	unknown *list.List // of *admitted that are not settled, the oldest first; nil for AtMost
	away    int        // number of connections closed since the time in said
	said    time.Time
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		a, instead := b.admit(c)
		if instead != nil {
			_ = instead.Close() // its peer sees that the connection ends
		}
		if a != nil {
			return a, nil
		}
	}
}

// admit counts the new connection c. instead is the connection that must be closed, if any: the oldest one of an
// unknown peer or, if a is nil, c itself.
func (b *bounded) admit(c net.Conn) (a *admitted, instead net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == b.most {
		b.away++
		if now := time.Now(); now.Sub(b.said) >= saysEvery {
			b.turned(b.away)
			b.away, b.said = 0, now
		}
		if b.unknown == nil || b.unknown.Len() == 0 {
			return nil, c
		}
		oldest := b.unknown.Front().Value.(*admitted)
		oldest.leave()
		instead = oldest.Conn
	}
	b.open++
	a = &admitted{Conn: c, by: b}
	if b.unknown != nil {
		a.place = b.unknown.PushBack(a)
	}
	return a, instead
}

type admitted struct {
	net.Conn
	by *bounded

	// Guarded by the listener's mutex:
	place    *list.Element // in the list of unknown; nil if it is not there
	left     bool          // it is no longer counted
	requests int           // in progress
}

// settle and leave must be called with the listener's mutex held.
func (a *admitted) settle() {
	if a.place != nil {
		a.by.unknown.Remove(a.place)
		a.place = nil
	}
}

func (a *admitted) leave() {
	a.settle()
	if !a.left {
		a.left = true
		a.by.open--
	}
}

// use records that the given number of requests begin or, if it is negative, end. A connection with requests in
// progress is not in the list of unknown; when its last request ends, it is put at the end of the list.
func (a *admitted) use(requests int) {
	a.by.mu.Lock()
	defer a.by.mu.Unlock()
	a.settle()
	if a.requests += requests; a.requests == 0 && !a.left {
		a.place = a.by.unknown.PushBack(a)
	}
}

// CloseWrite is called by net/http to end connections whose peers still send.
func (a *admitted) CloseWrite() error {
	if c, can := a.Conn.(interface{ CloseWrite() error }); can {
		return c.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (a *admitted) Close() error {
	a.by.mu.Lock()
	a.leave()
	a.by.mu.Unlock()
	return a.Conn.Close()
}
