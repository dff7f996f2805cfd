package dataplane

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/proxy/config"
)

// upstream is the connections to the endpoints of a cluster. Those of HTTP/1.1 are kept here, the last used first, as
// many as requests ever needed at once; those of HTTP/2 by net/http.
type upstream struct {
	proxy  *Proxy
	config atomic.Pointer[config.Cluster]
	dialer net.Dialer
	tls    func() *tls.Config // for a connection; nil: without
	h2     *http.Transport    // nil: HTTP/1.1

	open atomic.Int64 // connections, and forwarded ones

	mu     sync.Mutex
	idle   map[netip.AddrPort][]*link
	closed bool
}

func (p *Proxy) newUpstream(c *config.Cluster) *upstream {
	u := &upstream{proxy: p, idle: map[netip.AddrPort][]*link{}}
	u.config.Store(c)
	u.dialer.KeepAliveConfig = net.KeepAliveConfig{
		Enable:   true,
		Idle:     time.Minute,
		Interval: 15 * time.Second,
		Count:    4,
	}
	if c.TLS != nil {
		protocol := "http/1.1"
		if c.HTTP2 {
			protocol = "h2"
		}
		u.tls = p.clientTLS(c.TLS, protocol)
	}
	if c.HTTP2 {
		u.h2 = u.transport()
	}
	return u
}

// transport speaks HTTP/2. Pings find out whether a connection that is silent is still there.
func (u *upstream) transport() *http.Transport {
	t := &http.Transport{
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxResponseHead,
		IdleConnTimeout:        u.config.Load().IdleTimeout,
		Protocols:              &http.Protocols{},
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		c, _, err := u.dial(ctx, at)
		return c, err
	}
	if u.tls != nil {
		t.Protocols.SetHTTP2(true)
		t.DialTLSContext = dial
	} else {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext = dial
	}
	return t
}

// tune takes over what can change while connections stay.
func (u *upstream) tune(c *config.Cluster) { u.config.Store(c) }

// reserve makes room for one more connection, as far as the cluster's limit goes.
func (u *upstream) reserve() bool {
	limit := int64(u.config.Load().MaxConnections)
	if n := u.open.Add(1); limit > 0 && n > limit {
		u.open.Add(-1)
		return false
	}
	return true
}

func (u *upstream) release() { u.open.Add(-1) }

// take is a connection that is kept, if there is one that is still good.
func (u *upstream) take(at netip.AddrPort) *link {
	for {
		u.mu.Lock()
		list := u.idle[at]
		if len(list) == 0 {
			u.mu.Unlock()
			return nil
		}
		l := list[len(list)-1]
		list[len(list)-1] = nil
		u.idle[at] = list[:len(list)-1]
		u.mu.Unlock()
		if l.quiet() {
			return l
		}
		l.end()
	}
}

// give keeps a connection for the next request.
func (u *upstream) give(l *link) {
	l.since = time.Now()
	u.mu.Lock()
	if list, known := u.idle[l.at]; known { // the endpoint is still there
		u.idle[l.at] = append(list, l)
		l = nil
	}
	u.mu.Unlock()
	if l != nil {
		l.end()
	}
}

// keep ends connections to endpoints that are no more.
func (u *upstream) keep(targets []mesh.Target) {
	next := make(map[netip.AddrPort][]*link, len(targets))
	u.mu.Lock()
	for _, t := range targets {
		next[t.Address] = u.idle[t.Address]
	}
	var gone []*link
	for at, list := range u.idle {
		if _, stays := next[at]; !stays {
			gone = append(gone, list...)
		}
	}
	if !u.closed {
		u.idle = next
	}
	u.mu.Unlock()
	for _, l := range gone {
		l.end()
	}
}

// trim ends connections that nobody has used for the cluster's time.
func (u *upstream) trim(now time.Time) {
	after := u.config.Load().IdleTimeout
	if after == 0 {
		return
	}
	var gone []*link
	u.mu.Lock()
	for at, list := range u.idle { // the longest idle are in front
		n := 0
		for n < len(list) && now.Sub(list[n].since) > after {
			n++
		}
		gone = append(gone, list[:n]...)
		if n > 0 {
			u.idle[at] = append([]*link(nil), list[n:]...)
		}
	}
	u.mu.Unlock()
	for _, l := range gone {
		l.end()
	}
}

// close ends connections as they are done.
func (u *upstream) close() {
	u.mu.Lock()
	var gone []*link
	for _, list := range u.idle {
		gone = append(gone, list...)
	}
	u.idle, u.closed = nil, true
	u.mu.Unlock()
	for _, l := range gone {
		l.end()
	}
	if u.h2 != nil {
		u.h2.CloseIdleConnections()
	}
}

// quiet says whether a connection that is kept has neither ended nor anything to say: an answer that nobody asked for
// must not be taken for that to the next request.
func (l *link) quiet() bool {
	return l.raw.Control(l.probe) == nil && l.probed == unix.EAGAIN
}
