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

// Limits on the memory that a server keeps for its peers, in bytes.
const (
	connectionShare = 128 << 10 // each connection
	sharedBytes     = 32 << 20  // beyond these shares, all connections together
)

// streamBytes is the memory that every open stream takes: the stacks of two waiting goroutines, and what gRPC keeps
// besides headers.
const streamBytes = 14 << 10

// intake bounds the memory that a server keeps for individual peers: received data that has not been processed yet,
// streams with their headers, and the names and versions that streams remember and cannot share with a Table of
// resources. Each connection has a share. When all connections together use too much beyond their shares, the one that
// uses most is closed. So a connection that needs little is served, whatever other connections do.
//
// HTTP/2's flow control does not provide this bound: gRPC opens a connection's window again as soon as it has read
// data, whether or not the data has been processed, and opens a stream's window for a whole message as soon as the
// message begins.
type intake struct {
	mu     sync.Mutex
	beyond map[*conn]int64 // bytes beyond the share, for connections that exceed it
	sum    int64
	by     map[net.Addr]*conn // by remote address, compared as a pointer, so no two connections share a key
}

func newIntake() *intake { return &intake{beyond: map[*conn]int64{}, by: map[net.Addr]*conn{}} }

// note records how many bytes a connection keeps beyond its share. If all connections together keep too much, it
// returns the connection that keeps most.
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

// of returns the connection of a call, or nil if it is unknown.
func (i *intake) of(ctx context.Context) *conn {
	p, ok := peers.FromContext(ctx)
	if !ok {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.by[p.Addr]
}

// credentials wraps credentials so that their connections are counted.
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

// serve is an interceptor that counts the streams of a connection, and charges the connection for their headers. If a
// stream ends as Unauthenticated, serve retires the connection.
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

// headerBytes returns the memory that the headers of a call take.
func headerBytes(ctx context.Context) (bytes int64) {
	headers, _ := metadata.FromIncomingContext(ctx)
	for name, values := range headers {
		for _, value := range values {
			bytes += int64(len(name)+len(value)) + headerAround
		}
	}
	return bytes
}

// headerAround is the overhead of a header in bytes; HTTP/2 counts the same (RFC 9113, section 6.5.2).
const headerAround = 32

// counted is a stream of a counted connection.
type counted struct {
	grpc.ServerStream
	conn *conn
}

// RecvMsg implements grpc.ServerStream. It counts messages of other services as processed; a stream of this package
// counts its requests itself.
func (c *counted) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if p, ok := m.(proto.Message); ok && err == nil {
		c.conn.taken(proto.Size(p))
	}
	return err
}

// conn is a counted connection.
type conn struct {
	net.Conn // the connection after its handshake
	raw      net.Conn
	in       *intake
	frames   frames // used only by Read, so mu does not guard it

	mu      sync.Mutex
	ended   bool
	streams int
	pending int64 // bytes of data that have been received and not processed
	around  int64 // overhead of buffering them
	kept    int64 // bytes that its streams keep
	noted   int64 // bytes beyond its share, as last reported to intake.note
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

// change adds to what the connection keeps. It returns the result of intake.note.
func (c *conn) change(pending, around, kept int64) (worst *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.around, c.kept = c.pending+pending, c.around+around, c.kept+kept
	return c.weigh()
}

// weigh reports to intake how many bytes the connection keeps beyond its share, if the number has changed. It returns
// the result of intake.note. The caller must hold mu.
func (c *conn) weigh() (worst *conn) {
	beyond := max(0, c.pending+c.around+c.kept-connectionShare)
	if beyond == c.noted || c.ended {
		return nil
	}
	c.noted = beyond
	return c.in.note(c, beyond)
}

// keep adds bytes, which may be negative, to what the connection's streams keep. If all connections together keep too
// much, it closes the one that keeps most, or returns an error if that is c.
func (c *conn) keep(bytes int64) error {
	switch worst := c.change(0, 0, bytes); worst {
	case nil:
	case c:
		return status.Error(codes.ResourceExhausted,
			"the connections of data planes take too much memory, and this one takes the most")
	default:
		worst.cut()
	}
	return nil
}

// messageHead is the length of gRPC's prefix of a message, in bytes.
const messageHead = 5

// taken records that a message of the given size has been processed.
func (c *conn) taken(bytes int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending -= int64(bytes) + messageHead; c.pending <= 0 {
		c.pending, c.around = 0, 0
	}
	_ = c.weigh() // the total only shrinks here; the call that exceeded a limit acts on it
}

// open records that a stream has begun (more is 1) or ended (-1). A connection without streams has no pending data.
func (c *conn) open(more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams += more; c.streams == 0 {
		c.pending, c.around = 0, 0
		_ = c.weigh()
	}
}

// wait charges a request of the given size to the connection's quota, and returns how long to wait before serving it.
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

// cut closes the connection without TLS's closing message, because sending it could block.
func (c *conn) cut() {
	c.end()
	_ = c.raw.Close()
}

// lastWords is how long a peer has to read why its connection is being closed.
const lastWords = 500 * time.Millisecond

// retire closes the connection after lastWords, because the peer's certificate or token is not valid, or no longer
// valid. A data plane that opens its next stream on an existing connection, as Envoy does, would otherwise never
// present its newer certificate.
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

// frames parses the HTTP/2 frames of a connection, to count the bytes of data.
type frames struct {
	skip int // bytes until the next frame begins
	head [9]byte
	have int // number of bytes of the next header that are in head
}

// gRPC keeps the data of each frame in a buffer, and the buffer in lists, which take frameAround bytes. A buffer for
// more than smallBuffer bytes has one of a few fixed sizes.
const (
	frameAround = 128
	smallBuffer = 1 << 10
)

// follow returns the bytes of data in frames whose header ends in b, and the overhead of buffering them.
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

// largeMessage is the size in bytes from which messages are decoded one at a time, because several copies of a message
// exist while it is decoded.
const largeMessage = connectionShare / 2

// decodesLarge is held while a large message is decoded.
var decodesLarge sync.Mutex
