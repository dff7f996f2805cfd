package authority

import (
	"fmt"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh/controlplane/bootstrap"
)

// The files that WriteEnvoy writes: the bootstrap of an Envoy, and the certificate and roots for its connection to the
// control plane, each as an SDS response. Certificate and key are in one file, so that one rename changes both.
const (
	EnvoyBootstrapFile = "envoy.json"
	EnvoyIdentityFile  = "identity.json"
	EnvoyRootsFile     = "roots.json"
)

// WriteEnvoy writes into a directory the files with which an Envoy is started. The conditions of WriteFiles apply. When
// the files are written again, a running Envoy uses the new certificate for its next connection to the control plane.
// If c has no identity, Envoy connects without TLS.
func (c Credentials) WriteEnvoy(dir string, b bootstrap.Envoy) error {
	d, err := openPrivate(dir)
	if err != nil {
		return err
	}
	defer d.close()
	if c.ID != "" {
		server, err := c.ControlPlane()
		if err == nil {
			err = writeSecret(d, EnvoyRootsFile, rootsSecret(c.Roots))
		}
		if err == nil {
			err = writeSecret(d, EnvoyIdentityFile, identitySecret(c.Chain, c.Key))
		}
		if err != nil {
			return err
		}
		b.TLS = &bootstrap.TLS{Server: server, Identity: d.at(EnvoyIdentityFile), Roots: d.at(EnvoyRootsFile)}
	}
	text, err := b.JSON()
	if err != nil {
		return err
	}
	return d.write(EnvoyBootstrapFile, text)
}

func writeSecret(d *private, name string, secret *tlsv3.Secret) error {
	resource, err := anypb.New(secret)
	if err != nil {
		return fmt.Errorf("encoding the secret %s failed", secret.GetName()) // without the cause, which might contain it
	}
	text, err := protojson.Marshal(&discoveryv3.DiscoveryResponse{
		Resources: []*anypb.Any{resource}, TypeUrl: resource.GetTypeUrl(),
	})
	if err != nil {
		return fmt.Errorf("encoding the secret %s failed", secret.GetName())
	}
	return d.write(name, text)
}
