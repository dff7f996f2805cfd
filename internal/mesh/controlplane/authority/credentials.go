package authority

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"tare/internal/lib/fault"
)

// Key is a private key as PEM (PKCS #8). It prints as a placeholder, so that no log, error or JSON document contains
// it. Use []byte(k) for the key itself.
type Key []byte

const hiddenKey = "(private key)"

// Format writes a placeholder instead of the key, whatever the verb.
func (Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hiddenKey) }

// String returns a placeholder instead of the key.
func (Key) String() string { return hiddenKey }

// LogValue returns a placeholder instead of the key.
func (Key) LogValue() slog.Value { return slog.StringValue(hiddenKey) }

// MarshalText returns a placeholder instead of the key.
func (Key) MarshalText() ([]byte, error) { return []byte(hiddenKey), nil }

// MarshalYAML returns a placeholder instead of the key, which YAML would write as a list of numbers.
func (Key) MarshalYAML() (any, error) { return hiddenKey, nil }

// Credentials are the certificate and key of one identity, and the roots that it trusts. Authority.Credentials makes
// them for proxies that are configured by files; an Agent gets them from a control plane.
type Credentials struct {
	ID        string    // spiffe://TRUST_DOMAIN/ns/NAMESPACE/sa/ACCOUNT
	Chain     []byte    // its certificate in PEM; just one, because the roots sign directly
	Key       Key       // the certificate's private key
	Roots     []byte    // certificates of all trusted roots in PEM: one, or two during a rollover
	NotBefore time.Time // of the certificate; before it was issued, because the clocks of peers may be behind
	NotAfter  time.Time // of the certificate
}

// The files that WriteFiles writes.
const (
	// IdentityFile has the certificate, then its key, both in PEM, so that one rename changes both. HAProxy takes it as
	// "crt", nginx as ssl_certificate and as ssl_certificate_key (proxy_ssl_ likewise), OpenSSL as -cert and -key,
	// tls.LoadX509KeyPair as both of its files.
	IdentityFile = "identity.pem"
	// RootsFile has the certificates of all trusted roots as PEM. HAProxy takes it as "ca-file", nginx as
	// ssl_client_certificate and proxy_ssl_trusted_certificate.
	RootsFile = "roots.pem"
)

// WriteFiles writes IdentityFile and RootsFile into a directory, both with mode 0600, for proxies that are configured
// by files. Existing files are replaced by rename: a reader sees the old file or the new one, complete. The roots are
// written first, so that a proxy that reads both always has the root of its certificate. The proxy must reload the
// files afterwards.
//
// The directory must belong to this user or root, and no other user may be able to write to it. The caller must remove
// the directory (see internal/lib/files). Errors never contain the key.
func (c Credentials) WriteFiles(dir string) error {
	d, err := openPrivate(dir)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.write(RootsFile, c.Roots); err != nil {
		return err
	}
	return d.write(IdentityFile, c.pair())
}

// pair returns the content of IdentityFile.
func (c Credentials) pair() []byte { return append(bytes.Clone(c.Chain), c.Key...) }

// ReadFiles reads the files that WriteFiles writes. The same conditions apply to the directory.
func ReadFiles(dir string) (Credentials, error) {
	d, err := openPrivate(dir)
	if err != nil {
		return Credentials{}, err
	}
	defer d.close()
	pair, err := d.read(IdentityFile)
	if err != nil {
		return Credentials{}, err
	}
	roots, err := d.read(RootsFile)
	if err != nil {
		return Credentials{}, err
	}
	var c Credentials
	for block := range blocks(pair) {
		switch text := pem.EncodeToMemory(block); block.Type {
		case certificateBlock:
			c.Chain = append(c.Chain, text...)
		case keyBlock:
			c.Key = text
		}
	}
	c.Roots = roots
	if err := c.check(); err != nil {
		return Credentials{}, fault.Wrap(err, fault.Usage, d.at(IdentityFile), "", "these are not credentials of a proxy")
	}
	return c, nil
}

// check checks that the certificate and key belong together, and fills in the fields that the certificate determines.
func (c *Credentials) check() error {
	pair, err := c.Certificate()
	if err != nil {
		return err
	}
	id, err := idOf(pair.Leaf)
	c.ID, c.NotBefore, c.NotAfter = id, pair.Leaf.NotBefore, pair.Leaf.NotAfter
	return err
}

// ControlPlane returns the identity of the control plane of the same trust domain.
func (c Credentials) ControlPlane() (string, error) {
	domain, err := domainOf(c.ID)
	if err != nil {
		return "", err
	}
	return ControlPlane(domain), nil
}

// Certificate returns the certificate with its key for crypto/tls.
func (c Credentials) Certificate() (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(c.Chain, c.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the certificate and key of %s: %w", c.ID, err)
	}
	return pair, nil
}

// Pool returns the trusted roots for crypto/tls.
func (c Credentials) Pool() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.Roots) {
		return nil, errors.New("there is no certificate of a root")
	}
	return pool, nil
}

// Types of PEM blocks.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	requestBlock     = "CERTIFICATE REQUEST"
)

// CheckDirectory returns an error of code fault.Usage unless a directory meets the conditions of WriteFiles.
func CheckDirectory(path string) error {
	d, err := openPrivate(path)
	if err != nil {
		return err
	}
	d.close()
	return nil
}
