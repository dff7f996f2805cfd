package xds

import (
	"context"
	"encoding/binary"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
)

// guarded are credentials whose connections refuse what gRPC takes without a bound: a message in pieces of a few bytes
// each. It keeps every piece with some 100 bytes around it until the message is whole, so that one of 32 MiB in pieces
// of a byte would take gigabytes.
type guarded struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (g guarded) ClientHandshake(ctx context.Context, authority string,
	c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := g.TransportCredentials.ClientHandshake(ctx, authority, c)
	if err != nil {
		return nil, nil, err
	}
	return &frames{Conn: c}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (g guarded) Clone() credentials.TransportCredentials {
	return guarded{g.TransportCredentials.Clone()}
}

// What a message may come in: minPiece bytes in each frame on average, and any that come in manyPieces or fewer.
const (
	minPiece   = 256
	manyPieces = 4096
)

// frames is a connection of HTTP/2 that looks at the frames which are read (RFC 9113, 4.1) and counts those of each
// message of gRPC in them.
type frames struct {
	net.Conn
	head    [9]byte // of the frame that is being read
	got     int     // bytes of it
	left    int     // bytes of the frame's payload to come
	data    bool    // it is a DATA frame
	prefix  [5]byte // of the message that is being read
	prefixs int     // bytes of it
	message int     // bytes of the message to come
	pieces  int     // frames of it so far, beyond those that have minPiece bytes
}

var errPieces = errors.New("the control plane sends a message in pieces of a few bytes")

// Read implements net.Conn.
func (f *frames) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.look(b[:n]); f.pieces > manyPieces {
		return 0, errPieces
	}
	return n, err
}

// look follows the frames in b. Padding counts as a part of a message, and the bytes of another stream too: there is
// one on a connection.
func (f *frames) look(b []byte) {
	for len(b) > 0 {
		if f.left == 0 {
			n := copy(f.head[f.got:], b)
			b = b[n:]
			if f.got += n; f.got < len(f.head) {
				return
			}
			f.got = 0
			f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
			if f.data = f.head[3] == 0; f.data && f.left < minPiece {
				f.pieces++
			}
			continue
		}
		part := b[:min(len(b), f.left)]
		b, f.left = b[len(part):], f.left-len(part)
		for f.data && len(part) > 0 {
			if f.message == 0 {
				n := copy(f.prefix[f.prefixs:], part)
				part = part[n:]
				if f.prefixs += n; f.prefixs < len(f.prefix) {
					break
				}
				f.prefixs, f.message = 0, int(binary.BigEndian.Uint32(f.prefix[1:]))
			}
			n := min(len(part), f.message)
			part, f.message = part[n:], f.message-n
			if f.message == 0 {
				f.pieces = 0
			}
		}
	}
}
