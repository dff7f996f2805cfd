package ads

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh/controlplane/bootstrap"
	envoytest "tare/test/envoy"
)

// plane is a server at a fixed address that records its responses and their answers.
type plane struct {
	t       *testing.T
	address string
	server  *Server
	grpc    *grpc.Server
	ended   chan error

	mu  sync.Mutex
	log []line
}

// line is one response or one answer.
type line struct {
	at     time.Duration
	sent   Sent
	answer Answer
}

func (l line) String() string {
	if l.sent.TypeURL != "" {
		s := l.sent
		return fmt.Sprintf("%8.3f -> %s %s: %d, %d removed", l.at.Seconds(), short(s.TypeURL), s.Nonce, s.Resources,
			s.Removed)
	}
	return fmt.Sprintf("%8.3f <- %s %s %s", l.at.Seconds(), short(l.answer.TypeURL), l.answer.Nonce, l.answer.Refused)
}

func short(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }

var started = time.Now()

func (p *plane) start(view View) {
	p.t.Helper()
	if p.address == "" {
		p.address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = l.Addr().String()
	note := func(l line) {
		p.mu.Lock()
		defer p.mu.Unlock()
		l.at = time.Since(started)
		p.log = append(p.log, l)
	}
	p.server = New(Options{OnSent: func(s Sent) { note(line{sent: s}) },
		OnAnswer: func(a Answer) { note(line{answer: a}) }})
	p.server.Set("", view)
	p.grpc, p.ended = grpc.NewServer(ServerOptions(nil)...), make(chan error, 1)
	p.server.Register(p.grpc)
	go func() { p.ended <- p.grpc.Serve(l) }()
}

func (p *plane) stop() {
	p.t.Helper()
	p.grpc.Stop()
	p.server.Wait()
	if err := <-p.ended; err != nil {
		p.t.Error(err)
	}
}

// lines returns the responses and answers after the first n.
func (p *plane) lines(n int) []line {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log[n:])
}

func (p *plane) text(n int) string {
	var b strings.Builder
	for _, l := range p.lines(n) {
		b.WriteString("\n\t" + l.String())
	}
	return b.String()
}

// count returns the number of lines after the first n for which holds(line) is true.
func (p *plane) count(n int, holds func(line) bool) (found int) {
	for _, l := range p.lines(n) {
		if holds(l) {
			found++
		}
	}
	return found
}

// patience is longer than any wait of these tests: it only ends a test that would hang.
const patience = time.Minute

// until waits until ok returns true.
func (p *plane) until(n int, what string, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("never: %s; %s", what, p.text(n))
		}
	}
}

// took waits until responses of all the given types have been accepted. It fails the test if any response is refused.
func (p *plane) took(n int, urls ...string) {
	p.t.Helper()
	for _, url := range urls {
		p.until(n, short(url)+" taken", func() bool {
			if p.count(n, func(l line) bool { return l.answer.Refused != "" }) > 0 {
				p.t.Fatalf("refused: %s", p.text(n))
			}
			return p.count(n, func(l line) bool { return l.answer.TypeURL == url }) > 0
		})
	}
}

// envoy is a real Envoy, which runs until the test ends.
type envoy struct {
	t     *testing.T
	admin string
}

func startEnvoy(t *testing.T, plane string, delta bool) *envoy {
	t.Helper()
	binary, dir := envoytest.Path(t), t.TempDir()
	config, err := bootstrap.Envoy{Node: "envoy", Cluster: "test", ControlPlane: plane, StateOfTheWorld: !delta}.JSON()
	if err != nil {
		t.Fatal(err)
	}
	file, at := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := exec.Command(binary, "-c", file, "--concurrency", "1", "--disable-hot-restart",
		"--log-level", "warning", "--admin-address-path", at)
	c.Stdout, c.Stderr = &log, &log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() || os.Getenv("TARE_ENVOY_LOG") != "" {
			t.Logf("Envoy says:\n%s", &log)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(at); err == nil && len(b) > 0 {
			return &envoy{t, strings.TrimSpace(string(b))}
		}
		if time.Now().After(deadline) {
			t.Fatal("Envoy does not start")
		}
	}
}

// get requests a path of Envoy's admin interface.
func (e *envoy) get(path string) string {
	e.t.Helper()
	r, err := http.Get("http://" + e.admin + path)
	if err != nil {
		e.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(b)
}

// stat returns the value of a counter or gauge of Envoy's; -1: there is none of that name.
func (e *envoy) stat(name string) int {
	e.t.Helper()
	_, value, found := strings.Cut(e.get("/stats?filter=^"+regexp.QuoteMeta(name)+"$"), ": ")
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if !found || err != nil {
		return -1
	}
	return n
}

// listening returns the addresses of Envoy's listeners, by name.
func (e *envoy) listening() map[string]string {
	e.t.Helper()
	var all struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(e.get("/listeners?format=json")), &all); err != nil {
		e.t.Fatal(err)
	}
	m := map[string]string{}
	for _, l := range all.Statuses {
		m[l.Name] = fmt.Sprintf("%s:%d", l.Address.Socket.Address, l.Address.Socket.Port)
	}
	return m
}

// neverWaited checks that Envoy initialized nothing only because a time limit expired. The clusters must exist.
func (e *envoy) neverWaited(clusters ...string) {
	e.t.Helper()
	all := e.get("/stats?filter=init_fetch_timeout$")
	for _, name := range clusters {
		if !strings.Contains(all, "cluster."+name+".init_fetch_timeout: ") {
			e.t.Errorf("there is no cluster %s: %s", name, all)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(all), "\n") {
		if !strings.HasSuffix(line, ": 0") {
			e.t.Error(line)
		}
	}
}

// resources makes a view of messages.
func resources(t testing.TB, messages ...proto.Message) View {
	t.Helper()
	lists, v := map[string][]*Resource{}, View{Tables: map[string]*Table{}}
	for _, m := range messages {
		r, err := encoder.Resource(m)
		if err != nil {
			t.Fatal(err)
		}
		lists[TypeURL(m)] = append(lists[TypeURL(m)], r)
	}
	for url, list := range lists {
		table, err := NewTable(list)
		if err != nil {
			t.Fatal(err)
		}
		v.Tables[url] = table
	}
	return v
}

var overADS = &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
	ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}

func cluster(name string, most uint32) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
			{MaxConnections: wrapperspb.UInt32(most)}}}}
}

func endpoint(name, address string) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: socket(address)}}}}}}}
}

func socket(address string) *corev3.Address {
	host, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)}}}}
}

// place returns a separate address for each listener, with any port: listeners with the same address would share a
// socket.
func place(name string) string {
	return fmt.Sprintf("127.0.1.%d:0", 1+slices.Index([]string{"tcp", "http", "good", "bad"}, name))
}

func filter(t testing.TB, name string, m proto.Message) *listenerv3.Filter {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: a}}
}

func tcpListener(t testing.TB, name, cluster string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, Address: socket(place(name)), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{filter(t, "tcp", &tcpproxyv3.TcpProxy{StatPrefix: name,
			ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}})}}}}
}

// httpListener makes a listener that gets its routes from the route configuration route.
func httpListener(t testing.TB, name, route, server string) *listenerv3.Listener {
	router, err := anypb.New(&routerv3.Router{})
	if err != nil {
		t.Fatal(err)
	}
	h := &hcmv3.HttpConnectionManager{StatPrefix: name, ServerName: server,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{RouteConfigName: route, ConfigSource: overADS}},
		HttpFilters: []*hcmv3.HttpFilter{
			{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router}}}}
	return &listenerv3.Listener{Name: name, Address: socket(place(name)), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{filter(t, "http", h)}}}}
}

// route makes a route configuration that sends everything to a cluster.
func route(name, cluster string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{
		Name: "all", Domains: []string{"*"},
		Routes: []*routev3.Route{{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}}}}}}}
}

// backend starts a server that answers with its name.
func backend(t *testing.T, name string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// client opens a new connection for each request, because existing connections keep the old configuration.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

// ask returns a response's body, its status and its Server header, separated by spaces.
func ask(url string) string {
	r, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(string(b), " ", r.StatusCode, " ", r.Header.Get("server"))
}

// TestEnvoy: a real Envoy accepts what it is sent, in both variants, refuses invalid resources once, and never waits
// for a time limit.
func TestEnvoy(t *testing.T) {
	envoytest.Path(t)
	t.Parallel()
	both(t, func(t *testing.T, delta bool) {
		t.Parallel()
		one, two := backend(t, "one"), backend(t, "two")
		base := []proto.Message{cluster("a", 7), cluster("b", 7), endpoint("a", one), endpoint("b", two),
			tcpListener(t, "tcp", "a"), httpListener(t, "http", "r", "x"), route("r", "b")}
		with := func(more ...proto.Message) View { return resources(t, append(slices.Clone(base), more...)...) }
		p := &plane{t: t}
		p.start(with())
		defer func() { p.stop() }()
		defer func() { t.Log(p.text(0)) }()
		e := startEnvoy(t, p.address, delta)
		p.took(0, ClusterType, EndpointType, ListenerType, RouteType)
		says := func(n int, listener, want string) {
			t.Helper()
			said := ""
			defer func() {
				if said != want {
					t.Errorf("%s says %s", listener, said)
				}
			}()
			p.until(n, listener+" says "+want, func() bool {
				said = ask("http://" + e.listening()[listener])
				return said == want
			})
		}
		says(0, "tcp", "one 200 ")
		says(0, "http", "two 200 x")
		// First only a cluster changes, then only a listener. What depends on the changed resource is sent once more, so
		// that Envoy does not wait for a time limit.
		n := len(p.lines(0))
		base[0] = cluster("a", 8)
		p.server.Set("", with())
		p.until(n, "the new threshold", func() bool {
			return strings.Contains(e.get("/clusters"), "a::default_priority::max_connections::8")
		})
		p.took(n, ClusterType)
		n = len(p.lines(0))
		base[5] = httpListener(t, "http", "r", "y")
		p.server.Set("", with())
		says(n, "http", "two 200 y")
		p.took(n, ListenerType)
		// A view has valid and invalid resources: the valid ones are accepted, and the invalid ones refused once.
		n = len(p.lines(0))
		bad := tcpListener(t, "bad", "a")
		bad.FilterChains[0].Filters[0].GetTypedConfig().Value = []byte{0xff}
		worse := cluster("worse", 1)
		// ORIGINAL_DST is not allowed with ROUND_ROBIN.
		worse.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		base[6] = route("r", "a")
		p.server.Set("", with(bad, worse, cluster("c", 1), endpoint("c", one), tcpListener(t, "good", "c")))
		says(n, "good", "one 200 ")
		says(n, "http", "one 200 y")
		refused := func() int { return p.count(n, func(l line) bool { return l.answer.Refused != "" }) }
		p.until(n, "two refusals", func() bool { return refused() == 2 })
		time.Sleep(2 * time.Second)
		if refused() != 2 {
			t.Errorf("%d refusals: %s", refused(), p.text(n))
		}
		// Once corrected, both are sent.
		n = len(p.lines(0))
		p.server.Set("", with(tcpListener(t, "bad", "worse"), cluster("worse", 1), endpoint("worse", two),
			cluster("c", 1),
			endpoint("c", one), tcpListener(t, "good", "c")))
		says(n, "bad", "two 200 ")
		p.took(n, ClusterType, ListenerType)
		// A control plane that restarts with the same resources does not make Envoy rebuild any. Then it changes one.
		n = len(p.lines(0))
		view := with(tcpListener(t, "good", "c"), cluster("c", 1), endpoint("c", one))
		p.server.Set("", view)
		p.until(n, "fewer listeners", func() bool { return len(e.listening()) == 3 })
		p.took(n, ListenerType, ClusterType)
		updated := e.stat("cluster_manager.cluster_modified")
		p.stop()
		n = len(p.lines(0))
		p.start(view)
		p.took(n, ClusterType)
		base[3] = endpoint("b", one)
		base[1] = cluster("b", 9)
		p.server.Set("", with())
		p.until(n, "the new threshold", func() bool {
			return strings.Contains(e.get("/clusters"), "b::default_priority::max_connections::9")
		})
		p.until(n, "fewer clusters", func() bool { return !strings.Contains(e.get("/clusters"), "\nc::") })
		if again := e.stat("cluster_manager.cluster_modified"); again != updated+1 {
			t.Errorf("%d clusters were made anew, not 1: %s", again-updated, p.text(n))
		}
		e.neverWaited("a", "b")
	})
}

// secrets makes a certificate of a new authority, as "identity", and the authority's certificate, as "roots".
func secrets(t testing.TB) (identity, roots *tlsv3.Secret) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	source := func(kind string, b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{
			InlineBytes: pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})}}
	}
	chain := source("CERTIFICATE", der)
	return &tlsv3.Secret{Name: "identity", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: chain, PrivateKey: source("PRIVATE KEY", private)}}},
		&tlsv3.Secret{Name: "roots", Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: chain}}}
}

func transport(t testing.TB, m proto.Message) *corev3.TransportSocket {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: a}}
}

// secured makes a cluster use TLS and trust the roots in the given secret.
func secured(t testing.TB, c *clusterv3.Cluster, roots string) *clusterv3.Cluster {
	c.TransportSocket = transport(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: roots, SdsConfig: overADS}}}})
	return c
}

// TestEnvoySecrets: resources that use secrets change without waiting for the secrets, and secrets change without
// waiting for those resources.
func TestEnvoySecrets(t *testing.T) {
	envoytest.Path(t)
	t.Parallel()
	both(t, func(t *testing.T, delta bool) {
		t.Parallel()
		identity, roots := secrets(t)
		listener := func(prefix string) *listenerv3.Listener {
			l := tcpListener(t, "bad", "a")
			l.StatPrefix = prefix
			l.FilterChains[0].TransportSocket = transport(t, &tlsv3.DownstreamTlsContext{
				CommonTlsContext: &tlsv3.CommonTlsContext{
					TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "identity", SdsConfig: overADS}}}})
			return l
		}
		one := backend(t, "one")
		p := &plane{t: t}
		base := []proto.Message{cluster("a", 1), endpoint("a", one), identity, roots, listener("x")}
		p.start(resources(t, base...))
		defer func() { p.stop() }()
		defer func() { t.Log(p.text(0)) }()
		e := startEnvoy(t, p.address, delta)
		p.took(0, ListenerType, SecretType)
		p.until(0, "the listener", func() bool { return e.listening()["bad"] != "" })
		address := e.listening()["bad"]
		said := ""
		says := func(n int, want string) {
			p.until(n, want, func() bool {
				said = ask("http://" + e.listening()["tcp"])
				return said == want
			})
		}
		n := len(p.lines(0))
		base = append(base, secured(t, cluster("t", 1), "roots"), endpoint("t", address), tcpListener(t, "tcp", "t"))
		p.server.Set("", resources(t, base...))
		says(n, "one 200 ")
		// The cluster is rebuilt while its secret stays, and another cluster uses the same secret.
		n = len(p.lines(0))
		base[5] = secured(t, cluster("t", 2), "roots")
		base = append(base, secured(t, cluster("u", 2), "roots"), endpoint("u", address))
		p.server.Set("", resources(t, base...))
		p.until(n, "the new thresholds", func() bool {
			all := e.get("/clusters")
			return strings.Contains(all, "t::default_priority::max_connections::2") &&
				strings.Contains(all, "u::default_priority::max_connections::2")
		})
		p.took(n, ClusterType, EndpointType)
		says(n, "one 200 ")
		n = len(p.lines(0))
		base[4] = listener("y")
		p.server.Set("", resources(t, base...))
		p.took(n, ListenerType)
		says(n, "one 200 ")
		// A new certificate, by a new authority.
		n = len(p.lines(0))
		base[2], base[3] = secrets(t)
		p.server.Set("", resources(t, base...))
		p.took(n, SecretType)
		says(n, "one 200 ")
		more := func(l line) bool { return l.sent.TypeURL != "" && l.sent.TypeURL != SecretType }
		if p.count(n, more) > 0 {
			t.Errorf("more than the secrets was told: %s", p.text(n))
		}
		e.neverWaited("t", "u", "a")
		// A data plane that needs a secret that does not exist is notified, where the variant allows it, and what waits
		// for the secret delays nothing else for long.
		n = len(p.lines(0))
		base = append(base, secured(t, cluster("v", 2), "missing"), endpoint("v", address), tcpListener(t, "good", "a"))
		p.server.Set("", resources(t, base...))
		p.until(n, "the other listener", func() bool { return e.listening()["good"] != "" })
		if delta {
			p.took(n, SecretType)
		}
		e.neverWaited("v")
	})
}
