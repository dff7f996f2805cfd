// Package keep implements the common part of the stores that keep records: it turns changes into trees, puts the trees
// into maps step by step in Kmesh's order, and remembers where each record is. How the records are kept in maps depends
// on the store's implementation of Records.
package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
	"tare/internal/mesh/store/records"
)

// Records allocates and writes the records of a store. Keys are never 0.
type Records interface {
	// Room reports whether the needed records fit in addition to the existing ones. It may enlarge the store first.
	Room(need records.Counts) bool
	// Hint returns advice for the user if there is no room.
	Hint() string
	// Alloc allocates a key for a new record.
	Alloc(class records.Class) (key uint32, err error)
	// Write writes a record. last means that this write completes the record.
	Write(key uint32, class records.Class, value []byte, last bool) error
	// Free frees a record and its key.
	Free(key uint32) error
	// Settle is called after each change, for example to change the size of a pool.
	Settle()
	// Close releases what Records holds, except for the maps passed to New, which Store closes.
	Close() error
}

// Tops are the maps in which trees begin.
type Tops struct {
	Listeners, Clusters *ebpf.Map
}

// Store is a store.Store that keeps its configuration in Records.
type Store struct {
	kernel  *Kernel
	records Records
	tops    Tops
	// ordered means that a resource is replaced in this order: its new records are written, then its value in a map of
	// tops, and then its old records are removed. Otherwise the old records are removed first, as in Kmesh.
	ordered bool
	maps    map[string]*ebpf.Map

	mu      sync.Mutex // guards the fields below; one goroutine applies, but another may close
	closed  bool
	config  plan.Config[kept, kept]
	numbers plan.Numbers // of clusters

	plan   change // the plan of the latest change
	tree   records.Tree
	counts []records.Counts // of the change's clusters, then of its listeners
	old    []uint32         // the keys of the records that replace removes last, if ordered
	key    [records.NameSize]byte
}

type change = plan.Plan[kept, kept]

// kept holds the location of a cluster or a listener in the maps.
type kept struct {
	id      uint32   // of a cluster
	keys    []uint32 // the keys of its records
	counts  records.Counts
	present bool // it has a value in a map of tops
}

// New makes a store from empty maps. The store then owns the maps and r.
func New(k *Kernel, r Records, tops Tops, layout records.Layout, maps map[string]*ebpf.Map, o store.Options,
	ordered bool) *Store {
	s := &Store{
		kernel: k, records: r, tops: tops, ordered: ordered, maps: maps,
		config: plan.New[kept, kept](o), numbers: plan.NewNumbers(0, o.ClusterNumbers()),
	}
	s.tree.Layout = layout
	return s
}

// Maps implements store.Store.
func (s *Store) Maps() map[string]*ebpf.Map { return s.maps }

// Records returns the Records that s was made with, for tests.
func (s *Store) Records() Records { return s.records }

// Cluster implements store.Store.
func (s *Store) Cluster(name string) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.config.Clusters[name]
	if c == nil {
		return 0, false
	}
	return c.Own.id, true
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.records.Close(), store.CloseMaps(s.maps))
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
	p := &s.plan
	defer p.Reset()
	if err := s.config.Plan(p, change, plan.AllEndpoints); err != nil {
		return s.kernel.Work, err
	}
	if err := s.count(p); err != nil {
		return s.kernel.Work, err
	}
	// Clusters are removed last, so that no listener names a missing one in the meantime, unless the change needs their
	// room.
	goFirst := !s.fits(p, false)
	if goFirst && (len(p.GoneClusters) == 0 || !s.fits(p, true)) {
		return s.kernel.Work, s.full(p)
	}
	err := s.execute(p, goFirst)
	s.records.Settle()
	if err != nil {
		s.forgetAbsent()
	}
	return s.kernel.Work, err
}

// count builds the trees of a change to count their records. The last tree stays in s.tree.
func (s *Store) count(p *change) error {
	s.counts = s.counts[:0]
	for _, c := range p.Clusters {
		if err := s.tree.Cluster(c.Cluster, 0); err != nil {
			return store.TooLarge(c.Name, "%s", err)
		}
		s.counts = append(s.counts, s.tree.Counts)
	}
	for _, l := range p.Listeners {
		if err := s.tree.Listener(l.Listener, l.Rules); err != nil {
			return store.TooLarge(l.Name, "%s", err)
		}
		s.counts = append(s.counts, s.tree.Counts)
	}
	return nil
}

// fits reports whether there is room for each step of a change. goFirst means that clusters are removed first.
func (s *Store) fits(p *change, goFirst bool) bool {
	n := need{ordered: s.ordered}
	for _, l := range p.GoneListeners {
		n.step(records.Counts{}, l.Own.counts)
	}
	clusters := len(s.config.Clusters)
	if goFirst {
		clusters -= len(p.GoneClusters)
		for _, c := range p.GoneClusters {
			n.step(records.Counts{}, c.Own.counts)
		}
	}
	for i, c := range p.Clusters {
		var freed records.Counts
		if c.Old == nil {
			clusters++
		} else {
			freed = c.Old.Own.counts
		}
		n.step(s.counts[i], freed)
	}
	for i := range p.Listeners {
		n.step(s.counts[len(p.Clusters)+i], p.Listeners[i].Entry.Own.counts)
	}
	return clusters <= int(s.tops.Clusters.MaxEntries()) && (n.most.Sum() == 0 || s.records.Room(n.most))
}

// need counts the records that a change needs in addition to the existing ones: now is the number after the steps so
// far, and most the highest number during them.
type need struct {
	ordered   bool
	now, most records.Counts
}

// step counts one step, which makes some records and frees others.
func (n *need) step(counts, freed records.Counts) {
	for i := range counts {
		if n.ordered { // the new and the old records exist at the same time
			n.most[i] = max(n.most[i], n.now[i]+counts[i])
		}
		n.now[i] += counts[i] - freed[i]
		n.most[i] = max(n.most[i], n.now[i])
	}
}

// full returns the error for a change that does not fit.
func (s *Store) full(p *change) error {
	var sum records.Counts
	for _, c := range s.counts {
		for i := range sum {
			sum[i] += c[i]
		}
	}
	return fault.New(fault.Usage, p.Last(), s.records.Hint(), "the store has no room for the %d records of the change",
		sum.Sum())
}

// execute carries out the change.
func (s *Store) execute(p *change, goFirst bool) error {
	for i := range p.Listeners {
		// Listeners leave their old addresses before others take them.
		if l := &p.Listeners[i]; l.Moves() {
			if err := s.removeListener(l.Entry); err != nil {
				return err
			}
		}
	}
	for _, l := range p.GoneListeners {
		if err := s.removeListener(l); err != nil {
			return err
		}
		delete(s.config.Listeners, l.Name)
	}
	if goFirst {
		if err := s.removeClusters(p); err != nil {
			return err
		}
	}
	again := len(s.counts) > 1 // count has kept only the last tree
	for i := range p.Clusters {
		if err := s.setCluster(&p.Clusters[i], again); err != nil {
			return fmt.Errorf("writing cluster %s: %w", p.Clusters[i].Name, err)
		}
	}
	for i := range p.Listeners {
		if err := s.setListener(&p.Listeners[i], again); err != nil {
			return fmt.Errorf("writing listener %s: %w", p.Listeners[i].Name, err)
		}
	}
	if goFirst {
		return nil
	}
	return s.removeClusters(p)
}

func (s *Store) setCluster(p *plan.ClusterPlan[kept], again bool) error {
	c := p.Old
	if c == nil {
		c = s.config.Name(p.Name)
		c.Own.id, _ = s.numbers.Oldest() // there are more numbers than clusters
	}
	if again {
		if err := s.tree.Cluster(p.Cluster, c.Own.id); err != nil {
			return err
		}
	} else {
		s.tree.SetID(c.Own.id)
	}
	s.config.Set(c, true, p.Endpoints)
	return s.replace(&c.Own, s.topOfCluster(c.Name))
}

func (s *Store) setListener(p *plan.ListenerPlan[kept], again bool) error {
	l := p.Entry
	if again {
		if err := s.tree.Listener(p.Listener, p.Rules); err != nil {
			return err
		}
	}
	s.config.Put(l, p.At)
	return s.replace(&l.Own, s.topOfListener(p.At))
}

// top is the map element in which a tree begins.
type top struct {
	fd  int
	key []byte
}

func (s *Store) topOfCluster(name string) top {
	clear(s.key[copy(s.key[:], name):])
	return top{s.tops.Clusters.FD(), s.key[:]}
}

func (s *Store) topOfListener(at plan.Address) top {
	records.PutKey(s.key[:], at)
	return top{s.tops.Listeners.FD(), s.key[:records.AddressSize]}
}

// replace replaces r with s.tree.
func (s *Store) replace(r *kept, at top) error {
	if s.ordered {
		s.old = append(s.old[:0], r.keys...)
		counts, present := r.counts, r.present
		if err := s.insert(r, at); err != nil {
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
		if err := s.kernel.Delete(at.fd, at.key); err != nil {
			return err
		}
	}
	return s.insert(r, at)
}

// insert carries out the steps of the tree. If a step fails, insert removes what it wrote.
func (s *Store) insert(r *kept, at top) (err error) {
	t := &s.tree
	r.counts = t.Counts
	r.keys = slices.Grow(r.keys[:0], t.Len()-1)[:t.Len()-1]
	done := 0 // records allocated so far, in order
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
			if err = s.kernel.Update(at.fd, at.key, t.Bytes(0)); err == nil {
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
	if r.present && !s.ordered { // if ordered, the value is written last, so the map still has the old value
		r.present = false
		errs = append(errs, s.kernel.Delete(at.fd, at.key))
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

// remove removes a resource from the maps. If ordered, it removes the value first; otherwise the records, as Kmesh
// does.
func (s *Store) remove(r *kept, at top) error {
	if !r.present {
		return nil
	}
	var errs [2]error
	if s.ordered {
		errs[0] = s.kernel.Delete(at.fd, at.key)
		errs[1] = s.free(r.keys)
	} else {
		errs[0] = s.free(r.keys)
		errs[1] = s.kernel.Delete(at.fd, at.key)
	}
	r.keys, r.counts, r.present = r.keys[:0], records.Counts{}, false
	return errors.Join(errs[:]...)
}

func (s *Store) removeListener(l *plan.Listener[kept]) error {
	s.config.Leave(l)
	return s.remove(&l.Own, s.topOfListener(l.Address))
}

func (s *Store) removeClusters(p *change) error {
	for _, c := range p.GoneClusters {
		err := s.remove(&c.Own, s.topOfCluster(c.Name))
		s.forget(c)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) forget(c *plan.Cluster[kept]) {
	s.config.Set(c, false, 0)
	delete(s.config.Clusters, c.Name)
	s.numbers.Give(c.Own.id)
}

// forgetAbsent removes from the bookkeeping, after a failed change, the resources that are not in the maps.
func (s *Store) forgetAbsent() {
	for _, c := range s.config.Clusters {
		if !c.Own.present {
			s.forget(c)
		}
	}
	for name, l := range s.config.Listeners {
		if !l.Own.present {
			delete(s.config.Listeners, name)
			s.config.Leave(l)
		}
	}
}
