package mesh

import (
	"net/netip"
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

// Change is what is new of a configuration, and what is gone. Names are of one kind each: a cluster and a listener may
// have the same.
type Change struct {
	Clusters         []*Cluster  // added or replaced, by name
	Listeners        []*Listener // added or replaced, by name
	RemovedClusters  []string
	RemovedListeners []string
}

// Config is a configuration by name.
type Config struct {
	Clusters  map[string]*Cluster
	Listeners map[string]*Listener
}

// NewConfig is an empty configuration.
func NewConfig() *Config {
	return &Config{Clusters: map[string]*Cluster{}, Listeners: map[string]*Listener{}}
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
