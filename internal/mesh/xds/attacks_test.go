package xds_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh/xds"
)

// Field numbers of both variants of a response.
const (
	fieldVersion  = 1
	fieldResource = 2
	fieldType     = 4
	fieldNonce    = 5
	fieldRemoved  = 6
)

// resource is a resource of a response.
type resource struct {
	name, version, url string
	value              []byte
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

// head encodes a response without resources.
func head(url, version, nonce string) []byte {
	return appendText(appendText(appendText(nil, fieldType, url), fieldVersion, version), fieldNonce, nonce)
}

// response encodes a response in the stream's variant. It is encoded by hand, because the generated encoder cannot
// make some of them.
func (h *hostile) response(k xds.Kind, nonce string, resources ...*resource) []byte {
	b := head(k.TypeURL(), nonce, nonce)
	for _, r := range resources {
		a := appendBytes(appendText(nil, 1, r.url), 2, r.value)
		if !h.world {
			a = appendBytes(appendText(appendText(nil, 3, r.name), 1, r.version), 2, a)
		}
		b = appendBytes(b, fieldResource, a)
	}
	return b
}

// encoded makes a resource of a message.
func encoded(k xds.Kind, name string, m proto.Message) *resource {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &resource{name, "1", k.TypeURL(), b}
}

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

func address(at string) *corev3.Address {
	host, text, _ := net.SplitHostPort(at)
	port, _ := strconv.ParseUint(text, 10, 32)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}}}
}

func assignment(name string, at ...string) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for _, x := range at {
		a.Endpoints = append(a.Endpoints, &endpointv3.LocalityLbEndpoints{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(x)}}}}})
	}
	return a
}

func static(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ConnectTimeout: durationpb.New(time.Second),
		LoadAssignment: assignment(name, "127.0.0.1:1")}
}

func discovered(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}}}
}

func tcp(cluster string) *listenerv3.Filter {
	return &listenerv3.Filter{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(
		&tcpproxyv3.TcpProxy{StatPrefix: "x", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}})}}
}

func listener(name, at string, chains ...*listenerv3.FilterChain) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, Address: address(at), FilterChains: chains}
}

func chain(filters ...*listenerv3.Filter) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{Filters: filters}
}

// http makes a connection manager whose routes are a separate resource.
func http(routes string) *listenerv3.Filter {
	return &listenerv3.Filter{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(
		&hcmv3.HttpConnectionManager{StatPrefix: "x", RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: routes, ConfigSource: &corev3.ConfigSource{
				ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}}},
			HttpFilters: []*hcmv3.HttpFilter{{Name: "router",
				ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(&routerv3.Router{})}}}})}}
}

func hosts(name string, n int, cluster func(i int) string) *routev3.RouteConfiguration {
	r := &routev3.RouteConfiguration{Name: name}
	for i := range n {
		r.VirtualHosts = append(r.VirtualHosts, &routev3.VirtualHost{Name: fmt.Sprint(i),
			Domains: []string{fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)},
			Routes: []*routev3.Route{{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster(i)}}}}}})
	}
	return r
}

func goodCluster() *resource { return encoded(xds.Clusters, goodName, static(goodName)) }

func goodListener(at string) *resource {
	return encoded(xds.Listeners, goodName, listener(goodName, at, chain(tcp(goodName))))
}

// some makes n resources.
func some(n int, make func(i int) *resource) (list []*resource) {
	for i := range n {
		list = append(list, make(i))
	}
	return list
}

// twice has the first two streams send some responses, and keeps later streams open without sending.
func twice(send func(h *hostile) error) func(h *hostile) error {
	return func(h *hostile) error {
		if h.nth <= 2 {
			if err := send(h); err != nil {
				return err
			}
		}
		return h.wait()
	}
}

// nasty is a name with terminal control sequences, line and text separators, and a forged warning.
const nasty = "\x1b[2J\x1b]0;title\a\x00\nwarning: forged\r\u202e\u2028\u009b"

// notUTF8 is not valid UTF-8.
const notUTF8 = "\xff\xfe\xc0\x80"

// large sends four resources of 7 MiB.
func large(h *hostile) error {
	return h.respond(xds.Clusters, some(4, func(i int) *resource {
		c := static(fmt.Sprint("large", i))
		c.AltStatName = strings.Repeat("x", 7<<20)
		return encoded(xds.Clusters, c.Name, c)
	})...)
}

// attacks are the attacks of a hostile control plane.
var attacks = []attack{
	{name: "more empty resources than there can be", stream: twice(func(h *hostile) error {
		b := head(xds.Clusters.TypeURL(), "1", "1")
		return h.send(append(b, bytes.Repeat([]byte{fieldResource<<3 | 2, 0}, 16<<20-64)...))
	})},
	{name: "as many empty resources as there can be", stream: twice(func(h *hostile) error {
		for range 4 {
			b := head(xds.Clusters.TypeURL(), "1", strconv.Itoa(h.sent))
			if err := h.send(append(b, bytes.Repeat([]byte{fieldResource<<3 | 2, 0}, 2<<17)...)); err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "empty resources and a field that is not known", stream: twice(func(h *hostile) error {
		b := protowire.AppendVarint(protowire.AppendTag(head(xds.Clusters.TypeURL(), "1", "1"), 999, protowire.VarintType), 1)
		return h.send(append(b, bytes.Repeat([]byte{fieldResource<<3 | 2, 0}, 2<<17)...))
	})},
	{name: "one huge resource", stream: twice(func(h *hostile) error {
		c := static("huge")
		c.AltStatName = strings.Repeat("x", 31<<20)
		return h.respond(xds.Clusters, encoded(xds.Clusters, "huge", c))
	})},
	{name: "large resources", stream: twice(large)},
	{name: "resources that are far larger once they are decoded", stream: twice(func(h *hostile) error {
		l := listener("l", "10.0.0.1:80", chain(http("r")))
		if err := h.respond(xds.Listeners, encoded(xds.Listeners, "l", l)); err != nil {
			return err
		}
		if err := h.asked(xds.Routes); err != nil {
			return err
		}
		empty := bytes.Repeat([]byte{2<<3 | 2, 0}, 4<<20-64) // 4 million virtual hosts
		for range 3 {
			if err := h.respond(xds.Routes, &resource{"r", "1", xds.Routes.TypeURL(),
				append(appendText(nil, 1, "r"), empty...)}); err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "deep nesting", stream: twice(func(h *hostile) error {
		p := &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
		for range 4000 {
			p = &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: p}}
		}
		rules := &networkrbacv3.RBAC{StatPrefix: "x", Rules: &rbacv3.RBAC{Policies: map[string]*rbacv3.Policy{"p": {
			Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}}, Principals: []*rbacv3.Principal{p}}}}}
		a := packed(static("x"))
		for range 1000 {
			a = packed(a)
		}
		return h.respond(xds.Listeners,
			encoded(xds.Listeners, "principals", listener("principals", "10.0.0.1:80", chain(
				&listenerv3.Filter{Name: "rbac", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(rules)}},
				tcp("c")))),
			encoded(xds.Listeners, "any", listener("any", "10.0.0.1:81", chain(
				&listenerv3.Filter{Name: "a", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: a}}))))
	})},
	{name: "pushes without end", stream: func(h *hostile) error {
		for i := 0; h.lasts(); i++ {
			err := h.respond(xds.Clusters, some(500, func(j int) *resource {
				name := fmt.Sprint("c", i%100*500+j)
				c := discovered(name)
				c.AltStatName = strconv.Itoa(i)
				return encoded(xds.Clusters, name, c)
			})...)
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "as much as can be kept and large resources", stream: twice(func(h *hostile) error {
		for i := range 8 {
			err := h.respond(xds.Clusters, some(16<<10, func(j int) *resource {
				name := fmt.Sprint("c", i<<14+j)
				return encoded(xds.Clusters, name, discovered(name))
			})...)
			if err != nil {
				return err
			}
		}
		return errors.Join(large(h), large(h))
	})},
	{name: "nonces that repeat", stream: twice(func(h *hostile) error {
		for i := range 1000 {
			name := fmt.Sprint(i % 3)
			if err := h.send(h.response(xds.Clusters, []string{"", "1"}[i%2],
				encoded(xds.Clusters, name, static(name)))); err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "a version of megabytes", stream: func(h *hostile) error {
		long := strings.Repeat("v", 8<<20)
		if err := h.send(head(xds.Clusters.TypeURL(), long, "1")); err != nil {
			return err
		}
		if err := h.send(head(xds.Clusters.TypeURL(), "1", long)); err != nil {
			return err
		}
		return h.wait()
	}},
	{name: "versions of megabytes of resources", stream: twice(func(h *hostile) error {
		for range 4 {
			err := h.respond(xds.Clusters, some(20, func(i int) *resource {
				r := encoded(xds.Clusters, fmt.Sprint(i), static(fmt.Sprint(i)))
				r.version = strings.Repeat("v", 1<<20)
				return r
			})...)
			if err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "names of megabytes", stream: twice(func(h *hostile) error {
		return h.respond(xds.Clusters, some(14, func(i int) *resource {
			name := strings.Repeat("n", 500<<10) + strconv.Itoa(i)
			return encoded(xds.Clusters, name, static(name))
		})...)
	})},
	{name: "names that steer terminals", stream: twice(func(h *hostile) error {
		bad := static("bad" + nasty)
		bad.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{}
		filter := listener("listener"+nasty, "10.0.0.1:80", chain(&listenerv3.Filter{Name: "filter" + nasty}))
		for _, m := range []proto.Message{static("good" + nasty), bad, static("other")} {
			c := m.(*clusterv3.Cluster)
			if err := h.respond(xds.Clusters, encoded(xds.Clusters, c.Name, c)); err != nil {
				return err
			}
		}
		return errors.Join(
			h.respond(xds.Clusters, &resource{"type" + nasty, nasty, "type.googleapis.com/" + nasty, nil}),
			h.respond(xds.Listeners, encoded(xds.Listeners, filter.Name, filter)))
	})},
	{name: "resources of the wrong type", stream: twice(func(h *hostile) error {
		wrong := encoded(xds.Listeners, "l", listener("l", "10.0.0.1:80"))
		if err := h.respond(xds.Clusters, wrong); err != nil {
			return err
		}
		for _, url := range []string{"", "x", "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
			strings.Repeat("u", 1<<20)} {
			b := head(url, "1", "1")
			if err := h.send(append(b, bytes.Repeat([]byte{fieldResource<<3 | 2, 0}, 1<<17)...)); err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "removals of what was never there", stream: twice(func(h *hostile) error {
		b := head(xds.Clusters.TypeURL(), "1", "1")
		for i := range 2 << 17 {
			b = appendText(b, fieldRemoved, strconv.Itoa(i)+" was never there")
		}
		return h.send(b)
	})},
	{name: "an answer to every answer", idle: true, stream: func(h *hostile) error {
		for i := 0; h.lasts(); i++ {
			if _, err := h.receive(); err != nil {
				return err
			}
			if err := h.respond(xds.Clusters, &resource{fmt.Sprint("bad", i%2), "1", xds.Clusters.TypeURL(),
				[]byte{0xff}}); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "connections that nobody serves", idle: true, raw: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
	{name: "connections that end at once", idle: true, raw: func(c net.Conn) { c.Close() }},
	{name: "streams that end at once", idle: true,
		stream: func(*hostile) error { return status.Error(codes.Unavailable, "no") }},
	{name: "streams that end after one response", idle: true, stream: func(h *hostile) error {
		return errors.Join(h.respond(xds.Clusters, encoded(xds.Clusters, "c", static("c"))),
			status.Error(codes.Unavailable, "no"))
	}},
	{name: "requests that are too large", idle: true, stream: func(h *hostile) error {
		return errors.Join(h.respond(xds.Clusters, encoded(xds.Clusters, "c", static("c"))),
			status.Error(codes.ResourceExhausted, "grpc: received message larger than max"))
	}},
	{name: "no answer", idle: true, stream: func(h *hostile) error { return h.wait() }},
	{name: "a message byte by byte", raw: func(c net.Conn) {
		f, stream, ok := handshake(c)
		if !ok {
			return
		}
		_ = f.WriteData(stream, false, []byte{0, 2, 0, 0, 0}) // a message of 32 MiB is announced
		var pieces bytes.Buffer
		_ = http2.NewFramer(&pieces, nil).WriteData(stream, false, []byte{0})
		many := bytes.Repeat(pieces.Bytes(), 4096)
		for {
			if _, err := c.Write(many); err != nil {
				return
			}
		}
	}},
	{name: "a message that drips", idle: true, raw: func(c net.Conn) {
		f, stream, ok := handshake(c)
		if !ok {
			return
		}
		_ = f.WriteData(stream, false, []byte{0, 0, 0, 100, 0})
		for f.WriteData(stream, false, []byte{0}) == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}},
	{name: "headers and trailers of megabytes", stream: func(h *hostile) error {
		many := metadata.MD{}
		for i := range 200 {
			many.Append("x-"+strconv.Itoa(i), strings.Repeat("h", 4<<10))
		}
		if h.nth%2 == 0 {
			return errors.Join(h.SetHeader(many), h.respond(xds.Clusters, encoded(xds.Clusters, "c", static("c"))), h.wait())
		}
		h.SetTrailer(many)
		return status.Error(codes.Unavailable, nasty+strings.Repeat("m", 30<<10))
	}},
	{name: "connections that go away", idle: true, raw: func(c net.Conn) {
		if f, _, ok := handshake(c); ok {
			for f.WriteGoAway(0, http2.ErrCodeNo, []byte("bye "+nasty)) == nil {
				time.Sleep(time.Millisecond)
			}
		}
	}},
	{name: "streams that are reset", idle: true, raw: func(c net.Conn) {
		f, stream, ok := handshake(c)
		for ; ok; stream += 2 {
			if f.WriteRSTStream(stream, http2.ErrCodeRefusedStream) != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}},
	{name: "TLS where none is spoken", idle: true, raw: func(c net.Conn) {
		_, _ = c.Write(append([]byte{22, 3, 3, 0x40, 0}, bytes.Repeat([]byte{0xfe}, 1<<20)...))
		_, _ = io.Copy(io.Discard, c)
	}},
	{name: "one name again and again", stream: twice(func(h *hostile) error {
		same := encoded(xds.Clusters, "same", static("same"))
		return h.respond(xds.Clusters, some(100_000, func(int) *resource { return same })...)
	})},
	{name: "names that go in circles", stream: twice(func(h *hostile) error {
		around := discovered("r")
		around.EdsClusterConfig.ServiceName = "r"
		aggregate := &clusterv3.Cluster{Name: "a", ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{
			ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.aggregate",
				TypedConfig: packed(static("a"))}}}
		for i := range 50 {
			err := errors.Join(
				h.respond(xds.Clusters, encoded(xds.Clusters, "r", around), encoded(xds.Clusters, "a", aggregate)),
				h.respond(xds.Listeners, encoded(xds.Listeners, "r", listener("r", "10.0.0.1:80", chain(http("r"))))),
				h.respond(xds.Routes, encoded(xds.Routes, "r", hosts("r", 1, func(int) string { return "r" }))),
				h.respond(xds.Endpoints, encoded(xds.Endpoints, "r", assignment("r", "10.0.0.1:80"))))
			if i == 0 { // wait until the client has requested them
				err = errors.Join(err, h.asked(xds.Endpoints), h.asked(xds.Routes))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "what is no UTF-8", stream: twice(func(h *hostile) error {
		_ = h.respond(xds.Clusters, encoded(xds.Clusters, "e", discovered("e")),
			&resource{"c", "1", xds.Clusters.TypeURL(), appendText(nil, 1, notUTF8)})
		if err := h.asked(xds.Endpoints); err != nil {
			return err
		}
		_ = h.respond(xds.Endpoints, &resource{"e", "1", xds.Endpoints.TypeURL(), appendText(nil, 1, notUTF8)})
		return h.respond(xds.Clusters, &resource{notUTF8, notUTF8, notUTF8, nil})
	})},
	{name: "numbers that overflow", stream: twice(func(h *hostile) error {
		far := static("far")
		far.ConnectTimeout = &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
		past := discovered("past")
		past.EdsClusterConfig.EdsConfig.InitialFetchTimeout = &durationpb.Duration{Seconds: math.MinInt64,
			Nanos: math.MinInt32}
		heavy := static("heavy")
		heavy.LoadAssignment = assignment("heavy", "127.0.0.1:1", "127.0.0.1:4294967295", "127.0.0.1:0")
		for _, l := range heavy.LoadAssignment.Endpoints {
			l.Priority, l.LoadBalancingWeight = math.MaxUint32, wrapperspb.UInt32(math.MaxUint32)
			l.LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(math.MaxUint32)
		}
		split := &tcpproxyv3.TcpProxy_WeightedCluster{}
		for range 3 {
			split.Clusters = append(split.Clusters, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: "c",
				Weight: math.MaxUint32})
		}
		l := listener("l", "127.0.0.1:4294967295",
			chain(&listenerv3.Filter{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{
				TypedConfig: packed(&tcpproxyv3.TcpProxy{StatPrefix: "x",
					ClusterSpecifier: &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: split}})}}))
		overlong := append(appendText(nil, 1, "overlong"), 2<<3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
			0xff, 0xff)
		return errors.Join(
			h.respond(xds.Clusters, encoded(xds.Clusters, "far", far), encoded(xds.Clusters, "past", past),
				encoded(xds.Clusters, "heavy", heavy), &resource{"overlong", "1", xds.Clusters.TypeURL(), overlong}),
			h.respond(xds.Listeners, encoded(xds.Listeners, "l", l)))
	})},
	{name: "a place that thousands want", stream: twice(func(h *hostile) error {
		return h.respond(xds.Listeners, some(20_000, func(i int) *resource {
			name := fmt.Sprint("l", i)
			return encoded(xds.Listeners, name, listener(name, "10.0.0.1:80", chain(tcp("c"))))
		})...)
	})},
	{name: "places that move in a row", stream: twice(func(h *hostile) error {
		for round := range 2 { // each listener wants the address of the next, and the last cannot move
			err := h.respond(xds.Listeners, some(20_000, func(i int) *resource {
				name, at := fmt.Sprintf("l%06d", i), i+round
				if i == 19_999 {
					at = i
				}
				return encoded(xds.Listeners, name, listener(name, fmt.Sprintf("10.0.%d.%d:80", at>>8, at&255), chain(tcp("c"))))
			})...)
			if err != nil {
				return err
			}
		}
		return nil
	})},
	{name: "chains times virtual hosts", stream: twice(func(h *hostile) error {
		var chains []*listenerv3.FilterChain
		for i := range 5000 {
			c := chain(http("r"))
			c.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: []string{fmt.Sprint(i)}}
			chains = append(chains, c)
		}
		return errors.Join(
			h.respond(xds.Clusters, encoded(xds.Clusters, "c", static("c"))),
			h.respond(xds.Listeners, encoded(xds.Listeners, "l", listener("l", "0.0.0.0:80", chains...))),
			h.asked(xds.Routes),
			h.respond(xds.Routes, encoded(xds.Routes, "r", hosts("r", 4000, func(int) string { return "c" }))))
	})},
	{name: "regular expressions that repeat", stream: twice(func(h *hostile) error {
		r := hosts("r", 16, func(int) string { return "c" })
		for _, v := range r.VirtualHosts {
			v.Routes[0].Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{
				SafeRegex: &matcherv3.RegexMatcher{Regex: strings.Repeat("x{1000}", 500)}}
		}
		return errors.Join(
			h.respond(xds.Clusters, encoded(xds.Clusters, "c", static("c"))),
			h.respond(xds.Listeners, encoded(xds.Listeners, "l", listener("l", "10.0.0.1:80", chain(http("r"))))),
			h.asked(xds.Routes),
			h.respond(xds.Routes, encoded(xds.Routes, "r", r)))
	})},
}

// handshake does the server's part of the beginning of an HTTP/2 connection. It returns the first stream's number once
// the client has sent its headers.
func handshake(c net.Conn) (f *http2.Framer, stream uint32, ok bool) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return nil, 0, false
	}
	f = http2.NewFramer(c, c)
	if f.WriteSettings() != nil {
		return nil, 0, false
	}
	for stream == 0 {
		frame, err := f.ReadFrame()
		if err != nil {
			return nil, 0, false
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			stream = frame.StreamID
		}
	}
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = e.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	if f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true}) != nil {
		return nil, 0, false
	}
	go func() { _, _ = io.Copy(io.Discard, c) }()
	return f, stream, true
}
