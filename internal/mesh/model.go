package mesh

import (
	"maps"
	"net/netip"
	"slices"
)

// Question is what a program in the kernel asks: a connection from one address to another.
type Question struct {
	From, To netip.AddrPort // From is the zero value where the source is not known yet
	Protocol Protocol
}

// Verdict is what becomes of a connection.
type Verdict uint8

// The verdicts, by their numbers in bpf/store.h.
const (
	Pass   Verdict = iota // no listener has the address: the connection goes on untouched
	Accept                // it goes to an endpoint
	Refuse                // nothing can serve it: no rule matches, or no endpoint takes connections
	Deny                  // RBAC does not let it pass
)

func (v Verdict) String() string { return [...]string{"pass", "accept", "refuse", "deny"}[v&3] }

// Answer is a verdict, and for Accept where connections may go and how often: parts sum to 1.
type Answer struct {
	Verdict Verdict
	Parts   map[Destination]float64
}

// Destination is an endpoint as one cluster's.
type Destination struct {
	Cluster  string
	Endpoint netip.AddrPort
}

// Change is what is new of a configuration, and what is gone. Names are of one kind each: a cluster and a listener may
// have the same.
type Change struct {
	Clusters         []*Cluster  // added or replaced, by name
	Listeners        []*Listener // added or replaced, by name
	RemovedClusters  []string
	RemovedListeners []string
}

// Config is a configuration by name: the model that stores are held against.
type Config struct {
	Clusters  map[string]*Cluster
	Listeners map[string]*Listener
}

// NewConfig is an empty configuration.
func NewConfig() *Config {
	return &Config{Clusters: map[string]*Cluster{}, Listeners: map[string]*Listener{}}
}

// Clone is a copy that changes by itself; clusters and listeners are shared, since they are replaced and never changed.
func (c *Config) Clone() *Config {
	return &Config{maps.Clone(c.Clusters), maps.Clone(c.Listeners)}
}

// Apply makes a change.
func (c *Config) Apply(change Change) {
	for _, x := range change.Clusters {
		c.Clusters[x.Name] = x
	}
	for _, x := range change.Listeners {
		c.Listeners[x.Name] = x
	}
	for _, name := range change.RemovedClusters {
		delete(c.Clusters, name)
	}
	for _, name := range change.RemovedListeners {
		delete(c.Listeners, name)
	}
}

// All is the change that makes an empty configuration into c, in order of name.
func (c *Config) All() (change Change) {
	for _, name := range slices.Sorted(maps.Keys(c.Clusters)) {
		change.Clusters = append(change.Clusters, c.Clusters[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Listeners)) {
		change.Listeners = append(change.Listeners, c.Listeners[name])
	}
	return change
}

// Find answers a question. A listener with the very address goes before one for any address; two listeners of one
// protocol must not have the same address. A weighted cluster that does not exist, or has no endpoint that takes
// connections, keeps its share, which is refused: Parts then sum to less than 1.
func (c *Config) Find(q Question) Answer {
	l := c.listener(q)
	if l == nil {
		return Answer{Verdict: Pass}
	}
	rules, err := l.Rules()
	if err != nil {
		return Answer{Verdict: Refuse}
	}
	for i := range rules {
		if !rules[i].Matches(q.From, q.To) {
			continue
		}
		if rules[i].Chain < 0 {
			return Answer{Verdict: Deny}
		}
		return c.answer(&l.Chain(rules[i].Chain).Proxy)
	}
	return Answer{Verdict: Refuse}
}

// Chain is a chain by its number in rules. Where there is no default chain it is one without clusters, which refuses.
func (l *Listener) Chain(i int) *Chain {
	switch {
	case i < len(l.Chains):
		return &l.Chains[i]
	case l.Default != nil:
		return l.Default
	}
	return &refuses
}

var refuses Chain

func (c *Config) listener(q Question) (found *Listener) {
	to := q.To.Addr().Unmap()
	for _, l := range c.Listeners {
		if l.Protocol != q.Protocol || l.Address.Port() != q.To.Port() {
			continue
		}
		switch a := l.Address.Addr().Unmap(); {
		case a == to:
			return l
		case a.IsUnspecified() && a.Is4() == to.Is4():
			found = l
		}
	}
	return found
}

func (c *Config) answer(p *Proxy) Answer {
	a := Answer{Verdict: Refuse, Parts: map[Destination]float64{}}
	total := 0.0
	for _, w := range p.Clusters {
		total += float64(w.Weight)
	}
	for _, w := range p.Clusters {
		cluster := c.Clusters[w.Name]
		if cluster == nil || w.Weight == 0 {
			continue
		}
		targets := cluster.Targets(nil)
		sum := 0.0
		for _, t := range targets {
			sum += float64(t.Weight)
		}
		for _, t := range targets {
			a.Verdict = Accept
			a.Parts[Destination{w.Name, t.Address}] += float64(w.Weight) / total * float64(t.Weight) / sum
		}
	}
	return a
}
