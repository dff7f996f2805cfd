package ads

import (
	"context"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	peers "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tare/internal/lib/pace"
)

// What peers can have a server keep, in bytes.
const (
	connectionShare = 128 << 10 // each connection
	sharedBytes     = 32 << 20  // beyond these shares, all connections together
)

// streamBytes is what a stream takes that is open, whatever it says: the stacks of two goroutines that wait, and what
// gRPC has for it besides headers.
const streamBytes = 14 << 10

// intake bounds what the peers of a server have it keep for them alone: what they have sent and nobody has taken yet,
// streams with their headers, and what these remember that is in no table. Each connection has a share. Where all
// together have too much beyond their shares, the one that has most of it is closed: whoever needs little is served
// whatever others do. The flow control of HTTP/2 does not bound this: gRPC gives a connection more as soon as it has
// read, whether or not anybody has taken that, and a stream the whole of a message whose beginning has come.
type intake struct {
	mu     sync.Mutex
	beyond map[*conn]int64 // what connections have beyond their share, if they have
	sum    int64
	by     map[net.Addr]*conn // the address is that very value: it stands for the connection
}

func newIntake() *intake { return &intake{beyond: map[*conn]int64{}, by: map[net.Addr]*conn{}} }

// note takes note of what a connection has beyond its share. Where all together have too much, it gives the connection
// that has most.
func (i *intake) note(c *conn, bytes int64) (worst *conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.sum += bytes - i.beyond[c]
	if i.beyond[c] = bytes; bytes == 0 {
		delete(i.beyond, c)
	}
	if i.sum <= sharedBytes {
		return nil
	}
	for other, bytes := range i.beyond {
		if worst == nil || bytes > i.beyond[worst] {
			worst = other
		}
	}
	return worst
}

// of is the connection of a call; nil: it is not known.
func (i *intake) of(ctx context.Context) *conn {
	p, ok := peers.FromContext(ctx)
	if !ok {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.by[p.Addr]
}

// credentials are others whose connections count.
func (i *intake) credentials(of credentials.TransportCredentials) credentials.TransportCredentials {
	if of == nil {
		of = insecure.NewCredentials()
	}
	return counting{of, i}
}

type counting struct {
	credentials.TransportCredentials
	in *intake
}

// Clone implements credentials.TransportCredentials.
func (c counting) Clone() credentials.TransportCredentials {
	return counting{c.TransportCredentials.Clone(), c.in}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c counting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	inner, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return inner, info, err
	}
	own := &conn{Conn: inner, raw: raw, in: c.in, frames: frames{skip: len(http2.ClientPreface)},
		quota: newQuota(pace.Now())}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.by[own.RemoteAddr()] = own
	return own, info, nil
}

// serve is an interceptor: it counts the streams of connections.
func (i *intake) serve(srv any, g grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	c := i.of(g.Context())
	if c == nil {
		return handle(srv, g)
	}
	c.open(1)
	defer c.open(-1)
	bytes := streamBytes + headerBytes(g.Context())
	defer c.change(0, 0, -bytes)
	if err := c.keep(bytes); err != nil {
		return err
	}
	err := handle(srv, &counted{g, c})
	if status.Code(err) == codes.Unauthenticated {
		c.retire()
	}
	return err
}

// headerBytes is what the headers of a call take.
func headerBytes(ctx context.Context) (bytes int64) {
	headers, _ := metadata.FromIncomingContext(ctx)
	for name, values := range headers {
		for _, value := range values {
			bytes += int64(len(name)+len(value)) + headerAround
		}
	}
	return bytes
}

// headerAround is what a header takes besides its text, in bytes, and what HTTP/2 counts for it.
const headerAround = 32

// counted is a stream of a connection that counts.
type counted struct {
	grpc.ServerStream
	conn *conn
}

// RecvMsg implements grpc.ServerStream. What this package's streams receive they have taken once it was worked through.
func (c *counted) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if p, ok := m.(proto.Message); ok && err == nil {
		c.conn.taken(proto.Size(p))
	}
	return err
}

// conn is a connection that counts.
type conn struct {
	net.Conn // what is read from
	raw      net.Conn
	in       *intake
	frames   frames // of its reader

	mu      sync.Mutex
	ended   bool
	streams int
	pending int64 // bytes of data that nobody has taken
	around  int64 // what it takes to keep these, besides
	kept    int64 // what its streams keep
	noted   int64 // what of all that is beyond its share
	quota   quota
	retired bool
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if data, around := c.frames.follow(b[:n]); data > 0 {
		if worst := c.change(data, around, 0); worst != nil {
			worst.cut()
		}
	}
	return n, err
}

// change takes note that more is kept, or less. See intake.note.
func (c *conn) change(pending, around, kept int64) (worst *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.around, c.kept = c.pending+pending, c.around+around, c.kept+kept
	return c.weigh()
}

func (c *conn) weigh() (worst *conn) {
	beyond := max(0, c.pending+c.around+c.kept-connectionShare)
	if beyond == c.noted || c.ended {
		return nil
	}
	c.noted = beyond
	return c.in.note(c, beyond)
}

// keep takes note that so many bytes more are kept, and closes the connection that has most where all have too much. It
// is an error where that is this one.
func (c *conn) keep(bytes int64) error {
	switch worst := c.change(0, 0, bytes); worst {
	case nil:
	case c:
		return status.Error(codes.ResourceExhausted, "data planes have too much kept for them alone, and this one most")
	default:
		worst.cut()
	}
	return nil
}

// messageHead is what gRPC has before a message, in bytes.
const messageHead = 5

// taken takes note that a message of so many bytes has been worked through.
func (c *conn) taken(bytes int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending -= int64(bytes) + messageHead; c.pending <= 0 {
		c.pending, c.around = 0, 0
	}
	_ = c.weigh() // it is less than it was
}

// open takes note of streams that begin or end. Without any, nothing is pending.
func (c *conn) open(more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams += more; c.streams == 0 {
		c.pending, c.around = 0, 0
		_ = c.weigh()
	}
}

// wait takes a request of so many bytes out of the connection's quota, and says how long to wait before it is served.
func (c *conn) wait(bytes int64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quota.take(bytes, pace.Now())
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.end()
	return c.Conn.Close()
}

// cut closes the connection without a word, which TLS might have to wait for.
func (c *conn) cut() {
	c.end()
	_ = c.raw.Close()
}

// lastWords is how long a connection is left to read why it is closed.
const lastWords = 500 * time.Millisecond

// retire closes the connection in a moment: what it has shown of itself counts for nothing, or no more. A data plane
// that opens its next stream on the connection it has, as Envoy does, would never show what it has got since.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.retired {
		c.retired = true
		time.AfterFunc(lastWords, c.cut)
	}
}

func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	_ = c.in.note(c, 0)
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	delete(c.in.by, c.RemoteAddr())
}

// frames follows the frames of HTTP/2 in what is read, to know how much of it is data.
type frames struct {
	skip int // bytes until the next frame begins
	head [9]byte
	have int // bytes of head
}

// What gRPC takes for a frame of data besides its bytes: it keeps them in a buffer, of one of a few sizes if it is not
// small, and that in lists.
const (
	frameAround = 128
	smallBuffer = 1 << 10
)

// follow says how many bytes of data there are in frames that begin in b, and what else it takes to keep these.
func (f *frames) follow(b []byte) (data, around int64) {
	for len(b) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(b))
			f.skip -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.have:], b)
		b = b[n:]
		if f.have += n; f.have < len(f.head) {
			break
		}
		f.have = 0
		f.skip = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		if http2.FrameType(f.head[3]) != http2.FrameData || f.skip == 0 {
			continue
		}
		data, around = data+int64(f.skip), around+frameAround
		for _, buffer := range []int{4 << 10, 16 << 10} {
			if smallBuffer < f.skip && f.skip <= buffer {
				around += int64(buffer - f.skip)
				break
			}
		}
	}
	return data, around
}

// largeMessage is from how many bytes on messages are decoded one at a time: for a moment each is there several times.
const largeMessage = connectionShare / 2

// decodesLarge is held while a large message is decoded.
var decodesLarge sync.Mutex
