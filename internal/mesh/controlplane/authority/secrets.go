package authority

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// Names of the SDS secrets. All proxies use the same names; a proxy's connection determines which identity's secret it
// gets.
const (
	IdentitySecret = "identity" // certificate and key of the proxy's own identity
	RootsSecret    = "roots"    // the certificates of all trusted roots
)

func identitySecret(chain []byte, key Key) *tlsv3.Secret {
	return &tlsv3.Secret{Name: IdentitySecret, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(chain), PrivateKey: inline(key),
	}}}
}

func rootsSecret(roots []byte) *tlsv3.Secret {
	return &tlsv3.Secret{Name: RootsSecret, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)},
	}}
}

func inline(text []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
}
