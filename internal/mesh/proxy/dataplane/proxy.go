// Package dataplane is the proxy at work: it listens, decides by routes and rules, and connects, as package config
// says.
package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tare/internal/mesh"
	"tare/internal/mesh/proxy/config"
)

// Proxy does what it was told last. Make it with New.
type Proxy struct {
	log func(string)

	mu        sync.Mutex // one change at a time
	listeners map[string]*listener
	closed    bool

	clusters atomic.Pointer[map[string]*cluster]
	routes   atomic.Pointer[map[string]*config.Routes]
	secrets  atomic.Pointer[map[string]*config.Secret]

	connections tracked
	exchanges   sync.Pool
	buffers     buffers
	stats       counters
	draining    atomic.Bool
	janitor     chan struct{} // closed to end it
	ended       sync.WaitGroup
}

// New makes a proxy that does nothing yet. log hears of what goes wrong beside its calls, from any goroutine; it must
// return soon.
func New(log func(string)) *Proxy {
	p := &Proxy{log: log, listeners: map[string]*listener{}, janitor: make(chan struct{})}
	p.clusters.Store(&map[string]*cluster{})
	p.routes.Store(&map[string]*config.Routes{})
	p.secrets.Store(&map[string]*config.Secret{})
	p.exchanges.New = func() any { return newExchange(p) }
	p.ended.Go(p.clean)
	return p
}

// Change is what is new, by kind, and what is gone, by name.
type Change struct {
	Secrets   []*config.Secret
	Clusters  []*config.Cluster
	Endpoints []Endpoints
	Routes    []*config.Routes
	Listeners []*config.Listener

	RemovedSecrets, RemovedClusters, RemovedRoutes, RemovedListeners []string
}

// Endpoints are those of a cluster, as far as they can be connected to.
type Endpoints struct {
	Cluster string
	Targets []mesh.Target
}

// Failure is a listener that cannot be.
type Failure struct {
	Listener string
	Err      error
}

// Apply makes a change. All but listeners always succeed; a listener that cannot listen is as it was before.
// Connections and requests under way are finished as they began, and the next use what is new; no connection ends for a
// change of secrets, clusters or routes, or for one of a listener's rules.
func (p *Proxy) Apply(c Change) (failed []Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if len(c.Secrets)+len(c.RemovedSecrets) > 0 {
		replace(&p.secrets, c.Secrets, func(s *config.Secret) string { return s.Name }, c.RemovedSecrets)
	}
	p.applyClusters(c)
	if len(c.Routes)+len(c.RemovedRoutes) > 0 {
		replace(&p.routes, c.Routes, func(r *config.Routes) string { return r.Name }, c.RemovedRoutes)
	}
	for _, name := range c.RemovedListeners { // first, so that others may have their addresses
		if l := p.listeners[name]; l != nil {
			l.stop()
			delete(p.listeners, name)
		}
	}
	var again []*config.Listener // that another may yet make room for
	for _, want := range c.Listeners {
		if p.listen(want) != nil {
			again = append(again, want)
		}
	}
	for _, want := range again {
		if err := p.listen(want); err != nil {
			failed = append(failed, Failure{want.Name, err})
		}
	}
	return failed
}

// replace puts a copy of a map with changes in the place of it.
func replace[T any](at *atomic.Pointer[map[string]*T], list []*T, name func(*T) string, removed []string) {
	next := maps.Clone(*at.Load())
	for _, x := range list {
		next[name(x)] = x
	}
	for _, n := range removed {
		delete(next, n)
	}
	at.Store(&next)
}

func (p *Proxy) applyClusters(c Change) {
	if len(c.Clusters)+len(c.Endpoints)+len(c.RemovedClusters) == 0 {
		return
	}
	next := maps.Clone(*p.clusters.Load())
	var gone []*cluster
	for _, name := range c.RemovedClusters {
		if old := next[name]; old != nil {
			gone = append(gone, old)
			delete(next, name)
		}
	}
	for _, want := range c.Clusters {
		old := next[want.Name]
		made := p.newCluster(want)
		if old != nil {
			made.balance.Store(old.balance.Load())
			if old.speaksAs(made) { // connections that are kept serve the new form as well
				made.upstream = old.upstream
				made.upstream.tune(want)
			} else {
				gone = append(gone, old)
			}
		}
		next[want.Name] = made
	}
	for _, e := range c.Endpoints {
		if made := next[e.Cluster]; made != nil {
			made.assign(e.Targets)
		}
	}
	p.clusters.Store(&next)
	for _, old := range gone {
		old.upstream.close()
	}
}

func (p *Proxy) listen(want *config.Listener) error {
	if l := p.listeners[want.Name]; l != nil && l.at == want.Address {
		return l.change(want)
	}
	l, err := p.newListener(want)
	if err != nil {
		return err
	}
	if old := p.listeners[want.Name]; old != nil {
		old.stop()
	}
	p.listeners[want.Name] = l
	return nil
}

// Listening is where a listener listens.
type Listening struct {
	Name    string         `json:"name"`
	Address netip.AddrPort `json:"address"`
}

// Listening are all listeners, by name.
func (p *Proxy) Listening() []Listening {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []Listening{}
	for _, name := range slices.Sorted(maps.Keys(p.listeners)) {
		out = append(out, Listening{name, p.listeners[name].socketAddress()})
	}
	return out
}

// Close stops listening, lets requests and connections under way end until ctx does, and then ends them.
func (p *Proxy) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	listeners := slices.Collect(maps.Values(p.listeners))
	clear(p.listeners)
	p.mu.Unlock()
	p.draining.Store(true)
	for _, l := range listeners {
		l.socket.Close()
	}
	var all sync.WaitGroup
	for _, l := range listeners {
		all.Go(func() { l.drain(ctx) })
	}
	all.Wait()
	p.connections.wait(ctx)
	p.connections.end()
	close(p.janitor)
	p.ended.Wait()
	for _, c := range *p.clusters.Load() {
		c.upstream.close()
	}
	if n := p.connections.left(); n > 0 {
		return fmt.Errorf("closing the proxy: %d connections have not ended", n)
	}
	return nil
}

// cleanEvery is how often connections that nobody uses are looked at.
const cleanEvery = 5 * time.Second

// clean ends connections on which nothing has moved for too long.
func (p *Proxy) clean() {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.janitor:
			return
		case now := <-tick.C:
			for _, c := range *p.clusters.Load() {
				c.upstream.trim(now)
			}
			p.connections.trim(now)
		}
	}
}
