// Package keep is what the stores share that keep records: it makes changes into trees, puts them into maps step by
// step in Kmesh's order, and knows what is where. The store says where records go.
package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records"
)

// Records is where a store keeps its records. Keys are never 0.
type Records interface {
	// Room says whether so many records more fit. It may make room first.
	Room(need records.Counts) bool
	// Hint is what to do where there is no room.
	Hint() string
	// Alloc finds a key for a new record.
	Alloc(class records.Class) (key uint32, err error)
	// Write writes a record; last where nothing is missing from it any more.
	Write(key uint32, class records.Class, value []byte, last bool) error
	// Free gives back a record.
	Free(key uint32) error
	// Settle is called after each change.
	Settle()
	Close() error
}

// Tops are the maps that trees begin in.
type Tops struct {
	Listeners, Clusters *ebpf.Map
}

// Store is a store.Store over Records.
type Store struct {
	kernel  *Kernel
	records Records
	tops    Tops
	options store.Options
	// ordered: records of a resource first, then its value, then what was there before is removed. Else what was there
	// before is removed first, as Kmesh does.
	ordered bool
	maps    map[string]*ebpf.Map

	mu        sync.Mutex // guards all below; one goroutine applies, but another may close
	closed    bool
	clusters  map[string]*resource
	listeners map[string]*resource
	addresses map[[records.AddressSize]byte]*resource
	ids       []uint32 // of clusters, given back by changes before
	givenBack []uint32 // by this one, which must not give them to others
	nextID    uint32
	endpoints int

	tree records.Tree
	plan []planned
	seen map[named]bool
	old  []uint32
	key  [records.NameSize]byte
}

// resource is a cluster or a listener as it is in the maps.
type resource struct {
	name      string
	cluster   bool
	id        uint32                    // of a cluster
	address   [records.AddressSize]byte // of a listener: its key
	keys      []uint32
	counts    records.Counts
	endpoints int
	present   bool
}

type named struct {
	cluster bool
	name    string
}

// planned is one resource's part of a change. One of cluster, listener and gone is set.
type planned struct {
	cluster  *mesh.Cluster
	listener *mesh.Listener
	gone     *resource
	counts   records.Counts
	entry    *resource // of a cluster or listener
	moved    bool      // the listener has had another address
}

// New makes a store of maps that are empty. It owns the maps and records from then on.
func New(k *Kernel, r Records, tops Tops, layout records.Layout, maps map[string]*ebpf.Map, o store.Options,
	ordered bool) *Store {
	s := &Store{
		kernel: k, records: r, tops: tops, options: o, ordered: ordered, maps: maps,
		clusters: map[string]*resource{}, listeners: map[string]*resource{},
		addresses: map[[records.AddressSize]byte]*resource{},
		seen:      map[named]bool{},
	}
	s.tree.Layout = layout
	return s
}

// Maps implements store.Store.
func (s *Store) Maps() map[string]*ebpf.Map { return s.maps }

// Records is what it was made with, for tests.
func (s *Store) Records() Records { return s.records }

// Cluster implements store.Store.
func (s *Store) Cluster(name string) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.clusters[name]
	if r == nil {
		return 0, false
	}
	return r.id, true
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	errs := []error{s.records.Close()}
	for _, m := range s.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Apply implements store.Store.
func (s *Store) Apply(ctx context.Context, change mesh.Change) (store.Work, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.Work{}, os.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return store.Work{}, err
	}
	s.kernel.Work = store.Work{}
	s.ids, s.givenBack = append(s.ids, s.givenBack...), s.givenBack[:0]
	err := s.prepare(change)
	if err == nil {
		err = s.execute()
		s.records.Settle()
	}
	s.drop(err != nil)
	return s.kernel.Work, err
}

// prepare makes the plan: listeners that go, clusters, listeners, clusters that go. It refuses what is wrong or does
// not fit.
func (s *Store) prepare(change mesh.Change) error {
	s.plan = s.plan[:0]
	several := len(change.Clusters)+len(change.Listeners)+len(change.RemovedClusters)+len(change.RemovedListeners) > 1
	// What is removed is, whatever else the change says; of several with one name the last counts.
	done := func(cluster bool, name string) bool {
		if !several {
			return false
		}
		seen := s.seen[named{cluster, name}]
		s.seen[named{cluster, name}] = true
		return seen
	}
	if several {
		clear(s.seen)
	}
	for _, name := range change.RemovedListeners {
		if r := s.listeners[name]; !done(false, name) && r != nil {
			s.plan = append(s.plan, planned{gone: r})
		}
	}
	var goneClusters []*resource
	for _, name := range change.RemovedClusters {
		if r := s.clusters[name]; !done(true, name) && r != nil {
			goneClusters = append(goneClusters, r)
		}
	}
	first := len(s.plan)
	for _, c := range slices.Backward(change.Clusters) {
		if done(true, c.Name) {
			continue
		}
		if err := s.tree.Cluster(c, 0); err != nil {
			return store.TooLarge(c.Name, "%s", err)
		}
		s.plan = append(s.plan, planned{cluster: c, counts: s.tree.Counts})
	}
	slices.Reverse(s.plan[first:])
	first = len(s.plan)
	for _, l := range slices.Backward(change.Listeners) {
		if done(false, l.Name) {
			continue
		}
		if err := s.tree.Listener(l); err != nil {
			return store.TooLarge(l.Name, "%s", err)
		}
		s.plan = append(s.plan, planned{listener: l, counts: s.tree.Counts})
	}
	slices.Reverse(s.plan[first:])
	for _, r := range goneClusters {
		s.plan = append(s.plan, planned{gone: r})
	}
	if err := s.numbers(); err != nil {
		if !s.removeFirst() {
			return err
		}
		if err := s.numbers(); err != nil {
			return err
		}
	}
	return s.addressesOf()
}

// removeFirst puts what goes before what comes, to make room for it, and says whether that changes anything.
func (s *Store) removeFirst() bool {
	var gone, rest []planned
	for _, p := range s.plan {
		if p.gone != nil {
			gone = append(gone, p)
		} else {
			rest = append(rest, p)
		}
	}
	s.plan = append(gone, rest...)
	return len(gone) > 0
}

// numbers checks that the plan fits, at each of its steps.
func (s *Store) numbers() error {
	clusters, listeners, endpoints := len(s.clusters), len(s.listeners), s.endpoints
	var need, most records.Counts // need below zero: more is free than was
	step := func(counts, freed records.Counts) {
		for i := range need {
			if !s.ordered { // what is freed is free for what comes
				need[i] -= freed[i]
			}
			need[i] += counts[i]
			most[i] = max(most[i], need[i])
			if s.ordered {
				need[i] -= freed[i]
			}
		}
	}
	for i := range s.plan {
		p := &s.plan[i]
		name := ""
		switch {
		case p.gone != nil:
			step(records.Counts{}, p.gone.counts)
			if p.gone.cluster {
				clusters--
				endpoints -= p.gone.endpoints
			} else {
				listeners--
			}
			continue
		case p.cluster != nil:
			name = p.cluster.Name
			p.entry = s.clusters[name]
			endpoints += countEndpoints(p.cluster)
			if p.entry == nil {
				clusters++
			} else {
				endpoints -= p.entry.endpoints
			}
		default:
			name = p.listener.Name
			if p.entry = s.listeners[name]; p.entry == nil {
				listeners++
			}
		}
		var freed records.Counts
		if p.entry != nil {
			freed = p.entry.counts
		}
		step(p.counts, freed)
		switch {
		case clusters > int(s.options.MaxClusters):
			return store.TooLarge(name, "there would be %d clusters; the store holds %d", clusters, s.options.MaxClusters)
		case listeners > int(s.options.MaxListeners):
			return store.TooLarge(name, "there would be %d listeners; the store holds %d", listeners, s.options.MaxListeners)
		case endpoints > int(s.options.MaxEndpoints):
			return store.TooLarge(name, "there would be %d endpoints; the store holds %d", endpoints, s.options.MaxEndpoints)
		}
	}
	if most.Sum() > 0 && !s.records.Room(most) {
		name := ""
		for _, p := range s.plan {
			if p.cluster != nil {
				name = p.cluster.Name
			} else if p.listener != nil {
				name = p.listener.Name
			}
		}
		return fault.New(fault.Usage, name, s.records.Hint(),
			"the change needs %d records more, which the store has no room for", most.Sum())
	}
	return nil
}

func countEndpoints(c *mesh.Cluster) (n int) {
	for i := range c.Localities {
		n += len(c.Localities[i].Endpoints)
	}
	return n
}

// addressesOf checks that no two listeners have the same address afterwards, and finds which of them move.
func (s *Store) addressesOf() error {
	var taken map[[records.AddressSize]byte]string
	leaving := func(r *resource) bool {
		for i := range s.plan {
			p := &s.plan[i]
			if p.gone == r || p.entry == r && p.listener != nil && records.Key(p.listener) != r.address {
				return true
			}
		}
		return false
	}
	for i := range s.plan {
		p := &s.plan[i]
		if p.listener == nil {
			continue
		}
		key := records.Key(p.listener)
		p.moved = p.entry != nil && p.entry.address != key
		other := s.addresses[key]
		name, clash := "", false
		if other != nil && other != p.entry && !leaving(other) {
			name, clash = other.name, true
		}
		if len(s.plan) > 1 {
			if taken == nil {
				taken = map[[records.AddressSize]byte]string{}
			}
			if n, ok := taken[key]; ok {
				name, clash = n, true
			}
			taken[key] = p.listener.Name
		}
		if clash {
			return fault.New(fault.Usage, p.listener.Name, "give one of them another address",
				"it has the address of listener %s", name)
		}
	}
	return nil
}

// execute carries the plan out.
func (s *Store) execute() error {
	for i := range s.plan {
		// Addresses that move are free before others take them.
		if p := &s.plan[i]; p.moved {
			if err := s.remove(p.entry); err != nil {
				return err
			}
		}
	}
	for i := range s.plan {
		p := &s.plan[i]
		var err error
		switch {
		case p.gone != nil:
			err = s.forget(p.gone)
		case p.cluster != nil:
			err = s.setCluster(p)
		default:
			err = s.setListener(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) setCluster(p *planned) error {
	r := p.entry
	if r == nil {
		r = &resource{name: p.cluster.Name, cluster: true, id: s.takeID()}
		s.clusters[r.name] = r
	}
	if len(s.plan) > 1 {
		if err := s.tree.Cluster(p.cluster, r.id); err != nil {
			return err
		}
	} else {
		s.tree.SetID(r.id)
	}
	if err := s.replace(r, s.tops.Clusters, s.clusterKey(r.name)); err != nil {
		return fmt.Errorf("writing cluster %s: %w", r.name, err)
	}
	n := countEndpoints(p.cluster)
	s.endpoints += n - r.endpoints
	r.endpoints = n
	return nil
}

func (s *Store) setListener(p *planned) error {
	r := p.entry
	if r == nil {
		r = &resource{name: p.listener.Name}
		s.listeners[r.name] = r
	}
	if len(s.plan) > 1 {
		if err := s.tree.Listener(p.listener); err != nil {
			return err
		}
	}
	r.address = records.Key(p.listener)
	s.addresses[r.address] = r
	if err := s.replace(r, s.tops.Listeners, r.address[:]); err != nil {
		return fmt.Errorf("writing listener %s: %w", r.name, err)
	}
	return nil
}

func (s *Store) clusterKey(name string) []byte {
	clear(s.key[copy(s.key[:], name):])
	return s.key[:]
}

// replace puts the tree where r is.
func (s *Store) replace(r *resource, top *ebpf.Map, key []byte) error {
	if s.ordered {
		s.old = append(s.old[:0], r.keys...)
		counts, present := r.counts, r.present
		if err := s.insert(r, top, key); err != nil {
			r.keys, r.counts, r.present = append(r.keys[:0], s.old...), counts, present
			return err
		}
		return s.free(s.old)
	}
	if r.present {
		if err := s.free(r.keys); err != nil {
			return err
		}
		r.keys, r.present = r.keys[:0], false
		if err := s.kernel.Delete(top.FD(), key); err != nil {
			return err
		}
	}
	return s.insert(r, top, key)
}

// insert takes the steps of the tree. If one fails, nothing is left of it.
func (s *Store) insert(r *resource, top *ebpf.Map, key []byte) (err error) {
	t := &s.tree
	r.counts = t.Counts
	r.keys = slices.Grow(r.keys[:0], t.Len()-1)[:t.Len()-1]
	fd := top.FD()
	done := 0 // records are made in order
	for i := range t.Steps {
		step := &t.Steps[i]
		if step.Child != 0 {
			child, e := s.records.Alloc(t.Class(step.Child))
			if e != nil {
				err = e
				break
			}
			r.keys[step.Child-1] = child
			done = int(step.Child)
			t.SetKey(step, child)
			s.kernel.Work.Records++
		}
		if !step.Write || s.ordered && !step.Last {
			continue
		}
		if step.Record == 0 {
			if err = s.kernel.Update(fd, key, t.Bytes(0)); err == nil {
				r.present = true
			}
		} else {
			err = s.records.Write(r.keys[step.Record-1], t.Class(step.Record), t.Bytes(step.Record), step.Last)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		return nil
	}
	errs := []error{err, s.free(r.keys[:done])}
	r.keys, r.counts = r.keys[:0], records.Counts{}
	if r.present && !s.ordered { // ordered, the value is what is written last
		r.present = false
		errs = append(errs, s.kernel.Delete(fd, key))
	}
	return errors.Join(errs...)
}

func (s *Store) free(keys []uint32) (err error) {
	for _, key := range keys {
		if e := s.records.Free(key); e != nil && err == nil {
			err = e
		}
	}
	return err
}

// remove takes a resource out of the maps, records first, as Kmesh does; ordered, its value first.
func (s *Store) remove(r *resource) error {
	if !r.present {
		return nil
	}
	top, key := s.tops.Listeners, r.address[:]
	if r.cluster {
		top, key = s.tops.Clusters, s.clusterKey(r.name)
	} else if s.addresses[r.address] == r {
		delete(s.addresses, r.address)
	}
	var errs [2]error
	if s.ordered {
		errs[0] = s.kernel.Delete(top.FD(), key)
		errs[1] = s.free(r.keys)
	} else {
		errs[0] = s.free(r.keys)
		errs[1] = s.kernel.Delete(top.FD(), key)
	}
	r.keys, r.counts, r.present = r.keys[:0], records.Counts{}, false
	return errors.Join(errs[:]...)
}

func (s *Store) forget(r *resource) error {
	err := s.remove(r)
	if r.cluster {
		delete(s.clusters, r.name)
		s.endpoints -= r.endpoints
		s.givenBack = append(s.givenBack, r.id)
	} else {
		delete(s.listeners, r.name)
	}
	return err
}

// drop forgets references of the plan. After a failure, what is not in the maps any more is not known any more either.
func (s *Store) drop(failed bool) {
	clear(s.plan)
	if !failed {
		return
	}
	for name, r := range s.clusters {
		if !r.present {
			delete(s.clusters, name)
			s.endpoints -= r.endpoints
			s.givenBack = append(s.givenBack, r.id)
		}
	}
	for name, r := range s.listeners {
		if !r.present {
			delete(s.listeners, name)
			if s.addresses[r.address] == r {
				delete(s.addresses, r.address)
			}
		}
	}
}

func (s *Store) takeID() uint32 {
	if n := len(s.ids); n > 0 {
		id := s.ids[n-1]
		s.ids = s.ids[:n-1]
		return id
	}
	s.nextID++
	return s.nextID - 1
}

// OpenMaps makes the maps of specs.
func OpenMaps(specs []*ebpf.MapSpec) (all map[string]*ebpf.Map, err error) {
	all = map[string]*ebpf.Map{}
	for _, spec := range specs {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			for _, m := range all {
				m.Close()
			}
			return nil, explain(err, spec.Name)
		}
		all[spec.Name] = m
	}
	return all, nil
}

func explain(err error, name string) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fault.Wrap(err, fault.Machine, "", "run as root (it needs CAP_BPF)", "making map %s: not permitted", name)
	case errors.Is(err, unix.ENOMEM):
		return fault.Wrap(err, fault.Machine, "", "make the store smaller, or raise the memory limit",
			"making map %s: no memory", name)
	case errors.Is(err, unix.EMFILE):
		return fault.Wrap(err, fault.Machine, "", "raise the limit: ulimit -n", "making map %s: too many open files", name)
	}
	return fault.Wrap(err, fault.Machine, "", "it needs Linux 5.10 with CONFIG_BPF_SYSCALL", "making map %s", name)
}
