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
	maxStrangers = 256 // connections at once before that; of more, the oldest is closed
	maxOfOneName = 4   // connections at once of one certificate
	// strangersPerSecond bounds what handshakes cost. Each takes 200 us to 1 ms of CPU time, because a stranger may
	// send no more than maxStrangerBytes (a node sends some 3 KiB) and show only one certificate (verifyPeer).
	strangersPerSecond = 500
	maxStrangerBytes   = 16 << 10
	// A peer's bytes are read this fast on average. Records have some 100 KB and come once in a trial; tiny frames cost
	// most, and a thousand bytes hold a hundred.
	bytesPerSecond = 1 << 20
	bytesAtOnce    = 1 << 20
	// An agent has one stream, and another one on the same connection only when it tries again. Each costs a goroutine
	// and 60 us of CPU time, also one that is reset at once, which no limit of open streams sees (CVE-2023-44487).
	streamsPerSecond = 1
	streamsAtOnce    = 16
)

// bucket is a pace.Bucket for several goroutines.
type bucket struct {
	mu sync.Mutex
	pace.Bucket
}

func newBucket(rate, most float64) *bucket {
	return &bucket{Bucket: pace.NewBucket(rate, most, pace.Now())}
}

// take takes n and says how long to wait before more may be taken.
func (b *bucket) take(n float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Take(n, pace.Now())
}

// tryTake takes 1 if there is as much, and says whether there was.
func (b *bucket) tryTake() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.TryTake(pace.Now())
}

// paced is a connection whose bytes are read no faster than a bucket lets them through.
type paced struct {
	net.Conn
	bucket *bucket
}

func slowed(c net.Conn) net.Conn { return &paced{c, newBucket(bytesPerSecond, bytesAtOnce)} }

func (c *paced) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if wait := c.bucket.take(float64(n)); wait > 0 {
		time.Sleep(wait) // at most what one read of 32 KiB takes
	}
	return n, err
}

// pacedCredentials are credentials whose connections are paced once they are made. They are for the side that connects.
type pacedCredentials struct {
	credentials.TransportCredentials
}

func (c pacedCredentials) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return slowed(conn), info, nil
}

func (c pacedCredentials) Clone() credentials.TransportCredentials {
	return pacedCredentials{c.TransportCredentials.Clone()}
}

// door lets agents in: it bounds how many connections there are whose other side is not known, and how many each agent
// has.
type door struct {
	accepts *bucket

	mu        sync.Mutex
	strangers []*visitor     // in the order in which they came
	known     map[string]int // connections by the name in their certificates
}

func newDoor() *door {
	return &door{accepts: newBucket(strangersPerSecond, maxStrangers), known: map[string]int{}}
}

// at is a listener whose connections come through the door.
func (d *door) at(l net.Listener) net.Listener { return doorListener{l, d} }

type doorListener struct {
	net.Listener
	door *door
}

// Accept waits where too many come. They wait in the kernel then, which turns away those that are too many.
func (l doorListener) Accept() (net.Conn, error) {
	time.Sleep(l.door.accepts.take(1))
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, door: l.door, streams: newBucket(streamsPerSecond, streamsAtOnce)}
	if oldest := l.door.enter(v); oldest != nil {
		oldest.Close()
	}
	return v, nil
}

// enter adds a stranger, and gives the one that has to go for it.
func (d *door) enter(v *visitor) (oldest *visitor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.strangers) >= maxStrangers {
		oldest = d.strangers[0]
	}
	d.strangers = append(d.strangers, v)
	return oldest
}

// visitor is a connection through the door.
type visitor struct {
	net.Conn
	door    *door
	once    sync.Once
	streams *bucket

	// Of the door's mutex:
	name string // in its certificate; empty: it is a stranger
	read int    // bytes, while it was a stranger
}

func (v *visitor) Read(p []byte) (int, error) {
	n, err := v.Conn.Read(p)
	if err := v.door.count(v, n); err != nil {
		return 0, err
	}
	return n, err
}

// count counts bytes that a visitor has sent. The error is of a stranger that sends too many.
func (d *door) count(v *visitor, bytes int) error {
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
	v.once.Do(func() { v.door.leave(v) })
	return v.Conn.Close()
}

func (d *door) leave(v *visitor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.strangers = slices.DeleteFunc(d.strangers, func(o *visitor) bool { return o == v })
	if v.name != "" {
		if d.known[v.name]--; d.known[v.name] == 0 {
			delete(d.known, v.name)
		}
	}
}

// recognise takes a visitor for what its certificate says.
func (d *door) recognise(v *visitor, name string) error {
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

// doorCredentials are TLS of the side that listens behind a door.
type doorCredentials struct {
	credentials.TransportCredentials
	door *door
}

// agentInfo is what is known of an agent's connection.
type agentInfo struct {
	credentials.TLSInfo
	visitor *visitor
}

func (c doorCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	v, isVisitor := raw.(*visitor)
	t, isTLS := info.(credentials.TLSInfo)
	if !isVisitor || !isTLS {
		return nil, nil, fmt.Errorf("a connection that did not come through the door")
	}
	if err := c.door.recognise(v, commonName(t.State)); err != nil {
		return nil, nil, err
	}
	return slowed(conn), agentInfo{t, v}, nil
}

func (c doorCredentials) Clone() credentials.TransportCredentials {
	return doorCredentials{c.TransportCredentials.Clone(), c.door}
}

// visitorOf is who is at the other end of a stream.
func visitorOf(ctx context.Context) (agentInfo, bool) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return agentInfo{}, false
	}
	info, ok := p.AuthInfo.(agentInfo)
	return info, ok
}

// boundStreams ends a connection whose other side opens streams faster than any agent does. gRPC calls it for each.
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
