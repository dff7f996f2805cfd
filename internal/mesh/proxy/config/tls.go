package config

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh/xds/translate"
)

// The transport sockets, by the types of their configuration.
const (
	rawType        = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
	clientTLSType  = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
	serverTLSType  = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
	validationKind = "validation_context_type"
)

// curves are what keys can be agreed on by, by Envoy's names.
var curves = map[string]tls.CurveID{"X25519": tls.X25519, "P-256": tls.CurveP256, "P-384": tls.CurveP384,
	"X25519MLKEM768": tls.X25519MLKEM768}

// maxProtocols bounds the list of protocols that a context offers.
const maxProtocols = 16

func clientTLS(s *corev3.TransportSocket) (*ClientTLS, error) {
	if t := translate.TypeOf(s.GetTypedConfig()); t != clientTLSType {
		return nil, translate.Unsupported(s.GetName(), t)
	}
	var m tlsv3.UpstreamTlsContext
	if err := translate.Decode(s.GetTypedConfig().GetValue(), &m); err != nil {
		return nil, translate.In("typed_config", err)
	}
	err := translate.Only(&m, "common_tls_context", "sni", "allow_renegotiation", "max_session_keys",
		"enforce_rsa_key_usage")
	if err == nil && m.GetAllowRenegotiation() {
		err = translate.In("allow_renegotiation", translate.Refuse("is not supported"))
	}
	if err != nil {
		return nil, translate.In("typed_config", err)
	}
	c, err := commonTLS(m.GetCommonTlsContext())
	if err != nil {
		return nil, translate.In("typed_config", translate.In("common_tls_context", err))
	}
	return &ClientTLS{Identity: c.Identity, Roots: c.Roots, Names: c.Names, ServerName: m.GetSni(),
		Protocols: c.Protocols, MinVersion: c.MinVersion,
		Curves: c.Curves, Sessions: sessions(m.GetMaxSessionKeys()), Key: c.Key}, nil
}

// The sessions that a client keeps, to be resumed: as the protocol has it, and at most.
const (
	defaultSessions = 1
	maxSessions     = 1 << 10
)

func sessions(n *wrapperspb.UInt32Value) int {
	if n == nil {
		return defaultSessions
	}
	return int(min(n.GetValue(), maxSessions))
}

func serverTLS(s *corev3.TransportSocket) (*ServerTLS, error) {
	if t := translate.TypeOf(s.GetTypedConfig()); t != serverTLSType {
		return nil, translate.Unsupported(s.GetName(), t)
	}
	var m tlsv3.DownstreamTlsContext
	if err := translate.Decode(s.GetTypedConfig().GetValue(), &m); err != nil {
		return nil, translate.In("typed_config", err)
	}
	// Sessions are resumed by tickets whose keys only the process has, and clients are verified again when they are.
	if err := translate.Only(&m, "common_tls_context", "require_client_certificate",
		"disable_stateful_session_resumption", "disable_stateless_session_resumption"); err != nil {
		return nil, translate.In("typed_config", err)
	}
	c, err := commonTLS(m.GetCommonTlsContext())
	if err == nil && c.Identity == "" {
		err = translate.In("tls_certificate_sds_secret_configs", translate.Refuse("is missing"))
	}
	if err != nil {
		return nil, translate.In("typed_config", translate.In("common_tls_context", err))
	}
	c.NoTickets = m.GetDisableStatelessSessionResumption()
	c.Require = m.GetRequireClientCertificate().GetValue()
	if c.Require && c.Roots == "" {
		return nil, translate.In("typed_config", translate.In("require_client_certificate",
			translate.Refuse("needs a validation context: without one any certificate would do")))
	}
	return c, nil
}

// commonTLS reads what servers and clients have in common.
func commonTLS(m *tlsv3.CommonTlsContext) (*ServerTLS, error) {
	if err := translate.Only(m, "tls_params",
		"tls_certificate_sds_secret_configs", "validation_context_sds_secret_config",
		"combined_validation_context", "alpn_protocols"); err != nil {
		return nil, err
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, translate.Refuse("it cannot be encoded again")
	}
	t := &ServerTLS{Protocols: m.GetAlpnProtocols(), MinVersion: tls.VersionTLS12, Key: string(key)}
	if len(t.Protocols) > maxProtocols {
		return nil, translate.In("alpn_protocols", translate.Refuse("has more than %d", maxProtocols))
	}
	if p := m.GetTlsParams(); p != nil {
		if err := translate.Only(p, "tls_minimum_protocol_version",
			"tls_maximum_protocol_version", "ecdh_curves"); err != nil {
			return nil, translate.In("tls_params", err)
		}
		for i, name := range p.GetEcdhCurves() {
			id, ok := curves[name]
			if !ok {
				return nil, translate.In("tls_params", translate.In("ecdh_curves",
					translate.Item(i, translate.Refuse("%q is not supported", translate.Clip(name)))))
			}
			t.Curves = append(t.Curves, id)
		}
		switch v := p.GetTlsMinimumProtocolVersion(); v {
		case tlsv3.TlsParameters_TLS_AUTO, tlsv3.TlsParameters_TLSv1_2:
		case tlsv3.TlsParameters_TLSv1_3:
			t.MinVersion = tls.VersionTLS13
		default:
			return nil, translate.In("tls_params", translate.In("tls_minimum_protocol_version",
				translate.Refuse("must be TLSv1_2 or TLSv1_3, not %s", v)))
		}
		if v := p.GetTlsMaximumProtocolVersion(); v != tlsv3.TlsParameters_TLS_AUTO &&
			v != tlsv3.TlsParameters_TLSv1_3 {
			return nil, translate.In("tls_params", translate.In("tls_maximum_protocol_version",
				translate.Refuse("must be TLSv1_3, not %s", v)))
		}
	}
	switch list := m.GetTlsCertificateSdsSecretConfigs(); len(list) {
	case 0:
	case 1:
		name, err := secretName(list[0])
		if err != nil {
			return nil, translate.In("tls_certificate_sds_secret_configs", translate.Item(0, err))
		}
		t.Identity = name
	default:
		return nil, translate.In("tls_certificate_sds_secret_configs", translate.Refuse("there can be one"))
	}
	return t, validation(m, t)
}

func validation(m *tlsv3.CommonTlsContext, t *ServerTLS) (err error) {
	switch v := m.GetValidationContextType().(type) {
	case nil:
	case *tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig:
		t.Roots, err = secretName(v.ValidationContextSdsSecretConfig)
		return translate.In("validation_context_sds_secret_config", err)
	case *tlsv3.CommonTlsContext_CombinedValidationContext:
		c := v.CombinedValidationContext
		err := translate.Only(c, "default_validation_context", "validation_context_sds_secret_config")
		if err == nil {
			t.Roots, err = secretName(c.GetValidationContextSdsSecretConfig())
			err = translate.In("validation_context_sds_secret_config", err)
		}
		if d := c.GetDefaultValidationContext(); err == nil && d != nil {
			t.Names, err = sans(d)
			err = translate.In("default_validation_context", err)
		}
		return translate.In("combined_validation_context", err)
	default:
		return translate.In(validationKind, translate.Refuse("is not supported"))
	}
	return nil
}

// sans reads which names a peer may have. They are URIs: identities in a mesh have that form.
func sans(m *tlsv3.CertificateValidationContext) (out []Text, err error) {
	if err := translate.Only(m, "match_typed_subject_alt_names", "match_subject_alt_names"); err != nil {
		return nil, err
	}
	for i, n := range m.GetMatchTypedSubjectAltNames() {
		err := translate.Only(n, "san_type", "matcher")
		if t := n.GetSanType(); err == nil && t != tlsv3.SubjectAltNameMatcher_URI {
			err = translate.In("san_type", translate.Refuse("must be URI, not %s", t))
		}
		var t Text
		if err == nil {
			t, err = text(n.GetMatcher())
			err = translate.In("matcher", err)
		}
		if err != nil {
			return nil, translate.In("match_typed_subject_alt_names", translate.Item(i, err))
		}
		out = append(out, t)
	}
	more, err := texts(m.GetMatchSubjectAltNames()) //nolint:staticcheck // deprecated: control planes may still send it
	return append(out, more...), translate.In("match_subject_alt_names", err)
}

// secretName reads the name of a secret that comes by the same stream.
func secretName(m *tlsv3.SdsSecretConfig) (string, error) {
	if err := translate.Only(m, "name", "sds_config"); err != nil {
		return "", err
	}
	if m.GetName() == "" {
		return "", translate.In("name", translate.Refuse("is missing"))
	}
	return m.GetName(), translate.In("sds_config", source(m.GetSdsConfig()))
}

// source refuses a resource that is to come by another way than the stream, or a file that the process was given; none
// stands for that file.
func source(m *corev3.ConfigSource) error {
	if m == nil {
		return nil
	}
	if err := translate.Only(m, "ads", "self", "resource_api_version", "initial_fetch_timeout"); err != nil {
		return err
	}
	if v := m.GetResourceApiVersion(); v != corev3.ApiVersion_V3 && v != corev3.ApiVersion_AUTO {
		return translate.In("resource_api_version", translate.Refuse("must be V3, not %s", v))
	}
	return nil
}

// ParseSecret reads a Secret. What it says of a private key tells nothing of the key. Files are read where files are
// allowed: what a control plane sends may name none.
func ParseSecret(b []byte, files bool) (*Secret, error) {
	var m tlsv3.Secret
	if err := translate.Decode(b, &m); err != nil {
		return nil, translate.Refused("secret", translate.Name(b), err)
	}
	s := &Secret{Name: m.GetName()}
	if err := s.read(&m, files); err != nil {
		return nil, translate.Refused("secret", s.Name, err)
	}
	return s, nil
}

func (s *Secret) read(m *tlsv3.Secret, files bool) error {
	if err := translate.Only(m, "name", "tls_certificate", "validation_context"); err != nil {
		return err
	}
	if s.Name == "" {
		return translate.In("name", translate.Refuse("is missing"))
	}
	switch t := m.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		return translate.In("tls_certificate", s.certificate(t.TlsCertificate, files))
	case *tlsv3.Secret_ValidationContext:
		return translate.In("validation_context", s.roots(t.ValidationContext, files))
	}
	return translate.Refuse("it has neither a certificate nor a validation context")
}

func (s *Secret) certificate(m *tlsv3.TlsCertificate, files bool) error {
	if err := translate.Only(m, "certificate_chain", "private_key"); err != nil {
		return err
	}
	chain, err := data(m.GetCertificateChain(), files)
	if err != nil {
		return translate.In("certificate_chain", err)
	}
	key, err := data(m.GetPrivateKey(), files)
	if err != nil {
		return translate.In("private_key", err)
	}
	if len(key) > maxKey {
		clear(key)
		return translate.In("private_key", translate.Refuse("has %d bytes; the proxy takes %d", len(key), maxKey))
	}
	pair, err := tls.X509KeyPair(chain, key)
	clear(key)
	if err != nil {
		return translate.Refuse("certificate and key make no pair: %s", translate.Clip(err.Error()))
	}
	s.Certificate = &pair
	return nil
}

func (s *Secret) roots(m *tlsv3.CertificateValidationContext, files bool) error {
	if err := translate.Only(m, "trusted_ca"); err != nil {
		return err
	}
	pem, err := data(m.GetTrustedCa(), files)
	if err != nil {
		return translate.In("trusted_ca", err)
	}
	s.Roots, s.Trust = x509.NewCertPool(), sha256.Sum256(pem)
	if !s.Roots.AppendCertsFromPEM(pem) {
		return translate.In("trusted_ca", translate.Refuse("there is no certificate in it"))
	}
	return nil
}

// maxFile bounds certificates, and maxKey a private key, in bytes. An RSA key of 8192 bits has 6.4 KiB as PEM; what is
// longer would take minutes to check.
const (
	maxFile = 1 << 20
	maxKey  = 8 << 10
)

// data reads the bytes that a source has.
func data(m *corev3.DataSource, files bool) ([]byte, error) {
	switch s := m.GetSpecifier().(type) {
	case *corev3.DataSource_InlineBytes:
		return inline(s.InlineBytes, "inline_bytes")
	case *corev3.DataSource_InlineString:
		return inline(s.InlineString, "inline_string")
	case *corev3.DataSource_Filename:
		if !files {
			return nil, translate.In("filename", translate.Refuse("a control plane may name no files"))
		}
		b, err := readFile(s.Filename)
		if err != nil {
			return nil, translate.In("filename", translate.Refuse("%s", translate.Clip(err.Error())))
		}
		return b, nil
	}
	return nil, translate.Refuse("is missing")
}

func inline[T string | []byte](from T, field string) ([]byte, error) {
	if len(from) > maxFile {
		return nil, translate.In(field, translate.Refuse("has %d bytes; the proxy takes %d", len(from), maxFile))
	}
	return []byte(from), nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	if info.Size() > maxFile || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", name, maxFile)
	}
	return os.ReadFile(name)
}
