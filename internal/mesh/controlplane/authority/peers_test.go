package authority

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
)

// shaken makes a connection between a client and a gRPC server of an authority.
func shaken(t *testing.T, a *Authority, client *tls.Config) (*tls.Conn, error) {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	go func() { _ = tls.Client(here, client).Handshake() }()
	conn, _, err := a.ServerCredentials().Clone().ServerHandshake(there)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// TestLeanConnections: connections share the configuration that is the same for all, and keep none of the peer's
// certificates; the authority's own certificates are not cleared.
func TestLeanConnections(t *testing.T) {
	a := newAuthority(t, Options{})
	web := credentialsOf(t, a, webID)
	config := ClientTLS(func() (Credentials, error) { return web, nil }, ControlPlane(DefaultTrustDomain))
	if _, err := shaken(t, a, config); err == nil || !strings.Contains(err.Error(), "ALPN") {
		t.Errorf("without ALPN: %v", err)
	}
	config.NextProtos = []string{"h2"}
	first, err := a.serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		conn, err := shaken(t, a, config)
		if err != nil {
			t.Fatal(err)
		}
		if shown := conn.ConnectionState().PeerCertificates; len(shown) != 1 || shown[0].Raw != nil ||
			shown[0].PublicKey != nil {
			t.Errorf("it has kept %d certificates, %v", len(shown), shown)
		}
		if now, err := a.serverTLS(); err != nil || now != first {
			t.Errorf("another configuration: %v", err)
		}
	}
	if root := a.trust.Load().issuing.certificate; len(root.Raw) == 0 || root.PublicKey == nil {
		t.Error("the root has lost what it was")
	}
}
