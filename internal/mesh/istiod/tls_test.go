package istiod

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/experiment/process"
	"tare/internal/mesh/controlplane/authority"
	"tare/test/istiodtest"
)

// secrets stands for Istio's agent: it gives a sidecar its certificate and the roots, by Istio's names.
type secrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	authority *authority.Authority
	identity  string
}

func (s secrets) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for {
		q, err := stream.Recv()
		if err != nil {
			return nil // the client has gone
		}
		if q.GetResponseNonce() != "" {
			continue // an acknowledgement
		}
		all, err := s.authority.Secrets(s.identity)
		if err != nil {
			return err
		}
		r := &discoveryv3.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: q.GetTypeUrl()}
		for _, secret := range all {
			secret = proto.CloneOf(secret)
			secret.Name = map[string]string{
				authority.IdentitySecret: "default", authority.RootsSecret: "ROOTCA",
			}[secret.GetName()]
			if !slices.Contains(q.GetResourceNames(), secret.GetName()) {
				continue
			}
			a, err := anypb.New(secret)
			if err != nil {
				return err
			}
			r.Resources = append(r.Resources, a)
		}
		if err := stream.Send(r); err != nil {
			return nil
		}
	}
}

// agent serves a sidecar's secrets at a socket.
func agent(t *testing.T, a *authority.Authority, name string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sds") // the path of t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, name)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	id, err := authority.Identity(domain, name)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(s, secrets{authority: a, identity: id})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// TestIstiodTLS: with istiod's mutual TLS between Envoys that have certificates, only callers with an allowed identity
// are served, and none in plain text.
func TestIstiodTLS(t *testing.T) {
	if os.Getenv(testVariable) == "" {
		t.Skip("make istiod-test runs it")
	}
	i, err := Start(context.Background(), Options{Environment: []string{"PILOT_ENABLE_ALPN_FILTER=false"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("istiod said last:\n%s", i.Tail())
		}
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}()
	a, err := authority.New(authority.Options{TrustDomain: domain})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	application := named(t, "a", false)
	ports, err := process.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	port := func(i int) uint16 { return netip.MustParseAddrPort(ports[i]).Port() }
	address := map[string]string{"server": "127.0.0.9", "friend": "127.0.0.8", "stranger": "127.0.0.7"}
	own := netip.AddrPortFrom(netip.MustParseAddr(address["server"]), port(0))
	// Each Envoy listens at its own address only, because all share a machine.
	objects := []string{fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own, namespace: default}
spec:
  hosts: [own.mesh.test]
  addresses: [127.96.0.9]
  ports: [{number: %d, name: main, protocol: TCP}]
  location: MESH_INTERNAL
  resolution: STATIC
  endpoints: [{address: %s, ports: {main: %d}, serviceAccount: server, labels: {app: server, security.istio.io/tlsMode: istio}}]
`, port(1), own.Addr(), own.Port()), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: server, namespace: default}
spec:
  workloadSelector: {labels: {app: server}}
  ingress: [{port: {number: %d, protocol: TCP, name: own}, bind: %s, defaultEndpoint: "127.0.0.1:%d"}]
  egress: [{hosts: ["~/*"]}]
`, own.Port(), own.Addr(), application.Port()), `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: default}
spec: {mtls: {mode: STRICT}}
`}
	for _, caller := range []string{"friend", "stranger"} {
		objects = append(objects, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: %[1]s, namespace: default}
spec:
  workloadSelector: {labels: {app: %[1]s}}
  egress: [{port: {number: %[2]d, protocol: TCP, name: main}, bind: %[3]s, hosts: ["*/*"]}]
`, caller, port(1), address[caller]))
	}
	allow := func(accounts ...string) {
		t.Helper()
		var rules []string
		for _, account := range accounts {
			rules = append(rules, `{from: [{source: {principals: [cluster.local/ns/default/sa/`+account+`]}}]}`)
		}
		istiodtest.Put(t, i.Dir, "mesh.yaml", strings.Join(append(slices.Clone(objects), istiodtest.Policy(rules...)), "---\n"))
	}
	allow("friend")
	for _, variant := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(variant, func(t *testing.T) {
			var envoys []*envoy
			for _, name := range []string{"server", "friend", "stranger"} {
				envoys = append(envoys, startEnvoy(t, i.XDS, variant, sidecar{
					node: "sidecar~" + address[name] + "~" + name + ".default~default.svc.cluster.local",
					app:  name, secrets: agent(t, a, name),
				}))
			}
			ask := func(caller string) string {
				return dial(netip.AddrPortFrom(netip.MustParseAddr(address[caller]), port(1)), "")
			}
			eventually(t, "a friend is let in", func() bool { return ask("friend") == "a" })
			eventually(t, "the stranger's Envoy has the service", func() bool {
				return envoys[2].stats(t, "cluster.outbound.*own.mesh.test.*upstream_cx_total")["cluster.outbound|"+
					fmt.Sprint(port(1))+"||own.mesh.test;.upstream_cx_total"] > 0 || ask("stranger") != ""
			})
			for range 5 {
				if got := ask("stranger"); got != "" {
					t.Fatalf("a stranger is told %q", got)
				}
				if got := dial(own, ""); got != "" {
					t.Fatalf("plain text is told %q", got)
				}
			}
			allow("friend", "stranger")
			eventually(t, "who was a stranger is let in", func() bool { return ask("stranger") == "a" })
			if ask("friend") != "a" {
				t.Error("the friend is not let in any more")
			}
			allow("friend")
			eventually(t, "he is one again", func() bool { return ask("stranger") == "" })
			handshakes := envoys[0].stats(t, "listener.*ssl.handshake")
			if n := handshakes[fmt.Sprintf("listener.%s_%d.ssl.handshake", own.Addr(), own.Port())]; n < 3 {
				t.Errorf("%d handshakes of TLS: %v", n, handshakes)
			}
			t.Logf("%s: %v", variant, handshakes)
			for _, e := range envoys {
				for name, n := range e.stats(t, "update_rejected") {
					if n > 0 {
						t.Errorf("Envoy has refused: %s %d", name, n)
					}
				}
			}
		})
	}
}
