package measured

import (
	"fmt"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/scale/ledger"
)

// MonotonicOf converts a time to CLOCK_MONOTONIC, in nanoseconds. The time must come from time.Now in this process.
func MonotonicOf(at time.Time) int64 { return pace.Now() - time.Since(at).Nanoseconds() }

// StallsOf returns when the machine stalled for the processes in the groups at tree: when the hypervisor took time, and
// when a task from elsewhere held a CPU. Delays of the trial's processes by each other are not stalls but part of the
// measurement. Late samples of the witness are not stalls, because the subject may have disabled interrupts, nor is the
// time of kernel threads, which may work for the subject, nor that of tasks whose group is unknown. If other nodes of
// the same run share the machine (shared), only what the hypervisor took counts, because the processes of these nodes
// are part of the experiment and cannot be distinguished from neighbours.
func StallsOf(l *ledger.Ledger, tree string, shared bool) role.Stalls {
	if l == nil {
		return role.Stalls{Unknown: "no window was measured"}
	}
	s := role.Stalls{From: MonotonicOf(l.Window.Start), To: MonotonicOf(l.Window.End), Spans: [][2]int64{}}
	switch {
	case l.Noise == nil:
		s.Unknown = "stalls of the machine were not watched for"
		return s
	case l.Noise.StallsOmitted > 0 || l.Noise.OccupiedMissed > 0:
		s.Unknown = fmt.Sprintf("the machine stood still so often that %d stalls were not kept",
			l.Noise.StallsOmitted+l.Noise.OccupiedMissed)
		return s
	}
	mine := ownGroup(l, tree)
	s.Spans = l.Noise.Spans(func(one ledger.Stall) bool {
		if one.Cause == ledger.Neighbour {
			return !shared && one.Cgroup != "" && !mine(one.Cgroup) && !ledger.KernelThread(one.Comm)
		}
		return one.Cause == ledger.Hypervisor
	})
	return s
}
