package proxyconfig

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/lib/lists"
	"tare/internal/mesh/controlplane/authority"
)

// Names of the secrets that a proxy requests over SDS.
const (
	IdentitySecret = authority.IdentitySecret // certificate chain and key of the proxy's own identity
	RootsSecret    = authority.RootsSecret    // the validation context: all trusted roots
)

// mtls determines whether proxies use TLS with each other, and whether they accept plain text as well.
type mtls string

const (
	off        mtls = "off"
	permissive mtls = "permissive"
	strict     mtls = "strict"
)

// alpn returns the ALPN protocols that the servers of a service offer, or, if server is false, its clients; nil: none.
func (p protocol) alpn(server bool) []string {
	switch {
	case p.http() && server:
		return []string{"h2", "http/1.1"}
	case p == protocolHTTP:
		return []string{"http/1.1"}
	case p.http():
		return []string{"h2"}
	}
	return nil
}

func secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: ads()}
}

// common returns a TLS context with the proxy's own identity. If there are names, the peer's certificate is verified
// and must match one of them.
func common(alpn []string, names []*matcherv3.StringMatcher) *tlsv3.CommonTlsContext {
	c := &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(IdentitySecret)},
		AlpnProtocols:                  alpn,
	}
	if len(names) == 0 {
		return c
	}
	own := &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: lists.Map(names,
		func(name *matcherv3.StringMatcher) *tlsv3.SubjectAltNameMatcher {
			return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: name}
		})}
	c.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: own, ValidationContextSdsSecretConfig: secret(RootsSecret)}}
	return c
}

func transport(context proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(context)}}
}

// calls returns the TLS settings for calls to servers that must have one of the ids.
func calls(ids []string, p protocol) *corev3.TransportSocket {
	return transport(&tlsv3.UpstreamTlsContext{CommonTlsContext: common(p.alpn(false), lists.Map(ids, exactly))})
}

// answers returns the TLS settings of a service, whose callers must have a certificate. For TCP, the certificate must
// be of an identity that may call the service. For HTTP, whose policies distinguish requests, any identity in the trust
// domain will do.
func (s *service) answers(m *Mesh) *corev3.TransportSocket {
	names := []*matcherv3.StringMatcher{m.named(anyone)}
	if s.protocol == protocolTCP {
		names = lists.Map(s.callers, m.named)
	}
	return transport(&tlsv3.DownstreamTlsContext{CommonTlsContext: common(s.protocol.alpn(true), names),
		RequireClientCertificate: wrapperspb.Bool(true)})
}

// faces returns the TLS settings for callers from outside the mesh, who show no certificate.
func faces(p protocol) *corev3.TransportSocket {
	return transport(&tlsv3.DownstreamTlsContext{CommonTlsContext: common(p.alpn(true), nil)})
}
