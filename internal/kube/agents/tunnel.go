package agents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/moby/spdystream/spdy"
	api "k8s.io/api/core/v1"

	"tare/internal/lib/text"
)

// tunnel is a connection to a port of a pod. It runs within a connection to the API server that carries SPDY/3.1, as
// kubectl port-forward does, with one stream for data and one for errors. There may be a thousand tunnels at a time,
// and a general SPDY client needs 1 MB for each to compress headers, although the headers for a port are always the
// same.
//
// https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/ describes the frames.
type tunnel struct {
	net.Conn // to the API server

	left   int  // bytes of the pod's data left in the current frame
	last   bool // the current frame is the pod's last
	ended  bool // no more data comes from the pod
	failed bytes.Buffer

	mu    sync.Mutex // held while writing
	alive *time.Timer
	pings uint32
}

const (
	errorStream, dataStream = 1, 3 // numbers of the streams
	frameHeader             = 8    // bytes
	finalFrame              = 1    // flag: the last frame of its stream
	pingEvery               = 10 * time.Second
	errorWithin             = 100 * time.Millisecond // after the end of the data
	maxFrame                = 1 << 16                // bytes of data in a frame that is written
	maxError                = 4096
)

// opening returns the frames that open both streams to a port.
func opening(port int) ([]byte, error) {
	var b bytes.Buffer
	f, err := spdy.NewFramer(&b, nil)
	if err != nil {
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	h := http.Header{}
	h.Set(api.PortHeader, strconv.Itoa(port))
	h.Set(api.PortForwardRequestIDHeader, "0")
	h.Set(api.StreamType, api.StreamTypeError)
	errs := &spdy.SynStreamFrame{StreamId: errorStream, Headers: h}
	data := &spdy.SynStreamFrame{StreamId: dataStream, Headers: h.Clone()}
	data.Headers.Set(api.StreamType, api.StreamTypeData)
	none := &spdy.DataFrame{StreamId: errorStream, Flags: finalFrame} // nothing is written to this stream
	for _, frame := range []spdy.Frame{errs, none, data} {
		if err := f.WriteFrame(frame); err != nil {
			return nil, fmt.Errorf("forwarding a port: %w", err)
		}
	}
	return b.Bytes(), nil
}

// newTunnel opens a tunnel with the frames that opening returned.
func newTunnel(conn net.Conn, opening []byte) (*tunnel, error) {
	t := &tunnel{Conn: conn}
	if _, err := conn.Write(opening); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	t.alive = time.AfterFunc(pingEvery, t.ping)
	return t, nil
}

// ping keeps proxies on the way from closing an idle connection.
func (t *tunnel) ping() {
	t.mu.Lock()
	t.pings += 2
	frame := binary.BigEndian.AppendUint32([]byte{0x80, spdy.Version, 0, byte(spdy.TypePing), 0, 0, 0, 4}, t.pings-1)
	_, err := t.Conn.Write(frame)
	t.mu.Unlock()
	if err == nil {
		t.alive.Reset(pingEvery)
	}
}

// Write writes to the pod.
func (t *tunnel) Write(p []byte) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), maxFrame)]
		frame := binary.BigEndian.AppendUint32(make([]byte, 0, frameHeader+len(part)), dataStream)
		frame = binary.BigEndian.AppendUint32(frame, uint32(len(part)))
		if _, err = t.Conn.Write(append(frame, part...)); err == nil {
			n, p = n+len(part), p[len(part):]
		}
	}
	return n, err
}

// Read reads from the pod. At the end of the data it returns the node's error, if there is one.
func (t *tunnel) Read(p []byte) (n int, err error) {
	for t.left == 0 && err == nil {
		if t.last {
			err = io.EOF
			break
		}
		err = t.next()
	}
	if err == nil {
		n, err = t.Conn.Read(p[:min(len(p), t.left)])
		t.left -= n
		return n, err
	}
	if !t.ended { // the error may come after the end
		t.ended = true
		late := time.AfterFunc(errorWithin, func() { _ = t.Close() })
		defer late.Stop()
		for t.failed.Len() == 0 && t.next() == nil {
			if _, err := io.CopyN(io.Discard, t.Conn, int64(t.left)); err != nil {
				break
			}
			t.left = 0
		}
	}
	if says := bytes.TrimSpace(t.failed.Bytes()); len(says) > 0 {
		return 0, errors.New(text.ClipLine(string(says), maxReason))
	}
	return 0, err
}

// next reads one frame. Of a frame with the pod's data it reads only the header, and sets left and last.
func (t *tunnel) next() error {
	var h [frameHeader]byte
	if _, err := io.ReadFull(t.Conn, h[:]); err != nil {
		return err
	}
	length := int64(binary.BigEndian.Uint32(h[4:]) & (1<<24 - 1))
	body := io.LimitReader(t.Conn, length)
	first := binary.BigEndian.Uint32(h[:])
	switch {
	case first == dataStream:
		t.left, t.last = int(length), h[4]&finalFrame != 0
		return nil
	case first == errorStream:
		if _, err := io.Copy(&t.failed, io.LimitReader(body, max(maxError-int64(t.failed.Len()), 0))); err != nil {
			return err
		}
	case first&(1<<31) != 0 && length <= maxFrame:
		control, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		return t.control(spdy.ControlFrameType(first&(1<<16-1)), h[:], control)
	}
	_, err := io.Copy(io.Discard, body)
	return err
}

// control answers the other side's pings. It returns io.EOF for a frame that ends the data stream or the connection,
// and ignores all other control frames.
func (t *tunnel) control(kind spdy.ControlFrameType, header, body []byte) error {
	number := uint32(0)
	if len(body) >= 4 {
		number = binary.BigEndian.Uint32(body)
	}
	switch {
	case kind == spdy.TypePing && number%2 == 0: // from the other side
		t.mu.Lock()
		defer t.mu.Unlock()
		_, err := t.Conn.Write(append(bytes.Clone(header), body...))
		return err
	case kind == spdy.TypeRstStream && number == dataStream, kind == spdy.TypeGoAway:
		return io.EOF
	}
	return nil
}

// Close ends the connection to the API server.
func (t *tunnel) Close() error {
	t.alive.Stop()
	return t.Conn.Close()
}
