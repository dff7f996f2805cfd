package kernelmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/connect"
	appmesh "tare/internal/mesh/services"
)

// trial is a fake trial. The process that it starts is real, but runs the test binary instead of tare.
type trial struct {
	kind.Trial
	t       *testing.T
	dir     string
	work    string
	apps    map[string]kind.App
	process *trialProcess
	subject kind.Objects

	component string // of the data plane
	node      Node   // its node for the control plane
	raw       json.RawMessage
	read      []string
	inFile    []int // number of services, at each reading
}

func (x *trial) Self() string                      { return "/bin/tare" }
func (x *trial) Dir() string                       { return x.dir }
func (x *trial) WorkDir() string                   { return x.work }
func (x *trial) Applications() map[string]kind.App { return x.apps }

func (x *trial) SetSubject(o kind.Objects, raw json.RawMessage) { x.subject, x.raw = o, raw }

func (x *trial) Read(_ context.Context, name string) error {
	services, err := ReadFile(filepath.Join(x.dir, servicesFile))
	x.read, x.inFile = append(x.read, name), append(x.inFile, len(services))
	return err
}

func (x *trial) StartSubject(_ context.Context, component string, _ param.Values, argv []string) (kind.Process, error) {
	if component == controlComponent {
		return x.controlPlane(argv), nil
	}
	x.component = component
	if !slices.Equal(argv[:4], []string{"/bin/tare", kind.PlayCommand, "subject", "kernelmesh"}) {
		x.t.Errorf("component %q, %q", component, argv)
	}
	var o Options
	f := pflag.NewFlagSet("kernelmesh", pflag.ContinueOnError)
	values := param.Flags(f, guest{}.About().ProcessSettings()...)
	err := f.Parse(argv[4:])
	services, dir, xds := values[fileKey], values["cgroup"], values[xdsKey]
	if err == nil {
		o, err = OptionsOf(values)
	}
	if err != nil {
		return nil, err
	}
	o.ServicesFile, o.CgroupDir, o.XDS = services, dir, xds
	x.node = o.Node
	x.process = &trialProcess{
		subjectProcess: newSubject(x.t, o, 0),
		ready:          make(chan json.RawMessage, 1), log: make(chan string, 16), ended: make(chan struct{}),
	}
	go x.process.listen()
	return x.process, nil
}

// controlPlane runs Tare's control plane instead of the istiod in the command line, with the same services.
func (x *trial) controlPlane(argv []string) kind.Process {
	text, ok := strings.CutPrefix(argv[len(argv)-1], "--behind=")
	if argv[0] != "/bin/tare" || !ok {
		x.t.Errorf("the control plane is %q", argv)
	}
	var b strings.Builder
	b.WriteString("services:\n")
	for i, pair := range strings.Split(text, ",") {
		at, to, _ := strings.Cut(pair, "=")
		fmt.Fprintf(&b, "  - {name: app-%d, address: %q, endpoints: [{address: %q}]}\n", i, at, to)
	}
	r := resourcesOf(x.t, b.String())
	path := filepath.Join(x.t.TempDir(), "xds")
	if _, err := controlPlane(x.t, path).Set(context.Background(), r); err != nil {
		x.t.Fatal(err)
	}
	ready, err := json.Marshal(appmesh.Ready{Address: "unix:" + path})
	if err != nil {
		x.t.Fatal(err)
	}
	p := &trialProcess{ready: make(chan json.RawMessage, 1), ended: make(chan struct{})}
	p.ready <- ready
	return p
}

// trialProcess is a process of a trial.
type trialProcess struct {
	*subjectProcess
	ready chan json.RawMessage
	log   chan string
	ended chan struct{}
}

func (p *trialProcess) listen() {
	defer close(p.ended)
	for {
		m, err := p.conn.Receive()
		if err != nil {
			return
		}
		switch m.Event {
		case role.Ready:
			p.ready <- m.Data
		case role.Log:
			var line string
			_ = json.Unmarshal(m.Data, &line)
			p.log <- line
		}
	}
}

func (p *trialProcess) PID() int                 { return p.cmd.Process.Pid }
func (p *trialProcess) Log() <-chan string       { return p.log }
func (p *trialProcess) Dropped() int             { return 0 }
func (p *trialProcess) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }
func (p *trialProcess) Finished() <-chan struct{} {
	return nil
}
func (p *trialProcess) Ended() <-chan struct{}    { return p.ended }
func (p *trialProcess) Failure(when string) error { return errors.New("ended " + when) }

func (p *trialProcess) Ready(context.Context) (json.RawMessage, error) {
	select {
	case data := <-p.ready:
		return data, nil
	case <-p.ended:
		return nil, p.Failure("before its ready message")
	}
}

// partOf makes a part of the data plane, with defaults filled in as in a spec.
func partOf(o param.Values) *kind.Part {
	all := param.Defaults(guest{}.About().Settings)
	for name, value := range o {
		all[name] = value
	}
	return &kind.Part{Kind: guest{}, Options: all}
}

// join joins a data plane to a trial.
func join(t *testing.T, x *trial, o param.Values) *joined {
	t.Helper()
	x.t = t
	j, err := guest{}.Join(x, "arm", partOf(o))
	if err != nil {
		t.Fatal(err)
	}
	return j.(*joined)
}

// TestJoin goes through a trial with a real process, which serves the application and reads its services again.
func TestJoin(t *testing.T) {
	x := &trial{dir: t.TempDir(), work: testCgroup(t)}
	server := tcpServer(t, "127.0.0.1:0")
	x.apps = map[string]kind.App{"web": {Address: server.String()}}
	j := join(t, x, param.Values{"services": "3", "then-services": "1", "fit": "true", "peer": PeerEndpoint})
	if err := j.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(x.subject.Programs) == 0 || len(x.subject.Maps) == 0 || !strings.Contains(string(x.raw), `"services":3`) {
		t.Errorf("it consists of %+v, and says %s", x.subject, x.raw)
	}
	address, err := j.Address("web")
	if err != nil || address != "10.96.0.1:80" {
		t.Fatalf("the application is at %q, %v", address, err)
	}
	if _, err := j.Address("burner"); err == nil {
		t.Error("an application that serves nobody has an address")
	}
	c := newClient(t, x.work)
	to := request{Do: "tcp", To: netip.MustParseAddrPort(address)}
	c.ask(t, to).want(t, counted(server, 1), counted(server, 1), none)

	for _, hook := range []func(context.Context) error{j.Before, j.After} {
		if err := hook(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(x.read, []string{readingBefore, readingAfter}) || !slices.Equal(x.inFile, []int{3, 1}) {
		t.Errorf("readings %v with %v services", x.read, x.inFile)
	}
	c.ask(t, to).want(t, counted(server, 1), counted(server, 1), none)
	for range 2 { // the second Close finds no services file
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(x.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestJoinControlPlane: a data plane with its own control plane gets the application's service from that control plane,
// and serves it as soon as Start returns. Its components and its node have names.
func TestJoinControlPlane(t *testing.T) {
	x := &trial{dir: t.TempDir(), work: testCgroup(t)}
	server := tcpServer(t, "127.0.0.1:0")
	x.apps = map[string]kind.App{"web": {Address: server.String()}}
	j := join(t, x, param.Values{"control-plane": "istiod"})
	if err := j.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	address, err := j.Address("web")
	if err != nil {
		t.Fatal(err)
	}
	newClient(t, x.work).ask(t, request{Do: "tcp", To: netip.MustParseAddrPort(address)}).
		want(t, counted(server, 1), counted(netip.MustParseAddrPort(address), 1), none)
	if x.component != dataComponent || len(x.subject.Programs) == 0 {
		t.Errorf("the component %q consists of %+v", x.component, x.subject)
	}
	if !strings.HasPrefix(x.node.ID, "sidecar~") || x.node.Metadata["ISTIO_VERSION"] == "" {
		t.Errorf("it asks as %+v", x.node)
	}
	if e := j.Evidence(); e != nil {
		t.Errorf("all was taken as it is, and the evidence is %+v", e)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// TestJoinReadsOnce: memory is read again only if services are removed.
func TestJoinReadsOnce(t *testing.T) {
	j := join(t, &trial{}, nil)
	if err := errors.Join(j.Before(t.Context()), j.After(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestReloaded: the result depends on what the process logs about its services, and on whether it ends.
func TestReloaded(t *testing.T) {
	for _, c := range []struct {
		lines []string
		says  string // text in the expected error; empty: no error
	}{
		{[]string{"listening", "applied s.yaml: 1 services added"}, ""},
		{[]string{"applying s.yaml: no room"}, "arm read its services again, and applying s.yaml: no room"},
		{[]string{"the services stay as they were: s.yaml:2"}, "and the services stay as they were"},
		{nil, "ended while it read its services again"},
	} {
		p := &trialProcess{log: make(chan string, 2), ended: make(chan struct{})}
		for _, line := range c.lines {
			p.log <- line
		}
		if len(c.lines) == 0 {
			close(p.ended)
		}
		j := join(t, &trial{}, nil)
		j.process = p
		err := j.reloaded(t.Context())
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: %v", c.lines, err)
		}
	}
}

// TestArgv: the process's arguments are its place, its own options, and either a file or a control plane.
func TestArgv(t *testing.T) {
	const own = " --steps=500 --sockops-steps=0"
	x := &trial{dir: "/run", work: "/sys/fs/cgroup/x", apps: map[string]kind.App{"mesh": {Address: "127.0.0.1:1"}}}
	for _, c := range []struct {
		options param.Values
		want    string
	}{
		{param.Values{"peer": "endpoint"}, "--services=/run/services.yaml --peer=endpoint" + own},
		{param.Values{"services": "9"}, "--services=/run/services.yaml" + own},
		{param.Values{"xds": "mesh"}, "--xds=127.0.0.1:1" + own},
		{param.Values{"services": "9", "fit": "true"},
			"--services=/run/services.yaml" + own + " --max-services=9 --max-endpoints=9"},
	} {
		c.options["steps"] = "500"
		argv, err := join(t, x, c.options).argv()
		want := "/bin/tare _play subject kernelmesh --cgroup=/sys/fs/cgroup/x " + c.want
		if got := strings.Join(argv, " "); err != nil || got != want {
			t.Errorf("%v: %v\ngot  %s\nwant %s", c.options, err, got, want)
		}
	}
	x.work = ""
	if err := join(t, x, nil).Start(t.Context()); fault.CodeOf(err) != fault.Machine {
		t.Errorf("without a v2 hierarchy: %v", err)
	}
}

// TestOwnServices: the load connect finds the services without an application.
func TestOwnServices(t *testing.T) {
	x := &trial{apps: map[string]kind.App{"a": {}, "b": {}}}
	j := join(t, x, param.Values{"services": "30", "peer": PeerEndpoint})
	if got, want := j.Services(), (connect.Services{First: "10.96.0.3:80", Count: 28, Endpoints: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := join(t, x, nil).Services(), (connect.Services{First: "10.96.0.3:80"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
