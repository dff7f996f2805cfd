package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tare/internal/scale/ledger"
	"tare/test/speed"
)

// fakes simulates agents, each with its own clock and its own way to fail.
type fakes struct {
	behaves     func(node string) string
	ahead       func(node string) time.Duration
	connections atomic.Int32
	most        atomic.Int32 // the most connections that were being made at once
	mu          sync.Mutex
	begins      map[string]time.Time // by this machine's clock, by node
}

// dial connects to the agent of a node, by a pipe to an HTTP server.
func (f *fakes) dial(_ context.Context, a *Agent) (net.Conn, error) {
	now := f.connections.Add(1)
	defer f.connections.Add(-1)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	time.Sleep(time.Millisecond)
	if f.behaves(a.Node) == "refuses" {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	listener := &one{conn: server, ended: make(chan struct{})}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:errcheck // ends so
		f.serve(w, r, a.Node, server)
	}))
	return &closing{client, listener}, nil
}

func (f *fakes) serve(w http.ResponseWriter, r *http.Request, node string, conn net.Conn) {
	ahead := f.ahead(node)
	if r.URL.Path == "/v1/clock" {
		switch f.behaves(node) {
		case "slow":
			time.Sleep(500 * time.Millisecond)
		case "forgets": // ends each connection after its answer
			w.Header().Set("Connection", "close")
		}
		fmt.Fprintf(w, `{"time": %q}`, time.Now().Add(ahead).Format(time.RFC3339Nano))
		return
	}
	at, err := time.Parse(time.RFC3339Nano, r.FormValue("at"))
	d, err2 := time.ParseDuration(r.FormValue("for"))
	if err != nil || err2 != nil {
		http.Error(w, "wrong", http.StatusBadRequest)
		return
	}
	begin := at.Add(-ahead)
	if time.Until(begin) > time.Minute { // as tare-agent does
		http.Error(w, "at must be 0s to 1m0s from now", http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	_, again := f.begins[node]
	f.begins[node] = begin
	f.mu.Unlock()
	switch f.behaves(node) {
	case "dies": // ends in the window, and is started again
		if !again {
			time.Sleep(time.Until(begin.Add(d / 2)))
			_ = conn.Close()
			return
		}
	case "floods":
		for { // until no one reads
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	case "lies":
		fmt.Fprint(w, "<html>")
		return
	case "stalls": // stops in the middle of its answer
		_, _ = w.Write(make([]byte, 20<<10))
		<-r.Context().Done()
		return
	}
	time.Sleep(time.Until(begin.Add(d)))
	l := ledger.Ledger{Schema: ledger.Schema}
	l.Window.Start, l.Window.End, l.Window.Seconds = at, at.Add(d), d.Seconds()
	_ = json.NewEncoder(w).Encode(&l) // if this fails, the test gets no ledger
}

// one is a listener with one connection.
type one struct {
	conn  net.Conn
	once  sync.Once
	ended chan struct{}
}

func (l *one) Accept() (net.Conn, error) {
	var c net.Conn
	l.once.Do(func() { c = l.conn })
	if c != nil {
		return c, nil
	}
	<-l.ended
	return nil, net.ErrClosed
}

func (l *one) Close() error   { return nil }
func (l *one) Addr() net.Addr { return address{} }

type closing struct {
	net.Conn
	l *one
}

func (c *closing) Close() error {
	close(c.l.ended)
	return c.Conn.Close()
}

// TestWindow: a thousand agents (fewer on a slow machine) whose clocks differ take the same window. Those that fail are
// named, and the others do not wait for them.
func TestWindow(t *testing.T) {
	n := max(20, int(1000*time.Second/speed.Scale(time.Second))) // fewer on a slow machine
	broken := map[string]string{"n3": "refuses", "n5": "dies", "n7": "floods", "n9": "lies"}
	f := &fakes{begins: map[string]time.Time{}, behaves: func(node string) string { return broken[node] },
		ahead: func(node string) time.Duration { return time.Duration(len(node)-3) * time.Hour }}
	agents := []Agent{{Node: "stopped", Failed: "its agent waits"}}
	for i := range n {
		agents = append(agents, Agent{Node: fmt.Sprint("n", i), Port: agentPort})
	}
	w := openWindow(t.Context(), agents, 0, 200*time.Millisecond, &Access{}, f.dial)
	failed := map[string]string{}
	answered := 0
	for a := range w.Answers {
		if a.Failed != "" {
			if failed[a.Node] = a.Failed; broken[a.Node] == "" && a.Node != "stopped" {
				t.Errorf("%s: %s", a.Node, a.Failed)
			}
			continue
		}
		answered++
		if want := f.ahead(a.Node); a.Ledger == nil || (a.Offset-want).Abs() > a.Uncertainty || a.Uncertainty <= 0 {
			t.Errorf("%s: its clock is %v ahead within %v, really %v", a.Node, a.Offset, a.Uncertainty, want)
		}
		f.mu.Lock()
		begin := f.begins[a.Node]
		f.mu.Unlock()
		if apart := begin.Sub(w.Start).Abs(); apart > a.Uncertainty {
			t.Errorf("%s: its window is off by %v, known within %v", a.Node, apart, a.Uncertainty)
		}
	}
	if answered != n-len(broken) {
		t.Errorf("%d agents answered", answered)
	}
	// With little CPU time, the agent that floods is cut off for being too slow before it has sent too many bytes.
	for node, want := range map[string]string{"stopped": "waits", "n3": "refused", "n5": "has ended",
		"n7": "bytes|too slowly", "n9": "not a ledger"} {
		if !regexp.MustCompile(want).MatchString(failed[node]) {
			t.Errorf("%s: %q, want %q", node, failed[node], want)
		}
	}
	if most := f.most.Load(); most > atATime {
		t.Errorf("%d connections were made at a time", most)
	}
}

// TestSlowNodes: nodes whose answers stop in the middle are named, and do not keep other answers from being read, even
// if there are more of these nodes than answers are read at a time. A node that reports its time slowly still takes the
// window.
func TestSlowNodes(t *testing.T) {
	const stall, n = 3 * readAtATime, 100
	f := &fakes{begins: map[string]time.Time{}, ahead: func(string) time.Duration { return 0 }}
	f.behaves = func(node string) string {
		var i int
		_, _ = fmt.Sscanf(node, "n%d", &i)
		switch {
		case i < stall:
			return "stalls"
		case i == stall:
			return "slow"
		}
		return ""
	}
	var agents []Agent
	for i := range n {
		agents = append(agents, Agent{Node: fmt.Sprint("n", i), Port: agentPort})
	}
	failed := 0
	for a := range openWindow(t.Context(), agents, 0, 200*time.Millisecond, &Access{}, f.dial).Answers {
		stalls := f.behaves(a.Node) == "stalls"
		if stalls != (a.Failed != "") || stalls && !strings.Contains(a.Failed, "too slowly") {
			t.Errorf("%s: %q", a.Node, a.Failed)
		}
		if stalls {
			failed++
		}
	}
	if failed != stall {
		t.Errorf("%d nodes failed, want %d", failed, stall)
	}
}

// TestAskedTooLate: if the connection to an agent is made only after the window has begun, the error does not blame the
// agent.
func TestAskedTooLate(t *testing.T) {
	f := &fakes{begins: map[string]time.Time{}, behaves: func(string) string { return "forgets" },
		ahead: func(string) time.Duration { return 0 }}
	for a := range openWindow(t.Context(), []Agent{{Node: "n", Port: agentPort}}, -2*lead, time.Second, &Access{},
		f.dial).Answers {
		if a.Failed != errLate.Error() {
			t.Errorf("%q", a.Failed)
		}
	}
}

// TestWindowLater: a window may begin after the longest warm-up of a spec.
func TestWindowLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{begins: map[string]time.Time{}, behaves: func(string) string { return "" },
			ahead: func(string) time.Duration { return time.Hour }}
		began := time.Now()
		w := openWindow(t.Context(), []Agent{{Node: "n", Port: agentPort}}, 10*time.Minute, time.Second, &Access{}, f.dial)
		if after := w.Start.Sub(began); after < 10*time.Minute {
			t.Errorf("the window begins after %v", after)
		}
		for a := range w.Answers {
			if a.Failed != "" || !f.begins["n"].Equal(w.Start) {
				t.Errorf("%q; the window began at %v, want %v", a.Failed, f.begins["n"], w.Start)
			}
		}
	})
}

// TestWindowEnds: Ctrl-C ends a window at once.
func TestWindowEnds(t *testing.T) {
	f := &fakes{begins: map[string]time.Time{}, behaves: func(string) string { return "" },
		ahead: func(string) time.Duration { return 0 }}
	ctx, cancel := context.WithCancel(t.Context())
	w := openWindow(ctx, []Agent{{Node: "n", Port: agentPort}}, 0, time.Minute, &Access{}, f.dial)
	cancel()
	select {
	case a := <-w.Answers:
		if a.Ledger != nil || a.Failed == "" {
			t.Errorf("%+v", a)
		}
	case <-time.After(20 * time.Second):
		t.Error("the window went on")
	}
	for range w.Answers {
		t.Error("an agent answered twice")
	}
}
