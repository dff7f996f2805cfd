package authority

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"tare/internal/lib/limit"
)

// ServerTLS returns the TLS configuration of the control plane's listener: TLS 1.3, with a certificate of the identity
// ControlPlane, which is renewed automatically. If a client shows a certificate, it is verified against the current
// roots. Identity and RequireIdentity decide which clients must show one. A gRPC server uses ServerCredentials instead.
func (a *Authority) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return a.serverTLS() },
	}
}

// serverTLS returns the current configuration. Connections share it, because even an idle one keeps its configuration.
func (a *Authority) serverTLS() (*tls.Config, error) {
	s, err := a.server()
	if err != nil {
		return nil, err
	}
	return s.config, nil
}

// WebTLS returns the TLS configuration of a listener whose peers, such as API servers, have no identity in the mesh
// and verify the control plane by one of Options.OwnNames. It requests no client certificate. It allows TLS 1.2 and
// 1.3, HTTP/2 and HTTP/1.1.
func (a *Authority) WebTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			s, err := a.server()
			if err != nil {
				return nil, err
			}
			return &s.pair, nil
		},
	}
}

// serving holds the control plane's certificate and configuration, until the certificate is due or the trust changes.
type serving struct {
	trust  *trust
	due    time.Time
	pair   tls.Certificate
	config *tls.Config // ServerTLS
}

// server returns the control plane's certificate and configuration. It renews the certificate first if it is due or the
// trust has changed.
func (a *Authority) server() (*serving, error) {
	if s := a.served.Load(); s != nil && s.trust == a.trust.Load() && time.Now().Before(s.due) {
		return s, nil
	}
	e, t, err := a.filled(&a.own, func(e *entry) bool { return time.Now().Before(e.due) })
	if err != nil {
		return nil, err
	}
	pair, err := e.credentials(t).Certificate()
	if err != nil {
		return nil, err
	}
	s := &serving{trust: t, due: e.due, pair: pair, config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair},
		// proofOf verifies the client's certificate, if there is one: crypto/tls would verify chains of any length.
		ClientAuth: tls.RequestClientCert, ClientCAs: t.pool, VerifyConnection: func(s tls.ConnectionState) error {
			_, err := a.proofOf(s.PeerCertificates)
			return err
		},
		SessionTicketsDisabled: true, // so that each connection is verified with the current roots and time
	}}
	a.served.Store(s)
	return s, nil
}

// ErrNoCertificate means that a peer has shown no certificate.
var ErrNoCertificate = limit.ErrNoCertificate

// Identity returns the SPIFFE ID of the peer of a gRPC call or stream, from the certificate of its connection. It
// returns an error if there is no certificate, if it has expired since the handshake, or if its root is no longer
// trusted.
func (a *Authority) Identity(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", ErrNoCertificate
	}
	info, ok := p.AuthInfo.(peerInfo)
	if !ok || info.proof == nil {
		return "", ErrNoCertificate
	}
	if err := info.proof.check(time.Now(), a.trust.Load().roots); err != nil {
		return "", err
	}
	return info.proof.id, nil
}

// Authorize returns a gRPC error (Unauthenticated or PermissionDenied), and logs the refusal, unless the peer has the
// wanted identity.
func (a *Authority) Authorize(ctx context.Context, want string) error {
	id, err := a.Identity(ctx)
	if err != nil {
		a.refuse(ctx, "the resources of %s: %s", shown(want), err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if id != want {
		a.refuse(ctx, "%s the resources of %s", id, shown(want))
		return status.Errorf(codes.PermissionDenied, "these resources are not for %s", id)
	}
	return nil
}

// addressOf returns a peer's host, as limits count it, and its address.
func addressOf(ctx context.Context) (host, address string) {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return hostOf(p.Addr), p.Addr.String()
	}
	return "", "unknown address"
}

// RequireIdentity returns an interceptor for servers whose calls are all streams, such as those of xDS and of Service.
// It refuses calls from peers without an identity before it reads anything from them, except calls to Service, which
// authenticates its peers itself.
func (a *Authority) RequireIdentity() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod != methodName {
			if _, err := a.Identity(stream.Context()); err != nil {
				return status.Error(codes.Unauthenticated, err.Error())
			}
		}
		return handler(srv, stream)
	}
}

// ClientTLS returns the TLS configuration of a client in Go. It requires TLS 1.3 or later, and accepts only servers
// with one of the given identities, at any address. own returns the client's current credentials; if they have no
// certificate (Chain), the client shows none.
func ClientTLS(own func() (Credentials, error), servers ...string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // host names mean nothing here: VerifyConnection checks chain and identity
		VerifyConnection: func(state tls.ConnectionState) error {
			c, err := own()
			if err != nil {
				return err
			}
			pool, err := c.Pool()
			if err != nil {
				return err
			}
			id, err := Verify(state.PeerCertificates, pool, x509.ExtKeyUsageServerAuth, time.Now())
			if err == nil && !slices.Contains(servers, id) {
				err = fmt.Errorf("the server is %s, and not %s", id, servers)
			}
			return err
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := own()
			if err != nil || len(c.Chain) == 0 {
				return &tls.Certificate{}, err
			}
			pair, err := c.Certificate()
			return &pair, err
		},
	}
}

// Verify verifies the certificates that a peer has shown, the peer's own first, for a use (server or client) at the
// given time, and returns the peer's SPIFFE ID.
func Verify(shown []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage, now time.Time) (string, error) {
	if _, err := limit.VerifyCertificates(shown, roots, use, now); err != nil {
		return "", fmt.Errorf("the peer's certificate: %w", err)
	}
	return idOf(shown[0])
}
