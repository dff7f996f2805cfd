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
)

// ServerCredentials are for the control plane's gRPC server: ServerTLS, by which Identity knows the peers. Of what a
// peer has shown a connection keeps what Identity needs and no more, because most connections are idle and a parsed
// certificate is a good part of what one of these costs.
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

// ServerHandshake implements credentials.TransportCredentials. gRPC bounds its time by a deadline of the connection.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.a.serverTLS()
	if err != nil {
		return nil, nil, err
	}
	conn := tls.Server(raw, config)
	info, err := c.a.shake(conn)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, info, nil
}

func (a *Authority) shake(conn *tls.Conn) (peerInfo, error) {
	info := peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	if err := conn.Handshake(); err != nil {
		return info, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		return info, errors.New("the peer does not speak HTTP/2 by ALPN, which gRPC requires")
	}
	var err error
	info.proof, err = a.proofOf(state)
	for _, c := range state.PeerCertificates { // of this connection alone, which nobody asks for them any more
		*c = x509.Certificate{}
	}
	return info, err
}

// peerInfo is what gRPC knows of a peer.
type peerInfo struct {
	credentials.CommonAuthInfo
	proof *proof // nil: it has shown no certificate
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "tls" }

// proof is what a peer's certificate says, for as long as it says so.
type proof struct {
	id     string
	serial *big.Int
	ends   time.Time
	roots  []*x509.Certificate // by which it holds
}

// proofOf is nil for a peer that has shown no certificate.
func (a *Authority) proofOf(state tls.ConnectionState) (*proof, error) {
	if len(state.VerifiedChains) == 0 {
		return nil, nil
	}
	leaf := state.VerifiedChains[0][0]
	id, err := idOf(leaf)
	if err == nil {
		err = CheckIdentity(a.o.TrustDomain, id)
	}
	if err != nil {
		return nil, err
	}
	p := &proof{id: id, serial: leaf.SerialNumber, ends: leaf.NotAfter}
	for _, r := range a.trust.Load().roots {
		if slices.ContainsFunc(state.VerifiedChains, func(chain []*x509.Certificate) bool {
			return r.certificate.Equal(chain[len(chain)-1])
		}) {
			p.roots = append(p.roots, r.certificate)
		}
	}
	return p, nil
}

// check is an error where the certificate has ended, or no root by which it holds is trusted any more.
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
