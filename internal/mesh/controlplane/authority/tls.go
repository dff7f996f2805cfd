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

// ServerTLS is for the control plane's listener: TLS 1.3, with a certificate of the identity ControlPlane that renews
// itself, and certificates of clients checked against the roots of the moment where there are any. Who must have one,
// Identity and RequireIdentity decide. A gRPC server takes ServerCredentials.
func (a *Authority) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return a.serverTLS() },
	}
}

// serverTLS is one for all connections of the moment: idle ones keep theirs.
func (a *Authority) serverTLS() (*tls.Config, error) {
	s, err := a.server()
	if err != nil {
		return nil, err
	}
	return s.config, nil
}

// WebTLS is for a listener of the control plane that peers know by one of Options.OwnNames, such as API servers, which
// have no identity in the mesh: nobody is asked for a certificate. TLS 1.2 or 1.3, HTTP/2 or HTTP/1.1.
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

// serving is what the control plane shows for as long as its certificate is not due and trust stays.
type serving struct {
	trust  *trust
	due    time.Time
	pair   tls.Certificate
	config *tls.Config // ServerTLS
}

// server is what the control plane shows now: its certificate is renewed if it is due or the root has changed.
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
		// A client's certificate, if it shows one, is verified by proofOf: crypto/tls would verify chains of any length.
		ClientAuth: tls.RequestClientCert, ClientCAs: t.pool, VerifyConnection: func(s tls.ConnectionState) error {
			_, err := a.proofOf(s.PeerCertificates)
			return err
		},
		SessionTicketsDisabled: true, // each connection is judged by the roots and the time of its own
	}}
	a.served.Store(s)
	return s, nil
}

// ErrNoCertificate is that a peer has shown no certificate.
var ErrNoCertificate = limit.ErrNoCertificate

// Identity is the SPIFFE ID of the peer of a gRPC call or stream, by the certificate of its connection. It is an error
// where there is none, where it has ended since, or where its root is trusted no more.
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

// Authorize is an error of gRPC (Unauthenticated or PermissionDenied) unless the peer is of an identity, and logs the
// refusal.
func (a *Authority) Authorize(ctx context.Context, want string) error {
	id, err := a.Identity(ctx)
	if err != nil {
		a.refuse(ctx, "what is of %s: %s", shown(want), err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if id != want {
		a.refuse(ctx, "%s what is of %s", id, shown(want))
		return status.Errorf(codes.PermissionDenied, "this is not for %s", id)
	}
	return nil
}

// addressOf is where a peer is: its host as limits know it, and its address.
func addressOf(ctx context.Context) (host, address string) {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return hostOf(p.Addr), p.Addr.String()
	}
	return "", "unknown address"
}

// RequireIdentity is for servers whose calls are all streams, as those of xDS and of Service are. It refuses those of
// peers without an identity before anything of theirs is read, but for Service, which decides for itself.
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

// ClientTLS is for a client in Go: TLS 1.3 at least, to servers of certain identities alone, whatever their address.
// Own gives what the client has at the moment; without a certificate (Chain) it shows none.
func ClientTLS(own func() (Credentials, error), servers ...string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // names of hosts say nothing here: VerifyConnection checks chain and identity
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

// Verify checks the certificates that a peer has shown, its own first, at a time and for a use (server or client), and
// gives its SPIFFE ID.
func Verify(shown []*x509.Certificate, roots *x509.CertPool, use x509.ExtKeyUsage, now time.Time) (string, error) {
	if _, err := limit.VerifyCertificates(shown, roots, use, now); err != nil {
		return "", fmt.Errorf("the peer's certificate: %w", err)
	}
	return idOf(shown[0])
}
