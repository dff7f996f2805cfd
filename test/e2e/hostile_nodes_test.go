package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// attackedSpec is an experiment of short trials on two nodes, with gates that no trial trips.
const attackedSpec = `name: attacked
question: Does it hold?
nodes: 2
blocks: %d
warmup: 20ms
duration: 200ms
repeat: 0%%
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 50, connections: 4, keepalive: false}}
gates: {rate: 0.01, errors: 1, lag: 60s, generator_cpu: 1, drift: 1000}
`

// escapes holds sequences that control a terminal, as they are written in a JSON string.
const escapes = `\u001b[2J\u001b]0;owned\u0007\r\u009b31m\u202e`

// attacked is a coordinator, tare run, that waits for nodes.
type attacked struct {
	*process
	t                  *testing.T
	keys, dir, address string
	version            string // of tare, which coordinator and nodes must have in common
	work               string // working directory of the coordinator, which also has its temporary files
	start              taken
	hold               sync.WaitGroup
	holding            context.Context
	stopHolding        func()
}

// attack starts a coordinator for an experiment of the given number of blocks.
func attack(t *testing.T, blocks int) *attacked {
	t.Helper()
	a := &attacked{t: t, keys: attackedKeys(t, "a", "b"), work: t.TempDir()}
	a.dir = filepath.Join(a.work, "out")
	a.holding, a.stopHolding = context.WithCancel(context.Background())
	t.Cleanup(func() { a.stopHolding(); a.hold.Wait() })
	text, err := exec.Command(bin, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.SplitN(strings.TrimPrefix(strings.TrimSpace(string(text)), "tare version "), " ", 2)
	a.version = words[0] + " (" + words[1] + ")"
	a.process = command{
		args: []string{"run", specFile(t, fmt.Sprintf(attackedSpec, blocks)), "--nodes-listen", "127.0.0.1:0", "--nodes-keys",
			a.keys, "--nodes", "2", "--out", a.dir},
		dir: a.work, env: []string{"TMPDIR=" + a.work}, timeout: 3 * time.Minute,
	}.start(t)
	whileItRuns(t, a.process, func() bool {
		if found := regexp.MustCompile(`waiting for 2 nodes at (\S+)`).FindStringSubmatch(a.stderr.String()); found != nil {
			a.address = found[1]
		}
		return a.address != ""
	})
	a.start = used(t, a.pid)
	return a
}

// node starts a real agent.
func (a *attacked) node(name string) *process {
	own := filepath.Join(a.keys, name)
	return command{args: []string{"node", "--join", a.address, "--name", name, "--ca",
		filepath.Join(a.keys, "authority.pem"), "--cert", own + ".pem", "--key", own + ".key"},
		timeout: 3 * time.Minute}.start(a.t)
}

// hello returns the first message of node b.
func (a *attacked) hello() string {
	return fmt.Sprintf(`{"hello":{"name":"b","version":%q}}`, a.version)
}

// dial connects without TLS. It returns nil if the connection is refused.
func (a *attacked) dial() net.Conn {
	c, err := net.DialTimeout("tcp", a.address, 10*time.Second)
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	return c
}

// tls connects with the keys of node b.
func (a *attacked) tls() wire {
	a.t.Helper()
	c := a.dial()
	if c == nil {
		a.t.Fatal("the coordinator takes no connections")
	}
	s := tls.Client(c, tlsOf(a.t, a.keys, "b"))
	if err := s.Handshake(); err != nil {
		a.t.Fatalf("node b cannot connect: %v", err)
	}
	w, err := newWire(s, true)
	if err != nil {
		a.t.Fatal(err)
	}
	return w
}

// refusedAs sends messages as node b, and returns the error with which the coordinator ends the stream.
func (a *attacked) refusedAs(says ...string) string {
	a.t.Helper()
	s, hangUp := joinAs(a.t, a.address, tlsOf(a.t, a.keys, "b"))
	if s == nil {
		return "no stream"
	}
	defer hangUp()
	for _, text := range says {
		_ = s.SendMsg(text) // an error shows below
	}
	for {
		if _, err := hear(s); err != nil {
			return err.Error()
		}
	}
}

// beforeTrials are attacks on a coordinator that waits for nodes.
var beforeTrials = []struct {
	name string
	do   func(t *testing.T, a *attacked)
}{
	{"a certificate of another authority", func(t *testing.T, a *attacked) {
		a.shut(t, tlsOf(t, attackedKeys(t, "b"), "b"))
	}},
	{"no certificate", func(t *testing.T, a *attacked) { a.shut(t, &tls.Config{InsecureSkipVerify: true}) }},
	{"an expired certificate", func(t *testing.T, a *attacked) {
		keys := filepath.Join(t.TempDir(), "keys")
		if err := os.CopyFS(keys, os.DirFS(a.keys)); err != nil {
			t.Fatal(err)
		}
		expired(t, keys, "b", x509.ExtKeyUsageClientAuth)
		a.shut(t, tlsOf(t, keys, "b"))
	}},
	{"the coordinator's certificate", func(t *testing.T, a *attacked) { a.shut(t, tlsOf(t, a.keys, "coordinator")) }},
	{"an old TLS", func(t *testing.T, a *attacked) {
		c := tlsOf(t, a.keys, "b")
		c.MaxVersion = tls.VersionTLS12
		a.shut(t, c)
	}},
	{"plaintext", func(t *testing.T, a *attacked) {
		for _, says := range []string{"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
			strings.Repeat("\x16\x03\x01\xff\xff", 100_000)} {
			c := a.dial()
			_, _ = io.WriteString(c, says) // it may be cut off
			if _, err := io.Copy(io.Discard, c); err != nil && !hungUp(err) {
				t.Errorf("the coordinator holds on: %v", err)
			}
			c.Close()
		}
	}},
	{"garbage after the handshake", func(t *testing.T, a *attacked) {
		c := tls.Client(a.dial(), tlsOf(t, a.keys, "b"))
		defer c.Close()
		_, _ = c.Write(bytes.Repeat([]byte("garbage "), 1<<17))
		if _, err := io.Copy(io.Discard, c); err != nil && !hungUp(err) {
			t.Errorf("the coordinator holds on: %v", err)
		}
	}},
	{"nothing after the handshake", func(t *testing.T, a *attacked) {
		c := tls.Client(a.dial(), tlsOf(t, a.keys, "b"))
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		a.hold.Go(func() {
			defer c.Close()
			if _, err := io.Copy(io.Discard, c); err != nil && !hungUp(err) {
				a.t.Errorf("the coordinator holds on to a connection without HTTP/2: %v", err)
			}
		})
	}},
	{"connections held open before TLS", func(t *testing.T, a *attacked) {
		var all []net.Conn
		for range 400 {
			if c := a.dial(); c != nil {
				all = append(all, c)
			}
		}
		a.hold.Go(func() { // until they are dropped, while other attacks go on
			for _, c := range all {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}
		})
	}},
	{"thousands of connections at once", func(t *testing.T, a *attacked) {
		before := used(t, a.pid)
		var wg sync.WaitGroup
		slots := make(chan struct{}, 500)
		for range 3000 {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if c := a.dial(); c != nil {
					_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01")
					_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond)) // not a deadline: how long it stays
					_, _ = io.Copy(io.Discard, c)
					c.Close()
				}
			})
		}
		wg.Wait()
		if u := used(t, a.pid); u.files > before.files+600 {
			t.Errorf("%d files are open, and before there were %d", u.files, before.files)
		}
	}},
	{"many connections of one certificate", func(t *testing.T, a *attacked) {
		open := 0
		for range 40 {
			c := tls.Client(a.dial(), tlsOf(t, a.keys, "b"))
			defer c.Close()
			if w, err := newWire(c, true); err == nil {
				if _, err := w.ReadFrame(); err == nil {
					open++
				}
			}
		}
		if open > 10 {
			t.Errorf("%d connections of one node were taken in", open)
		}
	}},
	{"a huge frame", func(t *testing.T, a *attacked) {
		w := a.tls()
		defer w.Close()
		_ = w.begin(1)
		_, _ = w.Conn.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
		go func() { _, _ = io.Copy(w.Conn, io.LimitReader(zeros{}, 16<<20)) }()
		w.drain()
	}},
	{"headers without end", func(t *testing.T, a *attacked) {
		w := a.tls()
		defer w.Close()
		var more []hpack.HeaderField
		for i := range 20_000 {
			more = append(more, hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: strings.Repeat("x", 100)})
		}
		go w.drain()
		_ = w.begin(1, more...) // it may be cut off
	}},
	{"a message that says it has 4 GiB", func(t *testing.T, a *attacked) {
		w := a.tls()
		defer w.Close()
		_ = w.begin(1)
		_ = w.WriteData(1, false, []byte{0, 0xff, 0xff, 0xff, 0xff, 'x'})
		if !w.ended() {
			t.Error("the coordinator waits for it")
		}
	}},
	{"a message that says it is compressed", func(t *testing.T, a *attacked) {
		w := a.tls()
		defer w.Close()
		_ = w.begin(1, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
		_ = w.WriteData(1, false, append([]byte{1, 0, 0, 0, 4}, "bomb"...))
		if !w.ended() {
			t.Error("the coordinator waits for it")
		}
	}},
	{"endless small frames", func(t *testing.T, a *attacked) {
		before := used(t, a.pid)
		var all []func()
		for _, say := range []func(w wire) error{
			func(w wire) error { return w.WritePing(false, [8]byte{}) },
			func(w wire) error { return w.WriteSettings() },
			func(w wire) error { return w.WriteData(1, false, nil) },
			func(w wire) error { return w.WriteWindowUpdate(0, 1) },
		} {
			w := a.tls()
			all = append(all, func() {
				defer w.Close()
				_ = w.begin(1)
				w.flood(1500*time.Millisecond, func() error { return say(w) })
			})
		}
		sideBySide(all...)
		bears(t, a.pid, before)
	}},
	{"streams opened and reset", func(t *testing.T, a *attacked) {
		before := used(t, a.pid)
		w := a.tls()
		defer w.Close()
		id := uint32(1)
		began := time.Now()
		w.flood(10*time.Second, func() error {
			err := w.begin(id)
			_ = w.WriteRSTStream(id, 8)
			id += 2
			return err
		})
		if time.Since(began) >= 10*time.Second {
			t.Errorf("%d streams on one connection were let in", id/2)
		}
		bears(t, a.pid, before)
	}},
	{"a dribble", func(t *testing.T, a *attacked) {
		w := a.tls()
		ended := make(chan struct{})
		go func() { defer close(ended); w.ended() }()
		a.hold.Go(func() {
			defer w.Close()
			_ = w.begin(1)
			text := a.hello()
			message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))
			for _, b := range append(message, text...) {
				if w.WriteData(1, false, []byte{b}) != nil {
					return
				}
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ended:
					return
				case <-a.holding.Done():
					return
				}
			}
			a.t.Error("a hello that took longer than it may was heard to its end")
		})
	}},
	{"another's name", func(t *testing.T, a *attacked) {
		for _, name := range []string{"a", "", "../../b", escapes, strings.Repeat("b", 50_000)} {
			got := a.refusedAs(fmt.Sprintf(`{"hello":{"name":"%s","version":%q}}`, name, a.version))
			if !strings.Contains(got, `the certificate is for a node "b"`) || len(got) > 1000 {
				t.Errorf("as %.20q: %s", name, got)
			}
			noEscapes(t, "the refusal", got)
		}
	}},
	{"another build", func(t *testing.T, a *attacked) {
		if got := a.refusedAs(`{"hello":{"name":"b","version":"` + escapes + `"}}`); !strings.Contains(got,
			"both must be the same build") {
			t.Error(got)
		}
	}},
	{"a hello that is none", func(t *testing.T, a *attacked) {
		for _, says := range []string{"", "null", "[]", "{}", "{", `{"hello":null}`, `{"hello":{"cpus":1e999}}`,
			`{"hello":{"cpus":NaN}}`,
			`{"bye":{}}`, `{"record":{"id":1,"record":{}}}`, `{"hello":{},"bye":{}}`, strings.Repeat(`{"hello":`, 20_000),
			strings.Repeat(" ", 9<<20),
			`{"hello":{"name":"b"},"x":"` + strings.Repeat("x", 1<<20) + `"}`} {
			if got := a.refusedAs(says); !regexp.MustCompile(`code = (InvalidArgument|Canceled|PermissionDenied|ResourceExhausted|Internal)`).MatchString(got) {
				t.Errorf("%.40q: %s", says, got)
			}
		}
	}},
	{"messages without end", func(t *testing.T, a *attacked) {
		before := used(t, a.pid)
		s, hangUp := joinAs(t, a.address, tlsOf(t, a.keys, "b"))
		defer hangUp()
		_ = s.SendMsg(a.hello())
		for s.SendMsg(`{"prepared":{"id":1}}`) == nil {
		}
		bears(t, a.pid, before)
	}},
	{"answers that nobody asked for", func(t *testing.T, a *attacked) {
		if got := a.refusedAs(a.hello(), `{"pong":{"ping":{"number":99}}}`); !strings.Contains(got,
			"a question that was not asked") {
			t.Error(got)
		}
	}},
	{"results of no trial", func(t *testing.T, a *attacked) {
		if got := a.refusedAs(a.hello(), `{"record":{"id":1,"record":{}}}`, `{"record":{"id":2,"record":{}}}`,
			`{"record":{"id":3,"record":{}}}`,
			`{"record":{"id":4,"record":{}}}`); !strings.Contains(got, "it sent an unexpected message: the record of trial") {
			t.Error(got)
		}
	}},
}

// shut fails the test unless the coordinator soon turns away a client that connects with config.
func (a *attacked) shut(t *testing.T, config *tls.Config) {
	t.Helper()
	c := tls.Client(a.dial(), config)
	defer c.Close()
	err := c.Handshake()
	if err == nil { // with TLS 1.3 the server refuses only after the client's handshake
		_, err = io.Copy(io.Discard, c)
	}
	if err != nil && !hungUp(err) {
		t.Errorf("it was not turned away: %v", err)
	}
}

// zeros reads as bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// trialOf is one trial at node b, which sends whatever a test wants once the coordinator has asked it to prepare.
type trialOf struct {
	*testing.T
	grpc.ClientStream
	id             uint64
	index, attempt int
	arm            string
	block          int
	fixed          *[2]int64 // when it claims to have received and answered each ping, in ns; nil: the true times
}

func (x *trialOf) say(format string, args ...any) { _ = x.SendMsg(fmt.Sprintf(format, args...)) }

// until answers pings until the given function returns true for a message. It returns false if the stream ends.
func (x *trialOf) until(what func(said) bool) (said, bool) {
	for {
		m, err := hear(x)
		switch {
		case err != nil:
			return m, false
		case m.Ping != nil:
			now := time.Now().UnixNano()
			times := [2]int64{now, now}
			if x.fixed != nil {
				times = *x.fixed
			}
			x.say(`{"pong":{"ping":{"number":%d,"sent_ns":%d},"received_ns":%d,"sent_ns":%d}}`, m.Ping.Number, m.Ping.Sent,
				times[0], times[1])
		case what(m):
			return m, true
		}
	}
}

func (x *trialOf) prepared() { x.say(`{"prepared":{"id":%d}}`, x.id) }

// begun waits for the trial's begin, and then for the given time.
func (x *trialOf) begun(then time.Duration) {
	x.prepared()
	x.until(func(m said) bool { return m.Begin != nil })
	time.Sleep(then)
}

// record sends a record of the trial. more holds further fields of it, as JSON after a comma.
func (x *trialOf) record(more string) {
	x.say(`{"record":{"id":%d,"record":{"trial":{"schema":"tare.trial/v1","index":%d,"attempt":%d,"arm":%q,"block":%d%s}}}}`, x.id, x.index, x.attempt, x.arm, x.block, more)
}

// over is a time after a trial's begin at which the trial is over, so that its record may come.
const over = 500 * time.Millisecond

// goodRecord holds the fields that a record needs.
const goodRecord = `,"ledger":{},"metrics":{},"validity":{"valid":true}`

// inTrials are the attacks of node b in a trial, each with what the trial's record must say about it ("" for anything).
var inTrials = []struct {
	name string
	do   func(x *trialOf)
	want string
}{
	{"a result before the start", func(x *trialOf) { x.record(goodRecord) }, "it ended before it was set up"},
	{"a result before the end", func(x *trialOf) { x.begun(0); x.record(goodRecord) },
		"it sent its record before the trial was over"},
	{"a result of a trial never asked for",
		func(x *trialOf) { x.begun(0); x.say(`{"record":{"id":%d,"record":{}}}`, x.id+5) }, "in the middle of trial"},
	{"results twice", func(x *trialOf) { x.begun(over); x.record(goodRecord); x.record(goodRecord) }, ""},
	{"ready twice", func(x *trialOf) { x.prepared(); x.begun(0) }, "is prepared in the middle of trial"},
	{"a failure with escapes", func(x *trialOf) {
		x.say(`{"record":{"id":%d,"error":"%s\n%s"}}`, x.id, escapes, strings.Repeat("x", 60_000))
	}, "?[2J?]0;owned"},
	{"a record with escapes", func(x *trialOf) {
		x.begun(over)
		x.record(`,"ledger":{"warnings":[{"code":"` + escapes + `","message":"` + escapes + `"}]},"metrics":{"` + escapes +
			`":1},"validity":{"valid":false,"failed":"` + escapes + `"}`)
	}, "?[2J?]0;owned"},
	{"a clock in the far future", func(x *trialOf) { x.fixed = &[2]int64{1<<63 - 1, 1<<63 - 1}; x.begun(0) },
		"no machine has been up for that long"},
	{"a clock in the far past", func(x *trialOf) { x.fixed = &[2]int64{-1 << 63, -1 << 63}; x.begun(0) },
		"no machine has been up for that long"},
	{"an answer before the question", func(x *trialOf) { x.fixed = &[2]int64{1000, 0}; x.begun(0) }, "to answer"},
	{"an answer that took for ever", func(x *trialOf) { x.fixed = &[2]int64{0, 1 << 60}; x.begun(0) }, "to answer"},
	{"a clock that shows no number", func(x *trialOf) {
		x.prepared()
		m, _ := hear(x)
		if m.Ping != nil {
			x.say(`{"pong":{"ping":{"number":%d},"received_ns":NaN,"sent_ns":1e400}}`, m.Ping.Number)
		}
		x.until(func(said) bool { return false })
	}, "cannot be read"},
	{"a clock 70 years ahead", func(x *trialOf) {
		x.fixed = &[2]int64{1 << 60, 1 << 60}
		x.begun(over)
		x.record(goodRecord)
	}, ""},
	{"negative counts", func(x *trialOf) {
		x.begun(over)
		x.record(goodRecord + `,"loads":{"client":{"generator":"http","mode":"open","done":-9223372036854775808,"errors":{"x":-1}}}`)
	}, "an impossible value of the load"},
	{"numbers beyond all bounds", func(x *trialOf) {
		x.begun(over)
		x.record(`,"ledger":{},"metrics":{"memory_hard_bytes":1e308,"cpu_seconds_per_request":-1e308},"validity":{"valid":true},` +
			`"loads":{"client":{"generator":"http","mode":"open","seconds":1e308,"rate":1e308,"done":9223372036854775807,"sent":9223372036854775807}},"counts":{"error_ratio":{"in":9223372036854775807,"of":-1}}`)
	}, ""},
	{"a histogram that says it is huge", func(x *trialOf) {
		x.begun(over)
		x.record(goodRecord + `,"loads":{"client":{"generator":"http","mode":"open","done":1,"histograms":{"latency":"` +
			// The head of an HDR histogram, V2 without compression: a payload of 2 GiB, 5 digits, values up to 2^63-1.
			`HISTEwAAAH////8AAAAAAAAABQAAAAAAAAABf/////////8/8AAAAAAAAA=="}}}`)
	}, ""},
	{"names that are paths", func(x *trialOf) {
		x.begun(over)
		x.record(goodRecord + `,"loads":{"../../../tmp/tare-owned":{"done":1}},"evidence":{"/tmp/tare-owned":{}},"components":{"../tare-owned":{}}`)
	}, ""},
	{"a record in a record without end", func(x *trialOf) {
		x.begun(over)
		x.record(goodRecord + `,"subject":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000))
	}, "cannot be read"},
	{"a record of 9 MiB", func(x *trialOf) { x.begun(over); x.record(`,"x":"` + strings.Repeat("x", 9<<20) + `"`) },
		"larger than max"},
	{"a record of 300,000 things", func(x *trialOf) {
		x.begun(over)
		x.record(`,"ledger":{"cgroups":[` + strings.Repeat("{},", 300_000) + `{}]},"metrics":{},"validity":{"valid":true}`)
	}, "its record has more than 100000 values"},
	{"a record that grows when it is read", func(x *trialOf) {
		x.begun(over)
		x.record(`,"ledger":{"cgroups":[` + strings.Repeat("{},", 45_000) + `{}]},"metrics":{},"validity":{"valid":true}`)
	}, "are allowed"},
	{"half a record", func(x *trialOf) { x.begun(over); x.say(`{"record":{"id":%d,"record":{"trial"`, x.id) },
		"cannot be read"},
	{"vanishes", func(x *trialOf) { x.begun(50 * time.Millisecond) }, "it disconnected"},
	{"hangs up as it is told to prepare", func(*trialOf) {}, "it disconnected"},
}

// TestHostileNodes: whatever a program that can reach a coordinator does, with or without the keys of a node, the
// coordinator survives it, reports what happened, and goes on with the other nodes.
func TestHostileNodes(t *testing.T) {
	long.Test(t, "25 s: a campaign of attacks on a coordinator")
	needsRoot(t)
	leavesNothing(t)
	a := attack(t, 200)
	for _, c := range beforeTrials {
		t.Run(c.name, func(t *testing.T) {
			a.t = t
			began := time.Now()
			c.do(t, a)
			used(t, a.pid) // fails the test if the coordinator has ended
			t.Logf("%.1f s", time.Since(began).Seconds())
		})
	}
	a.t = t
	bears(t, a.pid, a.start)
	if strings.Contains(a.stderr.String(), "2 of 2 nodes joined") {
		t.Error("an attack was taken for a node")
	}

	good := a.node("a")
	expected := map[int]int{} // index in inTrials of the attack in each trial, by the trial's index
	for done := 0; done < len(inTrials); {
		s, hangUp := joinAs(t, a.address, tlsOf(t, a.keys, "b"))
		if s == nil {
			used(t, a.pid)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_ = s.SendMsg(fmt.Sprintf(`{"hello":{"name":"b","version":%q,"hostname":"%s","kernel":"%s","cpus":-5,"boot_id":"../x","pid":-1}}`, a.version, escapes, strings.Repeat("k", 10_000)))
		x := &trialOf{T: t, ClientStream: s}
		if m, told := x.until(func(m said) bool { return m.Prepare != nil }); told {
			p := m.Prepare.Data.Planned
			x.id, x.index, x.attempt, x.arm, x.block = m.Prepare.ID, p.Index, m.Prepare.Data.Attempt, p.Arm, p.Block
			expected[p.Index] = done
			inTrials[done].do(x)
			done++
			go func() { // whatever comes of it, its stream ends here
				time.Sleep(over)
				hangUp()
			}()
			if done-1 < len(inTrials)-2 { // of the last two, hanging up is the attack
				x.until(func(said) bool { return false })
			}
		}
		hangUp()
	}
	whileItRuns(t, a.process, func() bool { // until the last of them is recorded
		lines, _ := os.ReadFile(filepath.Join(a.dir, record.TrialsFile))
		last := 0
		for i := range expected {
			last = max(last, i)
		}
		return bytes.Count(lines, []byte("\n")) > last
	})
	bears(t, a.pid, a.start)
	a.signal(t, syscall.SIGINT)
	o := a.wait(t)
	if o.code != 4 || !strings.Contains(o.stderr, "interrupted: the run is partial") {
		t.Error(o)
	}
	noEscapes(t, "standard output", o.stdout)
	noEscapes(t, "standard error", o.stderr)
	if n := good.wait(t); n.code != 0 {
		t.Errorf("the good node: %s", n)
	}
	r, err := record.Read(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, tr := range r.Trials {
		of, attacked := expected[tr.Index]
		if !attacked || len(tr.Nodes) != 2 {
			continue
		}
		seen++
		c := inTrials[of]
		if c.want != "" && !strings.Contains(tr.Nodes[1].Failed, c.want) {
			t.Errorf("%s: %.200q, want %q", c.name, tr.Nodes[1].Failed, c.want)
		}
		if n := tr.Nodes[0]; n.Failed != "" && !strings.Contains(n.Failed, "is too busy") &&
			tr.Validity.Failed != record.Interrupted {
			t.Errorf("%s: the good node failed too: %s", c.name, n.Failed)
		}
	}
	if seen != len(inTrials) {
		t.Errorf("%d of %d attacks are in the record", seen, len(inTrials))
	}
	text, _ := os.ReadFile(filepath.Join(a.dir, record.TrialsFile))
	for line := range bytes.Lines(text) {
		var v any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		everyText(v, func(s string) { noEscapes(t, "the record", s) })
	}
	a.untouched()
}

// everyText calls look with all texts of a decoded document.
func everyText(v any, look func(string)) {
	switch v := v.(type) {
	case string:
		look(v)
	case []any:
		for _, e := range v {
			everyText(e, look)
		}
	case map[string]any:
		for k, e := range v {
			look(k)
			everyText(e, look)
		}
	}
}

// untouched fails the test if the run wrote anything except its run directory.
func (a *attacked) untouched() {
	a.t.Helper()
	entries, err := os.ReadDir(a.work)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "out" {
			a.t.Errorf("outside of its directory, the run left %s", e.Name())
		}
	}
	for _, path := range []string{"/tmp/tare-owned", filepath.Join(a.work, "tare-owned"),
		filepath.Join(a.dir, "tare-owned")} {
		if _, err := os.Lstat(path); err == nil {
			a.t.Errorf("%s was made", path)
		}
	}
	for _, e := range must(os.ReadDir(a.dir)) {
		if strings.Contains(e.Name(), "owned") {
			a.t.Errorf("%s was made", e.Name())
		}
	}
}

func must(entries []os.DirEntry, _ error) []os.DirEntry { return entries }

// TestHostileNodesThatHangARun: a node that neither does what it should nor hangs up does not keep Ctrl-C from ending
// the run.
func TestHostileNodesThatHangARun(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	for _, c := range []struct {
		name   string
		joins  bool
		do     func(t *testing.T, a *attacked, s grpc.ClientStream)
		before string // Ctrl-C comes when progress has said this
		want   string
	}{
		{"nobody joins", false, nil, "waiting for 2 nodes", "interrupted before the first trial"},
		{"answers pings only", true, func(t *testing.T, _ *attacked, s grpc.ClientStream) {
			(&trialOf{T: t, ClientStream: s}).until(func(said) bool { return false })
		}, "trial 1", "interrupted: the run is partial"},
		{"answers nothing", true, func(_ *testing.T, a *attacked, _ grpc.ClientStream) { <-a.holding.Done() }, "trial 1",
			"interrupted: the run is partial"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "answers pings only" {
				long.Test(t, "15 s: a node that answers and does nothing is given up after that time")
			}
			t.Parallel()
			a := attack(t, 3)
			if c.joins {
				a.node("a")
				s, hangUp := joinAs(t, a.address, tlsOf(t, a.keys, "b"))
				_ = s.SendMsg(a.hello())
				a.hold.Go(func() { defer hangUp(); c.do(t, a, s) })
			}
			whileItRuns(t, a.process, func() bool { return strings.Contains(a.stderr.String(), c.before) })
			time.Sleep(time.Second)
			a.signal(t, syscall.SIGINT)
			if o := a.wait(t); o.code != 4 || !strings.Contains(o.stderr, c.want) {
				t.Error(o)
			}
		})
	}
}
