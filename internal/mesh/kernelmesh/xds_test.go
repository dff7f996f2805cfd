package kernelmesh

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/proxyconfig"
)

// controlPlane serves at a socket in the file system until the test ends, or it is closed.
func controlPlane(t *testing.T, path string) *controlplane.Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := controlplane.New(controlplane.Options{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// tells makes the control plane send service4 with an endpoint.
func tells(t *testing.T, s *controlplane.Server, endpoint netip.AddrPort) {
	t.Helper()
	r := resourcesOf(t, fmt.Sprintf("services: [{name: web, address: %q, endpoints: [{address: %q}]}]", service4,
		endpoint))
	if _, err := s.Set(context.Background(), r); err != nil {
		t.Fatal(err)
	}
}

// TestXDS: the data plane follows its control plane, continues when that ends, and refuses or passes connections
// before the first configuration.
func TestXDS(t *testing.T) { overStores(t, testXDS, "snapshot", "pooled:ondemand") }

func testXDS(t *testing.T, store string) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	path := filepath.Join(t.TempDir(), "xds")
	dir := testCgroup(t)
	s := newSubject(t, Options{XDS: "unix:" + path, CgroupDir: dir, Fail: FailClosed, Store: store}, 0)
	if r := s.ready(t); r.XDS != "unix:"+path || r.Services != 0 || r.Store != store || r.Fail != FailClosed {
		t.Errorf("ready: %+v", r)
	}
	c := newClient(t, dir)
	refused := counted("connect: connection refused", 1)
	c.ask(t, request{Do: "tcp", To: a}).want(t, none, none, refused) // a has a server: the data plane refuses
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6,
		To: netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())}).want(t, none, none, refused)
	c.ask(t, request{Do: "udp", To: a}).want(t, none, none, counted("send: connection refused", 1))
	if line := s.log(t); !strings.Contains(line, "never connected") {
		t.Error(line)
	}

	p := controlPlane(t, path)
	tells(t, p, a)
	reaches := func(to netip.AddrPort) {
		t.Helper()
		eventually(t, "connections go to "+to.String(),
			func() bool { return c.ask(t, request{Do: "tcp", To: service4}).Banners[to.String()] == 1 })
	}
	reaches(a)
	c.ask(t, request{Do: "tcp", To: b}).want(t, counted(b, 1), counted(b, 1), none) // no longer closed
	tells(t, p, b)
	reaches(b)
	for line, connected := "", false; line != placedLine || !connected; line = s.log(t) {
		connected = connected || strings.HasSuffix(line, ": connected")
	}
	if err := s.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if line := s.log(t); !strings.Contains(line, "control plane says what is served") {
		t.Error(line)
	}

	p.Close() // the last configuration stays
	for line := ""; !strings.Contains(line, ": stale: "); line = s.log(t) {
	}
	c.ask(t, request{Do: "tcp", To: service4, N: 5}).want(t, counted(b, 5), counted(service4, 5), none)
	again := controlPlane(t, path) // and another control plane changes it
	tells(t, again, a)
	reaches(a)
	s.in.Close()
	for line := ""; !strings.HasPrefix(line, "totals: "); line = s.log(t) {
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// TestFailOpen: without a control plane connections are left unchanged.
func TestFailOpen(t *testing.T) {
	a := tcpServer(t, "127.0.0.1:0")
	dir := testCgroup(t)
	s := newSubject(t, Options{XDS: "unix:" + filepath.Join(t.TempDir(), "nobody"), CgroupDir: dir}, 0)
	s.ready(t)
	newClient(t, dir).ask(t, request{Do: "tcp", To: a}).want(t, counted(a, 1), counted(a, 1), none)
}

// resourcesOf returns what a mesh file sends to every node.
func resourcesOf(t *testing.T, file string) controlplane.Resources {
	t.Helper()
	m, err := proxyconfig.Parse("test", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Shared()
	if err != nil {
		t.Fatal(err)
	}
	return r
}
