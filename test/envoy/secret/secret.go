// Package secret reads the credentials by which an Envoy proves its identity.
package secret

import (
	"fmt"
	"os"
	"path/filepath"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"tare/internal/mesh/controlplane/authority"
)

// Credentials reads a proxy's credentials, that is its chain, key and roots, from the files in dir that its Envoy reads
// (authority.Credentials.WriteEnvoy). The fields that repeat the content of the certificate stay empty.
func Credentials(dir string) (c authority.Credentials, err error) {
	roots, err := read(filepath.Join(dir, authority.EnvoyRootsFile))
	if err != nil {
		return c, err
	}
	identity, err := read(filepath.Join(dir, authority.EnvoyIdentityFile))
	if err != nil {
		return c, err
	}
	c.Chain = identity.GetTlsCertificate().GetCertificateChain().GetInlineBytes()
	c.Key = identity.GetTlsCertificate().GetPrivateKey().GetInlineBytes()
	c.Roots = roots.GetValidationContext().GetTrustedCa().GetInlineBytes()
	_, err = c.Certificate()
	return c, err
}

func read(file string) (*tlsv3.Secret, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r discoveryv3.DiscoveryResponse
	if err := protojson.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	if n := len(r.GetResources()); n != 1 {
		return nil, fmt.Errorf("%s has %d secrets, want 1", file, n)
	}
	s := &tlsv3.Secret{}
	return s, r.GetResources()[0].UnmarshalTo(s)
}
