// Package sidecartest runs a kind of sidecar proxies in a minimal trial, with real programs in real control groups, and
// tests that they do what every kind must do.
package sidecartest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/sidecar"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
)

// Main is the TestMain of packages that use this one. Their test binary takes the place of tare where tare starts
// itself again, to enter a control group or to play a guest, and it can be a load (loadEnv).
func Main(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	if len(os.Args) > 1 && os.Args[1] == kind.PlayCommand {
		err := kind.Play(context.Background(), role.Stdio(), os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(int(fault.CodeOf(err)))
	}
	if to := os.Getenv(loadEnv); to != "" {
		load(to)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Trial is the part of a trial that proxies see.
type Trial struct {
	kind.Trial // nil: a method that Trial itself does not have panics
	T          *testing.T
	Tree       *placement.Tree
	SelfPath   string     // path of the tare binary
	Failed     chan error // gets the errors that proxies pass to Fail
	Readings   []string   // the names that proxies passed to Read

	apps  map[string]kind.App
	setup kind.Setup

	part any // what the subject's Join returned

	mu      sync.Mutex
	groups  map[string]kind.Group
	started []*role.Child
	warned  []string
}

// application is an application of which proxies look only at the protocol.
type application string

func (a application) About() kind.About { return kind.About{Name: string(a), Protocol: string(a)} }

// Speaking sets the protocol that an application speaks.
func (x *Trial) Speaking(app, protocol string) {
	x.setup.Applications[app].Kind = application(protocol)
}

// NewTrial makes a trial with some applications, given by their addresses. It skips the test if it does not run as
// root, which control groups need.
func NewTrial(t *testing.T, apps map[string]string) *Trial {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes control groups")
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := placement.NewTree(l, "sidecartest")
	if err != nil {
		t.Fatal(err)
	}
	x := &Trial{T: t, Tree: tree, Failed: make(chan error, 16), apps: map[string]kind.App{},
		groups: map[string]kind.Group{},
		setup:  kind.Setup{Applications: map[string]*kind.Part{}, Loads: map[string]*kind.Part{}}}
	if x.SelfPath, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	for name, address := range apps {
		x.apps[name] = kind.App{Address: address}
		x.setup.Applications[name] = &kind.Part{Kind: application(sidecar.ProtocolHTTP)}
	}
	t.Cleanup(func() {
		for _, p := range x.started {
			p.Stop()
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// The methods of kind.Trial that proxies call.

func (x *Trial) Self() string                             { return x.SelfPath }
func (x *Trial) Dir() string                              { return x.T.TempDir() }
func (x *Trial) Arm() string                              { return "mine" }
func (x *Trial) Setup() *kind.Setup                       { return &x.setup }
func (x *Trial) Applications() map[string]kind.App        { return x.apps }
func (x *Trial) Record() *record.Trial                    { return &record.Trial{Ledger: &ledger.Ledger{}} }
func (x *Trial) SetSubject(kind.Objects, json.RawMessage) {}

// Read implements kind.Trial.
func (x *Trial) Read(_ context.Context, name string) error {
	x.Readings = append(x.Readings, name)
	return nil
}

// client returns the PID of the first process of the client's proxy.
func (x *Trial) client(t *testing.T) int {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.groups[path.Join(kind.SubjectGroup, sidecar.Client, "server")]
	text, err := os.ReadFile(path.Join(g.V2Dir(), "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	first := 0
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		t.Fatalf("no process is in the group of the client's proxy: %v", err)
	}
	return first
}

// Fail keeps the reason why the trial failed.
func (x *Trial) Fail(err error) {
	select {
	case x.Failed <- err:
	default:
	}
}

// Warn keeps a warning, with which NoFailure fails the test: nothing here deserves a warning.
func (x *Trial) Warn(code, format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.warned = append(x.warned, code+": "+fmt.Sprintf(format, args...))
}

func (x *Trial) group(name string) (kind.Group, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.groups[name]; g != nil {
		return g, nil
	}
	g, err := x.Tree.Group(strings.ReplaceAll(name, ".", "-"), placement.Limits{})
	if err != nil {
		return nil, err
	}
	x.groups[name] = g
	return g, nil
}

// ServingGroup implements kind.Trial.
func (x *Trial) ServingGroup(component, app string, _ param.Values) (kind.Group, error) {
	return x.group(path.Join(kind.SubjectGroup, component, app))
}

// SubjectGroup implements kind.Trial.
func (x *Trial) SubjectGroup(component string, _ param.Values) (kind.Group, error) {
	return x.group(path.Join(kind.SubjectGroup, component))
}

// StartSubject implements kind.Trial.
func (x *Trial) StartSubject(
	_ context.Context, component string, _ param.Values, argv []string,
) (kind.Process, error) {
	g, err := x.SubjectGroup(component, nil)
	if err != nil {
		return nil, err
	}
	begin, err := x.starter(g, kind.Subject, component)
	if err != nil {
		return nil, err
	}
	p, err := role.Launch(component, argv, begin, x.Fail)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.started = append(x.started, p)
	return p, nil
}

// starter returns a function that starts a process in a group and, if the proxies give the process a network, in that
// network.
func (x *Trial) starter(g kind.Group, as kind.Role, name string) (child.Starter, error) {
	n, ok := x.part.(kind.Networked)
	if !ok {
		return g.In(""), nil
	}
	network, err := n.Network(as, name)
	return g.In(network), err
}

// Begin implements kind.Trial, for loads.
func (x *Trial) Begin(_ context.Context, name string, _ ...string) (child.Starter, error) {
	g, err := x.group(path.Join(kind.WorkGroup, name))
	if err != nil {
		return nil, err
	}
	return x.starter(g, kind.Load, name)
}

// WorkDir implements kind.Trial.
func (x *Trial) WorkDir() string {
	g, err := x.group(path.Join(kind.WorkGroup, "any"))
	if err != nil || g.V2Dir() == "" {
		return ""
	}
	return path.Dir(g.V2Dir())
}

// Part returns a part of an experiment that has the given settings, and defaults for the others, as in a spec.
func Part(g kind.Guest, set param.Values) *kind.Part {
	settings := g.About().Settings
	o := param.Defaults(settings)
	for k, v := range set {
		o[k] = v
	}
	return &kind.Part{Kind: g, Options: o}
}

// Proxies are the proxies of a trial under way.
type Proxies struct {
	Trial *Trial
	part  any
}

// Start starts the proxies of a trial, and returns the error of their Start. The proxies end with the test.
func (x *Trial) Start(g sidecar.Guest, set param.Values) (*Proxies, error) {
	x.T.Helper()
	p, err := x.join(g, set)
	if err != nil {
		return nil, err
	}
	return p, p.part.(kind.Starter).Start(x.T.Context())
}

// join makes proxies the subject of the trial, before they start.
func (x *Trial) join(g sidecar.Guest, set param.Values) (*Proxies, error) {
	joined, err := g.Join(x, "mine", Part(g, set))
	if err != nil {
		return nil, err
	}
	x.part = joined
	p := &Proxies{x, joined}
	x.T.Cleanup(p.Close)
	return p, nil
}

// MustStart starts the proxies of a trial, or fails the test.
func (x *Trial) MustStart(g sidecar.Guest, set param.Values) *Proxies {
	x.T.Helper()
	p, err := x.Start(g, set)
	if err != nil {
		x.T.Fatal(err)
	}
	return p
}

// Address returns the address at which an application is reached through the proxies.
func (p *Proxies) Address(app string) string {
	p.Trial.T.Helper()
	at, err := p.part.(kind.Addresser).Address(app)
	if err != nil {
		p.Trial.T.Fatal(err)
	}
	return at
}

// After calls the proxies' kind.After hook.
func (p *Proxies) After() error { return p.part.(kind.After).After(p.Trial.T.Context()) }

// Evidence calls After, and returns the evidence of the proxies.
func (p *Proxies) Evidence() *sidecar.Evidence {
	p.Trial.T.Helper()
	if err := p.After(); err != nil {
		p.Trial.T.Fatal(err)
	}
	return p.part.(kind.Evidence).Evidence().(*sidecar.Evidence)
}

// Found returns the evidence of one of the proxies.
func (p *Proxies) Found(component, app string) sidecar.Found {
	p.Trial.T.Helper()
	for _, f := range p.Evidence().Proxies {
		if f.Component == component && f.App == app {
			return f
		}
	}
	p.Trial.T.Fatalf("there is no %s of %s", component, app)
	return sidecar.Found{}
}

// Close ends the proxies. It may be called again.
func (p *Proxies) Close() {
	if err := p.part.(io.Closer).Close(); err != nil {
		p.Trial.T.Error(err)
	}
}

// App is an application that counts connections and requests.
type App struct {
	Address     string
	Connections atomic.Int64 // opened to it
	Requests    atomic.Int64
	Over2       atomic.Int64 // requests over HTTP/2
}

// NewApp serves HTTP/1.1 and HTTP/2 until the test ends. Its answers contain its name, so that a test sees which
// application answered.
func NewApp(t *testing.T, name string) *App {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newApp(t, name, l)
}

func newApp(t *testing.T, name string, l net.Listener) *App {
	a := &App{Address: l.Addr().String()}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Protocols: protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.Requests.Add(1)
			if r.ProtoMajor == 2 {
				a.Over2.Add(1)
			}
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("X-App", name)
			_, _ = fmt.Fprintf(w, "%s %s %s %s", name, r.Method, r.URL, body)
		}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				a.Connections.Add(1)
			}
		},
	}
	go s.Serve(l)
	t.Cleanup(func() { _ = s.Close() })
	return a
}

// Get makes a request and returns the answer's body.
func Get(t *testing.T, client *http.Client, address, path string) string {
	t.Helper()
	resp, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %q, %v", resp.StatusCode, body, err)
	}
	return string(body)
}

// Eventually waits until something holds. It fails the test after 20 s, which no noise explains.
func Eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// Failure waits until the trial has failed, and returns why.
func (x *Trial) Failure() error {
	x.T.Helper()
	select {
	case err := <-x.Failed:
		return err
	case <-time.After(20 * time.Second):
		x.T.Fatal("the trial goes on")
		return nil
	}
}

// NoFailure fails the test if the trial has failed or warned so far.
func (x *Trial) NoFailure() {
	x.T.Helper()
	select {
	case err := <-x.Failed:
		x.T.Errorf("the trial failed: %v", err)
	default:
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.warned) > 0 {
		x.T.Errorf("warned: %s", strings.Join(x.warned, "; "))
	}
}

// gone reports whether a process has ended, even if its parent has not waited for it yet.
func gone(pid int) bool {
	p, err := (proc.FS{}).Process(pid)
	return err != nil || !p.Alive()
}
