package istiod

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	envoytest "tare/test/envoy"
)

// testVariable asks for the tests that need istiod and Envoy: make istiod-test sets it. Once asked for, they fail where
// either is missing.
const testVariable = "TARE_ISTIOD_TEST"

const (
	workload = "127.0.0.9"
	node     = "sidecar~" + workload + "~web.default~default.svc.cluster.local"
)

// bootstrap is Envoy's, as a sidecar that nothing is redirected to: it listens at the addresses of services.
func bootstrap(xds, variant, admin string) string {
	host, port, _ := net.SplitHostPort(xds)
	adminHost, adminPort, _ := net.SplitHostPort(admin)
	return fmt.Sprintf(`{
"node": {"id": %q, "cluster": "web.default",
  "metadata": {"ISTIO_VERSION": %q, "CLUSTER_ID": "tare", "NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"}},
"admin": {"address": {"socket_address": {"address": %q, "port_value": %s}}},
"dynamic_resources": {"cds_config": {"ads": {}, "resource_api_version": "V3"},
  "lds_config": {"ads": {}, "resource_api_version": "V3"},
  "ads_config": {"api_type": %q, "transport_api_version": "V3",
    "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]}},
"static_resources": {"clusters": [
  {"name": "xds-grpc", "type": "STATIC", "connect_timeout": "5s",
   "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
     "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
     "explicit_http_config": {"http2_protocol_options": {}}}},
   "load_assignment": {"cluster_name": "xds-grpc", "endpoints": [{"lb_endpoints": [{"endpoint":
     {"address": {"socket_address": {"address": %q, "port_value": %s}}}}]}]}},
  {"name": "sds-grpc", "type": "STATIC", "connect_timeout": "1s",
   "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
     "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
     "explicit_http_config": {"http2_protocol_options": {}}}},
   "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [{"endpoint":
     {"address": {"pipe": {"path": "./nobody"}}}}]}]}}]}
}`, node, Version, adminHost, adminPort, variant, host, port)
}

// envoy is a running Envoy.
type envoy struct {
	admin string
	log   tail
}

func startEnvoy(t *testing.T, xds, variant string) *envoy {
	t.Helper()
	binary, err := filepath.Abs(envoytest.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	ports, err := free(1)
	if err != nil {
		t.Fatal(err)
	}
	e := &envoy{admin: ports[0]}
	dir := t.TempDir()
	file := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(file, []byte(bootstrap(xds, variant, e.admin)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = &e.log, &e.log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("Envoy said:\n%s", e.log.String())
		}
	})
	eventually(t, "Envoy has its first configuration", func() bool {
		r, err := http.Get("http://" + e.admin + "/ready")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return e
}

// stats are Envoy's counters whose names match.
func (e *envoy) stats(t *testing.T, filter string) map[string]int64 {
	t.Helper()
	r, err := http.Get("http://" + e.admin + "/stats?filter=" + filter)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	all := map[string]int64{}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		if name, text, ok := strings.Cut(lines.Text(), ": "); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				all[name] = n
			}
		}
	}
	return all
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after two minutes", what)
		}
	}
}

// named is a server that says its name to whoever connects, or asks by HTTP.
func named(t *testing.T, name string, overHTTP bool) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if overHTTP {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	} else {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, name)
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close() })
	}
	return netip.MustParseAddrPort(l.Addr().String())
}

// dial is what a server says to one connection, from an address of this machine if one is given.
func dial(to netip.AddrPort, from string) string {
	d := net.Dialer{Timeout: 5 * time.Second}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, "hello\n") // Envoy judges at the first byte of the caller
	text, _ := io.ReadAll(c)
	return string(text)
}

// get is what a server says to one request.
func get(to netip.AddrPort, host string) string {
	q, err := http.NewRequest(http.MethodGet, "http://"+to.String()+"/", nil)
	if err != nil {
		return ""
	}
	q.Host = host
	q.Close = true
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

// TestIstiodEnvoy: the real Envoy takes all that istiod says, by both variants of the protocol, and does it.
func TestIstiodEnvoy(t *testing.T) {
	if os.Getenv(testVariable) == "" {
		t.Skip("make istiod-test runs it")
	}
	i, err := Start(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, variant := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(variant, func(t *testing.T) { testEnvoy(t, i, variant) })
	}
	if t.Failed() {
		t.Logf("istiod said last:\n%s", i.Tail())
	}
}

func testEnvoy(t *testing.T, i *Istiod, variant string) {
	port := func() uint16 {
		ports, err := free(1)
		if err != nil {
			t.Fatal(err)
		}
		return netip.MustParseAddrPort(ports[0]).Port()
	}
	a, b := named(t, "a", false), named(t, "b", false)
	x, y := named(t, "x", true), named(t, "y", true)
	tcp := Service{"tcp", netip.AddrPortFrom(netip.MustParseAddr("127.96.0.1"), port()), "TCP", []netip.AddrPort{a, b}}
	web := Service{"http", netip.AddrPortFrom(netip.MustParseAddr("127.96.0.2"), port()), "HTTP", []netip.AddrPort{x, y}}
	own := netip.AddrPortFrom(netip.MustParseAddr(workload), port())
	sidecar := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: default}
spec:
  ingress: [{port: {number: %d, protocol: TCP, name: own}, bind: %s, defaultEndpoint: "127.0.0.1:%d"}]
  egress: [{hosts: ["*/*"]}]
`, own.Port(), workload, a.Port())
	put := func(file string, objects ...string) {
		t.Helper()
		if err := i.Put(file+".yaml", strings.Join(objects, "---\n")); err != nil {
			t.Fatal(err)
		}
	}
	put("tcp", tcp.Entry())
	put("http", web.Entry())
	put("own", sidecar)
	defer func() {
		for _, file := range []string{"tcp", "http", "own"} {
			_ = i.Remove(file + ".yaml")
		}
	}()
	e := startEnvoy(t, i.XDS, variant)
	both := func(what string, ask func() string, one, other string) {
		t.Helper()
		got := map[string]int{}
		eventually(t, what, func() bool { got[ask()]++; return got[one] > 0 && got[other] > 0 })
	}
	overTCP := func() string { return dial(tcp.Address, "") }
	local := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), web.Address.Port()) // where Envoy has it without redirection
	overHTTP := func() string { return get(local, web.Host()) }
	both("TCP goes to both", overTCP, "a", "b")
	both("HTTP goes to both", overHTTP, "x", "y")
	all := func(ask func() string, want string) func() bool {
		return func() bool {
			for range 10 {
				if ask() != want {
					return false
				}
			}
			return true
		}
	}
	put("tcp", tcp.Weighted(100))
	put("http", web.Weighted(0))
	eventually(t, "TCP goes to v1 alone", all(overTCP, "a"))
	eventually(t, "HTTP goes to v2 alone", all(overHTTP, "y"))
	put("tcp", tcp.Weighted(50))
	both("TCP goes to both again", overTCP, "a", "b")

	put("own", sidecar, Policy(`{from: [{source: {ipBlocks: [127.0.1.0/24]}}]}`))
	eventually(t, "who is not allowed is denied", func() bool { return dial(own, "127.0.2.1") == "" })
	eventually(t, "who is allowed is let in", func() bool { return dial(own, "127.0.1.1") == "a" })

	more := Service{"more", netip.AddrPortFrom(netip.MustParseAddr("127.96.0.3"), port()), "TCP", []netip.AddrPort{a}}
	put("more", more.Entry())
	eventually(t, "a service comes", func() bool { return dial(more.Address, "") == "a" })
	if err := i.Remove("more.yaml"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it goes", func() bool { return dial(more.Address, "") == "" })

	for name, n := range e.stats(t, "update_rejected") {
		if n > 0 {
			t.Errorf("Envoy has refused: %s %d", name, n)
		}
	}
	taken := e.stats(t, "(lds|cds).update_success")
	if len(taken) < 2 {
		t.Errorf("Envoy says of what it has taken only %v", taken)
	}
	acks, err := i.acknowledged(node)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: taken %v; istiod: %s", variant, taken, acks)
}

// acknowledged is what istiod says of how a proxy stands.
func (i *Istiod) acknowledged(id string) (string, error) {
	r, err := http.Get("http://" + i.HTTP + "/debug/syncz")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	var v any
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&v); err != nil {
		return "", fmt.Errorf("reading istiod's state of %s: %w", id, err)
	}
	text, err := json.Marshal(v)
	return string(text), err
}
