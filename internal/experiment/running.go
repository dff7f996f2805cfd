package experiment

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"tare/internal/ledger"
	"tare/internal/role"
)

// scheduleOf is what the load of a name is told at its start.
func (x *trial) scheduleOf(name string, s role.Schedule) role.Schedule {
	s.Stalls = x.wants[name].Stalls
	return s
}

// tellStalls tells the loads that want to know when the machine stood still in the window.
func (x *trial) tellStalls(l *ledger.Ledger) error {
	stalls := stallsOf(l, path.Dir(x.work.Path()), x.machine.Shared)
	for _, name := range slices.Sorted(maps.Keys(x.loads)) {
		if !x.wants[name].Stalls {
			continue
		}
		if err := x.loads[name].conn.Send(role.Halts, stalls); err != nil {
			return fmt.Errorf("telling the load %s of stalls: %w", name, err)
		}
	}
	return nil
}

// stallsOf is when the machine stood still for those who work in the groups at tree: time that the hypervisor took,
// and time in which a task from elsewhere held a CPU. What the trial's own processes do to each other is no stall but
// what is measured, and neither are looks of the witness that came late: whoever turned interrupts off may be the
// subject. Kernel threads work for others, who may be the subject, and of a task whose group is not known nobody can
// say. On a machine that other nodes of the same run share, their processes are the experiment, and cannot be told
// from neighbours.
func stallsOf(l *ledger.Ledger, tree string, shared bool) role.Stalls {
	if l == nil {
		return role.Stalls{Unknown: "no window was measured"}
	}
	s := role.Stalls{From: monotonicOf(l.Window.Start), To: monotonicOf(l.Window.End), Spans: [][2]int64{}}
	switch {
	case l.Noise == nil:
		s.Unknown = "nobody watched for stalls of the machine"
		return s
	case l.Noise.StallsOmitted > 0 || l.Noise.OccupiedMissed > 0:
		s.Unknown = fmt.Sprintf("the machine stood still so often that %d stalls were not kept",
			l.Noise.StallsOmitted+l.Noise.OccupiedMissed)
		return s
	}
	s.Spans = l.Noise.Spans(func(one ledger.Stall) bool {
		if one.Cause == ledger.Neighbour {
			return !shared && one.Cgroup != "" && !within(one.Cgroup, tree) && !ledger.KernelThread(one.Comm)
		}
		return one.Cause == ledger.Hypervisor
	})
	return s
}
