package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// crowd bounds how many connections a server has. If there is one too many, it closes the one that has had no request
// in progress for longest: if newcomers waited instead, connections that send nothing would keep Prometheus out until
// their deadlines.
type crowd struct {
	most int
	mu   sync.Mutex
	all  map[net.Conn]*client
}

// client is one connection.
type client struct {
	requests int       // in progress
	since    time.Time // when their number last changed
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// limit makes the server keep at most that many connections.
func limit(s *http.Server, most int) {
	c := &crowd{most: most, all: map[net.Conn]*client{}}
	s.ConnState = c.changed
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		c.count(conn, 1)
		defer c.count(conn, -1)
		handler.ServeHTTP(w, r)
	})
}

func (c *crowd) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.all[conn] = &client{since: time.Now()}
		if len(c.all) > c.most {
			c.dropOne(conn)
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.all, conn)
	}
}

// dropOne closes the connection that has waited for longest, or the newcomer if all others have requests in progress.
func (c *crowd) dropOne(newcomer net.Conn) {
	drop := newcomer
	for conn, waiting := range c.all {
		if waiting.requests == 0 && waiting.since.Before(c.all[drop].since) {
			drop = conn
		}
	}
	delete(c.all, drop)
	if t, is := drop.(*tls.Conn); is {
		drop = t.NetConn() // without TLS's close_notify: sending it could block
	}
	_ = drop.Close()
}

func (c *crowd) count(conn net.Conn, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[conn]; one != nil {
		one.requests += requests
		one.since = time.Now()
	}
}
