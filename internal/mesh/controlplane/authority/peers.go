package authority

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"

	"tare/internal/lib/limit"
)

// ServerCredentials returns the credentials of the control plane's gRPC server: ServerTLS, in a form that lets Identity
// find the peer's identity. A connection keeps only what Identity needs of the peer's certificate, because most
// connections are idle, and a parsed certificate would take a large part of the memory of an idle connection.
//
// A peer without a certificate may be about to request its first one, with one call. The number of such connections is
// limited (Options.MaxStrangers), so that they cannot keep proxies from connecting.
func (a *Authority) ServerCredentials() credentials.TransportCredentials {
	return &serverCredentials{credentials.NewTLS(a.ServerTLS()), a}
}

type serverCredentials struct {
	credentials.TransportCredentials
	a *Authority
}

// Clone implements credentials.TransportCredentials.
func (c *serverCredentials) Clone() credentials.TransportCredentials {
	return &serverCredentials{c.TransportCredentials.Clone(), c.a}
}

// ServerHandshake implements credentials.TransportCredentials. gRPC limits its duration with the connection's
// deadline.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.a.serverTLS()
	if err != nil {
		return nil, nil, err
	}
	// The copy, of about 500 bytes, shares everything large with the original. It lets the handshake store the proof in
	// info, so the peer's certificates need not be verified a second time.
	config = config.Clone()
	info := peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	config.VerifyConnection = func(s tls.ConnectionState) (err error) {
		info.proof, err = c.a.proofOf(s.PeerCertificates)
		return err
	}
	conn := tls.Server(raw, config)
	if err := shake(conn); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	limit.Settle(raw)
	if info.proof == nil {
		return c.a.strangers.Add(conn, raw), info, nil
	}
	return conn, info, nil
}

func shake(conn *tls.Conn) error {
	if err := conn.Handshake(); err != nil {
		return err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		return errors.New("the peer does not speak HTTP/2 by ALPN, which gRPC requires")
	}
	for _, c := range state.PeerCertificates { // they belong to this connection, and nothing reads them any more
		*c = x509.Certificate{}
	}
	return nil
}

// peerInfo holds what gRPC keeps about a peer.
type peerInfo struct {
	credentials.CommonAuthInfo
	proof *proof // nil: the peer has shown no certificate
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "tls" }

// proof holds the identity in a peer's verified certificate, and what its validity depends on.
type proof struct {
	id     string
	serial *big.Int
	ends   time.Time
	roots  []*x509.Certificate // the roots that it was verified with
}

// proofOf verifies the certificates that a peer has shown. It returns nil if the peer has shown none.
func (a *Authority) proofOf(shown []*x509.Certificate) (*proof, error) {
	if len(shown) == 0 {
		return nil, nil
	}
	now, trusted := time.Now(), a.trust.Load()
	chains, err := limit.VerifyCertificates(shown, trusted.pool, x509.ExtKeyUsageClientAuth, now)
	if err != nil {
		return nil, fmt.Errorf("the peer's certificate: %w", err)
	}
	leaf := shown[0]
	id, err := idOf(leaf)
	if err == nil {
		err = CheckIdentity(a.o.TrustDomain, id)
	}
	if err != nil {
		return nil, err
	}
	p := &proof{id: id, serial: leaf.SerialNumber, ends: leaf.NotAfter}
	for _, r := range trusted.roots {
		if slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
			return r.certificate.Equal(chain[len(chain)-1])
		}) {
			p.roots = append(p.roots, r.certificate)
		}
	}
	return p, p.check(now, trusted.roots)
}

// check returns an error if the certificate has expired, or no root that it was verified with is still trusted.
func (p *proof) check(now time.Time, trusted []*root) error {
	if now.After(p.ends) {
		return fmt.Errorf("the peer's certificate, %x, ended %s ago", p.serial, now.Sub(p.ends).Round(time.Second))
	}
	for _, r := range p.roots {
		if slices.ContainsFunc(trusted, func(t *root) bool { return t.certificate.Equal(r) }) {
			return nil
		}
	}
	return fmt.Errorf("the root of the peer's certificate, %x, is trusted no more", p.serial)
}
