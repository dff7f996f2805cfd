// Package sized implements Kmesh's current store: records in four flat hash maps, by size class. To change a resource,
// it removes the resource's old records and then writes the new ones, each parent before its children.
//
// It differs from Kmesh's store in three ways. Free keys are in lists, and are not found by searching a bitmap. The
// store remembers the records of a resource, and does not read them back to remove them. Maps have as many entries as
// the options require, not a million each. In the variant ordered, the store writes each new record once, under a key
// that is not in use, then the resource's value, and removes the old records last.
package sized

import (
	"tare/internal/lib/fault"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
	"tare/internal/mesh/store/records"
	"tare/internal/mesh/store/records/keep"
)

const ordered = "ordered"

func init() {
	store.Register(Design)
}

// Design is the design "sized".
var Design = store.Design{
	Name:     "sized",
	Variants: []string{"replace", ordered},
	Atomic:   store.PerRecord,
	Open:     open,
	Ask:      loadAsk,
}

// names are the names of the maps, by class.
var names = [records.Classes]string{"sized_small", "sized_strings", "sized_large", "sized_arrays"}

// maxIndex is the largest index that fits into a key beside the class.
const maxIndex = 1<<24 - 1

func open(o store.Options) (store.Store, error) {
	o = o.WithDefaults()
	capacity := capacity(o)
	entries := map[string]uint32{"sized_listeners": o.MaxListeners, "sized_clusters": o.MaxClusters}
	for class, name := range names {
		entries[name] = capacity[class]
	}
	maps, err := store.OpenMaps(loadAsk, entries)
	if err != nil {
		return nil, err
	}
	k := keep.NewKernel()
	h := &hashes{kernel: k, fifo: o.Variant == ordered}
	for class, name := range names {
		h.class[class] = pool{maps[name].FD(), plan.NewNumbers(1, capacity[class]+1)}
	}
	tops := keep.Tops{Listeners: maps["sized_listeners"], Clusters: maps["sized_clusters"]}
	return keep.New(k, h, tops, records.Sized, maps, o, o.Variant == ordered), nil
}

// capacity returns the number of records of each class that the options require, for resources as large as those of
// Kmesh's benchmarks (each endpoint in a separate locality, five filter chains). For the variant ordered it is twice
// that, because a resource exists twice while it is replaced.
func capacity(o store.Options) (n [records.Classes]uint32) {
	c, l, e := uint64(o.MaxClusters), uint64(o.MaxListeners), uint64(o.MaxEndpoints)
	if o.Variant == ordered {
		c, l, e = 2*c, 2*l, 2*e
	}
	for class, want := range [records.Classes]uint64{2*c + 3*e + 16*l, 2*c + 21*l, 1, c + e + 6*l} {
		n[class] = uint32(min(want, maxIndex))
	}
	return n
}

// hashes keeps records in a hash map for each class.
type hashes struct {
	kernel *keep.Kernel
	class  [records.Classes]pool
	// fifo means that the key that was freed first is reused first, so that a program that still looks up a removed record
	// does not find a different one. Otherwise the key that was freed last is reused first, because its memory is in the
	// cache.
	fifo bool
}

// pool holds the keys of one class. Indexes begin at 1, because key 0 means no record.
type pool struct {
	fd      int
	indexes plan.Numbers
}

func (h *hashes) Room(need records.Counts) bool {
	for class, n := range need {
		if n > h.class[class].indexes.Left() {
			return false
		}
	}
	return true
}

func (h *hashes) Hint() string {
	return "give the store room for more clusters, listeners and endpoints"
}

func (h *hashes) Alloc(class records.Class) (uint32, error) {
	next := h.class[class].indexes.Latest
	if h.fifo {
		next = h.class[class].indexes.Oldest
	}
	index, ok := next()
	if !ok {
		return 0, fault.New(fault.Usage, "", h.Hint(), "no record of %d bytes is free", records.Sized[class])
	}
	return uint32(class)<<24 | index, nil
}

func (h *hashes) Write(key uint32, class records.Class, value []byte, _ bool) error {
	return h.kernel.UpdateAt(h.class[class].fd, key, value)
}

func (h *hashes) Free(key uint32) error {
	p := &h.class[key>>24]
	p.indexes.Give(key & maxIndex)
	return h.kernel.DeleteAt(p.fd, key)
}

func (h *hashes) Settle() {}

func (h *hashes) Close() error { return nil }
