package driven_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/ads"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/proxyconfig"
	envoytest "tare/test/envoy"
	"tare/test/envoy/secret"
	"tare/test/port"
)

// load is the load during a rotation.
type load struct {
	rate        int           // requests/s on kept connections
	connections int           // the number of kept connections
	fresh       int           // new connections/s, with one request each
	least       time.Duration // its minimum duration
	restarts    int           // of the control plane, spread over the duration
}

// loadOf returns a load of a low rate, which ends when everything has happened once. If TARE_ROTATION is set, it
// returns a load of that many requests/s, for at least 30 s.
func loadOf(t *testing.T) load {
	rate, err := strconv.Atoi(os.Getenv("TARE_ROTATION"))
	if os.Getenv("TARE_ROTATION") == "" {
		return load{rate: 100, connections: 4, fresh: 10, restarts: 1}
	}
	if err != nil || rate < 1 {
		t.Fatalf("TARE_ROTATION is %q, and no rate", os.Getenv("TARE_ROTATION"))
	}
	return load{rate: rate, connections: 16, fresh: max(1, rate/50), least: 30 * time.Second, restarts: 3}
}

// TestRotation: while certificates rotate, their root is replaced and the control plane restarts, no request through
// two proxies with mutual TLS fails, on kept or on new connections. No kept connection of the client or between the
// proxies ends. Connections to the control plane end only when it restarts, and when the root of their certificate is
// dropped.
func TestRotation(t *testing.T) {
	envoytest.Path(t)
	if os.Getenv("TARE_ROTATION") == "" {
		t.Parallel()
	}
	rotate(t, loadOf(t))
}

// TestConnectionsEnd: the control plane sends nothing more on a connection whose certificate has expired. The proxy
// then connects with its newer certificate, and no request fails.
func TestConnectionsEnd(t *testing.T) {
	envoytest.Path(t)
	t.Parallel()
	l := loadOf(t)
	m := newMesh(t)
	m.life, m.every = 10*time.Second, time.Second
	client, server := m.startAll(t)
	flow := newFlow(l, m.outKept, m.outFresh)
	t.Cleanup(flow.stop)
	until(t, "two connections more of each proxy", func() bool { return client.streams() > 2 && server.streams() > 2 })
	m.rotations(2)
	flow.stop()
	t.Logf("%d requests on kept connections, %d on new ones; streams of client and server: %d and %d",
		flow.kept.Load(), flow.fresh.Load(), client.streams(), server.streams())
	if flow.keptFailed.Load()+flow.freshFailed.Load() > 0 {
		t.Errorf("%d and %d requests failed: %v", flow.keptFailed.Load(), flow.freshFailed.Load(), *flow.why.Load())
	}
	if refused := m.refusals(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// mesh is a client and a server, each with a proxy, and their control plane.
type mesh struct {
	*plane
	kept, fresh                *link
	inFresh, outKept, outFresh string
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	app := newApp(t)
	inKept, inFresh, outKept, outFresh := free(t), free(t), free(t), free(t)
	m := &mesh{kept: newLink(t, inKept), fresh: newLink(t, inFresh), inFresh: inFresh, outKept: outKept,
		outFresh: outFresh}
	// The service whose callers open a connection for each request is of protocol TCP.
	m.plane = &plane{t: t, acks: map[string][]int64{}, life: time.Minute, every: time.Second / 2, mesh: fmt.Sprintf(`
mtls: strict
discovery: policy
services:
  - {name: kept, protocol: http, identity: api, access: [{from: [web]}], endpoints: [{address: "%s"}]}
  - {name: fresh, identity: api, access: [{from: [web]}], endpoints: [{address: "%s"}]}
proxies:
  - {id: web-1, identity: web, outbound: {kept: "%s", fresh: "%s"}}
  - id: api-1
    identity: api
    inbound: {kept: {listen: "%s", to: "%s"}, fresh: {listen: "%s", to: "%s"}}
    outbound: {}
`, m.kept.address, m.fresh.address, outKept, outFresh, inKept, app, inFresh, app)}
	m.roots, m.credentials = private(t), private(t)
	return m
}

// startAll starts the control plane and both proxies, and waits until requests succeed.
func (m *mesh) startAll(t *testing.T) (client, server *envoy) {
	t.Helper()
	m.start()
	server, client = startEnvoy(t, m.plane, "api-1"), startEnvoy(t, m.plane, "web-1")
	own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	until(t, "a request through both proxies, either way", func() bool {
		return get(own, m.outKept) == nil && get(own, m.outFresh) == nil
	})
	return client, server
}

func rotate(t *testing.T, l load) {
	m := newMesh(t)
	p, kept, inFresh := m.plane, m.kept, m.inFresh
	client, server := m.startAll(t)
	flow := newFlow(l, m.outKept, m.outFresh)
	t.Cleanup(flow.stop)
	until(t, "requests", func() bool { return flow.kept.Load() > 10 && flow.fresh.Load() > 2 })
	closed := kept.closed.Load()
	began, first := time.Now(), p.serial(inFresh)
	for i := range l.restarts {
		for end := time.Now().Add(l.least / time.Duration(l.restarts+1)); time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
		p.rotations(2)
		if i == 0 { // the next restart then loads the new root
			p.rollover()
		}
		before := p.serial(inFresh)
		p.stop()
		asked := flow.fresh.Load()
		until(t, "new connections while there is no control plane", func() bool { return flow.fresh.Load() > asked+2 })
		p.start()
		p.rotations(2)
		until(t, "another certificate of the server", func() bool { return p.serial(inFresh) != before })
	}
	for time.Since(began) < l.least {
		time.Sleep(50 * time.Millisecond)
	}
	asked := flow.fresh.Load()
	until(t, "new connections after it all", func() bool { return flow.fresh.Load() > asked+2 })
	took := time.Since(began)
	lost, streams := kept.closed.Load()-closed, []int{client.streams(), server.streams()}
	flow.stop()

	t.Logf("%.1f s: %d requests on %d kept connections, %d failed; %d new connections with one each, %d failed; between "+
		"the proxies %d connections opened that are kept, %d closed; the proxies took secrets %v times; control plane "+
		"restarted %d times, streams of client and server %v", took.Seconds(), flow.kept.Load(), flow.dialled.Load(),
		flow.keptFailed.Load(), flow.fresh.Load(), flow.freshFailed.Load(), kept.opened.Load(), lost, p.taken(0),
		l.restarts, streams)
	if flow.keptFailed.Load()+flow.freshFailed.Load() > 0 {
		t.Errorf("requests failed: %v", *flow.why.Load())
	}
	if n := flow.ended.Load(); n > 0 {
		t.Errorf("the client's proxy ended %d of %d kept connections", n, flow.dialled.Load())
	}
	if lost > 0 {
		t.Errorf("%d kept connections between the proxies ended", lost)
	}
	for _, n := range streams {
		if want := 2 + l.restarts; n != want {
			t.Errorf("the proxies opened %v streams to the control plane, not %d each", streams, want)
			break
		}
	}
	if p.serial(inFresh) == first {
		t.Error("the server shows the certificate of the beginning")
	}
	if refused := p.refusals(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// plane is the control plane of a mesh, which can be restarted at its address.
type plane struct {
	t                  *testing.T
	mesh               string
	life, every        time.Duration // of certificates, and the interval of their replacement
	roots, credentials string
	address            string
	at                 *controlplane.Plane
	stop               func()

	mu      sync.Mutex
	acks    map[string][]int64 // by node: when the secrets that it has acknowledged were changed, ns by pace.Now
	refused []string
}

func (p *plane) start() {
	p.t.Helper()
	m, err := proxyconfig.Parse("mesh.yaml", []byte(p.mesh))
	if err != nil {
		p.t.Fatal(err)
	}
	if p.address == "" {
		p.address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = l.Addr().String()
	at, err := controlplane.NewPlane(p.t.Context(), m, controlplane.PlaneOptions{
		Roots: p.roots, Credentials: p.credentials, Life: p.life, RenewAfter: float64(p.every) / float64(p.life),
		OnAnswer: p.answered,
	})
	if err == nil {
		err = at.Listens(p.address)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.at = at
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- at.Run(ctx) }()
	go func() { ended <- at.Serve(l) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		at.Close()
		if err := errors.Join(<-ended, <-ended); err != nil {
			p.t.Error(err)
		}
	})
	p.t.Cleanup(p.stop)
}

func (p *plane) answered(a controlplane.Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Refused != "" {
		p.refused = append(p.refused, a.Node+": "+a.Refused)
	} else if a.TypeURL == ads.SecretType {
		p.acks[a.Node] = append(p.acks[a.Node], a.Since)
	}
}

// taken returns how often each proxy has acknowledged secrets that were changed since a time, in ns by pace.Now.
func (p *plane) taken(since int64) map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := map[string]int{"web-1": 0, "api-1": 0}
	for node := range n {
		for _, told := range p.acks[node] {
			if told >= since {
				n[node]++
			}
		}
	}
	return n
}

func (p *plane) refusals() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// rotations waits until both proxies have acknowledged n secrets that were changed after the call began, and so belong
// to the current roots.
func (p *plane) rotations(n int) {
	p.t.Helper()
	since := pace.Now()
	until(p.t, "rotations", func() bool {
		now := p.taken(since)
		return now["web-1"] >= n && now["api-1"] >= n
	})
}

// rollover replaces the root of all certificates: a new one is trusted, then signs, and then the old one is dropped.
func (p *plane) rollover() {
	p.t.Helper()
	a := p.at.Authority()
	before := a.Rollover()
	for range 3 {
		if err := a.Advance(false); err != nil {
			p.t.Fatal(err)
		}
		until(p.t, "secrets of the root that signs", func() bool { return a.Rollover().Pending == 0 })
		p.rotations(2)
	}
	if now := a.Rollover(); now.Stage != authority.Steady || now.Issuing == before.Issuing || len(now.Trusted) != 1 {
		p.t.Fatalf("after the rollover: %+v, before: %+v", now, before)
	}
}

// serial returns the serial number of the certificate that the server's proxy presents to the client.
func (p *plane) serial(at string) string {
	p.t.Helper()
	c, err := secret.Credentials(filepath.Join(p.credentials, "web-1"))
	if err != nil {
		p.t.Fatal(err)
	}
	config := authority.ClientTLS(func() (authority.Credentials, error) { return c, nil },
		"spiffe://mesh.local/ns/default/sa/api")
	config.ServerName = "any"
	conn, err := tls.Dial("tcp", at, config)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// envoy is the proxy of a node.
type envoy struct {
	t     *testing.T
	admin string // the file with its admin address
}

// startEnvoy runs Envoy as a node of a plane until the test ends.
func startEnvoy(t *testing.T, p *plane, node string) *envoy {
	e := &envoy{t, filepath.Join(t.TempDir(), "admin")}
	execute(t, node, envoytest.Path(t), "-c", filepath.Join(p.credentials, node, authority.EnvoyBootstrapFile),
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--admin-address-path", e.admin)
	return e
}

// streams returns how many streams Envoy has opened to its control plane.
func (e *envoy) streams() int {
	e.t.Helper()
	at, err := os.ReadFile(e.admin)
	if err != nil {
		e.t.Fatal(err)
	}
	r, err := http.Get("http://" + strings.TrimSpace(string(at)) +
		"/stats?format=json&filter=cluster.controlplane.upstream_cx")
	if err != nil {
		e.t.Fatal(err)
	}
	defer r.Body.Close()
	var all struct {
		Stats []struct {
			Name  string
			Value int
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
		e.t.Fatal(err)
	}
	stat := map[string]int{}
	for _, s := range all.Stats {
		stat[s.Name] = s.Value
	}
	return stat["cluster.controlplane.upstream_cx_total"] - stat["cluster.controlplane.upstream_cx_connect_fail"]
}

// execute runs a program until the test ends.
func execute(t *testing.T, name, program string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	c := exec.Command(program, args...)
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = c.Wait() // killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s says:\n%s", name, said.String())
		}
	})
}

// link forwards connections and counts them.
type link struct {
	address        string
	opened, closed atomic.Int64
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	k := &link{address: l.Addr().String()}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go k.pass(from, to)
		}
	}()
	return k
}

func (k *link) pass(from net.Conn, to string) {
	defer from.Close()
	onward, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer onward.Close()
	k.opened.Add(1)
	defer k.closed.Add(1)
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, onward}, {onward, from}} {
		go func() {
			_, _ = io.Copy(way[1], way[0])
			_ = way[1].(*net.TCPConn).CloseWrite()
			ended <- struct{}{}
		}()
	}
	<-ended
	<-ended
}

// flow sends requests at a steady rate, on an absolute schedule.
type flow struct {
	kept, keptFailed, fresh, freshFailed, dialled, ended atomic.Int64
	why                                                  atomic.Pointer[error]
	stop                                                 func()
}

func newFlow(l load, kept, fresh string) *flow {
	f := &flow{}
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	f.stop = sync.OnceFunc(func() { cancel(); workers.Wait() })
	dialer := &net.Dialer{}
	for i := range l.connections {
		workers.Go(func() {
			client := &http.Client{Transport: &http.Transport{
				DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
					f.dialled.Add(1)
					conn, err := dialer.DialContext(ctx, network, address)
					return &keptConn{Conn: conn, ended: &f.ended}, err
				},
			}}
			defer client.CloseIdleConnections()
			every := time.Second * time.Duration(l.connections) / time.Duration(l.rate)
			f.pace(ctx, every, every*time.Duration(i)/time.Duration(l.connections), &f.kept, &f.keptFailed,
				func() error { return get(client, kept) })
		})
	}
	const openers = 4
	for i := range openers {
		workers.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			every := time.Second * openers / time.Duration(l.fresh)
			f.pace(ctx, every, every*time.Duration(i)/openers, &f.fresh, &f.freshFailed,
				func() error { return get(client, fresh) })
		})
	}
	return f
}

// keptConn counts connections that the other side ends. The client may end some itself: http.Transport does not reuse
// a connection whose request was not known to be written within 50 ms, for example because the machine stood still.
type keptConn struct {
	net.Conn
	ended   *atomic.Int64
	closing atomic.Bool
	once    sync.Once
}

func (c *keptConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !c.closing.Load() {
		c.once.Do(func() { c.ended.Add(1) })
	}
	return n, err
}

func (c *keptConn) Close() error {
	c.closing.Store(true)
	return c.Conn.Close()
}

// pace calls the function do at regular intervals. A call that is due before the previous one has returned follows it
// at once.
func (f *flow) pace(ctx context.Context, every, offset time.Duration, done, failed *atomic.Int64, do func() error) {
	for due := time.Now().Add(offset); ; due = due.Add(every) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		err := do()
		done.Add(1)
		if err != nil {
			failed.Add(1)
			f.why.Store(&err)
		}
	}
}

// get makes a request.
func get(client *http.Client, at string) error {
	r, err := client.Get("http://" + at + "/")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && (r.StatusCode != http.StatusOK || string(text) != "application") {
		err = fmt.Errorf("%s: %s", r.Status, text)
	}
	return err
}

func newApp(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "application")
	})}
	go s.Serve(l)
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// private returns a directory that no other user can write to.
func private(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// free returns an address at which nothing listens.
func free(t *testing.T) string { return port.Free(t) }

// until waits until something holds. It fails the test after a time that noise cannot explain.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
