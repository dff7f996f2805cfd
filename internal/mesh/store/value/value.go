// Package value is the store that keeps each cluster and each listener in one map value, written by one system call:
// the simple comparator. bpf/value.h has the maps, and why they are arrays with a lock in each value.
//
// A replacement is one update in place. A resource that is new, or that grows or shrinks into another class of size, is
// written into a free slot first, and then the one word is changed that says where it is. Clusters are changed before
// listeners, and what is removed is removed last, so that a listener never names what is not there yet.
package value

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/alias"
)

// The limits of one resource, as in bpf/value.h.
const (
	MaxEndpoints = 1024 // of a cluster, that take connections
	MaxChoices   = 64   // weighted clusters of a listener, over all chains that can be reached
)

func init() {
	store.Register(store.Design{
		Name:   "value",
		Atomic: store.PerResource,
		Open:   open,
		Ask:    loadAsk,
	})
}

// classes of size, of clusters and of listeners.
const (
	small = iota
	medium
	large
	short
	long
	nClasses
)

// class is the slots of one size.
type class struct {
	m        *ebpf.Map
	size     int // bytes of a value
	holds    int // endpoints of a cluster
	capacity int // one slot less than there are: see Apply
	used     int
	next     uint32
	free     []uint32
}

type values struct {
	maps    askMaps
	places  []byte // value_places, mapped
	classes [nClasses]class
	options store.Options

	clusters  map[string]*cluster
	listeners map[string]*listener
	keys      map[askValueKey]*place // where listeners are; the place stays with the address, whoever has it
	endpoints int
	existing  int // clusters that are there
	anywhere  uint64
	ids       ids
	epochs    []uint32 // by number of a cluster

	// For one Apply, kept to be used again.
	plan     plan
	targets  []mesh.Target
	cluster_ askValueOfLarge
	short_   askValueOfShort
	long_    askValueOfLong
	alias    alias.Table
	weights  []uint32
	work     store.Work
}

// place is a slot; the class says of which map.
type place struct {
	class int
	slot  uint32
	owner string // of a listener's address: who has it
}

// cluster is a name that has a number, because it is there or because a listener names it.
type cluster struct {
	name  string
	id    uint32
	there bool
	place *place // nil: it has no endpoint that takes connections
	n     int    // such endpoints
	named int    // by how many choices of listeners
}

type listener struct {
	key   askValueKey
	names []*cluster // one for each choice
}

func open(o store.Options) (store.Store, error) {
	o = o.WithDefaults()
	s := &values{
		options: o, clusters: map[string]*cluster{}, listeners: map[string]*listener{}, keys: map[askValueKey]*place{},
		ids: ids{next: 1, limit: 2*o.MaxClusters + 1}, epochs: make([]uint32, 2*o.MaxClusters+1),
	}
	spec, err := loadAsk()
	if err != nil {
		return nil, err
	}
	spec.Programs = nil
	for i, c := range []struct {
		name     string
		capacity uint32
		holds    int
	}{
		// As many as there can be of each size, but of the largest: those are few, or memory would be several times as
		// much.
		small:  {"value_small", o.MaxClusters, len(askValueOfSmall{}.Endpoints)},
		medium: {"value_medium", min(o.MaxClusters, max(1, o.MaxEndpoints/17)), len(askValueOfMedium{}.Endpoints)},
		large:  {"value_large", min(o.MaxClusters, max(1, o.MaxEndpoints/512)), MaxEndpoints},
		short:  {"value_short", o.MaxListeners, 0},
		long:   {"value_long", max(1, o.MaxListeners/8), 0},
	} {
		spec.Maps[c.name].MaxEntries = c.capacity + 1
		s.classes[i] = class{capacity: int(c.capacity), holds: c.holds, size: int(spec.Maps[c.name].ValueSize)}
	}
	spec.Maps["value_keys"].MaxEntries = 2 * o.MaxListeners // a change inserts before it removes
	spec.Maps["value_places"].MaxEntries = 2*o.MaxClusters + 1
	if err := spec.LoadAndAssign(&s.maps, nil); err != nil {
		return nil, fmt.Errorf("making the maps of store value: %w", err)
	}
	for i, m := range []*ebpf.Map{small: s.maps.ValueSmall, medium: s.maps.ValueMedium, large: s.maps.ValueLarge,
		short: s.maps.ValueShort, long: s.maps.ValueLong} {
		s.classes[i].m = m
	}
	s.places, err = unix.Mmap(s.maps.ValuePlaces.FD(), 0, 8*int(2*o.MaxClusters+1), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		s.maps.Close()
		return nil, fmt.Errorf("mapping value_places: %w", err)
	}
	return s, nil
}

func (s *values) Close() error {
	return errors.Join(unix.Munmap(s.places), s.maps.Close())
}

func (s *values) Maps() map[string]*ebpf.Map {
	m := &s.maps
	return map[string]*ebpf.Map{
		"value_small": m.ValueSmall, "value_medium": m.ValueMedium, "value_large": m.ValueLarge, "value_short": m.ValueShort,
		"value_long": m.ValueLong,
		"value_keys": m.ValueKeys, "value_places": m.ValuePlaces,
	}
}

func (s *values) Cluster(name string) (uint32, bool) {
	if c := s.clusters[name]; c != nil && c.there {
		return c.id, true
	}
	return 0, false
}

// plan is a change as it is to be made.
type plan struct {
	clusters  []clusterPlan
	listeners []listenerPlan
	keys      map[askValueKey]string // addresses that listeners of the change have
	gone      map[string]bool        // listeners that the change replaces or removes
	names     map[string]bool        // of clusters, that are new
	room      [nClasses]int          // that the change takes, less what it gives
	late      [nClasses]int          // of what it gives, what it gives by removing
}

type clusterPlan struct {
	*mesh.Cluster
	n, class int // class < 0: nothing to write
}

type listenerPlan struct {
	*mesh.Listener
	key   askValueKey
	rules []mesh.Rule
	class int
}

// Apply makes the change. What can be wrong with it is found before anything is written.
//
// No class is ever filled to its last slot. That one is where a resource goes while its old slot is still in use;
// without it, two full classes could not change places.
func (s *values) Apply(ctx context.Context, change mesh.Change) (store.Work, error) {
	s.work = store.Work{}
	if err := ctx.Err(); err != nil {
		return s.work, err
	}
	if err := s.check(&change); err != nil {
		return s.work, err
	}
	err := s.write(&change)
	return s.work, err
}

func (s *values) write(change *mesh.Change) error {
	// Removing comes last, so that nothing is missed meanwhile, unless the room is needed.
	for class, late := range s.plan.late {
		if c := &s.classes[class]; c.used+s.plan.room[class]+late > c.capacity {
			if err := s.remove(change); err != nil {
				return err
			}
			break
		}
	}
	if err := until(len(s.plan.clusters), func(i int) (bool, error) {
		return s.writeCluster(&s.plan.clusters[i])
	}); err != nil {
		return err
	}
	if err := until(len(s.plan.listeners), func(i int) (bool, error) {
		return s.writeListener(&s.plan.listeners[i])
	}); err != nil {
		return err
	}
	return s.remove(change)
}

func (s *values) remove(change *mesh.Change) error {
	for _, name := range change.RemovedListeners {
		if l := s.listeners[name]; l != nil {
			delete(s.listeners, name)
			s.forget(l.names)
			if err := s.removeKey(l.key); err != nil {
				return err
			}
		}
	}
	for _, name := range change.RemovedClusters {
		if c := s.clusters[name]; c != nil && c.there {
			c.there = false
			s.existing--
			s.empty(c, 0)
			s.release(c)
		}
	}
	return nil
}

// until does n things, in order but for those that find no room yet, which are tried again when others have made some.
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
	for len(waiting) > 0 {
		var still []int
		for _, i := range waiting {
			done, err := do(i)
			if err != nil {
				return err
			}
			if !done {
				still = append(still, i)
			}
		}
		if len(still) == len(waiting) {
			return errors.New("store value: there is no room for a change that was found to fit")
		}
		waiting = still
	}
	return nil
}

func (s *values) writeCluster(p *clusterPlan) (bool, error) {
	c := s.clusters[p.Name]
	if c == nil {
		c = s.name(p.Name)
	}
	if p.class < 0 {
		s.empty(c, noEndpoints)
		s.exist(c)
		return true, nil
	}
	at := place{class: p.class}
	moves := c.place == nil || c.place.class != p.class
	if moves {
		slot, ok := s.classes[p.class].take()
		if !ok {
			return false, nil
		}
		at.slot = slot
	} else {
		at.slot = c.place.slot
	}
	s.targets = p.Targets(s.targets[:0])
	v := &s.cluster_
	v.Cluster, v.Epoch, v.Count, v.MaxConnections = c.id, s.epochs[c.id], uint32(len(s.targets)), p.Breakers.MaxConnections
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
	// A smaller class is the head of the largest.
	if err := s.update(at, unsafe.Pointer(v)); err != nil {
		if moves {
			s.classes[at.class].give(at.slot)
		}
		return false, fmt.Errorf("writing cluster %s: %w", p.Name, err)
	}
	s.work.Records++
	s.endpoints += len(s.targets) - c.n
	c.n = len(s.targets)
	s.exist(c)
	if moves {
		s.locate(c.id, uint64(at.class-small+1)<<28|uint64(at.slot))
		if old := c.place; old != nil {
			s.classes[old.class].give(old.slot)
			*old = at
		} else {
			c.place = &at
		}
	}
	return true, nil
}

func (s *values) exist(c *cluster) {
	if !c.there {
		c.there = true
		s.existing++
	}
}

// noEndpoints is what says of a cluster that it is there and has none.
const noEndpoints = 1

// empty takes a cluster's endpoints away, and says what is left.
func (s *values) empty(c *cluster, word uint64) {
	s.locate(c.id, word)
	if c.place == nil {
		return
	}
	s.classes[c.place.class].give(c.place.slot)
	s.endpoints -= c.n
	c.place, c.n = nil, 0
}

// name gives a number to a cluster.
func (s *values) name(name string) *cluster {
	c := &cluster{name: name, id: s.ids.take()}
	s.clusters[name] = c
	return c
}

// release takes a cluster's number back, once it is gone and no listener names it.
func (s *values) release(c *cluster) {
	if c.there || c.named > 0 {
		return
	}
	delete(s.clusters, c.name)
	s.epochs[c.id]++
	s.ids.give(c.id)
}

func (s *values) forget(names []*cluster) {
	for _, c := range names {
		c.named--
		s.release(c)
	}
}

// locate says where a cluster is.
func (s *values) locate(id uint32, word uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&s.places[8*id])), word)
	s.work.Records++
	s.work.Bytes += 8
}

func (s *values) writeListener(p *listenerPlan) (bool, error) {
	old := s.keys[p.key]
	at := place{class: p.class, owner: p.Name}
	moves := old == nil || old.class != p.class
	if moves {
		slot, ok := s.classes[p.class].take()
		if !ok {
			return false, nil
		}
		at.slot = slot
	} else {
		at.slot = old.slot
	}
	var value unsafe.Pointer
	var names []*cluster
	if p.class == short {
		v := &s.short_
		v.Key, v.Count = p.key, uint32(len(p.rules))
		names = s.encode(p, v.Rules[:], v.Choices[:])
		value = unsafe.Pointer(v)
	} else {
		v := &s.long_
		v.Key, v.Count = p.key, uint32(len(p.rules))
		names = s.encode(p, v.Rules[:], v.Choices[:])
		value = unsafe.Pointer(v)
	}
	if err := s.update(at, value); err != nil {
		if moves {
			s.classes[at.class].give(at.slot)
		}
		s.forget(names)
		return false, fmt.Errorf("writing listener %s: %w", p.Name, err)
	}
	s.work.Records++
	if moves {
		if old == nil && anywhere(&p.key) {
			s.setAnywhere(+1)
		}
		word := uint32(at.class-short)<<28 | at.slot
		s.work.Records++
		s.work.Updates++
		s.work.Syscalls++
		s.work.Bytes += int(unsafe.Sizeof(p.key) + unsafe.Sizeof(word))
		if err := s.maps.ValueKeys.Update(unsafe.Pointer(&p.key), unsafe.Pointer(&word), ebpf.UpdateAny); err != nil {
			s.classes[at.class].give(at.slot)
			s.forget(names)
			if old == nil && anywhere(&p.key) {
				s.setAnywhere(-1)
			}
			return false, fmt.Errorf("writing the address of listener %s: %w", p.Name, err)
		}
		if old != nil {
			s.classes[old.class].give(old.slot)
			*old = at
		} else {
			s.keys[p.key] = &at
		}
	}
	s.keys[p.key].owner = p.Name
	l := s.listeners[p.Name]
	if l == nil {
		s.listeners[p.Name] = &listener{p.key, names}
		return true, nil
	}
	s.forget(l.names)
	before := l.key
	l.key, l.names = p.key, names
	if before != p.key {
		return true, s.removeKey(before)
	}
	return true, nil
}

// encode writes rules and choices of a listener, and gives the clusters of the choices.
func (s *values) encode(p *listenerPlan, rules []askValueRule, choices []askValueChoice) (names []*cluster) {
	for i := range p.rules {
		from, to := &p.rules[i], &rules[i]
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
		known := false
		for j := range i { // another rule of the same chain has the choices
			if p.rules[j].Chain == from.Chain {
				to.Verdict, to.First, to.Count = rules[j].Verdict, rules[j].First, rules[j].Count
				known = true
				break
			}
		}
		if known {
			continue
		}
		first := len(names)
		s.weights = s.weights[:0]
		for _, w := range clusters(p.Listener, from.Chain) {
			if w.Weight == 0 {
				continue
			}
			c := s.clusters[w.Name]
			if c == nil {
				c = s.name(w.Name)
			}
			c.named++
			choices[len(names)] = askValueChoice{Cluster: c.id, Epoch: s.epochs[c.id]}
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

// prefix writes a prefix and its mask. It says whether the prefix is of IPv6, which does not hold IPv4-mapped
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

// ports is a range as its first port and how many more there are.
func ports(r mesh.PortRange) (first, more uint16) {
	if r == (mesh.PortRange{}) {
		return 0, 65535
	}
	return r.From, r.To - r.From
}

// removeKey takes an address away, unless another listener has it now.
func (s *values) removeKey(key askValueKey) error {
	if _, ok := s.plan.keys[key]; ok {
		return nil
	}
	at := s.keys[key]
	if at == nil {
		return nil
	}
	s.work.Deletes++
	s.work.Syscalls++
	s.work.Bytes += int(unsafe.Sizeof(key))
	if err := s.maps.ValueKeys.Delete(unsafe.Pointer(&key)); err != nil {
		return fmt.Errorf("removing an address: %w", err)
	}
	delete(s.keys, key)
	s.classes[at.class].give(at.slot)
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
	s.work.Bytes += 4 + c.size
	return c.m.Update(unsafe.Pointer(&at.slot), value, ebpf.UpdateLock)
}

// keyOf is the address of a listener as programs look for it.
func keyOf(l *mesh.Listener) (key askValueKey) {
	ip := l.Address.Addr().As16()
	key.Address.Ip = *(*[4]uint32)(unsafe.Pointer(&ip))
	key.Address.Port = bits.ReverseBytes16(l.Address.Port())
	key.Protocol = uint32(l.Protocol)
	return key
}

// anywhere says whether the address stands for any of its family.
func anywhere(key *askValueKey) bool {
	ip := &key.Address.Ip
	return ip[0]|ip[1]|ip[3] == 0 && (ip[2] == 0 || ip[2] == 0xffff0000)
}

func (c *class) take() (uint32, bool) {
	if n := len(c.free); n > 0 {
		slot := c.free[n-1]
		c.free = c.free[:n-1]
		c.used++
		return slot, true
	}
	if int(c.next) > c.capacity {
		return 0, false
	}
	c.used++
	c.next++
	return c.next - 1, true
}

func (c *class) give(slot uint32) {
	c.used--
	c.free = append(c.free, slot)
}

// ids are the numbers of clusters. Those that nobody has had come first, then the one that was given back first, so
// that its epoch takes long to come round, and none is given back and out in one change.
type ids struct {
	next, limit uint32
	free        []uint32
	head        int
}

func (x *ids) take() uint32 {
	if x.next < x.limit {
		x.next++
		return x.next - 1
	}
	id := x.free[x.head]
	if x.head++; x.head > len(x.free)/2 {
		x.free = x.free[:copy(x.free, x.free[x.head:])]
		x.head = 0
	}
	return id
}

func (x *ids) give(id uint32) { x.free = append(x.free, id) }

func (x *ids) left() int { return int(x.limit-x.next) + len(x.free) - x.head }
