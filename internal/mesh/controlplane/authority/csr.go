package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxRequest is the maximum length of a certificate request in bytes. One for P-384 with a long identity has about 1
// KiB.
const maxRequest = 8 << 10

// errOther means that a request is for an identity other than the peer's.
var errOther = errors.New("the request is for another identity")

// parseRequest parses a certificate request of a peer whose identity is id, and returns its public key. The
// certificate takes nothing from the request but the key. A request for another identity, or for names of other kinds,
// is an error.
func parseRequest(text, id string) (*ecdsa.PublicKey, error) {
	if len(text) > maxRequest {
		return nil, fmt.Errorf("the request has %d bytes, more than %d", len(text), maxRequest)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != requestBlock || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the request is not one PEM block of type " + requestBlock)
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	// The key is checked first, because verifying the signature of an RSA key can take as long as the peer chooses.
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
		return nil, fmt.Errorf("the request has a key of type %s: use ECDSA on P-256 or P-384", r.PublicKeyAlgorithm)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request is not signed with its key: %w", err)
	}
	if len(r.DNSNames)+len(r.IPAddresses)+len(r.EmailAddresses) > 0 {
		return nil, errors.New("the request wants other names than a SPIFFE ID")
	}
	for _, u := range r.URIs {
		if u.String() != id {
			return nil, fmt.Errorf("%w, %s", errOther, shown(u.String()))
		}
	}
	return key, nil
}
