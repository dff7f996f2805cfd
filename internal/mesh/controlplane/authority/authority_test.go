package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const webID = "spiffe://mesh.local/ns/default/sa/web"
const apiID = "spiffe://mesh.local/ns/default/sa/api"

func newAuthority(t testing.TB, o Options) *Authority {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func credentialsOf(t testing.TB, a *Authority, id string) Credentials {
	t.Helper()
	c, err := a.Credentials(id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func leafOf(t testing.TB, c Credentials) *x509.Certificate {
	t.Helper()
	all, err := parseChain(c.Chain)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d certificates, %v; want one", len(all), err)
	}
	return all[0]
}

func verifyAt(c Credentials, roots []byte, at time.Time) error {
	shown, err := parseChain(c.Chain)
	if err != nil {
		return err
	}
	pool, err := Credentials{Roots: roots}.Pool()
	if err != nil {
		return err
	}
	id, err := Verify(shown, pool, x509.ExtKeyUsageClientAuth, at)
	if err == nil && id != c.ID {
		return errors.New("the identity is " + id)
	}
	return err
}

func extension(t *testing.T, c *x509.Certificate, last int) (critical, there bool) {
	t.Helper()
	for _, e := range c.Extensions {
		if e.Id.Equal([]int{2, 5, 29, last}) {
			return e.Critical, true
		}
	}
	return false, false
}

// Numbers of the extensions below 2.5.29.
const (
	keyUsage        = 15
	altName         = 17
	basic           = 19
	nameConstraints = 30
)

// TestSVID checks a leaf and its root against X509-SVID, sections 2 to 4.
func TestSVID(t *testing.T) {
	a := newAuthority(t, Options{})
	before := time.Now()
	leaf := leafOf(t, credentialsOf(t, a, webID))
	roots, err := parseChain(a.RootsPEM())
	if err != nil || len(roots) != 1 {
		t.Fatalf("%d roots, %v", len(roots), err)
	}
	root := roots[0]
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != webID || len(leaf.DNSNames)+len(leaf.IPAddresses) != 0 {
		t.Errorf("the leaf's names: %v %v %v", leaf.URIs, leaf.DNSNames, leaf.IPAddresses)
	}
	names := map[int]string{keyUsage: "key usage", altName: "alternative names", basic: "basic constraints"}
	for number, name := range names {
		if critical, there := extension(t, leaf, number); !critical || !there {
			t.Errorf("the leaf's %s: there %v, critical %v; want both", name, there, critical)
		}
	}
	if leaf.Subject.String() != "" || leaf.IsCA || !leaf.BasicConstraintsValid ||
		leaf.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("the leaf: subject %q, authority %v, usage %b", leaf.Subject, leaf.IsCA, leaf.KeyUsage)
	}
	want := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if !slices.Equal(leaf.ExtKeyUsage, want) {
		t.Errorf("the leaf's extended usage: %v", leaf.ExtKeyUsage)
	}
	for _, c := range []*x509.Certificate{leaf, root} {
		key, ok := c.PublicKey.(*ecdsa.PublicKey)
		if !ok || key.Curve != elliptic.P256() || c.SignatureAlgorithm != x509.ECDSAWithSHA256 {
			t.Errorf("%s: key %T, signature %s", c.URIs, c.PublicKey, c.SignatureAlgorithm)
		}
		if c.SerialNumber.Sign() <= 0 || c.SerialNumber.BitLen() < 100 || c.SerialNumber.BitLen() > 160 {
			t.Errorf("%s: serial number of %d bits", c.URIs, c.SerialNumber.BitLen())
		}
	}
	if len(root.URIs) != 1 || root.URIs[0].String() != "spiffe://mesh.local" || root.KeyUsage != x509.KeyUsageCertSign {
		t.Errorf("the root: %v, usage %b", root.URIs, root.KeyUsage)
	}
	if !root.IsCA || root.MaxPathLen != 0 || !root.MaxPathLenZero || len(root.SubjectKeyId) == 0 {
		t.Errorf("the root: authority %v, path %d", root.IsCA, root.MaxPathLen)
	}
	if critical, there := extension(t, root, nameConstraints); !critical || !there {
		t.Errorf("the root's name constraints: there %v, critical %v", there, critical)
	}
	if d := leaf.NotAfter.Sub(before); d > DefaultLife || d < DefaultLife-2*time.Second {
		t.Errorf("the leaf ends after %s", d)
	}
	if d := before.Sub(leaf.NotBefore); d < DefaultBackdate-time.Second || d > DefaultBackdate+time.Second {
		t.Errorf("the leaf began %s ago", d)
	}
}

func TestSerialsDiffer(t *testing.T) {
	a := newAuthority(t, Options{})
	seen := map[string]bool{}
	for range 100 {
		a.Forget(webID)
		seen[leafOf(t, credentialsOf(t, a, webID)).SerialNumber.String()] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d serial numbers of 100 certificates", len(seen))
	}
}

// TestClocks: peers whose clock is behind by less than Backdate accept a fresh certificate, and no peer accepts an
// expired one.
func TestClocks(t *testing.T) {
	a := newAuthority(t, Options{Life: time.Minute, Backdate: 30 * time.Second})
	c := credentialsOf(t, a, webID)
	now := time.Now()
	for offset, good := range map[time.Duration]bool{
		-25 * time.Second: true, 0: true, 55 * time.Second: true, -35 * time.Second: false, 65 * time.Second: false,
	} {
		if err := verifyAt(c, a.RootsPEM(), now.Add(offset)); (err == nil) != good {
			t.Errorf("by a clock that is %s off: %v", offset, err)
		}
		err := openssl(t, c, a.RootsPEM(), now.Add(offset))
		if (err == nil) != good {
			t.Errorf("OpenSSL by a clock that is %s off: %v", offset, err)
		}
	}
}

// TestForeignTrustDomain: because of the root's name constraints, a certificate that its key signs for another trust
// domain is rejected, even by a peer that verifies only the chain.
func TestForeignTrustDomain(t *testing.T) {
	a := newAuthority(t, Options{})
	for _, c := range []struct {
		id           string
		x509, strict bool // accepted by crypto/x509, which lets subdomains pass, and by OpenSSL
	}{
		{webID, true, true}, {"spiffe://other.local/ns/default/sa/web", false, false}, {"https://other.local/", false, false},
		{"spiffe://sub.mesh.local/ns/a/sa/b", true, false},
	} {
		made := forged(t, a, func(f *x509.Certificate) { f.URIs = uris(c.id) })
		shown, err := parseChain(made.Chain)
		if err != nil {
			t.Fatal(err)
		}
		_, err = shown[0].Verify(x509.VerifyOptions{
			Roots: a.trust.Load().pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if (err == nil) != c.x509 {
			t.Errorf("%s: %v", c.id, err)
		}
		if err := openssl(t, made, a.RootsPEM(), time.Now()); (err == nil) != c.strict {
			t.Errorf("OpenSSL, %s: %v", c.id, err)
		}
		if _, err := handshake(t, a, made, 0); (err == nil) != (c.id == webID) {
			t.Errorf("the control plane, %s: %v", c.id, err)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// forged makes a certificate that the authority's root signs with a modified template, as someone who has stolen the
// root's key could.
func forged(t testing.TB, a *Authority, change func(*x509.Certificate)) Credentials {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, URIs: []*url.URL{must(url.Parse(webID))},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	change(template)
	by := a.trust.Load().issuing
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	return Credentials{
		ID: webID, Chain: pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}), Key: must(keyPEM(key)),
		Roots: a.RootsPEM(),
	}
}

// openssl verifies a certificate with Debian's openssl, strictly, at a given time.
func openssl(t testing.TB, c Credentials, roots []byte, at time.Time) error {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	path, err := exec.LookPath("openssl")
	if err != nil {
		t.Fatalf("test/setup installs openssl: %v", err)
	}
	out, err := exec.Command(path, "verify", "-x509_strict", "-attime", strconv.FormatInt(at.Unix(), 10),
		"-purpose", "sslclient", "-CAfile", write("roots", roots), write("leaf", c.Chain)).CombinedOutput()
	if err != nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Life: time.Millisecond}, {Life: time.Hour, RootLife: time.Minute}, {RenewAfter: 1}, {RenewAfter: -1},
		{MaxIdentities: -1}, {TrustDomain: "Mesh"},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// TestRootEnds: a certificate never outlives its root, and an expired root signs nothing.
func TestRootEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, Options{Life: time.Second, RootLife: time.Second})
		a.o.Life = time.Hour
		c := credentialsOf(t, a, webID)
		if root := a.trust.Load().issuing.certificate; c.NotAfter.After(root.NotAfter) {
			t.Errorf("the leaf ends at %s, its root at %s", c.NotAfter, root.NotAfter)
		}
		time.Sleep(time.Until(c.NotAfter) + 10*time.Millisecond)
		if _, err := a.Credentials(webID); err == nil {
			t.Error("a root that has ended has signed")
		}
	})
}

// checkKey fails the test unless a key belongs to the certificate.
func checkKey(t testing.TB, c Credentials) {
	t.Helper()
	pair, err := c.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	key := pair.PrivateKey.(crypto.Signer)
	if !key.Public().(*ecdsa.PublicKey).Equal(pair.Leaf.PublicKey) {
		t.Error("the key is another's")
	}
}

func BenchmarkIssue(b *testing.B) {
	a := newAuthority(b, Options{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.make(a.trust.Load(), webID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "certificates/s")
}
