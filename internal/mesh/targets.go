package mesh

import "net/netip"

// Target is an endpoint that takes new connections, and its share of them relative to the sum over all targets of its
// cluster.
type Target struct {
	Address netip.AddrPort
	Weight  uint32
}

// overprovisioning is by how much the healthy part of a priority may stand in for the rest of it before the next
// priority takes some (Envoy's default overprovisioning factor, 140 %).
const overprovisioning = 1.4

// share is the unit of weights that had to be computed: their sum is about this.
const share = 1 << 30

// Targets appends the endpoints of c that take new connections to buf. Priorities and localities are resolved: a
// priority takes as much as its healthy part can, with overprovisioning, and the next priorities the rest; within a
// priority localities have their weight's share, less as endpoints of theirs are not healthy (Envoy's priority levels
// and locality weighted load balancing; its panic mode, which asks endpoints that are not healthy when too few are, is
// not there: nothing is sent to what is known not to serve). Where there is one priority and no locality has a weight,
// endpoints have the weights that they were given.
func (c *Cluster) Targets(buf []Target) []Target {
	plain := true
	for i := range c.Localities {
		l := &c.Localities[i]
		plain = plain && l.Priority == 0 && l.Weight == 0
	}
	if plain {
		for i := range c.Localities {
			for _, e := range c.Localities[i].Endpoints {
				if e.Usable() {
					buf = append(buf, Target{e.Address, e.Weight})
				}
			}
		}
		return buf
	}
	return c.weighted(buf)
}

// level is what the localities of one priority come to.
type level struct {
	priority    uint32
	all, usable int
	weights     float64 // of localities, each times what its health leaves of it
	endpoints   float64 // weights of all usable endpoints, for levels without locality weights
	part        float64 // of all connections
}

func (c *Cluster) weighted(buf []Target) []Target {
	var levels []level
	at := func(priority uint32) *level {
		for i := range levels {
			if levels[i].priority == priority {
				return &levels[i]
			}
		}
		i := len(levels)
		levels = append(levels, level{priority: priority})
		for ; i > 0 && levels[i-1].priority > priority; i-- {
			levels[i], levels[i-1] = levels[i-1], levels[i]
		}
		return &levels[i]
	}
	for i := range c.Localities {
		l := &c.Localities[i]
		usable, weight := l.usable()
		v := at(l.Priority)
		v.all += len(l.Endpoints)
		v.usable += usable
		v.weights += float64(l.Weight) * health(usable, len(l.Endpoints))
		v.endpoints += weight
	}
	left, total := 1.0, 0.0
	for i := range levels {
		v := &levels[i]
		v.part = min(left, health(v.usable, v.all))
		if left -= v.part; left < 1e-9 { // rounding is no part
			left = 0
		}
		total += v.part
	}
	if total == 0 {
		return buf
	}
	for i := range c.Localities {
		l := &c.Localities[i]
		usable, weight := l.usable()
		v := at(l.Priority)
		if usable == 0 || v.part == 0 {
			continue
		}
		part := weight / v.endpoints
		if v.weights > 0 {
			part = float64(l.Weight) * health(usable, len(l.Endpoints)) / v.weights
		}
		if part *= v.part / total * share; part == 0 {
			continue
		}
		for _, e := range l.Endpoints {
			if e.Usable() {
				buf = append(buf, Target{e.Address, max(1, uint32(part*float64(e.Weight)/weight+0.5))})
			}
		}
	}
	return buf
}

// usable is how many endpoints of l take new connections, and the sum of their weights.
func (l *Locality) usable() (n int, weight float64) {
	for _, e := range l.Endpoints {
		if e.Usable() {
			n++
			weight += float64(e.Weight)
		}
	}
	return n, weight
}

// health is the part of their load that usable of all endpoints can take.
func health(usable, all int) float64 {
	if all == 0 {
		return 0
	}
	return min(1, overprovisioning*float64(usable)/float64(all))
}
