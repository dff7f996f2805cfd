// Package bootstrap makes the file that an Envoy is started with: who it is, and which control plane tells it the rest.
package bootstrap

import (
	"fmt"
	"net"
	"strconv"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Envoy is what an Envoy is started with.
type Envoy struct {
	Node         string // id, as the mesh file has it
	Cluster      string // of nodes, a name that Envoy wants
	ControlPlane string // host:port
	// Transport is how it connects there; nil: in the clear.
	Transport *corev3.TransportSocket
	// StateOfTheWorld has it ask for all resources of a type at a time; it asks for deltas otherwise.
	StateOfTheWorld bool
}

// How an Envoy sees that its control plane has gone.
const (
	connectTimeout = 5 * time.Second
	aliveEvery     = 30 * time.Second
	aliveWait      = 5 * time.Second
)

// controlPlaneCluster is what Envoy calls its control plane.
const controlPlaneCluster = "controlplane"

// JSON is the bootstrap as Envoy reads it (envoy -c FILE). It has no key in it. Its administration listens at a free
// port of 127.0.0.1, which --admin-address-path tells.
func (b Envoy) JSON() ([]byte, error) {
	host, text, err := net.SplitHostPort(b.ControlPlane)
	if err != nil {
		return nil, fmt.Errorf("the address of the control plane: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("the port of the control plane: %w", err)
	}
	options, err := anypb.New(&upstreamv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
						// A control plane whose machine has gone says nothing.
						ConnectionKeepalive: &corev3.KeepaliveSettings{
							Interval: durationpb.New(aliveEvery), Timeout: durationpb.New(aliveWait),
						},
					},
				},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the options of the control plane's cluster: %w", err)
	}
	variant := corev3.ApiConfigSource_DELTA_GRPC
	if b.StateOfTheWorld {
		variant = corev3.ApiConfigSource_GRPC
	}
	fromADS := &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
	c := &bootstrapv3.Bootstrap{
		Node:  &corev3.Node{Id: b.Node, Cluster: b.Cluster},
		Admin: &bootstrapv3.Admin{Address: socketAddress("127.0.0.1", 0)},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			LdsConfig: fromADS, CdsConfig: fromADS,
			AdsConfig: &corev3.ApiConfigSource{
				ApiType: variant, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: controlPlaneCluster}}}},
			},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{
			Name: controlPlaneCluster, ConnectTimeout: durationpb.New(connectTimeout), TransportSocket: b.Transport,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: discoveryOf(host)},
			TypedExtensionProtocolOptions: map[string]*anypb.Any{
				"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options,
			},
			UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{
				TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(60)}},
			LoadAssignment: &endpointv3.ClusterLoadAssignment{
				ClusterName: controlPlaneCluster,
				Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
						Endpoint: &endpointv3.Endpoint{Address: socketAddress(host, uint32(port))}}}}}},
			},
		}}},
	}
	encoded, err := protojson.MarshalOptions{Multiline: true, Indent: "  "}.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the bootstrap of %s: %w", b.Node, err)
	}
	return append(encoded, '\n'), nil
}

// discoveryOf is how Envoy finds the address of a host.
func discoveryOf(host string) clusterv3.Cluster_DiscoveryType {
	if net.ParseIP(host) != nil {
		return clusterv3.Cluster_STATIC
	}
	return clusterv3.Cluster_STRICT_DNS
}

func socketAddress(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}
}
