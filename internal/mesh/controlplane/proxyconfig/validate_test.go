package proxyconfig

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	envoytest "tare/test/envoy"
)

// TestEnvoyValidates: Envoy's own validation accepts every configuration, with the resources of RDS, EDS and SDS
// inserted where the configuration refers to them.
func TestEnvoyValidates(t *testing.T) {
	ca := newAuthority(t)
	examples := documented(t)
	for name, text := range map[string]string{
		"full": full, "strict": strictMesh, "permissive": permissiveMesh, "shared": sharedMesh,
		"first example": examples[0], "second example": examples[1],
	} {
		m := compiled(t, text)
		ids := m.Proxies()
		if len(ids) == 0 {
			ids = []string{"anybody"}
		}
		for _, id := range ids {
			r, err := m.For(id)
			if err != nil {
				t.Fatal(err)
			}
			if m.Secure() {
				r.Secrets = append(r.Secrets, ca.secrets(t, m.Identity(id))...)
			}
			validate(t, name+"/"+id, r)
		}
	}
}

// validate has Envoy check resources as a static configuration.
func validate(t *testing.T, name string, r Resources) {
	t.Helper()
	s := &bootstrapv3.Bootstrap_StaticResources{Secrets: r.Secrets}
	assigned := map[string]*endpointv3.ClusterLoadAssignment{}
	for _, a := range r.Endpoints {
		assigned[a.GetClusterName()] = a
	}
	for _, from := range r.Clusters {
		c := proto.Clone(from).(*clusterv3.Cluster)
		if c.GetType() == clusterv3.Cluster_EDS {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
			c.EdsClusterConfig, c.LoadAssignment = nil, assigned[c.GetName()]
		}
		inPlace(t, c.GetTransportSocket())
		s.Clusters = append(s.Clusters, c)
	}
	routes := map[string]*routev3.RouteConfiguration{}
	for _, rc := range r.Routes {
		routes[rc.GetName()] = rc
	}
	for _, from := range r.Listeners {
		l := proto.Clone(from).(*listenerv3.Listener)
		for _, c := range l.GetFilterChains() {
			inPlace(t, c.GetTransportSocket())
			for _, f := range c.GetFilters() {
				m := &hcmv3.HttpConnectionManager{}
				if f.GetTypedConfig().MessageIs(m) {
					repack(t, f.GetTypedConfig(), m, func() {
						rc := routes[m.GetRds().GetRouteConfigName()]
						if rc == nil {
							t.Errorf("%s: listener %s: there are no routes %s", name, l.GetName(), m.GetRds().GetRouteConfigName())
						}
						m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: rc}
					})
				}
			}
		}
		s.Listeners = append(s.Listeners, l)
	}
	text, err := protojson.Marshal(&bootstrapv3.Bootstrap{Node: &corev3.Node{Id: "n", Cluster: "c"}, StaticResources: s})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(envoytest.Path(t), "--mode", "validate", "-c", file, "--log-level",
		"warning").CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

// inPlace has a TLS context use secrets of the same bootstrap.
func inPlace(t *testing.T, s *corev3.TransportSocket) {
	t.Helper()
	local := func(c *tlsv3.CommonTlsContext) {
		for _, own := range c.GetTlsCertificateSdsSecretConfigs() {
			own.SdsConfig = nil
		}
		if roots := c.GetCombinedValidationContext().GetValidationContextSdsSecretConfig(); roots != nil {
			roots.SdsConfig = nil
		}
	}
	up, down := &tlsv3.UpstreamTlsContext{}, &tlsv3.DownstreamTlsContext{}
	switch a := s.GetTypedConfig(); {
	case a == nil:
	case a.MessageIs(up):
		repack(t, a, up, func() { local(up.GetCommonTlsContext()) })
	case a.MessageIs(down):
		repack(t, a, down, func() { local(down.GetCommonTlsContext()) })
	}
}

// repack modifies the content of an Any.
func repack(t *testing.T, a *anypb.Any, m proto.Message, change func()) {
	t.Helper()
	err := a.UnmarshalTo(m)
	if err == nil {
		change()
		err = a.MarshalFrom(m)
	}
	if err != nil {
		t.Fatal(err)
	}
}
