// Package execs counts, in the kernel, the execs of tasks in a v2 control group. The count does not depend on what
// makes or reports the execs, and no exec can be dropped from it: one small BPF program increments a counter of the CPU
// on which it runs, without a buffer or a reader.
//
// Only successful execs count (tracepoint sched_process_exec). An exec belongs to the group that the task is in at that
// time.
package execs

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" execs bpf/execs.bpf.c

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

const tracepoint = "sched_process_exec"

// Counts are totals since Open.
type Counts struct {
	All   uint64 // execs of the whole machine
	Group uint64 // execs in the control group itself, without the groups below it
}

// Counter counts execs until Close. Its methods must not be called concurrently.
type Counter struct {
	objects execsObjects
	link    link.Link
	group   uint64
	values  []uint64 // one for each CPU
}

// Open begins to count the execs of the machine, and those in the v2 control group with the given id (see CgroupID).
// The caller must close the Counter. The error has the code fault.Machine if this machine does not support the
// counting, or this process lacks privileges.
func Open(group uint64) (c *Counter, err error) {
	const hint = "run as root on Linux 5.8 or newer"
	c = &Counter{group: group}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fault.Wrap(err, fault.Machine, "", hint, "counting the CPUs of this machine")
	}
	c.values = make([]uint64, cpus)
	if err := loadExecsObjects(&c.objects, nil); err != nil {
		return nil, fault.Wrap(err, fault.Machine, "", hint, "the program that counts execs cannot be loaded")
	}
	defer func() {
		if err != nil {
			c, err = nil, errors.Join(err, c.Close())
		}
	}()
	if err := c.objects.TareExecsBy.Put(group, c.values); err != nil {
		return c, fmt.Errorf("watching the execs of control group %d: %w", group, err)
	}
	if c.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint,
		Program: c.objects.TareExecs}); err != nil {
		return c, fault.Wrap(err, fault.Machine, tracepoint, hint, "the program that counts execs cannot be attached")
	}
	return c, nil
}

// Close stops counting.
func (c *Counter) Close() error {
	var errs []error
	if c.link != nil {
		errs = append(errs, c.link.Close())
		c.link = nil
	}
	return errors.Join(append(errs, c.objects.Close())...)
}

// Read returns the totals. It reads that of the group first, so Group never exceeds All, which may include a few execs
// made since.
func (c *Counter) Read() (n Counts, err error) {
	if n.Group, err = c.sum(c.objects.TareExecsBy, c.group); err == nil {
		n.All, err = c.sum(c.objects.TareExecsAll, uint32(0))
	}
	return n, err
}

// sum adds up the counters of all CPUs.
func (c *Counter) sum(m *ebpf.Map, key any) (sum uint64, err error) {
	if err := m.Lookup(key, &c.values); err != nil {
		return 0, fmt.Errorf("reading the counters of execs: %w", err)
	}
	for _, v := range c.values {
		sum += v
	}
	return sum, nil
}

// Missed returns how many execs since Open, on all CPUs, are in no count because the kernel skipped the program. If
// there are none, the counts are exact. Kernels before Linux 5.12 do not report this number: the error then has the
// code fault.Machine.
func (c *Counter) Missed() (uint64, error) {
	// cilium/ebpf has a function for this, but it returns 0 if the kernel does not report the number.
	const getInfo, misses = 15, 208 / 8 // BPF_OBJ_GET_INFO_BY_FD; index of recursion_misses in uint64s (uapi/linux/bpf.h)
	var info [misses + 1]uint64         // the beginning of struct bpf_prog_info
	attr := struct {
		fd, len uint32
		info    unsafe.Pointer
	}{uint32(c.objects.TareExecs.FD()), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, getInfo, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr)); errno != 0 {
		return 0, fmt.Errorf("reading about the program that counts execs: %w", errno)
	}
	if uintptr(attr.len) != unsafe.Sizeof(info) {
		return 0, fault.New(fault.Machine, "", "Linux 5.12 or newer",
			"this kernel does not report how often it skipped a program")
	}
	return info[misses], nil
}

// CgroupID returns the id of a directory in the v2 hierarchy, for Open.
func CgroupID(dir string) (uint64, error) { return cgroup.ID(dir) }
