package storebench

import (
	"fmt"
	"net/netip"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh"
	"tare/internal/mesh/store/storeload"
	"tare/internal/mesh/xds/translate"
)

// inputs holds the changes to flush, as decoded changes and as bytes on the wire. They are made in advance, because
// only their decoding and the store's work are measured. A removal consists of a name, so it has no encoded form.
type inputs struct {
	sets    [2][resident]mesh.Change // two contents for each name
	wire    [2][resident][]byte      // the same as encoded xDS resources; unused for the decoded form
	removes [resident]mesh.Change
	decode  func([]byte) (mesh.Change, error) // nil for the decoded form
}

func newInputs(o Options) (*inputs, error) {
	in := &inputs{}
	for i := range resident {
		if o.Resource == Cluster {
			a, z := storeload.ClusterLoad(i), storeload.ClusterLoad(resident+i)
			z.Name = a.Name
			in.sets[0][i].Clusters, in.sets[1][i].Clusters = []*mesh.Cluster{a}, []*mesh.Cluster{z}
			in.removes[i].RemovedClusters = []string{a.Name}
			continue
		}
		a, z := storeload.ListenerLoad(i), storeload.ListenerLoad(resident+i)
		z.Name, z.Address = a.Name, a.Address
		in.sets[0][i].Listeners, in.sets[1][i].Listeners = []*mesh.Listener{a}, []*mesh.Listener{z}
		in.removes[i].RemovedListeners = []string{a.Name}
	}
	if o.From == Bytes {
		return in, in.encode()
	}
	return in, nil
}

// encode encodes the resources in their form on the wire.
func (in *inputs) encode() error {
	in.decode = decodeCluster
	for content := range in.sets {
		for i := range in.sets[content] {
			m, err := message(in.sets[content][i])
			if err != nil {
				return err
			}
			if in.wire[content][i], err = (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil {
				return fmt.Errorf("encoding a resource: %w", err)
			}
		}
	}
	if len(in.sets[0][0].Listeners) > 0 {
		in.decode = decodeListener
	}
	return nil
}

func decodeCluster(b []byte) (change mesh.Change, err error) {
	c, err := translate.ParseCluster(b)
	if err != nil {
		return change, err
	}
	return mesh.Change{Clusters: []*mesh.Cluster{c.Known()}}, nil
}

func decodeListener(b []byte) (change mesh.Change, err error) {
	l, err := translate.ParseListener(b)
	if err != nil {
		return change, err
	}
	return mesh.Change{Listeners: []*mesh.Listener{l}}, nil
}

// set returns the change that adds resource i; other returns the change that replaces its content; and remove returns
// the change that removes it.
func (in *inputs) set(i int) (mesh.Change, error)    { return in.content(0, i) }
func (in *inputs) other(i int) (mesh.Change, error)  { return in.content(1, i) }
func (in *inputs) remove(i int) (mesh.Change, error) { return in.removes[i], nil }

func (in *inputs) content(which, i int) (mesh.Change, error) {
	if in.decode == nil {
		return in.sets[which][i], nil
	}
	return in.decode(in.wire[which][i])
}

// message returns the resource of a change as a control plane would send it. A cluster contains its endpoints, as in
// the benchmarks.
func message(change mesh.Change) (proto.Message, error) {
	if len(change.Clusters) > 0 {
		return cluster(change.Clusters[0]), nil
	}
	return listener(change.Listeners[0])
}

func cluster(c *mesh.Cluster) *clusterv3.Cluster {
	u32 := wrapperspb.UInt32
	m := &clusterv3.Cluster{
		Name: c.Name, ConnectTimeout: durationpb.New(c.ConnectTimeout), LbPolicy: clusterv3.Cluster_ROUND_ROBIN,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: u32(c.Breakers.MaxConnections), MaxPendingRequests: u32(c.Breakers.MaxPending),
			MaxRequests: u32(c.Breakers.MaxRequests), MaxRetries: u32(c.Breakers.MaxRetries),
		}}},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: c.Name},
	}
	for _, l := range c.Localities {
		out := &endpointv3.LocalityLbEndpoints{}
		for _, e := range l.Endpoints {
			out.LbEndpoints = append(out.LbEndpoints, &endpointv3.LbEndpoint{
				HealthStatus: corev3.HealthStatus_HEALTHY, LoadBalancingWeight: u32(e.Weight),
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(e.Address)}},
			})
		}
		m.LoadAssignment.Endpoints = append(m.LoadAssignment.Endpoints, out)
	}
	return m
}

func listener(l *mesh.Listener) (*listenerv3.Listener, error) {
	m := &listenerv3.Listener{Name: l.Name, Address: address(l.Address)}
	for _, c := range l.Chains {
		proxy, err := anypb.New(&tcpproxyv3.TcpProxy{
			StatPrefix: c.Proxy.StatPrefix, MaxConnectAttempts: wrapperspb.UInt32(c.Proxy.MaxConnectAttempts),
			ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: c.Proxy.Clusters[0].Name},
		})
		if err != nil {
			return nil, fmt.Errorf("encoding a filter: %w", err)
		}
		m.FilterChains = append(m.FilterChains, &listenerv3.FilterChain{Name: c.Name, Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: proxy},
		}}})
	}
	return m, nil
}

func address(a netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}
