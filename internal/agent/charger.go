package agent

import (
	"time"

	"tare/internal/scale/charge"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// charger charges ledgers by the rules of the configuration. It is not safe for concurrent use.
type charger struct {
	rules  []charge.Rule
	layout *cgroup.Layout
	every  time.Duration // how old the list of processes may be

	processes []charge.Process
	listed    time.Time
}

// charge sets the components of a ledger. If the processes cannot be listed, it applies the rules to the previous
// list: the window is over, and its usage must be counted.
func (c *charger) charge(l *ledger.Ledger) {
	if len(c.rules) > 0 {
		if now := time.Now(); now.Sub(c.listed) >= c.every {
			processes, err := charge.Running(c.layout)
			if err == nil {
				c.processes, c.listed = processes, now
			} else {
				l.Warn("processes-unread", "rules use the previous list of processes: %v", err)
			}
		}
		charge.Apply(c.rules, l, c.processes)
	}
	l.AddComponents()
}
