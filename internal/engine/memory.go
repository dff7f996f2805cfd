package engine

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"tare/internal/host/cgroup"
	"tare/internal/host/oom"
	"tare/internal/host/sandbox"
	"tare/internal/kind"
	"tare/internal/quantity"
)

// This file is of processes that the kernel kills because a limit leaves them no memory.

// watchMemory begins to note them, where something of the trial has such a limit. A machine that cannot is left with
// the kernel's counters, which name nobody.
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
	h, ok := x.machine.Cgroups.Controller("memory")
	if !ok || x.tree == nil {
		return ""
	}
	top, _ := h.Dir(x.tree.Path())
	groups := map[uint64]string{} // paths, by id
	kills := map[string]uint64{}  // by part, as the groups that are still there count
	for _, dir := range cgroup.Below(top) {
		group := x.tree.Path() + strings.TrimPrefix(dir, top)
		if id, err := cgroup.ID(dir); err == nil {
			groups[id] = group
		}
		if n := cgroup.OOMKills(dir); n.OK && n.N > 0 {
			kills[x.partOf(group)] += n.N
		}
	}
	var victims []oom.Victim
	if x.killed != nil {
		victims, _ = x.killed.Victims() // with an error it is those that could be read
	}
	var said []string
	for _, v := range victims {
		group, there := groups[v.Group]
		part, own := strings.CutPrefix(v.GroupName, x.tree.Name()+"-")
		switch {
		case there:
			part = x.partOf(group)
		case own: // a container's own group, which has gone with it
			group, part = v.GroupName, x.partNamed(part)
		default:
			continue // it is somebody else's
		}
		kills[part] -= min(kills[part], 1)
		said = append(said, fmt.Sprintf("the kernel killed %s of %s in the control group %s%s", processName(v), part, group,
			limitOf(h, group)))
	}
	for _, part := range slices.Sorted(maps.Keys(kills)) {
		if n := kills[part]; n > 0 {
			said = append(said, fmt.Sprintf("the kernel killed processes of %s (%d)", part, n))
		}
	}
	return strings.Join(said, "; ")
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

// limitOf is the memory that a group may have, or the nearest above it that has a limit, in words.
func limitOf(h *cgroup.Hierarchy, group string) string {
	for g := group; len(g) > 1; g = path.Dir(g) {
		dir, ok := h.Dir(g)
		if !ok {
			return ""
		}
		if limit := cgroup.MemoryLimit(dir); limit.OK {
			text := ", which may have " + quantity.Value(float64(limit.N), quantity.Bytes)
			if g != group {
				text += " with all in " + g
			}
			return text
		}
	}
	return ""
}

// processName is what is known of a victim.
func processName(v oom.Victim) string {
	name := fmt.Sprintf("process %d", v.PID)
	if v.Comm == "" {
		return name
	}
	name += " (" + v.Comm
	if v.Program != "" && !strings.HasPrefix(v.Program, v.Comm) {
		name += ", program " + v.Program
	}
	name += ")"
	if c, err := sandbox.ComponentOf(v.Comm, []string{v.Program}); err == nil && c != "" {
		name += ", the " + sandbox.ComponentName(c) + " of its sandbox,"
	}
	return name
}
