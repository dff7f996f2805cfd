package http

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/test/port"
)

// go2 starts Go's own server of HTTP/2 with prior knowledge, and returns its URL.
func go2(t testing.TB, h http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: protocols}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(listener) }()
	t.Cleanup(func() { s.Close(); <-ended })
	return "http://" + listener.Addr().String() + "/"
}

var echo2 = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(w, r.Body)
})

// raw2 starts a server that calls answer for each request, and returns its URL. The connection ends when answer returns
// false.
func raw2(t testing.TB, answer func(*http2.Framer, net.Conn, uint32) bool) string {
	return server(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		f.AllowIllegalWrites = true
		f.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
		if f.WriteSettings() != nil {
			return
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if h, is := frame.(*http2.MetaHeadersFrame); is && !answer(f, c, h.StreamID) {
				return
			}
		}
	})
}

func ok2(f *http2.Framer, _ net.Conn, id uint32) bool {
	answers(f, id, true, ":status", "200")
	return true
}

// ample is a drain and timeout so long that a slow request on a busy machine does not fail.
const ample = 20 * time.Second

// runUntil runs o repeatedly until enough(result) is true, because a machine may stand still for a whole window.
func runUntil(t *testing.T, o Options, duration time.Duration, enough func(*load.Result) bool) *load.Result {
	t.Helper()
	r := run(t, o, 0, duration)
	for try := 1; !enough(r) && len(r.Errors) == 0 && try < 20; try++ {
		r = run(t, o, 0, duration)
	}
	return r
}

func atLeast(n int64) func(*load.Result) bool {
	return func(r *load.Result) bool { return r.Done >= n }
}

func TestOpenLoop2(t *testing.T) {
	t.Parallel()
	var streams atomic.Int64
	url := go2(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Method != "GET" || r.Header.Get("x-test") != "1" {
			w.WriteHeader(400)
		}
		streams.Add(1)
		echo2(w, r)
	}))
	for _, tt := range []struct {
		rate                          float64
		threads, connections, streams int
		keepAlive                     bool
	}{{1000, 1, 8, 1, true}, {1000, 2, 3, 7, true}, {2000, 1, 1, 50, true}, {400, 1, 8, 1, false}} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			t.Parallel()
			o := Options{Targets: []string{url}, Protocol: HTTP2, Streams: tt.streams, Arrivals: pace.Constant, Rate: tt.rate,
				Threads: tt.threads, Connections: tt.connections, KeepAlive: tt.keepAlive, Headers: []string{"X-Test: 1"},
				Drain: ample, Timeout: ample}
			r := run(t, o, 100*time.Millisecond, 500*time.Millisecond)
			if want := int64(tt.rate / 2); r.Intended < want-1 || r.Intended > want+1 || r.Done != r.Intended {
				t.Errorf("%d intended, %d done, want %d of both; errors %v", r.Intended, r.Done, want, r.Errors)
			}
			if tt.keepAlive && (r.Opened != 0 || r.MaxConnections != tt.connections) {
				t.Errorf("%d connections opened in the window, %d at once, want 0 and %d", r.Opened, r.MaxConnections,
					tt.connections)
			}
			connects, err := r.Histogram(load.Connect)
			if err != nil {
				t.Fatal(err)
			}
			if !tt.keepAlive && connects.TotalCount() != r.Done {
				t.Errorf("%d handshakes for %d requests", connects.TotalCount(), r.Done)
			}
			if r.Streams != tt.streams || r.MostAtOnce() != tt.streams*tt.connections || r.CPUSeconds <= 0 {
				t.Errorf("result says %+v", r)
			}
		})
	}
}

func TestClosedLoop2(t *testing.T) {
	t.Parallel()
	url := go2(t, echo2)
	for _, o := range []Options{
		{Connections: 4, Streams: 8, KeepAlive: true, Threads: 2},
		{Connections: 8},
		{Connections: 2, Streams: 3, KeepAlive: true, Body: 1 << 20},
		{Connections: 1, Streams: 20, KeepAlive: true, Body: 100_000},
	} {
		o.Targets, o.Protocol, o.Drain, o.Timeout = []string{url}, HTTP2, ample, ample
		r := runUntil(t, o, 200*time.Millisecond, atLeast(10))
		if r.Done < 10 || r.Done != r.Intended || len(r.Errors) > 0 || r.MaxConnections > o.Connections {
			t.Errorf("%+v: %+v", o, r)
		}
	}
}

// TestStreamsAtOnce: the load makes as many concurrent requests as its streams and connections allow.
func TestStreamsAtOnce(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	url := go2(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
	}))
	o := Options{Targets: []string{url}, Protocol: HTTP2, Connections: 2, Streams: 30, KeepAlive: true, Drain: ample,
		Timeout: ample}
	r := runUntil(t, o, 200*time.Millisecond, func(*load.Result) bool { return most.Load() == 60 })
	if r.Done < 60 || most.Load() != 60 || r.MaxConnections != 2 {
		t.Errorf("%d at once on %d connections, %d done, errors %v", most.Load(), r.MaxConnections, r.Done, r.Errors)
	}
}

// TestLongAnswers2: an answer longer than the windows that the load grants at first arrives completely.
func TestLongAnswers2(t *testing.T) {
	t.Parallel()
	const size = 2*streamCredit + 12345
	url := go2(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, size)) }))
	r := run(t, Options{Targets: []string{url}, Protocol: HTTP2, Arrivals: pace.Constant, Rate: 10, Connections: 1,
		Streams: 4, KeepAlive: true, Drain: ample, Timeout: ample}, 0, 300*time.Millisecond)
	if r.Done != 3 {
		t.Errorf("%d of 3 done, errors %v", r.Done, r.Errors)
	}
}

func TestHostileServers2(t *testing.T) {
	then := func(do func(*http2.Framer, net.Conn, uint32)) func(*http2.Framer, net.Conn, uint32) bool {
		return func(f *http2.Framer, c net.Conn, id uint32) bool { do(f, c, id); return true }
	}
	for _, tt := range []struct {
		name   string
		answer func(*http2.Framer, net.Conn, uint32) bool
		want   string // kind of error; empty for none
	}{
		{"good", ok2, ""},
		// If the server closes before it has read everything, the connection ends with a reset.
		{"close at once", func(*http2.Framer, net.Conn, uint32) bool { return false }, "closed or reset"},
		{"close mid-body", func(f *http2.Framer, _ net.Conn, id uint32) bool {
			answers(f, id, false, ":status", "200")
			_ = f.WriteRawFrame(http2.FrameData, 0, id, make([]byte, 100))
			return false
		}, "closed or reset"},
		{"reset of the connection", func(_ *http2.Framer, c net.Conn, _ uint32) bool {
			_ = c.(*net.TCPConn).SetLinger(0)
			return false
		}, "reset"},
		{"reset of the stream", then(func(f *http2.Framer, _ net.Conn, id uint32) {
			_ = f.WriteRSTStream(id,
				http2.ErrCodeInternal)
		}), "stream-reset"},
		{"refused", then(func(f *http2.Framer, _ net.Conn, id uint32) {
			_ = f.WriteRSTStream(id,
				http2.ErrCodeRefusedStream)
		}), "stream-refused"},
		{"leaves at once", func(f *http2.Framer, _ net.Conn, _ uint32) bool { _ = f.WriteGoAway(0, 0, nil); return true },
			"goaway"},
		{"garbage", then(func(_ *http2.Framer, c net.Conn, _ uint32) {
			_, _ = io.WriteString(c, strings.Repeat("what?",
				10))
		}), "response"},
		{"status 500", then(func(f *http2.Framer, _ net.Conn, id uint32) { answers(f, id, true, ":status", "500") }),
			"status-500"},
		{"never answers", then(func(*http2.Framer, net.Conn, uint32) {}), "timeout"},
		{"endless body", func(f *http2.Framer, c net.Conn, id uint32) bool {
			answers(f, id, false, ":status", "200")
			// This exceeds the windows eventually, but only after the load has given up.
			for f.WriteData(id, false, make([]byte, 16<<10)) == nil {
				time.Sleep(2 * time.Millisecond)
			}
			return false
		}, "timeout"},
		{"PINGs", func(f *http2.Framer, c net.Conn, id uint32) bool {
			for f.WritePing(false, [8]byte{}) == nil { // and the server reads nothing
			}
			return false
		}, "response"},
		{"beyond the stream's window", func(f *http2.Framer, c net.Conn, id uint32) bool {
			answers(f, id, false, ":status", "200")
			for range 2 * streamCredit / largestFrame {
				if f.WriteDataPadded(id, false, nil, make([]byte, 255)) != nil {
					break
				}
			}
			return true
		}, "timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := raw2(t, tt.answer)
			for _, rate := range []float64{40, 0} {
				o := Options{Targets: []string{url}, Protocol: HTTP2, Streams: 2, Arrivals: pace.Constant, Rate: rate,
					Connections: 2,
					KeepAlive:   true, Threads: 1, Drain: ample,
					Timeout: 300 * time.Millisecond} // deadline under test
				if tt.want != "timeout" {
					o.Timeout = ample
				}
				r := runUntil(t, o, 150*time.Millisecond, atLeast(1))
				if tt.want == "" {
					if r.Done == 0 || len(r.Errors) > 0 {
						t.Errorf("rate %g: %d of %d done, errors %v", rate, r.Done, r.Intended, r.Errors)
					}
				} else if r.Done != 0 || len(r.Errors) == 0 {
					t.Errorf("rate %g: %d done, errors %v, want %s", rate, r.Done, r.Errors, tt.want)
				}
				for kind := range r.Errors {
					if !strings.Contains(tt.want, kind) {
						t.Errorf("rate %g: errors %v, want only %s", rate, r.Errors, tt.want)
					}
				}
			}
		})
	}
}

// TestServerLeaves: no request fails if a server sends GOAWAY after every few requests, as nginx and Envoy do: those
// that it has not processed are sent again over new connections.
func TestServerLeaves(t *testing.T) {
	t.Parallel()
	var left atomic.Int64
	url := server(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		f.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
		_ = f.WriteSettings()
		var last uint32
		for n := 0; ; {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			h, is := frame.(*http2.MetaHeadersFrame)
			if !is {
				continue
			}
			if n++; n > 10 { // GOAWAY comes late: this request and later ones are not processed
				if n == 11 {
					left.Add(1)
					_ = f.WriteGoAway(last, 0, nil)
				}
				continue
			}
			last = h.StreamID
			answers(f, h.StreamID, true, ":status", "200")
		}
	})
	for _, rate := range []float64{0, 2000} {
		left.Store(0)
		o := Options{Targets: []string{url}, Protocol: HTTP2, Streams: 4, Arrivals: pace.Constant, Rate: rate,
			Connections: 2, KeepAlive: true, Drain: ample, Timeout: ample}
		r := runUntil(t, o, 200*time.Millisecond, func(*load.Result) bool { return left.Load() >= 5 })
		if n := left.Load(); n < 5 || r.Done < 40 || r.Done != r.Intended || len(r.Errors) > 0 || r.MaxConnections > 8 {
			t.Errorf("rate %g: left %d times, %d of %d done, errors %v, %d at once", rate, n, r.Done, r.Intended, r.Errors,
				r.MaxConnections)
		}
	}
}

// TestTCP: over TCP, bytes that the server returns count as answered requests, on kept connections and on new ones.
func TestTCP(t *testing.T) {
	t.Parallel()
	url := server(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	for _, body := range []int{0, 1000, 1 << 20} {
		for _, keepAlive := range []bool{true, false} {
			o := Options{Targets: []string{url}, Protocol: TCP, Arrivals: pace.Constant, Rate: 100, Connections: 2,
				KeepAlive: keepAlive, Body: body, Drain: ample, Timeout: ample}
			if r := run(t, o, 0, 200*time.Millisecond); r.Done != 20 || keepAlive != (r.Opened == 0) || r.Streams != 0 {
				t.Errorf("%d bytes, keep-alive %v: %d of 20 done, %d connections opened, errors %v", body, keepAlive, r.Done,
					r.Opened, r.Errors)
			}
		}
	}
	for want, text := range map[string]string{"response": "too much", "closed": ""} {
		url := server(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 10)); _, _ = io.WriteString(c, text) })
		r := run(t, Options{Targets: []string{url}, Protocol: TCP, Arrivals: pace.Constant, Rate: 50, Body: 2, Drain: ample,
			Timeout: ample}, 0, 100*time.Millisecond)
		if r.Done != 0 || r.Errors[want] != 5 {
			t.Errorf("%d done, errors %v, want 5 of %s", r.Done, r.Errors, want)
		}
	}
}

// TestTimeoutOfOneStream: a request that times out is cancelled, and does not affect the others on its connection.
func TestTimeoutOfOneStream(t *testing.T) {
	t.Parallel()
	url := raw2(t, func(f *http2.Framer, c net.Conn, id uint32) bool { return id%14 == 1 || ok2(f, c, id) })
	o := Options{Targets: []string{url}, Protocol: HTTP2, Streams: 10, Arrivals: pace.Constant, Rate: 200, Connections: 1,
		KeepAlive: true, Drain: ample, Timeout: 100 * time.Millisecond} // deadline under test
	enough := func(r *load.Result) bool { return r.Done > 0 && r.Errors["timeout"] > 0 }
	r := run(t, o, 0, 300*time.Millisecond)
	for try := 1; !enough(r) && try < 20; try++ {
		r = run(t, o, 0, 300*time.Millisecond)
	}
	if !enough(r) || len(r.Errors) > 1 || r.MaxConnections != 1 {
		t.Errorf("%d of %d done, errors %v, %d connections at once", r.Done, r.Intended, r.Errors, r.MaxConnections)
	}
}

// TestServerGoesAway2: requests to a server that has gone count as errors, and a closed loop does not spin.
func TestServerGoesAway2(t *testing.T) {
	for _, rate := range []float64{200, 0} {
		listener, err := net.Listen("tcp", port.Free(t))
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan net.Conn, 10)
		go func() {
			defer close(accepted)
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				_ = http2.NewFramer(c, nil).WriteSettings()
				accepted <- c
			}
		}()
		o := Options{Targets: []string{"http://" + listener.Addr().String()}, Protocol: HTTP2, Arrivals: pace.Constant,
			Rate:        rate,
			Connections: 2, Streams: 2, KeepAlive: true, Threads: 1}
		g, err := Prepare(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		for c := range accepted {
			c.Close()
		}
		r := runAt(t, g, pace.Now()+5e6, 0, 300*time.Millisecond)
		g.Close()
		if r.Errors["connect-refused"] == 0 || r.Done != 0 || r.Intended > 140 {
			t.Errorf("rate %g: %d intended, errors %v", rate, r.Intended, r.Errors)
		}
	}
}

// TestFewerStreamsLater: requests wait if a server allows fewer streams on new connections than on the first.
func TestFewerStreamsLater(t *testing.T) {
	t.Parallel()
	var most atomic.Int64
	r := &load.Result{}
	for try := 0; r.Done < 20 && len(r.Errors) == 0 && try < 20; try++ { // each with a server without any connection yet
		url := server(t, fewerStreamsLater(&most))
		o := Options{Targets: []string{url}, Protocol: HTTP2, Streams: 6, Connections: 1, KeepAlive: true,
			Drain: 100 * time.Millisecond, Timeout: ample, Threads: 1}
		r = run(t, o, 0, 200*time.Millisecond)
	}
	if r.Done < 20 || len(r.Errors) > 0 || most.Load() > 2 {
		t.Errorf("%d done, errors %v, %d streams at once where 2 are allowed", r.Done, r.Errors, most.Load())
	}
}

// fewerStreamsLater returns a function that serves the connections of such a server. The function records in most the
// largest number of concurrent streams on a connection whose client knows the limit.
func fewerStreamsLater(most *atomic.Int64) func(net.Conn) {
	var connections atomic.Int64
	return func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		f.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
		first := connections.Add(1) <= 2 // the test connection before the start, and the first of the load
		if first {
			_ = f.WriteSettings()
		} else {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
		}
		var open []uint32
		acked := false
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				acked = acked || frame.IsAck()
			case *http2.MetaHeadersFrame:
				if first {
					_ = f.WriteGoAway(0, 0, nil)
					continue
				}
				open = append(open, frame.StreamID)
				if acked && int64(len(open)) > most.Load() && most.Load() < 3 {
					most.Store(int64(len(open)))
				}
				if !acked {
					// The client sent these requests before it could know the limit: answer all of them.
					for _, id := range open {
						answers(f, id, true, ":status", "200")
					}
					open = nil
					continue
				}
				if len(open) >= 2 {
					for _, id := range open {
						answers(f, id, true, ":status", "200")
					}
					open = nil
				}
			}
		}
	}
}

func TestWrongUse2(t *testing.T) {
	good := go2(t, echo2)
	few := server(t, func(c net.Conn) {
		f := http2.NewFramer(c, c)
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3})
		_, _ = io.Copy(io.Discard, c)
	})
	for _, tt := range []struct {
		name string
		o    Options
		code fault.Code
		want string
	}{
		{"HTTP/1.1 server", Options{Targets: []string{server(t, answering(say("HTTP/1.1 400 Bad Request\r\n\r\n")))}},
			fault.Machine, "does not speak HTTP/2"},
		{"closes", Options{Targets: []string{server(t, func(c net.Conn) {})}}, fault.Machine, "does not speak HTTP/2"},
		{"more streams than allowed", Options{Targets: []string{few}, Streams: 4}, fault.Usage, "takes 3 requests at once"},
		{"streams without keep-alive", Options{Targets: []string{good}, Streams: 4, Method: "HEAD"}, fault.Usage,
			"without keepalive"},
		{"recycle", Options{Targets: []string{good}, Recycle: true, Method: "HEAD"}, fault.Usage, "not recycled"},
		{"header", Options{Targets: []string{good}, Headers: []string{"Connection: close"}}, fault.Usage, "connection"},
		{"long header", Options{Targets: []string{good}, Headers: []string{"X: " + strings.Repeat("{", 20_000)}},
			fault.Usage, "room for 16384"},
		{"method of a call", Options{Targets: []string{good}, Protocol: GRPC, Method: "GET"}, fault.Usage, "POST"},
		{"streams of HTTP/1.1", Options{Targets: []string{good}, Protocol: HTTP1, Streams: 2}, fault.Usage, "HTTP/1.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.o.Protocol == "" {
				tt.o.Protocol = HTTP2
			}
			tt.o.KeepAlive = tt.o.Method != "HEAD"
			g, err := Prepare(t.Context(), tt.o)
			if err == nil {
				g.Close()
				t.Fatal("no error")
			}
			if fault.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want) || fault.HintOf(err) == "" {
				t.Errorf("code %d, hint %q: %v; want code %d and %q", fault.CodeOf(err), fault.HintOf(err), err, tt.code, tt.want)
			}
		})
	}
}
