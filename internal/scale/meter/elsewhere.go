package meter

import (
	"fmt"
	"slices"
	"time"

	plain "tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// lookElsewhere finds the groups that count the CPU time of a process but not its memory, and records one such process
// for each group. Such groups exist only if CPU time and memory are counted in different hierarchies, at least one of
// them of v1. lookElsewhere takes 25 us for each process of the machine, so it runs at most once per lookEvery.
func (m *Meter) lookElsewhere() error {
	if time.Since(m.looked) < m.lookEvery {
		return nil
	}
	m.elsewhere, m.looked = nil, time.Now()
	cpu, _ := m.layout.CPU()
	memory, ok := m.layout.Controller("memory")
	if !ok || memory == cpu {
		return nil
	}
	pids, err := m.fs.PIDs()
	if err != nil {
		return fmt.Errorf("listing processes: %w", err)
	}
	kernel := m.kernelThreads() // kernel threads are in the root groups
	groups := m.layout.NewResolver()
	// A process that cannot be read has ended, or is hidden.
	apart := func(pid int) bool { c, err := groups.ChargedOf(pid); return err == nil && c.CPU != c.Memory }
	pids = slices.DeleteFunc(pids, func(pid int) bool { return kernel[pid] || !apart(pid) })
	// Check again: a process is moved in one hierarchy at a time, and the first check may have come in between.
	for _, pid := range pids {
		c, err := groups.ChargedOf(pid)
		if err != nil || c.CPU == c.Memory {
			continue
		}
		p, err := m.fs.Process(pid)
		if err != nil || p.Exiting() { // v1 has then moved it to its root groups
			continue
		}
		ledger.Ancestors(c.CPU, func(path string) {
			if m.elsewhere[path] == "" && !cgroup.Within(c.Memory, path) {
				if m.elsewhere == nil {
					m.elsewhere = map[string]string{}
				}
				m.elsewhere[path] = fmt.Sprintf("process %d (%s) is in it, and its memory is counted in %.200s", pid,
					plain.Plain(p.Comm), c.Memory)
			}
		})
	}
	return nil
}

// lacksMemory warns of groups that have the CPU time of processes but not their memory.
func (a *account) lacksMemory(groups []string) {
	const named = 3
	slices.Sort(groups)
	for _, path := range groups[:min(named, len(groups))] {
		a.warn("memory-elsewhere", "the memory of control group %.200s is not known: %s", path, a.m.elsewhere[path])
	}
	if n := len(groups) - named; n > 0 {
		a.warn("memory-elsewhere", "the memory of %d more control groups is not known, for the same reason", n)
	}
}
