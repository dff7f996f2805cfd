package mesh

import (
	"net/netip"
)

// Question is a connection that a program in the kernel looks up in a store, to learn where it goes.
type Question struct {
	From, To netip.AddrPort // source and original destination; From is the zero value if the source is unknown
	Protocol Protocol
}

// Verdict is a store's answer: what the data plane does with a connection.
type Verdict uint8

// The verdicts, by their numbers in bpf/store.h.
const (
	Pass   Verdict = iota // no listener has the address: the connection is left unchanged
	Accept                // it goes to an endpoint
	Refuse                // nothing can serve it: no rule matches, or no endpoint accepts connections
	Deny                  // RBAC denies it
)

func (v Verdict) String() string { return [...]string{"pass", "accept", "refuse", "deny"}[v&3] }

// Change lists what is added, replaced and removed in a configuration. A cluster and a listener may have the same
// name.
type Change struct {
	Clusters         []*Cluster  // added or replaced, by name
	Listeners        []*Listener // added or replaced, by name
	RemovedClusters  []string
	RemovedListeners []string
}

// Config is a configuration: clusters and listeners by name.
type Config struct {
	Clusters  map[string]*Cluster
	Listeners map[string]*Listener
}

// NewConfig returns an empty configuration.
func NewConfig() *Config {
	return &Config{Clusters: map[string]*Cluster{}, Listeners: map[string]*Listener{}}
}

// Apply applies a change to c. A resource that the change both replaces and removes is removed.
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

// Chain returns the i-th chain of l, or its default chain if i is len(l.Chains), as in Rule.Chain. i must not be
// Denied. If l has no default chain, Chain returns a chain without clusters in its place, which refuses connections.
func (l *Listener) Chain(i int) *Chain {
	switch {
	case i < len(l.Chains):
		return &l.Chains[i]
	case l.Default != nil:
		return l.Default
	}
	return &refuses
}

// refuses stands for a missing default chain. It must not be changed.
var refuses Chain
