package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	testresource "github.com/envoyproxy/go-control-plane/pkg/test/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/controlplane"
	"tare/test/meshmodel"
)

// model is a store that checks every change against the guarantees of Apply.
type model struct {
	t      *testing.T
	mu     sync.Mutex
	config *mesh.Config
	applys int
	refuse func(mesh.Change) error
	events []Event
	states []State
	news   chan struct{}
}

func newModel(t *testing.T) *model {
	return &model{t: t, config: mesh.NewConfig(), news: make(chan struct{}, 1)}
}

func (m *model) apply(_ context.Context, change mesh.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		if err := m.refuse(change); err != nil {
			return err
		}
	}
	m.applys++
	for _, name := range change.RemovedClusters {
		if m.config.Clusters[name] == nil {
			m.t.Errorf("cluster %s goes and was not there", name)
		}
	}
	m.config.Apply(change)
	places := map[place]string{}
	for name, l := range m.config.Listeners {
		for _, c := range named(l) {
			if m.config.Clusters[c] == nil {
				m.t.Errorf("listener %s names cluster %s, which is not there", name, c)
			}
		}
		if other := places[placeOf(l)]; other != "" {
			m.t.Errorf("listeners %s and %s have the same address", name, other)
		}
		places[placeOf(l)] = name
	}
	m.tell()
	return nil
}

func (m *model) tell() {
	select {
	case m.news <- struct{}{}:
	default:
	}
}

func (m *model) event(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Received > e.Decoded || e.Decoded > e.Applied || e.Acked != 0 && e.Applied > e.Acked ||
		e.Received == 0 {
		m.t.Errorf("times out of order: %+v", e)
	}
	m.events = append(m.events, e)
	m.tell()
}

func (m *model) state(s State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states = append(m.states, s)
	m.tell()
}

// until waits until ok returns true. The limit of a minute only ends a test that would hang.
func (m *model) until(what string, ok func() bool) {
	m.t.Helper()
	deadline := time.After(time.Minute)
	for {
		m.mu.Lock()
		done := ok()
		m.mu.Unlock()
		if done {
			return
		}
		select {
		case <-m.news:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			m.mu.Lock()
			defer m.mu.Unlock()
			m.t.Fatalf("never: %s; there are %s, after %d events, the last %+v, states %v", what, describe(m.config),
				len(m.events), m.events[max(0, len(m.events)-3):], m.states)
		}
	}
}

// refusals returns all refusals, without repetitions.
func (m *model) refusals() (all []string) {
	for _, e := range m.events {
		for _, err := range e.Refused {
			if !slices.Contains(all, err.Error()) {
				all = append(all, err.Error())
			}
		}
	}
	return all
}

func describe(c *mesh.Config) string {
	var b strings.Builder
	change := meshmodel.All(c)
	for _, x := range change.Clusters {
		fmt.Fprintf(&b, "%s:", x.Name)
		for _, l := range x.Localities {
			for _, e := range l.Endpoints {
				fmt.Fprintf(&b, " %s", e.Address)
			}
		}
		b.WriteString("; ")
	}
	for _, l := range change.Listeners {
		fmt.Fprintf(&b, "%s %s -> %v; ", l.Name, l.Address, named(l))
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func (m *model) is(want string) {
	m.t.Helper()
	m.until(want, func() bool { return describe(m.config) == want })
}

// run runs a client until the test ends.
func (m *model) run(address string, change func(*Options)) *Client {
	m.t.Helper()
	o := Options{Address: address, Apply: m.apply, OnEvent: m.event, OnState: m.state,
		Timeouts: Timeouts{Reconnect: 10 * time.Millisecond, ReconnectMax: 50 * time.Millisecond}}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	m.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			m.t.Errorf("the client ended: %s", err)
		}
	})
	return c
}

// plane is a control plane at a fixed address, which can be stopped and restarted.
type plane struct {
	t       *testing.T
	address string
	server  *controlplane.Server
	mu      sync.Mutex
	answers []controlplane.Answer
	ended   chan error
}

func startPlane(t *testing.T, address string) *plane {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, address: l.Addr().String(), ended: make(chan error, 1)}
	var o controlplane.Options
	o.OnAnswer = func(a controlplane.Answer) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answers = append(p.answers, a)
	}
	p.server = controlplane.New(o)
	go func() { p.ended <- p.server.Serve(l) }()
	t.Cleanup(p.stop)
	return p
}

func (p *plane) stop() {
	if p.server == nil {
		return
	}
	p.server.Close()
	if err := <-p.ended; err != nil {
		p.t.Error(err)
	}
	p.server = nil
}

func (p *plane) set(r controlplane.Resources) {
	p.t.Helper()
	if _, err := p.server.Set(context.Background(), r); err != nil {
		p.t.Fatal(err)
	}
}

func edsCluster(name string) *clusterv3.Cluster {
	return testresource.MakeCluster(testresource.Ads, name)
}

func endpoints(name string, ports ...uint32) *endpointv3.ClusterLoadAssignment {
	a := testresource.MakeEndpoint(name, 1)
	one := a.Endpoints[0].LbEndpoints[0]
	a.Endpoints[0].LbEndpoints = nil
	for _, p := range ports {
		e := proto.Clone(one).(*endpointv3.LbEndpoint)
		e.GetEndpoint().GetAddress().GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: p}
		a.Endpoints[0].LbEndpoints = append(a.Endpoints[0].LbEndpoints, e)
	}
	return a
}

func tcpListener(name string, port uint32, cluster string) *listenerv3.Listener {
	l := testresource.MakeTCPListener(name, port, cluster)
	l.Address.GetSocketAddress().Address = "10.0.0.1"
	return l
}

// both runs a test with both variants of the protocol.
func both(t *testing.T, f func(t *testing.T, world func(*Options))) {
	for name, world := range map[string]bool{"delta": false, "world": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, func(o *Options) { o.StateOfTheWorld = world })
		})
	}
}

func TestFollow(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		a, b := edsCluster("a"), edsCluster("b")
		r := controlplane.Resources{Clusters: []*clusterv3.Cluster{a, b},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1, 2), endpoints("b", 3)},
			Listeners: []*listenerv3.Listener{tcpListener("l", 80, "a")}}
		p.set(r)
		c := m.run(p.address, world)
		m.is("a: 127.0.0.1:1 127.0.0.1:2; b: 127.0.0.1:3; l 10.0.0.1:80 -> [a]")
		// The endpoints of one service change.
		r.Endpoints = []*endpointv3.ClusterLoadAssignment{endpoints("a", 9), r.Endpoints[1]}
		p.set(r)
		m.is("a: 127.0.0.1:9; b: 127.0.0.1:3; l 10.0.0.1:80 -> [a]")
		// One change removes the cluster in use, moves its listener, and gives the listener's old address to a new one. The
		// next change exchanges the addresses of the two.
		r = controlplane.Resources{Clusters: []*clusterv3.Cluster{b, edsCluster("c")},
			Endpoints: []*endpointv3.ClusterLoadAssignment{r.Endpoints[1], endpoints("c", 4)},
			Listeners: []*listenerv3.Listener{tcpListener("l", 81, "b"), tcpListener("m", 80, "c")}}
		p.set(r)
		m.is("b: 127.0.0.1:3; c: 127.0.0.1:4; l 10.0.0.1:81 -> [b]; m 10.0.0.1:80 -> [c]")
		p.set(controlplane.Resources{Clusters: r.Clusters, Endpoints: r.Endpoints,
			Listeners: []*listenerv3.Listener{tcpListener("l", 80, "b"), tcpListener("m", 81, "c")}})
		m.is("b: 127.0.0.1:3; c: 127.0.0.1:4; l 10.0.0.1:80 -> [b]; m 10.0.0.1:81 -> [c]")
		p.set(controlplane.Resources{})
		m.is("")
		if all := m.refusals(); len(all) > 0 {
			t.Errorf("refused: %v", all)
		}
		if c.State().Phase != Connected || c.State().Err != nil {
			t.Errorf("state %+v", c.State())
		}
		if !c.Metrics().Complete() || len(m.states) != 1 {
			t.Errorf("metrics %+v, states %v", c.Metrics(), m.states)
		}
	})
}

// TestRemovedInUse: if a control plane removes a cluster that a listener still names, the client keeps the cluster
// until the listener is removed.
func TestRemovedInUse(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		l := tcpListener("l", 80, "a")
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{edsCluster("a"), edsCluster("b")},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1), endpoints("b", 2)},
			Listeners: []*listenerv3.Listener{l}})
		m.run(p.address, world)
		m.is("a: 127.0.0.1:1; b: 127.0.0.1:2; l 10.0.0.1:80 -> [a]")
		p.set(controlplane.Resources{Listeners: []*listenerv3.Listener{l}})
		m.is("a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]")
		// The cluster comes back with other endpoints.
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{edsCluster("a")},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 7)}, Listeners: []*listenerv3.Listener{l}})
		m.is("a: 127.0.0.1:7; l 10.0.0.1:80 -> [a]")
		// Only the endpoints are removed: the cluster keeps those that it had.
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{edsCluster("a"), edsCluster("c")},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("c", 3)}, Listeners: []*listenerv3.Listener{l}})
		m.is("a: 127.0.0.1:7; c: 127.0.0.1:3; l 10.0.0.1:80 -> [a]")
		p.set(controlplane.Resources{})
		m.is("")
	})
}

func TestRefused(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		a := edsCluster("a")
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1)},
			Listeners: []*listenerv3.Listener{tcpListener("l", 80, "a")}})
		m.run(p.address, world)
		m.is("a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]")
		badA := proto.Clone(a).(*clusterv3.Cluster)
		badA.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{}
		badB := edsCluster("b")
		badB.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{}
		other := tcpListener("l", 80, "a")
		other.FilterChains[0].Filters[0].ConfigType = nil
		bad := controlplane.Resources{Clusters: []*clusterv3.Cluster{badA, badB, edsCluster("c")},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 70000), endpoints("c", 3)},
			Listeners: []*listenerv3.Listener{other, tcpListener("m", 80, "c"), tcpListener("n", 81, "c"),
				tcpListener("o", 81, "c")}}
		p.set(bad)
		// The valid resources are applied, and the invalid ones stay as they were: l still has its address, so that m
		// cannot have it.
		m.is("a: 127.0.0.1:1; c: 127.0.0.1:3; l 10.0.0.1:80 -> [a]; n 10.0.0.1:81 -> [c]")
		want := []string{
			`cluster "a": lb_subset_config: is not supported`,
			`cluster "b": lb_subset_config: is not supported`,
			`endpoints "a": endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port_value: must be 1 to 65535, not 70000`,
			`listener "l": filter_chains[0].filters[0]: `,
			`listener "m": address: listener "l" has tcp 10.0.0.1:80`,
			`listener "o": address: listener "n" has tcp 10.0.0.1:81`,
		}
		m.until("all refusals", func() bool {
			all := m.refusals()
			return !slices.ContainsFunc(want, func(w string) bool {
				return !slices.ContainsFunc(all, func(got string) bool { return strings.HasPrefix(got, w) })
			})
		})
		for _, w := range want {
			m.until("the control plane is told of "+w, func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return slices.ContainsFunc(p.answers, func(a controlplane.Answer) bool { return strings.Contains(a.Refused, w) })
			})
		}
		// Once corrected, everything is as if nothing had been wrong.
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 5)},
			Listeners: []*listenerv3.Listener{tcpListener("m", 80, "a")}})
		m.is("a: 127.0.0.1:5; m 10.0.0.1:80 -> [a]")
	})
}

// TestStoreRefuses: resources that the store cannot hold are refused by name, as if they were invalid, and the rest is
// applied.
func TestStoreRefuses(t *testing.T) {
	tooLarge := func(name string) error { return fault.New(fault.Usage, name, "", "there is no room") }
	for name, refuse := range map[string]func(mesh.Change) error{
		"by name": func(c mesh.Change) error {
			for _, x := range c.Clusters {
				if x.Name == "big" || len(x.Localities) > 0 && len(x.Localities[0].Endpoints) > 2 {
					return tooLarge(x.Name)
				}
			}
			for _, l := range c.Listeners {
				if l.Name == "bad" {
					return tooLarge(l.Name)
				}
			}
			return nil
		},
		"without a name": func(c mesh.Change) error {
			for _, x := range c.Clusters {
				if x.Name == "big" || len(x.Localities) > 0 && len(x.Localities[0].Endpoints) > 2 {
					return errors.New("no room")
				}
			}
			for _, l := range c.Listeners {
				if l.Name == "bad" {
					return errors.New("no room")
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, world func(*Options)) {
				p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
				m.refuse = refuse
				r := controlplane.Resources{
					Clusters:  []*clusterv3.Cluster{edsCluster("a"), edsCluster("big"), edsCluster("c")},
					Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1), endpoints("big", 2), endpoints("c", 3)},
					Listeners: []*listenerv3.Listener{tcpListener("l", 80, "a"), tcpListener("bad", 81, "a"),
						tcpListener("needs", 82, "big"), tcpListener("n", 83, "c")}}
				p.set(r)
				m.run(p.address, world)
				m.is("a: 127.0.0.1:1; c: 127.0.0.1:3; l 10.0.0.1:80 -> [a]; n 10.0.0.1:83 -> [c]")
				m.until("refusals", func() bool {
					all := strings.Join(m.refusals(), "\n")
					return strings.Contains(all, `cluster "big": the data plane cannot hold it: `) &&
						strings.Contains(all, `listener "bad": the data plane cannot hold it: `)
				})
				// Too many endpoints: the old ones stay.
				p.set(controlplane.Resources{Clusters: r.Clusters[:1],
					Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1, 2, 3)}, Listeners: r.Listeners[:1]})
				m.is("a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]")
				p.set(controlplane.Resources{Clusters: r.Clusters[:1],
					Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1, 2)}, Listeners: r.Listeners[:1]})
				m.is("a: 127.0.0.1:1 127.0.0.1:2; l 10.0.0.1:80 -> [a]")
			})
		})
	}
}

func TestRestart(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		a, b := edsCluster("a"), edsCluster("b")
		ea, eb := endpoints("a", 1), endpoints("b", 2)
		l := tcpListener("l", 80, "a")
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a, b},
			Endpoints: []*endpointv3.ClusterLoadAssignment{ea, eb}, Listeners: []*listenerv3.Listener{l}})
		c := m.run(p.address, world)
		m.is("a: 127.0.0.1:1; b: 127.0.0.1:2; l 10.0.0.1:80 -> [a]")
		p.stop()
		m.until("stale", func() bool { return c.State().Phase == Stale && c.State().Err != nil })
		m.is("a: 127.0.0.1:1; b: 127.0.0.1:2; l 10.0.0.1:80 -> [a]")
		m.mu.Lock()
		applys := m.applys
		m.mu.Unlock()
		// The same resources again change nothing.
		p2 := startPlane(t, p.address)
		p2.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a, b},
			Endpoints: []*endpointv3.ClusterLoadAssignment{ea, eb}, Listeners: []*listenerv3.Listener{l}})
		m.until("connected", func() bool { return c.State().Phase == Connected })
		p2.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a, b},
			Endpoints: []*endpointv3.ClusterLoadAssignment{ea, endpoints("b", 3)}, Listeners: []*listenerv3.Listener{l}})
		m.is("a: 127.0.0.1:1; b: 127.0.0.1:3; l 10.0.0.1:80 -> [a]")
		m.mu.Lock()
		if m.applys != applys+1 {
			t.Errorf("%d changes were made for one", m.applys-applys)
		}
		m.mu.Unlock()
		p2.stop()
		m.until("stale", func() bool { return c.State().Phase == Stale })
		// The control plane comes back with fewer resources.
		p3 := startPlane(t, p.address)
		p3.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a}, Endpoints: []*endpointv3.ClusterLoadAssignment{ea},
			Listeners: []*listenerv3.Listener{l}})
		m.is("a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]")
	})
}

func TestManyEndpoints(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		var ports []uint32
		for i := range 10000 {
			ports = append(ports, uint32(i+1))
		}
		l := tcpListener("l", 80, "a")
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{edsCluster("a")},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", ports...)}, Listeners: []*listenerv3.Listener{l}})
		m.run(p.address, world)
		m.until("10,000 endpoints", func() bool {
			return m.config.Clusters["a"] != nil && m.config.Listeners["l"] != nil &&
				len(m.config.Clusters["a"].Localities[0].Endpoints) == 10000
		})
	})
}

type fixedNames struct {
	mu     sync.Mutex
	all    map[string][]string
	failed int // number of failed look-ups
}

func (f *fixedNames) failures() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *fixedNames) Lookup(_ context.Context, host string) (out []netip.Addr, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.failed++
	}
	if f.all[host] == nil {
		return nil, errors.New("no such host")
	}
	for _, a := range f.all[host] {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func TestHostNames(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		names := &fixedNames{all: map[string][]string{"a.local": {"10.1.0.2", "10.1.0.1"}}}
		//nolint:staticcheck // deprecated: what replaces it is not what control planes send
		c := &clusterv3.Cluster{Name: "a", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
			DnsRefreshRate: durationpb.New(50 * time.Millisecond)}
		c.LoadAssignment = endpoints("a", 5)
		c.LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().GetAddress().GetSocketAddress().Address = "a.local"
		missing := proto.Clone(c).(*clusterv3.Cluster)
		missing.Name = "missing"
		endpoint := missing.LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint()
		endpoint.GetAddress().GetSocketAddress().Address = "missing.local"
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{c, missing},
			Listeners: []*listenerv3.Listener{tcpListener("l", 80, "a")}})
		m.run(p.address, func(o *Options) { world(o); o.Resolver = names.Lookup })
		m.is("a: 10.1.0.1:5 10.1.0.2:5; missing:; l 10.0.0.1:80 -> [a]")
		names.mu.Lock()
		names.all = map[string][]string{"a.local": {"10.1.0.3"}, "missing.local": {"10.1.0.4"}}
		names.mu.Unlock()
		m.is("a: 10.1.0.3:5; missing: 10.1.0.4:5; l 10.0.0.1:80 -> [a]")
		names.mu.Lock()
		names.all = nil // the resolver fails: the known addresses stay
		names.mu.Unlock()
		m.until("failed look-ups", func() bool { return names.failures() > 2 })
		m.is("a: 10.1.0.3:5; missing: 10.1.0.4:5; l 10.0.0.1:80 -> [a]")
		p.set(controlplane.Resources{})
		m.is("")
	})
}

// TestEndpointsThatNeverCome: a cluster whose endpoints never come becomes active without endpoints after its
// initial_fetch_timeout, and so does the listener that names it.
func TestEndpointsThatNeverCome(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
		a := edsCluster("a")
		a.EdsClusterConfig.EdsConfig.InitialFetchTimeout = durationpb.New(100 * time.Millisecond)
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a, edsCluster("waits")},
			Listeners: []*listenerv3.Listener{tcpListener("l", 80, "a"), tcpListener("m", 81, "unknown")}})
		c := m.run(p.address, world)
		m.is("a:; l 10.0.0.1:80 -> [a]")
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the metrics follow the store's change
			n := c.Metrics()
			if n.Waiting == 1 && n.WaitingClusters == 1 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("metrics %+v", n)
			}
		}
	})
}

// script is a control plane that runs a test's function on every stream.
type script struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	world func(wholeStream) error
	delta func(deltaStream) error
}

// The two types of streams, whose generated names are long.
type (
	wholeStream = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	deltaStream = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
)

func (s *script) StreamAggregatedResources(stream wholeStream) error {
	return s.world(stream)
}

func (s *script) DeltaAggregatedResources(stream deltaStream) error {
	return s.delta(stream)
}

func (s *script) serve(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return l.Addr().String()
}

func wrap(t *testing.T, k Kind, m proto.Message) *anypb.Any {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: k.TypeURL(), Value: b}
}

// TestWorldProtocol checks a whole conversation in the state-of-the-world variant, request by request.
func TestWorldProtocol(t *testing.T) {
	done := make(chan struct{})
	var first sync.Once
	m := newModel(t)
	expect := func(s wholeStream, k Kind, version, nonce, wrong string, names ...string) error {
		q, err := s.Recv()
		if err != nil {
			return err
		}
		if q.GetTypeUrl() != k.TypeURL() || q.GetVersionInfo() != version || q.GetResponseNonce() != nonce ||
			!strings.Contains(q.GetErrorDetail().GetMessage(), wrong) ||
			(wrong == "") != (q.GetErrorDetail() == nil) || !slices.Equal(q.GetResourceNames(), names) {
			t.Errorf("got %v, want %s %q %q %q %v", q, k, version, nonce, wrong, names)
		}
		return nil
	}
	s := &script{}
	s.world = func(stream wholeStream) error {
		send := func(k Kind, version, nonce string, resources ...*anypb.Any) {
			if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: k.TypeURL(), VersionInfo: version, Nonce: nonce,
				Resources: resources}); err != nil {
				t.Log(err)
			}
		}
		again := true
		first.Do(func() { again = false })
		if again { // the first requests of the next stream have the accepted versions and the names of endpoints
			expect(stream, Clusters, "c3", "", "")
			expect(stream, Endpoints, "e1", "", "", "a", "b")
			expect(stream, Listeners, "", "", "")
			close(done)
			<-stream.Context().Done()
			return nil
		}
		expect(stream, Clusters, "", "", "")
		expect(stream, Listeners, "", "", "")
		send(Clusters, "c1", "1", wrap(t, Clusters, edsCluster("a")))
		expect(stream, Clusters, "c1", "1", "")
		expect(stream, Endpoints, "", "", "", "a")
		send(Endpoints, "e1", "2", wrap(t, Endpoints, endpoints("a", 1)), wrap(t, Endpoints, endpoints("nobody asked", 1)))
		expect(stream, Endpoints, "e1", "2", "", "a")
		send(Listeners, "l1", "3", &anypb.Any{TypeUrl: Listeners.TypeURL(), Value: []byte{0xff}})
		expect(stream, Listeners, "", "3", "resources[0]: listener: this is no envoy.config.listener.v3.Listener")
		// One cluster is given twice and another has the wrong type: the old state and version stay.
		send(Clusters, "c2", "4", wrap(t, Clusters, edsCluster("a")), wrap(t, Clusters, edsCluster("a")),
			&anypb.Any{TypeUrl: "x", Value: wrap(t, Clusters, edsCluster("z")).Value})
		expect(stream, Clusters, "c1", "4", "cluster \"a\": it is given twice\ncluster \"z\": it is of type \"x\"")
		// A second cluster; the first is unchanged.
		send(Clusters, "c3", "5", wrap(t, Clusters, edsCluster("a")), wrap(t, Clusters, edsCluster("b")))
		expect(stream, Clusters, "c3", "5", "")
		expect(stream, Endpoints, "e1", "2", "", "a", "b")
		send(Clusters, "c3", "6", wrap(t, Clusters, edsCluster("a")), wrap(t, Clusters, edsCluster("b")))
		expect(stream, Clusters, "c3", "6", "")
		return errors.New("the control plane goes")
	}
	m.run(s.serve(t), func(o *Options) { o.StateOfTheWorld = true })
	<-done
	m.is("a: 127.0.0.1:1")
}

func TestDeltaProtocol(t *testing.T) {
	done := make(chan struct{})
	var first sync.Once
	m := newModel(t)
	s := &script{}
	s.delta = func(stream deltaStream) error {
		expect := func(want *discoveryv3.DeltaDiscoveryRequest, k Kind, wrong string) {
			q, err := stream.Recv()
			if err != nil {
				t.Error(err)
				return
			}
			if !strings.Contains(q.GetErrorDetail().GetMessage(), wrong) || (wrong == "") != (q.GetErrorDetail() == nil) {
				t.Errorf("got %v, want %q", q, wrong)
			}
			want.TypeUrl, want.ErrorDetail, want.Node = k.TypeURL(), q.GetErrorDetail(), q.GetNode()
			if !proto.Equal(q, want) {
				t.Errorf("got %v, want %v", q, want)
			}
		}
		of := func(k Kind, name, version string, m proto.Message) *discoveryv3.Resource {
			return &discoveryv3.Resource{Name: name, Version: version, Resource: wrap(t, k, m)}
		}
		send := func(k Kind, nonce string, removed []string, resources ...*discoveryv3.Resource) {
			if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: k.TypeURL(), Nonce: nonce, Resources: resources,
				RemovedResources: removed}); err != nil {
				t.Error(err)
			}
		}
		again := true
		first.Do(func() { again = false })
		if again {
			expect(&discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"a": "1", "c": "1"}},
				Clusters, "")
			expect(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "c"},
				InitialResourceVersions: map[string]string{"c": "1"}}, Endpoints, "")
			expect(&discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"l": "1"}}, Listeners, "")
			close(done)
			<-stream.Context().Done()
			return nil
		}
		expect(&discoveryv3.DeltaDiscoveryRequest{}, Clusters, "")
		expect(&discoveryv3.DeltaDiscoveryRequest{}, Listeners, "")
		ttl := of(Clusters, "t", "1", edsCluster("t"))
		ttl.Ttl = durationpb.New(time.Second)
		send(Clusters, "1", []string{"never there"}, of(Clusters, "a", "1", edsCluster("a")),
			of(Clusters, "b", "1", edsCluster("b")), of(Clusters, "x", "1", edsCluster("y")), ttl)
		expect(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "1"}, Clusters,
			"cluster \"t\": a time to live is not supported\ncluster \"x\": name: it is \"y\"")
		expect(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}}, Endpoints, "")
		send(Endpoints, "2", nil, of(Endpoints, "a", "1", endpoints("a", 1)), of(Endpoints, "b", "1", endpoints("b", 1)))
		expect(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "2"}, Endpoints, "")
		send(Listeners, "3", nil, of(Listeners, "l", "1", tcpListener("l", 80, "a")))
		expect(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "3"}, Listeners, "")
		send(Clusters, "4", []string{"b"}, of(Clusters, "c", "1", edsCluster("c")))
		expect(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "4"}, Clusters, "")
		expect(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"c"},
			ResourceNamesUnsubscribe: []string{"b"}}, Endpoints, "")
		send(Endpoints, "5", []string{"a"}, of(Endpoints, "c", "1", endpoints("c", 3)))
		expect(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: "5"}, Endpoints, "")
		return errors.New("the control plane goes")
	}
	m.run(s.serve(t), nil)
	<-done
	m.is("a: 127.0.0.1:1; c: 127.0.0.1:3; l 10.0.0.1:80 -> [a]")
}

// TestRefusalsAreHeldBack: a control plane that sends the same invalid resource again after each refusal must not keep
// itself and the client busy.
func TestRefusalsAreHeldBack(t *testing.T) {
	m := newModel(t)
	s := &script{}
	requests := make(chan time.Time, 1<<16)
	s.world = func(stream wholeStream) error {
		for n := 0; ; n++ {
			q, err := stream.Recv()
			if err != nil {
				return err
			}
			if q.GetTypeUrl() != Clusters.TypeURL() {
				continue
			}
			requests <- time.Now()
			if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: Clusters.TypeURL(), VersionInfo: "1",
				Nonce: fmt.Sprint(n), Resources: []*anypb.Any{{TypeUrl: Clusters.TypeURL(), Value: []byte{0xff}}}}); err != nil {
				return err
			}
		}
	}
	m.run(s.serve(t), func(o *Options) { o.StateOfTheWorld = true })
	var at []time.Time
	for range 6 { // the subscription, the first refusal, and four that were delayed
		at = append(at, <-requests)
	}
	// At least 50, 100, 200 and 400 ms lie between refusals; more on a slow machine, never less.
	if took := at[5].Sub(at[1]); took < 750*time.Millisecond {
		t.Errorf("four refusals of the same took %v", took)
	}
}

// TestHostileServers: whatever the client receives, it keeps running, and accepts valid resources afterwards.
func TestHostileServers(t *testing.T) {
	good := func(stream wholeStream) {
		for k, m := range map[Kind]proto.Message{Clusters: func() proto.Message {
			c := edsCluster("a")
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
			c.EdsClusterConfig, c.LoadAssignment = nil, endpoints("a", 1)
			return c
		}(), Listeners: tcpListener("l", 80, "a")} {
			_ = stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: k.TypeURL(), VersionInfo: "1", Nonce: "1",
				Resources: []*anypb.Any{wrap(t, k, m)}})
		}
	}
	for name, bad := range map[string]func(stream wholeStream) error{
		"ends at once": func(wholeStream) error {
			return errors.New("no")
		},
		"too long": func(s wholeStream) error {
			return s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: Clusters.TypeURL(),
				Resources: []*anypb.Any{{Value: make([]byte, 2<<20)}}})
		},
		"floods": func(s wholeStream) error {
			for i := range 3000 { // without reading any request
				if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: Clusters.TypeURL(), Nonce: fmt.Sprint(i),
					VersionInfo: fmt.Sprint(i), Resources: []*anypb.Any{wrap(t, Clusters,
						edsCluster(fmt.Sprint("f", i)))}}); err != nil {
					return err
				}
			}
			return errors.New("enough")
		},
		"never answers": func(s wholeStream) error {
			<-s.Context().Done()
			return nil
		},
		"nobody asked": func(s wholeStream) error {
			for _, url := range []string{"", "x", Endpoints.TypeURL(),
				"type.googleapis.com/envoy.config.route.v3.RouteConfiguration"} {
				if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: url, Nonce: "1",
					Resources: []*anypb.Any{nil, {}, {TypeUrl: url, Value: []byte("x")}}}); err != nil {
					return err
				}
			}
			return errors.New("enough")
		},
		"nothing in it": func(s wholeStream) error {
			if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: Clusters.TypeURL(),
				Resources: []*anypb.Any{{}, {TypeUrl: Clusters.TypeURL()}}}); err != nil {
				return err
			}
			_, _ = s.Recv()
			_, _ = s.Recv()
			return errors.New("enough")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel(t)
			var mu sync.Mutex
			streams := 0
			s := &script{world: func(stream wholeStream) error {
				mu.Lock()
				streams++
				n := streams
				mu.Unlock()
				if n <= 2 {
					return bad(stream)
				}
				good(stream)
				<-stream.Context().Done()
				return nil
			}}
			m.run(s.serve(t), func(o *Options) {
				o.StateOfTheWorld = true
				o.Limits.Message = 1 << 20
				o.Timeouts.Answer = 200 * time.Millisecond
			})
			m.until("the good one", func() bool {
				return strings.HasSuffix(describe(m.config), "a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]")
			})
		})
	}
}

// TestStalledServers: if a server accepts connections and sends nothing, the client gives up and tries again.
func TestStalledServers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := newModel(t)
	c := m.run(l.Addr().String(), func(o *Options) { o.Timeouts.Connect = 100 * time.Millisecond })
	m.until("three attempts", func() bool { return len(m.states) >= 3 })
	if s := c.State(); s.Phase != Never || s.Err == nil || !strings.Contains(s.Err.Error(), l.Addr().String()) {
		t.Errorf("state %+v", s)
	}
}

// TestStallsMidStream: if the connection stalls in the middle of a response, the client applies none of the response,
// and gets all of it after it reconnects.
func TestStallsMidStream(t *testing.T) {
	both(t, func(t *testing.T, world func(*Options)) {
		p := startPlane(t, "127.0.0.1:0")
		var mu sync.Mutex
		still := false
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var conns []net.Conn
		var wg sync.WaitGroup
		defer func() {
			l.Close()
			mu.Lock()
			for _, c := range conns {
				c.Close()
			}
			mu.Unlock()
			wg.Wait()
		}()
		wg.Go(func() {
			for {
				from, err := l.Accept()
				if err != nil {
					return
				}
				to, err := net.Dial("tcp", p.address)
				if err != nil {
					from.Close()
					return
				}
				mu.Lock()
				conns = append(conns, from, to)
				mu.Unlock()
				for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
					wg.Go(func() {
						buffer := make([]byte, 1000)
						for {
							n, err := pair[0].Read(buffer)
							mu.Lock()
							hold := still && pair[0] == to
							mu.Unlock()
							if err != nil || hold { // what was read is lost, in the middle of a frame
								return
							}
							if _, err := pair[1].Write(buffer[:n]); err != nil {
								return
							}
						}
					})
				}
			}
		})
		m := newModel(t)
		a, lis := edsCluster("a"), tcpListener("l", 80, "a")
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", 1)}, Listeners: []*listenerv3.Listener{lis}})
		m.run(l.Addr().String(), world)
		m.is("a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]")
		mu.Lock()
		still = true
		mu.Unlock()
		var many []uint32
		for i := range 5000 {
			many = append(many, uint32(i+1))
		}
		p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{a},
			Endpoints: []*endpointv3.ClusterLoadAssignment{endpoints("a", many...)}, Listeners: []*listenerv3.Listener{lis}})
		time.Sleep(200 * time.Millisecond)
		m.is("a: 127.0.0.1:1; l 10.0.0.1:80 -> [a]") // half a response changes nothing
		mu.Lock()
		still = false
		for _, c := range conns { // the stalled connections fail, as they would by keepalive
			c.Close()
		}
		mu.Unlock()
		m.until("all endpoints", func() bool { return len(m.config.Clusters["a"].Localities[0].Endpoints) == 5000 })
	})
}

// TestReplacedRefusals: each refused response has an event, whether its refusal is sent or replaced.
func TestReplacedRefusals(t *testing.T) {
	var events []Event
	c, err := New(Options{Address: "unused", Apply: func(context.Context, mesh.Change) error { return nil },
		OnEvent: func(e Event) { events = append(events, e) }})
	if err != nil {
		t.Fatal(err)
	}
	c.conn = &conn{}
	for i, reason := range []string{"no room", "no room", "no room", "no room", "another"} {
		r := &response{version: fmt.Sprint(i)}
		c.answer(Clusters, r, &Event{Version: r.version, Refused: []error{errors.New(reason)}}, 0)
	}
	for _, q := range c.conn.queue {
		c.sent(q)
	}
	sent := map[string]bool{}
	for _, e := range events {
		sent[e.Version] = e.Acked != 0
	}
	if want := map[string]bool{"0": true, "1": false, "2": false, "3": false, "4": true}; !maps.Equal(sent, want) {
		t.Errorf("refusals sent %v, want %v", sent, want)
	}
}

// TestManyRefusals: the refusal of a response with 300,000 empty resources is of limited length.
func TestManyRefusals(t *testing.T) {
	s := newState(Options{}.withDefaults().Limits)
	r := responseOf(make([]item, 300000)...)
	o := s.take(Clusters, r, true)
	text := reason(o.refused, o.more)
	if len(o.refused) != maxRefused || o.more != r.count-maxRefused || len(text) > maxReasons+100 ||
		!strings.HasSuffix(text, " more") {
		t.Errorf("%d refusals, %d more, %d bytes of text", len(o.refused), o.more, len(text))
	}
}

func TestLimits(t *testing.T) {
	limits := Options{}.withDefaults().Limits
	limits.Resource, limits.Bytes = 1000, 2500
	s := newState(limits)
	take := func(c *clusterv3.Cluster) string {
		o := s.take(Clusters, responseOf(item{typeURL: Clusters.TypeURL(), value: wrap(t, Clusters, c).Value}),
			false)
		return reason(o.refused, 0)
	}
	for name, want := range map[string]string{strings.Repeat("x", 2000): "it has 20",
		strings.Repeat("y", 950): "with it there would be"} {
		if got := take(edsCluster(name)); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for range 100 { // a replaced resource is counted once
		a := edsCluster("a")
		if got := take(a); got != "" {
			t.Fatal(got)
		}
		a.AltStatName = "b"
		if got := take(a); got != "" {
			t.Fatal(got)
		}
	}
	if s.bytes == 0 || s.bytes > limits.Bytes {
		t.Errorf("%d bytes are counted", s.bytes)
	}

	p, m := startPlane(t, "127.0.0.1:0"), newModel(t)
	p.set(controlplane.Resources{Clusters: []*clusterv3.Cluster{edsCluster("a"), edsCluster("b"), edsCluster("c")}})
	m.run(p.address, func(o *Options) { o.Limits.Resources = 2 })
	m.until("a refusal", func() bool {
		return strings.Contains(strings.Join(m.refusals(), "\n"),
			"there are 2 clusters already, which is the most that the client keeps")
	})
}
