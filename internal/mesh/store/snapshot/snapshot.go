// Package snapshot implements a store that keeps a whole configuration as a tree that programs reach from one root
// word. A change builds its new parts in memory mapped from the kernel, and publishes them by one atomic write. It
// makes no system call for this, and programs never see a part of a change, however many resources the change has.
// bpf/snapshot.h describes the tree as programs read it, and layout.go as the store writes it.
package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/bpf"
	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/alias"
	"tare/internal/mesh/store/plan"
)

func init() {
	store.Register(Design)
}

// Design is the design "snapshot".
var Design = store.Design{
	Name:   "snapshot",
	Atomic: store.PerChange,
	Open:   open,
	Ask:    loadAsk,
}

// mapName is the map's name in bpf/snapshot.h.
const mapName = askMapSsLines

// Store writes one map. It remembers the names and locations of resources. The configuration itself is only in the map.
type Store struct {
	mu     sync.Mutex // held by Apply and Close, because Close may be called during Apply
	lines  *ebpf.Map
	mem    []byte  // the map's memory, for unmapping
	m      words   // the same memory
	root   *uint64 // the word that programs follow
	seed   uint64
	g      geometry
	grace  waiter
	waited error // the error of the last wait for programs; take resets it

	held
	room *room

	// Lines that programs may still see. Lines that a change drops move to old when the change is made, to sealed while a
	// grace period runs, and then to ready, from which they are freed.
	dropped, old, sealed, ready chain

	stamp uint64     // of the change that is being made
	work  store.Work // of the change that is being made

	// Buffers of a change.
	targets []mesh.Target
	weights []uint32
	chosen  []uint32 // slots
	alias   alias.Table
	plan    change
	uses    []*known
}

// piece is a run of lines.
type piece struct{ line, lines uint32 }

// held is the bookkeeping of the configuration that programs see.
type held struct {
	generation  uint64
	record      uint32 // line of the root
	slotTree    tree
	bucketTree  tree
	unspecified [2]uint32 // numbers of listeners for any IPv4 and any IPv6 address

	config plan.Config[cluster, listener]
	slots  plan.Numbers // of clusters
	ids    plan.Numbers
}

type (
	change = plan.Plan[cluster, listener]
	known  = plan.Cluster[cluster]
)

// tree is one of the root's two trees.
type tree struct{ branches, leaves []node }

type node struct {
	line  uint32
	stamp uint64 // the change that made the node and may write to it
}

func newTree(leaves uint32) tree {
	return tree{branches: make([]node, leaves/branchLeaves), leaves: make([]node, leaves)}
}

type cluster struct {
	slot, id uint32 // id is noID if the cluster does not exist
	at, text piece
	uses     uint32 // the number of times that listeners name it
}

type listener struct {
	at, text piece
	uses     []*known
}

func open(o store.Options) (store.Store, error) {
	o = o.WithDefaults()
	s := &Store{g: newGeometry(o)}
	if s.g.lines > maxLines {
		return nil, fault.New(fault.Usage, "", "lower the maximum numbers of clusters, listeners and endpoints",
			"a configuration of %d clusters, %d listeners and %d endpoints does not fit into one map", o.MaxClusters,
			o.MaxListeners, o.MaxEndpoints)
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) open() (err error) {
	g, err := newRCU()
	if err != nil {
		return err
	}
	s.grace = g
	s.lines, err = store.NewMap(&ebpf.MapSpec{Name: mapName, Type: ebpf.Array, KeySize: 4, ValueSize: lineBytes,
		MaxEntries: s.g.lines, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		return fmt.Errorf("a configuration of %d bytes: %w", int(s.g.lines)*lineBytes, err)
	}
	if _, s.mem, err = bpf.MapArray[[lineWords]uint32](s.lines); err != nil {
		return err
	}
	s.m = wordsOf(s.mem[:int(s.g.lines)*lineBytes])
	s.root = (*uint64)(unsafe.Pointer(&s.mem[0]))
	s.begin()
	return s.load()
}

// begin writes line 0 of an empty configuration.
func (s *Store) begin() {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	super := s.m.at(0, 1)
	super.put64(superSeed, binary.LittleEndian.Uint64(seed[:]))
	super[superMask], super[superListeners] = s.g.mask(), s.g.listeners()
}

// load rebuilds the bookkeeping from the configuration in the map, which a failed change has left as it was. It waits
// until no program can reach any other lines, and then frees them.
func (s *Store) load() error {
	if s.grace.running() {
		_ = s.grace.wait()
	}
	s.seed = s.m.get64(superSeed)
	s.grace.start()
	h, taken := s.read()
	if err := s.grace.wait(); err != nil {
		return err
	}
	s.held, s.stamp = h, h.generation
	s.dropped, s.old, s.sealed, s.ready = chain{}, chain{}, chain{}, chain{}
	s.room = newRoom(s.g.lines)
	for from := uint32(1); from < s.g.lines; {
		if taken[from] {
			from++
			continue
		}
		to := from
		for to < s.g.lines && !taken[to] {
			to++
		}
		s.room.give(from, to-from)
		from = to
	}
	return nil
}

// count changes the number of listeners for any address of a family by the given difference, if k is such an address.
func (h *held) count(k *key, by int32) {
	switch k.any() {
	case any4:
		h.unspecified[0] += uint32(by)
	case any6:
		h.unspecified[1] += uint32(by)
	}
}

// Maps implements store.Store.
func (s *Store) Maps() map[string]*ebpf.Map { return map[string]*ebpf.Map{mapName: s.lines} }

// Cluster implements store.Store.
func (s *Store) Cluster(name string) (uint32, bool) {
	c := s.config.Clusters[name]
	if c == nil || !c.There {
		return 0, false
	}
	return c.Own.id, true
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.grace != nil {
		errs = append(errs, s.grace.close())
	}
	if s.mem != nil {
		errs = append(errs, unix.Munmap(s.mem))
	}
	if s.lines != nil {
		errs = append(errs, s.lines.Close())
	}
	s.grace, s.mem, s.m, s.root = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Apply implements store.Store.
func (s *Store) Apply(ctx context.Context, change mesh.Change) (store.Work, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return store.Work{}, err
	}
	if s.mem == nil {
		return store.Work{}, errors.New("the store is closed")
	}
	s.work = store.Work{}
	s.recycle()
	if len(change.Clusters)+len(change.Listeners)+len(change.RemovedClusters)+len(change.RemovedListeners) == 0 {
		return s.work, nil
	}
	defer s.plan.Reset()
	if err := s.config.Plan(&s.plan, change, plan.UsableEndpoints); err != nil {
		return store.Work{}, err
	}
	if err := s.checkNames(); err != nil {
		return store.Work{}, err
	}
	s.stamp++
	err := s.make()
	if err == nil {
		err = s.commit()
	}
	if err != nil {
		// Nothing that programs can see has changed: the map still holds the old configuration.
		return store.Work{}, errors.Join(err, s.load())
	}
	return s.work, nil
}

// commit makes the new tree the configuration that programs see.
func (s *Store) commit() error {
	n := s.g.rootLines()
	line, err := s.take(n)
	if err != nil {
		return err
	}
	w := s.m.at(line, n)
	generation := s.generation + 1
	clear(w[:lineWords])
	w.put64(rootGeneration, generation)
	directory(w[lineWords:s.g.listeners()*lineWords], s.slotTree.branches)
	directory(w[s.g.listeners()*lineWords:], s.bucketTree.branches)

	word := uint64(line) | generation<<genBits
	if s.unspecified[0] > 0 {
		word |= any4
	}
	if s.unspecified[1] > 0 {
		word |= any6
	}
	atomic.StoreUint64(s.root, word)
	s.work.Bytes += 8
	s.drop(piece{s.record, n}) // programs could see it until now
	s.record, s.generation = line, generation
	s.room.join(&s.old, &s.dropped)
	if !s.grace.running() && s.old.lines >= s.g.lines/16 {
		s.seal()
	}
	return nil
}

func directory(w words, branches []node) {
	for i := range branches {
		w[i] = branches[i].line
	}
	clear(w[len(branches):])
}

// take allocates n lines that no program can see. It waits for programs only if no other lines are left.
func (s *Store) take(n uint32) (uint32, error) {
	line, ok := s.room.take(n)
	for !ok {
		switch {
		case s.ready.lines > 0:
			s.room.unhang(&s.ready, math.MaxInt)
		case s.grace.running():
			s.work.GracePeriods++
			s.unseal()
		case s.old.lines+s.sealed.lines > 0 && s.waited == nil:
			s.seal()
		default:
			err := s.waited
			s.waited = nil
			return 0, errors.Join(errFull, err)
		}
		line, ok = s.room.take(n)
	}
	s.work.Records++
	s.work.Bytes += int(n) * lineBytes
	return line, nil
}

var errFull = errors.New("it does not fit into the map beside the current configuration")

// drop releases lines that programs may still see. They can be allocated again once no program can see them.
func (s *Store) drop(p piece) {
	if p.lines > 0 && p.line > 0 {
		s.room.hang(&s.dropped, p.line, p.lines)
	}
}

// seal begins to wait for all programs that may see the old lines.
func (s *Store) seal() {
	s.room.join(&s.sealed, &s.old)
	s.work.Syscalls++
	s.grace.start()
}

// unseal takes the result of a finished wait, or waits for it.
func (s *Store) unseal() {
	if s.waited = s.grace.wait(); s.waited == nil {
		s.room.join(&s.ready, &s.sealed)
	}
}

// recycle frees some of the ready lines. It frees more than a small change drops, so that the lines do not pile up for
// a later change to free.
func (s *Store) recycle() {
	if s.grace.over() {
		s.unseal()
	}
	s.room.unhang(&s.ready, 16)
}
