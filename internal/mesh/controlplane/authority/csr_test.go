package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

func csr(t testing.TB, key crypto.Signer, template x509.CertificateRequest) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der}))
}

func uris(texts ...string) []*url.URL {
	var all []*url.URL
	for _, s := range texts {
		all = append(all, must(url.Parse(s)))
	}
	return all
}

// rsa512 makes a request with OpenSSL, signed with a key so small that Go refuses to make it.
func rsa512(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("openssl", "req", "-new", "-newkey", "rsa:512", "-nodes", "-keyout", "/dev/null",
		"-subj", "/").Output()
	if err != nil || !bytes.Contains(out, []byte(requestBlock)) {
		t.Fatalf("openssl req: %v: %s", err, out)
	}
	return string(out)
}

// rsa2048 is made once, because it takes a while.
var rsa2048 = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })

func hostile(t testing.TB) map[string]string {
	p256 := must(newKey())
	web := x509.CertificateRequest{URIs: uris(webID)}
	good := csr(t, p256, web)
	block, _ := pem.Decode([]byte(good))
	forged := bytes.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big := x509.CertificateRequest{URIs: web.URIs, Subject: pkix.Name{CommonName: strings.Repeat("x", 2*maxRequest)}}
	return map[string]string{
		"empty":             "",
		"text":              "hello",
		"a certificate":     string(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: block.Bytes})),
		"not a request":     string(pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: []byte{1, 2, 3}})),
		"two":               good + good,
		"more behind":       good + "x",
		"cut":               good[:len(good)/2],
		"forged":            string(pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: forged})),
		"huge":              csr(t, p256, big),
		"huge text":         strings.Repeat("A", 1<<20),
		"RSA 2048":          csr(t, rsa2048(), web),
		"RSA 512":           rsa512(t),
		"P-224":             csr(t, must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)), web),
		"Ed25519":           csr(t, ed, web),
		"another's":         csr(t, p256, x509.CertificateRequest{URIs: uris(apiID)}),
		"another's as well": csr(t, p256, x509.CertificateRequest{URIs: uris(webID, apiID)}),
		"the control plane": csr(t, p256, x509.CertificateRequest{URIs: uris(ControlPlane(DefaultTrustDomain))}),
		"no SPIFFE ID":      csr(t, p256, x509.CertificateRequest{URIs: uris("https://mesh.local/")}),
		"DNS":               csr(t, p256, x509.CertificateRequest{URIs: web.URIs, DNSNames: []string{"api"}}),
		"IP":                csr(t, p256, x509.CertificateRequest{URIs: web.URIs, IPAddresses: []net.IP{{127, 0, 0, 1}}}),
		"mail":              csr(t, p256, x509.CertificateRequest{URIs: web.URIs, EmailAddresses: []string{"a@b.c"}}),
	}
}

func TestHostileRequests(t *testing.T) {
	for name, text := range hostile(t) {
		key, err := parseRequest(text, webID)
		if err == nil || key != nil {
			t.Errorf("%s was taken", name)
			continue
		}
		other := name == "another's" || name == "another's as well" || name == "the control plane" || name == "no SPIFFE ID"
		if errors.Is(err, errOther) != other || len(err.Error()) > 1000 {
			t.Errorf("%s: %.1000s", name, err)
		}
	}
}

// TestRequestSaysNothing: a certificate takes only the key from a request: no subject, no extension, and above all no
// permission to sign certificates.
func TestRequestSaysNothing(t *testing.T) {
	a := newAuthority(t, Options{})
	authority, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	usage, err := asn1.Marshal(asn1.BitString{Bytes: []byte{0x06}, BitLength: 7}) // keyCertSign, cRLSign
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]*ecdsa.PrivateKey{
		"P-256": must(newKey()), "P-384": must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)),
	} {
		for _, names := range [][]*url.URL{nil, uris(webID), uris(webID, webID)} {
			text := csr(t, key, x509.CertificateRequest{
				URIs: names, Subject: pkix.Name{CommonName: "api", Organization: []string{"root"}},
				ExtraExtensions: []pkix.Extension{
					{Id: []int{2, 5, 29, basic}, Critical: true, Value: authority},
					{Id: []int{2, 5, 29, keyUsage}, Critical: true, Value: usage},
				},
			})
			public, err := parseRequest(text, webID)
			if err != nil || !public.Equal(key.Public()) {
				t.Fatalf("%s, %v: %v", name, names, err)
			}
			l, err := a.sign(a.trust.Load(), webID, public, a.o.Life)
			if err != nil {
				t.Fatal(err)
			}
			c := leafOf(t, Credentials{Chain: l.pem})
			if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature || c.Subject.String() != "" || len(c.URIs) != 1 ||
				c.URIs[0].String() != webID || len(c.Extensions) != 5 {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
}

// FuzzRequest: for any input, parseRequest returns an error or a public key on P-256 or P-384, and accepts no private
// key.
func FuzzRequest(f *testing.F) {
	for name, text := range hostile(f) {
		if !strings.HasPrefix(name, "huge") {
			f.Add(text)
		}
	}
	f.Add(csr(f, must(newKey()), x509.CertificateRequest{URIs: uris(webID)}))
	f.Fuzz(func(t *testing.T, text string) {
		key, err := parseRequest(text, webID)
		if err != nil {
			return
		}
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			t.Errorf("a key of %v", key.Curve)
		}
		if strings.Contains(text, "PRIVATE") {
			t.Error("a private key was taken")
		}
	})
}
