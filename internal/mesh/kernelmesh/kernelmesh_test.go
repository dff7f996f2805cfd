package kernelmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// Services of the tests are addresses without listeners. They are loopback addresses, so that nothing leaves the
// machine should a test go wrong.
var (
	service4 = netip.MustParseAddrPort("127.10.96.1:80")
	other4   = netip.MustParseAddrPort("127.10.96.2:80")
	mapped4  = netip.MustParseAddrPort("[::ffff:127.10.96.1]:80")
	service6 = netip.MustParseAddrPort("[::1]:80")
)

// counted returns a map of an answer in which only the given name occurs, n times.
func counted(name any, n int) map[string]int { return map[string]int{fmt.Sprint(name): n} }

var none = map[string]int{}

// TestWeights: endpoints get connections in proportion to their weights. Processes outside the cgroup, and connections
// to an address that is no service, are left alone.
func TestWeights(t *testing.T) {
	n := 1200
	if testing.Short() {
		n = 100 // 5 standard deviations are then 22
	}
	for _, store := range stores {
		t.Run(store, func(t *testing.T) { testWeights(t, store, n) })
	}
}

func testWeights(t *testing.T, store string, n int) {
	a, b, c := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	service := Service{service4, TCP, []Endpoint{{a, 3}, {b, 1}, {c, 0}}}
	d, dir := newDataPlane(t, Options{Store: store}, service)
	inside, outside := newClient(t, dir), newClient(t, "")
	got := inside.ask(t, request{Do: "tcp", To: service4, N: n})
	// 5 standard deviations: exceeded by chance once in 1.7 million.
	if bound := 5 * math.Sqrt(float64(n)*0.75*0.25); math.Abs(float64(got.Banners[a.String()])-0.75*float64(n)) > bound {
		t.Errorf("weights 3:1 gave %v, want %d:%d within %.0f", got.Banners, n*3/4, n/4, bound)
	}
	got.want(t, map[string]int{a.String(): got.Banners[a.String()], b.String(): n - got.Banners[a.String()]},
		counted(service4, n), none)

	inside.ask(t, request{Do: "tcp", To: c, N: 3}).want(t, counted(c, 3), counted(c, 3), none)
	outside.ask(t, request{Do: "tcp", To: service4, N: 1}).want(t, none, none, counted("connect: connection refused", 1))
	outside.ask(t, request{Do: "tcp", To: c, N: 1}).want(t, counted(c, 1), counted(c, 1), none)

	if p, want := d.program(t, "km_connect4"), (ProgramStats{Name: "km_connect4", Matched: uint64(n),
		Passed: 3}); p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
	if s := d.cluster(t, service.String()); s.Matched != uint64(n) || s.Opened != uint64(n) || s.Established != uint64(n) {
		t.Errorf("%d connections, but %+v", n, s)
	}
}

func TestIPv6(t *testing.T) { overStores(t, testIPv6, stores...) }

func testIPv6(t *testing.T, store string) {
	a, b := tcpServer(t, "[::1]:0"), tcpServer(t, "127.0.0.1:0")
	_, dir := newDataPlane(t, Options{Store: store}, Service{service6, TCP, []Endpoint{{a, 1}}},
		Service{service4, TCP, []Endpoint{{b, 1}}})
	c := newClient(t, dir)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: service6, N: 5}).want(t, counted(a, 5),
		counted(service6, 5), none)
	// An IPv6 socket connects to an IPv4-mapped address.
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: mapped4, N: 5}).want(t, counted(b, 5),
		counted(mapped4, 5), none)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: a, N: 5}).want(t, counted(a, 5), counted(a, 5), none)
}

func TestUDP(t *testing.T) { overStores(t, testUDP, stores...) }

func testUDP(t *testing.T, store string) {
	a, b, c := udpServer(t, "127.0.0.1:0"), udpServer(t, "127.0.0.1:0"), udpServer(t, "[::1]:0")
	first := Service{service4, UDP, []Endpoint{{a, 1}, {b, 1}}}
	second, third := Service{other4, UDP, []Endpoint{{b, 1}}}, Service{service6, UDP, []Endpoint{{c, 1}}}
	d, dir := newDataPlane(t, Options{Store: store}, first, second, third)
	in := newClient(t, dir)
	const n = 100
	for _, do := range []string{"udp", "udp-connected"} {
		peers := func(a netip.AddrPort, n int) map[string]int {
			if do == "udp" {
				return counted(a, n)
			}
			return map[string]int{a.String(): n, "peer " + a.String(): n}
		}
		got := in.ask(t, request{Do: do, To: service4, N: n})
		if x := got.Banners[a.String()]; x == 0 || x == n {
			t.Errorf("%s: %d of %d went to the first of two equal endpoints", do, x, n)
		}
		got.want(t, map[string]int{a.String(): got.Banners[a.String()], b.String(): n - got.Banners[a.String()]},
			peers(service4, n), none)
		in.ask(t, request{Do: do, Family: unix.AF_INET6, To: service6, N: 3}).want(t, counted(c, 3), peers(service6, 3), none)
		in.ask(t, request{Do: do, Family: unix.AF_INET6, To: mapped4, N: 1}).noErrors(t)
		in.ask(t, request{Do: do, To: a, N: 3}).want(t, counted(a, 3), peers(a, 3), none)
	}
	// Datagrams and connections, also IPv4-mapped ones; with UDP no connection is opened.
	if s := d.cluster(t, first.String()); s.Matched != 2*(n+1) || s.Opened != 0 {
		t.Errorf("%d datagrams and connections, but %+v", 2*(n+1), s)
	}

	// Two services that share an endpoint, and the endpoint itself: each reply comes from the address that was sent
	// to, and one socket stays with one endpoint of a service.
	for range 10 {
		got := in.ask(t, request{Do: "udp-many", To: service4, Others: []netip.AddrPort{service4, service4}})
		if len(got.Banners) != 1 || got.Peers[service4.String()] != 3 {
			t.Fatalf("one socket: %+v", got)
		}
	}
	many := make([]netip.AddrPort, 20)
	for i := range many {
		many[i] = other4
	}
	in.ask(t, request{Do: "udp-many", To: other4, Others: many}).want(t, counted(b, 21), counted(other4, 21), none)

	// A socket changes its endpoint when the configuration has changed, and only then.
	in.ask(t, request{Do: "udp-hold", To: other4}).want(t, counted(b, 1), counted(other4, 1), none)
	in.ask(t, request{Do: "udp-again", To: other4, N: 5}).want(t, counted(b, 5), counted(other4, 5), none)
	d.set(t, first, Service{other4, UDP, []Endpoint{{a, 1}}}, third)
	in.ask(t, request{Do: "udp-again", To: other4, N: 5}).want(t, counted(a, 5), counted(other4, 5), none)
	in.ask(t, request{Do: "release"})
}

// noErrors fails the test if the client had an error.
func (a answer) noErrors(t *testing.T) {
	t.Helper()
	if len(a.Errors) > 0 {
		t.Errorf("errors: %v", a.Errors)
	}
}

func TestNoEndpoint(t *testing.T) { overStores(t, testNoEndpoint, stores...) }

func testNoEndpoint(t *testing.T, store string) {
	services := []Service{{service4, TCP, nil}, {service4, UDP, nil}, {service6, TCP, nil}}
	d, dir := newDataPlane(t, Options{Store: store}, services...)
	c := newClient(t, dir)
	c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, none, none, counted("connect: connection refused", 2))
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: service6}).want(t, none, none,
		counted("connect: connection refused", 1))
	c.ask(t, request{Do: "udp", To: service4}).want(t, none, none, counted("send: connection refused", 1))
	for name, want := range map[string]uint64{"km_connect4": 2, "km_connect6": 1, "km_sendmsg4": 1} {
		if p := d.program(t, name); p.NoEndpoint != want || p.Matched != 0 {
			t.Errorf("%+v, want %d refused", p, want)
		}
	}
	for i, want := range []uint64{2, 1, 1} {
		if s := d.cluster(t, services[i].String()); s.NoEndpoint != want || s.Matched != 0 {
			t.Errorf("%+v, want %d refused", s, want)
		}
	}
}

// TestNaive is the only test of the store that waits for each record.
func TestNaive(t *testing.T) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	d, dir := newDataPlane(t, Options{Store: "naive", MaxServices: 8, MaxEndpoints: 8},
		Service{service4, TCP, []Endpoint{{a, 1}}})
	c := newClient(t, dir)
	c.ask(t, request{Do: "tcp", To: service4, N: 5}).want(t, counted(a, 5), counted(service4, 5), none)
	d.set(t, Service{service4, TCP, []Endpoint{{b, 1}}})
	c.ask(t, request{Do: "tcp", To: service4, N: 5}).want(t, counted(b, 5), counted(service4, 5), none)
}

// TestObjects: each design has programs, which use its maps.
func TestObjects(t *testing.T) {
	for _, d := range store.Designs() {
		read, ok := objects[d.Name]
		if !ok {
			t.Errorf("there are no programs for the store %s", d.Name)
			continue
		}
		spec, err := read()
		if err != nil {
			t.Fatal(err)
		}
		ask, err := d.Ask()
		if err != nil {
			t.Fatal(err)
		}
		for name := range ask.Maps {
			if !strings.HasPrefix(name, ".") && spec.Maps[name] == nil {
				t.Errorf("store %s: the data plane's programs do not use its map %s", d.Name, name)
			}
		}
		if len(spec.Programs) != len(hooks) || len(counterOrder) != len(hooks) {
			t.Errorf("store %s: %d programs for %d hooks", d.Name, len(spec.Programs), len(hooks))
		}
	}
}

// TestVerified: the verifier's cost for each program is bounded.
func TestVerified(t *testing.T) { overStores(t, testVerified, stores...) }

func testVerified(t *testing.T, store string) {
	d, _ := newDataPlane(t, Options{Store: store, MaxServices: 8, MaxEndpoints: 8})
	for name, p := range d.programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Fatalf("the kernel does not tell how many instructions of %s it verified", name)
		}
		if n > 100_000 {
			t.Errorf("%s took the verifier %d instructions", name, n)
		}
		t.Logf("%s: %d instructions verified", name, n)
	}
}

// eventually waits for what the kernel does with a short delay. The limit of a minute only ends a test that would
// hang.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after a minute", what)
		}
	}
}

func TestConnectionCounts(t *testing.T) { overStores(t, testConnectionCounts, stores...) }

func testConnectionCounts(t *testing.T, store string) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	closed := netip.MustParseAddrPort("127.0.0.1:1") // tcpmux: nothing listens
	first := Service{service4, TCP, []Endpoint{{a, 1}}}
	name := first.String()
	// Room for one cluster only, so that its number is used again.
	d, dir := newDataPlane(t, Options{Store: store, MaxServices: 1, MaxEndpoints: 4}, first)
	c := newClient(t, dir)
	const n = 20
	c.ask(t, request{Do: "hold", To: service4, N: n}).want(t, counted(a, n), counted(service4, n), none)
	if s := d.cluster(t, name); active(s) != n || s.Opened != n || s.Failed != 0 {
		t.Errorf("with %d connections: %+v", n, s)
	}
	// Other endpoints, the same cluster.
	d.set(t, Service{service4, TCP, []Endpoint{{a, 7}, {b, 0}}})
	if s := d.cluster(t, name); active(s) != n {
		t.Errorf("after a change of weights: %+v", s)
	}
	// Other clusters, one of which gets the number of the first: connections to the first do not count for it.
	for range 5 {
		d.set(t)
		d.set(t, Service{service4, TCP, []Endpoint{{b, 1}}})
	}
	before := d.cluster(t, name)
	c.ask(t, request{Do: "tcp", To: service4, N: 3}).want(t, counted(b, 3), counted(service4, 3), none)
	c.ask(t, request{Do: "release"})
	eventually(t, "no connection left", func() bool { return active(d.cluster(t, name).since(before)) == 0 })
	if s := d.cluster(t, name).since(before); s.Opened != 3 || s.Established != 3 || s.Closed != 3 || s.Matched != 3 {
		t.Errorf("3 connections to the new cluster: %+v", s)
	}

	d.set(t, Service{service4, TCP, []Endpoint{{closed, 1}}})
	c.ask(t, request{Do: "tcp", To: service4, N: 4}).want(t, none, none, counted("connect: connection refused", 4))
	if s := d.cluster(t, name).since(before); s.Opened != 3+4 || s.Failed != 4 || s.Established != 3 {
		t.Errorf("4 refused connections: %+v", s)
	}
	if open := d.openAt(name); open != 0 {
		t.Errorf("%d connections are open", open)
	}
}

// openAt returns the number of open connections that count against a cluster's limit.
func (p *plane) openAt(name string) uint32 {
	return uint32(p.shared.clusters[p.DataPlane.clusters[name]].Open)
}

// TestLimit: a cluster gets connections up to its limit, and another when one of them has ended.
func TestLimit(t *testing.T) { overStores(t, testLimit, stores...) }

func testLimit(t *testing.T, store string) {
	a := tcpServer(t, "127.0.0.1:0")
	d, dir := newDataPlane(t, Options{Store: store})
	s := Service{service4, TCP, []Endpoint{{a, 1}}}
	cluster := s.cluster()
	cluster.Breakers.MaxConnections = 3
	d.apply(t, mesh.Change{Clusters: []*mesh.Cluster{cluster}, Listeners: []*mesh.Listener{s.listener()}})
	c := newClient(t, dir)
	refused := counted("connect: connection refused", 2)
	for range 3 {
		c.ask(t, request{Do: "hold", To: service4, N: 5}).want(t, counted(a, 3), counted(service4, 3), refused)
		c.ask(t, request{Do: "release"})
		eventually(t, "all have ended", func() bool { return d.openAt(s.String()) == 0 })
	}
	if got := d.cluster(t, s.String()); got.Overflow != 6 || got.Matched != 9 || got.Opened != 9 {
		t.Errorf("9 connections of 15: %+v", got)
	}
	if got := d.program(t, "km_connect4"); got.Overflow != 6 || got.Matched != 9 {
		t.Errorf("9 connections of 15: %+v", got)
	}
}

// TestRBAC: denied connections fail with EPERM. The source is what the socket is bound to.
func TestRBAC(t *testing.T) { overStores(t, testRBAC, stores...) }

func testRBAC(t *testing.T, store string) {
	a, u := tcpServer(t, "127.0.0.1:0"), udpServer(t, "127.0.0.1:0")
	a6 := tcpServer(t, "[::1]:0")
	d, dir := newDataPlane(t, Options{Store: store})
	from := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	var change mesh.Change
	for _, s := range []Service{{service4, TCP, []Endpoint{{a, 1}}}, {service4, UDP, []Endpoint{{u, 1}}},
		{service6, TCP, []Endpoint{{a6, 1}}}} {
		l := s.listener()
		sources := []netip.Prefix{netip.MustParsePrefix("127.0.7.0/24"), netip.MustParsePrefix("::1/128")}
		l.Default.RBAC = []mesh.RBAC{{Policies: []mesh.Principal{{Sources: sources}}}}
		change.Clusters, change.Listeners = append(change.Clusters, s.cluster()), append(change.Listeners, l)
	}
	d.apply(t, change)
	c := newClient(t, dir)
	denied := counted("connect: operation not permitted", 1)
	c.ask(t, request{Do: "tcp", To: service4, From: from("127.0.7.9:0")}).want(t, counted(a, 1),
		counted(service4, 1), none)
	c.ask(t, request{Do: "tcp", To: service4, From: from("127.0.8.9:0")}).want(t, none, none, denied)
	c.ask(t, request{Do: "tcp", To: service4}).want(t, none, none, denied) // not known, so not allowed
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: mapped4, From: from("[::ffff:127.0.7.9]:0")}).want(t,
		counted(a, 1), counted(mapped4, 1), none)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: mapped4, From: from("[::ffff:127.0.8.9]:0")}).want(t, none,
		none, denied)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: service6, From: from("[::1]:0")}).want(t, counted(a6, 1),
		counted(service6, 1), none)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: service6}).want(t, none, none, denied)
	c.ask(t, request{Do: "udp", To: service4, From: from("127.0.7.9:0")}).want(t, counted(u, 1),
		counted(service4, 1), none)
	c.ask(t, request{Do: "udp", To: service4, From: from("127.0.8.9:0")}).want(t, none, none,
		counted("send: operation not permitted", 1))
	if p := d.program(t, "km_connect4"); p.Denied != 2 || p.Matched != 1 {
		t.Errorf("two were denied: %+v", p)
	}
}

// TestSources: for a socket that is not bound, rules use the given source of its family, both rules that deny and
// rules that allow; for a bound socket they use its address.
func TestSources(t *testing.T) { overStores(t, testSources, stores...) }

func testSources(t *testing.T, store string) {
	a, a6, u := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "[::1]:0"), udpServer(t, "127.0.0.1:0")
	prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::7/128")}
	ip := netip.MustParseAddr
	for _, c := range []struct {
		name    string
		sources []netip.Addr
		deny    bool
		passes  bool
	}{
		{"denied, and from there", []netip.Addr{ip("192.0.2.7"), ip("2001:db8::7")}, true, false},
		{"denied, and from elsewhere", []netip.Addr{ip("192.0.2.8"), ip("2001:db8::8")}, true, true},
		{"allowed, and from there", []netip.Addr{ip("2001:db8::7"), ip("::ffff:192.0.2.7")}, false, true},
		{"allowed, and from elsewhere", []netip.Addr{ip("192.0.2.8"), ip("2001:db8::8")}, false, false},
		{"denied, and not known", nil, true, true},
		{"allowed, and not known", nil, false, false},
	} {
		if testing.Short() && !strings.HasSuffix(c.name, ", and from there") {
			// Each case starts a data plane, which takes seconds on an emulated machine: there only one that passes
			// and one that does not.
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			d, dir := newDataPlane(t, Options{Store: store, Sources: c.sources})
			var change mesh.Change
			for _, s := range []Service{{service4, TCP, []Endpoint{{a, 1}}}, {service6, TCP, []Endpoint{{a6, 1}}},
				{service4, UDP, []Endpoint{{u, 1}}}} {
				l := s.listener()
				l.Default.RBAC = []mesh.RBAC{{Deny: c.deny, Policies: []mesh.Principal{{Sources: prefixes}}}}
				change.Clusters, change.Listeners = append(change.Clusters, s.cluster()), append(change.Listeners, l)
			}
			d.apply(t, change)
			client := newClient(t, dir)
			for _, r := range []struct {
				request
				reached netip.AddrPort
				call    string
			}{
				{request{Do: "tcp", To: service4}, a, "connect"},
				{request{Do: "tcp", Family: unix.AF_INET6, To: mapped4}, a, "connect"},
				{request{Do: "tcp", Family: unix.AF_INET6, To: service6}, a6, "connect"},
				{request{Do: "udp", To: service4}, u, "send"},
			} {
				if c.passes {
					client.ask(t, r.request).want(t, counted(r.reached, 1), counted(r.To, 1), none)
				} else {
					client.ask(t, r.request).want(t, none, none, counted(r.call+": operation not permitted", 1))
				}
			}
			// For a socket that is bound to another address, the given source does not count.
			bound := client.ask(t, request{Do: "tcp", To: service4, From: netip.MustParseAddrPort("127.0.0.9:0")})
			if c.deny {
				bound.want(t, counted(a, 1), counted(service4, 1), none)
			} else {
				bound.want(t, none, none, counted("connect: operation not permitted", 1))
			}
		})
	}
}

// TestPeer: with --peer endpoint applications see the endpoint.
func TestPeer(t *testing.T) {
	a, u := tcpServer(t, "127.0.0.1:0"), udpServer(t, "127.0.0.1:0")
	d, dir := newDataPlane(t, Options{Peer: PeerEndpoint}, Service{service4, TCP, []Endpoint{{a, 1}}},
		Service{service4, UDP, []Endpoint{{u, 1}}})
	c := newClient(t, dir)
	c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(a, 2), counted(a, 2), none)
	c.ask(t, request{Do: "udp-connected", To: service4}).want(t, counted(u, 1),
		map[string]int{"peer " + u.String(): 1, service4.String(): 1}, none)
	if stats, err := d.Stats(); err != nil || len(stats) != len(hooks)-2 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestReplace replaces the endpoints of a service as fast as possible while connections are made: each connection must
// reach an endpoint of the old or the new set, and every one is counted.
func TestReplace(t *testing.T) { overStores(t, testReplace, "snapshot", "value") }

func testReplace(t *testing.T, store string) {
	a, b, c := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	sets := [][]Endpoint{{{a, 1}}, {{b, 2}, {c, 1}}, {{c, 1}, {a, 5}}}
	d, dir := newDataPlane(t, Options{Store: store, MaxServices: 8, MaxEndpoints: 8}, Service{service4, TCP, sets[0]})
	client := newClient(t, dir)
	stop, stopped := make(chan struct{}), make(chan error)
	replaced := 0
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			replaced++
			services := []Service{{service4, TCP, sets[replaced%3]}}
			if replaced%2 == 0 { // another service comes and goes beside it
				services = append(services, Service{other4, TCP, sets[replaced%3]})
			}
			if _, err := d.source.Set(context.Background(), services); err != nil {
				stopped <- err
				return
			}
		}
	}()
	n := 2000
	if testing.Short() {
		n = 100
	}
	got := client.ask(t, request{Do: "tcp", To: service4, N: n})
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	total := 0
	for banner, m := range got.Banners {
		if banner != a.String() && banner != b.String() && banner != c.String() {
			t.Errorf("%d connections reached %q", m, banner)
		}
		total += m
	}
	if total != n || len(got.Errors) > 0 || got.Peers[service4.String()] != n {
		t.Errorf("%d of %d connections: %+v", total, n, got)
	}
	if s := d.cluster(t, "tcp "+service4.String()); s.Matched != uint64(n) || s.Established != uint64(n) {
		t.Errorf("%d connections: %+v", n, s)
	}
	if replaced < 100 {
		t.Errorf("only %d replacements during %d connections: this shows nothing", replaced, n)
	}
	t.Logf("%d connections during %d replacements", n, replaced)
}

// TestSteps measures runs with extra steps (Options.Steps). It only checks that more steps take longer.
func TestSteps(t *testing.T) {
	a := tcpServer(t, "127.0.0.1:0")
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	perRun := func(t *testing.T, steps uint32, connections int) (connect, sockops float64) {
		d, dir := newDataPlane(t, Options{Steps: steps, SockopsSteps: steps / 10}, Service{service4, TCP, []Endpoint{{a, 1}}})
		client := newClient(t, dir)
		client.ask(t, request{Do: "tcp", To: service4, N: connections}).want(t, counted(a, connections),
			counted(service4, connections), none)
		client.stop()
		weigh := func(p *ebpf.Program) float64 {
			s, err := p.Stats()
			if err != nil || s.RunCount == 0 {
				t.Fatalf("statistics of %s: %+v, %v", p, s, err)
			}
			return float64(s.Runtime.Nanoseconds()) / float64(s.RunCount)
		}
		return weigh(d.programs["km_connect4"]), weigh(d.programs["km_sockops"])
	}
	var connect, sockops []float64
	steps, connections := []uint32{0, 1000, 30_000, 1_000_000}, []int{500, 500, 100, 4}
	if testing.Short() { // on an emulated processor fewer steps drown in the noise of everything else
		steps, connections = []uint32{0, 1_000_000}, []int{20, 4}
	}
	for i, s := range steps {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			c, o := perRun(t, s, connections[i])
			connect, sockops = append(connect, c), append(sockops, o)
			t.Logf("%.0f ns per run of km_connect4 (%.3f ns per step); with %d steps %.0f ns of km_sockops",
				c, (c-connect[0])/max(1, float64(s)), s/10, o)
		})
	}
	if len(connect) < len(steps) {
		return // a failure above
	}
	for i := 1; i < len(steps); i++ {
		if connect[i] <= connect[i-1] || sockops[i] <= sockops[i-1] {
			t.Errorf("from %d to %d steps a run did not get longer: connect %v, sockops %v", steps[i-1], steps[i], connect,
				sockops)
		}
	}
}

// subjectProcess is the data plane as a separate process.
type subjectProcess struct {
	*process
	conn *role.Conn
}

func newSubject(t *testing.T, o Options, uid int) *subjectProcess {
	t.Helper()
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "subject", string(arg), fmt.Sprint(uid))
	return &subjectProcess{p, role.NewConn(p.out, p.in)}
}

func (s *subjectProcess) ready(t *testing.T) Ready {
	t.Helper()
	var r Ready
	if err := s.conn.Expect(role.Ready, &r, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *subjectProcess) log(t *testing.T) string {
	t.Helper()
	m, err := s.conn.Receive()
	var line string
	if err != nil || m.Event != role.Log || json.Unmarshal(m.Data, &line) != nil {
		t.Fatalf("waiting for a log line: %+v, %v", m, err)
	}
	return line
}

func writeServices(t *testing.T, file string, services ...Service) {
	t.Helper()
	if err := os.WriteFile(file, format(services), 0o644); err != nil {
		t.Fatal(err)
	}
}

// left counts the objects of a data plane that are still in the kernel.
func (r Ready) left() int {
	n := 0
	for _, p := range r.Programs {
		if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID)); err == nil {
			p.Close()
			n++
		}
	}
	for _, m := range r.Maps {
		if m, err := ebpf.NewMapFromID(ebpf.MapID(m.ID)); err == nil {
			m.Close()
			n++
		}
	}
	for _, l := range r.Links {
		if l, err := link.NewFromID(link.ID(l.ID)); err == nil {
			l.Close()
			n++
		}
	}
	return n
}

func TestProcess(t *testing.T) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	for _, ending := range []string{"end of input", "kill -9"} {
		t.Run(ending, func(t *testing.T) {
			dir, file := testCgroup(t), filepath.Join(t.TempDir(), "services.yaml")
			writeServices(t, file, Service{service4, TCP, []Endpoint{{a, 1}}})
			s := newSubject(t, Options{ServicesFile: file, CgroupDir: dir}, 0)
			ready := s.ready(t)
			if ready.Services != 1 || ready.Endpoints != 1 || len(ready.Programs) != 9 || len(ready.Links) != 9 ||
				len(ready.Maps) != 8 ||
				ready.ServicesFile != file {
				t.Errorf("ready: %+v", ready)
			}
			if n := ready.left(); n != 9+9+8 {
				t.Errorf("%d of 26 programs, links and maps are in the kernel", n)
			}
			c := newClient(t, dir)
			c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(a, 2), counted(service4, 2), none)

			hup := func() string {
				t.Helper()
				if err := s.cmd.Process.Signal(unix.SIGHUP); err != nil {
					t.Fatal(err)
				}
				return s.log(t)
			}
			writeServices(t, file, Service{service4, TCP, []Endpoint{{b, 1}}}, Service{other4, TCP, []Endpoint{{a, 1}}})
			if line := hup(); !strings.Contains(line, "1 services added, 1 changed, 0 removed, 0 unchanged") {
				t.Error(line)
			}
			c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(b, 2), counted(service4, 2), none)
			c.ask(t, request{Do: "tcp", To: other4, N: 2}).want(t, counted(a, 2), counted(other4, 2), none)
			if err := os.WriteFile(file, []byte("services:\n  - adress: 1\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if line := hup(); !strings.Contains(line, "services stay as they were: "+file+":2") {
				t.Error(line)
			}
			c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(b, 2), counted(service4, 2), none)
			writeServices(t, file)
			if line := hup(); !strings.Contains(line, "2 removed") {
				t.Error(line)
			}
			c.ask(t, request{Do: "tcp", To: service4}).want(t, none, none, counted("connect: connection refused", 1))

			if ending == "kill -9" {
				if err := s.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = s.stop()
			} else {
				s.in.Close()
				if line := s.log(t); !strings.Contains(line, "km_connect4 9 runs (8 matched, 0 refused)") {
					t.Error(line)
				}
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "nothing left in the kernel", func() bool { return ready.left() == 0 })
		})
	}
}

func TestRunRefuses(t *testing.T) {
	dir := testCgroup(t)
	mount := cgroup2Mount()
	good := filepath.Join(t.TempDir(), "services.yaml")
	// Readable for other users, for the case without privileges.
	for _, readable := range []string{filepath.Dir(good), filepath.Dir(filepath.Dir(good))} {
		if err := os.Chmod(readable, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeServices(t, good, Service{service4, TCP, []Endpoint{{service4, 1}, {other4, 1}}}, Service{other4, TCP, nil})
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		o          Options
		uid        int
		code       fault.Code
		what, hint string
	}{
		{"no file", Options{ServicesFile: good + "x", CgroupDir: dir}, 0, fault.Usage, "cannot be read", "--services"},
		{"no cgroup", Options{ServicesFile: good, CgroupDir: dir + "x"}, 0, fault.Usage, "no such control group", "mkdir"},
		{"not a cgroup", Options{ServicesFile: good, CgroupDir: "/proc"}, 0, fault.Usage, "not a cgroup v2 directory", mount},
		{"the root", Options{ServicesFile: good, CgroupDir: mount}, 0, fault.Usage, "root of the hierarchy", "--allow-root"},
		{"too many endpoints", Options{ServicesFile: good, CgroupDir: dir, MaxEndpoints: 1}, 0, fault.Usage,
			"cannot be applied", "--max-endpoints"},
		{"too many services", Options{ServicesFile: good, CgroupDir: dir, MaxServices: 1}, 0, fault.Usage,
			"cannot be applied", "--max-services"},
		{"a store too large", Options{ServicesFile: good, CgroupDir: dir, MaxServices: 1 << 20}, 0, fault.Usage,
			"cannot be made so large", "--max-services"},
		{"no such store", Options{ServicesFile: good, CgroupDir: dir, Store: "shelf"}, 0, fault.Usage, "no store",
			"snapshot"},
		{"no such variant", Options{ServicesFile: good, CgroupDir: dir, Store: "sized:xl"}, 0, fault.Usage, "no variant",
			"ordered"},
		{"no source", Options{ServicesFile: good, CgroupDir: dir, Sources: []netip.Addr{netip.MustParseAddr("0.0.0.0")}}, 0,
			fault.Usage, "0.0.0.0 cannot be the source", "come from"},
		{"two sources", Options{ServicesFile: good, CgroupDir: dir, Sources: []netip.Addr{netip.MustParseAddr("10.0.0.1"),
			netip.MustParseAddr("::ffff:10.0.0.2")}}, 0, fault.Usage, "of one family", "one of each"},
		{"a pipe", Options{ServicesFile: pipe, CgroupDir: dir}, 0, fault.Usage, "not a file", "name a file"},
		{"no rights", Options{ServicesFile: good, CgroupDir: dir}, 65534, fault.Machine, "not permitted", "run as root"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newSubject(t, test.o, test.uid)
			err := s.conn.Expect(role.Ready, nil, nil)
			var f *fault.Error
			if !errors.As(err, &f) || f.Code != test.code || !strings.Contains(err.Error(), test.what) ||
				!strings.Contains(f.Hint, test.hint) {
				t.Errorf("got %#v", err)
			}
		})
	}
}

// TestExplainVerifier has the kernel refuse a program: the error must have the verifier's last lines.
func TestExplainVerifier(t *testing.T) {
	testCgroup(t) // skips this test wherever the other tests are skipped
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
		License:      "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 7), asm.Return()}})
	err = explain(err, "loading")
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "verifier refuses") ||
		!strings.Contains(err.Error(), "R0") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkConnect(b *testing.B) {
	a := tcpServer(b, "127.0.0.1:0")
	_, dir := newDataPlane(b, Options{}, Service{service4, TCP, []Endpoint{{a, 1}}})
	for _, arm := range []struct {
		name string
		to   netip.AddrPort
	}{{"service", service4}, {"untouched", a}} {
		b.Run(arm.name, func(b *testing.B) {
			c := newClient(b, dir)
			for b.Loop() {
				c.ask(b, request{Do: "tcp", To: arm.to, N: 1})
			}
		})
	}
}

// active returns the number of established connections that are not closed.
func active(c clusterCounts) uint64 {
	return c.Established - min(c.Closed, c.Established) // one that closed between the two reads is counted in Closed only
}
