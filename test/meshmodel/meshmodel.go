// Package meshmodel is a model of what a data plane with a given configuration does with connections. Tests compare
// stores, control planes and translations with this model.
package meshmodel

import (
	"maps"
	"net/netip"
	"slices"

	"tare/internal/mesh"
)

// Answer is a verdict and, if that is Accept, the endpoints to which connections may go, each with its part of the
// connections. The parts sum to 1 minus the part that is refused (see Find).
type Answer struct {
	Verdict mesh.Verdict
	Parts   map[Destination]float64
}

// Destination is an endpoint of a cluster.
type Destination struct {
	Cluster  string
	Endpoint netip.AddrPort
}

// Clone returns a copy that can be changed without changing c. Clusters and listeners are shared, since they are
// replaced and never changed.
func Clone(c *mesh.Config) *mesh.Config {
	return &mesh.Config{Clusters: maps.Clone(c.Clusters), Listeners: maps.Clone(c.Listeners)}
}

// All returns the change that turns an empty configuration into c, in order of name.
func All(c *mesh.Config) (change mesh.Change) {
	for _, name := range slices.Sorted(maps.Keys(c.Clusters)) {
		change.Clusters = append(change.Clusters, c.Clusters[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Listeners)) {
		change.Listeners = append(change.Listeners, c.Listeners[name])
	}
	return change
}

// Find returns what happens to a connection. A listener at exactly its address precedes one for any address; two
// listeners of one protocol must not have the same address. A weighted cluster that does not exist, or has no endpoint
// that takes connections, keeps its share, which is refused: Parts then sum to less than 1.
func Find(c *mesh.Config, q mesh.Question) Answer {
	l := listener(c, q)
	if l == nil {
		return Answer{Verdict: mesh.Pass}
	}
	rules, err := l.Rules()
	if err != nil {
		return Answer{Verdict: mesh.Refuse}
	}
	for i := range rules {
		if !rules[i].Matches(q.From, q.To) {
			continue
		}
		if rules[i].Chain < 0 {
			return Answer{Verdict: mesh.Deny}
		}
		return answer(c, &l.Chain(rules[i].Chain).Proxy)
	}
	return Answer{Verdict: mesh.Refuse}
}

func listener(c *mesh.Config, q mesh.Question) (found *mesh.Listener) {
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

func answer(c *mesh.Config, p *mesh.Proxy) Answer {
	a := Answer{Verdict: mesh.Refuse, Parts: map[Destination]float64{}}
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
			a.Verdict = mesh.Accept
			a.Parts[Destination{w.Name, t.Address}] += float64(w.Weight) / total * float64(t.Weight) / sum
		}
	}
	return a
}
