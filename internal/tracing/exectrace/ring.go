package exectrace

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
)

// ring is the reader's side of a BPF ring buffer. Unlike cilium/ebpf's reader, it returns records in place, without a
// copy, and releases space in batches, because the reader's position is on a cache line that every writer reads.
//
// The buffer consists of a page with the reader's position, a page with the writers' position, and the data, which the
// kernel maps twice in succession so that a record that wraps around is contiguous (kernel/bpf/ringbuf.c). The ring
// maps the data only once, because each mapping counts as resident memory. Instead it copies a record that wraps around
// into the field joined.
type ring struct {
	consumer, producer *uint64 // bytes read and written so far; atomic
	data               []byte
	joined             []byte // copy of the last record that wrapped around
	mask               uint64
	at                 uint64 // position up to which records were taken
	mapped             [][]byte
}

// The header of a record has the record's length with two flags (include/uapi/linux/bpf.h).
const (
	maxRecord     = headBytes + 4096 + maxArgs // bytes; the size of struct record
	recordHead    = 8
	recordBusy    = 1 << 31 // the record is not written yet
	recordDiscard = 1 << 30 // the record must be skipped
)

func newRing(m *ebpf.Map) (*ring, error) {
	page, size := unix.Getpagesize(), int(m.MaxEntries())
	r := &ring{mask: uint64(size) - 1}
	own, err := unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping the ring buffer: %w", err)
	}
	r.mapped = append(r.mapped, own)
	rest, err := unix.Mmap(m.FD(), int64(page), page+size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mapping the data of the ring buffer: %w", err), r.close())
	}
	r.mapped = append(r.mapped, rest)
	r.consumer, r.producer = (*uint64)(unsafe.Pointer(&own[0])), (*uint64)(unsafe.Pointer(&rest[0]))
	r.data, r.joined = rest[page:], make([]byte, maxRecord)
	r.at = atomic.LoadUint64(r.consumer)
	return r, nil
}

// produced returns the writers' position.
func (r *ring) produced() uint64 { return atomic.LoadUint64(r.producer) }

// waiting returns the number of bytes in the ring that have not been taken.
func (r *ring) waiting() uint64 { return r.produced() - r.at }

// next takes the next record that begins before the position end. The record is valid until the next call of next or
// release. The result is false if there is no record, or if the next record is still being written.
func (r *ring) next(end uint64) ([]byte, bool) {
	for r.at < end {
		at := r.at & r.mask
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[at]))) // before the data, because the writer sets it last
		if head&recordBusy != 0 {
			return nil, false
		}
		size := uint64(head &^ recordDiscard)
		r.at += (recordHead + size + 7) &^ 7
		if head&recordDiscard != 0 {
			continue
		}
		if at += recordHead; at+size <= uint64(len(r.data)) {
			return r.data[at : at+size], true
		}
		record := r.joined[:size]
		n := copy(record, r.data[min(at, uint64(len(r.data))):])
		copy(record[n:], r.data)
		return record, true
	}
	return nil, false
}

// release releases the space of all records that were taken.
func (r *ring) release() { atomic.StoreUint64(r.consumer, r.at) }

func (r *ring) close() error {
	errs := lists.Map(r.mapped, unix.Munmap)
	r.mapped, r.data, r.consumer, r.producer = nil, nil, nil, nil
	return errors.Join(errs...)
}
