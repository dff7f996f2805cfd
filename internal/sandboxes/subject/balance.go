package subject

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Balance accounts for the change of the machine's available memory from before the trial until the end of its window,
// in bytes:
//
//	lost  = kept + beside + neighbours + taken
//	taken = charged - reclaimable + kernel + remainder
//
// Every term except the remainder is measured separately. Terms that are differences of the machine's counters include
// everything that ran on the machine.
type Balance struct {
	Lost int64 `json:"lost"` // decrease of MemAvailable
	// Kept is the growth of the CPUs' lists of free pages, which MemAvailable does not include. It is a difference of the
	// machine's counters, and is negative if the trial took pages that the previous trial had freed.
	Kept int64 `json:"kept_by_cpus"`
	// Beside is the memory charged to the trial's groups other than the sandboxes', such as its loads' groups, plus the
	// growth of this process.
	Beside int64 `json:"beside"`
	// Neighbours is the growth of anonymous and shared memory on the rest of the machine: the difference of the machine's
	// counters, minus the part of the trial's groups and of this process.
	Neighbours int64 `json:"neighbours"`
	// Taken is the rest of the loss: the memory that the sandboxes took.
	Taken int64 `json:"taken"`

	Charged int64 `json:"charged"` // hard memory of all groups of the sandboxes
	// Reclaimable is the part of Charged that the kernel can free when necessary, and that MemAvailable therefore still
	// includes. It is the difference of the machine's counters if control groups do not distinguish that memory (version
	// 1), and otherwise 0.
	Reclaimable int64 `json:"reclaimable"`
	// Kernel is the growth of the kernel's memory that cannot be freed (proc.Memory.Kernel), minus the part of it that is
	// charged to the trial's groups: memory that is charged to no group. It is negative if the groups are charged for
	// objects in slabs that existed before. Memory that is charged to the groups but is in none of the machine's counters,
	// such as buffers of pipes, is in neither Kernel nor Remainder.
	Kernel    int64 `json:"kernel_uncharged"`
	Remainder int64 `json:"remainder"` // attributed to nothing
}

// held is the memory that is charged to control groups, in bytes.
type held struct {
	users  int64 // anonymous and shared memory
	kernel int64 // kernel memory that cannot be freed; if told is false, it includes reclaimable slab
	told   bool  // whether the kernel distinguishes reclaimable slab
}

func (h held) hard() int64 { return h.users + h.kernel }

// add adds the memory of a group. It returns false if one of the values is unknown.
func (h *held) add(m cgroup.Memory) bool {
	h.users += int64(m.Anon.N + m.Shmem.N)
	h.kernel += int64(m.Kernel.N) - int64(m.SlabReclaimable.N)
	h.told = m.SlabReclaimable.OK
	return m.Anon.OK && m.Shmem.OK && m.Kernel.OK
}

// weighed holds the machine's memory, the memory charged at that time to all of the trial's groups, and the part of it
// that is charged to the sandboxes' groups.
type weighed struct {
	machine        proc.Memory
	all, sandboxes held
	own            int64 // anonymous memory of this process
}

// groups returns the path of the group of the whole trial, and the paths of the sandboxes' groups in it: the pods' and
// the subject's.
func (j *joined) groups() (all string, sandboxes []string, err error) {
	pods, tree, err := j.pods()
	if err != nil || len(pods) == 0 {
		return "", nil, err
	}
	sandboxes = slices.Collect(maps.Keys(pods))
	if !j.plain() {
		g, err := j.trial.SubjectGroup("", nil)
		if err != nil {
			return "", nil, err
		}
		sandboxes = append(sandboxes, g.Path())
	}
	for all = sandboxes[0]; path.Base(all) != tree && all != "/"; {
		all = path.Dir(all)
	}
	return all, sandboxes, nil
}

// weigh reads the memory of the machine and of the trial's groups. known is false if groups do not report their memory;
// only w.machine and w.own are then valid.
func weigh(l *cgroup.Layout, all string, sandboxes []string) (w weighed, known bool, err error) {
	r, err := cgroup.NewReaderOfSome(l)
	if err != nil {
		return w, false, err
	}
	defer r.Close()
	known = true
	for _, p := range append([]string{all}, sandboxes...) { // reading the parent updates the groups in it
		known = r.Add(p) != nil && known
	}
	if w.machine, err = (proc.FS{}).MedianMemory(); err != nil {
		return w, false, err
	}
	if err := r.ReadMemory(); err != nil {
		return w, false, err
	}
	w.own = ownAnon()
	for _, g := range r.Groups() {
		into := &w.sandboxes
		if g.Path == all {
			into = &w.all
		}
		known = into.add(g.Memory) && known
	}
	return w, known, nil
}

// balance records the current balance in the evidence. If that fails, the trial fails, unless it has already ended.
func (j *joined) balance(ctx context.Context) {
	all, sandboxes, err := j.groups()
	if err == nil && len(sandboxes) == 0 {
		return
	}
	var w weighed
	known := false
	if err == nil {
		w, known, err = weigh(j.trial.Cgroups(), all, sandboxes)
	}
	if err != nil {
		if ctx.Err() == nil {
			j.trial.Fail(fmt.Errorf("weighing the sandboxes: %w", err))
		}
		return
	}
	j.evidence.MachineInWindow, j.evidence.AvailableInWindow = &w.machine, &w.machine.Available
	if known {
		j.evidence.Balance = balanced(j.evidence.MachineBefore, j.ownBefore, w)
	}
}

// balanced computes the balance. before and own are the machine's memory and the anonymous memory of this process
// before the trial, and w holds the values at the end.
func balanced(before proc.Memory, own int64, w weighed) *Balance {
	grown := func(of func(proc.Memory) uint64) int64 { return int64(of(w.machine)) - int64(of(before)) }
	own = w.own - own
	b := &Balance{
		Lost:    -grown(func(m proc.Memory) uint64 { return m.Available }),
		Kept:    grown(func(m proc.Memory) uint64 { return m.Kept }),
		Beside:  w.all.hard() - w.sandboxes.hard() + own,
		Charged: w.sandboxes.hard(),
	}
	if !w.all.told {
		b.Reclaimable = min(max(0, grown(func(m proc.Memory) uint64 { return m.Reclaimable })), w.all.kernel)
	}
	b.Neighbours = grown(func(m proc.Memory) uint64 { return m.Anon + m.Shmem }) - w.all.users - own
	b.Taken = b.Lost - b.Kept - b.Beside - b.Neighbours
	b.Kernel = grown(proc.Memory.Kernel) - (w.all.kernel - b.Reclaimable)
	b.Remainder = b.Taken - b.Charged + b.Reclaimable - b.Kernel
	// If Kernel is negative and Remainder positive, groups are charged for memory that none of the machine's counters
	// include. That memory is removed from both terms: see Balance.Kernel.
	if unnamed := min(-b.Kernel, b.Remainder); unnamed > 0 {
		b.Kernel, b.Remainder = b.Kernel+unnamed, b.Remainder-unnamed
	}
	return b
}

// chargedElsewhere reports whether a process of a sandbox is charged to a group outside the trial's tree. Its memory
// cannot then be distinguished from the neighbours'.
func (e *Evidence) chargedElsewhere(tree string) bool {
	for _, s := range e.Sandboxes {
		for _, p := range s.Processes {
			if !slices.Contains(strings.Split(p.MemoryCgroup, "/"), tree) {
				return true
			}
		}
	}
	return false
}

// ownAnon returns the anonymous memory of this process, in bytes.
func ownAnon() int64 {
	n, _ := proc.FS{}.Anon(os.Getpid()) // cannot fail for a running process
	return int64(n)
}

// The kernel frees a trial's memory only some time after the trial's end. settledMemory waits for that in steps.
const (
	settleStep  = 25 * time.Millisecond // between two readings
	settleSteps = 20                    // maximum number of steps
	settled     = 1 << 20               // the largest growth of free memory per step, in bytes, that counts as settled

	weighing = 30 * time.Millisecond // how long before the end of the window the machine's memory is read
)

// settledMemory returns the machine's memory once no more memory is being freed, or after about a second.
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
