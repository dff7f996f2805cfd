package ads

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tare/test/speed"
)

// FuzzFrames: the count of data does not depend on how the bytes are split into reads.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	for _, err := range []error{
		framer.WriteSettings(), framer.WriteData(1, false, []byte("data")), framer.WriteData(1, false, nil),
		framer.WritePing(false, [8]byte{}), framer.WriteDataPadded(3, true, make([]byte, 3000), make([]byte, 7)),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes(), 1)
	f.Add(b.Bytes(), 10)
	f.Add([]byte{0xff, 0xff, 0xff, 0}, 3)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		var whole, parts frames
		data, around := whole.follow(b)
		if data < 0 || around < 0 || data > 0 && around < frameAround {
			t.Errorf("%d bytes of data, and %d around them", data, around)
		}
		for rest := b; len(rest) > 0; {
			n := min(max(step, 1), len(rest))
			d, a := parts.follow(rest[:n])
			data, around, rest = data-d, around-a, rest[n:]
		}
		if data != 0 || around != 0 || whole != parts {
			t.Errorf("%+v and %+v, which have %d and %d bytes more", whole, parts, data, around)
		}
	})
}

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	for _, n := range []int{1, 0, 1000, 2000, 16_000} {
		if err := framer.WriteData(1, false, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	data, around := new(frames).follow(b.Bytes())
	if want := int64(4*frameAround + 4096 - 2000 + 16_384 - 16_000); data != 19_001 || around != want {
		t.Errorf("%d bytes of data, and %d around them, not %d", data, around, want)
	}
}

// TestIntake: each connection has its share. When all together keep too much beyond their shares, the one that keeps
// most is closed.
func TestIntake(t *testing.T) {
	in := newIntake()
	all := make([]*conn, 10)
	for i := range all {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		all[i] = &conn{Conn: near, raw: near, in: in}
		if worst := all[i].change(connectionShare, 0, 0); worst != nil {
			t.Fatal("a share is too much")
		}
	}
	if worst := all[0].change(sharedBytes/2, 0, 0); worst != nil {
		t.Error("half of what there is is too much")
	}
	if worst := all[1].change(0, sharedBytes/4, sharedBytes/4-1); worst != nil {
		t.Error("almost all that there is is too much")
	}
	if worst := all[2].change(0, 0, 2); worst != all[0] {
		t.Error("it is not the first that has most")
	}
	all[0].cut()
	if _, err := all[0].raw.Write([]byte{1}); err == nil || in.sum != sharedBytes/2+1 {
		t.Errorf("%v, and %d bytes are left", err, in.sum)
	}
	if worst := all[0].change(sharedBytes, 0, 0); worst != nil {
		t.Error("one that was closed still counts")
	}
	all[1].open(1)
	all[1].taken(1)
	all[1].taken(connectionShare)
	all[1].change(0, 0, -(sharedBytes/4 - 1))
	all[2].Close()
	if in.sum != 0 || len(in.beyond) != 0 {
		t.Errorf("%d bytes are left of %d connections", in.sum, len(in.beyond))
	}
}

// TestTaken: processed messages no longer count; otherwise every connection would reach its limit.
func TestTaken(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		in, s := newIntake(), New(Options{Patience: forEver})
		p := connect(t, serveWith(t, s, in), delta)
		for i := range 20 {
			s.Set("", viewOf(t, fmt.Sprint("C a=", i)))
			if i == 0 {
				p.want("C")
			}
			p.expect("C a")
			p.answer("C", strings.Repeat("x", i*10_000))
		}
		p.quiet()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			left, conns, _ := in.left()
			if conns == 1 && left == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes count, of %d connections", left, conns)
			}
		}
	})
}

// TestIdleStreams: idle streams count with their overhead and headers, so that connections with many of them are
// closed, and others are served.
func TestIdleStreams(t *testing.T) {
	in, s := newIntake(), New(Options{Patience: forEver})
	s.begins = time.Hour
	address := serveWith(t, s, in)
	s.Set("", viewOf(t, "C a"))
	good := connect(t, address, true)
	good.want("C")
	good.takes("C a")
	each := int64(maxStreams * (streamBytes + maxHeaders/2))
	most := int(1 + sharedBytes/(each-connectionShare))
	for range 2 * most {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for i := range uint32(maxStreams) {
			if openStream(c, 1+2*i, maxHeaders*3/4) != nil {
				break // the server has closed it
			}
		}
		go io.Copy(io.Discard, c)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, conns, streams := in.left(); conns <= most && streams > maxStreams*most/2 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d connections are open with %d streams, and there is memory for %d connections", conns, streams, most)
		}
	}
	s.Set("", viewOf(t, "C a=1"))
	good.takes("C a")
}

// openStream opens a stream for deltas, with the given number of bytes of headers. The first stream also begins the
// connection.
func openStream(c net.Conn, id uint32, headers int) error {
	var out, block bytes.Buffer
	framer := http2.NewFramer(&out, nil)
	if id == 1 {
		out.WriteString(http2.ClientPreface)
		if err := framer.WriteSettings(); err != nil {
			return err
		}
	}
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "any"},
		{Name: ":path", Value: "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		{Name: "long", Value: strings.Repeat("~", headers)},
	} {
		if err := e.WriteField(f); err != nil {
			return err
		}
	}
	h := http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}
	if err := framer.WriteHeaders(h); err != nil {
		return err
	}
	_, err := c.Write(out.Bytes())
	return err
}

// TestSilentStreams: a stream on which no request comes is ended. A stream that has made a request stays open.
func TestSilentStreams(t *testing.T) {
	s := New(Options{Patience: forEver})
	s.begins = 50 * time.Millisecond
	s.Set("", viewOf(t, "C a"))
	address := serve(t, s)
	both(t, func(t *testing.T, delta bool) {
		if err := connect(t, address, delta).ends(); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	})
	s = New(Options{Patience: forEver})
	s.begins = speed.Scale(3 * time.Second)
	s.Set("", viewOf(t, "C a"))
	good := connect(t, serve(t, s), true)
	good.want("C")
	good.takes("C a")
	time.Sleep(s.begins)
	good.quiet()
}

// left returns the bytes that have been received and not processed, and the number of connections and streams. It
// never holds both locks: the server locks a connection before the intake.
func (i *intake) left() (bytes int64, conns, streams int) {
	i.mu.Lock()
	all := slices.Collect(maps.Values(i.by))
	i.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		bytes += c.pending + c.around
		streams += c.streams
		c.mu.Unlock()
	}
	return bytes, len(all), streams
}
