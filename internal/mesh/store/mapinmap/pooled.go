package mapinmap

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
	"tare/internal/mesh/store/records"
	"tare/internal/mesh/store/records/keep"
)

// The variants of pooled, as in the proposal: all maps are made at the start; some are made at the start and the rest
// in the background; or maps are made on demand. With the last two, the pool grows and shrinks.
const (
	ahead      = "ahead"
	background = "background"
	onDemand   = "ondemand"
)

// Pooled makes the maps of records in advance, in parallel, and reuses them. A list in memory holds the free ones. A
// change does not wait for readers, unless it needs more records than are free. Every map of the pool is an open file
// of the writer, so the limit of open files limits the pool.
//
// It differs from Kmesh's store in three ways. A free record is found at once, not by a search from the first record.
// The store remembers the records of a resource, and does not read them back to free them. The pool grows and shrinks
// in the background, to twice the number of used records; Kmesh's pool changes in steps of 32768 and 8192.
var Pooled = store.Design{
	Name:     "pooled",
	Variants: []string{ahead, background, onDemand},
	Atomic:   store.PerRecord,
	Open:     openPooled,
	Ask:      loadAsk,
}

const (
	defaultPool = 32768 // as in Kmesh
	smallPool   = 256   // initial size with onDemand, minimum initial size with background, and minimum growth
	growAt      = 0.7   // share of used records at which the pool grows
	shrinkAt    = 0.3   // share of used records at which the pool shrinks
	chunk       = 512   // records that one thread makes in sequence
	threads     = 64
	otherFiles  = 1024 // files that the process may open besides the maps
)

func openPooled(o store.Options) (store.Store, error) {
	given := o.MaxClusters != 0 || o.MaxListeners != 0 || o.MaxEndpoints != 0
	o = o.WithDefaults()
	want := min(need(o), maxRecords-1)
	p := &pooled{elastic: o.Variant == background || o.Variant == onDemand}
	all := want
	if !given {
		all = min(want, defaultPool)
	}
	room := want
	if !p.elastic {
		room = all
	}
	p.floor, p.first = all, all
	switch o.Variant {
	case background:
		p.first = max(smallPool, all/8)
	case onDemand:
		p.floor, p.first = smallPool, smallPool
	}
	return open(o, room, p.start)
}

// pooled keeps records in a pool of maps. Only one goroutine uses it. That goroutine gives keys to background
// goroutines that change the pool's size, and gets the keys back through the channel running.
type pooled struct {
	kernel  *keep.Kernel
	outer   int
	limit   int  // maximum number of records
	elastic bool // the pool grows and shrinks
	floor   int  // the pool does not shrink below this
	first   int  // the pool's size at the start

	fds     []int32      // by key; 0 if there is no map
	free    plan.Numbers // keys with a map; the key returned last is used first, because its memory is in the cache
	missing plan.Numbers // keys without a map
	size    int          // the number of keys with a map, except those that are being removed
	running chan resized // gets the result of the change of size that is under way; nil: none is
}

// resized is the result of a change of the pool's size: the keys that have a map now, and those that have none.
type resized struct {
	with, without []uint32
	work          store.Work
	err           error
}

func (p *pooled) start(k *keep.Kernel, outer *ebpf.Map) (keep.Records, error) {
	p.kernel, p.outer, p.limit = k, outer.FD(), int(outer.MaxEntries())-1
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("counting open files: %w", err)
	}
	other := len(open) + otherFiles
	files, err := files(p.limit + other)
	if err != nil {
		return nil, err
	}
	p.limit = max(0, min(p.limit, files-other))
	p.fds = make([]int32, p.limit+1)
	p.missing = plan.NewNumbers(1, uint32(len(p.fds)))
	return p, p.fill()
}

// fill makes the first part of the pool, and starts making the rest in the background.
func (p *pooled) fill() error {
	if n := min(p.first, p.limit) - p.size; n > 0 {
		r := p.make(p.take(n))
		p.merge(r)
		if r.err != nil {
			return errors.Join(r.err, p.Close())
		}
	}
	if p.size < p.floor {
		p.resize(p.floor)
	}
	return nil
}

// take allocates up to n keys without maps.
func (p *pooled) take(n int) []uint32 {
	keys := make([]uint32, min(n, p.missing.Left()))
	for i := range keys {
		keys[i], _ = p.missing.Latest()
	}
	return keys
}

func (p *pooled) merge(r resized) {
	for _, key := range slices.Backward(r.with) {
		p.free.Give(key)
	}
	p.size += len(r.with)
	for _, key := range r.without {
		p.missing.Give(key)
	}
}

// make makes maps for keys and puts them into the map of maps. Its threads wait for readers at the same time.
func (p *pooled) make(keys []uint32) (all resized) {
	n := len(keys)
	all = p.parallel(keys, chunk, func(keys []uint32) (r resized) {
		fds := make([]uint32, len(keys))
		for i := range keys {
			fd, err := keep.CreateMap(inner)
			if err != nil {
				r.err = fmt.Errorf("making record %d of a pool of at most %d: %w", keys[i], p.limit, err)
				r.without, keys, fds = keys[i:], keys[:i], fds[:i]
				break
			}
			fds[i] = uint32(fd)
		}
		done, err := keep.SetAll(p.outer, keys, fds)
		if err != nil {
			r.err = fmt.Errorf("putting records into the map of maps: %w", err)
		}
		for i, key := range keys {
			if i >= done {
				unix.Close(int(fds[i]))
				continue
			}
			p.fds[key] = int32(fds[i])
		}
		r.with, r.without = keys[:done], append(r.without, keys[done:]...)
		return r
	})
	// Waits of different threads overlap; those of one thread do not.
	chunks := (n + chunk - 1) / chunk
	rounds := (chunks + threads - 1) / threads
	all.work = store.Work{Updates: n, Syscalls: n + chunks, Bytes: 8 * n, GracePeriods: rounds}
	if keep.LookupsWait() {
		all.work.Syscalls, all.work.GracePeriods = 2*n, rounds*min(n, chunk)
	}
	return all
}

// unmake removes maps that are not in use.
func (p *pooled) unmake(keys []uint32) resized {
	// The kernel cannot remove several maps with one wait.
	return p.parallel(keys, (len(keys)+threads-1)/threads, func(keys []uint32) (r resized) {
		k := keep.NewKernel()
		for i, key := range keys {
			if err := k.Unset(p.outer, key); err != nil {
				return resized{with: keys[i:], without: keys[:i],
					err: fmt.Errorf("removing a record from the map of maps: %w", err)}
			}
			unix.Close(int(p.fds[key]))
			p.fds[key] = 0
		}
		return resized{without: keys}
	})
}

func (p *pooled) parallel(keys []uint32, chunk int, f func([]uint32) resized) (all resized) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan []uint32)
	for range min(threads, (len(keys)+chunk-1)/chunk) {
		wg.Go(func() {
			for part := range work {
				r := f(part)
				mu.Lock()
				all.with = append(all.with, r.with...)
				all.without = append(all.without, r.without...)
				all.err = errors.Join(all.err, r.err)
				mu.Unlock()
			}
		})
	}
	for part := range slices.Chunk(keys, chunk) {
		work <- part
	}
	close(work)
	wg.Wait()
	return all
}

// resize begins to grow or shrink the pool to the given size.
func (p *pooled) resize(size int) {
	size = min(size, p.limit)
	done := make(chan resized, 1)
	if size > p.size {
		keys := p.take(size - p.size)
		p.running = done
		go func() { done <- p.make(keys) }()
		return
	}
	keys := make([]uint32, min(p.size-size, p.free.Left()))
	if len(keys) == 0 {
		return
	}
	for i := range keys {
		keys[i], _ = p.free.Oldest() // used longest ago
	}
	p.size -= len(keys)
	p.running = done
	go func() { done <- p.unmake(keys) }()
}

// settled merges the result of a change of the pool's size that has ended. If wait is set, it waits for a change that
// is under way, and counts the work of that change as the writer's.
func (p *pooled) settled(wait bool) {
	if p.running == nil || !wait && len(p.running) == 0 {
		return
	}
	r := <-p.running
	p.running = nil
	p.merge(r)
	if wait {
		p.kernel.Work.Add(r.work)
	}
}

func (p *pooled) Room(need records.Counts) bool {
	n := need.Sum()
	p.settled(n > p.free.Left())
	if lack := n - p.free.Left(); lack > 0 && p.elastic && p.size+lack <= p.limit {
		r := p.make(p.take(min(max(lack, smallPool), p.limit-p.size)))
		p.merge(r)
		p.kernel.Work.Add(r.work)
	}
	return n <= p.free.Left()
}

func (p *pooled) Hint() string {
	return fmt.Sprintf("raise ulimit -n, since each record is an open file, or give the store room for more clusters, "+
		"listeners and endpoints: it holds %d records", p.limit)
}

func (p *pooled) Alloc(records.Class) (uint32, error) {
	key, ok := p.free.Latest()
	if !ok {
		return 0, fault.New(fault.Usage, "", p.Hint(), "no record is free")
	}
	return key, nil
}

func (p *pooled) Write(key uint32, _ records.Class, value []byte, _ bool) error {
	return p.kernel.UpdateAt(int(p.fds[key]), 0, value)
}

func (p *pooled) Free(key uint32) error {
	p.free.Give(key)
	return nil
}

func (p *pooled) Settle() {
	if !p.elastic {
		return
	}
	p.settled(false)
	if p.running != nil {
		return
	}
	used := p.size - p.free.Left()
	switch {
	case float64(used) >= growAt*float64(p.size) && p.size < p.limit:
		p.resize(max(2*used, p.size+smallPool))
	case float64(used) <= shrinkAt*float64(p.size) && p.size > p.floor:
		p.resize(max(2*used, p.floor))
	}
}

func (p *pooled) Close() error {
	p.settled(true)
	for key, fd := range p.fds {
		if fd != 0 {
			unix.Close(int(fd))
			p.fds[key] = 0
		}
	}
	return nil
}

// files raises the process's limit of open files to n, or as far as allowed, and returns how many of the n files are
// allowed.
func files(n int) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading the limit of open files: %w", err)
	}
	for _, hard := range []uint64{max(limit.Max, uint64(n)), limit.Max} { // the first limit needs privileges
		if uint64(n) <= limit.Cur {
			return n, nil
		}
		more := unix.Rlimit{Cur: min(uint64(n), hard), Max: hard}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &more) == nil {
			limit = more
		}
	}
	return min(n, int(limit.Cur)), nil
}
