package mesh

import "net/netip"

// Target is an endpoint that gets new connections. Its share of its cluster's new connections is its weight divided by
// the sum of the weights of all targets of the cluster.
type Target struct {
	Address netip.AddrPort
	Weight  uint32
}

// overprovisioning is the factor by which the usable endpoints of a priority may be overloaded before the next
// priority is used (Envoy's default overprovisioning factor, 140 %).
const overprovisioning = 1.4

// share is the sum, up to rounding, of the weights of a cluster's targets if Targets computes them from priorities and
// localities.
const share = 1 << 30

// Targets appends to buf the endpoints of c that get new connections. It resolves priorities and localities: a
// priority gets as much as its usable endpoints can serve, with overprovisioning, and the next priorities get the
// rest. Within a priority, localities get shares by weight, reduced if endpoints are unusable. (These are Envoy's
// priority levels and locality weighted load balancing. Its panic mode, which uses unhealthy endpoints when too few
// are healthy, is left out: an endpoint that is known to be unhealthy gets no connections.) If all localities have
// priority 0 and no weight, endpoints keep their own weights.
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

// level sums up the localities of one priority.
type level struct {
	priority    uint32
	all, usable int     // numbers of endpoints
	weights     float64 // sum of the localities' weights, each times the locality's health
	endpoints   float64 // sum of the weights of usable endpoints; used if localities have no weights
	part        float64 // fraction of all connections; if too few endpoints are usable, the sum over levels is below 1
}

// weighted is Targets for clusters with priorities or weighted localities.

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
		if left -= v.part; left < 1e-9 { // what remains is a rounding error
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

// usable returns how many endpoints of l get new connections, and the sum of their weights.
func (l *Locality) usable() (n int, weight float64) {
	for _, e := range l.Endpoints {
		if e.Usable() {
			n++
			weight += float64(e.Weight)
		}
	}
	return n, weight
}

// health returns the fraction of the load of all endpoints that the usable ones can serve, with overprovisioning. The
// arguments are numbers of endpoints.
func health(usable, all int) float64 {
	if all == 0 {
		return 0
	}
	return min(1, overprovisioning*float64(usable)/float64(all))
}
