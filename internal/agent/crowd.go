package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// crowd bounds how many connections a server has. Where one too many comes, the one that has been without a request in
// progress for longest gives way: were the newcomer to wait instead, connections that send nothing would keep
// Prometheus out for as long as their deadlines last.
type crowd struct {
	most int
	mu   sync.Mutex
	all  map[net.Conn]*client
}

// client is one connection.
type client struct {
	requests int       // that are being answered
	since    time.Time // when there were fewer or more of them
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// limit has the server keep at most that many connections.
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

// dropOne closes the connection that waits for longest, and the newcomer where all others are being answered.
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
