package engine

import (
	"path"

	"tare/internal/host/oom"
	"tare/internal/kind"
)

// watchMemory begins to note processes that the kernel kills because a limit leaves them no memory, where something of
// the trial has such a limit. A machine that cannot is left with the kernel's counters, which name nobody.
func (x *trial) watchMemory() {
	for _, sec := range x.spec.Sections() {
		for _, p := range sec.Parts {
			bounded, tells := p.Kind.(kind.Bounded)
			if p.Limits.Float("memory") > 0 || tells && bounded.BoundsMemory(p.Options) {
				x.killed, _ = oom.Open()
				return
			}
		}
	}
}

// outOfMemory says which processes of the trial the kernel has killed because memory was short; empty: none.
func (x *trial) outOfMemory() string {
	if x.tree == nil {
		return ""
	}
	return x.killed.Say(x.machine.Cgroups, x.tree.Path(), x.partOf, x.partNamed)
}

// partOf is whose a group is, in words.
func (x *trial) partOf(group string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	for g := group; len(g) > 1; g = path.Dir(g) {
		switch as := x.roles[g]; {
		case as.Role == kind.Application:
			return "the application " + as.Workload
		case as.Role == kind.Load:
			return "the load " + path.Base(g)
		case as.Role == kind.Subject && as.Component != "":
			return "the subject's " + as.Component
		case as.Role == kind.Subject:
			return "the subject"
		}
	}
	return "the trial"
}

// partNamed is an application or a load, in words.
func (x *trial) partNamed(name string) string {
	if _, as := x.part(name); as == kind.Load {
		return "the load " + name
	}
	return "the application " + name
}
