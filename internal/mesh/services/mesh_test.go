package services

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/snapshot"
	"tare/internal/mesh/store/storeload"
	"tare/internal/mesh/xds"
	"tare/test/started"
)

// TestMain lets the test binary be the mesh of BenchmarkChange, so that one process's garbage collection does not stop
// the other.
func TestMain(m *testing.M) {
	n, err := strconv.Atoi(os.Getenv("TARE_APP_MESH"))
	if err != nil {
		os.Exit(m.Run())
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // the mesh ends when its input does
		stop()
	}()
	err = Serve(ctx, Options{Listen: "127.0.0.1:0", Services: n, Endpoints: DefaultEndpoints},
		func(r Ready) error { return json.NewEncoder(os.Stdout).Encode(r) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dataPlane is a client of a mesh with a store, and a way to query the store as programs do.
type dataPlane struct {
	ask    *storeload.Asker
	events chan xds.Event
}

func follow(t testing.TB, address string, services int) *dataPlane {
	t.Helper()
	s, err := snapshot.Design.Open(store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := &dataPlane{events: make(chan xds.Event, 1<<10)}
	if d.ask, err = storeload.LoadAsk(snapshot.Design, s.Maps()); err != nil {
		t.Fatal(err)
	}
	c, err := xds.New(xds.Options{Address: address,
		Apply:   func(ctx context.Context, change mesh.Change) error { _, err := s.Apply(ctx, change); return err },
		OnEvent: func(e xds.Event) { d.events <- e }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := d.ask.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for n := 0; n < services; { // listeners are added when their clusters are there
		if e := <-d.events; e.Kind == xds.Endpoints {
			n += e.Changed
		}
	}
	for d.shows(services-1) != 1 {
		<-d.events
	}
	return d
}

// shows returns the change that a service shows; 0 if its peer is none of its endpoints.
func (d *dataPlane) shows(i int) int {
	a := d.ask.Ask(mesh.Question{To: Service(i), Protocol: mesh.UDP}, uint64(i)<<32)
	if service, change, ok := ChangeOf(a.Endpoint); ok && service == i && a.Verdict == mesh.Accept {
		return change
	}
	return 0
}

// next returns the event of the next change.
func (d *dataPlane) next() xds.Event {
	for {
		if e := <-d.events; e.Kind == xds.Endpoints && e.Changed > 0 {
			return e
		}
	}
}

func TestChange(t *testing.T) {
	const services = 200 // enough for several CPUs
	ctx, stop := context.WithCancel(t.Context())
	is, ended := make(chan Ready, 1), make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Options{Listen: "127.0.0.1:0", Services: services, Endpoints: 3},
			func(r Ready) error { is <- r; return nil })
	}()
	var r Ready
	select {
	case r = <-is:
	case err := <-ended:
		t.Fatal(err)
	}
	d := follow(t, r.Address, services)
	c, err := Dial(ctx, r.Control, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !reflect.DeepEqual(c.Mesh, r) {
		t.Errorf("the mesh says %+v when it is ready, and %+v to those who ask", r, c.Mesh)
	}
	want := make([]int, services)
	for i := range want {
		want[i] = 1
	}
	for n, what := range []int{7, services - 1, All, 7} {
		number := n + 2
		if err := c.Ask(what); err != nil {
			t.Fatal(err)
		}
		made, err := c.Changed()
		if err != nil {
			t.Fatal(err)
		}
		e := d.next()
		set, sent, ok := controlplane.TimesOf(e.Version)
		if !ok || sent != made.Sent || set < made.Set || made.Number != number {
			t.Errorf("the response says %q, the mesh %+v, of change %d", e.Version, made, number)
		}
		if times := [...]int64{made.Set, set, sent, e.Received, e.Decoded, e.Applied, e.Acked,
			pace.Now()}; !ascending(times[:]) {
			t.Errorf("change %d: the times do not follow each other: %v", number, times)
		}
		for i := range want {
			if what == All || what == i {
				want[i] = number
			}
			if got := d.shows(i); got != want[i] {
				t.Fatalf("after change %d of %d, service %d shows change %d, not %d", number, what, i, got, want[i])
			}
		}
		if changed := map[bool]int{true: services, false: 1}[what == All]; e.Changed != changed || len(e.Refused) > 0 {
			t.Errorf("change %d came as %d changed services (refused: %v), not %d", number, e.Changed, e.Refused, changed)
		}
	}
	if err := c.Ask(services); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Changed(); err == nil || !strings.Contains(err.Error(), "there is no service 200") {
		t.Errorf("a change of a service that is not there: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func ascending(times []int64) bool {
	for i := range times[1:] {
		if times[i] > times[i+1] {
			return false
		}
	}
	return true
}

// TestAddresses: an address encodes the service, the change and the endpoint that it was made from, up to the limits,
// and can be connected to; it is never a network or broadcast address.
func TestAddresses(t *testing.T) {
	services := map[netip.AddrPort]bool{}
	for _, service := range []int{0, 1, 255, 256, 5000, MaxServices - 1} {
		if s := Service(service); services[s] || !netip.MustParsePrefix("10.96.0.0/12").Contains(s.Addr()) {
			t.Errorf("service %d is at %s", service, s)
		}
		services[Service(service)] = true
		for _, change := range []int{1, 2, Changes} {
			for _, i := range []int{0, 1, MaxEndpoints - 1} {
				a := endpoint(service, change, i)
				if s, c, ok := ChangeOf(a); !ok || s != service || c != change {
					t.Errorf("endpoint %d of service %d after change %d: %s tells %d, %d, %v", i, service, change, a, s, c, ok)
				}
				if ip := a.Addr().String(); ip == "127.0.0.0" || ip == "127.255.255.255" || !a.Addr().IsLoopback() {
					t.Errorf("endpoint %d of service %d after change %d has the address %s", i, service, change, a)
				}
			}
		}
	}
	for _, other := range []string{"10.96.0.1:80", "[::1]:80", "128.0.0.1:1"} {
		if _, _, ok := ChangeOf(netip.MustParseAddrPort(other)); ok {
			t.Errorf("%s is taken for an endpoint", other)
		}
	}
}

// TestPortAddresses checks the same as TestAddresses if all endpoints have one port.
func TestPortAddresses(t *testing.T) {
	for _, r := range []Ready{
		{Services: 1, Endpoints: 1, Port: 4000}, {Services: 5000, Endpoints: 20, Port: 4000},
		{Services: 10_000, Endpoints: 128, Port: 4000},
	} {
		last := r.Changes()
		if last < 2 {
			t.Errorf("%+v: %d changes", r, last)
		}
		for _, service := range []int{0, r.Services / 2, r.Services - 1} {
			if a := r.Service(service).Addr(); !a.IsLoopback() || a == netip.MustParseAddr("127.0.0.1") {
				t.Errorf("service %d is at %s", service, a)
			}
			for _, change := range []int{1, 2, last} {
				for _, i := range []int{0, r.Endpoints - 1} {
					a := r.Endpoint(service, change, i)
					if s, c, ok := r.ChangeOf(a); !ok || s != service || c != change {
						t.Errorf("%+v: endpoint %d of service %d after change %d: %s tells %d, %d, %v", r, i, service, change, a, s,
							c, ok)
					}
					if ip := a.Addr().String(); ip == "127.0.0.0" || ip == "127.255.255.255" || !a.Addr().IsLoopback() {
						t.Errorf("%+v: endpoint %d of service %d after change %d has the address %s", r, i, service, change, a)
					}
				}
			}
		}
		for _, other := range []netip.AddrPort{r.Service(0), netip.MustParseAddrPort("127.0.0.0:4000"),
			netip.MustParseAddrPort("127.0.0.1:4001")} {
			if _, _, ok := r.ChangeOf(other); ok {
				t.Errorf("%s is taken for an endpoint", other)
			}
		}
	}
}

// TestAssignment compares what is encoded by hand with the message that it stands for.
func TestAssignment(t *testing.T) {
	b, err := proto.Marshal(assignment(300, 5, 2))
	if err != nil {
		t.Fatal(err)
	}
	var got, want endpointv3.ClusterLoadAssignment
	if err := proto.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	const text = `{"clusterName":"outbound|80||service-00300.default.svc.cluster.local","endpoints":[{"locality":{"region":"region","zone":"zone"},"lbEndpoints":[
		{"endpoint":{"address":{"socketAddress":{"address":"127.0.2.128","portValue":301}}}},
		{"endpoint":{"address":{"socketAddress":{"address":"127.0.2.129","portValue":301}}}}]}]}`
	if err := protojson.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, &want) {
		t.Errorf("it is %v, not %v", &got, &want)
	}
}

// BenchmarkChange measures one change of a mesh that is a separate process, from when its response was about to be
// handed to the transport until the client has received it, has decoded it, programs find it in the store, and its
// acknowledgement has been handed to the transport.
func BenchmarkChange(b *testing.B) {
	for _, x := range []struct {
		services, what int
		name           string
	}{{1000, 0, "one of 1000"}, {5000, 0, "one of 5000"}, {1000, All, "all 1000"}, {5000, All, "all 5000"}} {
		b.Run(x.name, func(b *testing.B) {
			r := startMesh(b, x.services)
			d := follow(b, r.Address, x.services)
			c, err := Dial(b.Context(), r.Control, "")
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			times := map[string]*hdrhistogram.Histogram{}
			before := cpuTime(b)
			for i := 0; b.Loop(); i++ {
				what := x.what
				if what != All {
					what = i % x.services
				}
				if err := c.Ask(what); err != nil {
					b.Fatal(err)
				}
				made, err := c.Changed()
				if err != nil {
					b.Fatal(err)
				}
				e := d.next()
				for name, at := range map[string]int64{"received": e.Received, "decoded": e.Decoded, "visible": e.Applied,
					"acked": e.Acked} {
					if times[name] == nil {
						times[name] = hdrhistogram.New(1, 1e10, 3)
					}
					_ = times[name].RecordValue(at - made.Sent)
				}
			}
			for name, h := range times {
				b.ReportMetric(float64(h.ValueAtQuantile(50))/1e3, name+"-p50-us")
				b.ReportMetric(float64(h.ValueAtQuantile(99))/1e3, name+"-p99-us")
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "client-cpu-us/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func startMesh(b *testing.B, services int) (r Ready) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("TARE_APP_MESH=%d", services))
	cmd.Stderr = os.Stderr
	in, out := started.Piped(b, cmd)
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		b.Fatal(err)
	}
	return r
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
