package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// ring is the memory that the kernel shares for the events of one CPU: a control page and a power of two of data
// pages. One event writes the samples to it. A second event, which counts nothing, writes all other records. With two
// events, the kernel counts lost samples and other lost records separately.
type ring struct {
	fd   int // descriptor of the sampling event
	side int // descriptor of the second event
	cpu  int
	mem  []byte
	data []byte
	meta *unix.PerfEventMmapPage
	seen uint64 // records other than samples have been handled up to here
	buf  []byte // records of one drain, unwrapped; reused

	before   uint64        // nanoseconds that the event had been enabled, at the last Enable or Blind
	on, must time.Duration // how long the event has been enabled since then, and how long it should have been
	since    time.Time     // when the current part of must began; zero while it is disabled
	lost     uint64        // samples lost since Open, as of the last read; 0 if the kernel does not count them
}

func openRing(samples, others *unix.PerfEventAttr, cpu, pages int) (_ *ring, err error) {
	fd, err := unix.PerfEventOpen(samples, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening a sampling event on CPU %d: %w", cpu, err)
	}
	side, err := unix.PerfEventOpen(others, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("opening an event for records of threads and programs on CPU %d: %w", cpu, err)
	}
	r := &ring{fd: fd, side: side, cpu: cpu}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	page := os.Getpagesize()
	mem, err := unix.Mmap(fd, 0, page*(1+pages), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		err = fmt.Errorf("mapping a sampling ring of %d pages for CPU %d: %w", pages, cpu, err)
		if errors.Is(err, unix.EPERM) { // perf_mmap in kernel/events/core.c
			err = fault.Wrap(err, fault.Machine, "", "end other samplers of this user, run with CAP_IPC_LOCK, or raise "+
				"kernel.perf_event_mlock_kb or the limit of locked memory (ulimit -l)",
				"the rings of all samplers of this user take more memory than they may")
		}
		return nil, err
	}
	r.mem, r.data, r.meta = mem, mem[page:], (*unix.PerfEventMmapPage)(unsafe.Pointer(&mem[0]))
	if err := unix.IoctlSetInt(side, unix.PERF_EVENT_IOC_SET_OUTPUT, fd); err != nil {
		return nil, fmt.Errorf("putting records of threads and programs into the sampling ring of CPU %d: %w", cpu, err)
	}
	return r, nil
}

// head returns the position up to which the kernel has written.
func (r *ring) head() uint64 { return atomic.LoadUint64(&r.meta.Data_head) }

// halfFull reports whether half of the ring is in use.
func (r *ring) halfFull() bool { return r.head()-r.meta.Data_tail >= uint64(len(r.data)/2) }

// peek copies the records up to head into r.buf, in order. It does not free their space; see release.
func (r *ring) peek(head uint64) []byte {
	tail := r.meta.Data_tail
	n := head - tail // at most the ring's size: the kernel drops records rather than overwrite unread ones
	size := uint64(len(r.data))
	r.buf = r.buf[:0]
	at := tail & (size - 1)
	first := min(n, size-at)
	r.buf = append(r.buf, r.data[at:at+first]...)
	r.buf = append(r.buf, r.data[:n-first]...)
	return r.buf
}

// release returns the space up to head to the kernel.
func (r *ring) release(head uint64) { atomic.StoreUint64(&r.meta.Data_tail, head) }

func (r *ring) ioctl(req uint, what string) error {
	for _, fd := range []int{r.side, r.fd} {
		if err := unix.IoctlSetInt(fd, req, 0); err != nil {
			return fmt.Errorf("%s the sampling events on CPU %d: %w", what, r.cpu, err)
		}
	}
	return nil
}

// enable starts sampling.
func (r *ring) enable() (err error) {
	if r.before, err = r.enabled(); err == nil {
		err = r.ioctl(unix.PERF_EVENT_IOC_ENABLE, "enabling")
	}
	r.must, r.since = 0, time.Now()
	return err
}

// disable stops sampling.
func (r *ring) disable() error {
	r.rely(time.Now())
	r.since = time.Time{}
	return r.ioctl(unix.PERF_EVENT_IOC_DISABLE, "disabling")
}

// rely adds the time from r.since until the given time to r.must, unless the event is disabled.
func (r *ring) rely(now time.Time) {
	if !r.since.IsZero() {
		r.must += now.Sub(r.since)
	}
}

// look updates how long the event has been enabled, and should have been.
func (r *ring) look() error {
	r.rely(time.Now())
	now, err := r.enabled()
	if !r.since.IsZero() {
		r.since = time.Now()
	}
	r.on, r.before = time.Duration(now-min(now, r.before)), now
	return err
}

// enabled reads the sampling event, and returns its total enabled time in nanoseconds.
func (r *ring) enabled() (uint64, error) {
	on, lost, err := r.read(r.fd)
	r.lost = max(r.lost, lost)
	return on, err
}

// read reads an event: its total enabled time in nanoseconds, and how many of its records have been lost since Open,
// or 0 if the kernel does not count them.
func (r *ring) read(fd int) (on, lost uint64, err error) {
	var b [24]byte                // the count, the time, and lost records if requested
	n, err := unix.Read(fd, b[:]) // if the kernel has removed the event it reads no bytes, which leaves zeros
	if err != nil {
		return 0, 0, fmt.Errorf("reading the sampling events on CPU %d: %w", r.cpu, err)
	}
	if n == len(b) {
		lost = binary.NativeEndian.Uint64(b[16:])
	}
	return binary.NativeEndian.Uint64(b[8:]), lost, nil
}

func (r *ring) close() error {
	errs := []error{unix.Close(r.side), unix.Close(r.fd)}
	if r.mem != nil {
		errs = append(errs, unix.Munmap(r.mem))
	}
	return errors.Join(errs...)
}
