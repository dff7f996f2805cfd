package agent

import (
	"slices"
	"time"

	"tare/internal/scale/charge"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// charger charges ledgers by the rules of the configuration. It is not safe for concurrent use.
type charger struct {
	rules  []charge.Rule
	layout *cgroup.Layout
	every  time.Duration // how old the list of processes may be, if no group or program began since

	processes []charge.Process
	listed    time.Time
	groups    map[string]bool // paths of the control groups that existed when the processes were listed
}

// charge sets the components of a ledger. If the processes cannot be listed, it applies the rules to the previous
// list: the window is over, and its usage must be counted.
func (c *charger) charge(l *ledger.Ledger) {
	if len(c.rules) > 0 {
		if now := time.Now(); c.outdated(l, now) {
			processes, err := charge.Running(c.layout)
			if err == nil {
				c.processes, c.listed, c.groups = processes, now, map[string]bool{}
				for i := range l.Cgroups {
					if g := &l.Cgroups[i]; !g.Vanished {
						c.groups[g.Path] = true
					}
				}
			} else {
				l.Warn("processes-unread", "rules use the previous list of processes: %v", err)
			}
		}
		charge.Apply(c.rules, l, c.processes)
	}
	l.AddComponents()
}

// soonest is the minimum age of the list of processes before a new control group or eBPF program causes it to be
// replaced.
const soonest = time.Second

// outdated reports whether the processes must be listed again: the list is old, or a control group or an eBPF program
// was created after it, so rules may name processes that are not listed. If the list is too young to be replaced, the
// group stays unlisted, and a later ledger makes the list outdated.
func (c *charger) outdated(l *ledger.Ledger, now time.Time) bool {
	for i := range l.Cgroups {
		// A group that was removed may have been made again at the same path.
		if g := &l.Cgroups[i]; g.Began != nil || g.Vanished {
			delete(c.groups, g.Path)
		}
	}
	age := now.Sub(c.listed)
	if age < soonest || age >= c.every {
		return age >= c.every
	}
	loaded := func(p ledger.Program) bool { return p.LoadedAt != nil && p.LoadedAt.After(c.listed) }
	made := func(g ledger.Cgroup) bool { return !g.Vanished && !c.groups[g.Path] }
	return slices.ContainsFunc(l.Programs, loaded) || slices.ContainsFunc(l.Cgroups, made)
}
