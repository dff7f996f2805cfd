package storetest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"tare/internal/mesh"
	"tare/test/meshmodel"
)

// generator makes random changes of a small configuration, each different from all before. Resources are small, so that
// every design holds them.
type generator struct {
	random *rand.Rand
	serial int // of endpoints: an address is never given twice
	config *mesh.Config
}

const (
	clusterNames  = 12
	listenerNames = 16
)

// The addresses of listeners (services), of connections that only listeners for any address take (others), and of the
// connections' sources; and ports and prefixes to match them with.
var (
	services = addresses("10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.6", "fd00::1", "fd00::2", "fd00:0:0:1::1",
		"0.0.0.0", "::")
	others      = addresses("10.0.0.9", "192.0.2.1", "fd00::9", "2001:db8::1")
	sources     = addresses("10.9.0.1", "10.9.1.1", "10.9.1.7", "192.0.2.7", "fd01::1", "fd01:2::1", "2001:db8::7")
	ports       = []uint16{80, 443}
	sourcePorts = []uint16{1000, 1500, 2000, 40000}

	destinationPrefixes = prefixes("10.0.0.0/24", "10.0.0.4/30", "10.0.0.5/32", "0.0.0.0/0", "fd00::/64", "fd00::/16",
		"::/0", "fd00::2/128")
	sourcePrefixes = prefixes("10.9.0.0/16", "10.9.1.0/24", "10.9.1.7/32", "0.0.0.0/0", "10.8.0.0/15", "fd01::/16",
		"fd01:2::/32", "::/0")
	portRanges = []mesh.PortRange{{From: 1000, To: 1000}, {From: 1000, To: 1999}, {From: 1500, To: 65535},
		{From: 0, To: 1500}, {From: 80, To: 80}, {From: 0, To: 400}}
)

func addresses(text ...string) (out []netip.Addr) {
	for _, s := range text {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(text ...string) (out []netip.Prefix) {
	for _, s := range text {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func newGenerator(seed uint64) *generator {
	return &generator{random: rand.New(rand.NewPCG(seed, seed)), config: mesh.NewConfig()}
}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// some picks up to n elements of a list, often none.
func some[T any](r *rand.Rand, n int, of []T) (out []T) {
	for range max(0, r.IntN(n+3)-2) {
		out = append(out, pick(r, of))
	}
	return out
}

// next makes a change and applies it to the model. A change can add, replace and remove several clusters and
// listeners.
func (g *generator) next() (change mesh.Change) {
	r := g.random
	touched := map[string]bool{}
	after := meshmodel.Clone(g.config)
	for range 1 + r.IntN(3) {
		if r.IntN(2) == 0 {
			name := fmt.Sprintf("cluster-%d", r.IntN(clusterNames))
			if touched[name] {
				continue
			}
			touched[name] = true
			if r.IntN(4) == 0 {
				change.RemovedClusters = append(change.RemovedClusters, name)
				delete(after.Clusters, name)
				continue
			}
			c := g.cluster(name)
			change.Clusters = append(change.Clusters, c)
			after.Clusters[name] = c
			continue
		}
		name := fmt.Sprintf("listener-%d", r.IntN(listenerNames))
		if touched[name] {
			continue
		}
		touched[name] = true
		old := after.Listeners[name]
		delete(after.Listeners, name)
		if r.IntN(4) == 0 {
			change.RemovedListeners = append(change.RemovedListeners, name)
			continue
		}
		l := g.listener(name, old, after)
		if l == nil { // no address is free
			change.RemovedListeners = append(change.RemovedListeners, name)
			continue
		}
		change.Listeners = append(change.Listeners, l)
		after.Listeners[name] = l
	}
	g.config = after
	return change
}

func (g *generator) cluster(name string) *mesh.Cluster {
	r := g.random
	c := &mesh.Cluster{Name: name, Policy: mesh.Policy(r.IntN(2)),
		Breakers: mesh.Breakers{MaxConnections: r.Uint32N(5) * 1000}}
	plain := r.IntN(2) == 0
	for range r.IntN(4) {
		l := mesh.Locality{Region: "region", Zone: fmt.Sprint("zone-", len(c.Localities))}
		if !plain {
			l.Priority, l.Weight = r.Uint32N(3), r.Uint32N(4)
		}
		for range r.IntN(4) {
			e := mesh.Endpoint{Address: g.endpoint(), Weight: 1 + r.Uint32N(5), Health: mesh.Healthy}
			switch r.IntN(12) {
			case 0:
				e.Weight = 0
			case 1:
				e.Health = mesh.Unhealthy
			case 2:
				e.Health = mesh.Draining
			case 3:
				e.Health = mesh.Unknown
			case 4:
				e.Weight = 1000
			}
			l.Endpoints = append(l.Endpoints, e)
		}
		c.Localities = append(c.Localities, l)
	}
	return c
}

func (g *generator) endpoint() netip.AddrPort {
	g.serial++
	ip := nth(0x64400000, g.serial)
	if g.serial%4 == 0 {
		b := ip.As4()
		ip = netip.AddrFrom16([16]byte{0xfd, 0x0e, 11: 0xff, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
	}
	return netip.AddrPortFrom(ip, uint16(1+g.serial%65535))
}

func (g *generator) listener(name string, old *mesh.Listener, others *mesh.Config) *mesh.Listener {
	r := g.random
	l := &mesh.Listener{Name: name}
	if old != nil && r.IntN(4) > 0 && !taken(others, old) {
		l.Address, l.Protocol = old.Address, old.Protocol
	} else {
		for try := 0; ; try++ {
			if try == 20 {
				return nil
			}
			l.Address, l.Protocol = netip.AddrPortFrom(pick(r, services), pick(r, ports)), pick(r,
				[]mesh.Protocol{mesh.TCP, mesh.TCP, mesh.UDP})
			if !taken(others, l) {
				break
			}
		}
	}
	for {
		l.Chains, l.Default = nil, nil
		simple := r.IntN(2) == 0
		for range 1 + r.IntN(3) {
			l.Chains = append(l.Chains, g.chain(len(l.Chains), simple))
			if simple {
				break
			}
		}
		if r.IntN(3) == 0 {
			c := g.chain(len(l.Chains), false)
			c.Match = mesh.Match{}
			l.Default = &c
		}
		if rules, err := l.Rules(); err == nil && len(rules) <= 16 {
			return l
		}
	}
}

func taken(c *mesh.Config, l *mesh.Listener) bool {
	for _, other := range c.Listeners {
		if other.Address == l.Address && other.Protocol == l.Protocol {
			return true
		}
	}
	return false
}

func (g *generator) chain(i int, simple bool) mesh.Chain {
	r := g.random
	c := mesh.Chain{Name: fmt.Sprintf("chain-%d", i), Proxy: mesh.Proxy{StatPrefix: "stat", MaxConnectAttempts: 1}}
	for range max(1, r.IntN(7)-3) {
		c.Proxy.Clusters = append(c.Proxy.Clusters,
			mesh.WeightedCluster{Name: fmt.Sprintf("cluster-%d", r.IntN(clusterNames)), Weight: 1 + r.Uint32N(9)})
	}
	if r.IntN(20) == 0 {
		c.Proxy.Clusters = nil
	}
	if simple {
		return c
	}
	c.Match = mesh.Match{Destinations: some(r, 1, destinationPrefixes), Sources: some(r, 2, sourcePrefixes),
		SourcePorts: some(r, 1, sourcePorts)}
	if r.IntN(4) == 0 {
		c.Match.DestinationPort = pick(r, ports)
	}
	for range max(0, r.IntN(5)-2) {
		f := mesh.RBAC{Deny: slices.ContainsFunc(c.RBAC, func(f mesh.RBAC) bool { return !f.Deny }) || r.IntN(2) == 0}
		for range r.IntN(3) {
			f.Policies = append(f.Policies, mesh.Principal{
				Name:             "policy",
				Sources:          some(r, 2, sourcePrefixes),
				Destinations:     some(r, 1, destinationPrefixes),
				SourcePorts:      some(r, 1, portRanges),
				DestinationPorts: some(r, 1, portRanges),
			})
		}
		c.RBAC = append(c.RBAC, f)
	}
	return c
}

// question returns a question about a connection that may or may not go to a listener.
func (g *generator) question() mesh.Question {
	r := g.random
	q := mesh.Question{Protocol: mesh.TCP}
	to := pick(r, services)
	if to.IsUnspecified() || r.IntN(5) == 0 {
		to = pick(r, others)
	}
	port := pick(r, ports)
	if r.IntN(20) == 0 {
		port++
	}
	q.To = netip.AddrPortFrom(to, port)
	if r.IntN(4) == 0 {
		q.Protocol = mesh.UDP
	}
	if r.IntN(6) > 0 {
		q.From = netip.AddrPortFrom(pick(r, sources), pick(r, sourcePorts))
		if r.IntN(10) > 0 { // both addresses are usually of one family
			for q.From.Addr().Is4() != to.Is4() {
				q.From = netip.AddrPortFrom(pick(r, sources), q.From.Port())
			}
		}
	}
	return q
}
