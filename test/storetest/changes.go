package storetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// service returns a listener for one cluster, at an address that no other service has.
func service(i int, cluster string) *mesh.Listener {
	l := ListenerLoad(i)
	l.Chains = l.Chains[:1]
	l.Chains[0].Proxy.Clusters = []mesh.WeightedCluster{{Name: cluster, Weight: 1}}
	return l
}

// little returns ClusterLoad(i) with fewer localities, for tests in which the content of a cluster does not matter.
func little(i int) *mesh.Cluster {
	c := ClusterLoad(i)
	c.Localities = c.Localities[:2]
	return c
}

// verdicts asks questions whose answers are easily wrong. The name of each case describes it.
func (s *suite) verdicts(t *testing.T) {
	st := s.open(t, s.small())
	ask := NewAsker(t, s.design, st)
	one := func(name string, port uint16) *mesh.Cluster {
		at := mesh.Endpoint{Address: netip.AddrPortFrom(nth(0x0a000001, 0), port), Weight: 1}
		return &mesh.Cluster{Name: name, Localities: []mesh.Locality{{Endpoints: []mesh.Endpoint{at}}}}
	}
	to := func(names ...string) mesh.Proxy {
		p := mesh.Proxy{StatPrefix: "stat"}
		for _, n := range names {
			p.Clusters = append(p.Clusters, mesh.WeightedCluster{Name: n, Weight: 1})
		}
		return p
	}
	at := netip.MustParseAddrPort
	prefix := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	tcp := func(name, address string, chains ...mesh.Chain) *mesh.Listener {
		return &mesh.Listener{Name: name, Address: at(address), Protocol: mesh.TCP, Chains: chains}
	}
	empty := one("empty", 3)
	empty.Localities[0].Endpoints[0].Health = mesh.Draining
	udp := tcp("udp", "10.0.0.1:80", mesh.Chain{Name: "c", Proxy: to("b")})
	udp.Protocol = mesh.UDP
	withDefault := tcp("default", "10.0.0.4:80", mesh.Chain{Name: "c", Match: mesh.Match{Sources: prefix("10.9.0.0/16")},
		Proxy: to("a")})
	withDefault.Default = &mesh.Chain{Name: "default", Proxy: to("b")}
	apply(t, st, mesh.Change{
		Clusters: []*mesh.Cluster{one("a", 1), one("b", 2), empty},
		Listeners: []*mesh.Listener{
			tcp("plain", "10.0.0.1:80", mesh.Chain{Name: "c", Proxy: to("a")}), udp,
			tcp("six", "[fd00::1]:80", mesh.Chain{Name: "c", Proxy: to("a")}),
			tcp("any4", "0.0.0.0:80", mesh.Chain{Name: "c", Proxy: to("b")}),
			tcp("missing", "10.0.0.2:80", mesh.Chain{Name: "c", Proxy: to("nobody")}),
			tcp("drained", "10.0.0.3:80", mesh.Chain{Name: "c", Proxy: to("empty")}),
			withDefault,
			tcp("nothing", "10.0.0.5:80", mesh.Chain{Name: "c", Proxy: to()}),
			tcp("rbac", "10.0.0.6:80", mesh.Chain{Name: "c", Proxy: to("a"), RBAC: []mesh.RBAC{
				{Policies: []mesh.Principal{{Sources: prefix("10.9.0.0/16"),
					SourcePorts: []mesh.PortRange{{From: 1000, To: 1999}}}}},
				{Deny: true, Policies: []mesh.Principal{{Sources: prefix("10.9.1.0/24")}}},
			}}),
			tcp("allow nobody", "10.0.0.7:80", mesh.Chain{Name: "c", Proxy: to("a"), RBAC: []mesh.RBAC{{}}}),
			tcp("any source of IPv6", "[fd00::2]:80", mesh.Chain{Name: "c", Match: mesh.Match{Sources: prefix("::/0")},
				Proxy: to("a")}),
			tcp("one source", "10.0.0.8:80", mesh.Chain{Name: "c",
				Match: mesh.Match{Sources: prefix("10.9.1.7/32"), SourcePorts: []uint16{1000}}, Proxy: to("a")}),
		},
	})
	unknown := ""
	for _, c := range []struct {
		name, from, to string
		protocol       mesh.Protocol
		want           mesh.Verdict
		port           uint16 // of the endpoint, which identifies the cluster
	}{
		{"the very address", "10.9.0.1:1000", "10.0.0.1:80", mesh.TCP, mesh.Accept, 1},
		{"the very address, source unknown", unknown, "10.0.0.1:80", mesh.TCP, mesh.Accept, 1},
		{"the same address by UDP", unknown, "10.0.0.1:80", mesh.UDP, mesh.Accept, 2},
		{"another port", unknown, "10.0.0.1:81", mesh.TCP, mesh.Pass, 0},
		{"any address", unknown, "192.0.2.1:80", mesh.TCP, mesh.Accept, 2},
		{"any address, IPv4 as IPv6", unknown, "[::ffff:192.0.2.1]:80", mesh.TCP, mesh.Accept, 2},
		{"any address is of one family", unknown, "[2001:db8::1]:80", mesh.TCP, mesh.Pass, 0},
		{"any address is of one protocol", unknown, "192.0.2.1:80", mesh.UDP, mesh.Pass, 0},
		{"IPv6", unknown, "[fd00::1]:80", mesh.TCP, mesh.Accept, 1},
		{"a cluster that is not there", unknown, "10.0.0.2:80", mesh.TCP, mesh.Refuse, 0},
		{"a cluster without endpoints", unknown, "10.0.0.3:80", mesh.TCP, mesh.Refuse, 0},
		{"no clusters", unknown, "10.0.0.5:80", mesh.TCP, mesh.Refuse, 0},
		{"a chain matches", "10.9.0.1:1000", "10.0.0.4:80", mesh.TCP, mesh.Accept, 1},
		{"the default chain", "192.0.2.1:1000", "10.0.0.4:80", mesh.TCP, mesh.Accept, 2},
		{"the default chain, source unknown", unknown, "10.0.0.4:80", mesh.TCP, mesh.Accept, 2},
		{"allowed", "10.9.0.1:1000", "10.0.0.6:80", mesh.TCP, mesh.Accept, 1},
		{"allowed, last port", "10.9.0.1:1999", "10.0.0.6:80", mesh.TCP, mesh.Accept, 1},
		{"not allowed, port above", "10.9.0.1:2000", "10.0.0.6:80", mesh.TCP, mesh.Deny, 0},
		{"not allowed, port below", "10.9.0.1:999", "10.0.0.6:80", mesh.TCP, mesh.Deny, 0},
		{"allowed and denied", "10.9.1.1:1000", "10.0.0.6:80", mesh.TCP, mesh.Deny, 0},
		{"not allowed, source unknown", unknown, "10.0.0.6:80", mesh.TCP, mesh.Deny, 0},
		{"nobody is allowed", "10.9.1.1:1000", "10.0.0.7:80", mesh.TCP, mesh.Deny, 0},
		{"::/0 holds IPv6", "[2001:db8::7]:1000", "[fd00::2]:80", mesh.TCP, mesh.Accept, 1},
		{"::/0 does not hold a source that is not known", unknown, "[fd00::2]:80", mesh.TCP, mesh.Refuse, 0},
		{"::/0 does not hold IPv4", "10.9.1.1:1000", "[fd00::2]:80", mesh.TCP, mesh.Refuse, 0},
		{"one address and port", "10.9.1.7:1000", "10.0.0.8:80", mesh.TCP, mesh.Accept, 1},
		{"one address, another port", "10.9.1.7:1001", "10.0.0.8:80", mesh.TCP, mesh.Refuse, 0},
		{"another address by its last bit", "10.9.1.6:1000", "10.0.0.8:80", mesh.TCP, mesh.Refuse, 0},
	} {
		q := mesh.Question{To: at(c.to), Protocol: c.protocol}
		if c.from != unknown {
			q.From = at(c.from)
		}
		for random := range uint64(4) {
			got := ask.Ask(q, random*0x5555555555555555)
			if got.Verdict != c.want || got.Endpoint.Port() != c.port {
				t.Errorf("%s: %v: %v to %v, want %v to port %d", c.name, text(q), got.Verdict, got.Endpoint, c.want, c.port)
				break
			}
		}
	}
}

// refusals makes changes that are wrong, or too large: each error names the resource, and nothing of the change is
// applied.
func (s *suite) refusals(t *testing.T) {
	o := s.small()
	o.MaxClusters, o.MaxListeners, o.MaxEndpoints = 8, 8, 256
	st := s.open(t, o)
	ask := NewAsker(t, s.design, st)
	config := mesh.NewConfig()
	add := func(change mesh.Change) {
		config.Apply(change)
		apply(t, st, change)
	}
	for i := range 6 {
		add(mesh.Change{Clusters: []*mesh.Cluster{little(i)}, Listeners: []*mesh.Listener{service(i, ClusterName(i))}})
	}
	c := &checker{store: st, ask: ask, config: config}
	same := func(what string) {
		t.Helper()
		for i := range 12 {
			c.question(t, mesh.Question{To: ServiceAddress(i), Protocol: mesh.TCP}, 40)
		}
		if t.Failed() {
			t.Fatalf("after %s", what)
		}
	}
	same("the first changes")

	good := func() mesh.Change { // the questions below would show it if it were applied
		return mesh.Change{
			Clusters:         []*mesh.Cluster{rename(little(50), ClusterName(0)), little(6)},
			Listeners:        []*mesh.Listener{service(6, ClusterName(6)), readdress(service(1, ClusterName(0)), 9)},
			RemovedClusters:  []string{ClusterName(2)},
			RemovedListeners: []string{"listener-3"},
		}
	}
	many := &mesh.Cluster{Name: "many", Localities: []mesh.Locality{{}}}
	for i := range 2000 {
		many.Localities[0].Endpoints = append(many.Localities[0].Endpoints,
			mesh.Endpoint{Address: netip.AddrPortFrom(nth(0x0b000000, i), 80), Weight: 1})
	}
	long := service(7, ClusterName(0))
	long.Chains[0].RBAC = []mesh.RBAC{{Deny: true}}
	for i := range mesh.MaxRules + 1 {
		long.Chains[0].RBAC[0].Policies = append(long.Chains[0].RBAC[0].Policies,
			mesh.Principal{Name: "p", Sources: []netip.Prefix{netip.PrefixFrom(nth(0x0a000000, i), 32)}})
	}
	twin := readdress(service(7, ClusterName(0)), 4)
	for _, w := range []struct {
		what  string
		bad   mesh.Change
		where []string
	}{
		{"a cluster of more endpoints than the store holds", mesh.Change{Clusters: []*mesh.Cluster{many}}, []string{"many"}},
		{"a listener of too many rules", mesh.Change{Listeners: []*mesh.Listener{long}}, []string{long.Name}},
		{"the address of another listener", mesh.Change{Listeners: []*mesh.Listener{twin}},
			[]string{twin.Name, "listener-4"}},
		{"the same address twice", mesh.Change{Listeners: []*mesh.Listener{service(7, "a"), readdress(service(8, "a"), 7)}},
			[]string{"listener-7", "listener-8"}},
		{"more clusters than the store holds",
			mesh.Change{Clusters: []*mesh.Cluster{little(21), little(22), little(23), little(24)}},
			[]string{ClusterName(0), ClusterName(6), ClusterName(21), ClusterName(22), ClusterName(23), ClusterName(24)}},
		{"more listeners than the store holds",
			mesh.Change{Listeners: []*mesh.Listener{service(21, "a"), service(22, "a"), service(23, "a"), service(24, "a")}},
			[]string{"listener-1", "listener-6", "listener-21", "listener-22", "listener-23", "listener-24"}},
	} {
		change := good()
		change.Clusters = append(change.Clusters, w.bad.Clusters...)
		change.Listeners = append(change.Listeners, w.bad.Listeners...)
		_, err := st.Apply(context.Background(), change)
		if !usage(err, w.where...) || fault.HintOf(err) == "" {
			t.Errorf("%s: got %v, want a refusal that names one of %v, with a hint", w.what, err, w.where)
		}
		same("refusing " + w.what)
		for _, name := range []string{ClusterName(6), "many"} {
			if _, ok := st.Cluster(name); ok {
				t.Errorf("%s: cluster %s has a number after the refusal", w.what, name)
			}
		}
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := st.Apply(ended, good()); err == nil {
		t.Error("a context that has ended: no error")
	}
	same("a context that had ended")

	// These changes must be accepted, although they look like clashes: listeners exchange their addresses within one
	// change, and a change uses the room that it makes itself.
	add(mesh.Change{Listeners: []*mesh.Listener{readdress(service(0, ClusterName(0)), 1),
		readdress(service(1, ClusterName(1)), 0)}})
	same("two listeners changed addresses")
	add(mesh.Change{Listeners: []*mesh.Listener{readdress(service(9, ClusterName(2)), 2)},
		RemovedListeners: []string{"listener-2"}})
	same("a listener took the address of one that went")
	add(mesh.Change{RemovedClusters: []string{"nobody"}, RemovedListeners: []string{"nobody"}})
	add(mesh.Change{})
	same("nothing")
	add(mesh.Change{Clusters: []*mesh.Cluster{little(6), little(7)},
		Listeners: []*mesh.Listener{service(6, ClusterName(6)), service(7, ClusterName(7))}})
	same("full")
	change := mesh.Change{}
	for i := range 8 {
		change.RemovedClusters = append(change.RemovedClusters, ClusterName(i))
		change.Clusters = append(change.Clusters, little(10+i))
	}
	for name := range config.Listeners {
		change.RemovedListeners = append(change.RemovedListeners, name)
	}
	for i := range 8 {
		change.Listeners = append(change.Listeners, readdress(service(30+i, ClusterName(10+i)), i))
	}
	add(change)
	same("a full store changed for another")
	add(everything(config))
	same("all was taken away")
}

// numbers checks the numbers of clusters: that they are distinct, that a change does not reuse the numbers of the
// clusters that it removes, and that lookups return them.
func (s *suite) numbers(t *testing.T) {
	o := s.small()
	o.MaxClusters = 4
	st := s.open(t, o)
	ask := NewAsker(t, s.design, st)
	before := map[uint32]string{}
	var change mesh.Change
	for round := range 4 {
		change.Clusters = nil
		for i := range 4 {
			change.Clusters = append(change.Clusters, little(4*round+i))
		}
		apply(t, st, change)
		now := map[uint32]string{}
		change.RemovedClusters = nil
		for _, c := range change.Clusters {
			id, ok := st.Cluster(c.Name)
			if !ok || id >= o.ClusterNumbers() || before[id] != "" || now[id] != "" {
				t.Fatalf("cluster %s has number %d (%v) of %d; it was that of %q, and is that of %q", c.Name, id, ok,
					o.ClusterNumbers(), before[id], now[id])
			}
			now[id] = c.Name
			change.RemovedClusters = append(change.RemovedClusters, c.Name)
		}
		before = now
	}

	// A cluster that is both given and removed is removed. One that has no endpoint, or no longer has one, or is not
	// there, refuses connections.
	for round, given := range []*mesh.Cluster{little(20), {Name: ClusterName(20)}, little(20), nil,
		{Name: ClusterName(20)}, nil} {
		next := mesh.Change{Clusters: []*mesh.Cluster{little(21)}, RemovedClusters: []string{ClusterName(21)},
			Listeners: []*mesh.Listener{service(0, ClusterName(20))}}
		if round == 0 {
			next.RemovedClusters = append(next.RemovedClusters, change.RemovedClusters...)
		}
		if given != nil {
			next.Clusters = append(next.Clusters, given)
		} else {
			next.RemovedClusters = append(next.RemovedClusters, ClusterName(20))
		}
		apply(t, st, next)
		if _, ok := st.Cluster(ClusterName(21)); ok {
			t.Error("a cluster that was given and removed is there")
		}
		want := Answer{Verdict: mesh.Refuse, Cluster: store.NoCluster}
		if given != nil {
			want.Cluster, _ = st.Cluster(given.Name)
			if len(given.Localities) > 0 {
				want.Verdict = mesh.Accept
			}
		}
		if got := ask.Ask(mesh.Question{To: ServiceAddress(0), Protocol: mesh.TCP}, 1); got.Verdict != want.Verdict ||
			got.Cluster != want.Cluster {
			t.Errorf("round %d: the store says %v of cluster %d, want %v of cluster %d", round, got.Verdict, got.Cluster,
				want.Verdict, want.Cluster)
		}
	}
}

// named makes changes that create a cluster in the room of another one, and at the same time take away the only
// listener that names the new cluster. The cluster must have a number, and later lookups must return it.
func (s *suite) named(t *testing.T) {
	o := s.small()
	o.MaxClusters = 2
	st := s.open(t, o)
	apply(t, st, mesh.Change{Clusters: []*mesh.Cluster{little(3)}})
	ask := NewAsker(t, s.design, st)
	name := ClusterName(0)
	for _, goes := range []struct {
		how    string
		change mesh.Change
	}{
		{"is removed", mesh.Change{RemovedListeners: []string{service(0, name).Name}}},
		{"names another", mesh.Change{Listeners: []*mesh.Listener{service(0, ClusterName(1))}}},
		{"moves and names another", mesh.Change{Listeners: []*mesh.Listener{readdress(service(0, ClusterName(1)), 2)}}},
	} {
		apply(t, st, mesh.Change{Clusters: []*mesh.Cluster{little(2)}, Listeners: []*mesh.Listener{service(0, name)}})
		goes.change.Clusters, goes.change.RemovedClusters = []*mesh.Cluster{little(0)}, []string{ClusterName(2)}
		apply(t, st, goes.change)
		id, ok := st.Cluster(name)
		if !ok {
			t.Fatalf("where the listener %s: the cluster has no number", goes.how)
		}
		apply(t, st, mesh.Change{Listeners: []*mesh.Listener{service(1, name)}})
		got := ask.Ask(mesh.Question{To: ServiceAddress(1), Protocol: mesh.TCP}, 1)
		if got.Verdict != mesh.Accept || got.Cluster != id {
			t.Errorf("where the listener %s: the store says %v of cluster %d, want accept of cluster %d", goes.how,
				got.Verdict, got.Cluster, id)
		}
		apply(t, st, mesh.Change{RemovedClusters: []string{name}, RemovedListeners: []string{service(1, name).Name}})
	}
}

// everything returns the change that removes all of a configuration.
func everything(config *mesh.Config) (change mesh.Change) {
	for name := range config.Clusters {
		change.RemovedClusters = append(change.RemovedClusters, name)
	}
	for name := range config.Listeners {
		change.RemovedListeners = append(change.RemovedListeners, name)
	}
	return change
}

func rename(c *mesh.Cluster, name string) *mesh.Cluster {
	c.Name = name
	return c
}

func readdress(l *mesh.Listener, i int) *mesh.Listener {
	l.Address = ServiceAddress(i)
	return l
}

// large goes to the limits of a design: it doubles the number of endpoints of a cluster, and then the number of
// clusters of a listener, up to a maximum, or until the store refuses the change with an error that names the resource.
// It logs the largest numbers that the store has held and answered from.
func (s *suite) large(t *testing.T) {
	o := s.small()
	o.MaxEndpoints = 1 << 12
	st := s.open(t, o)
	ask := NewAsker(t, s.design, st)
	apply(t, st, mesh.Change{Listeners: []*mesh.Listener{service(0, "grows")}})
	held := 0
	for n := 1; n <= 1<<11; n *= 2 {
		c := &mesh.Cluster{Name: "grows", Localities: []mesh.Locality{{}}}
		for i := range n {
			c.Localities[0].Endpoints = append(c.Localities[0].Endpoints,
				mesh.Endpoint{Address: netip.AddrPortFrom(nth(uint32(n)<<16, i), 80), Weight: 1})
		}
		_, err := st.Apply(context.Background(), mesh.Change{Clusters: []*mesh.Cluster{c}})
		if usage(err, "grows") {
			t.Logf("%d endpoints in one cluster are refused: %v", n, err)
			break
		}
		if err != nil {
			t.Fatalf("%d endpoints: %v", n, err)
		}
		held = n
		config := mesh.NewConfig()
		config.Apply(mesh.Change{Clusters: []*mesh.Cluster{c}, Listeners: []*mesh.Listener{service(0, "grows")}})
		(&checker{store: st, ask: ask, config: config}).question(t, mesh.Question{To: ServiceAddress(0), Protocol: mesh.TCP},
			max(1000, 20*n))
	}
	if held < 16 {
		t.Errorf("a cluster can have only %d endpoints", held)
	}
	t.Logf("%d endpoints in one cluster are held", held)

	held = 0
	for n := 1; n <= 512; n *= 2 {
		l := service(0, "grows")
		l.Chains[0].Proxy.Clusters = nil
		var change mesh.Change
		for i := range n {
			name := fmt.Sprintf("part-%d", i%32)
			l.Chains[0].Proxy.Clusters = append(l.Chains[0].Proxy.Clusters,
				mesh.WeightedCluster{Name: name, Weight: uint32(1 + i)})
			if i < 32 {
				change.Clusters = append(change.Clusters, rename(little(i), name))
			}
		}
		change.Listeners = []*mesh.Listener{l}
		_, err := st.Apply(context.Background(), change)
		if usage(err, l.Name) {
			t.Logf("%d weighted clusters are refused: %v", n, err)
			break
		}
		if err != nil {
			t.Fatalf("%d weighted clusters: %v", n, err)
		}
		held = n
		config := mesh.NewConfig()
		config.Apply(change)
		(&checker{store: st, ask: ask, config: config}).question(t,
			mesh.Question{To: ServiceAddress(0), Protocol: mesh.TCP}, 20000)
	}
	if held < 4 {
		t.Errorf("a listener can have only %d weighted clusters", held)
	}
	t.Logf("%d weighted clusters of one listener are held", held)
}
