package fleet

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"tare/internal/mesh/controlplane/ads"
)

// resourceType is a type of resources.
type resourceType int

// The types that a proxy subscribes to.
const (
	clusters resourceType = iota
	endpoints
	secrets
	listeners
	routes
	kinds
)

var urls = [kinds]string{
	clusters: xds.ClusterType, endpoints: xds.EndpointType, secrets: xds.SecretType,
	listeners: xds.ListenerType, routes: xds.RouteType,
}

// needing lists, for each type, the types whose resources refer to its resources.
var needing = [kinds][]resourceType{endpoints: {clusters}, routes: {listeners}, secrets: {clusters, listeners}}

// kindOf returns the type of a URL, or a negative value if proxies do not subscribe to it.
func kindOf(url string) resourceType { return resourceType(slices.Index(urls[:], url)) }

// roots reports whether proxies subscribe to all resources of a type, without naming them. A state-of-the-world
// response then contains all resources of the type.
func (k resourceType) roots() bool { return k == clusters || k == listeners }

// Mark holds the service and the change that the address of an endpoint encodes (Endpoint). The zero value means none.
type Mark struct {
	Service int // counted from 1
	Change  int
}

// content holds what proxies use of a resource.
type content struct {
	name   string
	digest uint64
	needs  [kinds][]string // by type, the names of the resources that it refers to
	mark   Mark            // of endpoints
}

// contents holds the resources that proxies have. Each is decoded once, however many proxies have it.
type contents struct {
	markOf func(*endpointv3.ClusterLoadAssignment) Mark
	seed   maphash.Seed

	mu   sync.Mutex
	read map[contentKey]*content
}

// contentKey identifies contents. Two contents of the same length and the same 64-bit digest are taken to be the same.
type contentKey struct {
	kind   resourceType
	length int
	digest uint64
}

// mostContents is the number of decoded contents at which all are forgotten. A resource that arrives again after that
// is decoded again.
const mostContents = 1 << 18

// of returns the content of an encoded resource, and decodes it unless an equal one was decoded before (mostContents).
func (c *contents) of(k resourceType, value []byte) *content {
	key := contentKey{k, len(value), maphash.Bytes(c.seed, value)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.read[key]; x != nil {
		return x
	}
	x := c.parse(k, value)
	x.digest = key.digest
	if c.read == nil || len(c.read) >= mostContents {
		c.read = map[contentKey]*content{}
	}
	c.read[key] = x
	return x
}

// parse decodes a resource. An invalid one has no name and needs nothing, so a proxy that subscribed to it by name
// never has all that it subscribed to.
func (c *contents) parse(k resourceType, value []byte) *content {
	x := &content{}
	t, err := protoregistry.GlobalTypes.FindMessageByURL(urls[k])
	if err != nil {
		return x
	}
	m := t.New().Interface()
	if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, m) != nil {
		return x
	}
	x.name = ads.NameOf(m)
	for _, need := range ads.NeedsOf(m) {
		other := kindOf(need.URL)
		x.needs[other] = append(x.needs[other], need.Name)
	}
	switch m := m.(type) {
	case *clusterv3.Cluster:
		x.needs[secrets] = secretsOf(m.GetTransportSocket())
	case *endpointv3.ClusterLoadAssignment:
		x.mark = c.markOf(m)
	case *listenerv3.Listener:
		for _, chain := range append(m.GetFilterChains(), m.GetDefaultFilterChain()) {
			x.needs[secrets] = append(x.needs[secrets], secretsOf(chain.GetTransportSocket())...)
		}
	}
	return x
}

// secretsOf returns the names of the secrets that a TLS context, of a client or a server, gets from the same control
// plane. Istiod's contexts have none.
func secretsOf(s *corev3.TransportSocket) (names []string) {
	a := s.GetTypedConfig()
	var common *tlsv3.CommonTlsContext
	var up tlsv3.UpstreamTlsContext
	var down tlsv3.DownstreamTlsContext
	switch {
	case strings.HasSuffix(a.GetTypeUrl(), ".UpstreamTlsContext") && a.UnmarshalTo(&up) == nil:
		common = up.GetCommonTlsContext()
	case strings.HasSuffix(a.GetTypeUrl(), ".DownstreamTlsContext") && a.UnmarshalTo(&down) == nil:
		common = down.GetCommonTlsContext()
	}
	add := func(c *tlsv3.SdsSecretConfig) {
		if c.GetSdsConfig().GetAds() != nil || c.GetSdsConfig().GetSelf() != nil {
			names = append(names, c.GetName())
		}
	}
	for _, c := range common.GetTlsCertificateSdsSecretConfigs() {
		add(c)
	}
	add(common.GetValidationContextSdsSecretConfig())
	add(common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig())
	return names
}
