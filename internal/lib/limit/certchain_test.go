package limit

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"tare/test/vm/guest"
)

// signed returns a certificate for a key, signed with another certificate or, if that is nil, with its own key.
func signed(t testing.TB, c, by *x509.Certificate, key, byKey crypto.Signer) *x509.Certificate {
	t.Helper()
	c.SerialNumber, c.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), true
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if by == nil {
		by, byKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, key.Public(), byKey)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ca(name string) *x509.Certificate {
	return &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: name}}
}

// TestVerifyCertificates: a chain is verified once, with its intermediates. A long chain, or one with a key of another
// kind, is not verified at all, even if it is valid.
func TestVerifyCertificates(t *testing.T) {
	guest.KernelFree(t)
	p256, p521 := newKey(t, elliptic.P256()), newKey(t, elliptic.P521())
	root := signed(t, ca("root"), nil, p256, nil)
	first := signed(t, ca("first"), root, p256, p256)
	second := signed(t, ca("second"), first, newKey(t, elliptic.P384()), p256)
	slow := signed(t, ca("slow"), root, p521, p256)
	leafOf := func(by *x509.Certificate, key, byKey crypto.Signer) *x509.Certificate {
		return signed(t, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, by, key, byKey)
	}
	leaf := leafOf(root, p256, p256)
	deep := leafOf(first, p256, p256)
	long := []*x509.Certificate{leaf}
	for range 110 {
		long = append(long, slow)
	}
	verified := 0
	roots := x509.NewCertPool()
	roots.AddCertWithConstraint(root, func([]*x509.Certificate) error { verified++; return nil })
	for name, c := range map[string]struct {
		shown []*x509.Certificate
		want  string // of the error; empty: none
	}{
		"a leaf":                       {[]*x509.Certificate{leaf}, ""},
		"with its root":                {[]*x509.Certificate{leaf, root}, ""},
		"with one between":             {[]*x509.Certificate{deep, first}, ""},
		"four":                         {[]*x509.Certificate{deep, first, second, root}, ""},
		"none":                         {nil, "no certificate"},
		"five":                         {[]*x509.Certificate{deep, first, second, root, root}, "shown 5 certificates"},
		"111":                          {long, "shown 111 certificates"},
		"a slow key beside the chain":  {[]*x509.Certificate{leaf, slow}, "certificate 2 of 2"},
		"a slow key of the peer's own": {[]*x509.Certificate{leafOf(root, p521, p256)}, "certificate 1 of 1"},
		"one that is missing":          {[]*x509.Certificate{deep}, "unknown authority"},
	} {
		verified = 0
		chains, err := VerifyCertificates(c.shown, roots, x509.ExtKeyUsageClientAuth, time.Now())
		if c.want == "" && (err != nil || len(chains) != 1 || verified != 1) {
			t.Errorf("%s: %d chains, verified %d times, %v", name, len(chains), verified, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || verified != 0) {
			t.Errorf("%s: verified %d times, %v; want %q", name, verified, err, c.want)
		}
	}
	if _, err := VerifyCertificates(nil, roots, x509.ExtKeyUsageClientAuth, time.Now()); !errors.Is(err,
		ErrNoCertificate) {
		t.Error(err)
	}
	one := []*x509.Certificate{leaf}
	if _, err := VerifyCertificates(one, roots, x509.ExtKeyUsageServerAuth, time.Now()); err == nil {
		t.Error("a client's certificate is taken for a server's")
	}
	if _, err := VerifyCertificates(one, roots, x509.ExtKeyUsageClientAuth, time.Now().Add(2*time.Hour)); err == nil {
		t.Error("a certificate is good after its end")
	}
}

// TestKeys: keys whose signatures take long to check are refused.
func TestKeys(t *testing.T) {
	guest.KernelFree(t)
	modulus := func(bits uint) *rsa.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), bits-1), E: 65537}
	}
	for _, c := range []struct {
		key  any
		good bool
	}{
		{newKey(t, elliptic.P256()).Public(), true},
		{newKey(t, elliptic.P384()).Public(), true},
		{modulus(2048), true},
		{modulus(4096), true},
		{modulus(4097), false},
		{modulus(8192), false},
		{newKey(t, elliptic.P224()).Public(), false},
		{newKey(t, elliptic.P521()).Public(), false},
		{ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)), false},
		{nil, false},
	} {
		if err := CheckCertificates([]*x509.Certificate{{PublicKey: c.key}}); (err == nil) != c.good {
			t.Errorf("%T: %v", c.key, err)
		}
	}
}

// BenchmarkWorst verifies MaxCertificates certificates that all look as if they had signed each other, and of which
// none leads to a root.
func BenchmarkWorst(b *testing.B) {
	key := newKey(b, elliptic.P384())
	same := func(i int) *x509.Certificate {
		c := ca("same")
		c.DNSNames = []string{fmt.Sprint(i)} // otherwise they would count as one
		return c
	}
	top := signed(b, same(0), nil, key, nil)
	shown := []*x509.Certificate{signed(b, &x509.Certificate{}, top, key, key)}
	for i := 1; i < MaxCertificates; i++ {
		shown = append(shown, signed(b, same(i), top, key, key))
	}
	roots := x509.NewCertPool()
	roots.AddCert(signed(b, ca("root"), nil, newKey(b, elliptic.P256()), nil))
	for b.Loop() {
		if _, err := VerifyCertificates(shown, roots, x509.ExtKeyUsageClientAuth, time.Now()); err == nil {
			b.Fatal("it is verified")
		}
	}
}
