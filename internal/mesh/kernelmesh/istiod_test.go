package kernelmesh

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/mesh/istiod"
	"tare/internal/mesh/push"
	appmesh "tare/internal/mesh/services"
	"tare/test/istiodtest"
)

// istiodVariable enables the tests that need istiod: make istiod-test sets it. If it is set, they fail if istiod is
// missing.
const istiodVariable = "TARE_ISTIOD_TEST"

// theIstiod starts an istiod for a test, and checks that nothing of it is left at the end.
func theIstiod(t *testing.T) *istiod.Istiod {
	t.Helper()
	if os.Getenv(istiodVariable) == "" {
		t.Skip("make istiod-test runs it")
	}
	i, err := istiod.Start(context.Background(), istiod.Options{Mesh: meshConfig})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dir := i.Dir
		if err := i.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", i.PID)); !os.IsNotExist(err) {
			t.Errorf("process %d is left: %v", i.PID, err)
		}
		if t.Failed() {
			t.Logf("istiod said last:\n%s", i.Tail())
		}
	})
	return i
}

const meshConfig = "accessLogFile: \"\"\n"

// The node of the tests for istiod: the sidecar of a workload at the address workload.
const (
	workload  = "127.0.0.9"
	istioNode = "sidecar~" + workload + "~web.default~default.svc.cluster.local"
)

func istioMetadata(more ...string) string {
	return strings.Join(append([]string{"ISTIO_VERSION=" + istiod.Version, "CLUSTER_ID=tare", "NAMESPACE=default"},
		more...), ",")
}

// put writes a file that consists of several objects.
func put(t *testing.T, i *istiod.Istiod, file string, objects ...string) {
	t.Helper()
	istiodtest.Put(t, i.Dir, file+".yaml", strings.Join(objects, "---\n"))
}

// underIstiod is a data plane as a process, with istiod as its control plane.
type underIstiod struct {
	*subjectProcess
	cgroup string
	ready  Ready

	mu   sync.Mutex
	said []string
}

func runUnderIstiod(t *testing.T, i *istiod.Istiod, world bool) *underIstiod {
	t.Helper()
	u := &underIstiod{cgroup: testCgroup(t)}
	node, err := nodeOf(istioNode, istioMetadata())
	if err != nil {
		t.Fatal(err)
	}
	u.subjectProcess = newSubject(t, Options{XDS: i.XDS, CgroupDir: u.cgroup, Node: node, StateOfTheWorld: world}, 0)
	u.ready = u.subjectProcess.ready(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			var line string
			if u.conn.Expect(role.Log, &line, nil) != nil {
				return
			}
			u.mu.Lock()
			u.said = append(u.said, line)
			u.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		u.in.Close()
		<-done
		if err := u.stop(); err != nil {
			t.Error(err)
		}
		eventually(t, "nothing is left in the kernel", func() bool { return u.ready.left() == 0 })
		if t.Failed() || testing.Verbose() {
			for _, line := range u.said {
				t.Log(line)
			}
		}
	})
	return u
}

// lines returns the lines with a prefix that the data plane has logged.
func (u *underIstiod) lines(prefix string) (found []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, line := range u.said {
		if strings.HasPrefix(line, prefix) {
			found = append(found, line)
		}
	}
	return found
}

func vip(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// TestIstiod: kernelmesh carries out what istiod sends, in both variants of the protocol, and refuses none of it.
func TestIstiod(t *testing.T) {
	i := theIstiod(t)
	for _, variant := range Variants {
		t.Run(variant, func(t *testing.T) { testIstiod(t, i, variant == VariantWorld) })
	}
}

func testIstiod(t *testing.T, i *istiod.Istiod, world bool) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	own := tcpServer(t, workload+":0")
	tcp, http := vip("127.96.0.1:9000"), vip("127.96.0.2:80")
	service := func(name string, at netip.AddrPort, protocol string, endpoints ...netip.AddrPort) istiodtest.Service {
		return istiodtest.Service{Name: name, Address: at, Protocol: protocol, Endpoints: endpoints}
	}
	weighted := []istiodtest.Service{service("tcp", tcp, "TCP", a, b), service("http", http, "HTTP", a, b)}
	for _, s := range weighted {
		put(t, i, s.Name, s.Entry())
	}
	t.Cleanup(func() {
		for _, file := range []string{"tcp", "http", "own"} {
			_ = os.Remove(filepath.Join(i.Dir, file+".yaml"))
		}
	})
	u := runUnderIstiod(t, i, world)
	c := newClient(t, u.cgroup)
	served := func(to netip.AddrPort, n int) answer { return c.ask(t, request{Do: "tcp", To: to, N: n}) }
	reachesBoth := func(to netip.AddrPort) {
		t.Helper()
		eventually(t, to.String()+" is served by both", func() bool {
			got := served(to, 20)
			return got.Banners[a.String()] > 0 && got.Banners[b.String()] > 0 && len(got.Errors) == 0
		})
	}
	reachesBoth(tcp)
	reachesBoth(http)

	// Subsets and weights, of 400 connections each: 5 standard deviations of a share of 75 % are 11 %.
	for _, s := range weighted {
		put(t, i, s.Name, s.Weighted(100))
		eventually(t, s.Name+" goes to v1 alone", func() bool { return served(s.Address, 20).Banners[a.String()] == 20 })
		put(t, i, s.Name, s.Weighted(75))
		eventually(t, s.Name+" goes to v2 as well", func() bool { return served(s.Address, 20).Banners[b.String()] > 0 })
		got := served(s.Address, 400)
		if n := got.Banners[a.String()]; n < 256 || n > 344 || len(got.Errors) > 0 {
			t.Errorf("%s: %d of 400 connections went to v1, of 300 by its weight; errors %v", s.Name, n, got.Errors)
		}
	}

	// Who may connect to the workload.
	self := service("own", vip(fmt.Sprintf("127.96.0.3:%d", own.Port())), "TCP", own)
	put(t, i, "own", self.Entry(), istiodtest.Policy(`{from: [{source: {ipBlocks: [127.0.1.0/24]}}]}`))
	from := func(ip string, to netip.AddrPort) answer {
		return c.ask(t, request{Do: "tcp", To: to, From: netip.MustParseAddrPort(ip + ":0")})
	}
	denied := func(a answer) bool { return a.Errors["connect: operation not permitted"] == 1 }
	eventually(t, "others are denied", func() bool { return denied(from("127.0.2.1", own)) })
	if got := from("127.0.1.1", own); got.Banners[own.String()] != 1 {
		t.Errorf("who is allowed does not come in: %v", got)
	}
	if got := from("127.0.2.1", self.Address); len(got.Banners) > 0 {
		t.Errorf("who is denied comes in by the service: %v", got)
	}
	// A policy that cannot be evaluated allows no connection, and is logged.
	put(t, i, "own", self.Entry(), istiodtest.Policy(`{from: [{source: {principals: ["cluster.local/ns/default/sa/web"]}}]}`))
	eventually(t, "nobody is let in", func() bool { return len(from("127.0.1.1", own).Banners) == 0 })
	if len(u.lines("warning: listener \"virtualInbound\"")) == 0 {
		t.Error("nothing is said of the policy that cannot be judged")
	}
	put(t, i, "own", self.Entry())
	eventually(t, "all are let in", func() bool { return from("127.0.2.1", own).Banners[own.String()] == 1 })

	// Services are added, changed and removed while connections to others are made.
	underLoad(t, u, http, func() {
		more := vip("127.96.0.4:9001")
		put(t, i, "more", service("more", more, "TCP", a).Entry())
		eventually(t, "a new service goes to a", func() bool { return served(more, 1).Banners[a.String()] == 1 })
		put(t, i, "more", service("more", more, "TCP", b).Entry())
		eventually(t, "it goes to b", func() bool { return served(more, 1).Banners[b.String()] == 1 })
		web := vip("127.96.0.5:80")
		put(t, i, "web", service("web", web, "HTTP", b).Entry())
		eventually(t, "one of HTTP comes", func() bool { return served(web, 1).Banners[b.String()] == 1 })
		for _, file := range []string{"more.yaml", "web.yaml"} {
			if err := os.Remove(filepath.Join(i.Dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "they go", func() bool {
			return len(served(more, 1).Banners)+len(served(web, 1).Banners) == 0
		})
	})
	if refused := u.lines("refused: "); len(refused) > 0 {
		t.Errorf("kernelmesh refuses %v", refused)
	}
}

// underLoad makes connections to a service as fast as one client can while f runs. None may fail.
func underLoad(t *testing.T, u *underIstiod, to netip.AddrPort, f func()) {
	t.Helper()
	c := newClient(t, u.cgroup)
	stop, done := make(chan struct{}), make(chan struct{})
	var all, failed int
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			got := c.ask(t, request{Do: "tcp", To: to, N: 20, Timeout: time.Minute})
			all += 20
			for what, n := range got.Errors {
				failed += n
				t.Errorf("%d connections failed: %s", n, what)
			}
		}
	}()
	f()
	close(stop)
	<-done
	t.Logf("%d connections while services came, changed and went; %d failed", all, failed)
}

// TestIstiodPush: changes that the application istiod makes, of one service and of all services, reach connections.
func TestIstiodPush(t *testing.T) {
	if os.Getenv(istiodVariable) == "" {
		t.Skip("make istiod-test runs it")
	}
	const services = 30
	in, out := io.Pipe()
	said, say := io.Pipe()
	app := kind.Find(kind.Application, "istiod").(kind.Player)
	ended := make(chan error, 1)
	go func() {
		v := param.Values{"services": fmt.Sprint(services), "endpoints": "3", "debounce": "10ms"}
		ended <- app.Play(context.Background(), role.NewConn(in, say), v)
		say.Close()
	}()
	var mesh appmesh.Ready
	if err := role.NewConn(said, nil).Expect(role.Ready, &mesh, nil); err != nil {
		t.Fatal(err)
	}
	node, err := nodeOf("sidecar~10.0.0.7~web.default~default.svc.cluster.local", istioMetadata())
	if err != nil {
		t.Fatal(err)
	}
	dir := testCgroup(t)
	s := newSubject(t, Options{XDS: mesh.Address, CgroupDir: dir, Store: "snapshot", Peer: PeerEndpoint, Node: node}, 0)
	s.ready(t)
	for _, what := range push.Whats {
		child := start(t, "push", dir, mesh.Control, what)
		conn := role.NewConn(child.out, child.in)
		if err := conn.Expect(role.Ready, nil, nil); err != nil {
			t.Fatal(err)
		}
		at := role.Schedule{Begin: pace.Now(), Duration: int64(500 * time.Millisecond)}
		if err := conn.Send(role.Start, at); err != nil {
			t.Fatal(err)
		}
		var made load.Result
		if err := conn.Expect(role.Result, &made, nil); err != nil {
			t.Fatal(err)
		}
		h, err := made.Histogram(push.Whole)
		if err != nil || h == nil || h.TotalCount() != made.Done || made.Done < 1 || len(made.Errors) > 0 {
			t.Errorf("%s: %d changes, %v, %v", what, made.Done, made.Errors, err)
		} else if h.Min() < int64(10*time.Millisecond) {
			t.Errorf("%s: a change took %d ns, less than the debounce time", what, h.Min())
		}
		if sent, err := made.Histogram(push.Sent); err != nil || sent != nil {
			t.Errorf("%s: istiod does not say when it sent a change, and the load does: %v", what, err)
		}
		if c := made.Counts; c[push.Tries] < float64(made.Done) || c[push.Wrong]+c[push.Refused] > 0 {
			t.Errorf("%s: connections: %v", what, c)
		}
		if err := child.stop(); err != nil {
			t.Error(err)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	out.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
