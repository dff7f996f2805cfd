// Package execs counts, in the kernel, the execs of tasks by the v2 control group they are in: a count that does not
// depend on who made them nor on who reports them, and that nothing can be dropped from. One small BPF program adds to
// a counter of the CPU it runs on; there is no buffer and no reader.
//
// An exec is one that succeeded (tracepoint sched_process_exec). It belongs to the group that the task is in then.
package execs

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" execs bpf/execs.bpf.c

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/bpf"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// MaxGroups is how many groups can be watched at a time.
const MaxGroups = 1024

// tracepoint is where the program hangs.
const tracepoint = "sched_process_exec"

// Counts are running totals.
type Counts struct {
	All    uint64            // execs of the whole machine since Open
	Groups map[uint64]uint64 // by cgroup id: those in each watched group itself, not in groups below it, since Watch
}

// Counter counts until Close. It is for one goroutine at a time.
type Counter struct {
	objects execsObjects
	link    link.Link
	id      uint32
	watched map[uint64]bool
	zeros   []uint64 // a value for each CPU
}

// Open starts to count. An error has code fault.Machine: this machine cannot, or this process may not.
func Open() (c *Counter, err error) {
	const hint = "run as root on Linux 5.8 or newer"
	c = &Counter{watched: map[uint64]bool{}}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fault.Wrap(err, fault.Machine, "", hint, "counting the CPUs of this machine")
	}
	c.zeros = make([]uint64, cpus)
	if err := loadExecsObjects(&c.objects, nil); err != nil {
		return nil, fault.Wrap(err, fault.Machine, "", hint, "the program that counts execs cannot be loaded")
	}
	defer func() {
		if err != nil {
			c, err = nil, errors.Join(err, c.Close())
		}
	}()
	info, err := c.program()
	if err != nil {
		return c, fmt.Errorf("reading about the program that counts execs: %w", err)
	}
	c.id = info.id
	if c.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint,
		Program: c.objects.TareExecs}); err != nil {
		return c, fault.Wrap(err, fault.Machine, tracepoint, hint, "the program that counts execs cannot be attached")
	}
	return c, nil
}

// Close stops to count.
func (c *Counter) Close() error {
	var errs []error
	if c.link != nil {
		errs = append(errs, c.link.Close())
		c.link = nil
	}
	return errors.Join(append(errs, c.objects.Close())...)
}

// Watch counts the execs in a group apart from now on. The group need not exist yet, nor any longer. An error of code
// Usage is of a group that is watched, or of one too many.
func (c *Counter) Watch(cgroupID uint64) error {
	where := "control group " + strconv.FormatUint(cgroupID, 10)
	switch {
	case c.watched[cgroupID]:
		return fault.New(fault.Usage, where, "", "its execs are counted already")
	case len(c.watched) == MaxGroups:
		return fault.New(fault.Usage, where, "unwatch another",
			"the execs of %d groups are counted already, and those of more cannot be", MaxGroups)
	}
	if err := c.objects.TareExecsBy.Update(cgroupID, c.zeros, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("watching the execs of %s: %w", where, err)
	}
	c.watched[cgroupID] = true
	return nil
}

// Unwatch ends that. What was counted is forgotten. It waits until no run of the program holds the group's counter any
// more, some tens of milliseconds, for the next group may get the same.
func (c *Counter) Unwatch(cgroupID uint64) error {
	if !c.watched[cgroupID] {
		return fault.New(fault.Usage, "control group "+strconv.FormatUint(cgroupID, 10), "", "its execs are not counted")
	}
	if err := c.objects.TareExecsBy.Delete(cgroupID); err != nil {
		return fmt.Errorf("no longer watching the execs of control group %d: %w", cgroupID, err)
	}
	delete(c.watched, cgroupID)
	return bpf.WaitForPrograms()
}

// Read reads all counters. The groups are read first: their sum is never more than All, which may hold a few later
// ones.
func (c *Counter) Read() (Counts, error) {
	n := Counts{Groups: make(map[uint64]uint64, len(c.watched))}
	values := make([]uint64, len(c.zeros))
	read := func(m *ebpf.Map, key any) (sum uint64, err error) {
		if err := m.Lookup(key, &values); err != nil {
			return 0, fmt.Errorf("reading the counters of execs: %w", err)
		}
		for _, v := range values {
			sum += v
		}
		return sum, nil
	}
	var err error
	for id := range c.watched {
		if n.Groups[id], err = read(c.objects.TareExecsBy, id); err != nil {
			return Counts{}, err
		}
	}
	if n.All, err = read(c.objects.TareExecsAll, uint32(0)); err != nil {
		return Counts{}, err
	}
	return n, nil
}

// Program is the id of the program that counts.
func (c *Counter) Program() uint32 { return c.id }

// Missed is how often the kernel left the program out, on all CPUs since Open: execs that are in no count. While it is
// 0 the counts are exact. The error has code fault.Machine before Linux 5.12, which does not tell.
func (c *Counter) Missed() (uint64, error) {
	info, err := c.program()
	if err != nil {
		return 0, fmt.Errorf("reading about the program that counts execs: %w", err)
	}
	if info.misses == nil {
		return 0, fault.New(fault.Machine, "", "Linux 5.12 or newer",
			"this kernel does not tell how often it left a program out")
	}
	return *info.misses, nil
}

// info is what is wanted of struct bpf_prog_info.
type info struct {
	id     uint32
	misses *uint64 // nil where the kernel does not tell
}

// program asks the kernel about the program. cilium/ebpf has the same, with every instruction and line of it, and gives
// 0 misses where there is no such count.
func (c *Counter) program() (info, error) {
	const getInfo, misses = 15, 208 / 8 // BPF_OBJ_GET_INFO_BY_FD, and where recursion_misses is (include/uapi/linux/bpf.h)
	var words [misses + 1]uint64
	attr := struct {
		fd, len uint32
		info    unsafe.Pointer
	}{uint32(c.objects.TareExecs.FD()), uint32(unsafe.Sizeof(words)), unsafe.Pointer(&words)}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, getInfo, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr)); errno != 0 {
		return info{}, errno
	}
	i := info{id: (*[2]uint32)(unsafe.Pointer(&words))[1]}
	if uintptr(attr.len) == unsafe.Sizeof(words) {
		i.misses = &words[misses]
	}
	return i, nil
}

// CgroupID is the id of a directory in the v2 hierarchy, as Watch takes it.
func CgroupID(dir string) (uint64, error) { return cgroup.ID(dir) }
