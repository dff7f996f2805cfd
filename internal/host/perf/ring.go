package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/fault"
)

// ring is the memory that the kernel shares for one event: a control page and a power of two of data pages.
type ring struct {
	fd   int
	cpu  int
	mem  []byte
	data []byte
	meta *unix.PerfEventMmapPage
	seen uint64 // how far records other than samples were handled
	buf  []byte // records of one drain, unwrapped; reused

	before, on uint64 // nanoseconds that the event had been enabled at Enable, and since then
	lost       uint64 // records that found no room since Open, by the last read; 0 where the kernel does not count them
}

func openRing(attr *unix.PerfEventAttr, cpu, pages int) (*ring, error) {
	fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening a sampling event on CPU %d: %w", cpu, err)
	}
	page := os.Getpagesize()
	mem, err := unix.Mmap(fd, 0, page*(1+pages), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		err = fmt.Errorf("mapping a sampling ring of %d pages for CPU %d: %w", pages, cpu, err)
		if errors.Is(err, unix.EPERM) { // perf_mmap in kernel/events/core.c
			err = fault.Wrap(err, fault.Machine, "", "end other samplers of this user, run with CAP_IPC_LOCK, or raise "+
				"kernel.perf_event_mlock_kb or the limit of locked memory (ulimit -l)",
				"the rings of all samplers of this user take more memory than they may")
		}
		return nil, err
	}
	return &ring{
		fd: fd, cpu: cpu, mem: mem, data: mem[page:],
		meta: (*unix.PerfEventMmapPage)(unsafe.Pointer(&mem[0])),
	}, nil
}

// head is how far the kernel has written.
func (r *ring) head() uint64 { return atomic.LoadUint64(&r.meta.Data_head) }

// peek copies the records up to head into r.buf, in order. The ring is released by release.
func (r *ring) peek(head uint64) []byte {
	tail := r.meta.Data_tail
	n := head - tail // at most the size: the kernel drops records rather than overtake the tail
	size := uint64(len(r.data))
	r.buf = r.buf[:0]
	at := tail & (size - 1)
	first := min(n, size-at)
	r.buf = append(r.buf, r.data[at:at+first]...)
	r.buf = append(r.buf, r.data[:n-first]...)
	return r.buf
}

// release tells the kernel that everything up to head has been read.
func (r *ring) release(head uint64) { atomic.StoreUint64(&r.meta.Data_tail, head) }

func (r *ring) ioctl(req uint, what string) error {
	if err := unix.IoctlSetInt(r.fd, req, 0); err != nil {
		return fmt.Errorf("%s the sampling event on CPU %d: %w", what, r.cpu, err)
	}
	return nil
}

// enabled reads the event. It is for how long that has been enabled in all, in nanoseconds.
func (r *ring) enabled() (uint64, error) {
	var b [24]byte                  // the count, the time, and what was lost where that was asked for
	n, err := unix.Read(r.fd, b[:]) // the kernel reads nothing of an event that it gave up: zero
	if err != nil {
		return 0, fmt.Errorf("reading the sampling event on CPU %d: %w", r.cpu, err)
	}
	if n == len(b) {
		r.lost = binary.NativeEndian.Uint64(b[16:])
	}
	return binary.NativeEndian.Uint64(b[8:]), nil
}

func (r *ring) close() error {
	err := unix.Munmap(r.mem)
	if cerr := unix.Close(r.fd); err == nil {
		err = cerr
	}
	return err
}
