package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tare/test/long"
)

// hostCoordinator is a coordinator that makes the attacks of a test, with a coordinator's keys.
type hostCoordinator struct {
	net.Listener
	config *tls.Config
	judged chan struct{} // closed when the agent, after the last attack, may end

	mu    sync.Mutex
	queue []coordinatorAttack // what to do on the next connections, one on each
	begun int
}

// coordinatorAttack is what a coordinator does to an agent that joins. One of the functions is set.
type coordinatorAttack struct {
	name   string
	raw    func(c net.Conn)           // on a connection without TLS
	wire   func(w wire)               // on one with TLS, in HTTP/2
	stream func(s attackStream) error // on the stream of the agent
	says   string                     // what the agent must say about the attack; anything if empty
}

// attackStream is the stream of an agent, as its coordinator has it.
type attackStream struct{ grpc.ServerStream }

// say sends one message, formatted as by fmt.Sprintf.
func (s attackStream) say(format string, args ...any) error {
	return s.SendMsg(fmt.Sprintf(format, args...))
}

// until reads the agent's messages until the given function returns true for one, or the agent hangs up.
func (s attackStream) until(so func(said) bool) (said, error) {
	for {
		if m, err := hear(s); err != nil || so(m) {
			return m, err
		}
	}
}

// prepare tells the agent to set up a trial. spec is JSON, and more holds further JSON fields of the job, after a
// comma.
func (s attackStream) prepare(id int, spec, more string) error {
	return s.say(`{"prepare":{"id":%d,"data":{"spec":%s,"planned":{"arm":"direct"},"seed":1}%s}}`, id, spec, more)
}

// refuses tells the agent to set up a trial that it must refuse. It returns an error unless the agent's record has one.
func (s attackStream) refuses(spec, more string) error {
	if err := s.prepare(1, spec, more); err != nil {
		return err
	}
	m, err := s.until(func(m said) bool { return m.Record != nil || m.Prepared != nil })
	if err == nil && (m.Record == nil || m.Record.Error == "") {
		return errors.New("the agent has set it up")
	}
	return err
}

// modest is the spec of a trial that any machine can run. modestWith returns it with one part replaced.
const modest = `{"name":"x","question":"x","blocks":1,"warmup":"20ms","duration":"150ms","applications":{"server":{"kind":"http"}},` +
	`"loads":{"client":{"kind":"http","to":"server","rate":50}},"gates":{"rate":0.01,"errors":1,"lag":"60s","drift":1000}}`

func modestWith(old, new string) string {
	if !strings.Contains(modest, old) {
		panic(old)
	}
	return strings.Replace(modest, old, new, 1)
}

// coordinatorAttacks are what a hostile coordinator does that has a coordinator's keys.
var coordinatorAttacks = []coordinatorAttack{
	{name: "pings by the thousand", stream: func(s attackStream) error {
		for range 5000 {
			if err := s.say(`{"ping":{"number":1,"sent_ns":9223372036854775807}}`); err != nil {
				return err
			}
			if _, err := s.until(func(m said) bool { return m.Pong != nil }); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "pings whose answers nobody reads", says: "it has not read its messages",
		stream: func(s attackStream) error {
			for end := time.Now().Add(time.Second); time.Now().Before(end); { // not a deadline: how long it sends
				sent := make(chan error, 1)
				go func() { sent <- s.say(`{"ping":{"number":1}}`) }()
				select {
				case err := <-sent:
					if err != nil {
						return err
					}
				case <-time.After(500 * time.Millisecond): // the agent has stopped reading, because its answers are not read
					return nil
				}
			}
			return nil
		}},
	{name: "a ping of a megabyte", says: "and 65536 are allowed", stream: func(s attackStream) error {
		_ = s.say(`{}`)
		_ = s.say(`{"ping":{"number":1,"x":%q}}`, strings.Repeat("x", 1<<20))
		_, err := s.until(func(said) bool { return false })
		return err
	}},
	{name: "a trial of 3 megabytes", says: "larger than max", stream: func(s attackStream) error {
		_ = s.say(`{}`)
		_ = s.say(`{"prepare":{"id":1,"data":%q}}`, strings.Repeat("x", 3<<20))
		_, err := s.until(func(said) bool { return false })
		return err
	}},
	{name: "empty messages", stream: func(s attackStream) error {
		for range 10_000 {
			if err := s.say(`{}`); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "several messages in one", says: "and other messages in one", stream: func(s attackStream) error {
		_ = s.say(`{}`)
		_ = s.say(`{"ping":{"number":1},"bye":{}}`)
		_, err := s.until(func(said) bool { return false })
		return err
	}},
	{name: "no JSON", stream: func(s attackStream) error {
		_ = s.say("\x00\xff{\x1b[2J")
		_, err := s.until(func(said) bool { return false })
		return err
	}},
	{name: "what nests without end", stream: func(s attackStream) error {
		_ = s.say(`{"prepare":{"id":1,"data":%s%s}}`, strings.Repeat("[", 500_000), strings.Repeat("]", 500_000))
		_, err := s.until(func(m said) bool { return m.Record != nil })
		return err
	}},
	{name: "begins and ends of trials that there are not", stream: func(s attackStream) error {
		for i := range 2000 {
			if err := s.say(`{"begin":{"id":%d,"at_ns":-9223372036854775808,"quiet_ns":9223372036854775807}}`, i); err != nil {
				return err
			}
			if err := s.say(`{"abandon":{"id":%d}}`, i); err != nil {
				return err
			}
		}
		return s.answered()
	}},
	{name: "a trial without a spec", stream: func(s attackStream) error { return s.refuses(`null`, "") }},
	{name: "a spec that is no spec", stream: func(s attackStream) error {
		return s.refuses(`{"name":["`+escapes+
			`"]}`, "")
	}},
	{name: "aliases in a spec", stream: func(s attackStream) error {
		var b strings.Builder
		b.WriteString("name: &a0 [x,x]\\n")
		for i := range 60 {
			fmt.Fprintf(&b, "x%d: &a%d [*a%d,*a%d]\\n", i, i+1, i, i)
		}
		return s.refuses(`"`+b.String()+`"`, "")
	}},
	{name: "a spec of a megabyte", stream: func(s attackStream) error {
		return s.refuses(modestWith(`"server":{"kind":"http"}`, `"server":{"kind":"http"}`+
			strings.Repeat(`,"server":{"kind":"http"}`, 40_000)), "")
	}},
	{name: "commands", says: "a node does not accept from a coordinator", stream: func(s attackStream) error {
		return s.refuses(modestWith(`{"kind":"http","to":"server","rate":50}`, `{"kind":"command","command":"touch owned"}`),
			"")
	}},
	{name: "a subject that is a command", says: "a node does not accept", stream: func(s attackStream) error {
		return s.refuses(modestWith(`"blocks":1`,
			`"blocks":1,"arms":{"direct2":{"subject":"command","command":"touch owned"}}`), "")
	}},
	{name: "files of the node", says: "a node does not accept from a coordinator", stream: func(s attackStream) error {
		return s.refuses(modestWith(`{"kind":"http","to":"server","rate":50}`,
			`{"kind":"write","rate":50,"directory":"/etc"}`), "")
	}},
	{name: "addresses elsewhere", stream: func(s attackStream) error {
		return s.refuses(modestWith(`"to":"server"`, `"url":"http://192.0.2.1/"`), "")
	}},
	{name: "factors and nodes", stream: func(s attackStream) error {
		return s.refuses(modestWith(`"blocks":1`, `"blocks":1,"nodes":1000000`), "")
	}},
	{name: "an arm that steers", stream: func(s attackStream) error {
		return s.say(`{"prepare":{"id":1,"data":{"spec":%s,"planned":{"arm":"%s","index":-1},"seed":1}}}`, modest, escapes)
	}},
	{name: "shares of no machine", stream: func(s attackStream) error {
		return s.refuses(modest, `,"share":{"cpus":-1e308,"weight":1e308}`)
	}},
	{name: "connections without number", stream: func(s attackStream) error {
		return s.refuses(modestWith(`"rate":50`, `"rate":50,"connections":2000000000`), "")
	}},
	{name: "copies without number", stream: func(s attackStream) error {
		return s.refuses(modestWith(`"server":{"kind":"http"}`, `"server":{"kind":"http","count":2000000000}`), "")
	}},
	{name: "trial after trial", stream: func(s attackStream) error {
		for i := range 5 {
			if err := s.prepare(i+1, modest, ""); err != nil {
				return err
			}
		}
		_, err := s.until(func(m said) bool { return m.Prepared != nil && m.Prepared.ID == 5 })
		return err // the coordinator hangs up, and the agent must take the trial down
	}},
	{name: "a begin that cannot be", says: "announced a start that cannot be", stream: func(s attackStream) error {
		if err := s.prepare(1, modest, ""); err != nil {
			return err
		}
		if _, err := s.until(func(m said) bool { return m.Prepared != nil }); err != nil {
			return err
		}
		if err := s.say(`{"begin":{"id":1,"at_ns":9223372036854775807,"quiet_ns":-1}}`); err != nil {
			return err
		}
		_, err := s.until(func(m said) bool { return m.Record != nil })
		return err
	}},
	{name: "it hangs up in the middle of a trial", stream: func(s attackStream) error {
		if err := s.prepare(1, modest, ""); err != nil {
			return err
		}
		_, err := s.until(func(m said) bool { return m.Prepared != nil })
		return err
	}},
	{name: "an end that steers", stream: func(s attackStream) error {
		_ = s.say(`{}`)
		return status.Error(codes.Unavailable, "\x1b[2J\x1b]0;owned\a\r\u202e\nwarning: forged"+strings.Repeat("m", 5<<10))
	}},
	{name: "headers of megabytes", stream: func(s attackStream) error {
		many := metadata.MD{}
		for i := range 300 {
			many.Append(fmt.Sprint("x-", i), strings.Repeat("h", 4<<10))
		}
		return errors.Join(s.SetHeader(many), s.say(`{}`))
	}},
	{name: "connections that end at once", raw: func(c net.Conn) {}},
	{name: "nothing but a stop", wire: func(w wire) {
		_ = w.WriteGoAway(0, http2.ErrCodeNo, []byte(strings.Repeat("\x1b[2J", 1000)))
	}},
	{name: "streams that are reset", wire: func(w wire) {
		for i := range uint32(2000) {
			if w.WriteRSTStream(2*i+1, http2.ErrCodeRefusedStream) != nil {
				return
			}
		}
	}},
	{name: "settings without end", wire: func(w wire) {
		w.flood(500*time.Millisecond, func() error { return w.WriteSettings() })
	}},
	{name: "pings of HTTP/2 without end", wire: func(w wire) {
		w.flood(500*time.Millisecond, func() error { return w.WritePing(false, [8]byte{}) })
	}},
	{name: "headers without end", wire: func(w wire) {
		var b strings.Builder
		_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("h", 8<<10)})
		first := true
		w.flood(500*time.Millisecond, func() error {
			if first {
				first = false
				return w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(b.String())})
			}
			return w.WriteContinuation(1, false, []byte(b.String()))
		})
	}},
	{name: "garbage in HTTP/2", wire: func(w wire) { _, _ = w.Conn.Write([]byte(strings.Repeat("garbage ", 1<<17))) }},
}

// answered waits for the answer to a ping. By then the agent has handled all earlier messages.
func (s attackStream) answered() error {
	if err := s.say(`{"ping":{"number":77}}`); err != nil {
		return err
	}
	_, err := s.until(func(m said) bool { return m.Pong != nil })
	return err
}

// begin records that the current attack begins.
func (h *hostCoordinator) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
}

// current returns the attack that comes next; left is false if all have begun.
func (h *hostCoordinator) current() (a *coordinatorAttack, left bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begun == len(h.queue) {
		return nil, false
	}
	return &h.queue[h.begun], true
}

// Accept gives gRPC the connections of attacks on streams, and those after the last attack.
func (h *hostCoordinator) Accept() (net.Conn, error) {
	for {
		c, err := h.Listener.Accept()
		if err != nil {
			return nil, err
		}
		a, left := h.current()
		if !left || a.stream != nil {
			return c, nil
		}
		h.begin()
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(15 * time.Second))
			if a.raw != nil {
				a.raw(c)
				return
			}
			s := tls.Server(c, h.config)
			if s.Handshake() != nil {
				return
			}
			if w, err := newWire(s, false); err == nil {
				a.wire(w)
			}
		}()
	}
}

// serve makes the next attack on the stream of an agent. After the last attack it says bye.
func (h *hostCoordinator) serve(t *testing.T) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		s := attackStream{stream}
		if m, err := hear(s); err != nil || m.Hello == nil {
			return errors.New("it said no hello")
		}
		a, left := h.current()
		if !left {
			select {
			case <-h.judged:
			case <-stream.Context().Done():
			}
			if err := errors.Join(s.answered(), s.say(`{"bye":{}}`)); err != nil {
				t.Errorf("a good coordinator: %v", err)
			}
			_, _ = s.until(func(said) bool { return false })
			return nil
		}
		h.begin()
		began := time.Now()
		err := a.stream(s)
		t.Logf("%s: %.1f s, %v", a.name, time.Since(began).Seconds(), err)
		if err != nil && status.Code(err) == codes.Unknown && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", a.name, err)
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.FailedPrecondition, codes.PermissionDenied: // the attack chose how to end
			return err
		}
		return status.Error(codes.Unavailable, "over")
	}
}

// hostileCoordinator starts a coordinator with keys, and an agent that joins it. It returns the coordinator, the agent
// and the agent's working directory.
func hostileCoordinator(t *testing.T, config *tls.Config, keys string,
	attacks ...coordinatorAttack) (*hostCoordinator, *process, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostCoordinator{Listener: l, config: config, queue: attacks, judged: make(chan struct{})}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.ForceServerCodec(raw{}),
		grpc.UnknownServiceHandler(h.serve(t)))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(h) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	work := t.TempDir()
	own := filepath.Join(keys, "a")
	p := command{
		args: []string{"node", "--join", l.Addr().String(), "--name", "a", "--ca", filepath.Join(keys, "authority.pem"),
			"--cert", own + ".pem", "--key", own + ".key"},
		dir: work, env: []string{"TMPDIR=" + work}, timeout: 3 * time.Minute,
	}.start(t)
	return h, p, work
}

// TestHostileCoordinators: whatever the coordinator that it has joined does, an agent survives it, runs nothing that it
// must not, joins again, and does what a good coordinator says.
func TestHostileCoordinators(t *testing.T) {
	long.Test(t, "30 s: a campaign of attacks on an agent")
	t.Parallel() // it waits, mostly
	needsRoot(t)
	leavesNothing(t)
	keys := attackedKeys(t, "a")
	h, p, work := hostileCoordinator(t, tlsOf(t, keys, "coordinator"), keys, coordinatorAttacks...)
	start := used(t, p.pid)
	whileItRuns(t, p, func() bool { // until the last has begun
		_, left := h.current()
		return !left
	})
	bears(t, p.pid, start)
	close(h.judged)
	o := p.wait(t) // the coordinator says bye
	if o.code != 0 {
		t.Error(o)
	}
	noEscapes(t, "standard output", o.stdout)
	noEscapes(t, "standard error", o.stderr)
	if strings.Contains(o.stderr, "\nwarning: forged") || strings.Contains(o.stderr, "goroutine ") {
		t.Error(o)
	}
	for _, a := range coordinatorAttacks {
		if !strings.Contains(o.stderr, a.says) {
			t.Errorf("%s: it does not say %q", a.name, a.says)
		}
	}
	if left := namesIn(t, work); len(left) > 0 {
		t.Errorf("in its directories are left: %v", left)
	}
}

// TestCoordinatorsThatRefuse: a node ends with an error if it joins something that lacks a coordinator's keys, or a
// coordinator that refuses it.
func TestCoordinatorsThatRefuse(t *testing.T) {
	needsRoot(t)
	refusing := func(code codes.Code) coordinatorAttack {
		return coordinatorAttack{stream: func(attackStream) error {
			return status.Error(code, "\x1b[2J\u202e\r\nwarning: forged")
		}}
	}
	for _, c := range []struct {
		name   string
		config func(t *testing.T, keys string) *tls.Config
		attack coordinatorAttack
		says   string
	}{
		{"a certificate of another authority", func(t *testing.T, _ string) *tls.Config {
			return tlsOf(t, attackedKeys(t, "a"), "coordinator")
		}, coordinatorAttack{stream: func(attackStream) error { return errors.New("it joined") }}, "keys of one authority"},
		{"the certificate of a node", func(t *testing.T, keys string) *tls.Config { return tlsOf(t, keys, "b") },
			coordinatorAttack{stream: func(attackStream) error { return errors.New("it joined") }}, "keys of one authority"},
		{"an expired certificate", func(t *testing.T, keys string) *tls.Config {
			expired(t, keys, "coordinator", x509.ExtKeyUsageServerAuth)
			return tlsOf(t, keys, "coordinator")
		}, coordinatorAttack{stream: func(attackStream) error { return errors.New("it joined") }}, "expired"},
		{"plaintext", nil, coordinatorAttack{raw: func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n\x1b[2J")
		}}, "refuses"},
		{"another build", nil, refusing(codes.FailedPrecondition), "same build"},
		{"another name", nil, refusing(codes.PermissionDenied), "the name that its certificate was made for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			keys := attackedKeys(t, "a", "b")
			good := tlsOf(t, keys, "coordinator")
			if c.config != nil {
				good = c.config(t, keys)
			}
			_, p, _ := hostileCoordinator(t, good, keys, c.attack)
			o := p.wait(t)
			if o.code != 2 || !strings.Contains(o.stderr, c.says) {
				t.Errorf("want it to say %q: %s", c.says, o)
			}
			noEscapes(t, "standard error", o.stderr)
			if strings.Contains(o.stderr, "\nwarning: forged") {
				t.Error(o)
			}
		})
	}
}
