package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"tare/internal/lib/pace"
)

// Limits on what peers may use. A peer is a stranger until TLS has verified its certificate against the authority.
const (
	maxStrangers = 256 // connections of strangers at once; if there are more, the oldest is closed
	maxOfOneName = 4   // connections at once whose certificates have the same name
	// strangersPerSecond bounds the cost of handshakes. One takes 200 us to 1 ms of CPU time, and never more, because a
	// stranger can send at most maxStrangerBytes (a node sends some 3 KiB) and show only one certificate (verifyPeer).
	strangersPerSecond = 500
	maxStrangerBytes   = 16 << 10
	// A peer's bytes are read at this average rate, at most. A record has some 100 KB and is sent once per trial. Small
	// frames are the most expensive: a hundred fit into a thousand bytes.
	bytesPerSecond = 1 << 20
	bytesAtOnce    = 1 << 20
	// An agent has one stream, and opens another on the same connection only when it tries again. Each costs a goroutine
	// and 60 us of CPU time, even if it is reset at once, and limits on open streams do not count those (CVE-2023-44487).
	streamsPerSecond = 1
	streamsAtOnce    = 16
)

// bucket is a pace.Bucket that several goroutines can use.
type bucket struct {
	mu sync.Mutex
	pace.Bucket
}

func newBucket(rate, most float64) *bucket {
	return &bucket{Bucket: pace.NewBucket(rate, most, pace.Now())}
}

// take takes n tokens and returns how long to wait before more can be taken.
func (b *bucket) take(n float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Take(n, pace.Now())
}

// tryTake takes one token if one is left, and reports whether it did.
func (b *bucket) tryTake() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.TryTake(pace.Now())
}

// paced is a connection that is read no faster than a bucket allows.
type paced struct {
	net.Conn
	bucket *bucket
}

func slowed(c net.Conn) net.Conn { return &paced{c, newBucket(bytesPerSecond, bytesAtOnce)} }

func (c *paced) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if wait := c.bucket.take(float64(n)); wait > 0 {
		time.Sleep(wait) // a short time: gRPC reads at most 32 KiB at once
	}
	return n, err
}

// connLimiter bounds the number of connections from strangers, and the number of connections from each agent.
type connLimiter struct {
	accepts *bucket

	mu        sync.Mutex
	strangers []*visitor     // in order of arrival
	known     map[string]int // number of connections by the name in their certificates
}

func newConnLimiter() *connLimiter {
	return &connLimiter{accepts: newBucket(strangersPerSecond, maxStrangers), known: map[string]int{}}
}

// at returns a listener whose connections are limited.
func (d *connLimiter) at(l net.Listener) net.Listener { return limitedListener{l, d} }

type limitedListener struct {
	net.Listener
	limiter *connLimiter
}

// Accept waits if connections arrive too fast. Further connections then wait in the kernel, which rejects any excess.
func (l limitedListener) Accept() (net.Conn, error) {
	time.Sleep(l.limiter.accepts.take(1))
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, limiter: l.limiter, streams: newBucket(streamsPerSecond, streamsAtOnce)}
	if oldest := l.limiter.enter(v); oldest != nil {
		oldest.Close()
	}
	return v, nil
}

// enter adds a stranger. It returns the oldest stranger if that must be closed to make room, and nil otherwise.
func (d *connLimiter) enter(v *visitor) (oldest *visitor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.strangers) >= maxStrangers {
		oldest = d.strangers[0]
	}
	d.strangers = append(d.strangers, v)
	return oldest
}

// visitor is a connection that a connLimiter counts, until Close.
type visitor struct {
	net.Conn
	limiter *connLimiter
	once    sync.Once
	streams *bucket

	// Guarded by limiter.mu:
	name string // in its certificate; empty for a stranger
	read int    // bytes that it sent as a stranger
}

func (v *visitor) Read(p []byte) (int, error) {
	n, err := v.Conn.Read(p)
	if err := v.limiter.count(v, n); err != nil {
		return 0, err
	}
	return n, err
}

// count counts bytes that a visitor has sent. It returns an error for a stranger that sends too many.
func (d *connLimiter) count(v *visitor, bytes int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.name != "" {
		return nil
	}
	if v.read += bytes; v.read > maxStrangerBytes {
		return fmt.Errorf("it has sent more than %d KiB and shown no certificate", maxStrangerBytes>>10)
	}
	return nil
}

func (v *visitor) Close() error {
	v.once.Do(func() { v.limiter.leave(v) })
	return v.Conn.Close()
}

func (d *connLimiter) leave(v *visitor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.strangers = slices.DeleteFunc(d.strangers, func(o *visitor) bool { return o == v })
	if v.name != "" {
		if d.known[v.name]--; d.known[v.name] == 0 {
			delete(d.known, v.name)
		}
	}
}

// recognise turns a stranger into a known peer with the name in its certificate.
func (d *connLimiter) recognise(v *visitor, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.Index(d.strangers, v)
	switch {
	case name == "":
		return fmt.Errorf("its certificate has no name")
	case at < 0:
		return fmt.Errorf("the connection was closed")
	case d.known[name] >= maxOfOneName:
		return fmt.Errorf("%s has %d connections already", name, maxOfOneName)
	}
	d.strangers = slices.Delete(d.strangers, at, at+1)
	d.known[name]++
	v.name = name
	return nil
}

// limitedCredentials are the TLS credentials of the side that listens. After a handshake, they turn the stranger into a
// known peer, and limit the rate at which its bytes are read.
type limitedCredentials struct {
	credentials.TransportCredentials
	limiter *connLimiter
}

// agentInfo describes an agent's connection.
type agentInfo struct {
	credentials.TLSInfo
	visitor *visitor
}

func (c limitedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	v, isVisitor := raw.(*visitor)
	t, isTLS := info.(credentials.TLSInfo)
	if !isVisitor || !isTLS {
		return nil, nil, fmt.Errorf("a connection that is not from the limited listener")
	}
	if err := c.limiter.recognise(v, commonName(t.State)); err != nil {
		return nil, nil, err
	}
	return slowed(conn), agentInfo{t, v}, nil
}

func (c limitedCredentials) Clone() credentials.TransportCredentials {
	return limitedCredentials{c.TransportCredentials.Clone(), c.limiter}
}

// visitorOf returns the connection of a stream. It returns false if the connection is not from a limited listener.
func visitorOf(ctx context.Context) (agentInfo, bool) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return agentInfo{}, false
	}
	info, ok := p.AuthInfo.(agentInfo)
	return info, ok
}

// boundStreams closes a connection whose peer opens streams faster than any agent does. gRPC calls it for each stream.
func boundStreams(ctx context.Context, _ *tap.Info) (context.Context, error) {
	info, ok := visitorOf(ctx)
	if !ok || info.visitor.streams.tryTake() {
		return ctx, nil
	}
	info.visitor.Close()
	return ctx, status.Error(codes.ResourceExhausted, "too many streams on one connection")
}

func commonName(s tls.ConnectionState) string {
	if len(s.PeerCertificates) == 0 {
		return ""
	}
	return s.PeerCertificates[0].Subject.CommonName
}
