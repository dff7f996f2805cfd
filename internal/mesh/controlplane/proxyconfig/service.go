package proxyconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// protocol is the protocol of a service.
type protocol string

// The values of protocol.
const (
	protocolTCP   protocol = "tcp"
	protocolUDP   protocol = "udp"
	protocolHTTP  protocol = "http"
	protocolHTTP2 protocol = "http2"
	protocolGRPC  protocol = "grpc"
)

func (p protocol) http() bool { return p == protocolHTTP || p == protocolHTTP2 || p == protocolGRPC }

// socket returns the transport protocol that p runs over.
func (p protocol) socket() corev3.SocketAddress_Protocol {
	if p == protocolUDP {
		return corev3.SocketAddress_UDP
	}
	return corev3.SocketAddress_TCP
}

// service is a compiled service. Resources that several proxies get are made once.
type service struct {
	*Service
	index    int
	protocol protocol
	leads    []*service // services that its split and routes lead to, sorted by name
	from     []*service // services that lead to it, in the order of the file
	ids      []string   // SPIFFE IDs of its servers; empty: they have none, and are called without TLS
	grants   []grant    // who may call it, if restricted
	callers  []string   // all identities in grants, or only anyone if every identity may call it
	// restricted means that only granted callers may call it.
	restricted bool
	limited    bool // an access list names routes, so access depends on requests
	called     bool // some proxy calls it at an outbound address, or has an ingress for it
	routes     []*route

	cluster    *clusterv3.Cluster // nil for a service with a split, unless merged makes one
	assignment *endpointv3.ClusterLoadAssignment
	routing    *routev3.RouteConfiguration // HTTP
	listeners  map[string]*listenerv3.Listener
	// applications are the clusters of the service's application, by the application's address. inner routes requests to
	// the application.
	applications map[string]*clusterv3.Cluster
	inner        *routev3.RouteConfiguration

	prior *service // during compilation: the service in the earlier mesh, if only its endpoints have changed
}

// where adds the service to an error.
func (s *service) where(err error) error {
	return within(err, "service "+s.Name, "services", s.index)
}

// weights returns where requests without a route go: the service's own endpoints, or its split.
func (s *service) weights() map[string]uint32 {
	if len(s.Split) > 0 {
		return s.Split
	}
	return map[string]uint32{s.Name: 1}
}

// served reports whether connections to the service go to its own endpoints, even if it has none at present, rather
// than to a split.
func (s *service) served() bool { return len(s.Split) == 0 }

// prepare checks what concerns the service alone, and finds the services that it leads to.
func (s *service) prepare(names map[string]*service) error {
	switch p := protocol(s.Protocol); p {
	case protocolTCP, protocolUDP, protocolHTTP, protocolHTTP2, protocolGRPC:
		s.protocol = p
	case "": // determined by the services that lead to it
	default:
		return in("protocol", fmt.Errorf("%q is none of tcp, udp, http, http2 and grpc", s.Protocol))
	}
	if s.protocol == "" && (s.Address != "" || len(s.Split) > 0) {
		s.protocol = protocolTCP
	}
	if len(s.Split) > 0 {
		if len(s.Endpoints) > 0 || s.MaxConnections > 0 || s.Policy != "" || s.ConnectTimeout != "" || len(s.Zones) > 0 ||
			s.Identity != "" {
			return in("split", errors.New("a service with split cannot have endpoints or settings of endpoints"))
		}
	}
	if len(s.Routes) > 0 && !s.protocol.http() {
		return in("routes", errors.New("only http, http2 and grpc have them"))
	}
	if err := s.leadTo(names, s.Split, "split"); err != nil {
		return err
	}
	for i := range s.Routes {
		if err := item("routes", i, s.leadTo(names, s.Routes[i].To, "to")); err != nil {
			return err
		}
	}
	slices.SortFunc(s.leads, func(a, b *service) int { return strings.Compare(a.Name, b.Name) })
	s.leads = slices.Compact(s.leads)
	return nil
}

// leadTo checks the weights of services, and records that s leads to these services.
func (s *service) leadTo(names map[string]*service, to map[string]uint32, key string) error {
	sum := uint64(0)
	for _, name := range slices.Sorted(maps.Keys(to)) {
		switch t := names[name]; {
		case t == nil || len(t.Split) > 0:
			return in(key, wrongAt(fmt.Errorf("there is no service %s with endpoints", name), name))
		case to[name] == 0:
			return in(key, in(name, errors.New("a weight must be 1 or more")))
		case t != s:
			s.leads = append(s.leads, t)
		}
		if sum += uint64(to[name]); sum > 1<<32-1 {
			return in(key, errors.New("the weights of all services are too much for 32 bits"))
		}
	}
	return nil
}

// settle determines the protocol of a service that gives none, and checks it against the protocols of the services that
// lead to it.
func (s *service) settle() error {
	for _, by := range s.from {
		switch {
		case s.protocol == "" || s.Protocol == "" && s.Address == "" && s.protocol == by.protocol:
			s.protocol = by.protocol
		case s.Protocol == "" && s.Address == "":
			return in("protocol", fmt.Errorf("must be given, because %s and %s services lead to it",
				by.protocol, s.protocol))
		case s.protocol.http() != by.protocol.http() || !s.protocol.http() && s.protocol != by.protocol:
			return in("protocol", fmt.Errorf("%s cannot serve the traffic from %s, a %s service", s.protocol, by.Name,
				by.protocol))
		}
	}
	if s.protocol == "" {
		s.protocol = protocolTCP
	}
	if len(s.Allow)+len(s.Deny) > 0 && s.Address == "" {
		return errors.New("allow and deny need an address")
	}
	if s.protocol == protocolUDP && s.Identity != "" {
		return errors.New("udp has no identity")
	}
	return nil
}

// durationOf parses a duration in a mesh file.
func durationOf(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a duration such as 250ms", text)
	}
	return d, nil
}

// unlimited is the largest value of a limit, with which Envoy does not limit. Without a value, Envoy would use its
// default.
const unlimited = 1<<32 - 1

// upstream makes the cluster of a service with endpoints, and the endpoints. In a mesh with proxies it lifts Envoy's
// default limits: 1024 connections and requests, and 3 concurrent retries.
func (s *service) upstream(mesh *Mesh) error {
	if s.asBefore() {
		s.cluster, s.assignment = s.prior.cluster, s.prior.assignment
		return nil
	}
	c := &clusterv3.Cluster{Name: s.Name, ConnectTimeout: durationpb.New(5 * time.Second)}
	switch s.Policy {
	case "", "round-robin":
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	case "random":
		c.LbPolicy = clusterv3.Cluster_RANDOM
	default:
		return in("policy", fmt.Errorf("%q is neither round-robin nor random", s.Policy))
	}
	if s.ConnectTimeout != "" {
		d, err := durationOf(s.ConnectTimeout)
		if err != nil {
			return in("connect_timeout", err)
		}
		c.ConnectTimeout = durationpb.New(d)
	}
	switch {
	case len(mesh.config.Proxies) > 0:
		c.CircuitBreakers = breakers(s.MaxConnections)
	case s.MaxConnections > 0:
		c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
			{MaxConnections: wrapperspb.UInt32(s.MaxConnections)}}}
	}
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}}
	if len(s.Zones) > 0 {
		c.CommonLbConfig.LocalityConfigSpecifier = weighted()
	}
	a, named, err := s.assign()
	if err != nil {
		return err
	}
	speaks(c, s.protocol)
	if mesh.mtls != off && len(s.ids) > 0 {
		c.TransportSocket = calls(s.ids, s.protocol)
	}
	s.place(c, a, named)
	return nil
}

// place sets the cluster of a service and its endpoints.
func (s *service) place(c *clusterv3.Cluster, a *endpointv3.ClusterLoadAssignment, named bool) {
	s.cluster = c
	if discover(c, a, named) {
		return
	}
	if s.assignment = a; s.prior != nil && s.prior.assignment != nil {
		s.cluster = s.prior.cluster // it has the same content as c
	}
}

// breakers returns circuit breakers that limit connections only, or, if the limit is 0, nothing.
func breakers(connections uint32) *clusterv3.CircuitBreakers {
	if connections == 0 {
		connections = unlimited
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections: wrapperspb.UInt32(connections), MaxPendingRequests: wrapperspb.UInt32(unlimited),
		MaxRequests: wrapperspb.UInt32(unlimited), MaxRetries: wrapperspb.UInt32(unlimited),
	}}}
}

func weighted() *clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_ {
	return &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
		LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{}}
}

// discover sets how a cluster finds its endpoints, and reports whether the cluster itself contains them. It does if an
// endpoint has a host name (named); the proxy then resolves the name, and uses all of its addresses.
func discover(c *clusterv3.Cluster, a *endpointv3.ClusterLoadAssignment, named bool) (inside bool) {
	if named {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.DnsLookupFamily = clusterv3.Cluster_ALL
		c.LoadAssignment = a
		return true
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()}
	return false
}

// ads returns the source from which a proxy gets resources that others name: the stream on which it gets those (ADS).
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

// speaks sets a cluster to HTTP/2 if the protocol is HTTP/2 or gRPC; HTTP/1.1 is the default.
func speaks(c *clusterv3.Cluster, p protocol) {
	if p != protocolHTTP2 && p != protocolGRPC {
		return
	}
	options := packed(&upstreamhttpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}}}}})
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}
}

// packed returns a message as an Any with deterministic encoding. Encoding cannot fail, because names and matches were
// checked to be UTF-8 when they were read.
func packed(m proto.Message) *anypb.Any {
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("encoding %s: %s", m.ProtoReflect().Descriptor().FullName(), err))
	}
	return a
}

// assign makes the endpoints of a service; named reports whether any has a host name.
func (s *service) assign() (a *endpointv3.ClusterLoadAssignment, named bool, err error) {
	type place struct {
		priority uint32
		zone     string
	}
	a = &endpointv3.ClusterLoadAssignment{ClusterName: s.Name}
	localities := map[place]*endpointv3.LocalityLbEndpoints{}
	used := map[string]bool{}
	for i, e := range s.Endpoints {
		one, host, err := e.endpoint()
		if err != nil {
			return nil, false, item("endpoints", i, err)
		}
		named = named || host
		at := place{e.Priority, e.Zone}
		l := localities[at]
		if l == nil {
			l = &endpointv3.LocalityLbEndpoints{Priority: e.Priority}
			if e.Zone != "" {
				l.Locality = &corev3.Locality{Zone: e.Zone}
			}
			if w, given := s.Zones[e.Zone]; given {
				if w == 0 {
					return nil, false, in("zones", in(e.Zone, errors.New("a weight must be 1 or more")))
				}
				l.LoadBalancingWeight = wrapperspb.UInt32(w)
			}
			used[e.Zone] = true
			localities[at] = l
			a.Endpoints = append(a.Endpoints, l)
		}
		l.LbEndpoints = append(l.LbEndpoints, one)
	}
	for _, zone := range slices.Sorted(maps.Keys(s.Zones)) {
		if !used[zone] {
			return nil, false, in("zones", wrongAt(fmt.Errorf("there is no endpoint in %s", zone), zone))
		}
	}
	for _, zone := range slices.Sorted(maps.Keys(used)) {
		if _, given := s.Zones[zone]; len(s.Zones) > 0 && !given {
			return nil, false, in("zones", fmt.Errorf("zone %q has endpoints and no weight", zone))
		}
	}
	return a, named, nil
}

// endpoint makes one endpoint; named reports whether it has a host name.
func (e *Endpoint) endpoint() (one *endpointv3.LbEndpoint, named bool, err error) {
	address, named, err := socket(e.Address, corev3.SocketAddress_TCP)
	if err != nil {
		return nil, false, in("address", err)
	}
	one = &endpointv3.LbEndpoint{LoadBalancingWeight: wrapperspb.UInt32(max(1, e.Weight)),
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}
	switch e.Health {
	case "", "healthy":
		one.HealthStatus = corev3.HealthStatus_HEALTHY
	case "unhealthy":
		one.HealthStatus = corev3.HealthStatus_UNHEALTHY
	case "draining":
		one.HealthStatus = corev3.HealthStatus_DRAINING
	default:
		return nil, false, in("health", fmt.Errorf("%q is none of healthy, unhealthy and draining", e.Health))
	}
	return one, named, nil
}

// socket parses an address; named reports whether its host is a name.
func socket(text string, p corev3.SocketAddress_Protocol) (a *corev3.Address, named bool, err error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return nil, false, fmt.Errorf("%q is not host:port", text)
	}
	port, err := strconv.ParseUint(text[i+1:], 10, 16)
	if err != nil || port == 0 {
		return nil, false, fmt.Errorf("%q has no port from 1 to 65535", text)
	}
	host := text[:i]
	if bare, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(bare, "]")
	}
	if host == "" {
		return nil, false, fmt.Errorf("%q has no host", text)
	}
	_, err = netip.ParseAddr(host)
	s := &corev3.SocketAddress{Protocol: p, Address: host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: s}}, err != nil, nil
}

// listenAt parses an address that a proxy can listen on.
func listenAt(text string, p protocol) (*corev3.Address, netip.AddrPort, error) {
	a, named, err := socket(text, p.socket())
	if err == nil && named {
		err = fmt.Errorf("%q has no IP address", text)
	}
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	s := a.GetSocketAddress()
	ip, err := netip.ParseAddr(s.GetAddress())
	return a, netip.AddrPortFrom(ip, uint16(s.GetPortValue())), err
}
