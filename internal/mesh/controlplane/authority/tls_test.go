package authority

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"tare/test/port"
)

// handshake connects a client with credentials to the authority's server, and returns the context of a call as gRPC
// would make it. The connection stays open until the test ends.
func handshake(t *testing.T, a *Authority, c Credentials, maximum uint16) (context.Context, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	type accepted struct {
		info credentials.AuthInfo
		err  error
	}
	done := make(chan accepted, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- accepted{err: err}
			return
		}
		server, info, err := a.ServerCredentials().ServerHandshake(conn)
		if err == nil {
			_, err = server.Write([]byte("x"))
		}
		done <- accepted{info, err}
		if err != nil {
			_ = conn.Close()
			return
		}
		t.Cleanup(func() { _ = conn.Close() })
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	config := ClientTLS(func() (Credentials, error) { return c, nil }, ControlPlane(DefaultTrustDomain))
	config.MaxVersion, config.NextProtos = maximum, []string{"h2"}
	if maximum != 0 {
		config.MinVersion = maximum
	}
	client := tls.Client(conn, config)
	err = client.HandshakeContext(t.Context())
	if err == nil {
		_, err = client.Read(make([]byte, 1))
	} else {
		_ = conn.Close()
	}
	server := <-done
	if err == nil {
		err = server.err
	}
	return peer.NewContext(t.Context(), &peer.Peer{Addr: conn.LocalAddr(), AuthInfo: server.info}), err
}

func TestServerTLS(t *testing.T) {
	var log logged
	a := newAuthority(t, Options{Log: log.add})
	web := credentialsOf(t, a, webID)
	anonymous := Credentials{Roots: a.RootsPEM()}
	foreign := credentialsOf(t, newAuthority(t, Options{}), webID)
	foreign.Roots = a.RootsPEM()
	ended := forged(t, a, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })
	early := forged(t, a, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })
	two := forged(t, a, func(c *x509.Certificate) { c.URIs = uris(webID, apiID) })
	server := forged(t, a, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	signs := forged(t, a, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign })
	distrusting := web
	distrusting.Roots = newAuthority(t, Options{}).RootsPEM()
	for _, c := range []struct {
		name    string
		client  Credentials
		version uint16
		good    bool
		id      string
	}{
		{"a proxy", web, 0, true, webID}, {"nobody", anonymous, 0, true, ""},
		{"TLS 1.2", web, tls.VersionTLS12, false, ""}, {"another authority's", foreign, 0, false, ""},
		{"ended", ended, 0, false, ""}, {"not begun", early, 0, false, ""}, {"two identities", two, 0, false, ""},
		{"not for clients", server, 0, false, ""}, {"may sign lists", signs, 0, false, ""},
		{"a client with other roots", distrusting, 0, false, ""},
	} {
		ctx, err := handshake(t, a, c.client, c.version)
		if (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err != nil {
			continue
		}
		if id, err := a.Identity(ctx); id != c.id || (err == nil) != (c.id != "") {
			t.Errorf("%s is %q, %v; want %q", c.name, id, err, c.id)
		}
	}
	ctx, err := handshake(t, a, web, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Authorize(ctx, webID) != nil || status.Code(a.Authorize(ctx, apiID)) != codes.PermissionDenied {
		t.Error("a proxy does not get its own, or gets another's")
	}
	if !strings.Contains(log.String(), webID) || !strings.Contains(log.String(), apiID) {
		t.Errorf("the refusal is not logged: %s", &log)
	}
	if status.Code(a.Authorize(t.Context(), webID)) != codes.Unauthenticated {
		t.Error("who has not connected gets something")
	}
}

// TestLongChains: a peer that shows more certificates than an authority makes is refused before one is verified, even
// though its own certificate is valid.
func TestLongChains(t *testing.T) {
	a := newAuthority(t, Options{})
	verified := 0
	counting := *a.trust.Load()
	counting.pool = x509.NewCertPool()
	counting.pool.AddCertWithConstraint(counting.issuing.certificate, func([]*x509.Certificate) error {
		verified++
		return nil
	})
	a.trust.Store(&counting)
	web := credentialsOf(t, a, webID)
	slow := slowCertificate(t)
	for _, c := range []struct {
		name     string
		more     []byte
		good     bool
		verified int
	}{
		{"a leaf", nil, true, 1},
		{"with three roots", bytes.Repeat(a.RootsPEM(), 3), true, 1},
		{"with four", bytes.Repeat(a.RootsPEM(), 4), false, 0},
		{"with a slow key", slow, false, 0},
		{"with 110", bytes.Repeat(slow, 110), false, 0},
	} {
		shown := web
		shown.Chain = append(slices.Clip(web.Chain), c.more...)
		verified = 0
		ctx, err := handshake(t, a, shown, 0)
		if (err == nil) != c.good || verified != c.verified {
			t.Errorf("%s: verified %d times, %v", c.name, verified, err)
		}
		if id, _ := a.Identity(ctx); c.good && id != webID {
			t.Errorf("%s is %q", c.name, id)
		}
	}
}

// slowCertificate makes a certificate of an unknown authority, with a key whose signatures take long to verify.
func slowCertificate(t *testing.T) []byte {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})
}

// TestIdentityEnds: an open connection has no identity once its certificate has expired or its root was dropped.
func TestIdentityEnds(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, Options{})
	var short Credentials
	var ctx context.Context
	for life := 2 * time.Second; ; life *= 2 { // longer if a slow machine lets it expire before it is used
		short = forged(t, a, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(life) })
		var id string
		var err error
		if ctx, err = handshake(t, a, short, 0); err == nil {
			id, err = a.Identity(ctx)
		}
		if id == webID {
			break
		}
		if life > time.Minute {
			t.Fatalf("%q, %v", id, err)
		}
	}
	long, err := handshake(t, a, credentialsOf(t, a, webID), 0)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(leafOf(t, short).NotAfter) + 10*time.Millisecond)
	if id, err := a.Identity(ctx); err == nil {
		t.Errorf("it is %s after its end", id)
	}
	for range 2 {
		if err := a.Advance(true); err != nil {
			t.Fatal(err)
		}
		if id, err := a.Identity(long); id != webID {
			t.Errorf("the old root in the stage %q: %v", a.Rollover().Stage, err)
		}
	}
	if err := a.Advance(true); err != nil {
		t.Fatal(err)
	}
	if id, err := a.Identity(long); err == nil {
		t.Errorf("it is %s without its root", id)
	}
	if _, err := handshake(t, a, credentialsOf(t, a, webID), 0); err != nil {
		t.Errorf("a fresh one: %v", err)
	}
}

// sClient runs OpenSSL's client, which must print "Verify return code: 0" to succeed, and sends it a line.
func sClient(t *testing.T, address, dir string, arguments ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "openssl", append([]string{"s_client", "-connect", address,
		"-verify_return_error", "-CAfile", filepath.Join(dir, RootsFile)}, arguments...)...)
	c.Stdin = strings.NewReader("hello\n")
	out, err := c.CombinedOutput()
	if err == nil && !strings.Contains(string(out), "Verify return code: 0 (ok)") {
		err = fmt.Errorf("not verified")
	}
	return string(out), err
}

// TestNames: peers that can only verify host names find the DNS name of an identity, and certificates are otherwise as
// without names.
func TestNames(t *testing.T) {
	a := newAuthority(t, Options{Names: func(id string) []string { return []string{path.Base(id) + ".mesh.local"} }})
	c := credentialsOf(t, a, webID)
	if names := leafOf(t, c).DNSNames; len(names) != 1 || names[0] != "web.mesh.local" {
		t.Errorf("%q", names)
	}
	dir := t.TempDir()
	if err := c.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, IdentityFile)
	for name, good := range map[string]bool{"web.mesh.local": true, "api.mesh.local": false} {
		out, err := exec.Command("openssl", "verify", "-x509_strict", "-verify_hostname", name, "-CAfile",
			filepath.Join(dir, RootsFile), own).CombinedOutput()
		if (err == nil) != good {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	ctx, err := handshake(t, a, c, 0)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := a.Identity(ctx); id != webID {
		t.Errorf("%q, %v", id, err)
	}
}

// TestOpenSSLPeers connects OpenSSL's client to the control plane's listener, and to OpenSSL's own server with the
// files of WriteFiles on both sides.
func TestOpenSSLPeers(t *testing.T) {
	a := newAuthority(t, Options{})
	dir := t.TempDir()
	if err := credentialsOf(t, a, webID).WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, IdentityFile)
	address := serve(t, a, ServiceOptions{})
	for name, arguments := range map[string][]string{
		"without a certificate": nil, "with one": {"-cert", own, "-key", own},
	} {
		out, err := sClient(t, address, dir, append(arguments, "-alpn", "h2")...)
		if err != nil || !strings.Contains(out, "TLSv1.3") || !strings.Contains(out, "ALPN protocol: h2") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	if out, err := sClient(t, address, dir, "-tls1_2"); err == nil {
		t.Errorf("TLS 1.2 was taken: %s", out)
	}

	taken := port.Free(t)
	server := exec.CommandContext(t.Context(), "openssl", "s_server", "-accept", taken, "-cert", own, "-key", own,
		"-CAfile", filepath.Join(dir, RootsFile), "-Verify", "1", "-verify_return_error", "-rev")
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	server.Stderr = server.Stdout
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	lines := bufio.NewReader(stdout)
	for line := ""; !strings.HasPrefix(line, "ACCEPT"); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("openssl s_server: %v", err)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	dial := func(c Credentials) error {
		conn, err := tls.Dial("tcp", taken, ClientTLS(func() (Credentials, error) { return c, nil }, webID))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("abc\n")); err != nil {
			return err
		}
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && answer != "cba\n" {
			err = fmt.Errorf("the answer is %q", answer)
		}
		return err
	}
	if err := dial(credentialsOf(t, a, apiID)); err != nil {
		t.Error(err)
	}
	if dial(Credentials{Roots: a.RootsPEM()}) == nil {
		t.Error("a client without a certificate was served")
	}
	foreign := credentialsOf(t, newAuthority(t, Options{}), apiID)
	foreign.Roots = a.RootsPEM()
	if dial(foreign) == nil {
		t.Error("a client of another authority was served")
	}
}
