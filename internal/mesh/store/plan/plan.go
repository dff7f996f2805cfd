// Package plan does the bookkeeping that all stores share: which clusters and listeners exist, by name and address, and
// how many. It checks a change before any of it is made, and determines what has to be done. Start at Config.Plan.
package plan

import (
	"slices"
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// Config is the bookkeeping of a store. C and L are the types of the store's own data about a cluster and a listener.
type Config[C, L any] struct {
	Clusters  map[string]*Cluster[C]
	Listeners map[string]*Listener[L]
	Addresses map[Address]*Listener[L] // by address: the listener that holds it

	options   store.Options
	there     int // number of clusters that exist
	endpoints int // of all clusters
}

// Cluster is a cluster that exists, or that the store only knows because listeners name it.
type Cluster[C any] struct {
	Name      string
	There     bool // the cluster exists
	Endpoints int  // those that count toward the limit
	Own       C
}

// Listener is a listener that exists.
type Listener[L any] struct {
	Name    string
	Address Address
	Own     L

	leaves bool // the change that is being checked removes it from its address
}

// Address is an address at which a listener accepts connections.
type Address struct {
	IP       [16]byte // IPv4 as IPv4-mapped IPv6
	Port     uint16
	Protocol uint16
}

// AddressOf returns the address of a listener.
func AddressOf(l *mesh.Listener) Address {
	return Address{l.Address.Addr().As16(), l.Address.Port(), uint16(l.Protocol)}
}

// New returns an empty configuration.
func New[C, L any](o store.Options) Config[C, L] {
	return Config[C, L]{Clusters: map[string]*Cluster[C]{}, Listeners: map[string]*Listener[L]{},
		Addresses: map[Address]*Listener[L]{}, options: o.WithDefaults()}
}

// AllEndpoints returns the number of endpoints of a cluster.
func AllEndpoints(c *mesh.Cluster) (n int) {
	for i := range c.Localities {
		n += len(c.Localities[i].Endpoints)
	}
	return n
}

// UsableEndpoints returns the number of a cluster's endpoints that can get connections.
func UsableEndpoints(c *mesh.Cluster) (n int) {
	for i := range c.Localities {
		for j := range c.Localities[i].Endpoints {
			if c.Localities[i].Endpoints[j].Usable() {
				n++
			}
		}
	}
	return n
}

// Plan lists the resources that a change adds, replaces and removes. No name is in it twice.
type Plan[C, L any] struct {
	Clusters      []ClusterPlan[C]
	Listeners     []ListenerPlan[L]
	GoneClusters  []*Cluster[C]
	GoneListeners []*Listener[L]

	taken map[Address]string // names of Listeners by address; nil if there is at most one listener
}

// Takes reports whether a listener of the plan has the address.
func (p *Plan[C, L]) Takes(at Address) bool {
	if p.taken == nil {
		return len(p.Listeners) > 0 && p.Listeners[0].At == at
	}
	_, ok := p.taken[at]
	return ok
}

// Last returns the name of the last resource that is added or replaced, or "" if there is none.
func (p *Plan[C, L]) Last() string {
	if n := len(p.Listeners); n > 0 {
		return p.Listeners[n-1].Name
	}
	if n := len(p.Clusters); n > 0 {
		return p.Clusters[n-1].Name
	}
	return ""
}

// ClusterPlan is a cluster to add or replace.
type ClusterPlan[C any] struct {
	*mesh.Cluster
	Old       *Cluster[C] // before the change, or nil if the name is new
	Endpoints int
}

// ListenerPlan is a listener to add or replace.
type ListenerPlan[L any] struct {
	*mesh.Listener
	Entry *Listener[L] // the listener that it replaces, or an empty one, which Config.Put adds
	New   bool
	At    Address
	Rules []mesh.Rule
}

// Moves reports whether the listener exists at a different address.
func (p *ListenerPlan[L]) Moves() bool { return !p.New && p.Entry.Address != p.At }

// Plan checks a change and writes its plan to p. The function endpoints returns how many of a cluster's endpoints count
// toward the limit. The errors are those of store.Store.Apply. The caller must reset p when the change has been made or
// refused.
func (c *Config[C, L]) Plan(p *Plan[C, L], change mesh.Change, endpoints func(*mesh.Cluster) int) error {
	p.Reset()
	change = distinct(change)
	if err := c.planClusters(p, change, endpoints); err != nil {
		return err
	}
	if err := c.planListeners(p, change); err != nil {
		return err
	}
	return c.addresses(p)
}

// Reset clears the plan, and releases its memory if the plan was large.
func (p *Plan[C, L]) Reset() {
	if cap(p.Clusters)+cap(p.Listeners)+cap(p.GoneClusters)+cap(p.GoneListeners) > 256 {
		*p = Plan[C, L]{}
		return
	}
	clear(p.Clusters)
	clear(p.Listeners)
	clear(p.GoneClusters)
	clear(p.GoneListeners)
	*p = Plan[C, L]{p.Clusters[:0], p.Listeners[:0], p.GoneClusters[:0], p.GoneListeners[:0], nil}
}

func (c *Config[C, L]) planClusters(p *Plan[C, L], change mesh.Change, endpoints func(*mesh.Cluster) int) error {
	there, sum, most := c.there, c.endpoints, int(c.options.MaxEndpoints)
	for _, name := range change.RemovedClusters {
		if old := c.Clusters[name]; old != nil && old.There {
			p.GoneClusters = append(p.GoneClusters, old)
			there--
			sum -= old.Endpoints
		}
	}
	over := ""
	for _, x := range change.Clusters {
		next := ClusterPlan[C]{Cluster: x, Old: c.Clusters[x.Name], Endpoints: endpoints(x)}
		if next.Old == nil || !next.Old.There {
			there++
		} else {
			sum -= next.Old.Endpoints
		}
		if sum += next.Endpoints; over == "" && sum > most {
			over = x.Name
		}
		if there > int(c.options.MaxClusters) {
			return store.TooLarge(x.Name, "there would be %d clusters; the store holds %d", there, c.options.MaxClusters)
		}
		p.Clusters = append(p.Clusters, next)
	}
	if over != "" && sum > most {
		return store.TooLarge(over, "there would be %d endpoints; the store holds %d", sum, most)
	}
	return nil
}

func (c *Config[C, L]) planListeners(p *Plan[C, L], change mesh.Change) error {
	there := len(c.Listeners)
	for _, name := range change.RemovedListeners {
		if old := c.Listeners[name]; old != nil {
			p.GoneListeners = append(p.GoneListeners, old)
			there--
		}
	}
	for _, x := range change.Listeners {
		if !x.Address.IsValid() {
			return fault.New(fault.Usage, x.Name, "give it an IP address", "the listener has no address")
		}
		rules, err := x.Rules()
		if err != nil {
			return fault.Wrap(err, fault.Usage, x.Name, "give it fewer filter chains, or policies that do not multiply",
				"its rules")
		}
		next := ListenerPlan[L]{Listener: x, Entry: c.Listeners[x.Name], At: AddressOf(x), Rules: rules}
		if next.New = next.Entry == nil; next.New {
			next.Entry = &Listener[L]{Name: strings.Clone(x.Name)}
			there++
		}
		if there > int(c.options.MaxListeners) {
			return store.TooLarge(x.Name, "there would be %d listeners; the store holds %d", there, c.options.MaxListeners)
		}
		p.Listeners = append(p.Listeners, next)
	}
	return nil
}

// addresses checks that no two listeners have the same address after the change.
func (c *Config[C, L]) addresses(p *Plan[C, L]) error {
	p.leave(true)
	defer p.leave(false)
	if len(p.Listeners) > 1 {
		p.taken = make(map[Address]string, len(p.Listeners))
	}
	for i := range p.Listeners {
		next := &p.Listeners[i]
		other, clash := p.taken[next.At]
		if owner := c.Addresses[next.At]; owner != nil && owner != next.Entry && !owner.leaves {
			other, clash = owner.Name, true
		}
		if clash {
			return fault.New(fault.Usage, next.Name, "give one of them another address", "listener %s has %s %s already", other,
				next.Protocol, next.Listener.Address)
		}
		if p.taken != nil {
			p.taken[next.At] = next.Name
		}
	}
	return nil
}

// leave sets the field leaves of the listeners that the plan removes from their addresses.
func (p *Plan[C, L]) leave(leaves bool) {
	for _, l := range p.GoneListeners {
		l.leaves = leaves
	}
	for i := range p.Listeners {
		if next := &p.Listeners[i]; next.Moves() {
			next.Entry.leaves = leaves
		}
	}
}

// distinct returns a change in which each name occurs once: a removed name is only removed, and of several resources
// with one name the last counts.
func distinct(change mesh.Change) mesh.Change {
	if len(change.Clusters)+len(change.Listeners)+len(change.RemovedClusters)+len(change.RemovedListeners) < 2 {
		return change
	}
	change.RemovedClusters, change.Clusters = once(change.RemovedClusters, change.Clusters,
		func(c *mesh.Cluster) string { return c.Name })
	change.RemovedListeners, change.Listeners = once(change.RemovedListeners, change.Listeners,
		func(l *mesh.Listener) string { return l.Name })
	return change
}

func once[T any](removed []string, given []T, name func(T) string) (gone []string, last []T) {
	seen := make(map[string]bool, len(removed)+len(given))
	first := func(name string) bool {
		was := seen[name]
		seen[name] = true
		return !was
	}
	for _, name := range removed {
		if first(name) {
			gone = append(gone, name)
		}
	}
	for _, x := range slices.Backward(given) {
		if first(name(x)) {
			last = append(last, x)
		}
	}
	slices.Reverse(last)
	return gone, last
}

// Name returns the cluster with the given name. It adds an unknown name, as a cluster that does not exist.
func (c *Config[C, L]) Name(name string) *Cluster[C] {
	x := c.Clusters[name]
	if x == nil {
		x = &Cluster[C]{Name: strings.Clone(name)}
		c.Clusters[x.Name] = x
	}
	return x
}

// Set records whether a cluster exists, and how many of its endpoints count toward the limit.
func (c *Config[C, L]) Set(x *Cluster[C], there bool, endpoints int) {
	if there && !x.There {
		c.there++
	} else if !there && x.There {
		c.there--
	}
	c.endpoints += endpoints - x.Endpoints
	x.There, x.Endpoints = there, endpoints
}

// Put adds a listener at an address.
func (c *Config[C, L]) Put(l *Listener[L], at Address) {
	l.Address = at
	c.Listeners[l.Name], c.Addresses[at] = l, l
}

// Leave removes a listener from its address, and reports whether the listener held the address.
func (c *Config[C, L]) Leave(l *Listener[L]) bool {
	if c.Addresses[l.Address] != l {
		return false
	}
	delete(c.Addresses, l.Address)
	return true
}
