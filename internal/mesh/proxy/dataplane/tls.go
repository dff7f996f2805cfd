package dataplane

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"tare/internal/lib/limit"
	"tare/internal/mesh/proxy/config"
)

// handshakeTimeout bounds a TLS handshake, of either side.
const handshakeTimeout = 15 * time.Second

// serverTLS is how the proxy is a server. Certificates and roots are looked up for every handshake, so that a rotation
// is for the next connection and ends none. It has no file and no copy of a key.
func (p *Proxy) serverTLS(t *config.ServerTLS) *tls.Config {
	c := &tls.Config{
		MinVersion:             t.MinVersion,
		NextProtos:             t.Protocols,
		CurvePreferences:       t.Curves,
		SessionTicketsDisabled: t.NoTickets,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return p.identity(t.Identity)
		},
	}
	if t.Roots == "" {
		return c
	}
	c.ClientAuth = tls.RequestClientCert
	if t.Require {
		c.ClientAuth = tls.RequireAnyClientCert // which is verified as follows
	}
	k := &tickets{trust: p.trusts(t.Roots)}
	k.on(c)
	c.VerifyConnection = func(s tls.ConnectionState) error { // of resumed sessions too
		if len(s.PeerCertificates) == 0 && !t.Require {
			return nil
		}
		err := p.verify(s, t.Roots, t.Names, x509.ExtKeyUsageClientAuth)
		if err != nil {
			p.stats.Refused.Add(1)
			if s.DidResume {
				k.refused.Add(1)
			}
		}
		return err
	}
	return c
}

// clientTLS is how the proxy is a client, for each connection. protocols are those that it will speak.
func (p *Proxy) clientTLS(t *config.ClientTLS, protocols ...string) func() *tls.Config {
	c := &tls.Config{
		MinVersion:         t.MinVersion,
		ServerName:         t.ServerName,
		InsecureSkipVerify: true, // by host name; it is verified by identity as follows
		CurvePreferences:   t.Curves,
	}
	kept := &sessions{trust: p.trusts(t.Roots), most: t.Sessions}
	for _, name := range t.Protocols {
		if slices.Contains(protocols, name) || len(protocols) == 0 {
			c.NextProtos = append(c.NextProtos, name)
		}
	}
	if t.Identity != "" {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return p.identity(t.Identity)
		}
	}
	if t.Roots != "" || len(t.Names) > 0 {
		c.VerifyConnection = func(s tls.ConnectionState) error {
			err := p.verify(s, t.Roots, t.Names, x509.ExtKeyUsageServerAuth)
			if err != nil && s.DidResume {
				kept.forget()
			}
			return err
		}
	}
	if t.Sessions == 0 {
		return func() *tls.Config { return c }
	}
	return func() *tls.Config {
		one := c.Clone()
		one.ClientSessionCache = kept.now()
		return one
	}
}

func (p *Proxy) identity(name string) (*tls.Certificate, error) {
	s := (*p.secrets.Load())[name]
	if s == nil || s.Certificate == nil {
		return nil, fmt.Errorf("there is no certificate %q yet", name)
	}
	return s.Certificate, nil
}

// verify holds a peer's certificate against roots and names.
func (p *Proxy) verify(s tls.ConnectionState, roots string, names []config.Text, use x509.ExtKeyUsage) error {
	if len(s.PeerCertificates) == 0 {
		return limit.ErrNoCertificate
	}
	secret := (*p.secrets.Load())[roots]
	if secret == nil || secret.Roots == nil {
		return fmt.Errorf("there are no roots %q yet", roots)
	}
	if _, err := limit.VerifyCertificates(s.PeerCertificates, secret.Roots, use, time.Now()); err != nil {
		return fmt.Errorf("verifying the peer's certificate: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	leaf := s.PeerCertificates[0]
	for _, name := range uris(leaf) {
		for _, is := range names {
			if is(name) {
				return nil
			}
		}
	}
	return fmt.Errorf("the peer is %q, which may not be at the other end", uris(leaf))
}

func uris(c *x509.Certificate) (out []string) {
	for _, u := range c.URIs {
		out = append(out, u.String())
	}
	return out
}

// namesOf are the names by which rules know the holder of a certificate.
func namesOf(c *x509.Certificate) []string {
	if len(c.URIs) > 0 {
		return uris(c)
	}
	if len(c.DNSNames) > 0 {
		return c.DNSNames
	}
	return []string{c.Subject.String()}
}
