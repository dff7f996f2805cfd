package meter

import (
	"fmt"
	"slices"
	"time"

	plain "tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// lookElsewhere finds the groups that lack the memory of a process whose CPU time they have, and says for each which
// process that is. Only where the two are counted in different hierarchies, of which one is v1, are there any. It takes
// 25 us for each process of the machine, so it is not done again before lookEvery has passed.
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
	kernel := m.kernelThreads() // they are in the root groups
	groups := m.layout.NewResolver()
	// One that cannot be read has ended, or is hidden.
	apart := func(pid int) bool { c, err := groups.ChargedOf(pid); return err == nil && c.CPU != c.Memory }
	pids = slices.DeleteFunc(pids, func(pid int) bool { return kernel[pid] || !apart(pid) })
	for _, pid := range pids { // once more, for who moves a process does so in one hierarchy after the other
		c, err := groups.ChargedOf(pid)
		if err != nil || c.CPU == c.Memory {
			continue
		}
		p, err := m.fs.Process(pid)
		if err != nil || p.Exiting() { // v1 has it in its root groups then
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

// lacksMemory warns of groups that lack the memory of processes whose CPU time they have.
func (a *account) lacksMemory(groups []string) {
	const named = 3
	slices.Sort(groups)
	for _, path := range groups[:min(named, len(groups))] {
		a.warn("memory-elsewhere", "the memory of control group %.200s is not known: %s", path, a.m.elsewhere[path])
	}
	if n := len(groups) - named; n > 0 {
		a.warn("memory-elsewhere", "nor is that of %d more control groups, for the like reason", n)
	}
}
