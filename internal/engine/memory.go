package engine

import (
	"context"
	"fmt"
	"path"
	"time"

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

// outOfMemory says which processes of the trial were killed because memory was short, by this machine's kernel or by
// that of a guest; empty: none.
func (x *trial) outOfMemory() string {
	if x.tree == nil {
		return ""
	}
	as := oom.Naming{Owner: x.partOf, Named: x.partNamed}
	witness, sees := x.own.(kind.MemoryWitness)
	if sees {
		as.Component = witness.Component
	}
	said := x.killed.Say(x.machine.Cgroups, x.tree.Path(), as)
	if !sees {
		return said
	}
	ctx, cancel := context.WithTimeout(context.Background(), insideTime)
	defer cancel()
	for _, k := range witness.KilledInside(ctx) {
		who, _ := x.partNamed(k.Part)
		if said != "" {
			said += "; "
		}
		said += fmt.Sprintf("the guest's own kernel killed %s of %s inside the sandbox, where %s", k.Process, who, k.Why)
	}
	return said
}

// insideTime is how long sandboxes may take to say what their kernels killed.
const insideTime = 10 * time.Second

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

// partNamed is an application or a load in words, and the path of its group; empty where it has none.
func (x *trial) partNamed(name string) (who, group string) {
	x.mu.Lock()
	if g := x.groups[path.Join(kind.WorkGroup, name)]; g != nil {
		group = g.Path()
	}
	x.mu.Unlock()
	if _, as := x.part(name); as == kind.Load {
		return "the load " + name, group
	}
	return "the application " + name, group
}
