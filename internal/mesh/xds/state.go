package xds

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
)

// state holds the resources that the control plane wants and those that the store has. It only computes: its callers
// handle time, the network and the store.
//
// Wanted resources become active in steps: a cluster when its endpoints are known, a listener when all of its clusters
// are active and its address is free. A cluster that is not wanted any more is removed when no active listener names
// it. Connections are therefore served correctly in whatever order the types of resources arrive; the protocol leaves
// that order to the control plane.
type state struct {
	intake

	clusters  map[string]*translate.Cluster
	assigned  map[string]translate.Assignment // by service: its endpoints
	services  map[string]map[string]bool      // by service: the clusters that use its endpoints
	hosts     map[string]map[string]bool      // by host name: the clusters that have it
	addresses map[string][]netip.Addr         // by host name, once it was looked up; empty: the look-up failed
	late      map[string]bool                 // clusters that have waited long enough for endpoints
	serving   servings
	listeners map[string]*mesh.Listener
	places    map[place]map[string]bool // by address: the wanted listeners there

	active mesh.Config
	users  map[string]int   // by cluster: the number of active listeners that name it
	used   map[place]string // by address: the active listener there

	dirtyClusters, dirtyListeners map[string]bool // names whose active form may differ from the wanted one

	// Names that got their first cluster or lost their last since the maps were cleared.
	serviceChanges, hostChanges map[string]bool
}

type place struct {
	address  netip.AddrPort
	protocol mesh.Protocol
}

func newState(l Limits) *state {
	s := &state{
		clusters: map[string]*translate.Cluster{}, assigned: map[string]translate.Assignment{},
		services: map[string]map[string]bool{},
		hosts:    map[string]map[string]bool{}, addresses: map[string][]netip.Addr{}, late: map[string]bool{},
		serving: newServings(), listeners: map[string]*mesh.Listener{},
		places: map[place]map[string]bool{}, active: *mesh.NewConfig(), users: map[string]int{}, used: map[place]string{},
		dirtyClusters: map[string]bool{}, dirtyListeners: map[string]bool{}, serviceChanges: map[string]bool{},
		hostChanges: map[string]bool{},
	}
	s.intake = newIntake(l, s)
	return s
}

func (*state) kinds() []Kind { return []Kind{Clusters, Endpoints, Listeners, Routes} }

// lists reports whether the control plane sends all resources of a kind, so that a missing one has been removed.
func (*state) lists(k Kind) bool { return k == Clusters || k == Listeners }

// wants reports whether the client subscribes to a resource.
func (s *state) wants(k Kind, name string) bool { return s.lists(k) || s.namers(k)[name] != nil }

// names returns, sorted, the names of a kind that the client subscribes to because other resources name them.
func (s *state) names(k Kind) []string { return slices.Sorted(maps.Keys(s.namers(k))) }

// namers maps each resource of a kind that other resources name to the names of these: clusters name endpoints, and
// listeners name routes.
func (s *state) namers(k Kind) map[string]map[string]bool {
	switch k {
	case Endpoints:
		return s.services
	case Routes:
		return s.serving.users
	}
	return nil
}

func (*state) parse(k Kind, b []byte) (any, error) {
	switch k {
	case Clusters:
		return made(translate.ParseCluster(b))
	case Endpoints:
		return made(translate.ParseAssignment(b))
	case Listeners:
		return made(translate.ReadListener(b))
	case Routes:
		return made(translate.ParseRoutes(b))
	}
	return nil, fmt.Errorf("%s are not asked for", k)
}

func made[T any](v T, err error) (any, error) { return v, err }

func (s *state) put(_ Kind, name string, made any, o *outcome) (undo func(), err error) {
	switch made := made.(type) {
	case *translate.Cluster:
		return s.stageCluster(name, made, o)
	case translate.Assignment:
		return s.stageAssignment(name, made)
	case *translate.Listener:
		return s.stageListener(name, made, o)
	case *translate.Routes:
		return s.stageRoutes(name, made, o)
	}
	return nil, fmt.Errorf("there is no place for a %T", made)
}

// drop removes a resource from the wanted ones. Endpoints are kept as long as a cluster uses them.
func (s *state) drop(k Kind, name string, o *outcome) {
	switch k {
	case Clusters:
		s.want(name, nil)
	case Listeners:
		_ = s.setListener(name, nil, o) // removing cannot fail
	case Routes:
		s.setRoutes(name, nil)
	}
}

// take stages a response, and rejects listeners in it that want an address that another listener has.
func (s *state) take(k Kind, r *response, full bool) *outcome {
	o := s.intake.take(k, r, full)
	s.again(o)
	s.conflicts(o)
	return o
}

// waiting returns the number of listeners that wait for clusters or for their address.
func (s *state) waiting() (n int) {
	for name := range s.dirtyListeners {
		if s.listeners[name] != nil {
			n++
		}
	}
	return n
}

// overdue reports whether a hungry cluster has waited long enough for endpoints, and ends its wait if so.
func (s *state) overdue(name string, waited time.Duration) bool {
	w := s.clusters[name]
	if w == nil || w.Wait == 0 || waited <= w.Wait {
		return false
	}
	s.starve(name)
	return true
}

// hungry returns the clusters that wait for their first endpoints.
func (s *state) hungry() map[string]bool {
	var out map[string]bool
	for name := range s.dirtyClusters {
		c := s.clusters[name]
		if c == nil || c.Discovery != translate.EDS || s.late[name] {
			continue
		}
		if _, ok := s.assigned[c.Service]; !ok {
			if out == nil {
				out = map[string]bool{}
			}
			out[name] = true
		}
	}
	return out
}

// starve ends a cluster's wait for endpoints. The cluster then becomes active without any.
func (s *state) starve(name string) {
	s.late[name] = true
	s.dirtyClusters[name] = true
}

// resolve records the addresses of a host name, and reports whether they differ from the previous ones.
func (s *state) resolve(host string, addresses []netip.Addr) bool {
	old, known := s.addresses[host]
	if s.hosts[host] == nil || known && slices.Equal(old, addresses) {
		return false
	}
	s.addresses[host] = addresses
	s.touch(s.hosts[host])
	return true
}

// outcome is the result of taking a response.
type outcome struct {
	refused []error
	more    int // number of further refusals, which are only counted
	changed int // number of resources that are new or have changed
	warned  []*translate.Warning
	undo    []func()         // functions that each undo what was staged for one resource
	staged  map[resource]int // the index in undo of each staged resource
}

type resource struct {
	kind Kind
	name string
}

// maxRefused is the number of refusals of one response that are kept. The others are only counted, because a large
// message can cause millions.
const maxRefused = 10000

func (o *outcome) refuse(err error) {
	if len(o.refused) < maxRefused {
		o.refused = append(o.refused, err)
	} else {
		o.more++
	}
}

func (s *state) stageCluster(name string, c *translate.Cluster, o *outcome) (undo func(), err error) {
	if c.Name != name {
		return nil, refused(Clusters, name, "name: it is %.200q", c.Name)
	}
	old := s.clusters[name]
	late := s.late[name]
	s.want(name, c)
	o.warned = append(o.warned, c.Warnings...)
	return func() {
		s.want(name, old)
		if late {
			s.late[name] = true
		}
	}, nil
}

// want makes c the wanted form of a cluster, or removes the cluster if c is nil.
func (s *state) want(name string, c *translate.Cluster) {
	s.dirtyClusters[name] = true
	s.serving.arrives(s.clusters[name], c)
	var service string // the service whose endpoints the cluster still needs
	if c != nil && c.Discovery == translate.EDS {
		service = c.Service
		if link(s.services, service, name) {
			s.serviceChanges[service] = true
		}
	}
	if c != nil {
		for _, h := range c.Hosts {
			if link(s.hosts, h, name) {
				s.hostChanges[h] = true
			}
		}
	}
	if old := s.clusters[name]; old != nil {
		if old.Discovery == translate.EDS && old.Service != service && unlink(s.services, old.Service, name) {
			s.serviceChanges[old.Service] = true
		}
		for _, h := range old.Hosts {
			if (c == nil || !slices.Contains(c.Hosts, h)) && unlink(s.hosts, h, name) {
				s.hostChanges[h] = true
			}
		}
		if c == nil || old.Service != service {
			delete(s.late, name)
		}
	}
	if c == nil {
		delete(s.clusters, name)
	} else {
		s.clusters[name] = c
	}
}

// link adds a name under a key, and reports whether it is the key's first.
func link[K comparable](m map[K]map[string]bool, key K, name string) bool {
	first := m[key] == nil
	if first {
		m[key] = map[string]bool{}
	}
	m[key][name] = true
	return first
}

// unlink removes a name under a key, and reports whether the key has none left.
func unlink[K comparable](m map[K]map[string]bool, key K, name string) bool {
	delete(m[key], name)
	if len(m[key]) > 0 {
		return false
	}
	delete(m, key)
	return true
}

func (s *state) stageAssignment(name string, a translate.Assignment) (undo func(), err error) {
	if a.Name != name {
		return nil, refused(Endpoints, name, "cluster_name: it is %.200q", a.Name)
	}
	old, had := s.assigned[name]
	s.assigned[name] = a
	s.touch(s.services[name])
	return func() {
		if had {
			s.assigned[name] = old
		} else {
			delete(s.assigned, name)
		}
		s.touch(s.services[name])
	}, nil
}

func (s *state) touch(clusters map[string]bool) {
	for name := range clusters {
		s.dirtyClusters[name] = true
	}
}

func (s *state) wantListener(name string, l *mesh.Listener) {
	s.dirtyListeners[name] = true
	if old := s.listeners[name]; old != nil {
		unlink(s.places, placeOf(old), name)
	}
	if l == nil {
		delete(s.listeners, name)
	} else {
		s.listeners[name] = l
		link(s.places, placeOf(l), name)
	}
}

// conflicts rejects the listeners of a response that want an address that another listener has. Their previous form
// stays.
func (s *state) conflicts(o *outcome) {
	var wanted []place
	for r := range o.staged {
		if l := s.listeners[r.name]; r.kind == Listeners && l != nil {
			wanted = append(wanted, placeOf(l))
		}
	}
	contests[place]{
		members: func(at place) map[string]bool { return s.places[at] },
		staged: func(name string) bool {
			_, ok := o.staged[resource{Listeners, name}]
			return ok
		},
		reject: func(at place, name, stays string) (before place, was bool) {
			o.refuse(&translate.Refusal{Kind: "listener", Name: name, Field: "address",
				What: fmt.Sprintf("listener %.200q has %s %s", stays, at.protocol, at.address)})
			s.reject(resource{Listeners, name}, o)
			if l := s.listeners[name]; l != nil {
				return placeOf(l), true
			}
			return before, false
		},
	}.settle(wanted)
}

// contests decides which of several names gets a place.
type contests[P comparable] struct {
	members func(P) map[string]bool // the names that want a place
	staged  func(name string) bool  // reports whether the name came with the current response
	// reject undoes what was staged for a name. It returns the place that the name's previous form wants, and whether
	// there is one.
	reject func(at P, name, stays string) (before P, was bool)
}

// settle resolves conflicts until at most one name wants each place. Names from before the response win over those in
// it; of several in the response, the first in order wins. A rejected name wants its previous place again, where it
// counts as a name from before, and settle looks at that place again. Each name is rejected at most once, so the time
// is linear in the number of names.
func (c contests[P]) settle(places []P) {
	for len(places) > 0 {
		at := places[len(places)-1]
		places = places[:len(places)-1]
		all := c.members(at)
		if len(all) < 2 {
			continue
		}
		var old, fresh []string
		for name := range all {
			if c.staged(name) {
				fresh = append(fresh, name)
			} else {
				old = append(old, name)
			}
		}
		slices.Sort(fresh)
		var stays string
		if len(old) > 0 {
			stays = slices.Min(old)
		} else {
			stays, fresh = fresh[0], fresh[1:]
		}
		for _, name := range fresh {
			if before, was := c.reject(at, name, stays); was {
				places = append(places, before)
			}
		}
	}
}

func placeOf(l *mesh.Listener) place {
	return place{netip.AddrPortFrom(l.Address.Addr().Unmap(), l.Address.Port()), l.Protocol}
}

// reject undoes what a response staged for a resource, and reports whether anything was staged.
func (s *state) reject(r resource, o *outcome) bool {
	i, ok := o.staged[r]
	if !ok {
		return false
	}
	o.undo[i]()
	delete(o.staged, r)
	o.changed--
	return true
}

// form returns a cluster in the form that the store should have. ok is false while the cluster's endpoints are not
// known.
func (s *state) form(c *translate.Cluster) (*mesh.Cluster, bool) {
	switch c.Discovery {
	case translate.EDS:
		a, ok := s.assigned[c.Service]
		if !ok && !s.late[c.Name] {
			return nil, false
		}
		return c.With(a.Localities), true
	case translate.DNS:
		for _, h := range c.Hosts {
			if _, ok := s.addresses[h]; !ok {
				return nil, false
			}
		}
		return c.At(func(host string) []netip.Addr { return s.addresses[host] }), true
	case translate.Original:
		return nil, false
	}
	return c.Known(), true
}

// plan returns the change that brings the store as close to the wanted resources as is possible now.
func (s *state) plan() mesh.Change {
	s.guard()
	var change mesh.Change
	var unwanted []string // clusters
	if n := len(s.dirtyClusters); n > 0 {
		change.Clusters = make([]*mesh.Cluster, 0, n)
	}
	for _, name := range slices.Sorted(maps.Keys(s.dirtyClusters)) {
		c := s.clusters[name]
		if c == nil || c.Discovery == translate.Original {
			unwanted = append(unwanted, name)
			continue
		}
		if made, ok := s.form(c); ok {
			change.Clusters = append(change.Clusters, c.Shield(made, s.serving.guarded))
		}
	}
	if len(s.dirtyListeners) > 0 {
		s.planListeners(&change)
	}
	// The change in the number of listeners that name each cluster.
	more := map[string]int{}
	for _, l := range change.Listeners {
		count(more, s.active.Listeners[l.Name], -1)
		count(more, l, 1)
	}
	for _, name := range change.RemovedListeners {
		count(more, s.active.Listeners[name], -1)
	}
	gone := func(name string) {
		if _, there := s.active.Clusters[name]; there && !s.stored(name) && s.users[name]+more[name] == 0 {
			change.RemovedClusters = append(change.RemovedClusters, name)
		}
	}
	for _, name := range unwanted {
		gone(name)
	}
	for name := range more {
		if !s.dirtyClusters[name] {
			gone(name)
		}
	}
	slices.Sort(change.RemovedClusters)
	return change
}

// planListeners adds to a change the listeners that can become active, and the listeners to remove.
func (s *state) planListeners(change *mesh.Change) {
	fresh := make(map[string]bool, len(change.Clusters))
	for _, c := range change.Clusters {
		fresh[c.Name] = true
	}
	moving := map[string]bool{} // listeners that leave their current address
	var ready []*mesh.Listener
	for _, name := range slices.Sorted(maps.Keys(s.dirtyListeners)) {
		l := s.listeners[name]
		switch {
		case l == nil:
			if s.active.Listeners[name] != nil {
				change.RemovedListeners = append(change.RemovedListeners, name)
				moving[name] = true
			}
		case s.served(l, fresh):
			ready = append(ready, l)
			moving[name] = true
		}
	}
	// A listener can take an address only if its current listener leaves it, but that listener may have to wait itself.
	after := map[string][]string{} // by listener: those that wait for its address
	var stuck []string
	for _, l := range ready {
		if holder, held := s.used[placeOf(l)]; held && holder != l.Name {
			if moving[holder] {
				after[holder] = append(after[holder], l.Name)
			} else {
				stuck = append(stuck, l.Name)
			}
		}
	}
	for len(stuck) > 0 {
		name := stuck[len(stuck)-1]
		stuck = stuck[:len(stuck)-1]
		if moving[name] {
			delete(moving, name)
			stuck = append(stuck, after[name]...)
		}
	}
	change.Listeners = slices.DeleteFunc(ready, func(l *mesh.Listener) bool { return !moving[l.Name] })
}

// served reports whether all clusters of a listener are active or in the set fresh.
func (s *state) served(l *mesh.Listener, fresh map[string]bool) bool {
	return !slices.ContainsFunc(named(l), func(name string) bool { return s.active.Clusters[name] == nil && !fresh[name] })
}

// named returns the clusters that a listener names, without duplicates.
func named(l *mesh.Listener) (names []string) {
	seen := map[string]bool{}
	add := func(c *mesh.Chain) {
		for _, w := range c.Proxy.Clusters {
			if !seen[w.Name] {
				seen[w.Name] = true
				names = append(names, w.Name)
			}
		}
	}
	for i := range l.Chains {
		add(&l.Chains[i])
	}
	if l.Default != nil {
		add(l.Default)
	}
	return names
}

func count(users map[string]int, l *mesh.Listener, by int) {
	if l == nil {
		return
	}
	for _, name := range named(l) {
		users[name] += by
	}
}

// commit records a change that the store has made.
func (s *state) commit(change mesh.Change) {
	for _, l := range change.Listeners {
		s.leave(l.Name)
	}
	for _, name := range change.RemovedListeners {
		s.leave(name)
	}
	for _, l := range change.Listeners {
		count(s.users, l, 1)
		s.used[placeOf(l)] = l.Name
		if s.listeners[l.Name] == l {
			delete(s.dirtyListeners, l.Name)
		}
	}
	if len(change.Clusters) == len(s.dirtyClusters) { // all clusters of a change are dirty
		clear(s.dirtyClusters)
	}
	for _, c := range change.Clusters {
		delete(s.dirtyClusters, c.Name)
	}
	s.active.Apply(change)
	for _, name := range change.RemovedListeners {
		delete(s.dirtyListeners, name)
	}
	for _, name := range change.RemovedClusters {
		delete(s.dirtyClusters, name)
		delete(s.users, name)
	}
	// Nothing is left to do for listeners that are neither wanted nor active.
	for name := range s.dirtyListeners {
		if s.listeners[name] == nil && s.active.Listeners[name] == nil {
			delete(s.dirtyListeners, name)
		}
	}
}

// leave records that an active listener is removed or replaced.
func (s *state) leave(name string) {
	l := s.active.Listeners[name]
	if l == nil {
		return
	}
	count(s.users, l, -1)
	if at := placeOf(l); s.used[at] == name {
		delete(s.used, at)
	}
}

func empty(c mesh.Change) bool {
	return len(c.Clusters)+len(c.Listeners)+len(c.RemovedClusters)+len(c.RemovedListeners) == 0
}

// namedTries is the number of attempts in which settle relies on the store to name the resource that it refuses. After
// those, settle halves the change to find the remaining refused resources.
const namedTries = 8

// settle applies the planned change to the store. If the store refuses resources, settle undoes those and applies the
// rest.
func (s *state) settle(apply func(mesh.Change) error, o *outcome) error {
	for try := 0; try < 8*namedTries; try++ {
		change := s.plan()
		if empty(change) {
			break
		}
		err := apply(change)
		if err == nil {
			s.commit(change)
			break
		}
		if fatal(err) {
			return err
		}
		var bad []failure
		if r, ok := blamed(change, err); ok && try < namedTries {
			bad = []failure{{r, err}}
		} else if bad, err = s.halve(change, apply); err != nil {
			return err
		}
		progress := len(bad) == 0 // the change was made in parts, without a refusal
		for _, f := range bad {
			progress = s.unwant(f.resource, o) || progress
			o.refuse(storeRefusal(f.resource, f.err))
		}
		if !progress { // only removals are left, which cannot be undone; the next change tries them again
			break
		}
	}
	for name := range s.dirtyClusters {
		if !s.stored(name) && s.active.Clusters[name] == nil {
			delete(s.dirtyClusters, name)
		}
	}
	return nil
}

// stored reports whether the store should have a cluster: the cluster is wanted, and does not pass connections through
// unchanged.
func (s *state) stored(name string) bool {
	c := s.clusters[name]
	return c != nil && c.Discovery != translate.Original
}

// sweep forgets endpoints, routes and addresses that are not used any more, and returns the names that came into use or
// went out of use.
func (s *state) sweep() (named [kinds][]string, hosts []string) {
	for name := range s.serving.changes {
		if s.serving.users[name] == nil {
			s.setRoutes(name, nil)
			s.forget(Routes, name)
		}
		named[Routes] = append(named[Routes], name)
	}
	clear(s.serving.changes)
	for name := range s.serviceChanges {
		if s.services[name] == nil {
			delete(s.assigned, name)
			s.forget(Endpoints, name)
		}
		named[Endpoints] = append(named[Endpoints], name)
	}
	for name := range s.hostChanges {
		if s.hosts[name] == nil {
			delete(s.addresses, name)
		}
		hosts = append(hosts, name)
	}
	clear(s.serviceChanges)
	clear(s.hostChanges)
	return named, hosts
}

// errEnds means that a change failed because the client ends. It does not mean that the store refused the change.
var errEnds = errors.New("the client ends")

func fatal(err error) bool { return errors.Is(err, errEnds) }

// failure is a resource that the store refuses.
type failure struct {
	resource
	err error
}

func storeRefusal(r resource, err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Where == r.name {
		text := f.What
		if f.Err != nil {
			text += ": " + f.Err.Error()
		}
		err = errors.New(text)
	}
	return refused(r.kind, r.name, "the data plane cannot hold it: %s", err)
}

// blamed returns the resource of a change that an error names. ok is false if the change has no resource, or both a
// cluster and a listener, with that name.
func blamed(change mesh.Change, err error) (r resource, ok bool) {
	var f *fault.Error
	if !errors.As(err, &f) || f.Where == "" {
		return r, false
	}
	n := 0
	for _, c := range change.Clusters {
		if c.Name == f.Where {
			r, n = resource{Clusters, c.Name}, n+1
		}
	}
	for _, l := range change.Listeners {
		if l.Name == f.Where {
			r, n = resource{Listeners, l.Name}, n+1
		}
	}
	return r, n == 1
}

// halve makes a change in parts. It halves each part that the store refuses, until a refused resource is alone.
// Clusters come first; if any is refused, the resources that depend on them are left to the next plan.
func (s *state) halve(change mesh.Change, apply func(mesh.Change) error) (bad []failure, err error) {
	try := func(part mesh.Change) error {
		err := apply(part)
		if err == nil {
			s.commit(part)
		}
		return err
	}
	if bad, err = halves(change.Clusters, func(c []*mesh.Cluster) error { return try(mesh.Change{Clusters: c}) },
		func(c *mesh.Cluster) resource { return resource{Clusters, c.Name} }); err != nil || len(bad) > 0 {
		return bad, err
	}
	// Listeners that leave an address come before listeners that take it.
	if bad, err = halves(change.RemovedListeners, func(l []string) error { return try(mesh.Change{RemovedListeners: l}) },
		func(name string) resource { return resource{Listeners, name} }); err != nil || len(bad) > 0 {
		return bad, err
	}
	if bad, err = halves(change.Listeners, func(l []*mesh.Listener) error { return try(mesh.Change{Listeners: l}) },
		func(l *mesh.Listener) resource { return resource{Listeners, l.Name} }); err != nil || len(bad) > 0 {
		return bad, err
	}
	return halves(change.RemovedClusters, func(c []string) error { return try(mesh.Change{RemovedClusters: c}) },
		func(name string) resource { return resource{Clusters, name} })
}

func halves[T any](list []T, try func([]T) error, name func(T) resource) (bad []failure, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	if err = try(list); err == nil {
		return nil, nil
	}
	if fatal(err) {
		return nil, err
	}
	if len(list) == 1 {
		return []failure{{name(list[0]), err}}, nil
	}
	for _, half := range [][]T{list[:len(list)/2], list[len(list)/2:]} {
		more, err := halves(half, try, name)
		if bad = append(bad, more...); err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// unwant undoes what the store refused. The resource gets the form that it had before this response, or before it began
// to wait. unwant reports whether anything changed.
func (s *state) unwant(r resource, o *outcome) bool {
	switch r.kind {
	case Listeners:
		owner := s.serving.owner(r.name)
		if s.reject(resource{Listeners, owner}, o) {
			return true
		}
		l := s.listeners[r.name]
		if l == nil {
			return false
		}
		s.retry(Listeners, owner)
		s.wantListener(r.name, s.active.Listeners[r.name])
		delete(s.dirtyListeners, r.name)
		return true
	case Clusters:
		c := s.clusters[r.name]
		if c == nil {
			return false
		}
		if c.Discovery == translate.EDS && s.reject(resource{Endpoints, c.Service}, o) {
			return true
		}
		if s.reject(r, o) {
			return true
		}
		// The cluster waited for something that is here now, or an address has changed. The store keeps its current form
		// until the control plane sends the cluster again.
		s.retry(Clusters, r.name)
		if s.active.Clusters[r.name] == nil {
			s.want(r.name, nil)
		}
		delete(s.dirtyClusters, r.name)
		return true
	}
	return false
}

// maxReason bounds the text of a refusal, and maxReasons the text of all refusals of a response, in bytes. A control
// plane accepts messages of 4 MiB.
const (
	maxReason  = 2 << 10
	maxReasons = 1 << 20
)

// reason returns the text of refusals, one on each line, followed by the number of further ones.
func reason(errs []error, more int) string {
	var b strings.Builder
	for i, err := range errs {
		text := text.ClipLine(err.Error(), maxReason)
		if b.Len()+len(text) > maxReasons {
			more += len(errs) - i
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(text)
	}
	if more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return b.String()
}
