package sandbox

import (
	"os"
	"path"
	"time"

	"tare/internal/host/proc"
	"tare/internal/ledger"
	"tare/internal/measured"
)

// Balance is what became of the machine's memory from before the trial until the end of its window, in bytes:
//
//	lost  = kept + beside + neighbours + taken
//	taken = charged - reclaimable + kernel + remainder
//
// Each line but the remainder has a source of its own. Lines that are the machine's differences are of everything that
// ran on it.
type Balance struct {
	Lost int64 `json:"lost"` // of MemAvailable
	// Kept is by how much the free pages grew that CPUs keep at hand for themselves, which MemAvailable leaves out: the
	// machine's difference. It is negative where what was started took pages that the trial before had freed.
	Kept int64 `json:"kept_by_cpus"`
	// Beside is what the trial's loads and its other groups are charged beside the sandboxes', and what this process
	// grew by.
	Beside int64 `json:"beside"`
	// Neighbours is what anonymous and shared memory of the rest of the machine grew by: the machine's difference, less
	// what the groups of the trial and this process have of it.
	Neighbours int64 `json:"neighbours"`
	// Taken is what is left of the loss: the sandboxes'.
	Taken int64 `json:"taken"`

	Charged int64 `json:"charged"` // hard memory of all groups of the sandboxes
	// Reclaimable is the part of Charged that the kernel can free at need and MemAvailable therefore still has: the
	// machine's difference, where control groups do not tell it apart (version 1), else 0.
	Reclaimable int64 `json:"reclaimable"`
	// Kernel is the kernel's memory that no group of the trial is charged for: the machine's difference of memory that
	// it cannot free (proc.Memory.Kernel), less what the trial's groups are charged. Where they are charged more it is
	// 0: what else they are charged, such as buffers of pipes, the machine's counters do not name.
	Kernel    int64 `json:"kernel_uncharged"`
	Remainder int64 `json:"remainder"` // attributed to nothing
}

// balance puts it together when the ledger of the window is there; tree is the name of the trial's groups and own what
// this process grew by. nil where a part is not known, or where a process of a sandbox is charged to a group that is
// none of the trial's: what neighbours hold cannot be told from it then.
func (e *Evidence) balance(l *ledger.Ledger, tree string, own int64) *Balance {
	if l == nil || e.MachineInWindow == nil || len(e.Sandboxes) == 0 {
		return nil
	}
	var all *ledger.Cgroup
	for i := range l.Cgroups {
		if path.Base(l.Cgroups[i].Path) == tree {
			all = &l.Cgroups[i]
		}
	}
	sandboxes, known := charged(l, e, true, true, hard)
	if all == nil || !known || all.Memory == nil || all.Memory.Hard == nil || all.Memory.Anon == nil ||
		all.Memory.Shmem == nil {
		return nil
	}
	for _, s := range e.Sandboxes {
		for _, p := range s.Processes {
			if !measured.Within(p.MemoryCgroup, all.Path) {
				return nil
			}
		}
	}
	before, now := e.MachineBefore, *e.MachineInWindow
	grown := func(of func(proc.Memory) uint64) int64 { return int64(of(now)) - int64(of(before)) }
	total, users := *all.Memory.Hard, int64(*all.Memory.Anon)+int64(*all.Memory.Shmem)
	kernel := total - users // that the trial's groups are charged
	reclaimable := int64(0)
	if all.Memory.SlabReclaimable == nil {
		reclaimable = min(max(0, grown(func(m proc.Memory) uint64 { return m.Reclaimable })), kernel)
	}
	b := &Balance{
		Lost:       -grown(func(m proc.Memory) uint64 { return m.Available }),
		Kept:       grown(func(m proc.Memory) uint64 { return m.Kept }),
		Beside:     total - int64(sandboxes) + own,
		Neighbours: grown(func(m proc.Memory) uint64 { return m.Anon + m.Shmem }) - users - own,
		Charged:    int64(sandboxes), Reclaimable: reclaimable,
		Kernel: max(0, grown(proc.Memory.Kernel)-(kernel-reclaimable)),
	}
	b.Taken = b.Lost - b.Kept - b.Beside - b.Neighbours
	b.Remainder = b.Taken - b.Charged + b.Reclaimable - b.Kernel
	return b
}

// ownAnon is the anonymous memory of this process, in bytes.
func ownAnon() int64 {
	n, _ := proc.FS{}.Anon(os.Getpid()) // of a process that runs it can be read
	return int64(n)
}

// The kernel gives back what a trial had a while after its end.
const (
	settleStep  = 40 * time.Millisecond
	settleSteps = 20
	settled     = 1 << 20 // bytes that may still come back in a step

	weighing = 20 * time.Millisecond // before the end of the window the machine's memory is read
)

// settledMemory is the machine's memory once it gets back no more, or after a second.
func settledMemory() (proc.Memory, error) {
	free := func(m proc.Memory) uint64 { return m.Available + m.Kept }
	last, err := proc.FS{}.MedianMemory()
	for step, calm := 0, 0; err == nil && step < settleSteps && calm < 3; step++ {
		time.Sleep(settleStep)
		var now proc.Memory
		if now, err = (proc.FS{}).MedianMemory(); free(now) > free(last)+settled {
			calm = 0
		} else {
			calm++
		}
		last = now
	}
	return last, err
}
