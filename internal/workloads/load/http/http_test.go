package http

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/test/port"
	"tare/test/started"
)

// TestMain lets the test binary start itself again in the role of a load.
func TestMain(m *testing.M) {
	options := os.Getenv("TARE_TEST_LOAD")
	if options == "" {
		os.Exit(m.Run())
	}
	var o Options
	conn := role.Stdio()
	err := json.Unmarshal([]byte(options), &o)
	if err == nil {
		err = Run(context.Background(), o, conn)
	}
	if err != nil {
		_ = conn.Fail(err)
	}
	os.Exit(int(fault.CodeOf(err)))
}

// server accepts connections on loopback and hands each to serve, until the test ends.
func server(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			running.Go(func() {
				serve(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return "http://" + listener.Addr().String() + "/"
}

// answering returns a function that serves requests without a body: it calls answer for each, and closes the connection
// when answer returns false.
func answering(answer func(net.Conn) bool) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReaderSize(c, 512)
		for {
			for blank := false; !blank; {
				line, err := r.ReadSlice('\n')
				if err != nil {
					return
				}
				blank = len(line) == 2
			}
			if !answer(c) {
				return
			}
		}
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func say(text string) func(net.Conn) bool {
	b := []byte(text)
	return func(c net.Conn) bool { _, err := c.Write(b); return err == nil }
}

// run prepares a load with the options o and runs it at once.
func run(t testing.TB, o Options, warmup, duration time.Duration) *load.Result {
	t.Helper()
	g, err := Prepare(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return runAt(t, g, pace.Now()+10e6, warmup, duration)
}

func runAt(t testing.TB, g *Generator, begin int64, warmup, duration time.Duration) *load.Result {
	t.Helper()
	r, err := g.Run(t.Context(), role.Schedule{Begin: begin, Warmup: int64(warmup), Duration: int64(duration)})
	if err != nil {
		t.Fatal(err)
	}
	// Every request is accounted for, once.
	var failed int64
	for _, n := range r.Errors {
		failed += n
	}
	if r.Done+failed+r.Unfinished != r.Sent || r.Sent > r.Intended || r.Unfinished < 0 {
		t.Errorf("%d done + %d failed + %d unfinished are not %d sent of %d intended", r.Done, failed, r.Unfinished, r.Sent,
			r.Intended)
	}
	if *r.Finished < r.Done-r.Late || r.Rate != float64(*r.Finished)/r.Seconds {
		t.Errorf("%d answers came in the window, %g/s; of %d done %d were late", *r.Finished, r.Rate, r.Done, r.Late)
	}
	h, err := r.Histogram(load.Latency)
	if err != nil {
		t.Fatal(err)
	}
	if r.Done > 0 && h.TotalCount() != r.Done {
		t.Errorf("%d latencies of %d answers", h.TotalCount(), r.Done)
	}
	return r
}

func TestOpenLoopCounts(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	for _, tt := range []struct {
		rate      float64
		threads   int
		keepAlive bool
	}{{1000, 1, true}, {1000, 2, true}, {777, 1, false}, {2000, 2, false}} {
		t.Run(fmt.Sprintf("%g/s, %d threads, keep-alive %v", tt.rate, tt.threads, tt.keepAlive), func(t *testing.T) {
			o := Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: tt.rate, Threads: tt.threads, Connections: 8,
				KeepAlive: tt.keepAlive, Drain: 20 * time.Second}
			r := run(t, o, 100*time.Millisecond, 500*time.Millisecond)
			// The first start may be rounded to either side of the edge of the window.
			if want := int64(tt.rate / 2); r.Intended < want-1 || r.Intended > want+1 || r.Done != r.Intended {
				t.Errorf("%d intended, %d done, want %d of both; errors %v", r.Intended, r.Done, want, r.Errors)
			}
			if tt.keepAlive && (r.Opened != 0 || r.MaxConnections != 8) {
				t.Errorf("%d connections opened in the window, %d at once, want 0 and 8", r.Opened, r.MaxConnections)
			}
			connects, err := r.Histogram(load.Connect)
			if err != nil {
				t.Fatal(err)
			}
			if !tt.keepAlive && connects.TotalCount() != r.Done {
				t.Errorf("%d handshakes for %d requests", connects.TotalCount(), r.Done)
			}
			if r.CPUSeconds <= 0 || r.CPUs < 1 || r.Mode != load.Open || r.Arrivals != "constant" || r.TargetRate != tt.rate {
				t.Errorf("result says %+v", r)
			}
		})
	}
}

func TestPoissonCounts(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	o := Options{Targets: []string{url}, Rate: 2000, Arrivals: pace.Poisson, Seed: 7, Connections: 8, KeepAlive: true,
		Drain: 20 * time.Second}
	a, b := run(t, o, 0, 500*time.Millisecond), run(t, o, 0, 500*time.Millisecond)
	if a.Intended != b.Intended || a.Intended < 850 || a.Intended > 1150 || a.Done != a.Intended {
		t.Errorf("%d and %d intended by one seed, %d done", a.Intended, b.Intended, a.Done)
	}
}

// TestConnectionsClosedWhenIdle: connections that the server closes when they are idle do not count as held, although
// all were open at the beginning.
func TestConnectionsClosedWhenIdle(t *testing.T) {
	for _, tt := range []struct {
		idle        time.Duration
		least, most float64
	}{{50 * time.Millisecond, 0.1, 10}, {time.Hour, 20, 20}} {
		for _, threads := range []int{1, 2} {
			url := server(t, func(c net.Conn) {
				busy := func(c net.Conn) bool { return c.SetReadDeadline(time.Now().Add(tt.idle)) == nil }
				_ = busy(c)
				answering(func(c net.Conn) bool { return say(okAnswer)(c) && busy(c) })(c)
			})
			r := run(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 20, Connections: 20, KeepAlive: true,
				Threads: threads, Drain: ample}, 200*time.Millisecond, time.Second)
			if r.MaxConnections != 20 || r.MeanConnections < tt.least || r.MeanConnections > tt.most+1e-6 {
				t.Errorf("closed after %v, %d threads: %d at once, %g on average, want 20 and %g to %g", tt.idle, threads,
					r.MaxConnections, r.MeanConnections, tt.least, tt.most)
			}
		}
	}
}

// TestStallShowsAtFullLength: a stall of the server must show at full length for every request that should have been
// sent in it, whether or not a connection was free to send it.
func TestStallShowsAtFullLength(t *testing.T) {
	const rate, stall = 500, 200 * time.Millisecond
	begin := pace.Now() + int64(50*time.Millisecond)
	from := begin + int64(300*time.Millisecond)
	url := server(t, answering(func(c net.Conn) bool {
		if now := pace.Now(); now >= from && now < from+int64(stall) {
			time.Sleep(time.Duration(from + int64(stall) - now))
		}
		return say(okAnswer)(c)
	}))
	g, err := Prepare(t.Context(), Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: rate, Connections: 4,
		KeepAlive: true, Drain: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	r := runAt(t, g, begin, 0, time.Second)
	if r.Done != rate {
		t.Fatalf("%d of %d done, errors %v", r.Done, rate, r.Errors)
	}
	atLeast := func(name string, ns int64) (n int64) {
		h, err := r.Histogram(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, bar := range h.Distribution() {
			if bar.From >= ns {
				n += bar.Count
			}
		}
		return n
	}
	for _, part := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 180 * time.Millisecond} {
		// Requests intended between the start of the stall and the time part before its end: none can have been answered
		// sooner.
		want := int64((stall-part).Seconds()*rate) - 1
		if got := atLeast(load.Latency, int64(part)*99/100); got < want {
			t.Errorf("%d latencies of at least %s, want %d", got, part, want)
		}
	}
	// Measured from when requests are sent, as in a closed loop, only one request on each connection is slow.
	if got := atLeast(load.Service, int64(150*time.Millisecond)); got > 8 {
		t.Logf("%d services of at least 150 ms; an idle machine shows 4", got)
	}
}

func TestClosedLoop(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	for _, keepAlive := range []bool{true, false} {
		r := runUntil(t, Options{Targets: []string{url}, Connections: 8, KeepAlive: keepAlive, Threads: 2, Drain: ample},
			300*time.Millisecond, atLeast(100))
		if r.Done < 100 || r.Done != r.Intended || len(r.Errors) > 0 || r.Mode != load.Closed || r.MaxConnections > 8 {
			t.Errorf("keep-alive %v: %+v", keepAlive, r)
		}
	}
}

func TestTargetsTakeTurns(t *testing.T) {
	var hits [2]atomic.Int64
	count := func(i int) func(net.Conn) bool {
		return func(c net.Conn) bool { hits[i].Add(1); return say(okAnswer)(c) }
	}
	urls := []string{server(t, answering(count(0))), server(t, answering(count(1)))}
	for _, keepAlive := range []bool{true, false} {
		hits[0].Store(0)
		hits[1].Store(0)
		r := run(t, Options{Targets: urls, Connections: 4, Arrivals: pace.Constant, Rate: 800, KeepAlive: keepAlive,
			Drain: 20 * time.Second}, 0, 250*time.Millisecond)
		least := int64(80)
		if keepAlive { // each has half of the connections, and it is chance which of them is free
			least = 30
		}
		if a, b := hits[0].Load(), hits[1].Load(); r.Done != 200 || a+b != 200 || a < least || b < least {
			t.Errorf("keep-alive %v: %d and %d of %d", keepAlive, a, b, r.Done)
		}
	}
}

// timeWaits counts sockets in TIME_WAIT that have the URL's port on either side.
func timeWaits(t *testing.T, url string) (n int) {
	t.Helper()
	port, err := strconv.Atoi(strings.Trim(url[strings.LastIndexByte(url, ':')+1:], "/"))
	if err != nil {
		t.Fatal(err)
	}
	end := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 3 && f[3] == "06" && (strings.HasSuffix(f[1], end) || strings.HasSuffix(f[2], end)) {
				n++
			}
		}
	}
	return n
}

// TestManyConnectionsLeaveNothing: a load makes more connections in a few seconds than one pair of addresses has ports,
// and leaves none in TIME_WAIT.
func TestManyConnectionsLeaveNothing(t *testing.T) {
	const connections, rate = 42_000, 14_000
	url := server(t, answering(func(c net.Conn) bool { say(okAnswer)(c); return false }))
	r := run(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: rate, Connections: 64, Drain: time.Minute,
		Timeout: time.Minute}, 0, connections/rate*time.Second)
	if r.Done != connections || len(r.Errors) > 0 {
		t.Errorf("%d of %d done, errors %v", r.Done, connections, r.Errors)
	}
	// A reset and the server's own close may cross, but a connection that one side has reset does not last on the other.
	left := timeWaits(t, url)
	t.Logf("%d connections, %d in TIME_WAIT", r.Done, left)
	if left > 0 {
		t.Errorf("%d connections are left in TIME_WAIT", left)
	}
}

func TestSourceAddresses(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	url := server(t, answering(func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		seen[c.RemoteAddr().(*net.TCPAddr).IP.String()] = true
		return say(okAnswer)(c)
	}))
	for _, tt := range []struct {
		source Source
		least  int
		most   int
	}{{SourceAuto, 50, 250}, {SourceLoopback, 50, 250}, {SourceNone, 1, 1}} {
		run(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 500, Connections: 4, Source: tt.source,
			Drain: 20 * time.Second}, 0, 200*time.Millisecond)
		mu.Lock()
		if len(seen) < tt.least || len(seen) > tt.most {
			t.Errorf("%s: %d source addresses, want %d to %d", tt.source, len(seen), tt.least, tt.most)
		}
		clear(seen)
		mu.Unlock()
	}
}

func TestHostileServers(t *testing.T) {
	hang := func(c net.Conn) bool { _, _ = c.Read(make([]byte, 1)); return false }
	then := func(text string, next func(net.Conn) bool) func(net.Conn) bool {
		return func(c net.Conn) bool { return say(text)(c) && next(c) }
	}
	bye := func(net.Conn) bool { return false }
	for _, tt := range []struct {
		name   string
		answer func(net.Conn) bool
		want   string // kind of error; empty for none
	}{
		{"garbage", say("\x00\x01\x02garbage\r\n\r\n"), "response"},
		{"HTTP/2 preface", say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "response"},
		{"close at once", bye, "closed"},
		{"truncated head", then("HTTP/1.1 200 OK\r\nContent-", bye), "closed"},
		{"close mid-body", then("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", bye), "closed"},
		{"reset mid-body", then("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", func(c net.Conn) bool {
			_ = c.(*net.TCPConn).SetLinger(0)
			return false
		}), "reset"},
		{"huge header", func(c net.Conn) bool {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := io.WriteString(c, "X: "+strings.Repeat("x", 4000)+"\r\n"); err != nil {
					return false
				}
			}
		}, "response"},
		{"negative length", then("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", hang), "response"},
		{"huge length", then("HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\nabc", hang), "timeout"},
		{"more than its length", say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more"), "response"},
		{"never answers", hang, "timeout"},
		{"endless body", func(c net.Conn) bool {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for chunk := make([]byte, 8<<10); ; {
				if _, err := c.Write(chunk); err != nil {
					return false
				}
			}
		}, "timeout"},
		{"status 500", say("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"), "status-500"},
		{"slow drip", func(c net.Conn) bool {
			for i := range okAnswer {
				if _, err := c.Write([]byte(okAnswer[i : i+1])); err != nil {
					return false
				}
				time.Sleep(time.Millisecond)
			}
			return true
		}, ""},
		{"speaks unasked", then(okAnswer, func(c net.Conn) bool {
			time.Sleep(5 * time.Millisecond)
			return say("HTTP/1.1 408 Request Timeout\r\n\r\n")(c) && false
		}), ""},
		{"until close", then("HTTP/1.1 200 OK\r\n\r\nabc", bye), ""},
		{"interim", say("HTTP/1.1 100 Continue\r\n\r\n" + okAnswer), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := server(t, answering(tt.answer))
			for _, rate := range []float64{40, 0} {
				o := Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: rate, Connections: 4, KeepAlive: true,
					Threads: 1, Drain: 20 * time.Second,
					Timeout: 300 * time.Millisecond} // deadline under test
				if tt.want == "" {
					o.Timeout = 10 * time.Second // a slow request on a busy machine must not fail
				}
				r := run(t, o, 0, 150*time.Millisecond)
				// On a busy machine, data that the server sends unasked may cross the next request, which then fails, or the
				// generator may stand still for the whole window. Neither happens every time.
				chance := func() bool {
					return tt.name == "speaks unasked" && r.Errors["response"] > 0 || r.Done == 0 && len(r.Errors) == 0
				}
				for try := 1; chance() && try < 20; try++ {
					r = run(t, o, 0, 150*time.Millisecond)
				}
				if tt.want == "" {
					// The server's close may cross the next request, which then fails in either case.
					if r.Done == 0 || r.Errors["response"] > 0 || r.Errors["timeout"] > 0 {
						t.Errorf("rate %g: %d of %d done, errors %v", rate, r.Done, r.Intended, r.Errors)
					}
				} else if r.Done != 0 || r.Errors[tt.want] == 0 {
					t.Errorf("rate %g: %d done, errors %v, want only %s", rate, r.Done, r.Errors, tt.want)
				}
			}
		})
	}
}

// TestServerGoesAway: requests to a server that has gone count as errors, and a closed loop does not spin.
func TestServerGoesAway(t *testing.T) {
	address := port.Free(t)
	for _, rate := range []float64{200, 0} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Prepare(t.Context(), Options{Targets: []string{"http://" + address}, Arrivals: pace.Constant, Rate: rate,
			Connections: 2, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		r := runAt(t, g, pace.Now()+5e6, 0, 300*time.Millisecond)
		g.Close()
		if r.Errors["connect-refused"] == 0 || r.Done != 0 || r.Intended > 70 {
			t.Errorf("rate %g: %d intended, errors %v", rate, r.Intended, r.Errors)
		}
	}
}

// TestAnswersInTheWindow: a server that can answer at most 200 requests/s gets 300/s. Answers to the queue come after
// the window and do not count in its rate; answers to the queue of the warm-up come in the window and do.
func TestAnswersInTheWindow(t *testing.T) {
	url := server(t, answering(func(c net.Conn) bool { time.Sleep(5 * time.Millisecond); return say(okAnswer)(c) }))
	for _, warmup := range []time.Duration{0, 200 * time.Millisecond} {
		r := run(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 300, Connections: 1, KeepAlive: true,
			Drain: 20 * time.Second}, warmup, 500*time.Millisecond)
		if r.Done != r.Intended || r.Late == 0 || r.Rate > 200 || (*r.Finished > r.Done-r.Late) != (warmup > 0) {
			t.Errorf("warm-up of %v: %g/s: %d in the window; %d of %d done, %d of them late", warmup, r.Rate, *r.Finished,
				r.Done, r.Intended, r.Late)
		}
	}
	closed := run(t, Options{Targets: []string{url}, Connections: 4, KeepAlive: true, Drain: 20 * time.Second},
		2*time.Second, 2*time.Second) // so that requests are under way at both edges of the window
	if closed.Late == 0 || *closed.Finished <= closed.Done-closed.Late {
		t.Errorf("closed loop: %d answers in the window; %d done, %d of them late", *closed.Finished, closed.Done,
			closed.Late)
	}
}

func TestUnansweredAreCounted(t *testing.T) {
	url := server(t, answering(func(c net.Conn) bool { _, _ = c.Read(make([]byte, 1)); return false }))
	r := runUntil(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 100, Connections: 3, KeepAlive: true,
		Drain: 50 * time.Millisecond}, 300*time.Millisecond, func(r *load.Result) bool { return r.Sent >= 3 })
	if r.Intended != 30 || r.Sent != 3 || r.Unfinished != 3 || r.Done != 0 {
		t.Errorf("%d intended, %d sent, %d unfinished, want 30, 3 and 3", r.Intended, r.Sent, r.Unfinished)
	}
}

func TestBodies(t *testing.T) {
	const size = 3 << 20 // more than fits a socket buffer, so that writes are partial
	url := server(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			var length int64
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if v, ok := strings.CutPrefix(line, "Content-Length: "); ok {
					length, _ = strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				}
				if line == "\r\n" {
					break
				}
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", length)
			if _, err := io.CopyN(c, r, length); err != nil {
				return
			}
		}
	})
	for _, keepAlive := range []bool{true, false} {
		o := Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 40, Connections: 2, KeepAlive: keepAlive,
			Method: "POST", Body: size, Headers: []string{"X-Test: 1"}, Drain: time.Minute, Timeout: time.Minute}
		if r := run(t, o, 0, 250*time.Millisecond); r.Done != 10 {
			t.Errorf("keep-alive %v: %d of 10 done, errors %v", keepAlive, r.Done, r.Errors)
		}
	}
}

func TestWrongUse(t *testing.T) {
	dead := "http://" + port.Free(t) + "/"
	const live = "http://127.0.0.1:1/"
	for _, tt := range []struct {
		name string
		o    Options
		code fault.Code
		want string
	}{
		{"no target", Options{}, fault.Usage, "nothing to put under load"},
		{"refused", Options{Targets: []string{dead}}, fault.Machine, "connection refused"},
		{"scheme", Options{Targets: []string{"ftp://127.0.0.1/"}}, fault.Usage, "only http and https"},
		{"no URL", Options{Targets: []string{"127.0.0.1:80"}}, fault.Usage, "URL"},
		{"bad port", Options{Targets: []string{"http://127.0.0.1:70000/"}}, fault.Usage, "got 70000"},
		{"unknown name", Options{Targets: []string{"http://no-such-host.invalid/"}}, fault.Usage, "no address is known"},
		{"files", Options{Targets: []string{live}, Connections: 1_000_000}, fault.Machine, "open files"},
		{"method", Options{Targets: []string{live}, Method: "get it"}, fault.Usage, "method"},
		{"header", Options{Targets: []string{live}, Headers: []string{"X: 1\r\nY: 2"}}, fault.Usage, "header"},
		{"source of IPv6", Options{Targets: []string{"http://[::1]:1/"}, Source: SourceLoopback}, fault.Usage,
			"only one IPv6"},
		{"recycle and keep", Options{Targets: []string{live}, Recycle: true, KeepAlive: true}, fault.Usage, "not made again"},
		{"recycle of many", Options{Targets: []string{live, live}, Recycle: true}, fault.Usage, "stays with its target"},
	} {
		t.Run(tt.name, func(t *testing.T) {
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

// TestSettingsBoundOptions: what Options do not check is bounded by the settings, which are checked wherever options
// come from.
func TestSettingsBoundOptions(t *testing.T) {
	for name, value := range map[string]string{"tls": "most", "rate": "-1", "connections": "-1", "source": "any",
		"request-body": "-1", "timeout": "-1s", "streams": "-1", "threads": "-1", "protocol": "http3", "arrivals": "even"} {
		settings := slices.Concat(Settings, processSettings)
		if err := (param.Values{name: value}).Check(settings); fault.CodeOf(err) != fault.Usage {
			t.Errorf("--%s %s: %v", name, value, err)
		}
	}
}

// TestRecycle: recycled sockets make real connections: the server sees one for each request, from the same few sockets.
// If a server fails half of the requests, the others are not affected.
func TestRecycle(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rate  float64
		fails bool
	}{{"open", 2000, false}, {"closed", 0, false}, {"closed, half fail", 0, true}} {
		t.Run(tt.name, func(t *testing.T) {
			var accepted, sources atomic.Int64
			var seen sync.Map
			url := server(t, func(c net.Conn) {
				n := accepted.Add(1)
				ip, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				if _, known := seen.LoadOrStore(ip, true); !known {
					sources.Add(1)
				}
				answering(func(c net.Conn) bool { return (!tt.fails || n%2 == 0) && say(okAnswer)(c) && false })(c)
			})
			r := run(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: tt.rate, Connections: 4, Recycle: true,
				Drain: 20 * time.Second}, 0, 300*time.Millisecond)
			var failed int64
			for _, n := range r.Errors {
				failed += n
			}
			if r.Done == 0 || (failed > 0) != tt.fails || tt.rate > 0 && r.Done != 600 || r.MaxConnections > 4 {
				t.Errorf("%d done, errors %v, %d connections at once", r.Done, r.Errors, r.MaxConnections)
			}
			if n := accepted.Load(); n < r.Done+failed {
				t.Errorf("%d connections for %d requests", n, r.Done+failed)
			}
			// One address for each socket, and one for the test connection before the start.
			if n := sources.Load(); !tt.fails && n > 5 {
				t.Errorf("connections came from %d addresses: the sockets were made anew", n)
			}
		})
	}
}

// TestSlicesShowASlowerServer: a server that slows down shows in the slices of the window, in open and in closed loop:
// every request that is intended later waits.
func TestSlicesShowASlowerServer(t *testing.T) {
	const slow = 300 * time.Millisecond
	for _, rate := range []float64{0, 200} {
		begin := pace.Now() + int64(50*time.Millisecond)
		change := begin + int64(2100*time.Millisecond) // in the middle of the window
		url := server(t, answering(func(c net.Conn) bool {
			if pace.Now() >= change {
				time.Sleep(slow)
			}
			return say(okAnswer)(c)
		}))
		g, err := Prepare(t.Context(), Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: rate, Connections: 64,
			KeepAlive: true, Drain: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		r := runAt(t, g, begin, 100*time.Millisecond, 4*time.Second)
		if len(r.Slices) != load.Slices {
			t.Fatalf("%d slices", len(r.Slices))
		}
		done, quick := int64(0), false
		for i, s := range r.Slices {
			done += s.Done
			switch {
			case s.Done == 0:
			case i >= load.Slices/2 && s.P50 < 0.98*slow.Seconds():
				t.Errorf("rate %g: slice %d is after the change, and its median is %g s", rate, i, s.P50)
			case i < load.Slices/2:
				quick = quick || s.P50 < slow.Seconds()
			}
		}
		if done != r.Done || !quick {
			t.Errorf("rate %g: %d done, by slices %d; a slice before the change is quick: %v", rate, r.Done, done, quick)
		}
	}
}

func TestIPv6(t *testing.T) {
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("needs IPv6 on loopback")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			answering(func(c net.Conn) bool { say(okAnswer)(c); return false })(c)
			c.Close()
		}
	}()
	r := run(t, Options{Targets: []string{"http://" + listener.Addr().String()}, Arrivals: pace.Constant, Rate: 100,
		Connections: 1, Drain: 20 * time.Second}, 0, 200*time.Millisecond)
	listener.Close()
	<-done
	if r.Done != 20 {
		t.Errorf("%d of 20 done, errors %v", r.Done, r.Errors)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	g, err := Prepare(t.Context(), Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 100, KeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // deadline under test
	defer cancel()
	if _, err := g.Run(ctx, role.Schedule{Begin: pace.Now(), Duration: int64(time.Hour)}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

// child starts the test binary as a load.
func child(t *testing.T, o Options) (*exec.Cmd, *role.Conn, io.Closer) {
	t.Helper()
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "TARE_TEST_LOAD="+string(options))
	cmd.Stderr = os.Stderr
	in, out := started.Piped(t, cmd)
	return cmd, role.NewConn(out, in), in
}

func TestRole(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	cmd, conn, in := child(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 500, Connections: 4,
		KeepAlive: true, Drain: 20 * time.Second})
	var ready Ready
	if err := conn.Expect(role.Ready, &ready, nil); err != nil {
		t.Fatal(err)
	}
	if ready.Connections != 4 || ready.Threads != 1 {
		t.Errorf("ready with %+v", ready)
	}
	begin := pace.Now() + int64(50*time.Millisecond)
	if err := conn.Send(role.Start, role.Schedule{Begin: begin, Warmup: 100e6, Duration: 400e6}); err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := conn.Expect(role.Result, &r, nil); err != nil {
		t.Fatal(err)
	}
	if r.Done != 200 {
		t.Errorf("%d of 200 done, errors %v", r.Done, r.Errors)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRoleEndsWithItsParent(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	for _, started := range []bool{false, true} {
		cmd, conn, in := child(t, Options{Targets: []string{url}, Arrivals: pace.Constant, Rate: 500, KeepAlive: true})
		if err := conn.Expect(role.Ready, nil, nil); err != nil {
			t.Fatal(err)
		}
		if started {
			if err := conn.Send(role.Start, role.Schedule{Begin: pace.Now(), Duration: int64(time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("started %v: %v", started, err)
		}
	}
}

func TestRoleTellsItsFault(t *testing.T) {
	cmd, conn, in := child(t, Options{Targets: []string{"ftp://127.0.0.1/"}})
	err := conn.Expect(role.Ready, nil, nil)
	if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
	in.Close()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != int(fault.Usage) {
		t.Errorf("exit %v, want 2", err)
	}
}

func TestNoAllocationWhileRunning(t *testing.T) {
	url := server(t, answering(say(okAnswer)))
	g, err := Prepare(t.Context(), Options{Targets: []string{url}, Connections: 4, KeepAlive: true, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	w := g.workers[0]
	thread, err := pace.LockThread(0)
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Close()
	w.thread = thread
	w.schedule.Begin, w.end = pace.Now(), pace.Now()+int64(time.Hour)
	if n := testing.AllocsPerRun(1000, func() {
		now := w.startDue(pace.Now())
		w.expire(now)
		if err := w.wait(now, w.end); err != nil {
			t.Fatal(err)
		}
	}); n >= 1 { // the server runs in this process, too, but allocates nothing per request
		t.Errorf("%g allocations per turn", n)
	}
}

// BenchmarkClosedLoop puts the server at $TARE_BENCH_URL under load from one thread and reports answers per CPU second
// of the generator.
func BenchmarkClosedLoop(b *testing.B) {
	url := os.Getenv("TARE_BENCH_URL")
	if url == "" {
		b.Skip("needs TARE_BENCH_URL, say of nginx on another CPU")
	}
	for _, keepAlive := range []bool{true, false} {
		b.Run(fmt.Sprintf("keepalive=%v", keepAlive), func(b *testing.B) {
			var done, cpu float64
			for b.Loop() {
				r := run(b, Options{Targets: []string{url}, Connections: 64, KeepAlive: keepAlive, Threads: 1},
					200*time.Millisecond, time.Second)
				done += float64(r.Done)
				cpu += r.CPUSeconds
			}
			b.ReportMetric(done/cpu, "answers/cpu-s")
		})
	}
}

// TestStallsAreToldApart: a server that stands still for 100 ms every 400 ms, with these stalls reported to the load,
// has the latency of one that never does. A request that is slow outside the reported stalls still counts.
func TestStallsAreToldApart(t *testing.T) {
	// The stalls are longer than another process's time slices, which are not reported to the load here.
	const every, length, service = int64(400e6), int64(100e6), 300 * time.Microsecond
	begin := pace.Now() + 50e6
	var n atomic.Int64
	url := server(t, answering(func(c net.Conn) bool {
		if into := (pace.Now() - begin) % every; into >= 0 && into < length {
			time.Sleep(time.Duration(length - into))
		}
		if n.Add(1)%10 == 0 {
			time.Sleep(10 * service)
		}
		return say(okAnswer)(c)
	}))
	g, err := Prepare(t.Context(), Options{Targets: []string{url}, Rate: 400, Arrivals: pace.Poisson, Seed: 1,
		Connections: 16, KeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	s := role.Schedule{Begin: begin, Warmup: 200e6, Duration: 4e9, Stalls: true}
	r, err := g.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	stalls := &role.Stalls{From: begin, To: begin + s.Warmup + s.Duration}
	for at := begin; at < stalls.To; at += every {
		stalls.Spans = append(stalls.Spans, [2]int64{at - 1e6, at + length + 1e6})
	}
	if err := g.classify(r, stalls); err != nil {
		t.Fatal(err)
	}
	run := r.Running
	if run.Undisturbed+run.Disturbed+run.Unwatched != r.Done || run.Method != running.BusyPeriods {
		t.Fatalf("%d requests: %+v", r.Done, run)
	}
	// The stalls hit a fifth of the requests at least, whatever else the machine does meanwhile.
	if share, _ := run.Share(); share < 0.2 {
		t.Errorf("%.2f of the requests are disturbed", share)
	}
	all, err := r.Histogram(load.Latency)
	if err != nil {
		t.Fatal(err)
	}
	quiet, err := r.Histogram(load.LatencyRunning)
	if err != nil || quiet == nil {
		t.Fatalf("%v: %+v", err, run)
	}
	t.Logf("of all: p50 %d p90 %d p95 %d us; undisturbed: %d %d %d us; %+v", all.ValueAtQuantile(50)/1e3,
		all.ValueAtQuantile(90)/1e3, all.ValueAtQuantile(95)/1e3,
		quiet.ValueAtQuantile(50)/1e3, quiet.ValueAtQuantile(90)/1e3, quiet.ValueAtQuantile(95)/1e3, run)
	// A tenth of the requests takes 3 ms without any stall. These must not be taken for stalled ones, and nothing of the
	// 100 ms of the stalls may be left.
	if q := quiet.ValueAtQuantile(97); q < 3e6 {
		t.Errorf("p97 of the undisturbed is %d us: the slow requests are missing", q/1e3)
	}
	if before, after := all.ValueAtQuantile(85), quiet.ValueAtQuantile(85); after >= before {
		t.Errorf("p85 is %d us, and %d us of the undisturbed: stalls are left in it", before/1e3, after/1e3)
	}
}

// TestNobodySaysStalls: unless stalls are announced, requests are not logged, and the result has nothing about stalls.
func TestNobodySaysStalls(t *testing.T) {
	g, err := Prepare(t.Context(), Options{Targets: []string{server(t, answering(say(okAnswer)))}, Arrivals: pace.Constant,
		Rate: 100, KeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	r := runAt(t, g, pace.Now()+10e6, 0, 200*time.Millisecond)
	if err := g.classify(r, nil); err != nil || r.Running != nil {
		t.Errorf("%v: %+v", err, r.Running)
	}
}
