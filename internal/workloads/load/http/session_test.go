package http

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// bench is a session without a socket. As soon as a request has ended, it sends another, up to a limit.
type bench struct {
	*session
	left    int // requests still to be sent
	endings []string
}

func (b *bench) streamEnded(index int, e ending) {
	b.endings = append(b.endings, fmt.Sprintf("%d %+v", index, e))
	b.next(index)
}

func (b *bench) next(index int) {
	if b.left > 0 && b.open() {
		b.left--
		if err := b.send(index); err != nil {
			panic(err)
		}
	}
}

func newBench(t testing.TB, p Protocol, body, streams, requests int) *bench {
	t.Helper()
	o := Options{Protocol: p, Body: body, KeepAlive: true, Targets: []string{"http://127.0.0.1:1/"}}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(o.Targets[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.request2(u, false)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{left: requests}
	b.session = newSession(b, newCodec(), r, streams)
	for i := range streams {
		b.next(i)
	}
	return b
}

// feedAll feeds p in pieces of at most piece bytes, as an owner does.
func (b *bench) feedAll(p []byte, piece int) error {
	for len(p) > 0 {
		n := min(piece, len(p))
		all := slices.Concat(b.torn, p[:n])
		used, err := b.feed(all)
		if err != nil {
			return err
		}
		b.torn, p = slices.Clone(all[used:]), p[n:]
	}
	return nil
}

// says returns the bytes of the frames that write writes, as a server would send them.
func says(write func(*http2.Framer)) []byte {
	var b bytes.Buffer
	write(http2.NewFramer(&b, nil))
	return b.Bytes()
}

func headerBlockOf(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func answers(f *http2.Framer, id uint32, end bool, fields ...string) {
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headerBlockOf(fields...), EndStream: end,
		EndHeaders: true})
}

// TestBreaches: violations of the protocol end a connection, however the bytes are divided.
func TestBreaches(t *testing.T) {
	ok := func(f *http2.Framer) { _ = f.WriteSettings() }
	after := func(more func(*http2.Framer)) []byte {
		return says(func(f *http2.Framer) { f.AllowIllegalWrites = true; ok(f); more(f) })
	}
	for _, tt := range []struct {
		name  string
		bytes []byte
		code  http2.ErrCode
	}{
		{"HTTP/1.1", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), http2.ErrCodeFrameSize},
		{"no SETTINGS", says(func(f *http2.Framer) { _ = f.WritePing(false, [8]byte{}) }), http2.ErrCodeProtocol},
		{"SETTINGS that only acknowledge", says(func(f *http2.Framer) { _ = f.WriteSettingsAck() }), http2.ErrCodeProtocol},
		{"large frame", after(func(f *http2.Framer) { _ = f.WriteRawFrame(99, 0, 0, make([]byte, largestFrame+1)) }),
			http2.ErrCodeFrameSize},
		{"HEADERS of no stream", after(func(f *http2.Framer) { answers(f, 0, true, ":status", "200") }),
			http2.ErrCodeProtocol},
		{"HEADERS of a stream to come", after(func(f *http2.Framer) { answers(f, 5, true, ":status", "200") }),
			http2.ErrCodeProtocol},
		{"HEADERS of a stream of the server", after(func(f *http2.Framer) { answers(f, 2, true, ":status", "200") }),
			http2.ErrCodeProtocol},
		{"DATA of a stream to come", after(func(f *http2.Framer) { _ = f.WriteData(5, true, []byte("x")) }),
			http2.ErrCodeProtocol},
		{"RST_STREAM of a stream to come", after(func(f *http2.Framer) { _ = f.WriteRSTStream(5, 0) }),
			http2.ErrCodeProtocol},
		{"WINDOW_UPDATE of a stream to come", after(func(f *http2.Framer) { _ = f.WriteWindowUpdate(5, 1) }),
			http2.ErrCodeProtocol},
		{"push", after(func(f *http2.Framer) {
			_ = f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: headerBlockOf(":path", "/"),
				EndHeaders: true})
		}), http2.ErrCodeProtocol},
		{"HPACK", after(func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true})
		}), http2.ErrCodeCompression},
		{"long padding", after(func(f *http2.Framer) {
			_ = f.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1,
				[]byte{9, 1})
		}), http2.ErrCodeProtocol},
		{"long padding of HEADERS", after(func(f *http2.Framer) {
			_ = f.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, 1, []byte{9, 0x88})
		}), http2.ErrCodeProtocol},
		{"window of the connection", after(func(f *http2.Framer) { _ = f.WriteWindowUpdate(0, largestWindow) }),
			http2.ErrCodeFlowControl},
		{"window by SETTINGS", after(func(f *http2.Framer) {
			_ = f.WriteWindowUpdate(1, largestWindow-firstWindow)
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: firstWindow + 1})
		}), http2.ErrCodeFlowControl},
		{"window too large", after(func(f *http2.Framer) {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}), http2.ErrCodeFlowControl},
		{"CONTINUATION for ever", after(func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlockOf(":status", "200")})
			for range maxFragments {
				_ = f.WriteContinuation(1, false, nil)
			}
		}), http2.ErrCodeEnhanceYourCalm},
		{"huge header", after(func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlockOf(":status", "200")})
			for range 6 {
				_ = f.WriteContinuation(1, false, headerBlockOf("x", strings.Repeat("{", 13_000)))
			}
		}), http2.ErrCodeEnhanceYourCalm},
		{"HEADERS within HEADERS", after(func(f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlockOf(":status", "200")})
			answers(f, 3, true, ":status", "200")
		}), http2.ErrCodeProtocol},
		{"PINGs whose answers it does not read", after(func(f *http2.Framer) {
			for range maxReplies/17 + 1 {
				_ = f.WritePing(false, [8]byte{})
			}
		}), http2.ErrCodeEnhanceYourCalm},
		{"SETTINGS without end", after(func(f *http2.Framer) {
			for range maxReplies / 9 {
				_ = f.WriteSettings()
			}
		}), http2.ErrCodeEnhanceYourCalm},
		{"empty DATA without end", after(func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			for range maxIdle + 1 {
				_ = f.WriteData(1, false, nil)
			}
		}), http2.ErrCodeEnhanceYourCalm},
		{"interim answers without end", after(func(f *http2.Framer) {
			for range maxIdle + 1 {
				answers(f, 1, false, ":status", "103")
			}
		}), http2.ErrCodeEnhanceYourCalm},
		{"GOAWAY that takes back", after(func(f *http2.Framer) {
			_ = f.WriteGoAway(1, 0, nil)
			_ = f.WriteGoAway(3, 0, nil)
		}), http2.ErrCodeProtocol},
		{"zero grant to the connection", after(func(f *http2.Framer) { _ = f.WriteWindowUpdate(0, 0) }),
			http2.ErrCodeProtocol},
	} {
		for _, piece := range []int{1 << 30, 1000, 1} {
			if piece == 1 && len(tt.bytes) > 10_000 {
				continue // this would be slow, and shows nothing else
			}
			b := newBench(t, HTTP2, 0, 2, 2)
			err := b.feedAll(tt.bytes, piece)
			var breach *sessionError
			if !errors.As(err, &breach) || breach.code != tt.code || breach.what == "" {
				t.Errorf("%s, in pieces of %d bytes: %v, want %s", tt.name, piece, err, tt.code)
			}
			if len(b.out) > maxReplies+10_000 {
				t.Errorf("%s: %d bytes of output", tt.name, len(b.out))
			}
		}
	}
}

// TestEndings: how the requests of a session end.
func TestEndings(t *testing.T) {
	const whole = "\x00\x00\x00\x00\x02\x0a\x00"
	trailer := func(f *http2.Framer, code string) { answers(f, 1, true, "grpc-status", code, "grpc-message", "hm") }
	for _, tt := range []struct {
		name     string
		protocol Protocol
		says     func(f *http2.Framer)
		want     ending
	}{
		{"no body", HTTP2, func(f *http2.Framer) { answers(f, 1, true, ":status", "204") }, ending{status: 204}},
		{"a body", HTTP2, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200", "content-length", "3")
			_ = f.WriteDataPadded(1, false, []byte("ab"), make([]byte, 7))
			_ = f.WriteData(1, true, []byte("c"))
		}, ending{status: 200}},
		{"interim, body, trailer", HTTP2, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "103", "link", "x")
			answers(f, 1, false, ":status", "500")
			_ = f.WriteData(1, false, []byte("ab"))
			answers(f, 1, true, "x", "y")
		}, ending{status: 500}},
		{"in fragments", HTTP2, func(f *http2.Framer) {
			block := headerBlockOf(":status", "207", "x", "y")
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:1], EndStream: true, PadLength: 9,
				Priority: http2.PriorityParam{StreamDep: 3, Weight: 1}})
			_ = f.WriteContinuation(1, false, block[1:4])
			_ = f.WriteContinuation(1, true, block[4:])
		}, ending{status: 207}},
		{"unknown frames", HTTP2, func(f *http2.Framer) {
			_ = f.WriteRawFrame(77, 0xff, 1, []byte("what"))
			_ = f.WritePriority(1, http2.PriorityParam{StreamDep: 3})
			answers(f, 1, true, ":status", "200")
		}, ending{status: 200}},
		{"no status", HTTP2, func(f *http2.Framer) { answers(f, 1, true, "x", "y") }, ending{kind: badResponse}},
		{"status 99", HTTP2, func(f *http2.Framer) { answers(f, 1, true, ":status", "099") }, ending{kind: badResponse}},
		{"status 101", HTTP2, func(f *http2.Framer) { answers(f, 1, false, ":status", "101") }, ending{kind: badResponse}},
		{"only interim", HTTP2, func(f *http2.Framer) { answers(f, 1, true, ":status", "103") }, ending{kind: badResponse}},
		{"DATA before the head", HTTP2, func(f *http2.Framer) { _ = f.WriteData(1, true, []byte("x")) },
			ending{kind: badResponse}},
		{"a trailer that goes on", HTTP2, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			answers(f, 1, false, "x", "y")
		}, ending{kind: badResponse}},
		{"beyond the stream's window", HTTP2, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			// With their padding, these frames use up the stream's first window. The session grants more when half of a window
			// is used.
			for range streamCredit / largestFrame {
				_ = f.WriteDataPadded(1, false, make([]byte, largestFrame-256), make([]byte, 255))
			}
			_ = f.WriteRawFrame(http2.FrameSettings, 0, 0, nil)
			answers(f, 1, true, "x", "y")
		}, ending{status: 200}},
		{"zero grant", HTTP2, func(f *http2.Framer) { f.AllowIllegalWrites = true; _ = f.WriteWindowUpdate(1, 0) },
			ending{kind: badResponse}},
		{"window", HTTP2, func(f *http2.Framer) { _ = f.WriteWindowUpdate(1, largestWindow) }, ending{kind: badResponse}},
		{"reset", HTTP2, func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeInternal) }, ending{kind: streamReset}},
		{"refused", HTTP2, func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream) },
			ending{kind: streamRefused}},
		{"left unread", HTTP2, func(f *http2.Framer) { _ = f.WriteGoAway(0, 0, nil) }, ending{kind: connectionLeft,
			unread: true}},
		{"left, and answered", HTTP2, func(f *http2.Framer) {
			_ = f.WriteGoAway(1<<31-1, 0, nil)
			_ = f.WriteGoAway(1, 0, []byte("bye"))
			answers(f, 1, true, ":status", "200")
		}, ending{status: 200}},

		{"call", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200", "content-type", "application/grpc")
			_ = f.WriteData(1, false, []byte(whole[:3]))
			_ = f.WriteDataPadded(1, false, []byte(whole[3:]), make([]byte, 3))
			trailer(f, "0")
		}, ending{status: 200}},
		{"call that fails", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			trailer(f, "14")
		}, ending{kind: badGRPC, status: 200, code: 14}},
		{"call that fails at once", GRPC, func(f *http2.Framer) {
			answers(f, 1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "12")
		}, ending{kind: badGRPC, status: 200, code: 12}},
		{"call without a status", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			_ = f.WriteData(1, true, []byte(whole))
		}, ending{kind: badResponse, status: 200}},
		{"call without a message", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			trailer(f, "0")
		}, ending{kind: badResponse, status: 200}},
		{"call with half a message", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			_ = f.WriteData(1, false, []byte(whole[:6]))
			trailer(f, "0")
		}, ending{kind: badResponse, status: 200}},
		{"call with two messages", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			_ = f.WriteData(1, false, []byte(whole+whole))
		}, ending{kind: badResponse}},
		{"compressed", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "200")
			_ = f.WriteData(1, false, []byte("\x01"+whole[1:]))
		}, ending{kind: badResponse}},
		{"a proxy's error", GRPC, func(f *http2.Framer) { answers(f, 1, true, ":status", "503") }, ending{kind: badStatus,
			status: 503}},
		{"a proxy's error with a body", GRPC, func(f *http2.Framer) {
			answers(f, 1, false, ":status", "404")
			_ = f.WriteData(1, true, make([]byte, 5))
		}, ending{kind: badStatus, status: 404}},
		{"a status that is none", GRPC, func(f *http2.Framer) { answers(f, 1, true, ":status", "200", "grpc-status", "-1") },
			ending{kind: badResponse, status: 200}},
	} {
		for _, piece := range []int{1 << 30, 7, 1} {
			b := newBench(t, tt.protocol, 0, 1, 1)
			if err := b.feedAll(says(func(f *http2.Framer) { _ = f.WriteSettings(); tt.says(f) }), piece); err != nil {
				t.Errorf("%s, in pieces of %d: %v", tt.name, piece, err)
			}
			if want := []string{fmt.Sprintf("0 %+v", tt.want)}; !slices.Equal(b.endings, want) {
				t.Errorf("%s, in pieces of %d: %q, want %q", tt.name, piece, b.endings, want)
			}
			if b.active != 0 || b.sending != 0 {
				t.Errorf("%s: %d streams are active, %d sending", tt.name, b.active, b.sending)
			}
		}
	}
}

// TestWindows: a server that grants little by little gets the whole body, and never more than it has granted.
func TestWindows(t *testing.T) {
	const body, streams = 100_000, 3
	b := newBench(t, HTTP2, body, streams, 2*streams)
	if err := b.feedAll(says(func(f *http2.Framer) {
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	}), 1<<30); err != nil {
		t.Fatal(err)
	}
	var toServer bytes.Buffer
	server := http2.NewFramer(nil, &toServer)
	preface := true
	got, ended := map[uint32]int{}, 0
	granted := map[uint32]int{}
	whole := firstWindow
	for turn := 0; ended < 2*streams && turn < 10_000; turn++ {
		for len(b.out) > 0 {
			toServer.Write(b.out)
			b.wrote()
		}
		if preface {
			if string(toServer.Next(len(http2.ClientPreface))) != http2.ClientPreface {
				t.Fatal("no preface")
			}
			preface = false
		}
		answer := says(func(to *http2.Framer) {
			for {
				f, err := server.ReadFrame()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				switch f := f.(type) {
				case *http2.HeadersFrame:
					granted[f.StreamID] = 1000
					if f.StreamID < 2*streams { // begun before the settings came
						granted[f.StreamID] = firstWindow
					}
				case *http2.DataFrame:
					for i, c := range f.Data() {
						if at := got[f.StreamID] + i; c != 'a'+byte(at%26) {
							t.Fatalf("byte %d of stream %d is %q", at, f.StreamID, c)
						}
					}
					got[f.StreamID] += len(f.Data())
					if whole -= len(f.Data()); whole < 0 || got[f.StreamID] > granted[f.StreamID] {
						t.Fatalf("stream %d sent %d bytes of %d, the connection %d too many", f.StreamID, got[f.StreamID],
							granted[f.StreamID], -whole)
					}
					if f.StreamEnded() {
						if got[f.StreamID] != body {
							t.Errorf("stream %d ends with %d bytes", f.StreamID, got[f.StreamID])
						}
						answers(to, f.StreamID, true, ":status", "200")
						ended++
					}
				}
			}
			if turn%2 == 0 {
				whole += 7777
				_ = to.WriteWindowUpdate(0, 7777)
			}
			for id := range granted {
				granted[id] += 5000
				_ = to.WriteWindowUpdate(id, 5000)
			}
		})
		if err := b.feedAll(answer, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	if ended != 2*streams || len(b.endings) != 2*streams || b.active != 0 {
		t.Errorf("%d bodies came whole; endings %q", ended, b.endings)
	}
}

// TestAnsweredEarly: an answer that ends before the request has been sent stops the sending.
func TestAnsweredEarly(t *testing.T) {
	b := newBench(t, HTTP2, 1<<20, 1, 1)
	if err := b.feedAll(says(func(f *http2.Framer) { _ = f.WriteSettings(); answers(f, 1, true, ":status", "413") }),
		1<<30); err != nil {
		t.Fatal(err)
	}
	sent := len(b.out)
	b.wrote()
	if want := fmt.Sprintf("0 %+v",
		ending{status: 413}); len(b.endings) != 1 || b.endings[0] != want || b.sending != 0 || len(b.out) != 0 {
		t.Errorf("%d bytes sent, %q", sent, b.endings)
	}
}

// TestSmallTable: a server whose HPACK table is smaller than the usual gets header blocks that it can decode, before
// and after it announces the size. The same holds for requests that are too large for the table.
func TestSmallTable(t *testing.T) {
	for _, tt := range []struct {
		size    uint32
		headers []string
	}{{4096, nil}, {0, nil}, {100, nil}, {65536, nil}, {4096, []string{"x: " + strings.Repeat("y", 5000)}}, {200,
		[]string{"x: " + strings.Repeat("y", 5000)}}} {
		o := Options{Protocol: HTTP2, Headers: tt.headers, KeepAlive: true, Targets: []string{"http://127.0.0.1:1/"},
			Method: "GET"}
		u, _ := url.Parse("http://127.0.0.1:1/some/path?and=more")
		r, err := o.request2(u, false)
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{left: 100}
		b.session = newSession(b, newCodec(), r, 1)
		var toServer bytes.Buffer
		server := http2.NewFramer(nil, &toServer)
		server.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
		for id := uint32(1); id < 12; id += 2 {
			b.next(0)
			toServer.Write(b.out)
			b.wrote()
			if id == 1 {
				toServer.Next(len(http2.ClientPreface))
			}
			var head *http2.MetaHeadersFrame
			for head == nil {
				f, err := server.ReadFrame()
				if err != nil {
					t.Fatalf("table of %d, request %d: %v", tt.size, id/2, err)
				}
				head, _ = f.(*http2.MetaHeadersFrame)
			}
			if !slices.Equal(head.Fields, r.fields) {
				t.Errorf("table of %d, request %d: %v, want %v", tt.size, id/2, head.Fields, r.fields)
			}
			err := b.feedAll(says(func(f *http2.Framer) {
				if id == 5 { // after some requests
					_ = f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: tt.size})
					server.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(tt.size)
				} else if id == 1 {
					_ = f.WriteSettings()
				}
				answers(f, id, true, ":status", "200")
			}), 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			b.left = 1
		}
	}
}

// TestSessionsAllocateNothing: a request and its answer on a connection that is kept cost no memory.
func TestSessionsAllocateNothing(t *testing.T) {
	b := newBench(t, HTTP2, 0, 1, 0)
	if err := b.feedAll(says(func(f *http2.Framer) { _ = f.WriteSettings() }), 1<<30); err != nil {
		t.Fatal(err)
	}
	first := says(func(f *http2.Framer) {
		block := append(headerBlockOf(":status", "200"), 0, 1, 'x', 3, 'a', 'b', 'c') // the second is not added to the table
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
		_ = f.WriteData(1, true, make([]byte, 100))
	})
	head := binary.BigEndian.Uint32(append([]byte{0}, first[:3]...)) + 9
	b.endings = make([]string, 0, 2000)
	request := func() {
		binary.BigEndian.PutUint32(first[5:], b.nextID)
		binary.BigEndian.PutUint32(first[head+5:], b.nextID)
		if err := b.send(0); err != nil {
			t.Fatal(err)
		}
		b.wrote()
		if used, err := b.feed(first); used != len(first) || err != nil {
			t.Fatal(used, err)
		}
	}
	b.owner = deaf{}
	if n := testing.AllocsPerRun(1000, request); n >= 1 {
		t.Errorf("%g allocations per request", n)
	}
	if b.nextID < 2000 || b.active != 0 {
		t.Errorf("%d active after stream %d", b.active, b.nextID)
	}
}

// deaf is an owner that ignores the ends of streams.
type deaf struct{}

func (deaf) streamEnded(int, ending) {}

// FuzzHTTP2: whatever a server says, the session neither panics nor keeps more than its bounds, ends each request at
// most once, and does the same however the bytes are cut.
func FuzzHTTP2(f *testing.F) {
	add := func(grpc bool, body uint32, piece uint16, write func(*http2.Framer)) {
		f.Add(says(func(f *http2.Framer) { f.AllowIllegalWrites = true; _ = f.WriteSettings(); write(f) }), grpc, body, piece)
	}
	add(false, 0, 3, func(f *http2.Framer) {
		answers(f, 1, false, ":status", "200", "content-length", "3")
		_ = f.WriteDataPadded(1, true, []byte("abc"), make([]byte, 7))
		_ = f.WritePing(false, [8]byte{1})
		answers(f, 3, true, ":status", "404")
		_ = f.WriteRSTStream(5, 7)
		_ = f.WriteGoAway(5, 0, []byte("bye"))
	})
	add(true, 100_000, 1, func(f *http2.Framer) {
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10},
			http2.Setting{ID: http2.SettingHeaderTableSize})
		_ = f.WriteWindowUpdate(0, 100_000)
		_ = f.WriteWindowUpdate(1, 100_000)
		answers(f, 1, false, ":status", "200")
		_ = f.WriteData(1, false, []byte("\x00\x00\x00\x00\x02\x0a\x00"))
		answers(f, 1, true, "grpc-status", "0")
		answers(f, 3, true, ":status", "200", "grpc-status", "14")
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: headerBlockOf(":status", "200"), PadLength: 3})
		_ = f.WriteContinuation(5, true, headerBlockOf("a", "b"))
		_ = f.WriteSettingsAck()
	})
	f.Fuzz(func(t *testing.T, p []byte, grpc bool, body uint32, piece uint16) {
		const streams, requests = 3, 20
		protocol := HTTP2
		if grpc {
			protocol = GRPC
		}
		var outs [2][]byte
		var benches [2]*bench
		var errs [2]error
		for i, piece := range []int{1 << 30, int(piece)%300 + 1} {
			b := newBench(t, protocol, int(body%200_000), streams, requests)
			benches[i] = b
			errs[i] = b.feedAll(p, piece)
			outs[i] = slices.Clone(b.out)
			if most := maxReplies + maxBuffered + requests*1000 + 13*2*len(p) + 50_000; len(b.out) > most {
				t.Fatalf("%d bytes of output", len(b.out))
			}
			if len(b.torn) > largestFrame+9 {
				t.Fatalf("%d bytes are kept", len(b.torn))
			}
			active, sending := 0, 0
			for j := range b.streams {
				if st := &b.streams[j]; st.id != 0 {
					active++
					if st.left > 0 {
						sending++
					}
				}
			}
			if sent := requests - b.left; active != b.active || sending != b.sending || len(b.endings)+active != sent {
				t.Fatalf("%d sent, %d ended, %d active (%d), %d sending (%d)", sent, len(b.endings), active, b.active, sending,
					b.sending)
			}
		}
		if !slices.Equal(benches[0].endings, benches[1].endings) || fmt.Sprint(errs[0]) != fmt.Sprint(errs[1]) {
			t.Fatalf("whole: %q, %v; in pieces: %q, %v", benches[0].endings, errs[0], benches[1].endings, errs[1])
		}
		if errs[0] == nil && !bytes.Equal(outs[0], outs[1]) {
			t.Fatalf("whole: %x; in pieces: %x", outs[0], outs[1])
		}
		// The only frame that this package unpacks itself (unwrap) is unpacked as by the library.
		reference := http2.NewFramer(nil, bytes.NewReader(p))
		reference.SetMaxReadFrameSize(largestFrame)
		at := 0
		for {
			frame, err := reference.ReadFrame()
			if err != nil {
				return
			}
			h := frame.Header()
			payload := p[at+9 : at+9+int(h.Length)]
			at += 9 + int(h.Length)
			if head, is := frame.(*http2.HeadersFrame); is {
				if fragment, ok := unwrap(h.Flags, payload); !ok || !bytes.Equal(fragment, head.HeaderBlockFragment()) {
					t.Fatalf("HEADERS %x: %x, %v; the library has %x", payload, fragment, ok, head.HeaderBlockFragment())
				}
			}
		}
	})
}
