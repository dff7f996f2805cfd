package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"tare/internal/fault"
	"tare/internal/role"
	"tare/internal/subject/mesh"
	"tare/internal/subject/mesh/xds/translate"
)

const full = `
services:
  - name: web
    address: 10.96.0.1:80
    policy: random
    max_connections: 100
    connect_timeout: 250ms
    zones: {a: 3, b: 1}
    endpoints:
      - {address: 127.0.0.1:8080, weight: 3, zone: a}
      - {address: "[fd00::1]:8081", health: draining, zone: a}
      - {address: 127.0.0.1:8082, health: unhealthy, zone: b, priority: 1}
    allow:
      - {from: [10.0.0.0/8, 192.168.1.1], to: ["10.96.0.0/16"], ports: ["80", 8000-8999]}
    deny:
      - {from: [10.6.6.6]}
  - name: v1
    endpoints: [{address: 127.0.0.1:9001}]
  - name: v2
    endpoints: [{address: v2.local:9002}]
  - name: canary
    address: "[fd00::2]:53"
    protocol: udp
    split: {v1: 90, v2: 10}
resources:
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: raw
    type: STATIC
    load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}]}]}
  - "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: rawlistener
    address: {socket_address: {address: 10.96.0.9, port_value: 80}}
    filter_chains: [{filters: [{name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: raw, cluster: raw}}]}]
`

// All that can be said in plain words is something that the data plane takes, and means what it says.
func TestPlainWords(t *testing.T) {
	r, err := Parse("mesh.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	config := mesh.NewConfig()
	assigned := map[string][]mesh.Locality{}
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, m := range r.Endpoints {
		a, err := translate.ParseAssignment(marshal(m))
		if err != nil {
			t.Fatal(err)
		}
		assigned[a.Name] = a.Localities
	}
	for _, m := range r.Clusters {
		c, err := translate.ParseCluster(marshal(m))
		if err != nil {
			t.Fatal(err)
		}
		switch c.Discovery {
		case translate.EDS:
			config.Clusters[c.Name] = c.With(assigned[c.Name])
		case translate.DNS:
			config.Clusters[c.Name] = c.At(func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.2")} })
		default:
			config.Clusters[c.Name] = c.Known()
		}
	}
	for _, m := range r.Listeners {
		l, err := translate.ParseListener(marshal(m))
		if err != nil {
			t.Fatal(err)
		}
		config.Listeners[l.Name] = l
	}
	if c := config.Clusters["web"]; c.Policy != mesh.Random || c.Breakers.MaxConnections != 100 || c.ConnectTimeout.String() != "250ms" || len(c.Localities) != 2 || c.Localities[0].Weight != 3 || c.Localities[1].Priority != 1 {
		t.Errorf("web: %+v", c)
	}
	for _, c := range []struct {
		from, to string
		protocol mesh.Protocol
		want     string
	}{
		{"10.1.1.1:5", "10.96.0.1:80", mesh.TCP, "accept web 127.0.0.1:8080"},
		{"192.168.1.1:5", "10.96.0.1:80", mesh.TCP, "accept web 127.0.0.1:8080"},
		{"192.168.1.2:5", "10.96.0.1:80", mesh.TCP, "deny"},
		{"10.6.6.6:5", "10.96.0.1:80", mesh.TCP, "deny"},
		{"10.1.1.1:5", "10.96.0.1:81", mesh.TCP, "pass"},
		{"10.1.1.1:5", "10.96.0.9:80", mesh.TCP, "accept raw 127.0.0.1:1"},
	} {
		a := config.Find(mesh.Question{From: netip.MustParseAddrPort(c.from), To: netip.MustParseAddrPort(c.to), Protocol: c.protocol})
		got := a.Verdict.String()
		for d := range a.Parts {
			got += " " + d.Cluster + " " + d.Endpoint.String()
		}
		if got != c.want {
			t.Errorf("%s to %s: got %s, want %s", c.from, c.to, got, c.want)
		}
	}
	a := config.Find(mesh.Question{To: netip.MustParseAddrPort("[fd00::2]:53"), Protocol: mesh.UDP})
	want := map[mesh.Destination]float64{{Cluster: "v1", Endpoint: netip.MustParseAddrPort("127.0.0.1:9001")}: 0.9, {Cluster: "v2", Endpoint: netip.MustParseAddrPort("127.0.0.2:9002")}: 0.1}
	if !reflect.DeepEqual(a.Parts, want) {
		t.Errorf("canary: %+v", a)
	}
}

func TestWrongConfigs(t *testing.T) {
	for text, want := range map[string]string{
		"services: [{nmae: x}]":                                                             `c.yaml:1: unknown field "nmae"`,
		"services: [{}]":                                                                    "services[0]: name is missing",
		"services: [{name: a}, {name: a}]":                                                  "service a is given twice",
		"services: [{name: a, address: b:1}]":                                               `address: "b:1" has no IP address`,
		"services: [{name: a, address: 1.2.3.4}]":                                           `"1.2.3.4" is no host:port`,
		"services: [{name: a, address: 1.2.3.4:0}]":                                         "has no port from 1 to 65535",
		"services: [{name: a, policy: best}]":                                               `"best" is neither round-robin nor random`,
		"services: [{name: a, address: 1.2.3.4:1, protocol: sctp}]":                         `"sctp" is neither tcp nor udp`,
		"services: [{name: a, endpoints: [{address: 1.2.3.4:5, health: ill}]}]":             `"ill" is none of healthy`,
		"services: [{name: a, endpoints: [{address: 1.2.3.4:5}], zones: {z: 1}}]":           "there is no endpoint in z",
		"services: [{name: a, connect_timeout: 5}]":                                         `"5" is no duration`,
		"services: [{name: a, address: 1.2.3.4:1, split: {b: 1}}]":                          "there is no service b with endpoints",
		"services: [{name: a, deny: [{}]}]":                                                 "need an address",
		"services: [{name: a, address: 1.2.3.4:1, deny: [{from: [x]}]}]":                    `deny[0]: from: "x" is neither`,
		"services: [{name: a, address: 1.2.3.4:1, allow: [{ports: [9-8]}]}]":                `"9-8" is neither a port nor`,
		`resources: [{"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, x: 1}]`: "resources[0]",
		`resources: [{"@type": type.googleapis.com/google.protobuf.Duration, value: 1s}]`:   "is none of clusters, endpoints and listeners",
		"a: " + strings.Repeat("[", 200):                                                    "c.yaml:1: brackets or lists are nested",
		strings.Repeat("- ", 200) + "x":                                                     "c.yaml:1: brackets or lists are nested",
	} {
		_, err := Parse("c.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.Usage {
			t.Errorf("%.80s\ngot  %v\nwant %s", text, err, want)
		}
	}
	if r, err := Parse("c.yaml", nil); err != nil || len(r.Clusters) > 0 {
		t.Errorf("an empty file: %+v, %v", r, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("services: [{name: a, address: 1.2.3.4:1, split: {b: 1}}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Parse("c.yaml", b); err != nil && fault.CodeOf(err) != fault.Usage {
			t.Error(err)
		}
	})
}

// started is a control plane as its parent sees it.
func started(t *testing.T, file string) (conn *role.Conn, end func() error) {
	t.Helper()
	input, toChild := io.Pipe()
	fromChild, output := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Run(context.Background(), file, "127.0.0.1:0", role.NewConn(input, output))
		output.Close()
		ended <- err
	}()
	end = func() error {
		toChild.Close()
		go io.Copy(io.Discard, fromChild)
		return <-ended
	}
	return role.NewConn(fromChild, toChild), end
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("services: [{name: a, address: 10.0.0.1:80, endpoints: [{address: 127.0.0.1:1}]}]")
	conn, end := started(t, file)
	var r Ready
	if err := conn.Expect(role.Ready, &r, nil); err != nil {
		t.Fatal(err)
	}
	if r.Clusters != 1 || r.Endpoints != 1 || r.Listeners != 1 || r.Config != file {
		t.Errorf("ready %+v", r)
	}
	logged := func(want string) {
		t.Helper()
		m, err := conn.Receive()
		if err != nil || m.Event != role.Log || !strings.Contains(string(m.Data), want) {
			t.Errorf("got %s %s, %v; want %s", m.Event, m.Data, err, want)
		}
	}
	write("services: [{name: a}, {name: b}]")
	logged("2 clusters, 2 endpoint assignments, 0 listeners")
	write("services: [{}]")
	logged("the configuration stays as it was")
	var d Done
	if err := conn.Send(SetEvent, Config{Services: []Service{{Name: "x", Endpoints: []Endpoint{{Address: "127.0.0.1:1"}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Expect(SetEvent, &d, nil); err != nil || d.Time == 0 {
		t.Errorf("set: %+v, %v", d, err)
	}
	if err := conn.Send(SetEvent, Config{Services: []Service{{}}}); err != nil {
		t.Fatal(err)
	}
	var wrong *fault.Error
	if err := conn.Expect(SetEvent, &d, nil); !errors.As(err, &wrong) || wrong.Code != fault.Usage {
		t.Errorf("a wrong configuration: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A kind of which nothing changed keeps its version, and so do resources that are the same in other words.
func TestVersions(t *testing.T) {
	s := New(Options{})
	defer s.Close()
	set := func(text string) (versions [3]string) {
		t.Helper()
		r, err := Parse("c.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Set(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		snapshot, err := s.cache.GetSnapshot(everyone)
		if err != nil {
			t.Fatal(err)
		}
		for i, kind := range []string{"cluster.v3.Cluster", "endpoint.v3.ClusterLoadAssignment", "listener.v3.Listener"} {
			versions[i] = snapshot.GetVersion("type.googleapis.com/envoy.config." + kind)
		}
		return versions
	}
	const one = "services: [{name: a, address: 10.0.0.1:80, endpoints: [{address: 127.0.0.1:1}]}]"
	first := set(one)
	if again := set(one + " # the same"); again != first {
		t.Errorf("the same has versions %v and %v", first, again)
	}
	other := set("services: [{name: a, address: 10.0.0.1:80, endpoints: [{address: 127.0.0.1:2}]}]")
	if other[0] != first[0] || other[1] == first[1] || other[2] != first[2] {
		t.Errorf("other endpoints have versions %v after %v", other, first)
	}
	if _, err := s.Set(context.Background(), func() Resources {
		r, _ := Parse("", []byte(one))
		r.Clusters = append(r.Clusters, r.Clusters[0])
		return r
	}()); err == nil {
		t.Error("a cluster that is given twice is taken")
	}
}

// TestSnapshots: what is built upon the snapshot before is what a server would have that never had another.
func TestSnapshots(t *testing.T) {
	services := func(text string) []*endpointv3.ClusterLoadAssignment {
		t.Helper()
		var list []*endpointv3.ClusterLoadAssignment
		for _, word := range strings.Fields(text) { // name=port
			name, port, _ := strings.Cut(word, "=")
			n, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Parse("c.yaml", fmt.Appendf(nil, "services: [{name: %s, endpoints: [{address: \"127.0.0.1:%d\"}]}]", name, n))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, r.Endpoints...)
		}
		return list
	}
	s := New(Options{})
	defer s.Close()
	set := func(s *Server, list []*endpointv3.ClusterLoadAssignment) snapshot {
		t.Helper()
		if _, err := s.Set(context.Background(), Resources{Endpoints: list}); err != nil {
			t.Fatal(err)
		}
		return s.last
	}
	for i, text := range []string{"a=1 b=2 c=3", "a=1 b=9 c=3", "b=9 a=1 c=3", "a=1 c=4", "a=1 c=4 d=5", "a=2 c=5 d=6", "a=2 e=5 d=6"} {
		list := services(text)
		if before, ok := s.last.of(resource.EndpointType).list.([]*endpointv3.ClusterLoadAssignment); ok && len(before) == len(list) {
			for j := range list { // what is the same stays the very message
				if proto.Equal(list[j], before[j]) {
					list[j] = before[j]
				}
			}
		}
		got := set(s, list)
		anew := New(Options{})
		want := set(anew, list)
		anew.Close()
		a, b := got.of(resource.EndpointType), want.of(resource.EndpointType)
		if !maps.Equal(a.versions, b.versions) || len(a.items) != len(list) || len(a.timed) != len(list) {
			t.Errorf("%d: %q: versions %v, %d and %d resources; a server that is new: %v", i, text, a.versions, len(a.items), len(a.timed), b.versions)
		}
		for name, r := range b.items {
			if a.items[name] != r || a.timed[name].Resource != r {
				t.Errorf("%d: %q: %s is another", i, text, name)
			}
		}
	}
}

func TestTimesOf(t *testing.T) {
	set, sent, ok := TimesOf(fmt.Sprintf(stampFormat, "k3-17", 123, 456))
	if set != 123 || sent != 456 || !ok {
		t.Errorf("%d, %d, %v", set, sent, ok)
	}
	for _, plain := range []string{"", "k3-17", "k3-17 set=1", "k3-17 set=x sent=2"} {
		if _, _, ok := TimesOf(plain); ok {
			t.Errorf("%q has times", plain)
		}
	}
}
