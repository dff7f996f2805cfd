package controlplane

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tare/internal/lib/fault"
	"tare/internal/mesh/controlplane/ads"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/test/speed"
)

const secureMesh = `
mtls: strict
discovery: policy
services:
  - {name: api, protocol: http, identity: api, access: [{from: [web]}], endpoints: [{address: 127.0.0.1:9001}]}
proxies:
  - {id: web-1, identity: web, outbound: {api: 127.0.0.1:9002}}
  - {id: api-1, identity: api, inbound: {api: {listen: 127.0.0.1:9001, to: 127.0.0.1:9000}}, outbound: {}}
`

func compiled(t *testing.T, text string) *proxyconfig.Mesh {
	t.Helper()
	m, err := proxyconfig.Parse("mesh.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// served starts a control plane and returns its address. The test ends it.
func served(t *testing.T, text string, o PlaneOptions) (*Plane, string) {
	t.Helper()
	return servedAtMost(t, MaxConnections, text, o)
}

// servedAtMost is like served, but limits the number of open connections.
func servedAtMost(t *testing.T, connections int, text string, o PlaneOptions) (*Plane, string) {
	t.Helper()
	p, err := NewPlane(t.Context(), compiled(t, text), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = bounding(p.Authority() != nil)(l, connections, func(int) {})
	if err := p.Listens(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- p.Run(ctx) }()
	go func() { ended <- p.Serve(l) }()
	t.Cleanup(func() {
		cancel()
		p.Close()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return p, l.Addr().String()
}

// ask subscribes as a node to resources of a type, and returns those of the first response, by name.
func ask(t *testing.T, address string, c credentials.TransportCredentials, node, typeURL string,
	names ...string) (map[string][]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	// A server that refuses may end the stream before the request is out: then Recv has the reason.
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: node}, TypeUrl: typeURL, ResourceNamesSubscribe: names,
	}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	r, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	got := map[string][]byte{}
	for _, x := range r.GetResources() {
		got[x.GetName()] = x.GetResource().GetValue()
	}
	return got, nil
}

// deltas opens a stream of deltas on a new connection, which the test closes.
func deltas(ctx context.Context, t *testing.T, address string,
	c credentials.TransportCredentials) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// as returns the credentials of a client with an identity.
func as(t *testing.T, p *Plane, identity string) credentials.TransportCredentials {
	t.Helper()
	id, err := authority.Identity(p.Authority().TrustDomain(), identity)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Authority().Credentials(id)
	if err != nil {
		t.Fatal(err)
	}
	return credentials.NewTLS(authority.ClientTLS(func() (authority.Credentials, error) { return c, nil },
		authority.ControlPlane(p.Authority().TrustDomain())))
}

// withoutCertificate is the TLS configuration of a client that trusts the control plane and shows no certificate.
func withoutCertificate(t *testing.T, p *Plane) *tls.Config {
	t.Helper()
	return authority.ClientTLS(func() (authority.Credentials, error) {
		return authority.Credentials{Roots: p.Authority().RootsPEM()}, nil
	}, authority.ControlPlane(p.Authority().TrustDomain()))
}

// TestPlaneTellsOnlyOwn: a proxy gets the resources that concern it and its own secrets, and only with its
// certificate.
func TestPlaneTellsOnlyOwn(t *testing.T) {
	p, address := served(t, secureMesh, PlaneOptions{})
	for node, c := range map[string]struct {
		identity string
		clusters []string
	}{
		"web-1": {"web", []string{"api"}},
		"api-1": {"api", []string{"inbound:api"}},
	} {
		got, err := ask(t, address, as(t, p, c.identity), node, ads.ClusterType)
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), c.clusters) {
			t.Errorf("%s is told of %v, %v; want %v", node, slices.Sorted(maps.Keys(got)), err, c.clusters)
		}
		secrets, err := ask(t, address, as(t, p, c.identity), node, ads.SecretType, "identity", "roots")
		if err != nil || len(secrets) != 2 {
			t.Fatalf("%s: secrets %v, %v", node, slices.Sorted(maps.Keys(secrets)), err)
		}
		var s tlsv3.Secret
		if err := proto.Unmarshal(secrets["identity"], &s); err != nil {
			t.Fatal(err)
		}
		own, err := p.Authority().Credentials("spiffe://mesh.local/ns/default/sa/" + c.identity)
		if err != nil || !bytes.Equal(s.GetTlsCertificate().GetCertificateChain().GetInlineBytes(), own.Chain) {
			t.Errorf("the certificate of %s is another's: %v", node, err)
		}
	}
	for name, c := range map[string]struct {
		with credentials.TransportCredentials
		node string
		code codes.Code
	}{
		"another's node":   {as(t, p, "web"), "api-1", codes.PermissionDenied},
		"no such node":     {as(t, p, "web"), "web-2", codes.PermissionDenied},
		"no node":          {as(t, p, "web"), "", codes.PermissionDenied},
		"no certificate":   {credentials.NewTLS(withoutCertificate(t, p)), "web-1", codes.Unauthenticated},
		"in the clear":     {insecure.NewCredentials(), "web-1", codes.Unavailable},
		"another identity": {as(t, p, "other"), "web-1", codes.PermissionDenied},
	} {
		got, err := ask(t, address, c.with, c.node, ads.ClusterType)
		if status.Code(err) != c.code {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.code)
		}
	}
}

// TestPlaneIdentityChanges: when a proxy gets another identity, a stream opened with the old one ends, and receives
// nothing of the new one. Nor can the old identity open another stream.
func TestPlaneIdentityChanges(t *testing.T) {
	p, address := served(t, secureMesh, PlaneOptions{})
	web := as(t, p, "web")
	stream := deltas(t.Context(), t, address, web)
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "web-1"}, TypeUrl: ads.SecretType,
		ResourceNamesSubscribe: []string{"identity", "roots"}}); err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || len(first.GetResources()) != 2 {
		t.Fatalf("%v, %v", first, err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: ads.SecretType,
		ResponseNonce: first.GetNonce()}); err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(secureMesh, "id: web-1, identity: web", "id: web-1, identity: admin", 1)
	if _, err := p.Set(t.Context(), compiled(t, changed)); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if status.Code(err) != codes.NotFound {
		names := []string{}
		for _, x := range r.GetResources() {
			names = append(names, x.GetName())
		}
		t.Errorf("the stream of the old identity got %v, %v", names, err)
	}
	if got, err := ask(t, address, web, "web-1", ads.SecretType, "identity"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the old identity is told %v, %v", slices.Sorted(maps.Keys(got)), err)
	}
	if got, err := ask(t, address, as(t, p, "admin"), "web-1", ads.SecretType, "identity"); err != nil || len(got) != 1 {
		t.Errorf("the new identity is told %v, %v", slices.Sorted(maps.Keys(got)), err)
	}
}

// TestPlaneEndsStreams: a stream ends at once when the root of its certificate is no longer trusted. When its
// certificate has expired, it ends before a new key would be sent; the proxy goes on with its next certificate and
// the same gRPC client.
func TestPlaneEndsStreams(t *testing.T) {
	const web = "spiffe://mesh.local/ns/default/sa/web"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// told returns the names in the stream's next response, which it acknowledges.
	told := func(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) ([]string, error) {
		r, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		var names []string
		for _, x := range r.GetResources() {
			names = append(names, x.GetName())
		}
		return names, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
	}
	asks := func(typeURL string, names ...string) *discoveryv3.DeltaDiscoveryRequest {
		return &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "web-1"}, TypeUrl: typeURL,
			ResourceNamesSubscribe: names}
	}
	for name, request := range map[string]*discoveryv3.DeltaDiscoveryRequest{
		"that is told nothing": asks(ads.ClusterType), "that has secrets": asks(ads.SecretType, "identity", "roots"),
	} {
		t.Run(name, func(t *testing.T) {
			p, address := served(t, secureMesh, PlaneOptions{})
			stream := deltas(ctx, t, address, as(t, p, "web"))
			if err := stream.Send(request); err != nil {
				t.Fatal(err)
			}
			if _, err := told(stream); err != nil {
				t.Fatal(err)
			}
			a := p.Authority()
			for range 2 {
				if err := a.Advance(false); err != nil {
					t.Fatal(err)
				}
				if request.TypeUrl != ads.SecretType {
					continue
				}
				if names, err := told(stream); err != nil || len(names) != 1 { // its old root is still trusted
					t.Fatal(names, err)
				}
			}
			if err := a.Advance(true); err != nil {
				t.Fatal(err)
			}
			if names, err := told(stream); status.Code(err) != codes.Unauthenticated {
				t.Errorf("without its root it is told %v, %v", names, err)
			}
		})
	}
	t.Run("after its end", func(t *testing.T) {
		p, address := served(t, secureMesh, PlaneOptions{Life: speed.Scale(4 * time.Second)})
		own := authority.ClientTLS(func() (authority.Credentials, error) { return p.Authority().Credentials(web) },
			authority.ControlPlane(p.Authority().TrustDomain()))
		cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(own)))
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Close()
		open := func() (stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, err error) {
			stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx)
			if err == nil {
				_ = stream.Send(asks(ads.SecretType, "identity")) // the stream may have ended: Recv says why
				_, err = told(stream)
			}
			return stream, err
		}
		stream, err := open()
		if err != nil {
			t.Fatal(err)
		}
		for keys := 1; ; keys++ {
			if keys > 10 {
				t.Fatalf("%d keys came by a certificate, each of which is replaced after half its life", keys)
			}
			if _, err = told(stream); err != nil {
				break
			}
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			if _, err = open(); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("it cannot come back: %v", err)
			}
		}
	})
}

// beginHTTP2 sends what an HTTP/2 client sends first.
func beginHTTP2(c net.Conn) {
	_, _ = io.WriteString(c, http2.ClientPreface) // the connection may have been closed
	_ = http2.NewFramer(c, nil).WriteSettings()
}

// TestPlaneHandshakes: proxies can connect however many peers leave their handshakes unfinished.
func TestPlaneHandshakes(t *testing.T) {
	const most = 8
	p, address := servedAtMost(t, most, secureMesh, PlaneOptions{})
	if _, err := ask(t, address, as(t, p, "web"), "web-1", ads.ClusterType); err != nil {
		t.Fatal(err)
	}
	for range 10 * most {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	for i := range 3 {
		if _, err := ask(t, address, as(t, p, "web"), "web-1", ads.ClusterType); err != nil {
			t.Errorf("a proxy, the %d. time: %v", i+1, err)
		}
	}
}

// TestPlaneStrangers: proxies can connect however many peers without a certificate are connected, and a peer with a
// token gets its certificate meanwhile.
func TestPlaneStrangers(t *testing.T) {
	const most, strangers = 8, 4
	accounts, token := accountOf(t, "web")
	p, address := servedAtMost(t, most, secureMesh, PlaneOptions{Accounts: accounts, Strangers: strangers})
	own := withoutCertificate(t, p)
	own.NextProtos = []string{"h2"}
	var open atomic.Int64
	for range 10 * most {
		c, err := tls.Dial("tcp", address, own)
		if err != nil {
			continue // refused: the server had not yet closed an older one to make room
		}
		t.Cleanup(func() { c.Close() })
		open.Add(1)
		go func() {
			beginHTTP2(c)
			_, _ = io.Copy(io.Discard, c)
			open.Add(-1)
		}()
	}
	for deadline := time.Now().Add(10 * time.Second); open.Load() > strangers; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("strangers have %d connections", open.Load())
		}
	}
	if _, err := ask(t, address, as(t, p, "web"), "web-1", ads.ClusterType); err != nil {
		t.Errorf("a proxy: %v", err)
	}
	const web = "spiffe://mesh.local/ns/default/sa/web"
	a := authority.Agent{Address: address, Identity: web, Roots: p.Authority().RootsPEM(), ReadToken: token}
	if _, err := a.Request(t.Context(), authority.Credentials{}); err != nil {
		t.Errorf("an agent with a token: %v", err)
	}
}

// TestPlaneInTheClear: without certificates proxies are identified by their node ids.
func TestPlaneInTheClear(t *testing.T) {
	p, address := served(t, strings.Replace(secureMesh, "strict", "off", 1), PlaneOptions{Credentials: t.TempDir()})
	got, err := ask(t, address, insecure.NewCredentials(), "web-1", ads.ClusterType)
	if err != nil || len(got) != 1 || got["api"] == nil {
		t.Errorf("%v, %v", slices.Sorted(maps.Keys(got)), err)
	}
	if _, err := ask(t, address, insecure.NewCredentials(), "other",
		ads.ClusterType); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := p.Set(t.Context(), compiled(t, secureMesh)); err == nil || !strings.Contains(err.Error(), "mtls") {
		t.Errorf("certificates appeared while it runs: %v", err)
	}
	// A mesh without proxies is sent to every node; with proxies again, each part only to its node.
	for i, text := range []string{"services: [{name: a}]", strings.Replace(secureMesh, "strict", "off", 1)} {
		if _, err := p.Set(t.Context(), compiled(t, text)); err != nil {
			t.Fatal(err)
		}
		got, err := ask(t, address, insecure.NewCredentials(), "anybody", ads.ClusterType)
		if told := err == nil && got["a"] != nil; told != (i == 0) {
			t.Errorf("%d: anybody is told %v, %v", i, slices.Sorted(maps.Keys(got)), err)
		}
	}
}

// TestPlaneCredentials: the files of proxies are private, include a key only where one belongs, and are replaced
// before they expire.
func TestPlaneCredentials(t *testing.T) {
	dir, roots := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, roots} {
		if err := os.Chmod(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var fresh []byte
	for range 2 { // the second pass restarts the control plane, which proxies must still trust
		t.Run("", func(t *testing.T) {
			p, _ := served(t, secureMesh, PlaneOptions{Credentials: dir, Roots: roots, Life: 4 * time.Second})
			if fresh != nil && !bytes.Equal(fresh, p.Authority().RootsPEM()) {
				t.Error("the roots are others after a restart")
			}
			fresh = p.Authority().RootsPEM()
			for _, name := range []string{authority.EnvoyBootstrapFile, authority.EnvoyIdentityFile, authority.EnvoyRootsFile} {
				file := filepath.Join(dir, "web-1", name)
				info, err := os.Stat(file)
				if err != nil || info.Mode().Perm() != 0o600 {
					t.Fatalf("%s: %v, %v", name, info, err)
				}
				text, err := os.ReadFile(file)
				if has := bytes.Contains(text, []byte("privateKey")); err != nil || has != (name == authority.EnvoyIdentityFile) {
					t.Errorf("%s has a key: %v; %v", name, has, err)
				}
			}
			identity := filepath.Join(dir, "web-1", authority.EnvoyIdentityFile)
			first, err := os.ReadFile(identity)
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				now, err := os.ReadFile(identity)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(now, first) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the certificate was not replaced")
				}
			}
		})
	}
}

// TestPlaneWritesOthers: if one proxy's directory cannot be written, the other proxies get their files, the mesh is in
// use, and the log has the failure. Once the obstacle is gone, the files are written.
func TestPlaneWritesOthers(t *testing.T) {
	for _, mtls := range []string{"strict", "off"} {
		t.Run(mtls, func(t *testing.T) {
			text := strings.Replace(secureMesh, "strict", mtls, 1)
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			lines := make(chan string, 1)
			p, _ := served(t, text, PlaneOptions{Credentials: dir, RetryAfter: 10 * time.Millisecond,
				Log: func(line string) {
					select {
					case lines <- line:
					default: // one error is enough
					}
				}})
			for _, id := range []string{"a-1", "m-1"} {
				if err := os.WriteFile(filepath.Join(dir, id), nil, 0o600); err != nil { // where a directory should be
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "mesh.yaml")
			for _, id := range []string{"a-1", "m-1", "z-1"} {
				text += "  - {id: " + id + ", identity: " + id + ", outbound: {}}\n"
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			said := p.reload(t.Context(), NewFiles(file))
			for _, want := range []string{"are up to date", "proxy a-1", "proxy m-1"} {
				if !strings.Contains(said, want) {
					t.Errorf("the log says %q, without %q", said, want)
				}
			}
			if strings.Contains(said, "as it was") || strings.Contains(said, "proxy z-1") {
				t.Errorf("the log says %q", said)
			}
			var r Ready
			if err := p.count(&r); err != nil || r.Proxies != 5 {
				t.Errorf("%+v, %v", r, err)
			}
			bootstrap := func(id string) string { return filepath.Join(dir, id, authority.EnvoyBootstrapFile) }
			if _, err := os.Stat(bootstrap("z-1")); err != nil {
				t.Error(err)
			}
			if line := <-lines; !strings.Contains(line, "are up to date") || !strings.Contains(line, "proxy a-1") {
				t.Errorf("the second try says %q", line)
			}
			for _, id := range []string{"a-1", "m-1"} {
				if err := os.Remove(filepath.Join(dir, id)); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range []string{"a-1", "m-1"} {
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
					if _, err := os.Stat(bootstrap(id)); err == nil {
						break
					} else if time.Now().After(deadline) {
						t.Fatalf("the files were not tried again: %v", err)
					}
				}
			}
		})
	}
}

// TestPlaneRefusesDirectories: the control plane does not write into a directory that other users can write to, nor for
// a proxy whose id leads out of the directory.
func TestPlaneRefusesDirectories(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	for name, c := range map[string]struct{ dir, id string }{
		"others can write": {open, "web-1"}, "up": {own, ".."}, "elsewhere": {own, "../x"}, "absolute": {own, "/x"},
	} {
		text := strings.ReplaceAll(secureMesh, "id: web-1", "id: "+c.id)
		p, err := NewPlane(t.Context(), compiled(t, text), PlaneOptions{Credentials: c.dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Listens("127.0.0.1:1"); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s: %v", name, err)
		}
		p.Close()
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(own), "x")); err == nil {
		t.Error("a file was written elsewhere")
	}
}

// TestPlaneRenewsOne: a renewed certificate is sent only to the proxies with its identity, and new roots to all.
func TestPlaneRenewsOne(t *testing.T) {
	p, _ := served(t, strings.Replace(secureMesh, "proxies:", "proxies:\n  - {id: web-2, identity: web, outbound: {}}", 1),
		PlaneOptions{})
	told := func() map[string]uintptr {
		p.server.mu.Lock()
		defer p.server.mu.Unlock()
		now := map[string]uintptr{}
		for key, t := range p.server.last {
			now[nodeOf(key)] = reflect.ValueOf(t.tables).Pointer() // another map each time that the key is set
		}
		return now
	}
	others := func(before map[string]uintptr) (ids []string) {
		for id, at := range told() {
			if at != before[id] {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return ids
	}
	for _, c := range []struct {
		change func()
		want   []string
	}{
		{func() { p.renewals.identity("spiffe://mesh.local/ns/default/sa/web") }, []string{"web-1", "web-2"}},
		{func() { p.renewals.identity("spiffe://mesh.local/ns/default/sa/api") }, []string{"api-1"}},
		{func() { p.renewals.identity("spiffe://mesh.local/ns/default/sa/gone") }, nil},
		{p.renewals.roots, []string{"api-1", "web-1", "web-2"}},
	} {
		before := told()
		c.change()
		for deadline := time.Now().Add(30 * time.Second); !slices.Equal(others(before),
			c.want); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%v were told, want %v", others(before), c.want)
			}
		}
	}
}

// accountOf makes a service account in the namespace default of a cluster, and returns how its pods read their token.
func accountOf(t *testing.T, name string) (*authority.ServiceAccounts, func() (authority.Token, error)) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := jose.JSONWebKey{Key: private, KeyID: "a", Algorithm: string(jose.ES256), Use: "sig"}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	accounts, err := authority.NewServiceAccounts(keys, "https://cluster", "tare")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return accounts, func() (authority.Token, error) {
		text, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": "https://cluster", "aud": "tare", "sub": "system:serviceaccount:default:" + name,
			"exp": time.Now().Add(time.Hour).Unix(),
			"kubernetes.io": map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": name},
				"pod": map[string]any{"uid": "p1"}},
		}).Serialize()
		return authority.Token(text), err
	}
}

// TestPlaneTokens: an agent with a token gets a certificate for its own private key, and resources with that
// certificate. The token is of no use for another identity.
func TestPlaneTokens(t *testing.T) {
	accounts, token := accountOf(t, "web")
	p, address := served(t, secureMesh, PlaneOptions{Accounts: accounts})
	const web, api = "spiffe://mesh.local/ns/default/sa/web", "spiffe://mesh.local/ns/default/sa/api"
	request := func(id string) (authority.Credentials, error) {
		a := authority.Agent{Address: address, Identity: id, Roots: p.Authority().RootsPEM(), ReadToken: token}
		return a.Request(t.Context(), authority.Credentials{})
	}
	if _, err := request(api); status.Code(err) != codes.PermissionDenied && status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token of web asks for api: %v", err)
	}
	c, err := request(web)
	if err != nil {
		t.Fatal(err)
	}
	own := credentials.NewTLS(authority.ClientTLS(func() (authority.Credentials, error) { return c, nil },
		authority.ControlPlane(p.Authority().TrustDomain())))
	if got, err := ask(t, address, own, "web-1", ads.ClusterType); err != nil || got["api"] == nil {
		t.Errorf("the agent's certificate: %v, %v", got, err)
	}
}
