// Package value implements a simple store for comparison, which keeps each cluster and each listener in one map value,
// written by one system call. bpf/value.h defines the maps, and explains why they are arrays with a lock in each value.
//
// A resource that keeps its size class is replaced by one update in place. A new resource, or one whose class changes,
// is written into a free slot first, and then the word that holds its location is changed. Clusters are changed before
// listeners, and removals come last, so that no listener names a missing cluster in the meantime. If a change needs the
// room that removals free, they come first instead.
package value

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/bpf"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/alias"
	"tare/internal/mesh/store/plan"
)

// The limits of one resource. bpf/value.h has the same.
const (
	MaxEndpoints = 1024 // of a cluster, counting only those that get connections
	MaxChoices   = 64   // weighted clusters of a listener, over all reachable chains
)

func init() {
	store.Register(store.Design{
		Name:   "value",
		Atomic: store.PerResource,
		Open:   open,
		Ask:    loadAsk,
	})
}

// Size classes: three for clusters, two for listeners.
const (
	small = iota
	medium
	large
	short
	long
	nClasses
)

// class holds the slots of one size.
type class struct {
	m        *ebpf.Map
	holds    int // the number of endpoints that fit into a cluster
	capacity int // one less than the number of slots: see Apply
	slots    plan.Numbers
}

type values struct {
	mu      sync.Mutex // held by Apply and Close, because Close may be called during Apply
	maps    map[string]*ebpf.Map
	places  []uint64 // value_places, mapped
	memory  []byte   // the same memory, for unmapping; nil after Close
	classes [nClasses]class

	config   plan.Config[cluster, listener]
	keys     map[plan.Address]*place // the place of the listener at each address; another listener there takes it over
	anywhere uint64                  // the number of listeners for any address, as in value_places[0]
	// ids are the numbers of clusters that exist or that listeners name. The number that was freed first is reused first,
	// so that its epoch wraps around as late as possible.
	ids    plan.Numbers
	epochs []uint32 // by cluster number: how often the number has been freed

	// Buffers of Apply.
	plan     change
	fit      []int           // classes of the change's clusters (-1: no endpoints), then classes of its listeners
	names    map[string]bool // new names of clusters
	targets  []mesh.Target
	cluster_ askValueOfLarge
	short_   askValueOfShort
	long_    askValueOfLong
	alias    alias.Table
	weights  []uint32
	work     store.Work
}

// place is a slot in the map of a class.
type place struct {
	class int
	slot  uint32
}

// cluster holds the data of a cluster with a number: one that exists, or that a listener names.
type cluster struct {
	id    uint32
	place *place // nil if the cluster has no endpoint that gets connections
	named int    // the number of listeners' choices that name it
}

// listener holds the clusters that a listener's choices name.
type listener []*known

type (
	change = plan.Plan[cluster, listener]
	known  = plan.Cluster[cluster]
)

func open(o store.Options) (store.Store, error) {
	o = o.WithDefaults()
	s := &values{
		config: plan.New[cluster, listener](o), keys: map[plan.Address]*place{},
		ids: plan.NewNumbers(1, o.ClusterNumbers()), epochs: make([]uint32, o.ClusterNumbers()),
	}
	classes := [nClasses]struct {
		name     string
		capacity uint32
		holds    int
	}{
		// The maps of small, medium and short values have enough slots for any configuration. Enough slots for large and long
		// values would multiply the memory.
		small:  {"value_small", o.MaxClusters, len(askValueOfSmall{}.Endpoints)},
		medium: {"value_medium", min(o.MaxClusters, max(1, o.MaxEndpoints/17)), len(askValueOfMedium{}.Endpoints)},
		large:  {"value_large", min(o.MaxClusters, max(1, o.MaxEndpoints/512)), MaxEndpoints},
		short:  {"value_short", o.MaxListeners, 0},
		long:   {"value_long", max(1, o.MaxListeners/8), 0},
	}
	entries := map[string]uint32{
		"value_keys":   2 * o.MaxListeners, // a change inserts before it removes
		"value_places": o.ClusterNumbers(),
	}
	for _, c := range classes {
		entries[c.name] = c.capacity + 1
	}
	var err error
	if s.maps, err = store.OpenMaps(loadAsk, entries); err != nil {
		return nil, err
	}
	for i, c := range classes {
		s.classes[i] = class{m: s.maps[c.name], capacity: int(c.capacity), holds: c.holds,
			slots: plan.NewNumbers(0, c.capacity+1)}
	}
	if s.places, s.memory, err = bpf.MapArray[uint64](s.maps["value_places"]); err != nil {
		return nil, errors.Join(err, store.CloseMaps(s.maps))
	}
	return s, nil
}

func (s *values) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(s.memory), store.CloseMaps(s.maps))
	s.places, s.memory = nil, nil
	return err
}

func (s *values) Maps() map[string]*ebpf.Map { return s.maps }

func (s *values) Cluster(name string) (uint32, bool) {
	if c := s.config.Clusters[name]; c != nil && c.There {
		return c.Own.id, true
	}
	return 0, false
}

// Apply makes the change. It finds invalid changes before it writes anything.
//
// No class is ever filled to its last slot. A resource moves into that slot while its old slot is still in use; without
// it, two full classes could not exchange resources.
func (s *values) Apply(ctx context.Context, change mesh.Change) (store.Work, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work = store.Work{}
	if err := ctx.Err(); err != nil {
		return s.work, err
	}
	if s.memory == nil {
		return s.work, errors.New("the store is closed")
	}
	p := &s.plan
	defer p.Reset()
	if err := s.config.Plan(p, change, plan.UsableEndpoints); err != nil {
		return s.work, err
	}
	goFirst, err := s.check(p)
	if err == nil {
		err = s.write(p, goFirst)
	}
	return s.work, err
}

// write makes a change. Removals come last, so that nothing is missing in the meantime, unless the change needs their
// room; then they come first.
func (s *values) write(p *change, goFirst bool) error {
	if goFirst {
		if err := s.remove(p); err != nil {
			return err
		}
	}
	if err := until(len(p.Clusters), func(i int) (bool, error) {
		return s.writeCluster(&p.Clusters[i], s.fit[i])
	}); err != nil {
		return err
	}
	if err := until(len(p.Listeners), func(i int) (bool, error) {
		return s.writeListener(p, &p.Listeners[i], s.fit[len(p.Clusters)+i])
	}); err != nil {
		return err
	}
	if goFirst {
		return nil
	}
	return s.remove(p)
}

func (s *values) remove(p *change) error {
	for _, l := range p.GoneListeners {
		delete(s.config.Listeners, l.Name)
		s.config.Leave(l)
		s.forget(l.Own)
		if err := s.removeKey(p, l.Address); err != nil {
			return err
		}
	}
	for _, c := range p.GoneClusters {
		s.config.Set(c, false, 0)
		s.empty(c, 0)
		s.release(c)
	}
	return nil
}

// until calls do(i) for each i from 0 to n-1. If a call finds no room, and returns false, until repeats it after the
// other calls, which may free some room.
func until(n int, do func(i int) (done bool, err error)) error {
	var waiting []int
	for i := range n {
		done, err := do(i)
		if err != nil {
			return err
		}
		if !done {
			waiting = append(waiting, i)
		}
	}
	switch len(waiting) {
	case 0:
		return nil
	case n:
		return errors.New("store value: there is no room for a change that was found to fit")
	}
	return until(len(waiting), func(i int) (bool, error) { return do(waiting[i]) })
}

// slot returns the place where a resource of a class is to be written: its old place if that has the same class, and
// otherwise a free slot. moves reports the latter; ok is false if no slot is free.
func (s *values) slot(old *place, class int) (at place, moves, ok bool) {
	if old != nil && old.class == class {
		return *old, false, true
	}
	slot, ok := s.classes[class].slots.Latest()
	return place{class, slot}, true, ok
}

func (s *values) give(at place) { s.classes[at.class].slots.Give(at.slot) }

func (s *values) writeCluster(p *plan.ClusterPlan[cluster], class int) (bool, error) {
	c := s.config.Clusters[p.Name] // not p.Old: removing a listener may have released it
	if c == nil {
		c = s.name(p.Name)
	}
	if class < 0 {
		s.empty(c, noEndpoints)
		s.config.Set(c, true, 0)
		return true, nil
	}
	own := &c.Own
	at, moves, ok := s.slot(own.place, class)
	if !ok {
		return false, nil
	}
	s.encodeCluster(p.Cluster, own.id)
	// A value of a smaller class is a prefix of a value of the largest class.
	if err := s.update(at, unsafe.Pointer(&s.cluster_)); err != nil {
		if moves {
			s.give(at)
		}
		return false, fmt.Errorf("writing cluster %s: %w", p.Name, err)
	}
	s.work.Records++
	s.config.Set(c, true, len(s.targets))
	if moves {
		s.locate(own.id, uint64(class-small+1)<<28|uint64(at.slot))
		if own.place != nil {
			s.give(*own.place)
		}
		own.place = &at
	}
	return true, nil
}

func (s *values) encodeCluster(c *mesh.Cluster, id uint32) {
	s.targets = c.Targets(s.targets[:0])
	v := &s.cluster_
	v.Cluster, v.Epoch, v.Count, v.MaxConnections = id, s.epochs[id], uint32(len(s.targets)), c.Breakers.MaxConnections
	s.weights = s.weights[:0]
	for i, t := range s.targets {
		e := &v.Endpoints[i]
		ip := t.Address.Addr().As16()
		e.Ip = *(*[4]uint32)(unsafe.Pointer(&ip))
		e.Port = bits.ReverseBytes16(t.Address.Port())
		s.weights = append(s.weights, t.Weight)
	}
	s.alias.Make(s.weights)
	for i := range s.weights {
		v.Endpoints[i].Threshold, v.Endpoints[i].Alias = s.alias.Threshold[i], uint16(s.alias.Other[i])
	}
}

// noEndpoints is the word in value_places for a cluster that exists but has no endpoints.
const noEndpoints = 1

// empty removes a cluster's endpoints, and sets its word in value_places.
func (s *values) empty(c *known, word uint64) {
	s.locate(c.Own.id, word)
	if c.Own.place != nil {
		s.give(*c.Own.place)
		c.Own.place = nil
	}
}

// name allocates a number for a cluster.
func (s *values) name(name string) *known {
	c := s.config.Name(name)
	c.Own.id, _ = s.ids.Oldest() // check made sure that there are enough
	return c
}

// release frees the number of a cluster if it does not exist and no listener names it.
func (s *values) release(c *known) {
	if c.There || c.Own.named > 0 {
		return
	}
	delete(s.config.Clusters, c.Name)
	s.epochs[c.Own.id]++
	s.ids.Give(c.Own.id)
}

func (s *values) forget(names listener) {
	for _, c := range names {
		c.Own.named--
		s.release(c)
	}
}

// locate sets a cluster's word in value_places.
func (s *values) locate(id uint32, word uint64) {
	atomic.StoreUint64(&s.places[id], word)
	s.work.Records++
	s.work.Bytes += 8
}

func (s *values) writeListener(c *change, p *plan.ListenerPlan[listener], class int) (bool, error) {
	old := s.keys[p.At]
	at, moves, ok := s.slot(old, class)
	if !ok {
		return false, nil
	}
	value, rules, choices := unsafe.Pointer(&s.short_), s.short_.Rules[:], s.short_.Choices[:]
	if class == long {
		value, rules, choices = unsafe.Pointer(&s.long_), s.long_.Rules[:], s.long_.Choices[:]
	}
	head := (*askValueOfShort)(value) // before the rules, both sizes have the same fields
	head.Key, head.Count = keyOf(p.At), uint32(len(p.Rules))
	names := s.encode(p, rules, choices)
	if err := s.update(at, value); err != nil {
		if moves {
			s.give(at)
		}
		s.forget(names)
		return false, fmt.Errorf("writing listener %s: %w", p.Name, err)
	}
	s.work.Records++
	if moves {
		if err := s.writeKey(&head.Key, old, at); err != nil {
			s.give(at)
			s.forget(names)
			return false, fmt.Errorf("writing the address of listener %s: %w", p.Name, err)
		}
		if old != nil {
			s.give(*old)
		}
		s.keys[p.At] = &at
	}
	l := p.Entry
	left, moved := l.Address, p.Moves()
	s.config.Leave(l)
	s.config.Put(l, p.At)
	s.forget(l.Own)
	l.Own = names
	if moved {
		return true, s.removeKey(c, left)
	}
	return true, nil
}

// writeKey stores the place of a listener's address in value_keys.
func (s *values) writeKey(key *askValueKey, old *place, at place) error {
	added := old == nil && anywhere(key)
	if added {
		s.setAnywhere(+1)
	}
	word := uint32(at.class-short)<<28 | at.slot
	s.work.Records++
	s.work.Updates++
	s.work.Syscalls++
	s.work.Bytes += int(unsafe.Sizeof(*key) + unsafe.Sizeof(word))
	err := s.maps["value_keys"].Update(unsafe.Pointer(key), unsafe.Pointer(&word), ebpf.UpdateAny)
	if err != nil && added {
		s.setAnywhere(-1)
	}
	return err
}

// encode encodes the rules and choices of a listener, and returns the clusters of the choices.
func (s *values) encode(p *plan.ListenerPlan[listener], rules []askValueRule,
	choices []askValueChoice) (names listener) {
	for i := range p.Rules {
		from, to := &p.Rules[i], &rules[i]
		*to = askValueRule{Verdict: uint8(mesh.Deny)}
		if prefix(from.Source, &to.Source, &to.SourceMask) {
			to.Families |= 1
		}
		if prefix(from.Destination, &to.Destination, &to.DestinationMask) {
			to.Families |= 2
		}
		to.SourcePort, to.SourcePorts = ports(from.SourcePorts)
		to.DestinationPort, to.DestinationPorts = ports(from.DestinationPorts)
		if from.Chain < 0 {
			continue
		}
		to.Verdict = uint8(mesh.Refuse)
		same := func(r mesh.Rule) bool { return r.Chain == from.Chain } // has the same choices
		if j := slices.IndexFunc(p.Rules[:i], same); j >= 0 {
			to.Verdict, to.First, to.Count = rules[j].Verdict, rules[j].First, rules[j].Count
			continue
		}
		first := len(names)
		s.weights = s.weights[:0]
		for _, w := range p.Chain(from.Chain).Proxy.Clusters {
			if w.Weight == 0 {
				continue
			}
			c := s.config.Clusters[w.Name]
			if c == nil {
				c = s.name(w.Name)
			}
			c.Own.named++
			choices[len(names)] = askValueChoice{Cluster: c.Own.id, Epoch: s.epochs[c.Own.id]}
			names = append(names, c)
			s.weights = append(s.weights, w.Weight)
		}
		if n := len(names) - first; n > 0 {
			to.Verdict, to.First, to.Count = uint8(mesh.Accept), uint8(first), uint8(n)
			s.alias.Make(s.weights)
			for i := range s.weights {
				choices[first+i].Threshold, choices[first+i].Alias = s.alias.Threshold[i], uint32(first)+s.alias.Other[i]
			}
		}
	}
	return names
}

// prefix writes a prefix and its mask. It reports whether the prefix is an IPv6 one, which must not match IPv4-mapped
// addresses.
func prefix(p netip.Prefix, ip, mask *[4]uint32) (six bool) {
	*ip, *mask = [4]uint32{}, [4]uint32{}
	if !p.IsValid() {
		return false
	}
	b := p.Masked().Addr().As16()
	*ip = *(*[4]uint32)(unsafe.Pointer(&b))
	n := p.Bits()
	if p.Addr().Is4() {
		n += 96
	}
	m := [16]byte{}
	for i := range m {
		m[i] = byte(uint32(0xff00) >> min(8, max(0, n-8*i)))
	}
	*mask = *(*[4]uint32)(unsafe.Pointer(&m))
	return p.Addr().Is6()
}

// ports returns a range as its first port and the number of further ones.
func ports(r mesh.PortRange) (first, more uint16) {
	if r == (mesh.PortRange{}) {
		return 0, 65535
	}
	return r.From, r.To - r.From
}

// removeKey removes the key of an address, unless a listener of the change has that address.
func (s *values) removeKey(p *change, address plan.Address) error {
	at := s.keys[address]
	if at == nil || p.Takes(address) {
		return nil
	}
	key := keyOf(address)
	s.work.Deletes++
	s.work.Syscalls++
	s.work.Bytes += int(unsafe.Sizeof(key))
	if err := s.maps["value_keys"].Delete(unsafe.Pointer(&key)); err != nil {
		return fmt.Errorf("removing an address: %w", err)
	}
	delete(s.keys, address)
	s.give(*at)
	if anywhere(&key) {
		s.setAnywhere(-1)
	}
	return nil
}

func (s *values) setAnywhere(by int) {
	s.anywhere += uint64(by)
	s.locate(0, s.anywhere)
}

func (s *values) update(at place, value unsafe.Pointer) error {
	c := &s.classes[at.class]
	s.work.Updates++
	s.work.Syscalls++
	s.work.Bytes += 4 + int(c.m.ValueSize())
	return c.m.Update(unsafe.Pointer(&at.slot), value, ebpf.UpdateLock)
}

// keyOf returns the key by which programs look up a listener's address.
func keyOf(at plan.Address) (key askValueKey) {
	key.Address.Ip = *(*[4]uint32)(unsafe.Pointer(&at.IP))
	key.Address.Port = bits.ReverseBytes16(at.Port)
	key.Protocol = uint32(at.Protocol)
	return key
}

// anywhere reports whether a key stands for every address of its family.
func anywhere(key *askValueKey) bool {
	ip := &key.Address.Ip
	return ip[0]|ip[1]|ip[3] == 0 && (ip[2] == 0 || ip[2] == 0xffff0000)
}
