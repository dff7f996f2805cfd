package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/test/speed"
)

const build = "1.0 (test)"

// ground is a coordinator on the loopback interface, with its certificate authority.
type ground struct {
	*Coordinator
	t         *testing.T
	authority *Authority
	address   string
	joins     sync.WaitGroup
}

func newGround(t *testing.T, o Options) *ground {
	t.Helper()
	g := &ground{t: t}
	var err error
	if g.authority, err = NewAuthority(time.Hour); err != nil {
		t.Fatal(err)
	}
	if o.Credentials, err = g.authority.Coordinator(); err != nil {
		t.Fatal(err)
	}
	o.Version = build
	if g.Coordinator, err = NewCoordinator(o); err != nil {
		t.Fatal(err)
	}
	at, err := g.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.address = at.String()
	t.Cleanup(func() {
		g.Close()
		g.joins.Wait()
	})
	return g
}

// agent returns an agent that has not joined yet.
func (g *ground) agent(name string) Agent {
	g.t.Helper()
	c, err := g.authority.Node(name)
	if err != nil {
		g.t.Fatal(err)
	}
	return Agent{Hello: Hello{Node: record.Node{Name: name}, Version: build}, Address: g.address, Credentials: c,
		Patience: 10 * time.Second}
}

// join lets an agent join. It returns a function that kills the agent, and a channel for the result of Join.
func (g *ground) join(a Agent, run Runner) (kill func(), ended chan error) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	g.joins.Go(func() { defer cancel(); ended <- a.Join(ctx, run) })
	if err := g.WaitFor(context.Background(), a.Hello.Name, time.Minute); err != nil {
		g.t.Fatal(err)
	}
	return cancel, ended
}

// good runs a trial that succeeds; its record is the time at which it began.
var good = goodBy(0)

// trialLength is the length of trials in these tests.
const trialLength = 10 * time.Millisecond

// goodBy is like good, for a node whose clock is ahead by the given duration.
func goodBy(ahead time.Duration) Runner {
	return func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
		at, err := barrier(ctx)
		if err != nil {
			return nil, err
		}
		if err := pace.SleepUntil(ctx, at-int64(ahead)+int64(trialLength)); err != nil {
			return nil, err
		}
		return json.Marshal(at)
	}
}

// run runs a trial on nodes and compares the outcomes with want, by node: an empty string stands for a record, any
// other for a part of the failure.
func (g *ground) run(want map[string]string) []Outcome {
	g.t.Helper()
	var names []string
	for name := range want {
		names = append(names, name)
	}
	slices.Sort(names)
	outcomes := g.Run(context.Background(), names, Share{}, json.RawMessage(`{}`), trialLength, 0, func(int64) {})
	for i, o := range outcomes {
		switch {
		case o.Name != names[i]:
			g.t.Errorf("outcome %d is of %s", i, o.Name)
		case want[o.Name] == "" && (o.Failed != nil || o.Record == nil || o.Clock == nil):
			g.t.Errorf("%s: %v, record %s", o.Name, o.Failed, o.Record)
		case want[o.Name] != "" && (o.Failed == nil || !strings.Contains(o.Failed.Error(), want[o.Name])):
			g.t.Errorf("%s: %v, want %q", o.Name, o.Failed, want[o.Name])
		}
	}
	return outcomes
}

// TestRun: all nodes begin at the same time, each by its own clock, whose offset the coordinator determines.
func TestRun(t *testing.T) {
	g := newGround(t, Options{})
	offsets := map[string]time.Duration{"a": 0, "b": 5 * time.Second, "c": -3 * time.Hour}
	for name, ahead := range offsets {
		a := g.agent(name)
		a.now = func() int64 { return pace.Now() + int64(ahead) }
		g.join(a, goodBy(ahead))
	}
	if all := g.Nodes(); len(all) != 3 || all[0].Name != "a" || all[2].Name != "c" {
		t.Errorf("%+v are there", all)
	}
	for range 3 {
		before, begun := pace.Now(), int64(0)
		outcomes := g.Run(context.Background(), []string{"c", "a", "b"}, Share{CPUs: 0.5}, json.RawMessage(`{}`),
			time.Millisecond, 0, func(at int64) { begun = at })
		if begun <= before {
			t.Errorf("announced %d ns, and the begin is %d", before, begun)
		}
		for _, o := range outcomes {
			if o.Failed != nil {
				t.Fatalf("%s: %v", o.Name, o.Failed)
			}
			var at int64
			if err := json.Unmarshal(o.Record, &at); err != nil {
				t.Fatal(err)
			}
			if wrong := (o.Clock.Ahead - offsets[o.Name]).Abs(); wrong > o.Clock.Error || o.Clock.Error > 100*time.Millisecond {
				t.Errorf("the clock of %s is %v ahead; found %v, to %v", o.Name, offsets[o.Name], o.Clock.Ahead, o.Clock.Error)
			}
			if at != begun+int64(o.Clock.Ahead) || at != o.Begin {
				t.Errorf("%s began at %d, and the begin is %d here", o.Name, at, begun)
			}
		}
	}
}

// TestSuspended: the clock of a node whose machine was suspended has fallen behind, so its window was not that of the
// others.
func TestSuspended(t *testing.T) {
	g := newGround(t, Options{})
	g.join(g.agent("a"), good)
	var behind atomic.Int64
	b := g.agent("b")
	b.now = func() int64 { return pace.Now() - behind.Load() }
	slept := time.Duration(0)
	g.join(b, func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
		at, err := barrier(ctx)
		if err != nil {
			return nil, err
		}
		behind.Add(int64(slept))
		return json.RawMessage(`{}`), pace.SleepUntil(ctx, at+behind.Load()+int64(trialLength))
	})
	g.run(map[string]string{"a": "", "b": ""})
	slept = 2 * time.Second
	g.run(map[string]string{"a": "", "b": "its clock fell behind by 2s after the trial was announced"})
	slept = 0
	g.run(map[string]string{"a": "", "b": ""})
}

// TestFailures: if one node fails, only its part of the trial is lost, and the reason is reported.
func TestFailures(t *testing.T) {
	errDisk := errors.New("no space left on device")
	for _, c := range []struct {
		name string
		run  func(kill func()) Runner
		want string
	}{
		{"dies in setting up", func(kill func()) Runner {
			return func(ctx context.Context, _ Job, _ func(context.Context) (int64, error)) (json.RawMessage, error) {
				kill()
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, "it disconnected: it"},
		{"dies in mid-run", func(kill func()) Runner {
			return func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
				_, _ = barrier(ctx)
				kill()
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, "it disconnected: it"},
		{"is told to end", func(kill func()) Runner {
			return func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
				return nil, context.Canceled
			}
		}, "the agent was told to end"},
		{"cannot set up", func(func()) Runner {
			return func(context.Context, Job, func(context.Context) (int64, error)) (json.RawMessage, error) {
				return nil, errDisk
			}
		}, "no space left"},
		{"fails in mid-run, with a record", func(func()) Runner {
			return func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
				_, _ = barrier(ctx)
				return json.RawMessage(`{"half":true}`), errDisk
			}
		}, "no space left"},
		{"sends nothing", func(func()) Runner {
			return func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
				_, err := barrier(ctx)
				return nil, err
			}
		}, "an empty record"},
		{"skips the begin", func(func()) Runner {
			return func(context.Context, Job, func(context.Context) (int64, error)) (json.RawMessage, error) {
				return json.RawMessage(`{}`), nil
			}
		}, "before it was set up"},
		{"hangs in setting up", func(func()) Runner {
			return func(ctx context.Context, _ Job, _ func(context.Context) (int64, error)) (json.RawMessage, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
		}, "it did not set the trial up within"},
		{"hangs in mid-run", func(func()) Runner {
			return func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
				_, _ = barrier(ctx)
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
		}, "it did not send a record within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t, Options{Prepare: speed.Scale(time.Second), Record: speed.Scale(time.Second)})
			for _, name := range []string{"a", "c"} {
				g.join(g.agent(name), good)
			}
			b, p := g.agent("b"), newProxy(t, g.address)
			b.Address, b.Patience = p.address, time.Nanosecond
			g.join(b, c.run(p.close))
			g.run(map[string]string{"a": "", "b": c.want, "c": ""})
			if strings.HasPrefix(c.name, "dies") {
				g.run(map[string]string{"a": "", "b": "it is not connected: it", "c": ""})
				g.join(g.agent("b"), good) // started again
			}
			if !strings.HasPrefix(c.name, "dies") && g.Gone("b") != nil {
				t.Errorf("the agent is gone too: %v", g.Gone("b"))
			}
			g.run(map[string]string{"a": "", "c": ""})
		})
	}
}

// TestNobody: a trial on nodes that have never joined does not begin.
func TestNobody(t *testing.T) {
	g := newGround(t, Options{})
	outcomes := g.Run(context.Background(), []string{"x"}, Share{}, nil, 0, 0, func(int64) { t.Error("it began") })
	if len(outcomes) != 1 || outcomes[0].Failed == nil || !strings.Contains(outcomes[0].Failed.Error(), "never joined") {
		t.Errorf("%+v", outcomes)
	}
	if _, err := g.Wait(context.Background(), 1, 10*time.Millisecond, func(int) {}); fault.CodeOf(err) != fault.Machine ||
		!strings.Contains(err.Error(), "0 of 1 nodes have joined") {
		t.Errorf("waiting for nobody: %v", err)
	}
}

// rawAgent connects an agent whose messages the test writes.
func (g *ground) rawAgent(name string) grpc.ClientStream {
	g.t.Helper()
	config, err := g.agent(name).Credentials.client()
	if err != nil {
		g.t.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///"+g.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { cc.Close() })
	s, err := cc.NewStream(context.Background(), &joinStream, joinMethod)
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// rawCodec sends text unchanged.
type rawCodec struct{ codec }

func (rawCodec) Marshal(v any) ([]byte, error) { return []byte(v.(string)), nil }

// TestWrongWords: an agent that violates the protocol is disconnected, and the others are not disturbed.
func TestWrongWords(t *testing.T) {
	hello := `{"hello":{"name":"b","version":"` + build + `"}}`
	for _, c := range []struct{ name, says, want string }{
		{"half a record", `{"record":{"id":1,"record":{"tri`, "cannot be read"},
		{"a record before the end", `{"record":{"id":1,"record":{}}}`, "it sent its record before the trial was over"},
		{"two messages in one", `{"record":{"id":1,"record":{}},"pong":{}}`, "and other messages in one"},
		{"an answer to no question", `{"pong":{"ping":{"number":77}}}`, "it answered a question that was not asked"},
		{"a long short message", `{"prepared":{"id":1},"x":"` + strings.Repeat("x", maxShort) + `"}`,
			"bytes, and 65536 are allowed"},
		{"a record without end", strings.Repeat(" ", maxFromAgent) + `{}`, "larger than max"},
		{"a record of another trial", `{"record":{"id":7,"record":{}}}`,
			"it sent the record of trial 7 in the middle of trial 1"},
		{"prepared twice", `{"prepared":{"id":1}}`, "it sent that trial 1 is prepared in the middle of trial 1"},
		{"a second hello", hello, "it sent a hello in the middle"},
		{"nothing", `{}`, "an empty message"},
		{"no JSON", "\x00\x01\x02", "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGround(t, Options{})
			g.join(g.agent("a"), good)
			s := g.rawAgent("b")
			if err := s.SendMsg(hello); err != nil {
				t.Fatal(err)
			}
			if err := g.WaitFor(context.Background(), "b", time.Minute); err != nil {
				t.Fatal(err)
			}
			go func() { // the main goroutine waits for the result
				for {
					m := new(message)
					if s.RecvMsg(m) != nil {
						return
					}
					switch {
					case m.Ping != nil:
						_ = s.SendMsg(fmt.Sprintf(`{"pong":{"ping":{"number":%d,"sent_ns":%d},"received_ns":1,"sent_ns":2}}`,
							m.Ping.Number, m.Ping.Sent))
					case m.Prepare != nil:
						_ = s.SendMsg(`{"prepared":{"id":1}}`)
					case m.Begin != nil:
						_ = s.SendMsg(c.says)
					}
				}
			}()
			g.run(map[string]string{"a": "", "b": c.want})
			g.run(map[string]string{"a": "", "b": "it is not connected"})
		})
	}
}

// TestFlood: an agent that sends unrequested messages is disconnected, however many it sends.
func TestFlood(t *testing.T) {
	g := newGround(t, Options{})
	s := g.rawAgent("b")
	_ = s.SendMsg(`{"hello":{"name":"b","version":"` + build + `"}}`)
	for s.SendMsg(`{"prepared":{"id":1}}`) == nil {
	}
	if err := s.RecvMsg(new(message)); err == nil ||
		!strings.Contains(words(drained(s, err)).Error(), "sent an unexpected message") {
		t.Errorf("got %v", err)
	}
}

// drained returns the error that ends a stream, after reading the messages before it.
func drained(s grpc.ClientStream, err error) error {
	for err == nil {
		err = s.RecvMsg(new(message))
	}
	return err
}

// TestRefused: an agent that may not join receives the reason, and does not retry.
func TestRefused(t *testing.T) {
	g := newGround(t, Options{})
	g.join(g.agent("a"), good)
	stranger, err := NewAuthority(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*Agent)
		want   string
	}{
		{"another build", func(a *Agent) { a.Hello.Version = "2.0" },
			"the agent is of tare 2.0, and the run of tare " + build},
		{"another name", func(a *Agent) { a.Hello.Name = "z" },
			`the certificate is for a node "b", and the agent calls itself "z"`},
		{"another authority", func(a *Agent) { a.Credentials, _ = stranger.Node("b") },
			"certificate signed by unknown authority"},
		{"a stranger who knows the authority", func(a *Agent) {
			other, _ := stranger.Node("b")
			a.Credentials.Certificate, a.Credentials.Key = other.Certificate, other.Key
		}, "tls: "},
		{"the coordinator's own certificate", func(a *Agent) { a.Credentials, _ = g.authority.Coordinator() }, "tls: "},
		{"keys that do not fit", func(a *Agent) { a.Credentials.Key = g.agent("c").Credentials.Key }, "cannot be used"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := g.agent("b")
			c.change(&a)
			err := a.Join(context.Background(), good)
			if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) || fault.HintOf(err) == "" {
				t.Errorf("got %v (%s), want %q", err, fault.HintOf(err), c.want)
			}
		})
	}
	if all := g.Nodes(); len(all) != 1 {
		t.Errorf("%+v are there", all)
	}
	g.run(map[string]string{"a": ""})
}

// TestFalseCoordinator: an agent rejects a coordinator that presents a node's certificate.
func TestFalseCoordinator(t *testing.T) {
	g := newGround(t, Options{})
	false_, err := NewCoordinator(Options{Version: build, Credentials: g.agent("b").Credentials})
	if err != nil {
		t.Fatal(err)
	}
	defer false_.Close()
	at, err := false_.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := g.agent("a")
	a.Address = at.String()
	if err := a.Join(context.Background(), good); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "x509: ") {
		t.Errorf("got %v", err)
	}
}

// TestShownCertificates: a peer must present exactly one certificate, with a key on P-256. Either side refuses anything
// else before it checks a signature.
func TestShownCertificates(t *testing.T) {
	authority, err := NewAuthority(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(key *ecdsa.PrivateKey, use x509.ExtKeyUsage, end time.Time) tls.Certificate {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: coordinatorName},
			DNSNames:  []string{coordinatorName},
			NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{use},
		}, authority.certificate, &key.PublicKey, authority.key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{PrivateKey: key, Certificate: [][]byte{der}}
	}
	key := func(curve elliptic.Curve) *ecdsa.PrivateKey {
		t.Helper()
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	own, large, later := key(elliptic.P256()), key(elliptic.P521()), time.Now().Add(time.Hour)
	chain := func(use x509.ExtKeyUsage) tls.Certificate {
		c := sign(own, use, later)
		for range 20 {
			c.Certificate = append(c.Certificate, sign(large, use, later).Certificate[0])
		}
		return c
	}
	for side, uses := range map[string][2]x509.ExtKeyUsage{
		"a node":        {x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		"a coordinator": {x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	} {
		two := sign(own, uses[0], later)
		two.Certificate = append(two.Certificate, authority.certificate.Raw)
		for _, c := range []struct {
			name  string
			shown tls.Certificate
			want  string
		}{
			{"a good one", sign(own, uses[0], later), ""},
			{"none", tls.Certificate{}, "tls: "},
			{"two", two, "the peer shows 2 certificates"},
			{"a chain", chain(uses[0]), "the peer shows 21 certificates"},
			{"another curve", sign(large, uses[0], later), "not an ECDSA key on P-256"},
			{"another use", sign(own, uses[1], later), "incompatible key usage"},
			{"an expired one", sign(own, uses[0], time.Now().Add(-time.Hour)), "expired"},
		} {
			if c.name == "none" && side == "a coordinator" {
				continue // TLS has no servers without a certificate
			}
			t.Run(side+", "+c.name, func(t *testing.T) {
				coordinator, err := authority.Coordinator()
				if err != nil {
					t.Fatal(err)
				}
				node, err := authority.Node("a")
				if err != nil {
					t.Fatal(err)
				}
				server, err := coordinator.server()
				if err != nil {
					t.Fatal(err)
				}
				client, err := node.client()
				if err != nil {
					t.Fatal(err)
				}
				if side == "a node" {
					client.Certificates, client.InsecureSkipVerify = []tls.Certificate{c.shown}, true
				} else {
					server.Certificates = []tls.Certificate{c.shown}
				}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				ofClient := make(chan error, 1)
				go func() {
					conn, err := tls.Dial("tcp", l.Addr().String(), client)
					if err == nil {
						conn.Close()
					}
					ofClient <- err
				}()
				conn, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				err = tls.Server(conn, server).Handshake()
				conn.Close()
				if seen := <-ofClient; side == "a coordinator" {
					err = seen
				}
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		}
	}
}

// TestStrangerBytes: an unauthenticated peer may send only the bytes of a handshake, and an authenticated one any
// number.
func TestStrangerBytes(t *testing.T) {
	for _, known := range []bool{false, true} {
		near, far := net.Pipe()
		go func() { _, _ = far.Write(make([]byte, 1<<20)); far.Close() }()
		d := newConnLimiter()
		v := &visitor{Conn: near, limiter: d}
		d.enter(v)
		if known {
			if err := d.recognise(v, "a"); err != nil {
				t.Fatal(err)
			}
		}
		n, err := io.Copy(io.Discard, v)
		if known && (n != 1<<20 || err != nil) || !known && (n > maxStrangerBytes || err == nil) {
			t.Errorf("known %t: %d bytes were read, %v", known, n, err)
		}
		v.Close()
	}
}

// TestGarbage: a connection from something other than an agent does no harm.
func TestGarbage(t *testing.T) {
	g := newGround(t, Options{})
	g.join(g.agent("a"), good)
	for _, says := range []string{"", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		strings.Repeat("\x16\x03\x01\xff\xff", 10_000), strings.Repeat("x", 1<<20)} {
		c, err := net.Dial("tcp", g.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, says) // it may be cut off
	}
	g.run(map[string]string{"a": ""})
}

// TestSecondOfAName: while a node is connected, no other agent can take its name. An agent that comes back after its
// connection broke waits until the coordinator has noticed that.
func TestSecondOfAName(t *testing.T) {
	g := newGround(t, Options{})
	kill, ended := g.join(g.agent("a"), good)
	second := g.agent("a")
	second.Patience = time.Nanosecond
	if err := second.Join(context.Background(), good); fault.CodeOf(err) != fault.Machine ||
		!strings.Contains(err.Error(), "a node a has already joined") {
		t.Errorf("a second one: %v", err)
	}
	kill()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the killed one: %v", err)
	}
	for g.Gone("a") == nil {
		time.Sleep(time.Millisecond)
	}
	g.join(g.agent("a"), good)
	g.run(map[string]string{"a": ""})
}

// TestWaitsForWhoIsThere: waiting for a node does not succeed if its stream is about to end.
func TestWaitsForWhoIsThere(t *testing.T) {
	g := newGround(t, Options{})
	n := newNode()
	n.hello.Name = "a"
	n.end(errors.New("gone"))
	g.mu.Lock()
	g.nodes["a"] = n
	g.mu.Unlock()
	defer g.remove(n)
	if err := g.WaitFor(context.Background(), "a", time.Millisecond); err == nil {
		t.Error("WaitFor found it")
	}
	all, err := g.Wait(context.Background(), 1, time.Millisecond, func(n int) {
		if n != 0 {
			t.Errorf("%d have joined", n)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "0 of 1 nodes have joined") {
		t.Errorf("Wait found %+v, %v", all, err)
	}
	if all := g.Nodes(); len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
}

// proxy passes bytes between agents and the coordinator until it is cut: then it still accepts bytes but passes nothing
// on, like a broken network.
type proxy struct {
	address string
	cut     chan struct{}
	l       net.Listener
	mu      sync.Mutex
	all     []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: l.Addr().String(), cut: make(chan struct{}), l: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.all = append(p.all, in, out)
			p.mu.Unlock()
			wg.Go(func() { p.pass(in, out) })
			wg.Go(func() { p.pass(out, in) })
		}
	})
	t.Cleanup(func() {
		p.close()
		wg.Wait()
	})
	return p
}

// close ends all connections at once, as when an agent's process ends.
func (p *proxy) close() {
	p.l.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.all {
		c.Close()
	}
}

func (p *proxy) pass(from, to net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		select {
		case <-p.cut: // the end of a connection is not passed on either
			if err != nil {
				return
			}
			continue
		default:
		}
		if err != nil {
			to.Close()
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestPartition: a node that cannot be reached counts as gone and its trial as failed; the node itself ends the trial.
func TestPartition(t *testing.T) {
	silence := speed.Scale(time.Second)
	g := newGround(t, Options{Heartbeat: silence / 10, Silence: silence})
	g.join(g.agent("a"), good)
	p := newProxy(t, g.address)
	b := g.agent("b")
	b.Address, b.Silence, b.Patience = p.address, silence, silence
	lost := make(chan error, 1)
	_, ended := g.join(b, func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
		_, err := barrier(ctx)
		if err == nil {
			close(p.cut)
			<-ctx.Done()
			lost <- context.Cause(ctx)
		}
		return nil, err
	})
	g.run(map[string]string{"a": "", "b": "it has said nothing for"})
	if err := <-lost; !errors.Is(err, errLost) {
		t.Errorf("the node's trial ended for %v", err)
	}
	if err := <-ended; fault.CodeOf(err) != fault.Machine {
		t.Errorf("the agent ended with %v", err)
	}
	g.run(map[string]string{"a": "", "b": "it is not connected: it has said nothing for"})
}

// TestBye: agents end without an error when the run is over; one that joins later gets an error.
func TestBye(t *testing.T) {
	g := newGround(t, Options{})
	_, ended := g.join(g.agent("a"), good)
	g.Close()
	if err := <-ended; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// TestInterrupted: if the run is interrupted, the trial has ended on all nodes before Run returns.
func TestInterrupted(t *testing.T) {
	g := newGround(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var down sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		down.Add(1)
		g.join(g.agent(name), func(ctx context.Context, _ Job, barrier Barrier) (json.RawMessage, error) {
			defer down.Done()
			if _, err := barrier(ctx); err != nil {
				return nil, err
			}
			cancel()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrAbandoned) {
				t.Errorf("it ended for %v", context.Cause(ctx))
			}
			return json.RawMessage(`{"cut":"short"}`), context.Cause(ctx)
		})
	}
	for _, o := range g.Run(ctx, []string{"a", "b"}, Share{}, nil, time.Minute, 0, func(int64) {}) {
		if !errors.Is(o.Failed, context.Canceled) || string(o.Record) != `{"cut":"short"}` {
			t.Errorf("%s: %v, %s", o.Name, o.Failed, o.Record)
		}
	}
	down.Wait()
}

// TestOffset: the reading with the shortest wait decides, and the true offset is within its bound however different the
// two directions are.
func TestOffset(t *testing.T) {
	const ahead = 1_000_000
	at := func(there, answer, back int64) reading {
		const sent = 500
		return reading{pong{ping{1, sent}, sent + there + ahead, sent + there + answer + ahead}, sent + there + answer + back}
	}
	for _, c := range []struct {
		name     string
		readings []reading
		want     time.Duration // error of the offset
		bound    time.Duration
	}{
		{"even ways", []reading{at(100, 7, 100)}, 0, 100},
		{"slow there", []reading{at(300, 7, 100)}, 100, 200},
		{"slow back", []reading{at(100, 7, 300)}, -100, 200},
		{"the quickest of three", []reading{at(900, 7, 100), at(50, 999, 50), at(100, 0, 900)}, 0, 50},
	} {
		if o := best(c.readings); o.Ahead-ahead != c.want || o.Error != c.bound {
			t.Errorf("%s: %v ahead, to %v; want %v, to %v", c.name, o.Ahead, o.Error, ahead+c.want, c.bound)
		}
	}
}
