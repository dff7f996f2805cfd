package xds

import (
	"encoding/binary"
	"errors"
	"net"
)

// guarded returns a connection that refuses a message that arrives in pieces of a few bytes each, which gRPC accepts
// without a limit. gRPC keeps every piece with about 100 bytes of overhead until the message is complete, so a message
// of 32 MiB in pieces of one byte would take gigabytes.
func guarded(c net.Conn) net.Conn { return &frames{Conn: c} }

// A message may have at most manyPieces frames that are shorter than minPiece bytes.
const (
	minPiece   = 256
	manyPieces = 4096
)

// frames is an HTTP/2 connection that parses the frames that are read from it (RFC 9113, 4.1) and counts the short
// frames of each gRPC message.
type frames struct {
	net.Conn
	head    [9]byte // the header of the frame that is being read
	got     int     // bytes of head that were read
	left    int     // bytes of the frame's payload that are still to come
	data    bool    // the frame is a DATA frame
	prefix  [5]byte // the prefix of the message that is being read
	prefixs int     // bytes of prefix that were read
	message int     // bytes of the message that are still to come
	pieces  int     // the message's frames so far with fewer than minPiece bytes
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

// look parses the frames in b. Padding counts as part of a message. A connection has only one stream; frames of others
// would count as well.
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
