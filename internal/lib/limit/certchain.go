package limit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

const (
	// MaxCertificates is the maximum number of certificates that a peer may present: its own, intermediates, and possibly
	// the root. Tare's authorities sign only leaves; other control planes may have one or two intermediates.
	MaxCertificates = 4
	// MaxRSA is the maximum length of the modulus of an RSA key in a chain, in bits.
	MaxRSA = 4096
)

// ErrNoCertificate means that a peer has not presented a certificate.
var ErrNoCertificate = errors.New("the peer has shown no certificate")

// CheckCertificates returns an error unless the certificates that a peer has presented can be verified at a bounded
// cost: at most MaxCertificates, with ECDSA keys on P-256 or P-384, or RSA keys of at most MaxRSA bits. It does not
// verify them.
func CheckCertificates(shown []*x509.Certificate) error {
	if len(shown) > MaxCertificates {
		return fmt.Errorf("the peer has shown %d certificates; at most %d are verified", len(shown), MaxCertificates)
	}
	for i, c := range shown {
		switch key := c.PublicKey.(type) {
		case *ecdsa.PublicKey:
			if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
				continue
			}
		case *rsa.PublicKey:
			if key.N.BitLen() <= MaxRSA {
				continue
			}
		}
		return fmt.Errorf("certificate %d of %d that the peer has shown has a key other than ECDSA on P-256 or P-384, "+
			"or RSA of at most %d bits", i+1, len(shown), MaxRSA)
	}
	return nil
}

// VerifyCertificates verifies the certificates that a peer has presented, its own first, for the given time and use
// (server or client), and returns the chains to roots. It rejects what CheckCertificates rejects.
//
// A peer makes others verify its certificates before it has proved that it holds any key. For one chain crypto/x509
// tries up to 100 signatures, with keys that the peer has chosen, which can take 150 ms of CPU time per connection. So
// long chains and slow keys are rejected before the first signature is checked.
//
// crypto/tls has no hook before its own verification of a client. Servers must therefore only request a certificate,
// and verify it themselves, in resumed sessions too:
//
//	config.ClientAuth = tls.RequireAnyClientCert // or tls.RequestClientCert
//	config.ClientCAs = roots                     // which are named to clients
//	config.VerifyConnection = func(s tls.ConnectionState) error {
//		_, err := limit.VerifyCertificates(s.PeerCertificates, roots, x509.ExtKeyUsageClientAuth, time.Now())
//		return err
//	}
func VerifyCertificates(
	shown []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage, now time.Time,
) ([][]*x509.Certificate, error) {
	if len(shown) == 0 {
		return nil, ErrNoCertificate
	}
	if err := CheckCertificates(shown); err != nil {
		return nil, err
	}
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	return shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
	})
}
