package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh/proxy/config"
)

// server serves the requests of a chain, by net/http. It goes on with the chain's next form where that is for the same
// kind of connections.
type server struct {
	proxy   *Proxy
	current atomic.Pointer[config.Chain]
	http    *http.Server
	feed    *feed
}

// sameServer says whether connections of one chain are as good for the other.
func sameServer(a, b *config.Chain) bool {
	if a.HTTP == nil || b.HTTP == nil || a.For.Transport != b.For.Transport || (a.TLS == nil) != (b.TLS == nil) {
		return false
	}
	x, y := a.HTTP, b.HTTP
	if x.IdleTimeout != y.IdleTimeout || x.HeadTimeout != y.HeadTimeout || x.MaxHead != y.MaxHead ||
		x.MaxStreams != y.MaxStreams {
		return false
	}
	if a.TLS == nil {
		return true
	}
	return a.TLS.Key == b.TLS.Key && a.TLS.Require == b.TLS.Require && a.TLS.NoTickets == b.TLS.NoTickets
}

func (p *Proxy) newServer(c *config.Chain) *server {
	s := &server{proxy: p, feed: newFeed()}
	s.current.Store(c)
	h := c.HTTP
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler: s, Protocols: protocols,
		ReadHeaderTimeout: h.HeadTimeout, IdleTimeout: h.IdleTimeout, MaxHeaderBytes: h.MaxHead,
		ErrorLog: log.New(io.Discard, "", 0), DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: int(min(h.MaxStreams, maxStreams))},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, &peer{conn: c})
		},
	}
	p.ended.Go(func() { _ = s.http.Serve(s.feed) }) // its error is that it was told to end
	return s
}

// maxStreams bounds the requests at a time of one HTTP/2 connection.
const maxStreams = 1 << 16

// clientTimeout is how long a client may leave what was sent to it in the kernel's hands (TCP_USER_TIMEOUT, tcp(7)).
const clientTimeout = 5 * time.Minute

// give has the server serve a connection.
func (s *server) give(c net.Conn) {
	raw := c
	if t, ok := c.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if rc, err := raw.(*net.TCPConn).SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { // a kernel that does not have it lets a client wait for longer
			_ = unix.SetsockoptInt(
				int(fd),
				unix.IPPROTO_TCP,
				unix.TCP_USER_TIMEOUT,
				int(clientTimeout.Milliseconds()),
			)
		})
	}
	s.feed.give(c)
}

// drainTimeout is how long requests under way have, where only a part of the configuration ends.
const drainTimeout = 10 * time.Minute

// drain ends connections as they come to rest, and all of them once ctx ends.
func (s *server) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	go func() {
		select {
		case <-s.proxy.janitor: // nothing may outlive the proxy
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
}

// feed is the listener of an http.Server to which others give connections.
type feed struct {
	in    chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newFeed() *feed { return &feed{in: make(chan net.Conn, 16), ended: make(chan struct{})} }

// give hands a connection over. Once the feed has ended, it closes it.
func (f *feed) give(c net.Conn) {
	select {
	case <-f.ended: // of two cases that can go on, a select takes any
		c.Close()
		return
	default:
	}
	select {
	case f.in <- c:
		select {
		case <-f.ended: // perhaps after the last that looked
			f.drain()
		default:
		}
	case <-f.ended:
		c.Close()
	}
}

// drain closes the connections that nobody will accept.
func (f *feed) drain() {
	for {
		select {
		case c := <-f.in:
			c.Close()
		default:
			return
		}
	}
}

// Accept is the next connection.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.in:
		return c, nil
	case <-f.ended:
		f.drain()
		return nil, net.ErrClosed
	}
}

// Close ends it. A server that was told to end before it began to serve never accepts.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.ended) })
	f.drain()
	return nil
}

// Addr names no socket.
func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }

type peerKey struct{}

// peer is what rules look at of a connection; it is found out once.
type peer struct {
	conn net.Conn
	once sync.Once
	call config.Call
}

// of is the connection of a request, which is there after the handshake.
func (p *peer) of(r *http.Request) *config.Call {
	p.once.Do(func() {
		p.call.Remote, p.call.Local = addrOf(p.conn.RemoteAddr()), addrOf(p.conn.LocalAddr())
		if r.TLS != nil {
			known(&p.call, *r.TLS)
		}
	})
	return &p.call
}

// ServeHTTP decides where a request goes, and has net/http's ReverseProxy bring it there.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := s.proxy
	p.stats.Requests.Add(1)
	chain := s.current.Load()
	who, _ := r.Context().Value(peerKey{}).(*peer)
	x := p.exchanges.Get().(*exchange)
	defer x.recycle()
	x.call = *who.of(r)
	x.call.Request = r
	x.chain = chain
	var ok bool
	if x.path, x.query, ok = plain(r, chain.HTTP); !ok {
		p.answer(w, http.StatusBadRequest, "")
		return
	}
	x.call.Path = x.path
	routes := chain.HTTP.Routes
	if routes == nil {
		routes = (*p.routes.Load())[chain.HTTP.RouteName]
	}
	var host *config.Host
	if routes != nil {
		host, x.route = routes.Find(&x.call)
	}
	switch {
	case !passes(chain.HTTP.Access, host, x.route, &x.call):
		p.stats.Denied.Add(1)
		p.answer(w, http.StatusForbidden, "RBAC: access denied")
		return
	case x.route == nil:
		p.answer(w, http.StatusNotFound, "")
		return
	case x.route.Direct != nil:
		p.answer(w, x.route.Direct.Status, x.route.Direct.Body)
		return
	}
	if x.cluster = (*p.clusters.Load())[weighted(x.route.Clusters)]; x.cluster == nil {
		p.stats.NoUpstream.Add(1)
		p.answer(w, http.StatusServiceUnavailable, "")
		return
	}
	if p.draining.Load() {
		w.Header().Set("Connection", "close") // HTTP/2 has its own word, which net/http says
	}
	x.idle = chain.HTTP.StreamIdle
	if r.ContentLength != 0 {
		client := http.NewResponseController(w)
		x.upload = newUpload(client, x.idle)
		if r.ProtoMajor == 1 {
			// Else net/http reads and drops what is left of the body, up to 256 KB, as soon as the response begins.
			_ = client.EnableFullDuplex() // of HTTP/1 it never fails
		}
	}
	x.reverse.ServeHTTP(w, r)
}

// passes says whether rules let a request pass: those of the listener, or those that its route has in their place.
func passes(list []*config.Access, h *config.Host, r *config.Route, c *config.Call) bool {
	var o *config.Override
	if h != nil {
		o = h.Access
	}
	if r != nil && r.Access != nil {
		o = r.Access
	}
	if o == nil {
		return config.Pass(list, c)
	}
	return len(list) == 0 || o.Access == nil || o.Access.Passes(c)
}

// answer answers a request itself.
func (p *Proxy) answer(w http.ResponseWriter, status int, text string) {
	p.stats.Own.Add(1)
	if text != "" {
		w.Header().Set("Content-Type", "text/plain")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the client may have gone
}

// buffers are for copying.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get is a buffer.
func (b *buffers) Get() []byte {
	if v, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return v[:]
	}
	return make([]byte, bufferSize)
}

// Put takes it back.
func (b *buffers) Put(v []byte) { b.pool.Put((*[bufferSize]byte)(v)) }

// exchange is one request on its way. It is used again for others.
type exchange struct {
	proxy    *Proxy
	reverse  httputil.ReverseProxy
	call     config.Call
	chain    *config.Chain
	route    *config.Route
	cluster  *cluster
	upload   *upload // the body of the request; nil: none
	body     body    // of the response, over HTTP/1.1
	path     string
	query    string
	deadline time.Time     // of the request, once a small body has come; zero: none
	perTry   time.Duration // of one try; 0: none
	idle     time.Duration // without a deadline: how long the response may stand still; 0: for ever
}

func newExchange(p *Proxy) *exchange {
	x := &exchange{proxy: p}
	x.reverse = httputil.ReverseProxy{Rewrite: x.rewrite, Transport: x, BufferPool: &p.buffers, ErrorHandler: x.fail,
		ErrorLog: log.New(io.Discard, "", 0)}
	return x
}

func (x *exchange) recycle() {
	if x.upload != nil {
		x.upload.end(false) // from here on it may do nothing to the client's connection
	}
	x.call = config.Call{}
	x.chain, x.route, x.cluster, x.upload, x.body, x.path, x.query = nil, nil, nil, nil, body{}, "", ""
	x.deadline, x.perTry, x.idle = time.Time{}, 0, 0
	x.proxy.exchanges.Put(x)
}

// forwarded are headers in which proxies say who asked them. Inside a mesh they are handed on as they came.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite changes what is to change of a request. ReverseProxy has taken away what is for one connection only.
func (x *exchange) rewrite(r *httputil.ProxyRequest) {
	out := r.Out
	if x.upload != nil {
		x.upload.ReadCloser, out.Body = out.Body, x.upload
	}
	out.URL.Scheme, out.URL.RawQuery = "http", x.query // what cannot be parsed too
	if x.cluster.config.TLS != nil {
		out.URL.Scheme = "https"
	}
	path := x.path
	if w := &x.route.Rewrite; w.Prefix != "" {
		path = w.Prefix + path[min(w.Match, len(path)):]
	}
	if out.URL.Opaque = path; x.cluster.upstream.h2 != nil && len(path) > 1 && path[1] == '/' {
		out.URL.Opaque, out.URL.Path, out.URL.RawPath = "", path, "" // two slashes would be taken for a host
	}
	if x.route.Rewrite.Host != "" {
		out.Host = x.route.Rewrite.Host
	}
	h := out.Header
	delete(h, "X-Forwarded-Client-Cert")
	if _, asks := h["Upgrade"]; asks { // no other protocols, which a server may always leave at that
		delete(h, "Upgrade")
		delete(h, "Connection")
	}
	if !x.chain.HTTP.Edge {
		for _, key := range forwarded {
			if v, there := r.In.Header[key]; there {
				h[key] = slices.Clone(v)
			}
		}
	} else {
		r.SetXForwarded()
	}
}

// fail answers a request that could not be brought to its end.
func (x *exchange) fail(w http.ResponseWriter, r *http.Request, err error) {
	stalled := x.upload != nil && x.upload.abandon(w, r)
	if r.Context().Err() != nil && !stalled {
		panic(http.ErrAbortHandler) // the client has gone
	}
	x.proxy.stats.Failed.Add(1)
	status := http.StatusServiceUnavailable
	var timeout net.Error
	switch {
	case stalled: // which ends its context too, if it speaks HTTP/1.1
		status = http.StatusRequestTimeout
	case errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	x.proxy.answer(w, status, "")
}
