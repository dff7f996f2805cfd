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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/process"
	envoytest "tare/test/envoy"
	"tare/test/istiodtest"
)

// testVariable enables the tests that need istiod and Envoy: make istiod-test sets it. If it is set, they fail if
// either is missing.
const testVariable = "TARE_ISTIOD_TEST"

const (
	workload = "127.0.0.9"
	node     = "sidecar~" + workload + "~web.default~default.svc.cluster.local"
)

// sidecar is the workload of an Envoy.
type sidecar struct {
	node    string // the app label that policies select
	app     string // the socket that serves its certificates
	secrets string // the socket where it has its certificates
}

// bootstrap makes the bootstrap of an Envoy as a sidecar without redirection: it listens at the addresses of services.
func bootstrap(xds, variant, admin string, of sidecar) string {
	host, port, _ := net.SplitHostPort(xds)
	adminHost, adminPort, _ := net.SplitHostPort(admin)
	return fmt.Sprintf(`{
"node": {"id": %q, "cluster": "web.default", "metadata": {"ISTIO_VERSION": %q, "CLUSTER_ID": "tare",
  "NAMESPACE": "default", "INTERCEPTION_MODE": "NONE", "LABELS": {"app": %q}}},
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
     {"address": {"pipe": {"path": %q}}}}]}]}}]}
}`, of.node, Version, of.app, adminHost, adminPort, variant, host, port, of.secrets)
}

// envoy is a running Envoy.
type envoy struct {
	admin string
	child.Process
}

func startEnvoy(t *testing.T, xds, variant string, of sidecar) *envoy {
	t.Helper()
	binary, err := filepath.Abs(envoytest.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	ports, err := process.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	e := &envoy{admin: ports[0]}
	dir := t.TempDir()
	file := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(file, []byte(bootstrap(xds, variant, e.admin, of)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := child.Command{Dir: dir, Argv: []string{binary, "-c", file, "--concurrency", "1", "--disable-hot-restart",
		"--log-level", "warning"}}
	err = child.Start(&e.Process, cmd, child.Options{Name: "Envoy", Stop: unix.SIGTERM, Grace: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, page := range []string{"/listeners", "/clusters", "/stats?filter=rejected"} {
				t.Logf("Envoy's %s:\n%s", page, e.page(page))
			}
		}
		e.Stop()
		if t.Failed() {
			t.Logf("Envoy said:\n%s", e.Tail())
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

// page returns a page of Envoy's admin interface.
func (e *envoy) page(path string) string {
	r, err := http.Get("http://" + e.admin + path)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

// stats returns Envoy's counters whose names match.
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

// named starts a server that sends its name on each connection, or answers HTTP requests with it.
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
				go func() { // reads what the caller sent: closing with unread data would send a reset, which can overtake the name
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(time.Minute))
					if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
						_, _ = io.WriteString(c, name)
					}
				}()
			}
		}()
		t.Cleanup(func() { l.Close() })
	}
	return netip.MustParseAddrPort(l.Addr().String())
}

// dial connects to a server, from a given address of this machine if from is not empty, and returns what the server
// sends.
func dial(to netip.AddrPort, from string) string {
	d := net.Dialer{Timeout: 20 * time.Second}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, "hello\n") // Envoy decides at the caller's first byte
	text, _ := io.ReadAll(c)
	return string(text)
}

// get returns a server's answer to one request.
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

// TestIstiodEnvoy: a real Envoy accepts all that istiod sends, in both variants of the protocol, and acts on it.
func TestIstiodEnvoy(t *testing.T) {
	if os.Getenv(testVariable) == "" {
		t.Skip("make istiod-test runs it")
	}
	// Istio's own build of Envoy has the filter istio.alpn, others do not. Nothing provides certificates, for which
	// Envoy would wait, so no cluster and no listener may use any.
	i, err := Start(context.Background(), Options{
		Mesh: "enableAutoMtls: false\n", Environment: []string{"PILOT_ENABLE_ALPN_FILTER=false"},
	})
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
		ports, err := process.FreeAddresses(1)
		if err != nil {
			t.Fatal(err)
		}
		return netip.MustParseAddrPort(ports[0]).Port()
	}
	a, b := named(t, "a", false), named(t, "b", false)
	x, y := named(t, "x", true), named(t, "y", true)
	tcp := istiodtest.Service{Name: "tcp", Address: netip.AddrPortFrom(netip.MustParseAddr("127.96.0.1"), port()),
		Protocol:  "TCP",
		Endpoints: []netip.AddrPort{a, b}}
	web := istiodtest.Service{Name: "http", Address: netip.AddrPortFrom(netip.MustParseAddr("127.96.0.2"), port()),
		Protocol:  "HTTP",
		Endpoints: []netip.AddrPort{x, y}}
	own := netip.AddrPortFrom(netip.MustParseAddr(workload), port())
	listening := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: default}
spec:
  ingress: [{port: {number: %d, protocol: TCP, name: own}, bind: %s, defaultEndpoint: "127.0.0.1:%d"}]
  egress: [{hosts: ["*/*"]}]
`, own.Port(), workload, a.Port())
	put := func(file string, objects ...string) {
		t.Helper()
		istiodtest.Put(t, i.Dir, file+".yaml", strings.Join(objects, "---\n"))
	}
	put("tcp", tcp.Entry())
	put("http", web.Entry())
	put("own", listening)
	put("plain", `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: plain, namespace: default}
spec: {mtls: {mode: DISABLE}}
`)
	defer func() {
		for _, file := range []string{"tcp", "http", "own", "plain"} {
			_ = os.Remove(filepath.Join(i.Dir, file+".yaml"))
		}
	}()
	e := startEnvoy(t, i.XDS, variant, sidecar{node: node, app: "web", secrets: "./nobody"})
	both := func(what string, ask func() string, one, other string) {
		t.Helper()
		got := map[string]int{}
		eventually(t, what, func() bool { got[ask()]++; return got[one] > 0 && got[other] > 0 })
	}
	local := func(s istiodtest.Service) netip.AddrPort { // where Envoy listens for a service without redirection
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), s.Address.Port())
	}
	overTCP := func() string { return dial(local(tcp), "") }
	overHTTP := func() string { return get(local(web), web.Host()) }
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

	put("own", listening, istiodtest.Policy(`{from: [{source: {ipBlocks: [127.0.1.0/24]}}]}`))
	eventually(t, "who is not allowed is denied", func() bool { return dial(own, "127.0.2.1") == "" })
	eventually(t, "who is allowed is let in", func() bool { return dial(own, "127.0.1.1") == "a" })

	// Services are added, changed and removed while requests and connections go to others.
	stop := underLoad(t, map[string]func() string{"TCP": overTCP, "HTTP": overHTTP})
	more := istiodtest.Service{Name: "more", Address: netip.AddrPortFrom(netip.MustParseAddr("127.96.0.3"), port()),
		Protocol:  "TCP",
		Endpoints: []netip.AddrPort{a}}
	overMore := func() string { return dial(local(more), "") }
	put("more", more.Entry())
	eventually(t, "a service comes", func() bool { return overMore() == "a" })
	more.Endpoints = []netip.AddrPort{b}
	put("more", more.Entry())
	eventually(t, "it changes", all(overMore, "b"))
	if err := os.Remove(filepath.Join(i.Dir, "more.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it goes", func() bool { return overMore() == "" })
	t.Logf("%s: served meanwhile: %v", variant, stop())

	for name, n := range e.stats(t, "update_rejected") {
		if n > 0 {
			t.Errorf("Envoy has refused: %s %d", name, n)
		}
	}
	taken := e.stats(t, "(lds|cds).update_success")
	if len(taken) < 2 {
		t.Errorf("Envoy says of what it has taken only %v", taken)
	}
	t.Logf("%s: taken %v", variant, taken)
	eventually(t, "istiod has an acknowledgement of all that it sent", func() bool {
		n, err := i.acknowledged()
		if err != nil {
			t.Fatal(err)
		}
		return n >= 4 // clusters, endpoints, listeners and routes
	})
}

// underLoad calls the functions in asks repeatedly until the function that it returns is called. That function returns
// how often each has returned an answer. An empty answer fails the test.
func underLoad(t *testing.T, asks map[string]func() string) func() map[string]int {
	stop, done := make(chan struct{}), make(chan struct{})
	served := map[string]int{}
	go func() {
		defer close(done)
		for {
			for what, ask := range asks {
				select {
				case <-stop:
					return
				default:
				}
				if ask() == "" {
					t.Errorf("%s was not served while other services changed, after %d that were", what, served[what])
					return
				}
				served[what]++
			}
		}
	}()
	end := sync.OnceFunc(func() { close(stop); <-done })
	t.Cleanup(end) // in case the test ends first
	return func() map[string]int {
		end()
		return served
	}
}

// acknowledged returns for how many types istiod has sent something to its one proxy, if the proxy has acknowledged
// the latest of each; otherwise 0.
func (i *Istiod) acknowledged() (kinds int, err error) {
	r, err := http.Get("http://" + i.HTTP + "/debug/syncz")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	var proxies []struct {
		Resources map[string]struct{ Sent, Acked string }
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&proxies); err != nil {
		return 0, fmt.Errorf("reading how istiod's proxies stand: %w", err)
	}
	for _, p := range proxies {
		for _, of := range p.Resources {
			if of.Sent != of.Acked {
				return 0, nil
			}
			kinds++
		}
	}
	return kinds, nil
}
