package part

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
)

// Secret holds what only a part and its trial know.
type Secret struct {
	Token string // a random text, the same for all parts of the run
	Pod   string // the name of the part's pod: a connection to another part of the run cannot take this one's place
}

// config returns the configuration of both ends of a connection. It is TLS, in which each end proves that it has the
// key that is derived from the secret. The secret is never sent.
func (s Secret) config() (*tls.Config, error) {
	seed := sha256.Sum256([]byte(s.Token + "/" + s.Pod))
	key := ed25519.NewKeyFromSeed(seed[:])
	public := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of a part: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		// Nobody signs the certificates: VerifyConnection compares their keys.
		InsecureSkipVerify: true, SessionTicketsDisabled: true,
		VerifyConnection: func(peer tls.ConnectionState) error {
			if len(peer.PeerCertificates) == 0 || !public.Equal(peer.PeerCertificates[0].PublicKey) {
				return errors.New("the peer does not have the secret of this part")
			}
			return nil
		},
	}, nil
}

// secured is a TLS connection whose Read returns io.EOF at the end even if the peer was killed.
type secured struct{ *tls.Conn }

func (c *secured) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}
