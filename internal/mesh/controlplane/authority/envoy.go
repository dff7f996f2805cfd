package authority

import (
	"fmt"
	"path/filepath"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
)

// The files of WriteEnvoy: what an Envoy proves itself by to its control plane, each as a response of SDS. One rename
// changes certificate and key together.
const (
	EnvoyIdentityFile = "identity.json"
	EnvoyRootsFile    = "roots.json"
)

// WriteEnvoy writes the files that EnvoyTransport speaks of into a directory, under the conditions of WriteFiles. An
// Envoy that runs takes what is written again for its next connection to the control plane, by itself.
func (c Credentials) WriteEnvoy(dir string) error {
	d, err := openPrivate(dir)
	if err != nil {
		return err
	}
	defer d.close()
	if err := writeSecret(d, EnvoyRootsFile, rootsSecret(c.Roots)); err != nil {
		return err
	}
	return writeSecret(d, EnvoyIdentityFile, identitySecret(c.Chain, c.Key))
}

func writeSecret(d *private, name string, secret *tlsv3.Secret) error {
	resource, err := anypb.New(secret)
	if err != nil {
		return fmt.Errorf("encoding the secret %s failed", secret.GetName()) // without a cause that might show it
	}
	text, err := protojson.Marshal(&discoveryv3.DiscoveryResponse{
		Resources: []*anypb.Any{resource}, TypeUrl: resource.GetTypeUrl(),
	})
	if err != nil {
		return fmt.Errorf("encoding the secret %s failed", secret.GetName())
	}
	return d.write(name, text)
}

// EnvoyTransport is the transport_socket of the cluster by which an Envoy reaches the control plane of a trust domain:
// TLS 1.3, with the certificate that WriteEnvoy keeps in dir, to nobody but the control plane's identity. Encode it by
// protojson for a bootstrap in JSON or YAML.
func EnvoyTransport(dir, trustDomain string) (*corev3.TransportSocket, error) {
	fromFile := func(name, file string) *tlsv3.SdsSecretConfig {
		source := &corev3.PathConfigSource{Path: filepath.Join(dir, file)} // watched for renames onto it
		return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
			ResourceApiVersion:    corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: source},
		}}
	}
	server := &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: ControlPlane(trustDomain)},
		},
	}
	context, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
		AlpnProtocols:                  []string{"h2"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{fromFile(IdentitySecret, EnvoyIdentityFile)},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{server},
				},
				ValidationContextSdsSecretConfig: fromFile(RootsSecret, EnvoyRootsFile),
			},
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("encoding the TLS context of the control plane's cluster: %w", err)
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: context},
	}, nil
}
