package value

import (
	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// check plans a change, or says what is wrong with it. Nothing of the store changes but the plan.
func (s *values) check(change *mesh.Change) error {
	p := &s.plan
	p.clusters, p.listeners, p.room, p.late = p.clusters[:0], p.listeners[:0], [nClasses]int{}, [nClasses]int{}
	p.keys, p.gone, p.names = emptied(p.keys), emptied(p.gone), emptied(p.names)
	if err := s.checkClusters(change); err != nil {
		return err
	}
	return s.checkListeners(change)
}

// emptied is a map to use again: emptying one takes as long as it was ever large.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if m == nil || len(m) > 64 {
		return map[K]V{}
	}
	clear(m)
	return m
}

func (s *values) checkClusters(change *mesh.Change) error {
	p := &s.plan
	existing, endpoints := s.existing, s.endpoints
	for _, c := range change.Clusters {
		s.targets = c.Targets(s.targets[:0])
		n := len(s.targets)
		next := clusterPlan{c, n, -1}
		for class := range large + 1 {
			if n > 0 && n <= s.classes[class].holds {
				next.class = class
				break
			}
		}
		if n > MaxEndpoints {
			return store.TooLarge(c.Name, "%d endpoints take connections; a cluster can have %d", n, MaxEndpoints)
		}
		for _, t := range s.targets {
			if !t.Address.Addr().IsValid() {
				return fault.New(fault.Usage, c.Name, "give every endpoint an IP address", "an endpoint has no address")
			}
		}
		old := s.clusters[c.Name]
		switch {
		case old == nil:
			p.names[c.Name] = true
			existing++
		case !old.there:
			existing++
		}
		if old != nil && old.place != nil {
			p.room[old.place.class]--
			endpoints -= old.n
		}
		endpoints += n
		if next.class >= 0 {
			p.room[next.class]++
		}
		p.clusters = append(p.clusters, next)
	}
	for _, name := range change.RemovedClusters {
		old := s.clusters[name]
		if old == nil || !old.there {
			continue
		}
		existing--
		if old.place != nil {
			endpoints -= old.n
			p.room[old.place.class]--
			p.late[old.place.class]++
		}
	}
	if n := int(s.options.MaxClusters); len(p.clusters) > 0 && existing > n {
		return fault.New(fault.Usage, p.clusters[len(p.clusters)-1].Name, "raise the number of clusters that the store holds",
			"it would be cluster %d; the store holds %d", existing, n)
	}
	if n := int(s.options.MaxEndpoints); len(p.clusters) > 0 && endpoints > n {
		return fault.New(fault.Usage, p.clusters[len(p.clusters)-1].Name,
			"raise the number of endpoints that the store holds", "with it there would be %d endpoints; the store holds %d",
			endpoints, n)
	}
	for i := range p.clusters {
		if class := p.clusters[i].class; class >= 0 && s.classes[class].used+p.room[class] > s.classes[class].capacity {
			return store.TooLarge(p.clusters[i].Name, "%d endpoints: the store holds %d clusters of this size, and has as many",
				p.clusters[i].n, s.classes[class].capacity)
		}
	}
	return nil
}

func (s *values) checkListeners(change *mesh.Change) error {
	p := &s.plan
	for _, l := range change.Listeners {
		p.gone[l.Name] = true
	}
	for _, name := range change.RemovedListeners {
		p.gone[name] = true
	}
	for _, l := range change.Listeners {
		if !l.Address.Addr().IsValid() {
			return fault.New(fault.Usage, l.Name, "give it an IP address", "the listener has no address")
		}
		key := keyOf(l)
		if other, ok := p.keys[key]; ok {
			return sameAddress(l, other)
		}
		p.keys[key] = l.Name
		rules, err := l.Rules()
		if err != nil {
			return fault.Wrap(err, fault.Usage, l.Name, "give it fewer filter chains, or policies that do not multiply",
				"its rules")
		}
		next := listenerPlan{l, key, rules, short}
		n := choices(l, rules)
		if n > MaxChoices {
			return store.TooLarge(l.Name, "%d weighted clusters; a listener can have %d", n, MaxChoices)
		}
		if len(rules) > len(s.short_.Rules) || n > len(s.short_.Choices) {
			next.class = long
		}
		if old := s.keys[key]; old != nil {
			if !p.gone[old.owner] {
				return sameAddress(l, old.owner)
			}
			p.room[old.class]--
		}
		p.room[next.class]++
		p.listeners = append(p.listeners, next)
	}
	if len(p.listeners) == 0 {
		return nil
	}
	after := len(s.listeners) + len(p.listeners)
	for name := range p.gone {
		old := s.listeners[name]
		if old == nil {
			continue
		}
		after--
		if _, stays := p.keys[old.key]; !stays {
			class := s.keys[old.key].class
			p.room[class]--
			p.late[class]++
		}
	}
	last := p.listeners[len(p.listeners)-1].Name
	if n := int(s.options.MaxListeners); after > n {
		return fault.New(fault.Usage, last, "raise the number of listeners that the store holds",
			"it would be listener %d; the store holds %d", after, n)
	}
	for i := range p.listeners {
		if c := &s.classes[p.listeners[i].class]; c.used+p.room[p.listeners[i].class] > c.capacity {
			return store.TooLarge(p.listeners[i].Name,
				"%d rules, %d weighted clusters: the store holds %d listeners of this size, and has as many",
				len(p.listeners[i].rules), choices(p.listeners[i].Listener, p.listeners[i].rules), c.capacity)
		}
		for _, r := range p.listeners[i].rules {
			if r.Chain < 0 {
				continue
			}
			for _, w := range clusters(p.listeners[i].Listener, r.Chain) {
				if s.clusters[w.Name] == nil {
					p.names[w.Name] = true
				}
			}
		}
	}
	if len(p.names) > s.ids.left() {
		return fault.New(fault.Usage, last, "raise the number of clusters that the store holds",
			"there are more names of clusters than the store can number")
	}
	return nil
}

func sameAddress(l *mesh.Listener, other string) error {
	return fault.New(fault.Usage, l.Name, "give one of them another address", "listener %s has %s %s already", other,
		l.Protocol, l.Address)
}

// choices is how many weighted clusters the chains of rules have.
func choices(l *mesh.Listener, rules []mesh.Rule) (n int) {
	for i, r := range rules {
		seen := r.Chain < 0
		for j := range i {
			seen = seen || rules[j].Chain == r.Chain
		}
		if seen {
			continue
		}
		for _, w := range clusters(l, r.Chain) {
			if w.Weight > 0 {
				n++
			}
		}
	}
	return n
}

// clusters are those of a chain.
func clusters(l *mesh.Listener, chain int) []mesh.WeightedCluster {
	if c := l.Chain(chain); c != nil {
		return c.Proxy.Clusters
	}
	return nil
}
