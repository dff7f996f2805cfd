package services

import (
	"fmt"
	"net/netip"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh/controlplane"
)

// Limits of the mesh. They follow from the number of addresses and ports that encode endpoints (endpoint).
const (
	MaxServices  = 65_000
	MaxEndpoints = 1 << endpointBits // of one service
	// Changes is the number of distinguishable changes. Later changes are numbered from 1 again.
	Changes = 1<<(24-endpointBits) - 2
)

// endpointBits is the number of low bits of an address that hold the endpoint's number.
const endpointBits = 7

// DefaultEndpoints is the default number of endpoints of each service.
const DefaultEndpoints = 20

// Service returns the address of service i, counted from 0, in 10.96.0.0/12, the range that clusters use for services.
func Service(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)}), 80)
}

// endpoint returns endpoint i of a service after a change. The port encodes the service, and the address, which is on
// this machine, encodes the change.
func endpoint(service, change, i int) netip.AddrPort {
	v := change<<endpointBits | i
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(v >> 16), byte(v >> 8), byte(v)}), uint16(1+service))
}

// ChangeOf returns the service to which an endpoint belongs, and the change that added it. It returns false for an
// address outside 127.0.0.0/8 and for port 0, and does not check that the mesh has the service.
func ChangeOf(a netip.AddrPort) (service, change int, ok bool) {
	if !a.Addr().Is4() || a.Addr().As4()[0] != 127 || a.Port() == 0 {
		return 0, 0, false
	}
	ip := a.Addr().As4()
	return int(a.Port()) - 1, (int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])) >> endpointBits, true
}

// addresses is the number of addresses that endpoints of TCP services can have. All of these endpoints share one port,
// so that one socket can listen for all of them. Their addresses therefore encode the service as well as the change.
// The encoded number is at least 1 and at most this constant, so that no address is 127.0.0.0 or 127.255.255.255.
const addresses = 1<<24 - 2

// servicePort is the port of services.
const servicePort = 80

// Service returns the address of service i, counted from 0. Addresses of TCP services are on this machine, in
// 127.96.0.0/12, so that connections reach no other machine before a data plane has the services.
func (r Ready) Service(i int) netip.AddrPort {
	if len(r.Addresses) > 0 {
		return r.Addresses[i]
	}
	if r.Port == 0 {
		return Service(i)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(96 + i>>16), byte(i >> 8), byte(i)}), servicePort)
}

// Changes returns the number of distinguishable changes of this mesh. Later changes are numbered from 1 again.
func (r Ready) Changes() int {
	if r.Port == 0 {
		return Changes
	}
	return addresses / max(1, r.Services*r.Endpoints)
}

// Endpoint returns endpoint i of a service after a change.
func (r Ready) Endpoint(service, change, i int) netip.AddrPort {
	if r.Port == 0 {
		return endpoint(service, change, i)
	}
	v := 1 + ((change-1)*r.Services+service)*r.Endpoints + i
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(v >> 16), byte(v >> 8), byte(v)}), r.Port)
}

// ChangeOf returns the service to which an endpoint of this mesh belongs, and the change that added it. It returns
// false for any other address, except as the function ChangeOf does if Port is 0.
func (r Ready) ChangeOf(a netip.AddrPort) (service, change int, ok bool) {
	if r.Port == 0 {
		return ChangeOf(a)
	}
	if !a.Addr().Is4() || a.Addr().As4()[0] != 127 || a.Port() != r.Port {
		return 0, 0, false
	}
	ip := a.Addr().As4()
	v := (int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])) - 1
	if v < 0 || v >= r.Changes()*r.Services*r.Endpoints {
		return 0, 0, false
	}
	v /= r.Endpoints
	return v % r.Services, 1 + v/r.Services, true
}

// nameOf returns a service's name. Names are as long as those in a real cluster, and sort like the services' numbers.
func nameOf(i int) string {
	return fmt.Sprintf("outbound|80||service-%05d.default.svc.cluster.local", i)
}

// resources returns all services in their initial state, which counts as change 1. They use UDP, whose connect() sends
// no packet: a client can connect, and learn the chosen endpoint, without a server.
func resources(services, endpoints int) (r controlplane.Resources, err error) {
	ads := &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	for i := range services {
		name := nameOf(i)
		r.Clusters = append(r.Clusters, &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads},
		})
		//nolint:staticcheck // deprecated, but shorter than a matcher, and in wide use
		proxy, err := anypb.New(&udpproxyv3.UdpProxyConfig{StatPrefix: name,
			RouteSpecifier: &udpproxyv3.UdpProxyConfig_Cluster{Cluster: name}})
		if err != nil {
			return r, fmt.Errorf("encoding the listener of service %d: %w", i, err)
		}
		r.Listeners = append(r.Listeners, &listenerv3.Listener{
			Name: name, Address: socket(Service(i), corev3.SocketAddress_UDP),
			ListenerFilters: []*listenerv3.ListenerFilter{{Name: "udp_proxy",
				ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: proxy}}},
		})
		r.Endpoints = append(r.Endpoints, assignment(i, 1, endpoints))
	}
	return r, nil
}

// assignment returns the endpoints of a service after a change, already encoded: making 100,000 messages for every
// change of a large mesh would take most of the control plane's time.
func assignment(service, change, endpoints int) *endpointv3.ClusterLoadAssignment {
	const text, number = protowire.BytesType, protowire.VarintType
	locality := protowire.AppendString(protowire.AppendTag(nil, 1, text), "region")
	locality = protowire.AppendString(protowire.AppendTag(locality, 2, text), "zone")
	all := within(make([]byte, 0, 48*(1+endpoints)), 1, locality)
	var socket, address, end, one []byte
	for i := range endpoints {
		a := endpoint(service, change, i)
		socket = protowire.AppendTag(socket[:0], 2, text)
		socket = protowire.AppendString(socket, a.Addr().String())
		socket = protowire.AppendVarint(protowire.AppendTag(socket, 3, number), uint64(a.Port()))
		address = within(address[:0], 1, socket) // of core.Address
		end = within(end[:0], 1, address)        // of Endpoint
		one = within(one[:0], 1, end)            // of LbEndpoint
		all = within(all, 2, one)
	}
	m := &endpointv3.ClusterLoadAssignment{ClusterName: nameOf(service)}
	m.ProtoReflect().SetUnknown(within(nil, 2, all)) // marshaling copies unknown fields as they are
	return m
}

// within appends a message to b as a field of an enclosing message.
func within(b []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}

func socket(a netip.AddrPort, p corev3.SocketAddress_Protocol) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Protocol: p, Address: a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())}}}}
}
