package mapinmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"tare/internal/lib/fault"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records"
	"tare/internal/mesh/store/records/keep"
)

// Naive creates a map for each new record, and removes the map with the record. A bitmap in record 0 marks the free
// keys; it is read from the kernel and written back for each record. A record's map is found by its ID in the map of
// maps, and opened and closed for each use. The writer waits for readers whenever it changes the map of maps.
var Naive = store.Design{
	Name:   "naive",
	Atomic: store.PerRecord,
	Open: func(o store.Options) (store.Store, error) {
		o = o.WithDefaults()
		return open(o, bitmapBits-1, newNaive)
	},
	Ask: loadAsk,
}

// Record 0 holds the number of records, including itself, and then a bit for each key, which is set if the key is free.
const (
	bitmapAt   = 4
	bitmapBits = (valueSize - bitmapAt) * 8
)

type naive struct {
	kernel  *keep.Kernel
	outer   int
	used    int            // the number of records in use, without record 0
	open    map[uint32]int // by key: descriptors of the records that are being written
	control []byte         // record 0, while it is read and written back
	scratch []byte         // the record that Free reads
}

func newNaive(k *keep.Kernel, outer *ebpf.Map) (keep.Records, error) {
	n := &naive{kernel: k, outer: outer.FD(), open: map[uint32]int{}, control: make([]byte, valueSize),
		scratch: make([]byte, valueSize)}
	for i := bitmapAt; i < valueSize; i++ {
		n.control[i] = 0xff
	}
	n.control[bitmapAt] &^= 1
	binary.NativeEndian.PutUint32(n.control, 1)
	fd, err := k.Create(inner)
	if err != nil {
		return nil, fmt.Errorf("making the record of free keys: %w", err)
	}
	defer k.CloseFD(fd)
	if err := errors.Join(k.UpdateAt(fd, 0, n.control), k.Set(n.outer, 0, fd)); err != nil {
		return nil, fmt.Errorf("making the record of free keys: %w", err)
	}
	return n, nil
}

func (n *naive) Room(need records.Counts) bool { return need.Sum() <= bitmapBits-1-n.used }

func (n *naive) Hint() string {
	return fmt.Sprintf("use another store: this one has room for %d records", bitmapBits-1)
}

// change reads record 0, calls f to change it, and writes it back.
func (n *naive) change(f func() error) error {
	k := n.kernel
	fd, err := k.Get(n.outer, 0)
	if err != nil {
		return err
	}
	defer k.CloseFD(fd)
	if err := k.LookupAt(fd, 0, n.control); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return k.UpdateAt(fd, 0, n.control)
}

func (n *naive) count(by int) {
	n.used += by
	binary.NativeEndian.PutUint32(n.control, uint32(n.used)+1)
}

func (n *naive) Alloc(records.Class) (key uint32, err error) {
	k := n.kernel
	err = n.change(func() error {
		key = n.firstFree()
		if key == 0 {
			return fault.New(fault.Usage, "", n.Hint(), "no record is free")
		}
		fd, err := k.Create(inner)
		if err != nil {
			return err
		}
		defer k.CloseFD(fd)
		if err := k.Set(n.outer, key, fd); err != nil {
			return err
		}
		n.control[bitmapAt+key/8] &^= 1 << (key % 8)
		n.count(1)
		return nil
	})
	return key, err
}

func (n *naive) firstFree() uint32 {
	for i := bitmapAt; i < valueSize; i += 4 {
		if word := binary.NativeEndian.Uint32(n.control[i:]); word != 0 {
			return uint32(8*(i-bitmapAt) + bits.TrailingZeros32(word))
		}
	}
	return 0
}

func (n *naive) Write(key uint32, _ records.Class, value []byte, last bool) (err error) {
	fd, ok := n.open[key]
	if !ok {
		if fd, err = n.kernel.Get(n.outer, key); err != nil {
			return err
		}
		n.open[key] = fd
	}
	err = n.kernel.UpdateAt(fd, 0, value)
	if last || err != nil {
		n.close(key)
	}
	return err
}

func (n *naive) close(key uint32) {
	if fd, ok := n.open[key]; ok {
		n.kernel.CloseFD(fd)
		delete(n.open, key)
	}
}

// Free reads the record, as a writer that learns the tree from the maps would have to, and then removes it.
func (n *naive) Free(key uint32) error {
	n.close(key)
	k := n.kernel
	if fd, err := k.Get(n.outer, key); err == nil {
		err = k.LookupAt(fd, 0, n.scratch)
		k.CloseFD(fd)
		if err != nil {
			return err
		}
	}
	if err := k.Unset(n.outer, key); err != nil {
		return err
	}
	return n.change(func() error {
		n.control[bitmapAt+key/8] |= 1 << (key % 8)
		n.count(-1)
		return nil
	})
}

func (n *naive) Settle() {}

func (n *naive) Close() error {
	for key := range n.open {
		n.close(key)
	}
	return nil
}
