package proxyconfig

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"

	"tare/internal/mesh/controlplane/bootstrap"
	envoytest "tare/test/envoy"
)

// here replaces the addresses 127.9.9.x in a text by addresses of this process.
func here(text string) string {
	pid := os.Getpid()
	return strings.ReplaceAll(text, "127.9.9.", fmt.Sprintf("127.%d.%d.", 10+pid>>8%200, pid%250+1))
}

// plane is an independent control plane: go-control-plane's.
type plane struct {
	address string
	cache   cache.SnapshotCache
	mu      sync.Mutex
	refused []string
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{cache: cache.NewSnapshotCache(false, cache.IDHash{}, nil)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	g := grpc.NewServer()
	callbacks := callbacks{p}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, &discovery{
		world: sotwv3.NewServer(ctx, p.cache, callbacks), delta: deltav3.NewServer(ctx, p.cache, callbacks)})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		cancel()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, r := range p.refused {
			t.Error("Envoy refuses", r)
		}
	})
	return p
}

// discovery is the aggregated discovery service in both variants.
type discovery struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	world sotwv3.Server
	delta deltav3.Server
}

func (d *discovery) StreamAggregatedResources(
	s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return d.world.StreamHandler(s, resource.AnyType)
}

func (d *discovery) DeltaAggregatedResources(
	s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return d.delta.DeltaStreamHandler(s, resource.AnyType)
}

// callbacks record what Envoy refuses.
type callbacks struct{ *plane }

func (callbacks) OnStreamOpen(context.Context, int64, string) error      { return nil }
func (callbacks) OnStreamClosed(int64, *corev3.Node)                     {}
func (callbacks) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }
func (callbacks) OnDeltaStreamClosed(int64, *corev3.Node)                {}

func (c callbacks) OnStreamRequest(_ int64, r *discoveryv3.DiscoveryRequest) error {
	c.note(r.GetTypeUrl(), r.GetErrorDetail().GetMessage())
	return nil
}

func (c callbacks) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	c.note(r.GetTypeUrl(), r.GetErrorDetail().GetMessage())
	return nil
}

func (callbacks) OnStreamResponse(context.Context, int64, *discoveryv3.DiscoveryRequest,
	*discoveryv3.DiscoveryResponse) {
}

func (callbacks) OnStreamDeltaResponse(int64, *discoveryv3.DeltaDiscoveryRequest, *discoveryv3.DeltaDiscoveryResponse) {
}

func (p *plane) note(kind, refused string) {
	if refused != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused = append(p.refused, kind+": "+refused)
	}
}

// tell sets a node's resources to those of a mesh.
func (p *plane) tell(t *testing.T, m *Mesh, id string, secrets ...*tlsv3.Secret) {
	t.Helper()
	r, err := m.For(id)
	if err != nil {
		t.Fatal(err)
	}
	r.Secrets = append(r.Secrets, secrets...)
	s, err := cache.NewSnapshot("1", map[resource.Type][]types.Resource{
		resource.ClusterType: resources(r.Clusters), resource.EndpointType: resources(r.Endpoints),
		resource.ListenerType: resources(r.Listeners), resource.RouteType: resources(r.Routes),
		resource.SecretType: resources(r.Secrets)})
	if err == nil {
		err = p.cache.SetSnapshot(context.Background(), id, s)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func resources[T types.Resource](list []T) (out []types.Resource) {
	for _, r := range list {
		out = append(out, r)
	}
	return out
}

// envoy is a running Envoy, by the address of its admin interface.
type envoy struct{ admin string }

// startEnvoy runs Envoy as a node of a plane until the test ends. It returns when Envoy has all of its resources.
func startEnvoy(t *testing.T, p *plane, node, api string) *envoy {
	t.Helper()
	dir := t.TempDir()
	file, admin := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	text, err := bootstrap.Envoy{
		Node: node, Cluster: "test", ControlPlane: p.address, StateOfTheWorld: api == "GRPC",
	}.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(envoytest.Path(t), "-c", file, "--admin-address-path", admin, "--concurrency", "1",
		"--disable-hot-restart", "--log-level", "warning", "--drain-time-s", "1")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("Envoy %s:\n%s", node, log.String())
		}
	})
	e := &envoy{}
	for {
		select {
		case <-ended:
			t.Fatalf("Envoy %s has ended:\n%s", node, log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if e.admin == "" {
			b, _ := os.ReadFile(admin)
			e.admin = string(b)
			continue
		}
		if text, err := e.ask("/ready"); err == nil && strings.HasPrefix(text, "LIVE") {
			return e
		}
	}
}

// ask returns a page of Envoy's admin interface.
func (e *envoy) ask(path string) (string, error) {
	r, err := http.Get("http://" + e.admin + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// handmade is a certificate authority that shares no code with the product's.
type handmade struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *handmade {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &handmade{c, key}
}

// issue makes a certificate for an id, and its key, in PEM.
func (a *handmade) issue(t *testing.T, id string) (chain, key []byte) {
	t.Helper()
	u, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), URIs: []*url.URL{u},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &own.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// secrets returns the secrets that a proxy with that id gets over SDS.
func (a *handmade) secrets(t *testing.T, id string) []*tlsv3.Secret {
	t.Helper()
	chain, key := a.issue(t, id)
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	return []*tlsv3.Secret{
		{Name: IdentitySecret, Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(chain), PrivateKey: inline(key)}}},
		{Name: RootsSecret, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(root)}}},
	}
}

// client returns the configuration of a TLS client with that id; empty: without a certificate.
func (a *handmade) client(t *testing.T, id string, alpn ...string) *tls.Config {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: alpn}
	if id != "" {
		chain, key := a.issue(t, id)
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}
