package xds

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/controlplane"
	"tare/test/started"
)

// manyServices makes n services of 20 endpoints each.
func manyServices(n int) (r controlplane.Resources) {
	ports := make([]uint32, 20)
	for i := range ports {
		ports[i] = uint32(8000 + i)
	}
	proto1 := endpoints("x", ports...)
	for i := range n {
		name := fmt.Sprintf("outbound|80||service-%d.default.svc.cluster.local", i)
		e := proto.Clone(proto1).(*endpointv3.ClusterLoadAssignment)
		e.ClusterName = name
		r.Clusters = append(r.Clusters, edsCluster(name))
		r.Endpoints = append(r.Endpoints, e)
		l := tcpListener(name, 80, name)
		l.Address.GetSocketAddress().Address = fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)
		r.Listeners = append(r.Listeners, l)
	}
	return r
}

// TestMain lets the test binary be the control plane of BenchmarkPush, so that one side's garbage collection does not
// stop the other.
func TestMain(m *testing.M) {
	if os.Getenv("TARE_XDS_PLANE") == "" {
		os.Exit(m.Run())
	}
	if err := benchmarkPlane(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// benchmarkPlane serves 1000 services. For each number that it reads it changes the health of one endpoint of that
// service, and prints when the change was set and when the response left.
func benchmarkPlane() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer controlplane.BoundGarbage()()
	sent := make(chan int64, 1<<16)
	var o controlplane.Options
	o.OnSent = func(x controlplane.Sent) {
		if x.TypeURL == Endpoints.TypeURL() {
			sent <- x.Time
		}
	}
	s := controlplane.New(o)
	go s.Serve(l)
	defer s.Close()
	r := manyServices(1000)
	if _, err := s.Set(context.Background(), r); err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		i, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		for len(sent) > 0 {
			<-sent
		}
		r.Endpoints = slices.Clone(r.Endpoints)
		r.Endpoints[i] = proto.Clone(r.Endpoints[i]).(*endpointv3.ClusterLoadAssignment)
		e := r.Endpoints[i].Endpoints[0].LbEndpoints[0]
		e.HealthStatus = 1 + e.HealthStatus%2
		began := pace.Now()
		if _, err := s.Set(context.Background(), r); err != nil {
			return err
		}
		fmt.Println(began, <-sent)
	}
	return nil
}

// BenchmarkPush measures one change of the endpoints of one service among 1000 services of 20 endpoints, from the
// control plane's Set, and from when the response left, until Apply is called: p50 and p99. The control plane is a
// separate process.
func BenchmarkPush(b *testing.B) {
	for name, world := range map[string]bool{"delta": false, "world": true} {
		b.Run(name, func(b *testing.B) {
			plane := exec.Command(os.Args[0])
			plane.Env = append(os.Environ(), "TARE_XDS_PLANE=1")
			plane.Stderr = os.Stderr
			in, stdout := started.Piped(b, plane)
			defer func() {
				in.Close()
				if err := plane.Wait(); err != nil {
					b.Error(err)
				}
			}()
			out := bufio.NewScanner(stdout)
			if !out.Scan() {
				b.Fatal("the control plane does not say its address")
			}
			applied, ready := make(chan int64, 16), make(chan struct{})
			acked := make(chan Event, 16)
			listeners := 0
			c, err := New(Options{Address: out.Text(), StateOfTheWorld: world,
				Apply: func(_ context.Context, change mesh.Change) error {
					now := pace.Now()
					if listeners == 1000 {
						applied <- now
					} else if listeners += len(change.Listeners); listeners == 1000 {
						close(ready)
					}
					return nil
				}, OnEvent: func(e Event) {
					select {
					case acked <- e:
					default:
					}
				}})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			defer func() {
				stop()
				<-ended
			}()
			<-ready
			time.Sleep(200 * time.Millisecond) // the last acknowledgements
			for len(acked) > 0 {
				<-acked
			}
			var set, sent, ack []time.Duration
			for i := 0; b.Loop(); i++ {
				fmt.Fprintln(in, i%1000)
				at, e := <-applied, <-acked
				if !out.Scan() {
					b.Fatal("the control plane is gone")
				}
				var began, left int64
				if _, err := fmt.Sscan(out.Text(), &began, &left); err != nil {
					b.Fatal(err)
				}
				set, sent, ack = append(set, time.Duration(at-began)), append(sent, time.Duration(at-left)), append(ack,
					time.Duration(e.Acked-left))
				time.Sleep(2 * time.Millisecond)
			}
			for name, list := range map[string][]time.Duration{"set": set, "sent": sent, "sent-to-ack": ack} {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2])/1e3, name+"-p50-us")
				b.ReportMetric(float64(list[len(list)*99/100])/1e3, name+"-p99-us")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkTake measures a response with new endpoints for 5000 services of 20 endpoints, from the message to the
// change. It leaves out the decoding of the endpoints, which translate's benchmark measures.
func BenchmarkTake(b *testing.B) {
	r := manyServices(5000)
	s := newState(Options{}.withDefaults().Limits)
	load := func(k Kind, list []proto.Message) *response {
		var items []item
		for _, m := range list {
			v, err := proto.Marshal(m)
			if err != nil {
				b.Fatal(err)
			}
			items = append(items, item{typeURL: k.TypeURL(), value: v})
		}
		return responseOf(items...)
	}
	turn := func(k Kind, resp *response) {
		again := *resp // resources are consumed
		o := s.take(k, &again, true)
		if err := s.settle(func(mesh.Change) error { return nil }, o); err != nil || len(o.refused) > 0 {
			b.Fatal(err, o.refused)
		}
		s.sweep()
	}
	clusters, listeners := load(Clusters, generic(r.Clusters)), load(Listeners, generic(r.Listeners))
	both := [2]*response{load(Endpoints, generic(r.Endpoints))}
	for _, e := range r.Endpoints {
		e.Endpoints[0].LbEndpoints[0].HealthStatus = 1
	}
	both[1] = load(Endpoints, generic(r.Endpoints))
	turn(Clusters, clusters)
	turn(Endpoints, both[0])
	turn(Listeners, listeners)
	b.Run("endpoints", func(b *testing.B) {
		i := 1
		for b.Loop() {
			turn(Endpoints, both[i&1])
			i++
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			turn(Clusters, clusters)
			turn(Listeners, listeners)
		}
	})
	b.Run("everything", func(b *testing.B) {
		for b.Loop() {
			s = newState(Options{}.withDefaults().Limits)
			turn(Clusters, clusters)
			turn(Endpoints, both[0])
			turn(Listeners, listeners)
		}
	})
}

func generic[T interface {
	*clusterv3.Cluster | *endpointv3.ClusterLoadAssignment | *listenerv3.Listener
	proto.Message
}](list []T) (out []proto.Message) {
	for _, m := range list {
		out = append(out, m)
	}
	return out
}
