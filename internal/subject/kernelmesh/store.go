package kernelmesh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
)

// Store keeps the services that the data plane serves. It is the only way to its maps.
type Store interface {
	// Apply makes the data plane serve exactly the given services. New connections see each service whole: as it was, or as it is
	// to be. Services that do not change are not touched. An error leaves every service in one of the two states; a configuration that
	// is wrong or does not fit (a *fault.Error of code Usage) changes nothing.
	Apply(ctx context.Context, services []Service) (Changes, error)
}

// Changes is what Apply did.
type Changes struct {
	Added     int `json:"added"`
	Changed   int `json:"changed"`
	Removed   int `json:"removed"`
	Unchanged int `json:"unchanged"`
}

func (c Changes) String() string {
	return fmt.Sprintf("%d services added, %d changed, %d removed, %d unchanged", c.Added, c.Changed, c.Removed, c.Unchanged)
}

// mapStore is the Store over the maps of bpf/kernelmesh.c, whose head has the rules that make it safe under running programs.
type mapStore struct {
	maps  *kernelmeshMaps
	words []byte // km_tables, mapped
	grace *ebpf.Map
	inner *ebpf.Map
	cpus  int

	mu         sync.Mutex // guards all below
	services   map[kernelmeshServiceKey]*served
	serviceIDs ids
	endpointID ids
	slots      *extents
	epochs     []uint32 // by endpoint id: how often it has been given out
	retired    []uint32 // endpoint ids that no table names any more, held while connections to them are open
	generation uint64   // of the table written last
}

// served is a service as the maps hold it.
type served struct {
	Service
	id    uint32
	slots extent
	ids   map[netip.AddrPort]uint32 // endpoint ids by canonical address
}

// newMapStore takes over maps that are fresh. It does not own them, but what it makes itself; see close.
func newMapStore(maps *kernelmeshMaps) (*mapStore, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("counting CPUs: %w", err)
	}
	endpoints := maps.KmEndpoints.MaxEntries()
	s := &mapStore{
		maps:       maps,
		cpus:       cpus,
		services:   map[kernelmeshServiceKey]*served{},
		serviceIDs: ids{limit: maps.KmTables.MaxEntries()},
		endpointID: ids{limit: endpoints},
		slots:      newExtents(maps.KmSlots.MaxEntries()),
		epochs:     make([]uint32, endpoints),
	}
	size := int(maps.KmTables.MaxEntries()) * int(maps.KmTables.ValueSize())
	page := unix.Getpagesize()
	s.words, err = unix.Mmap(maps.KmTables.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping km_tables: %w", err)
	}
	spec := &ebpf.MapSpec{Name: "km_grace_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	if s.inner, err = ebpf.NewMap(spec); err != nil {
		return nil, errors.Join(fmt.Errorf("creating map km_grace_inner: %w", err), s.close())
	}
	s.grace, err = ebpf.NewMap(&ebpf.MapSpec{Name: "km_grace", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating map km_grace: %w", err), s.close())
	}
	return s, nil
}

func (s *mapStore) close() error {
	return errors.Join(s.grace.Close(), s.inner.Close(), unix.Munmap(s.words))
}

// wait returns when every program that runs now has ended. Any update of a map of maps does that: the kernel waits for an RCU grace
// period before it returns (maybe_wait_bpf_programs in kernel/bpf/syscall.c, since Linux 4.20). It takes some milliseconds.
func (s *mapStore) wait() error {
	if err := s.grace.Put(uint32(0), s.inner); err != nil {
		return fmt.Errorf("waiting for running programs: %w", err)
	}
	return nil
}

// setTable replaces the table of a service, in one store, under running programs.
func (s *mapStore) setTable(id uint32, e extent) {
	s.generation++
	word := uint64(e.base) | uint64(e.size)<<24 | s.generation<<40
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&s.words[8*int(id)])), word)
}

// change is one service's way from what is served to what is to be.
type change struct {
	key  kernelmeshServiceKey
	old  *served // nil: added
	next *served
	new  []uint32 // endpoint ids that next does not share with old
}

// Apply implements Store.
func (s *mapStore) Apply(ctx context.Context, services []Service) (Changes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var done Changes
	if err := ctx.Err(); err != nil {
		return done, err
	}
	if err := s.reap(); err != nil {
		return done, err
	}
	desired := make(map[kernelmeshServiceKey]bool, len(services))
	var changes []*change
	for _, service := range services {
		if err := service.check(); err != nil {
			s.abandon(changes)
			return done, fault.New(fault.Usage, "", "", "%s", err)
		}
		key := kernelmeshServiceKey{Address: toKernel(service.Address), Protocol: uint32(service.Protocol)}
		if desired[key] {
			s.abandon(changes)
			return done, fault.New(fault.Usage, "", "", "service %s is given twice", service)
		}
		desired[key] = true
		old := s.services[key]
		if old != nil && equal(old.Endpoints, service.Endpoints) {
			done.Unchanged++
			continue
		}
		c := &change{key: key, old: old}
		changes = append(changes, c)
		if err := s.plan(c, service); err != nil {
			s.abandon(changes)
			return Changes{}, err
		}
	}
	if err := s.write(changes); err != nil {
		s.abandon(changes)
		return done, err
	}
	return s.commit(changes, desired, done)
}

// plan finds room for what service is to be.
func (s *mapStore) plan(c *change, service Service) error {
	service.Endpoints = slices.Clone(service.Endpoints)
	c.next = &served{Service: service, ids: make(map[netip.AddrPort]uint32, len(service.Endpoints))}
	var ok bool
	if c.old != nil {
		c.next.id = c.old.id
	} else if c.next.id, ok = s.serviceIDs.take(); !ok {
		c.next = nil
		return fault.New(fault.Usage, "", "raise --max-services: old and new services are in the maps together while a change is made",
			"there are more services than the maps hold (%d)", s.serviceIDs.limit)
	}
	taking := uint32(0)
	for _, e := range service.Endpoints {
		if e.Weight > 0 {
			taking++
		}
		address := canonical(e.Address)
		if c.old != nil {
			if id, same := c.old.ids[address]; same {
				c.next.ids[address] = id
				continue
			}
		}
		id, ok := s.endpointID.take()
		if !ok {
			return s.noRoom(service)
		}
		s.epochs[id]++
		c.next.ids[address] = id
		c.new = append(c.new, id)
	}
	if c.next.slots, ok = s.slots.take(taking); !ok {
		return s.noRoom(service)
	}
	return nil
}

func (s *mapStore) noRoom(service Service) error {
	return fault.New(fault.Usage, "", "raise --max-endpoints: old and new endpoints are in the maps together while a change is made, and old ones stay "+
		"until their connections end", "the endpoints of service %s do not fit into the maps (%d endpoints)", service, s.endpointID.limit)
}

// abandon gives back what changes that will not be made had taken.
func (s *mapStore) abandon(changes []*change) {
	for _, c := range changes {
		if c.next == nil {
			continue
		}
		if c.old == nil {
			s.serviceIDs.give(c.next.id)
		}
		for _, id := range c.new {
			s.endpointID.give(id)
		}
		s.slots.give(c.next.slots)
	}
}

// write puts endpoints and slots of the changes into the maps, where no table names them yet.
func (s *mapStore) write(changes []*change) error {
	var endpointKeys, slotKeys []uint32
	var endpoints []kernelmeshEndpoint
	var slots []kernelmeshSlot
	for _, c := range changes {
		ids := make([]uint32, len(c.next.Endpoints))
		weights := make([]uint32, len(c.next.Endpoints))
		fresh := make(map[uint32]bool, len(c.new))
		for _, id := range c.new {
			fresh[id] = true
		}
		for i, e := range c.next.Endpoints {
			ids[i], weights[i] = c.next.ids[canonical(e.Address)], e.Weight
			if fresh[ids[i]] {
				endpointKeys = append(endpointKeys, ids[i])
				endpoints = append(endpoints, kernelmeshEndpoint{Address: toKernel(e.Address), Epoch: s.epochs[ids[i]]})
			}
		}
		for i, slot := range aliasTable(ids, weights) {
			slotKeys = append(slotKeys, c.next.slots.base+uint32(i))
			slots = append(slots, slot)
		}
		if c.old == nil {
			if err := s.maps.KmSvcCounts.Put(c.next.id, make([]kernelmeshServiceCounters, s.cpus)); err != nil {
				return fmt.Errorf("clearing the counters of service %s: %w", c.next, err)
			}
		}
	}
	if len(endpointKeys) > 0 {
		if _, err := s.maps.KmConnections.BatchUpdate(endpointKeys, make([]kernelmeshConnections, len(endpointKeys)), nil); err != nil {
			return fmt.Errorf("clearing the connection counters of %d endpoints: %w", len(endpointKeys), err)
		}
		if _, err := s.maps.KmEndpoints.BatchUpdate(endpointKeys, endpoints, nil); err != nil {
			return fmt.Errorf("writing %d endpoints: %w", len(endpointKeys), err)
		}
	}
	if len(slotKeys) > 0 {
		if _, err := s.maps.KmSlots.BatchUpdate(slotKeys, slots, nil); err != nil {
			return fmt.Errorf("writing %d slots: %w", len(slotKeys), err)
		}
	}
	return nil
}

// commit switches one service after the other, removes what is no longer desired, waits until no program can see the old, and gives it
// back. All insertions come before all removals, for a hash map hands an element that was removed to the next insertion at once.
func (s *mapStore) commit(changes []*change, desired map[kernelmeshServiceKey]bool, done Changes) (Changes, error) {
	var old []*served
	for i, c := range changes {
		s.setTable(c.next.id, c.next.slots)
		if c.old != nil {
			done.Changed++
			old = append(old, &served{slots: c.old.slots, ids: gone(c.old.ids, c.next.ids)})
		} else if err := s.maps.KmServices.Put(c.key, c.next.id); err != nil {
			s.abandon(changes[i:])
			return done, errors.Join(fmt.Errorf("adding service %s: %w", c.next, err), s.retire(old, nil))
		} else {
			done.Added++
		}
		s.services[c.key] = c.next
	}
	var removed []uint32
	for key, service := range s.services {
		if desired[key] {
			continue
		}
		if err := s.maps.KmServices.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return done, errors.Join(fmt.Errorf("removing service %s: %w", service, err), s.retire(old, removed))
		}
		delete(s.services, key)
		done.Removed++
		old = append(old, service)
		removed = append(removed, service.id)
	}
	return done, s.retire(old, removed)
}

// retire gives back what old services had, once no running program can see it. If that fails it is lost to this store, not reused.
//
// An endpoint that goes has its epoch set to 0 first, by which programs know not to count new connections to it: after the wait its
// counters only fall, and 0 open connections means that nobody will count at this id any more.
func (s *mapStore) retire(old []*served, services []uint32) error {
	if len(old) == 0 {
		return nil
	}
	var keys []uint32
	var endpoints []kernelmeshEndpoint
	for _, o := range old {
		for address, id := range o.ids {
			keys = append(keys, id)
			endpoints = append(endpoints, kernelmeshEndpoint{Address: toKernel(address)})
		}
	}
	if len(keys) > 0 {
		if _, err := s.maps.KmEndpoints.BatchUpdate(keys, endpoints, nil); err != nil {
			return fmt.Errorf("retiring %d endpoints: %w", len(keys), err)
		}
	}
	if err := s.wait(); err != nil {
		return err
	}
	for _, o := range old {
		s.slots.give(o.slots)
	}
	for _, id := range services {
		s.serviceIDs.give(id)
	}
	s.retired = append(s.retired, keys...)
	return s.reap()
}

// reap gives back the retired endpoint ids whose connections have all ended.
func (s *mapStore) reap() error {
	var err error
	s.retired = slices.DeleteFunc(s.retired, func(id uint32) bool {
		c, e := s.connections(id)
		if e != nil {
			err = e
			return false
		}
		if c.Opened != c.Closed+c.Failed {
			return false
		}
		s.endpointID.give(id)
		return true
	})
	return err
}

func (s *mapStore) connections(id uint32) (kernelmeshConnections, error) {
	var c kernelmeshConnections
	if err := s.maps.KmConnections.Lookup(id, &c); err != nil {
		return c, fmt.Errorf("reading the connections of endpoint %d: %w", id, err)
	}
	return c, nil
}

// gone is what is in old and not in next.
func gone(old, next map[netip.AddrPort]uint32) map[netip.AddrPort]uint32 {
	ids := map[netip.AddrPort]uint32{}
	for address, id := range old {
		if _, stays := next[address]; !stays {
			ids[address] = id
		}
	}
	return ids
}

func equal(a, b []Endpoint) bool {
	return slices.EqualFunc(a, b, func(a, b Endpoint) bool {
		return a.Weight == b.Weight && canonical(a.Address) == canonical(b.Address)
	})
}

// toKernel is an address as programs compare it: 16 bytes and port in network byte order.
func toKernel(a netip.AddrPort) kernelmeshAddress {
	var k kernelmeshAddress
	ip := a.Addr().As16()
	for i := range k.Ip {
		k.Ip[i] = binary.NativeEndian.Uint32(ip[4*i:])
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], a.Port())
	k.Port = binary.NativeEndian.Uint16(port[:])
	return k
}
