package xds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"tare/internal/mesh"
	"tare/internal/mesh/istiod"
	"tare/test/istiodtest"
)

// recordVariable is the environment variable with which the test records istiod's responses and their results: make
// istiod-record sets it.
const recordVariable = "TARE_ISTIOD_RECORD"

// The workload whose responses were recorded.
const (
	recordedAs   = "sidecar~127.0.0.9~web.default~default.svc.cluster.local"
	recordedFrom = "127.0.0.9"
)

// recordings returns istiod's configuration files by the name of what they show, and a text that istiod's responses
// then contain.
func recordings() map[string][2]string {
	service := func(name, at, protocol string, endpoints ...string) istiodtest.Service {
		s := istiodtest.Service{Name: name, Address: netip.MustParseAddrPort(at), Protocol: protocol}
		for _, e := range endpoints {
			s.Endpoints = append(s.Endpoints, netip.MustParseAddrPort(e))
		}
		return s
	}
	files := func(objects ...string) string { return strings.Join(objects, "---\n") }
	tcp := service("tcp", "10.96.0.1:9000", "TCP", "127.0.0.1:7001", "127.0.0.1:7002")
	web := service("http", "10.96.0.2:80", "HTTP", "127.0.0.1:7003", "127.0.0.1:7004")
	own := service("own", "10.96.0.3:7005", "TCP", recordedFrom+":7005")
	ownHTTP := service("ownhttp", "10.96.0.4:7006", "HTTP", recordedFrom+":7006")
	object := func(group, kind, spec string) string {
		return "apiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: x, namespace: default}\nspec: " + spec + "\n"
	}
	return map[string][2]string{
		"services": {files(tcp.Entry(), web.Entry()), "10.96.0.2"},
		"weights":  {files(tcp.Weighted(75), web.Weighted(75)), "|v2|http"},
		"headers": {files(web.Entry(), object("networking.istio.io/v1", "VirtualService", `{hosts: [http.mesh.test], http: [
  {match: [{headers: {x: {exact: "1"}}}], route: [{destination: {host: other.mesh.test}}]}, {route: [{destination: {host: http.mesh.test}}]}]}`),
			service("other", "10.96.0.5:80", "HTTP", "127.0.0.1:7007").Entry()), "10.96.0.5"},
		"policy": {files(own.Entry(), ownHTTP.Entry(),
			istiodtest.Policy(`{from: [{source: {ipBlocks: [127.0.1.0/24]}}], to: [{operation: {ports: ["7005", "7006"]}}]}`)),
			"ns[default]-policy[policy]"},
		"identity": {files(own.Entry(), istiodtest.Policy(`{from: [{source: {principals: [cluster.local/ns/default/sa/web]}}]}`)),
			"ns[default]-policy[policy]"},
		"strict": {files(own.Entry(), object("security.istio.io/v1", "PeerAuthentication", "{mtls: {mode: STRICT}}")),
			"10.96.0.3"},
		"registry-only": {files(tcp.Entry(), web.Entry(), object("networking.istio.io/v1", "Sidecar",
			`{outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: ["*/*"]}]}`)), "block_all"},
		"tls": {files(tcp.Entry(), object("networking.istio.io/v1", "DestinationRule",
			`{host: tcp.mesh.test, trafficPolicy: {tls: {mode: SIMPLE}}}`),
			service("sni", "10.96.0.6:443", "TLS", "127.0.0.1:7008").Entry()), "10.96.0.6"},
		"outliers": {files(tcp.Entry(), object("networking.istio.io/v1", "DestinationRule",
			`{host: tcp.mesh.test, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 5}, connectionPool: {tcp: {maxConnections: 7, idleTimeout: 30s}},
  loadBalancer: {consistentHash: {useSourceIp: true}}}}`)), "10.96.0.1"},
		"names": {files(object("networking.istio.io/v1", "ServiceEntry",
			`{hosts: [localhost], ports: [{number: 9000, name: main, protocol: TCP}],
  resolution: DNS, location: MESH_EXTERNAL, addresses: [10.96.0.7]}`)), "10.96.0.7"},
		"deny": {files(own.Entry(), object("security.istio.io/v1", "AuthorizationPolicy", `{action: DENY, rules: [
  {from: [{source: {ipBlocks: [127.0.2.0/24]}}]}, {from: [{source: {notIpBlocks: [127.0.0.0/8]}}]}]}`)),
			"ns[default]-policy[x]"},
		"deny-by-address": {files(own.Entry(), object("security.istio.io/v1", "AuthorizationPolicy", `{action: DENY, rules: [
  {from: [{source: {ipBlocks: [127.0.2.0/24]}}]}]}`)), "ns[default]-policy[x]"},
		"external": {files(object("networking.istio.io/v1", "ServiceEntry", `{hosts: [one.test, two.test],
  ports: [{number: 443, name: main, protocol: TLS}], resolution: DNS, location: MESH_EXTERNAL}`),
			strings.Replace(object("networking.istio.io/v1", "ServiceEntry",
				`{hosts: [range.test], ports: [{number: 9000, name: main, protocol: TCP}],
  resolution: NONE, location: MESH_EXTERNAL, addresses: [10.97.0.0/24]}`), "name: x", "name: range", 1)), "two.test"},
		"localities": {files(object("networking.istio.io/v1", "ServiceEntry", `{hosts: [zones.mesh.test],
  ports: [{number: 9000, name: main, protocol: TCP}], resolution: STATIC, location: MESH_INTERNAL, addresses: [10.96.0.8], endpoints: [
  {address: 127.0.0.1, ports: {main: 7010}, locality: r1/z1, weight: 3}, {address: 127.0.0.1, ports: {main: 7011}, locality: r1/z2},
  {address: 127.0.0.1, ports: {main: 7012}, locality: r2/z1}]}`),
			object("networking.istio.io/v1", "DestinationRule", `{host: zones.mesh.test,
  trafficPolicy: {loadBalancer: {localityLbSetting: {enabled: true, distribute: [{from: "*", to: {"r1/*": 80, "r2/*": 20}}]}}, outlierDetection: {}}}`)), "10.96.0.8"},
		"http": {files(web.Entry(), object("networking.istio.io/v1", "VirtualService", `{hosts: [http.mesh.test], http: [{
  route: [{destination: {host: http.mesh.test}}], timeout: 3s, retries: {attempts: 2}, mirror: {host: other.mesh.test}, rewrite: {uri: /x},
  fault: {delay: {percentage: {value: 1}, fixedDelay: 1s}}, headers: {request: {set: {a: b}}}}]}`),
			service("other", "10.96.0.5:80", "HTTP", "127.0.0.1:7007").Entry()), "10.96.0.5"},
	}
}

// TestIstiodRecorded: istiod's recorded responses still give the recorded results. The recordings are made by make
// istiod-record.
func TestIstiodRecorded(t *testing.T) {
	dir := filepath.Join("testdata", "istiod")
	if os.Getenv(recordVariable) != "" {
		record(t, dir)
	}
	for _, name := range slices.Sorted(maps.Keys(recordings())) {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, name+".pb"))
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join(dir, name+".txt")
			got := replay(t, text)
			if os.Getenv(recordVariable) != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// replay processes recorded responses, and returns what a store then has.
func replay(t *testing.T, text []byte) string {
	x := newTaking(t)
	x.serving.own = []netip.Addr{netip.MustParseAddr(recordedFrom)}
	for in := bytes.NewReader(text); ; {
		var m discoveryv3.DiscoveryResponse
		if err := protodelim.UnmarshalFrom(in, &m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		r := &response{}
		if err := r.decode(b); err != nil {
			t.Fatal(err)
		}
		k, ok := KindOf(r.typeURL)
		if !ok {
			t.Fatal(r.typeURL)
		}
		x.settle(x.state.take(k, r, true))
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(x.store.Clusters)) {
		c := x.store.Clusters[name]
		fmt.Fprintf(&out, "cluster %s: policy %d, %d connections:", name, c.Policy, c.Breakers.MaxConnections)
		for _, e := range c.Targets(nil) {
			fmt.Fprintf(&out, " %s*%d", e.Address, e.Weight)
		}
		fmt.Fprintln(&out)
	}
	for _, name := range slices.Sorted(maps.Keys(x.store.Listeners)) {
		l := x.store.Listeners[name]
		rules, err := l.Rules()
		fmt.Fprintf(&out, "listener %s: %s %s %v\n", name, l.Protocol, l.Address, err)
		for _, r := range rules {
			fmt.Fprintf(&out, "  from %s to %s ports %v: %v\n", whole(r.Source), whole(r.Destination), r.DestinationPorts,
				destinations(l, r.Chain))
		}
	}
	for _, list := range [][]string{prefixed("warning: ", x.warned), prefixed("refused: ", x.refused)} {
		slices.Sort(list)
		for _, line := range slices.Compact(list) {
			fmt.Fprintln(&out, line)
		}
	}
	return out.String()
}

// whole prints a prefix; none means all addresses.
func whole(p netip.Prefix) string {
	if !p.IsValid() {
		return "anywhere"
	}
	return p.String()
}

func destinations(l *mesh.Listener, chain int) any {
	if chain == mesh.Denied {
		return "denied"
	}
	return l.Chain(chain).Proxy.Clusters
}

func prefixed(prefix string, list []string) (out []string) {
	for _, line := range list {
		out = append(out, prefix+line)
	}
	return out
}

// record writes istiod's responses to a sidecar, without versions and nonces, which change each time.
func record(t *testing.T, dir string) {
	i, err := istiod.Start(t.Context(), istiod.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, r := range recordings() {
		istiodtest.Put(t, i.Dir, "mesh.yaml", r[0])
		var before []byte
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
			said := ask(t, i.XDS)
			if bytes.Contains(said, []byte(r[1])) && bytes.Equal(said, before) {
				break
			}
			if before = said; time.Now().After(deadline) {
				t.Fatalf("%s: istiod does not say %q", name, r[1])
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name+".pb"), before, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(i.Dir, "mesh.yaml")); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); bytes.Contains(ask(t, i.XDS),
			[]byte(r[1])); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: istiod still says %q", name, r[1])
			}
		}
	}
}

// ask returns everything that a control plane sends, as one response for each type.
func ask(t *testing.T, address string) []byte {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"ISTIO_VERSION": istiod.Version, "CLUSTER_ID": "tare",
		"NAMESPACE": "default"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: recordedAs, Cluster: "web.default", Metadata: metadata}
	var out bytes.Buffer
	x := newTaking(t)
	for _, k := range []Kind{Clusters, Endpoints, Listeners, Routes} {
		q := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: k.TypeURL()}
		if !x.lists(k) {
			if q.ResourceNames = x.names(k); len(q.ResourceNames) == 0 {
				continue
			}
		}
		if err := s.Send(q); err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m.VersionInfo, m.Nonce, m.ControlPlane = "", "", nil
		slices.SortFunc(m.Resources, func(a, b *anypb.Any) int { return bytes.Compare(a.GetValue(), b.GetValue()) })
		if _, err := protodelim.MarshalTo(&out, m); err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		r := &response{}
		if err := r.decode(b); err != nil {
			t.Fatal(err)
		}
		x.settle(x.state.take(k, r, true))
	}
	return out.Bytes()
}
