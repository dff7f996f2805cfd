package authority

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh/controlplane/bootstrap"
	envoytest "tare/test/envoy"
)

// meshServer is a control plane of the tests: go-control-plane's cache, which sends each node its own resources only,
// behind the authority's TLS.
type meshServer struct {
	t       *testing.T
	a       *Authority
	cache   cache.SnapshotCache
	address string
	stop    func()

	mu       sync.Mutex
	serial   map[string]string // of the certificate of each node's last stream
	streams  int
	refusals []string
	static   map[string]map[resource.Type][]types.Resource
	version  int
}

type byNode struct{}

func (byNode) ID(n *corev3.Node) string { return n.GetId() }

func newMeshServer(t *testing.T, a *Authority) *meshServer {
	quiet := log.LoggerFuncs{}
	return &meshServer{
		t: t, a: a, cache: cache.NewSnapshotCache(false, byNode{}, quiet), serial: map[string]string{},
		static: map[string]map[resource.Type][]types.Resource{},
	}
}

// start starts the server at an address. It can be called again after stop.
func (m *meshServer) start(address string, accounts *ServiceAccounts) {
	m.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		m.t.Fatal(err)
	}
	m.address = l.Addr().String()
	ctx, cancel := context.WithCancel(m.t.Context())
	s := grpc.NewServer(grpc.Creds(m.a.ServerCredentials()), grpc.StreamInterceptor(m.a.RequireIdentity()))
	NewService(m.a, ServiceOptions{Accounts: accounts, Rate: 10}).Register(s)
	quiet := log.LoggerFuncs{}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &discovery{
		m: m, world: sotwv3.NewServer(ctx, m.cache, (*callbacks)(m), sotwv3.WithLogger(quiet)),
		delta: deltav3.NewServer(ctx, m.cache, (*callbacks)(m), deltav3.WithLogger(quiet)),
	})
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	m.stop = sync.OnceFunc(func() { s.Stop(); served.Wait(); cancel() })
	m.t.Cleanup(m.stop)
}

func (m *meshServer) opened(ctx context.Context) error {
	id, err := m.a.Identity(ctx)
	if err != nil {
		return err
	}
	p, _ := peer.FromContext(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams++
	m.serial[id] = p.AuthInfo.(peerInfo).proof.serial.String()
	return nil
}

// discovery is the aggregated discovery service only.
type discovery struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	m     *meshServer
	world sotwv3.Server
	delta deltav3.Server
}

func (d *discovery) StreamAggregatedResources(
	s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	if err := d.m.opened(s.Context()); err != nil {
		return err
	}
	return d.world.StreamHandler(s, resource.AnyType)
}

func (d *discovery) DeltaAggregatedResources(
	s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	if err := d.m.opened(s.Context()); err != nil {
		return err
	}
	return d.delta.DeltaStreamHandler(s, resource.AnyType)
}

// callbacks record what nodes refuse.
type callbacks meshServer

func (m *callbacks) answered(refusal string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if refusal != "" {
		m.refusals = append(m.refusals, refusal)
	}
	return nil
}

func (m *callbacks) OnStreamRequest(_ int64, r *discoveryv3.DiscoveryRequest) error {
	return m.answered(r.GetErrorDetail().GetMessage())
}

func (m *callbacks) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	return m.answered(r.GetErrorDetail().GetMessage())
}

func (*callbacks) OnStreamOpen(context.Context, int64, string) error      { return nil }
func (*callbacks) OnStreamClosed(int64, *corev3.Node)                     {}
func (*callbacks) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }
func (*callbacks) OnDeltaStreamClosed(int64, *corev3.Node)                {}
func (*callbacks) OnStreamResponse(
	context.Context, int64, *discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse,
) {
}
func (*callbacks) OnStreamDeltaResponse(
	int64, *discoveryv3.DeltaDiscoveryRequest, *discoveryv3.DeltaDiscoveryResponse,
) {
}

func (m *meshServer) counts() (streams int, serial map[string]string, refusals []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	serial = map[string]string{}
	for id, s := range m.serial {
		serial[id] = s
	}
	return m.streams, serial, m.refusals
}

// tell sets a node's resources again, with its current secrets.
func (m *meshServer) tell(id string) {
	secrets, err := m.a.Secrets(id)
	if err != nil {
		m.t.Error(err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.static[id] == nil {
		return
	}
	m.version++
	all := map[resource.Type][]types.Resource{resource.SecretType: {secrets[0], secrets[1]}}
	for kind, list := range m.static[id] {
		all[kind] = list
	}
	// Each type has its own version, so that unchanged listeners are not sent again.
	snapshot, err := cache.NewSnapshot("1", all)
	if err == nil {
		snapshot.Resources[types.Secret].Version = fmt.Sprint(m.version)
		err = m.cache.SetSnapshot(m.t.Context(), id, snapshot)
	}
	if err != nil && m.t.Context().Err() == nil {
		m.t.Error(err)
	}
}

func (m *meshServer) tellAll() {
	for _, id := range []string{webID, apiID} {
		m.tell(id)
	}
}

func fromJSON[M proto.Message](t *testing.T, m M, format string, args ...any) M {
	t.Helper()
	if err := protojson.Unmarshal([]byte(fmt.Sprintf(format, args...)), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// sidecar is an Envoy that gets its configuration from a mesh server, over a connection that it authenticates with the
// certificate that its agent keeps in a directory.
type sidecar struct {
	t     *testing.T
	id    string
	dir   string
	admin string

	renewals atomic.Int64 // of the agent's certificates
}

func (m *meshServer) sidecar(id, variant string, agent *Agent) *sidecar {
	t := m.t
	t.Helper()
	s := &sidecar{t: t, id: id, dir: t.TempDir()}
	ready := make(chan struct{})
	first := sync.OnceFunc(func() { close(ready) })
	agent.OnChange = func(c Credentials) error {
		err := c.WriteEnvoy(s.dir, bootstrap.Envoy{
			Node: id, Cluster: "test", ControlPlane: m.address, StateOfTheWorld: variant == "GRPC",
		})
		s.renewals.Add(1)
		first()
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := agent.Run(ctx); err != nil {
			t.Errorf("the agent of %s: %v", id, err)
		}
		first()
	})
	t.Cleanup(func() { cancel(); ran.Wait() })
	<-ready
	config, admin := filepath.Join(s.dir, EnvoyBootstrapFile), filepath.Join(s.dir, "admin")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("PRIVATE")) || bytes.Contains(text, []byte("inline")) {
		t.Error("the bootstrap has a key")
	}
	var output bytes.Buffer
	c := exec.Command(envoytest.Path(t), "-c", config, "--disable-hot-restart", "--concurrency", "1",
		"--admin-address-path", admin, "--log-level", "warning")
	c.Stdout, c.Stderr = &output, &output
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s: %s", id, output.String())
		}
		if strings.Contains(output.String(), "PRIVATE") {
			t.Errorf("%s shows a key", id)
		}
	})
	for s.admin == "" || s.get("/ready") != "LIVE\n" {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("Envoy has ended: %v: %s", err, output.String())
		case <-time.After(20 * time.Millisecond):
		}
		if text, err := os.ReadFile(admin); err == nil && strings.Contains(string(text), ":") {
			s.admin = "http://" + string(text)
		}
	}
	return s
}

func (s *sidecar) get(path string) string {
	r, err := http.Get(s.admin + path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// stat returns a counter or gauge of the sidecar.
func (s *sidecar) stat(name string) int {
	s.t.Helper()
	for line := range strings.Lines(s.get("/stats?filter=" + url.QueryEscape("^"+name+"$"))) {
		if _, value, ok := strings.Cut(line, ": "); ok {
			var n int
			if _, err := fmt.Sscan(value, &n); err == nil {
				return n
			}
		}
	}
	s.t.Errorf("%s has no %s", s.id, name)
	return -1
}

// listens waits for a listener and returns its address.
func (s *sidecar) listens(name string) string {
	s.t.Helper()
	for {
		var all struct {
			Listeners []struct {
				Name    string `json:"name"`
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if err := json.Unmarshal([]byte(s.get("/listeners?format=json")), &all); err != nil {
			s.t.Fatal(err)
		}
		for _, l := range all.Listeners {
			if l.Name == name {
				return fmt.Sprintf("%s:%d", l.Address.Socket.Address, l.Address.Socket.Port)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// sds refers to a secret of the control plane.
const sds = `{"name": %q, "sdsConfig": {"ads": {}, "resourceApiVersion": "V3"}}`

// common returns the TLS configuration of either side: TLS 1.3, its own certificate, and the identity that its peer
// must have.
func common(peer string) string {
	return fmt.Sprintf(`"commonTlsContext": {
		"tlsParams": {"tlsMinimumProtocolVersion": "TLSv1_3", "tlsMaximumProtocolVersion": "TLSv1_3"},
		"tlsCertificateSdsSecretConfigs": [`+sds+`],
		"combinedValidationContext": {
			"defaultValidationContext": {"matchTypedSubjectAltNames": [{"sanType": "URI", "matcher": {"exact": %q}}]},
			"validationContextSdsSecretConfig": `+sds+`}}`, IdentitySecret, peer, RootsSecret)
}

// httpListener makes a listener with routes, and with TLS if tls is not empty.
func httpListener(name, routes, tls string) string {
	if tls != "" {
		tls = `, "transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
			"requireClientCertificate": true, ` + tls + `}}`
	}
	return fmt.Sprintf(`{"name": %q, "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 0}},
		"filterChains": [{"filters": [{"name": "http", "typedConfig": {
			"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"statPrefix": %q, "forwardClientCertDetails": "SANITIZE_SET",
			"setCurrentClientCertDetails": {"cert": true, "uri": true},
			"httpFilters": [{"name": "router", "typedConfig": {
				"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
			"routeConfig": {"name": "r", "virtualHosts": [{"name": "v", "domains": ["*"], "routes": [%s]}]}
		}}]%s}]}`, name, name, routes, tls)
}

// httpCluster makes an HTTP/1.1 cluster of one endpoint, with a maximum number of requests per connection (0: no
// limit), and with TLS if tls is not empty.
func httpCluster(name, address string, requests int, tls string) string {
	if tls != "" {
		tls = `, "transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", ` + tls + `}}`
	}
	limit := ""
	if requests > 0 {
		limit = fmt.Sprintf(`"commonHttpProtocolOptions": {"maxRequestsPerConnection": %d},`, requests)
	}
	host, port, _ := net.SplitHostPort(address)
	return fmt.Sprintf(`{"name": %q, "type": "STATIC", "connectTimeout": "5s",
		"typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
			"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", %s
			"explicitHttpConfig": {"httpProtocolOptions": {}}}},
		"loadAssignment": {"clusterName": %q, "endpoints": [{"lbEndpoints": [
			{"endpoint": {"address": {"socketAddress": {"address": %q, "portValue": %s}}}}]}]}%s}`,
		name, limit, name, host, port, tls)
}

// flow is a steady flow of requests by one client, and the client certificates that the application saw.
type flow struct {
	done, failed atomic.Int64
	mu           sync.Mutex
	failure      string
	serials      map[string]bool // of the client sidecar's certificates
	issuers      map[string]bool // of these certificates, by key
}

func (f *flow) run(ctx context.Context, url string) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		f.one(client, url)
		time.Sleep(5 * time.Millisecond)
	}
}

func (f *flow) one(client *http.Client, url string) {
	r, err := client.Get(url)
	if err == nil {
		var text []byte
		text, err = io.ReadAll(r.Body)
		err = errors.Join(err, r.Body.Close())
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", r.Status, text)
		}
		if err == nil {
			serial, issuer, _ := strings.Cut(string(text), " ")
			f.mu.Lock()
			f.serials[serial], f.issuers[issuer] = true, true
			f.mu.Unlock()
		}
	}
	f.done.Add(1)
	if err != nil {
		f.failed.Add(1)
		f.mu.Lock()
		f.failure = err.Error()
		f.mu.Unlock()
	}
}

func (f *flow) seen() (serials, issuers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.serials), len(f.issuers)
}

// application answers with the client sidecar's certificate: its serial number and its issuer's key.
func application(w http.ResponseWriter, r *http.Request) {
	for part := range strings.SplitSeq(r.Header.Get("X-Forwarded-Client-Cert"), ";") {
		if value, ok := strings.CutPrefix(part, "Cert="); ok {
			text, err := url.PathUnescape(strings.Trim(value, `"`))
			block, _ := pem.Decode([]byte(text))
			if err != nil || block == nil {
				break
			}
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				_, _ = fmt.Fprintf(w, "%s %x", c.SerialNumber, c.AuthorityKeyId[:8])
				return
			}
		}
	}
	http.Error(w, "no certificate", http.StatusForbidden)
}

// TestEnvoy runs two sidecars with mutual TLS by SDS under a steady flow of requests, on kept and on new connections,
// while certificates rotate, the root is rolled over, and the control plane restarts. No request may fail, no kept
// connection may end, and new connections must use the new certificates.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.Path(t)
	var log logged
	var m *meshServer
	a := newAuthority(t, Options{
		Life: time.Minute, RenewAfter: 1.0 / 60, Log: log.add, // every second
		OnChange: func(id string) { m.tell(id) }, OnRoots: func() { m.tellAll() },
	})
	m = newMeshServer(t, a)
	accounts := newCluster(t)
	m.start("127.0.0.1:0", accounts.accounts)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = a.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	app := httptest.NewServer(http.HandlerFunc(application))
	t.Cleanup(app.Close)
	agent := func(id string) *Agent {
		return &Agent{
			Address: m.address, Identity: id, Roots: a.RootsPEM(), RenewAfter: 1.0 / 120, Log: log.add,
			ReadToken: func() (Token, error) { return accounts.token(t, id[strings.LastIndex(id, "/")+1:]), nil },
		}
	}
	m.static[apiID] = map[resource.Type][]types.Resource{
		resource.ClusterType: {
			fromJSON(t, &clusterv3.Cluster{}, "%s", httpCluster("app", app.Listener.Addr().String(), 0, "")),
		},
		resource.ListenerType: {fromJSON(t, &listenerv3.Listener{}, "%s",
			httpListener("inbound", `{"match": {"prefix": "/"}, "route": {"cluster": "app"}}`, common(webID)))},
	}
	m.tell(apiID)
	server := m.sidecar(apiID, "GRPC", agent(apiID))
	inbound := server.listens("inbound")
	m.mu.Lock()
	m.static[webID] = map[resource.Type][]types.Resource{
		resource.ClusterType: {
			fromJSON(t, &clusterv3.Cluster{}, "%s", httpCluster("kept", inbound, 0, common(apiID))),
			fromJSON(t, &clusterv3.Cluster{}, "%s", httpCluster("fresh", inbound, 1, common(apiID))),
		},
		resource.ListenerType: {fromJSON(t, &listenerv3.Listener{}, "%s", httpListener("outbound",
			`{"match": {"prefix": "/kept"}, "route": {"cluster": "kept"}},
			{"match": {"prefix": "/"}, "route": {"cluster": "fresh"}}`, ""))},
	}
	m.mu.Unlock()
	m.tell(webID)
	client := m.sidecar(webID, "DELTA_GRPC", agent(webID))
	outbound := "http://" + client.listens("outbound")
	strict(t, a, inbound)

	kept, fresh := newFlow(), newFlow()
	flows, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() { kept.run(flows, outbound+"/kept") })
	load.Go(func() { fresh.run(flows, outbound+"/fresh") })
	t.Cleanup(func() { stop(); load.Wait() })
	until := func(what string, done func() bool) {
		t.Helper()
		for begin := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("in vain: %s\n%s\n%s", what, &log, fresh.failure)
			}
		}
	}
	until("requests", func() bool { return kept.done.Load() > 10 && fresh.done.Load() > 10 })
	connections := client.stat("cluster.kept.upstream_cx_total")

	before, _ := fresh.seen()
	until("two rotations under load", func() bool { now, _ := fresh.seen(); return now >= before+2 })

	_, first, _ := m.counts()
	m.stop()
	time.Sleep(300 * time.Millisecond)
	m.start(m.address, accounts.accounts)
	until("the sidecars' return, with the certificates that their agents wrote meanwhile", func() bool {
		streams, now, _ := m.counts()
		return streams >= 4 && now[webID] != first[webID] && now[apiID] != first[apiID]
	})

	agents := func(what string) {
		t.Helper()
		clients, servers := client.renewals.Load(), server.renewals.Load()
		until("the agents have "+what, func() bool {
			return client.renewals.Load() > clients+1 && server.renewals.Load() > servers+1
		})
	}
	old := forged(t, a, func(*x509.Certificate) {})
	if err := a.Advance(false); err != nil {
		t.Fatal(err)
	}
	versions := func(n int) func() bool { return func() bool { return client.roots() == n && server.roots() == n } }
	until("both sidecars trust both roots", versions(2))
	agents("both roots")
	if err := a.Advance(true); err != nil {
		t.Fatal(err)
	}
	until("certificates of the new root", func() bool { _, issuers := fresh.seen(); return issuers == 2 })
	until("no secret of the old root", func() bool { return a.Rollover().Pending == 0 })
	agents("certificates of the new root")
	if err := a.Advance(true); err != nil {
		t.Fatal(err)
	}
	until("the old root is gone", versions(1))
	if err := requestOf(inbound, old); err == nil {
		t.Error("a certificate of the root that was dropped was taken")
	}
	done := fresh.done.Load() + kept.done.Load()
	until("requests after it all", func() bool { return fresh.done.Load()+kept.done.Load() > done+50 })
	stop()
	load.Wait()

	for name, f := range map[string]*flow{"kept": kept, "fresh": fresh} {
		serials, issuers := f.seen()
		t.Logf("%s: %d requests, %d failed, by %d certificates of %d roots", name, f.done.Load(), f.failed.Load(), serials,
			issuers)
		if f.failed.Load() > 0 {
			t.Errorf("%s: %d of %d requests failed: %s", name, f.failed.Load(), f.done.Load(), f.failure)
		}
	}
	if serials, _ := kept.seen(); serials != 1 || client.stat("cluster.kept.upstream_cx_total") != connections {
		t.Errorf("kept connections: %d, and %d at first, by %d certificates; want the same, and 1",
			client.stat("cluster.kept.upstream_cx_total"), connections, serials)
	}
	streams, _, refusals := m.counts()
	if len(refusals) > 0 || streams != 4 {
		t.Errorf("%d streams; want 2 before and 2 after the restart; refusals: %q", streams, refusals)
	}
	if strings.Contains(log.String(), "PRIVATE") {
		t.Error("the log shows a key")
	}
}

func newFlow() *flow { return &flow{serials: map[string]bool{}, issuers: map[string]bool{}} }

// roots returns the number of roots that the sidecar trusts for the mesh, as its admin interface reports them.
func (s *sidecar) roots() int {
	var dump struct {
		Configs []struct {
			Secrets []struct {
				Name   string `json:"name"`
				Secret struct {
					Context struct {
						CA struct {
							Bytes []byte `json:"inline_bytes"`
						} `json:"trusted_ca"`
					} `json:"validation_context"`
				} `json:"secret"`
			} `json:"dynamic_active_secrets"`
		} `json:"configs"`
	}
	if err := json.Unmarshal([]byte(s.get("/config_dump?name_regex="+RootsSecret)), &dump); err != nil {
		return -1
	}
	most := 0
	for _, c := range dump.Configs {
		for _, secret := range c.Secrets {
			if secret.Name == RootsSecret {
				n := bytes.Count(secret.Secret.Context.CA.Bytes, []byte("BEGIN CERTIFICATE"))
				if most == 0 || n != most {
					most = n
				}
			}
		}
	}
	return most
}

// requestOf makes one request to a sidecar's inbound listener, with the credentials of a client.
func requestOf(address string, c Credentials) error {
	config := ClientTLS(func() (Credentials, error) { return c, nil }, apiID)
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	r, err := (&http.Client{Transport: transport}).Get("https://" + address)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

// strict checks that the inbound listener of api accepts web, and no other client.
func strict(t *testing.T, a *Authority, address string) {
	t.Helper()
	web := forged(t, a, func(*x509.Certificate) {})
	foreign := forged(t, newAuthority(t, Options{}), func(*x509.Certificate) {})
	foreign.Roots = a.RootsPEM()
	ended := forged(t, a, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })
	for name, c := range map[string]struct {
		with Credentials
		good bool
	}{
		"web":                  {web, true},
		"nobody":               {Credentials{Roots: a.RootsPEM()}, false},
		"another authority":    {foreign, false},
		"another identity":     {credentialsOf(t, a, apiID), false},
		"an ended certificate": {ended, false},
		"another trust domain": {forged(t, a, func(c *x509.Certificate) {
			c.URIs = uris("spiffe://other.local/ns/default/sa/web", webID)
		}), false},
	} {
		if err := requestOf(address, c.with); (err == nil) != c.good {
			t.Errorf("%s: %v; want an answer: %v", name, err, c.good)
		}
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if answer, _ := io.ReadAll(conn); bytes.Contains(answer, []byte("HTTP")) {
		t.Errorf("plaintext was answered: %q", answer)
	}
}
