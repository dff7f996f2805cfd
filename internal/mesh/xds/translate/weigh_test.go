package translate

import (
	"runtime"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const typesURL = "type.googleapis.com/"

func urlOf(m proto.Message) string {
	return typesURL + string(m.ProtoReflect().Descriptor().FullName())
}

// TestWeigh: Weigh returns at least 80 % of the memory that the generated decoder takes, and at most three times as
// much; 1 MiB more or less is tolerated.
func TestWeigh(t *testing.T) {
	hosts := &routev3.RouteConfiguration{Name: "r"}
	to := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c"}}
	for range 10_000 {
		hosts.VirtualHosts = append(hosts.VirtualHosts, &routev3.VirtualHost{Name: "v", Domains: []string{"a", "b"},
			Routes: []*routev3.Route{{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_Route{Route: to}}}})
	}
	empty := &listenerv3.Listener{Name: "l"}
	for range 100_000 {
		empty.FilterChains = append(empty.FilterChains, &listenerv3.FilterChain{})
	}
	ports := &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{FilterChainMatch: &listenerv3.FilterChainMatch{
		SourcePorts: make([]uint32, 1<<20)}}}}
	for name, m := range map[string]proto.Message{"virtual hosts": hosts, "empty chains": empty, "numbers": ports,
		"text": &clusterv3.Cluster{Name: "c", AltStatName: strings.Repeat("x", 4<<20)}} {
		b := bytesOf(t, m)
		said, err := Weigh(urlOf(m), b)
		if err != nil {
			t.Fatal(name, err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		decoded := m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(b, decoded); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took := int(after.HeapAlloc) - int(before.HeapAlloc)
		runtime.KeepAlive([]any{decoded, b, m})
		if took > said+said/4+1<<20 || said > 3*took+1<<20 {
			t.Errorf("%s: decoding took %d bytes, said were %d", name, took, said)
		}
	}
}

func TestWeighRefuses(t *testing.T) {
	nested := bytesOf(t, &anypb.Any{TypeUrl: "x"})
	for range MaxNesting {
		nested = bytesOf(t, &anypb.Any{TypeUrl: typesURL + "google.protobuf.Any", Value: nested})
	}
	empty := []byte(strings.Repeat("\x1a\x00", 1<<20)) // filter chains
	for name, c := range map[string]struct {
		url  string
		b    []byte
		says string
	}{
		"nested": {typesURL + "google.protobuf.Any", nested, "nested more than 100 deep"},
		"far larger": {typesURL + "envoy.config.listener.v3.Listener", empty,
			"decoding its 2097152 bytes would take more than 48 MiB"},
		"far larger, in an Any": {typesURL + "google.protobuf.Any",
			bytesOf(t, &anypb.Any{TypeUrl: typesURL + "envoy.config.listener.v3.Listener", Value: empty}), "would take more"},
		"not known": {"x", empty, ""},
		"nothing":   {typesURL + "envoy.config.listener.v3.Listener", nil, ""},
	} {
		n, err := Weigh(c.url, c.b)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %d, %v, want %q", name, n, err, c.says)
		}
	}
}

// FuzzWeigh: Weigh handles any input, and returns at least half of the size of the encoded message.
func FuzzWeigh(f *testing.F) {
	f.Add(bytesOf(f, &clusterv3.Cluster{Name: "c"}))
	f.Add(of(f, &listenerv3.Listener{}, tcpWith(`"cluster":"web"`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range []proto.Message{&clusterv3.Cluster{}, &listenerv3.Listener{}, &routev3.RouteConfiguration{}} {
			n, err := Weigh(urlOf(m), b)
			if err != nil || proto.Unmarshal(b, m) != nil {
				continue
			}
			if least := proto.Size(m) / 2; n < least {
				t.Errorf("%s of %d bytes weighs %d", urlOf(m), protowire.SizeBytes(len(b)), n)
			}
		}
	})
}
