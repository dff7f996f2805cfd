package mesh

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func endpoints(first, healthy, unhealthy int) (out []Endpoint) {
	for i := range healthy + unhealthy {
		e := Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(first), byte(i)}), 80), Weight: 1,
			Health: Healthy}
		if i >= healthy {
			e.Health = Unhealthy
		}
		out = append(out, e)
	}
	return out
}

// parts returns the share of each locality, which the third byte of its endpoints identifies.
func parts(c *Cluster) map[int]float64 {
	sum, out := 0.0, map[int]float64{}
	targets := c.Targets(nil)
	for _, t := range targets {
		sum += float64(t.Weight)
	}
	for _, t := range targets {
		out[int(t.Address.Addr().As4()[2])] += float64(t.Weight) / sum
	}
	return out
}

func wantParts(t *testing.T, name string, got map[int]float64, want ...float64) {
	t.Helper()
	for i, w := range want {
		if math.Abs(got[i]-w) > 0.0051 { // Envoy's tables are in whole percent
			t.Errorf("%s: locality %d has %.4f, want %.4f (all: %v)", name, i, got[i], w, got)
		}
	}
}

// TestPriorities has the tables of Envoy's documentation of priority levels, with 100 endpoints in each priority.
func TestPriorities(t *testing.T) {
	for _, c := range []struct{ healthy, want []float64 }{
		{[]float64{100, 100}, []float64{1, 0}},
		{[]float64{72, 100}, []float64{1, 0}},
		{[]float64{71, 100}, []float64{.99, .01}},
		{[]float64{50, 100}, []float64{.70, .30}},
		{[]float64{25, 100}, []float64{.35, .65}},
		{[]float64{0, 100}, []float64{0, 1}},
		{[]float64{50, 50}, []float64{.70, .30}},
		{[]float64{25, 25}, []float64{.50, .50}},
		{[]float64{5, 0}, []float64{1, 0}},
		{[]float64{0, 5}, []float64{0, 1}},
		{[]float64{100, 100, 100}, []float64{1, 0, 0}},
		{[]float64{72, 72, 100}, []float64{1, 0, 0}},
		{[]float64{50, 50, 100}, []float64{.70, .30, 0}},
		{[]float64{50, 25, 50}, []float64{.70, .30, 0}},
		{[]float64{25, 100, 100}, []float64{.35, .65, 0}},
		{[]float64{25, 25, 100}, []float64{.35, .35, .30}},
		{[]float64{25, 25, 20}, []float64{.357, .357, .286}},
	} {
		var cluster Cluster
		for p, healthy := range c.healthy {
			cluster.Localities = append(cluster.Localities,
				Locality{Priority: uint32(p), Endpoints: endpoints(p, int(healthy), 100-int(healthy))})
		}
		name := fmt.Sprint(c.healthy)
		wantParts(t, name, parts(&cluster), c.want...)
		slices.Reverse(cluster.Localities) // the order of localities does not matter
		wantParts(t, name+" reversed", parts(&cluster), c.want...)
	}
}

// TestLocalities checks Envoy's documented arithmetic of locality weights: the weight times 140 % of the healthy
// share, at most 100 %.
func TestLocalities(t *testing.T) {
	two := func(weights [2]uint32, healthy [2]int) *Cluster {
		return &Cluster{Localities: []Locality{
			{Weight: weights[0], Endpoints: endpoints(0, healthy[0], 100-healthy[0])},
			{Weight: weights[1], Endpoints: endpoints(1, healthy[1], 100-healthy[1])},
		}}
	}
	for _, c := range []struct {
		name    string
		weights [2]uint32
		healthy [2]int
		want    float64 // share of the first
	}{
		{"all healthy", [2]uint32{1, 2}, [2]int{100, 100}, .33},
		{"70 %", [2]uint32{1, 2}, [2]int{70, 100}, .33}, // 98 % of weight 1
		{"69 %", [2]uint32{1, 2}, [2]int{69, 100}, .33},
		{"50 %", [2]uint32{1, 2}, [2]int{50, 100}, .26},
		{"25 %", [2]uint32{1, 2}, [2]int{25, 100}, .15},
		{"none", [2]uint32{1, 2}, [2]int{0, 100}, 0},
		{"no weight, no load", [2]uint32{0, 2}, [2]int{100, 100}, 0},
		{"no weights at all: by endpoints", [2]uint32{0, 0}, [2]int{25, 75}, .25},
		{"only what has no weight is healthy", [2]uint32{3, 0}, [2]int{0, 100}, 0},
	} {
		wantParts(t, c.name, parts(two(c.weights, c.healthy)), c.want)
	}
}

func TestTargets(t *testing.T) {
	e := func(n byte, weight uint32, h Health) Endpoint {
		return Endpoint{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80), weight, h}
	}
	c := &Cluster{Localities: []Locality{{Endpoints: []Endpoint{e(0, 3, Unknown), e(1, 1, Healthy), e(2, 9, Unhealthy),
		e(3, 9, Draining), e(4, 0, Healthy)}}, {}}}
	got := c.Targets([]Target{{}})
	if len(got) != 3 || got[1].Weight != 3 || got[2].Weight != 1 {
		t.Errorf("plain: %v", got)
	}
	// The same shares when weights must be computed, within an endpoint's weight of 2^30.
	c.Localities[0].Weight = 7
	got = c.Targets(nil)
	if len(got) != 2 || math.Abs(float64(got[0].Weight)/float64(got[1].Weight)-3) > 1e-6 {
		t.Errorf("weighted: %v", got)
	}
	// A share that rounds to 0 still gets some connections.
	c.Localities[0].Endpoints = []Endpoint{e(0, math.MaxUint32, Healthy), e(1, 1, Healthy)}
	if got = c.Targets(nil); len(got) != 2 || got[1].Weight == 0 {
		t.Errorf("a small share: %v", got)
	}
	// In floating point, 1 - 0.7 - 0.3 is not exactly 0. Nothing may be left for the third priority.
	third := &Cluster{Localities: []Locality{
		{Priority: 0, Endpoints: endpoints(0, 5, 5)},
		{Priority: 1, Endpoints: endpoints(1, 3, 11)},
		{Priority: 2, Endpoints: endpoints(2, 1, 0)},
	}}
	if p := parts(third); len(p) != 2 {
		t.Errorf("the rest of rounding went to a priority: %v", p)
	}
	for _, c := range []*Cluster{{}, {Localities: []Locality{{Priority: 1}}},
		{Localities: []Locality{{Weight: 1, Endpoints: endpoints(0, 0, 3)}}}} {
		if got := c.Targets(nil); len(got) != 0 {
			t.Errorf("%v: %v", c, got)
		}
	}
}

// envoy finds a chain as Envoy does, step by step; -1: none.
func envoy(l *Listener, q Question) int {
	var all []matched
	for i := range l.Chains {
		for _, r := range l.Chains[i].Match.rules() {
			all = append(all, matched{rule: r, chain: i})
		}
	}
	keep := func(value func(r *Rule) int) { // keeps the most specific matches; a negative value does not match
		best := -1
		for _, m := range all {
			best = max(best, value(&m.rule))
		}
		all = slices.DeleteFunc(all, func(m matched) bool { v := value(&m.rule); return v < 0 || v < best })
	}
	prefix := func(p netip.Prefix, a netip.Addr) int {
		if !inPrefix(p, a) {
			return -1
		}
		return max(0, p.Bits())
	}
	port := func(r PortRange, p uint16) int {
		switch {
		case r.any():
			return 0
		case r.has(p):
			return 1
		}
		return -1
	}
	keep(func(r *Rule) int { return port(r.DestinationPorts, q.To.Port()) })
	keep(func(r *Rule) int { return prefix(r.Destination, q.To.Addr()) })
	keep(func(r *Rule) int { return prefix(r.Source, q.From.Addr()) })
	keep(func(r *Rule) int { return port(r.SourcePorts, q.From.Port()) })
	switch {
	case len(all) > 0:
		return all[0].chain
	case l.Default != nil:
		return len(l.Chains)
	}
	return -1
}

// TestChains compares the order of rules with Envoy's way of finding a chain, on random listeners.
func TestChains(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	prefixes := func(all ...string) (out []netip.Prefix) {
		for range max(0, r.IntN(4)-1) {
			out = append(out, netip.MustParsePrefix(all[r.IntN(len(all))]))
		}
		return out
	}
	pick := func(all ...string) netip.Addr { return netip.MustParseAddr(all[r.IntN(len(all))]) }
	different, refused := 0, 0
	for range 4000 {
		l := &Listener{Name: "l"}
		for i := range 1 + r.IntN(4) {
			c := Chain{Match: Match{
				Destinations: prefixes("10.0.0.0/8", "10.1.0.0/16", "10.1.1.1/32", "0.0.0.0/0", "fd00::/16", "::/0"),
				Sources:      prefixes("10.9.0.0/16", "10.9.1.0/24", "0.0.0.0/0", "fd01::/16", "::/0"),
			}}
			if r.IntN(3) == 0 {
				c.Match.DestinationPort = []uint16{80, 443}[r.IntN(2)]
			}
			if r.IntN(3) == 0 {
				c.Match.SourcePorts = []uint16{1000, 2000}[:1+r.IntN(2)]
			}
			c.Proxy.Clusters = []WeightedCluster{{fmt.Sprint(i), 1}}
			l.Chains = append(l.Chains, c)
		}
		if r.IntN(2) == 0 {
			l.Default = &Chain{}
		}
		rules, err := l.Rules()
		if err != nil {
			refused++
			continue
		}
		for range 60 {
			q := Question{To: netip.AddrPortFrom(pick("10.1.1.1", "10.1.2.3", "10.2.0.1", "192.0.2.1", "fd00::1", "2001:db8::1"),
				[]uint16{80, 443, 90}[r.IntN(3)])}
			if r.IntN(5) > 0 {
				q.From = netip.AddrPortFrom(pick("10.9.0.1", "10.9.1.1", "192.0.2.9", "fd01::1", "2001:db8::9"),
					[]uint16{1000, 2000, 3000}[r.IntN(3)])
			}
			// Chains with the same match are not distinguished here: Envoy does not accept them.
			want, got := envoy(l, q), -1
			for i := range rules {
				if rules[i].Matches(q.From, q.To) {
					got = rules[i].Chain
					break
				}
			}
			if got == len(l.Chains) && l.Default == nil {
				got = -1
			}
			if got != want {
				t.Fatalf("%+v: %v: chain %d, Envoy has %d; rules %v", l.Chains, q, got, want, rules)
			}
			different++
		}
	}
	if refused > 1000 {
		t.Errorf("%d of 4000 listeners have too many rules: the test wants fewer", refused)
	}
	t.Logf("%d questions, %d listeners of too many rules", different, refused)
}

func prefixOf(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func TestRBAC(t *testing.T) {
	at := netip.MustParseAddrPort
	chain := func(filters ...RBAC) *Listener { return &Listener{Chains: []Chain{{Name: "c", RBAC: filters}}} }
	from := func(ports PortRange, prefixes ...netip.Prefix) Principal {
		p := Principal{Sources: prefixes}
		if ports != (PortRange{}) {
			p.SourcePorts = []PortRange{ports}
		}
		return p
	}
	allow := RBAC{Policies: []Principal{from(PortRange{1000, 1999}, prefixOf("10.9.0.0/16")),
		from(PortRange{}, prefixOf("fd00::/8"))}}
	deny := RBAC{Deny: true, Policies: []Principal{from(PortRange{}, prefixOf("10.9.1.0/24"))}}
	to := at("10.0.0.1:80")
	for _, c := range []struct {
		name string
		l    *Listener
		from netip.AddrPort
		want int // chain, or Denied
	}{
		{"no filter", chain(), at("192.0.2.1:1"), 0},
		{"allowed", chain(allow), at("10.9.0.1:1000"), 0},
		{"allowed by the second", chain(allow), at("[fd00::1]:1"), 0},
		{"port not allowed", chain(allow), at("10.9.0.1:2000"), Denied},
		{"address not allowed", chain(allow), at("10.8.0.1:1000"), Denied},
		{"source unknown", chain(allow), netip.AddrPort{}, Denied},
		{"denied", chain(deny), at("10.9.1.1:1000"), Denied},
		{"not denied", chain(deny), at("10.9.2.1:1000"), 0},
		{"denied after allowed", chain(allow, deny), at("10.9.1.1:1000"), Denied},
		{"denied before allowed", chain(deny, allow), at("10.9.1.1:1000"), Denied},
		{"allowed, and not denied", chain(deny, allow), at("10.9.0.1:1000"), 0},
		{"nobody", chain(RBAC{}), at("10.9.0.1:1000"), Denied},
		{"deny nobody", chain(RBAC{Deny: true}), at("10.9.0.1:1000"), 0},
	} {
		rules, err := c.l.Rules()
		if err != nil {
			t.Fatal(err)
		}
		got := len(c.l.Chains)
		for i := range rules {
			if rules[i].Matches(c.from, to) {
				got = rules[i].Chain
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d of %v", c.name, got, c.want, rules)
		}
	}
	if _, err := chain(allow, allow).Rules(); err == nil {
		t.Error("two filters that allow: no error")
	}
	many := RBAC{Deny: true}
	for i := range MaxRules {
		many.Policies = append(many.Policies, from(PortRange{uint16(1 + i), uint16(1 + i)}))
	}
	if _, err := chain(many).Rules(); err == nil {
		t.Error("a rule too many: no error")
	}
	many.Policies = many.Policies[1:]
	if rules, err := chain(many).Rules(); err != nil || len(rules) != MaxRules {
		t.Errorf("as many rules as there can be: %d, %v", len(rules), err)
	}
}

// TestRulesDoNotMultiply: lists whose product is 10^12 rules are refused before they are multiplied; otherwise this
// process would run out of memory.
func TestRulesDoNotMultiply(t *testing.T) {
	var prefixes, others []netip.Prefix
	var ports []uint16
	var ranges []PortRange
	for i := range 1000 {
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32))
		others = append(others, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), 32))
		ports = append(ports, uint16(1+i))
		ranges = append(ranges, PortRange{uint16(1 + i), uint16(1 + i)})
	}
	policy := Principal{Sources: prefixes, Destinations: prefixes, SourcePorts: ranges, DestinationPorts: ranges}
	for _, c := range []struct {
		name  string
		chain Chain
		fits  bool
	}{
		{"a match", Chain{Match: Match{Destinations: prefixes, Sources: prefixes, SourcePorts: ports}}, false},
		{"a policy that allows", Chain{RBAC: []RBAC{{Policies: []Principal{policy, policy}}}}, false},
		{"a policy that denies", Chain{RBAC: []RBAC{{Deny: true, Policies: []Principal{policy, policy}}}}, false},
		// Only the last list has nothing in common with the match.
		{"a policy that is of no connection", Chain{Match: Match{DestinationPort: 2000},
			RBAC: []RBAC{{Policies: []Principal{policy}}}}, true},
		{"a policy that is of few", Chain{Match: Match{Sources: others[:2]},
			RBAC: []RBAC{{Policies: []Principal{{Sources: append(prefixes, others[0])}}}}}, true},
	} {
		l := &Listener{Name: "l", Chains: []Chain{c.chain}}
		if rules, err := l.Rules(); (err == nil) != c.fits || len(rules) > MaxRules {
			t.Errorf("%s: %d rules, %v", c.name, len(rules), err)
		}
	}
}
