package subject

import (
	"cmp"
	"context"

	"tare/internal/experiment/kind"
	"tare/internal/sandboxes/oci"
	"tare/internal/scale/host/sandbox"
)

// Component returns the component of the process that a runtime reports as its container's process: gVisor's sentry,
// the VMM of a virtual machine, or the first process of a container. It returns "" for other processes.
func (j *joined) Component(pid int) string {
	for _, s := range j.inOrder() {
		if s.dir == "" {
			continue
		}
		if t, err := oci.ReadTimes(s.dir); err == nil && t.PID == pid {
			return cmp.Or(string(sandbox.LaunchOf(j.runtime.Name).Main), Workload)
		}
	}
	return ""
}

// KilledInside returns the processes that the kernels of guests killed because they were out of memory.
func (j *joined) KilledInside(ctx context.Context) (all []kind.KilledInside) {
	if sandbox.LaunchOf(j.runtime.Name).Main != sandbox.VMM {
		return nil
	}
	for _, s := range j.inOrder() {
		if s.dir == "" {
			continue
		}
		kills := s.killed
		if t, err := oci.ReadTimes(s.dir); err == nil && t.Exited > 0 {
			kills = t.OutOfMemory
		} else if !s.asked {
			if state, err := s.job.Container.State(ctx); err == nil {
				kills = state.OutOfMemory()
			}
		}
		for _, k := range kills {
			all = append(all, kind.KilledInside{Part: s.name, Process: k.Process, Why: k.Why})
		}
	}
	return all
}
