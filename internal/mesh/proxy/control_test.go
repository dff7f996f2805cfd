package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"tare/internal/experiment/role"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/proxy/config"
)

// newAuthorityOf makes an authority, and a directory in which a proxy of an account finds its credentials.
func newAuthorityOf(t *testing.T, account string) (a *authority.Authority, id, dir string) {
	t.Helper()
	a, err := authority.New(authority.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if id, err = authority.Identity(a.TrustDomain(), account); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, a, id, dir)
	return a, id, dir
}

func write(t *testing.T, a *authority.Authority, id, dir string) {
	t.Helper()
	c, err := a.Credentials(id)
	if err == nil {
		err = c.WriteEnvoy(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// shake connects as the proof says to a server, and gives what each side knows of the other.
func shake(t *testing.T, p *proof, server *tls.Config) (client string, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	s := tls.Server(theirs, server)
	go func() {
		err := s.HandshakeContext(ctx)
		_ = theirs.Close()
		served <- err
	}()
	c := p.config()
	c.ServerName, c.NextProtos = "any", []string{"h2"}
	err = tls.Client(ours, c).HandshakeContext(ctx)
	_ = ours.Close()
	if late := <-served; err == nil {
		err = late
	}
	if shown := s.ConnectionState().PeerCertificates; err == nil && len(shown) == 1 {
		client = shown[0].URIs[0].String() + " " + shown[0].SerialNumber.String()
	}
	return client, err
}

// TestProof: the proxy shows its control plane what its directory has at the time, and once the control plane has told
// it a certificate, that one, be the directory what it may. It connects to nobody else.
func TestProof(t *testing.T) {
	a, id, dir := newAuthorityOf(t, "web")
	p, err := newProof(dir)
	if err != nil {
		t.Fatal(err)
	}
	first, err := shake(t, p, a.ServerTLS())
	if err != nil || !strings.HasPrefix(first, id+" ") {
		t.Fatalf("the control plane sees %q, %v", first, err)
	}
	a.Forget(id) // so that the next one is another
	write(t, a, id, dir)
	second, err := shake(t, p, a.ServerTLS())
	if err != nil || second == first {
		t.Errorf("after the files were replaced the control plane sees %q, %v; before: %q", second, err, first)
	}
	if err := os.Remove(filepath.Join(dir, authority.EnvoyIdentityFile)); err != nil {
		t.Fatal(err)
	}
	if now, err := shake(t, p, a.ServerTLS()); err != nil || now != second {
		t.Errorf("without the files the control plane sees %q, %v; want what there was", now, err)
	}

	a.Forget(id)
	secrets, err := a.Secrets(id)
	if err != nil {
		t.Fatal(err)
	}
	write(t, a, id, dir)
	a.Forget(id)
	for _, s := range secrets {
		p.told(parsed(t, s))
	}
	third, err := shake(t, p, a.ServerTLS())
	if want := secretSerial(t, secrets[0]); err != nil || third != id+" "+want {
		t.Errorf("the control plane sees %q, %v; want the certificate that it told, %s", third, err, want)
	}

	other, _, _ := newAuthorityOf(t, "web")
	if _, err := shake(t, p, other.ServerTLS()); err == nil {
		t.Error("a control plane of another root is taken")
	}
	c, err := a.Credentials(id) // of the same root, and somebody else
	if err != nil {
		t.Fatal(err)
	}
	pair, err := c.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	_, err = shake(t, p, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
	if err == nil || !strings.Contains(err.Error(), "the server is "+id+", and not the control plane") {
		t.Errorf("a server that is no control plane: %v", err)
	}
}

func parsed(t *testing.T, s *tlsv3.Secret) *config.Secret {
	t.Helper()
	b, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out, err := config.ParseSecret(b, false)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func secretSerial(t *testing.T, s *tlsv3.Secret) string {
	t.Helper()
	c, err := x509.ParseCertificate(parsed(t, s).Certificate.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return c.SerialNumber.String()
}

// TestCredentialsMissing: without what the proxy is to prove itself by it does not start, and says where it looked.
func TestCredentialsMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{}", `{"resources": [{}]}`, "\x00"} {
		if text != "" {
			for _, name := range []string{authority.EnvoyIdentityFile, authority.EnvoyRootsFile} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		o := Options{XDS: "127.0.0.1:1", Credentials: dir, Workers: 1}
		err := Run(t.Context(), o, role.NewConn(strings.NewReader(""), nil))
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, authority.EnvoyRootsFile)) {
			t.Errorf("with %q there: %v", text, err)
		}
	}
}
