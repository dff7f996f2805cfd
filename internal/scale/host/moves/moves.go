// Package moves reports which processes leave control groups. It also reports processes that have left and then ended
// elsewhere, of which the kernel keeps no other record.
package moves

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" moves bpf/moves.bpf.c

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

const (
	maxHomes = 1024
	maxLeft  = 4096
)

// Left is a process that left a group and the groups below it.
type Left struct {
	PID  int
	Comm string
	Home string // the directory passed to Open
	// Group is where the process is, or was when it ended: the identity of the group, or only its last element if the
	// group was removed.
	Group string
	Ended bool
	// Used is an upper bound of the CPU time that its ended threads used after it left. The exact time is unknown, because
	// the kernel updates the clock of a running task only at ticks.
	Used time.Duration
}

// Watch records processes until Close. It is not safe for concurrent use.
type Watch struct {
	objects movesObjects
	links   []io.Closer
	cpu     *cgroup.Hierarchy
	homes   map[uint64]string // directories, by id
}

// Open starts recording processes that leave groups, given by their directories in the hierarchy that counts CPU time.
// If one is below another, a process that moves between the two has left. An error has code fault.Machine: this
// machine, or this process's rights, do not allow it.
func Open(cpu *cgroup.Hierarchy, homes []string) (w *Watch, err error) {
	const hint = "run as root on Linux 5.8 or newer, with CONFIG_DEBUG_INFO_BTF"
	w = &Watch{cpu: cpu, homes: map[uint64]string{}}
	opened := w // returning nil clears w
	defer func() {
		if err != nil {
			err = fault.Wrap(errors.Join(err, opened.Close()), fault.Machine, "", hint,
				"processes that leave control groups cannot be watched")
			w = nil
		}
	}()
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil || ns.Ino != proc.InitialPIDNamespace {
		return nil, errors.New("this is not the machine's PID namespace")
	}
	if len(homes) > maxHomes {
		return nil, fmt.Errorf("%d groups are too many to watch: at most %d are possible", len(homes), maxHomes)
	}
	spec, err := loadMoves()
	if err != nil {
		return nil, err
	}
	if cpu.V2 {
		if err := spec.Variables["tare_v2"].Set(uint32(1)); err != nil {
			return nil, err
		}
	}
	if err := spec.LoadAndAssign(&w.objects, nil); err != nil {
		return nil, err
	}
	for _, dir := range homes {
		id, err := cgroup.ID(dir)
		if err != nil {
			return nil, err
		}
		if err := w.objects.TareHomes.Put(id, id); err != nil {
			return nil, err
		}
		w.homes[id] = dir
	}
	// Attach to exits before forks, so that no ended process is taken to be alive.
	for _, p := range []*ebpf.Program{w.objects.TareExit, w.objects.TareFork, w.objects.TareAttach} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return nil, err
		}
		w.links = append(w.links, l)
	}
	return w, w.list()
}

// list records the existing processes, starting with the deepest groups, because a process belongs only to its
// innermost group. The eBPF program knows later processes by their parents.
func (w *Watch) list() error {
	ids := slices.SortedFunc(maps.Keys(w.homes), func(a, b uint64) int { return len(w.homes[b]) - len(w.homes[a]) })
	for _, id := range ids {
		for _, pid := range cgroup.Members([]string{w.homes[id]}) {
			err := w.objects.TareMembers.Update(uint32(pid), id, ebpf.UpdateNoExist)
			if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				return fmt.Errorf("noting the processes of %s: %w", w.homes[id], err)
			}
		}
	}
	return nil
}

// Close stops recording.
func (w *Watch) Close() error {
	errs := lists.Map(w.links, io.Closer.Close)
	w.links = nil
	return errors.Join(append(errs, w.objects.Close())...)
}

// left is struct left of moves.bpf.c.
type left struct {
	Home, To, At, Used, Before uint64
	Moved, Ended               uint32
	Comm                       [16]byte
	Name                       [64]byte
}

// Left returns the processes that have left, ordered by PID, and the number of processes that found no room in the
// maps. After an error the list may be incomplete.
func (w *Watch) Left() (all []Left, lost uint64, err error) {
	if err := w.objects.TareLost.Lookup(uint32(0), &lost); err != nil {
		return nil, 0, fmt.Errorf("reading how many processes that left control groups are not known: %w", err)
	}
	var pid uint32
	var l left
	var names map[uint64]string
	entries := w.objects.TareLeft.Iterate()
	for entries.Next(&pid, &l) {
		if names == nil {
			if names, err = w.cpu.IDs(); err != nil {
				return nil, lost, err
			}
		}
		group, there := names[l.To]
		if !there {
			group = text.OfC(l.Name[:])
		}
		all = append(all, Left{PID: int(pid), Comm: text.OfC(l.Comm[:]), Home: w.homes[l.Home], Group: group,
			Ended: l.Ended != 0, Used: time.Duration(l.Used)})
	}
	if err = entries.Err(); err != nil {
		err = fmt.Errorf("reading which processes left control groups: %w", err)
	}
	slices.SortFunc(all, func(a, b Left) int { return a.PID - b.PID })
	return all, lost, err
}
