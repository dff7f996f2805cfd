package subject

import (
	"maps"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// Some runtimes start a virtual machine in an overhead group, and move it into the pod's group when it runs. How much
// moves depends on the version of control groups. In version 1, only threads move, and no memory, because memory is
// charged to the group of the thread group's leader. In version 2, the whole process moves, but none of the pages that
// were already charged. (See mem_cgroup of mm->owner in mm/memcontrol.c, and "Memory Ownership" in
// Documentation/admin-guide/cgroup-v2.rst.)

// inPod reports whether a group is the pod's group, or is below it.
func (s Sandbox) inPod(group string) bool { return cgroup.Within(group, s.Cgroup) }

// apart reports whether threads of a virtual machine run in the pod while its memory is charged elsewhere.
func (s Sandbox) apart(p Process) bool {
	return p.Component == VMM && !s.inPod(p.MemoryCgroup) &&
		slices.ContainsFunc(slices.Collect(maps.Keys(p.ThreadCgroups)), s.inPod)
}

// apartBytes returns the hard memory of the overhead groups of virtual machines of which only threads are in pods.
func apartBytes(e *Evidence, m *measured.Measured) (float64, bool) {
	return overhead(e, m, func(s Sandbox) bool { return slices.ContainsFunc(s.Processes, s.apart) }, nil)
}

// stayedBytes returns the memory that is still charged to overhead groups for virtual machines that are in pods: the
// anonymous and shared memory of the overhead groups, minus that of processes that are still in them.
func stayedBytes(e *Evidence, m *measured.Measured) (float64, bool) {
	return overhead(e, m,
		func(s Sandbox) bool {
			return slices.ContainsFunc(s.Processes, func(p Process) bool {
				return p.Component == VMM && s.inPod(p.MemoryCgroup)
			})
		},
		func(p Process) uint64 { return p.own().Anon + p.own().Shmem })
}

// overhead adds up the memory of the overhead groups. If accounted is nil, that is their hard memory. Otherwise it is
// their anonymous and shared memory, minus accounted(p) for each process p that is charged to them. overhead ignores
// groups for which the ledger has no memory. It returns false if no group remains, if one of the needed figures is nil,
// or if is(s) returns false for a sandbox s.
func overhead(e *Evidence, m *measured.Measured, is func(Sandbox) bool,
	accounted func(Process) uint64) (float64, bool) {
	if m.Ledger == nil || slices.ContainsFunc(e.Sandboxes, func(s Sandbox) bool { return !is(s) }) {
		return 0, false
	}
	total, found := int64(0), false
	for _, g := range measured.Topmost(m.Ledger, func(g *ledger.Cgroup) bool {
		return g.Role == string(kind.Subject) && g.Component == overheadComponent
	}) {
		if g.Memory == nil {
			continue
		}
		if accounted == nil {
			if g.Memory.Hard == nil {
				return 0, false
			}
			total, found = total+*g.Memory.Hard, true
			continue
		}
		if g.Memory.Anon == nil || g.Memory.Shmem == nil {
			return 0, false
		}
		total, found = total+int64(*g.Memory.Anon+*g.Memory.Shmem), true
		for _, s := range e.Sandboxes {
			for _, p := range s.Processes {
				if cgroup.Within(p.MemoryCgroup, g.Path) {
					total -= int64(accounted(p))
				}
			}
		}
	}
	return float64(max(0, total)), found
}
