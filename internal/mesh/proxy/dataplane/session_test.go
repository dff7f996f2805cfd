package dataplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"tare/internal/mesh/proxy/config"
)

// authority signs certificates of a test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	c, key := signed(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	return authority{c, key}
}

// signed is a certificate, of itself where there is no authority.
func signed(t *testing.T, c *x509.Certificate, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if by == nil {
		by = &authority{c, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by.certificate, key.Public(), by.key)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}

// identity is a secret with a certificate of an authority.
func (a authority) identity(t *testing.T) *config.Secret {
	t.Helper()
	c, key := signed(t, &x509.Certificate{
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/peer"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, &a)
	return &config.Secret{Name: "me", Certificate: &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key}}
}

// rootsOf is a secret with the roots of authorities.
func rootsOf(all ...authority) *config.Secret {
	s := &config.Secret{Name: "roots", Roots: x509.NewCertPool()}
	digest := sha256.New()
	for _, a := range all {
		s.Roots.AddCert(a.certificate)
		digest.Write(a.certificate.Raw)
	}
	digest.Sum(s.Trust[:0])
	return s
}

// knows gives a proxy its secrets.
func knows(p *Proxy, secrets ...*config.Secret) {
	all := map[string]*config.Secret{}
	for _, s := range secrets {
		all[s.Name] = s
	}
	p.secrets.Store(&all)
}

// TestSessionsOfRoots: a session is resumed as long as both sides have the roots by which it began, and then not: the
// connection begins a new one, or fails as it must where a certificate is of a root that is trusted no more.
func TestSessionsOfRoots(t *testing.T) {
	for version, name := range map[uint16]string{tls.VersionTLS12: "1.2", tls.VersionTLS13: "1.3"} {
		t.Run(name, func(t *testing.T) {
			old, next := newAuthority(t), newAuthority(t)
			server, client := New(func(string) {}), New(func(string) {})
			for _, p := range []*Proxy{server, client} {
				knows(p, old.identity(t), rootsOf(old))
			}
			asServer := server.serverTLS(&config.ServerTLS{Identity: "me", Roots: "roots", Require: true, MinVersion: version})
			asServer.MaxVersion = version
			newClient := func() func() *tls.Config {
				return client.clientTLS(&config.ClientTLS{Identity: "me", Roots: "roots", ServerName: "test", Sessions: 1,
					MinVersion: version})
			}
			asClient := newClient()
			connect := func() (resumed bool, err error) {
				c := asClient()
				c.MaxVersion = version
				return meet(t, asServer, c)
			}
			dial := func(what string, resumes bool) {
				t.Helper()
				resumed, err := connect()
				if err != nil || resumed != resumes {
					t.Fatalf("%s: resumed %t, want %t; %v", what, resumed, resumes, err)
				}
			}
			dial("the first", false)
			dial("the second", true)
			knows(server, old.identity(t), rootsOf(old))
			dial("another certificate of the server", true)
			knows(server, old.identity(t), rootsOf(old, next))
			dial("another root at the server", false)
			dial("that again", true)
			knows(client, old.identity(t), rootsOf(old, next))
			dial("another root at the client", false)
			knows(server, next.identity(t), rootsOf(old, next))
			knows(client, next.identity(t), rootsOf(old, next))
			dial("certificates of the other root", true) // verified again by the roots, which are the same
			knows(server, next.identity(t), rootsOf(next))
			dial("the old root is gone at the server", false)
			knows(client, next.identity(t), rootsOf(next))
			dial("and at the client", false)
			dial("and that again", true)

			// Whoever still has a certificate of the old root is refused, with a session or without.
			knows(client, old.identity(t), rootsOf(next))
			dial("a session that began with a certificate of the new root", true)
			asClient = newClient() // without a session
			if _, err := connect(); err == nil {
				t.Error("a certificate of the old root is taken")
			}
		})
	}
}

// TestRefusedSessions: a session that was marked with roots by which its certificate is refused is refused once, and
// all that were given before it are of no more use.
func TestRefusedSessions(t *testing.T) {
	old, next := newAuthority(t), newAuthority(t)
	server, client := New(func(string) {}), New(func(string) {})
	knows(server, next.identity(t), rootsOf(old, next))
	knows(client, old.identity(t), rootsOf(next))
	asServer := server.serverTLS(&config.ServerTLS{Identity: "me", Roots: "roots", Require: true})
	asClient := client.clientTLS(&config.ClientTLS{Identity: "me", Roots: "roots", ServerName: "test", Sessions: 1})
	dial := func() (bool, error) {
		return meet(t, asServer, asClient())
	}
	if resumed, err := dial(); err != nil || resumed {
		t.Fatal(resumed, err)
	}
	dropped := rootsOf(next)
	dropped.Trust = rootsOf(old, next).Trust // the root was dropped between verifying and marking
	knows(server, next.identity(t), dropped)
	if _, err := dial(); err == nil {
		t.Error("a session is resumed whose root is trusted no more")
	}
	knows(client, next.identity(t), rootsOf(next))
	if resumed, err := dial(); err != nil || resumed {
		t.Errorf("after that: resumed %t, %v", resumed, err)
	}
}

// TestLongChains: neither side verifies a single certificate of a peer that shows more than an authority makes, though
// the peer's own is good.
func TestLongChains(t *testing.T) {
	a := newAuthority(t)
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, SerialNumber: big.NewInt(1)}
	slow, err := x509.CreateCertificate(rand.Reader, template, template, p521.Public(), p521)
	if err != nil {
		t.Fatal(err)
	}
	for more, good := range map[int]bool{0: true, 1: false, 110: false} {
		for _, long := range []string{"client", "server"} {
			server, client := New(func(string) {}), New(func(string) {})
			shows, verifies := client, server
			if long == "server" {
				shows, verifies = server, client
			}
			identity := a.identity(t)
			for range more {
				identity.Certificate.Certificate = append(identity.Certificate.Certificate, slow)
			}
			verified := 0
			counting := rootsOf(a)
			counting.Roots = x509.NewCertPool()
			counting.Roots.AddCertWithConstraint(a.certificate, func([]*x509.Certificate) error { verified++; return nil })
			knows(shows, identity, rootsOf(a))
			knows(verifies, a.identity(t), counting)
			_, err := meet(t, server.serverTLS(&config.ServerTLS{Identity: "me", Roots: "roots", Require: true}),
				client.clientTLS(&config.ClientTLS{Identity: "me", Roots: "roots", ServerName: "test"})())
			if (err == nil) != good || (verified > 0) != good {
				t.Errorf("a %s with %d more certificates: verified %d times, %v", long, more, verified, err)
			}
		}
	}
}

// meet has a client and a server shake hands, and a byte go each way, so that tickets and refusals arrive.
func meet(t *testing.T, server, client *tls.Config) (resumed bool, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		c := tls.Server(raw, server)
		defer c.Close()
		_, err = io.CopyN(c, c, 1)
		served <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		<-served
		return false, err
	}
	defer c.Close()
	if _, err = c.Write([]byte{1}); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if ours := <-served; err == nil {
		err = ours
	}
	return c.ConnectionState().DidResume, err
}
