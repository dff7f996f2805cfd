package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/mesh/controlplane/ads"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/test/speed"
)

// started starts a control plane with a pipe to it, as a parent process has.
func started(t *testing.T, file string) (conn *role.Conn, end func() error) {
	t.Helper()
	o := Settings{File: file, Listen: "127.0.0.1:0"}
	input, toChild := io.Pipe()
	fromChild, output := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Run(context.Background(), o, role.NewConn(input, output))
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
	if err := conn.Send(SetEvent, Config{Services: []proxyconfig.Service{{Name: "x",
		Endpoints: []Endpoint{{Address: "127.0.0.1:1"}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Expect(SetEvent, &d, nil); err != nil || d.Time == 0 {
		t.Errorf("set: %+v, %v", d, err)
	}
	if err := conn.Send(EndpointsEvent, map[string][]Endpoint{"x": {{Address: "127.0.0.1:2"}}}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Expect(EndpointsEvent, &d, nil); err != nil {
		t.Errorf("endpoints: %+v, %v", d, err)
	}
	if err := conn.Send(EndpointsEvent, map[string][]Endpoint{"y": nil}); err != nil {
		t.Fatal(err)
	}
	var none *fault.Error
	if err := conn.Expect(EndpointsEvent, &d, nil); !errors.As(err, &none) || none.Code != fault.Usage {
		t.Errorf("endpoints of a service that is not there: %v", err)
	}
	if err := conn.Send(SetEvent, Config{Services: []proxyconfig.Service{{}}}); err != nil {
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

// TestRunDirectory: the files of a directory make one mesh. A change of any file changes the mesh, and while a file is
// invalid the mesh stays as it was.
func TestRunDirectory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", "services: [{name: a}]")
	write("b.yaml", "services: [{name: b}]")
	write("notes.txt", "this is not YAML: [")
	conn, end := started(t, dir)
	var r Ready
	if err := conn.Expect(role.Ready, &r, nil); err != nil {
		t.Fatal(err)
	}
	if r.Clusters != 2 || r.Config != dir {
		t.Errorf("ready %+v", r)
	}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() { write("b.yaml", "services: [{name: b}, {name: c}]") }, dir + ": 3 clusters"},
		{func() { write("c.yaml", "\nservices: [{}]") },
			"c.yaml:2: the configuration is wrong: services[0]: name is missing"},
		{func() { write("c.yaml", "services: [{name: d}]") }, dir + ": 4 clusters"},
		{func() {
			if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
				t.Error(err)
			}
		}, dir + ": 3 clusters"},
	} {
		step.change()
		for said := ""; !strings.Contains(said, step.want); { // the first messages may be of a half-written file
			m, err := conn.Receive()
			if err != nil || m.Event != role.Log {
				t.Fatalf("got %s %s, %v; want %s", m.Event, m.Data, err, step.want)
			}
			said = string(m.Data)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A type of which nothing changed keeps its version, and so do resources that are only written differently.
func TestVersions(t *testing.T) {
	s := New(Options{})
	defer s.Close()
	set := func(text string) (versions [3]string) {
		t.Helper()
		r, err := shared([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Set(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		for i, url := range []string{ads.ClusterType, ads.EndpointType, ads.ListenerType} {
			versions[i] = s.last[everyone].tables[url].Version()
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
		r, _ := shared([]byte(one))
		r.Clusters = append(r.Clusters, r.Clusters[0])
		return r
	}()); err == nil {
		t.Error("a cluster that is given twice is taken")
	}
}

// TestTables: tables that are built from the previous ones equal those that a new server would build.
func TestTables(t *testing.T) {
	services := func(text string) []*endpointv3.ClusterLoadAssignment {
		t.Helper()
		var list []*endpointv3.ClusterLoadAssignment
		for _, word := range strings.Fields(text) { // name=port
			name, port, _ := strings.Cut(word, "=")
			n, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			r, err := shared(fmt.Appendf(nil, "services: [{name: %s, endpoints: [{address: \"127.0.0.1:%d\"}]}]", name, n))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, r.Endpoints...)
		}
		return list
	}
	set := func(s *Server, list []*endpointv3.ClusterLoadAssignment) *ads.Table {
		t.Helper()
		if _, err := s.Set(context.Background(), Resources{Endpoints: list}); err != nil {
			t.Fatal(err)
		}
		return s.last[everyone].tables[ads.EndpointType]
	}
	s := New(Options{})
	defer s.Close()
	for i, text := range []string{"a=1 b=2 c=3", "a=1 b=9 c=3", "b=9 a=1 c=3", "a=1 c=4", "a=1 c=4 d=5", "a=2 c=5 d=6",
		"a=2 e=5 d=6", "", "", "a=1"} {
		list := services(text)
		var before []*endpointv3.ClusterLoadAssignment
		if last := s.last[everyone].common; last != nil {
			before = last.Endpoints
		}
		for j := range list { // an unchanged message is the same pointer
			for _, m := range before {
				if proto.Equal(list[j], m) {
					list[j] = m
				}
			}
		}
		got := set(s, list)
		anew := New(Options{})
		want := set(anew, list)
		anew.Close()
		if got.Version() != want.Version() || got.Len() != len(list) {
			t.Errorf("%d: %q: version %s of %d; a server that is new: %s", i, text, got.Version(), got.Len(), want.Version())
		}
		for _, m := range list {
			if a, b := got.Get(m.GetClusterName()), want.Get(m.GetClusterName()); a == nil || a.Version() != b.Version() {
				t.Errorf("%d: %q: %s is %+v, not %+v", i, text, m.GetClusterName(), a, b)
			}
		}
	}
}

// TestIdleConnections: a connection without a stream is closed after a while, and one with a stream stays open.
func TestIdleConnections(t *testing.T) {
	idle := speed.Scale(500 * time.Millisecond)
	s := New(Options{Idle: idle})
	set := func(text string) {
		t.Helper()
		r, err := shared([]byte(text))
		if err == nil {
			_, err = s.Set(t.Context(), r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set("services: [{name: a}]")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	stream := deltas(t.Context(), t, l.Addr().String(), insecure.NewCredentials())
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: ads.ClusterType}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	beginHTTP2(c)
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("the connection does not end: %v", err)
	}
	time.Sleep(2 * idle)
	set("services: [{name: b}]")
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: ads.ClusterType, ResponseNonce: "1"}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || len(r.GetResources()) != 1 || r.GetResources()[0].GetName() != "b" {
		t.Errorf("the stream got %v, %v", r, err)
	}
}

// Keys share what they have in common, and a key that is no longer given is removed.
func TestSetAll(t *testing.T) {
	s := New(Options{})
	defer s.Close()
	parse := func(text string) Resources {
		t.Helper()
		r, err := shared([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	one, two := parse("services: [{name: a}, {name: b}]"), parse("services: [{name: a}, {name: b}]")
	two.Clusters = two.Clusters[:1]
	for _, all := range []map[string]View{{"x": {Common: &one}, "y": {Common: &two}},
		{"y": {Common: &two}, "z": {Common: &one}}} {
		if _, err := s.SetAll(context.Background(), all); err != nil {
			t.Fatal(err)
		}
	}
	y, z := s.last["y"].tables, s.last["z"].tables
	if len(s.last) != 2 || y[ads.EndpointType] != z[ads.EndpointType] || y[ads.ClusterType].Len() != 1 ||
		y[ads.ClusterType].Get("a") != z[ads.ClusterType].Get("a") {
		t.Errorf("%+v", s.last)
	}
	one.Clusters = append(one.Clusters, one.Clusters[0])
	if _, err := s.SetAll(context.Background(), map[string]View{"x": {Own: one}}); err == nil || len(s.last) != 2 {
		t.Errorf("a cluster that is given twice is taken, or changes something: %v, %+v", err, s.last)
	}
}

// shared returns what a mesh file sends to every node.
func shared(file []byte) (Resources, error) {
	m, err := proxyconfig.Parse("c.yaml", file)
	if err != nil {
		return Resources{}, err
	}
	return m.Shared()
}
