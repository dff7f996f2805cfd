package engine

import (
	"fmt"
	"strings"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/bpf"
)

// How long and how often warnOfPrograms waits for programs to go: the kernel releases those of a removed control group
// in the background (cgroup_bpf_release in kernel/bpf/cgroup.c).
const programsWait, programsPause = time.Second, 50 * time.Millisecond

// programs returns the machine's eBPF programs. It returns nil if they cannot be listed, or if other runs of tare on
// this machine load programs too.
func (x *trial) programs() map[bpf.Key]bool {
	if x.machine.Programs == nil || x.machine.Shared || x.machine.Cgroups != nil && len(x.machine.others()) > 0 {
		return nil
	}
	now, err := x.machine.Programs()
	if err != nil {
		return nil // a missing privilege, of which the window's ledger warns
	}
	keys := map[bpf.Key]bool{}
	for _, p := range now {
		keys[p.Key()] = true
	}
	return keys
}

// warnOfPrograms warns of eBPF programs that did not exist before the trial and still exist after its end. Attached
// ones burden the trials that follow, those of the baseline included.
func (x *trial) warnOfPrograms(before map[bpf.Key]bool) {
	if before == nil {
		return
	}
	for begin := time.Now(); ; time.Sleep(programsPause) {
		now, err := x.machine.Programs()
		if err != nil {
			return
		}
		left := newPrograms(before, now)
		if len(left) == 0 {
			return
		}
		if time.Since(begin) >= programsWait {
			x.Warn(record.ProgramsLeft, "%s", strings.Join(left, ", "))
			return
		}
	}
}

// newPrograms describes the programs, at most five, that are not in before and not this process's own.
func newPrograms(before map[bpf.Key]bool, now []bpf.Program) (found []string) {
	const named = 5
	for _, p := range now {
		if !before[p.Key()] && !p.Own && len(found) < named {
			found = append(found, strings.TrimSpace(fmt.Sprintf("%d %s", p.ID, p.Name))+" ("+p.Type+")")
		}
	}
	return found
}
