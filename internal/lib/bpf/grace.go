// Package bpf holds small helpers for eBPF programs and maps: waiting until running programs have ended (grace.go), and
// mapping arrays into memory (mapped.go).
package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Waiter waits for programs. It is not safe for concurrent use.
type Waiter struct{ outer, inner *ebpf.Map }

// NewWaiter creates a waiter. It holds two maps of one element, so Wait needs no memory. One map has the given name,
// and the other has that name with the suffix _inner.
func NewWaiter(name string) (*Waiter, error) {
	element := &ebpf.MapSpec{Name: name + "_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(element)
	if err != nil {
		return nil, fmt.Errorf("creating map %s: %w", element.Name, err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: element,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating map %s: %w", name, err), inner.Close())
	}
	return &Waiter{outer, inner}, nil
}

// Wait returns when every program run that had begun before the call has ended. It waits for an RCU grace period,
// which takes between a few and a few tens of milliseconds. It does not wait for sleepable programs, which run outside
// of RCU's read-side sections.
//
// Wait updates a map of maps. The kernel calls synchronize_rcu before it returns from such an update, because user
// space may rely on it (maybe_wait_bpf_programs in kernel/bpf/syscall.c, since Linux 4.20; synchronize_rcu_expedited
// since 6.19). Programs run inside RCU's read-side sections. Since 4.20 a grace period also waits for code that cannot
// be preempted, such as the code of a tracepoint before it calls a program.
//
// membarrier(MEMBARRIER_CMD_GLOBAL) gives no such guarantee. With one online CPU it returns at once, although a
// program may be preempted there, and with CPUs that run without ticks (nohz_full) it fails with EINVAL:
// sys_membarrier in kernel/sched/membarrier.c.
func (w *Waiter) Wait() error {
	if err := w.outer.Put(uint32(0), w.inner); err != nil {
		return fmt.Errorf("waiting for running programs: %w", err)
	}
	return nil
}

// Close frees the maps.
func (w *Waiter) Close() error { return errors.Join(w.outer.Close(), w.inner.Close()) }

// WaitForPrograms is like Waiter.Wait, with temporary maps.
func WaitForPrograms() error {
	w, err := NewWaiter("tare_grace")
	if err != nil {
		return fmt.Errorf("waiting for running programs: %w", err)
	}
	return errors.Join(w.Wait(), w.Close())
}
