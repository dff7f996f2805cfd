package oom

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/sandbox"
)

// Naming describes the owners of control groups and processes.
type Naming struct {
	// Owner describes the owner of a group, by the group's path.
	Owner func(group string) string
	// Named describes an application or load, by its name, and returns its group.
	Named func(name string) (who, group string)
	// Component returns what a process was, by its PID; empty if unknown. It may be nil.
	Component func(pid int) string
}

// Say describes the processes in a tree of control groups that were killed since the last call; it is empty if there
// were none. Kills that the watch did not record (all of them if w is nil) are taken from the kernel's counters of the
// groups that still exist.
func (w *Watch) Say(l *cgroup.Layout, tree string, as Naming) string {
	h, ok := l.Controller("memory")
	if !ok {
		return ""
	}
	top, _ := h.Dir(tree)
	groups := map[uint64]string{} // paths, by id
	kills := map[string]uint64{}  // by owner
	for _, dir := range cgroup.Below(top) {
		group := tree + strings.TrimPrefix(dir, top)
		if id, err := cgroup.ID(dir); err == nil {
			groups[id] = group
		}
		if n := cgroup.OOMKills(dir); n.OK && n.N > 0 {
			kills[as.Owner(group)] += n.N
		}
	}
	var victims []Victim
	if w != nil {
		victims, _ = w.Victims() // after an error, those that could be read
	}
	var said []string
	for _, v := range victims {
		group, there := groups[v.Group]
		owner, parts := "", ""
		if there {
			owner = as.Owner(group)
		} else {
			// A container's group is gone with the container. The group's name ends in that of the container, which begins with
			// the name of the tree.
			_, name, own := strings.Cut(v.GroupName, path.Base(tree)+"-")
			if !own {
				continue // the victim was not in this tree
			}
			owner, parts = as.Named(name)
			group = path.Join(parts, v.GroupName)
		}
		kills[owner] -= min(kills[owner], 1)
		said = append(said, fmt.Sprintf("the kernel killed %s of %s in the control group %s%s", v.name(as.Component), owner,
			group, v.limitOf(h, groups, group)))
	}
	for _, owner := range slices.Sorted(maps.Keys(kills)) {
		if n := kills[owner]; n > 0 {
			said = append(said, fmt.Sprintf("the kernel killed processes of %s (%d)", owner, n))
		}
	}
	return strings.Join(said, "; ")
}

// limitOf describes the limit that was reached: of the victim's group, of one above it, or the machine's memory.
func (v Victim) limitOf(h *cgroup.Hierarchy, groups map[uint64]string, group string) string {
	if v.Limit == 0 {
		return ", while this machine's own memory was short"
	}
	text := ", which may have " + quantity.Value(float64(v.Limit), quantity.Bytes)
	if v.Limited == v.Group {
		return text
	}
	limited, there := groups[v.Limited]
	for g := path.Dir(group); !there && len(g) > 1; g = path.Dir(g) { // it may be above the tree
		if dir, ok := h.Dir(g); ok {
			id, err := cgroup.ID(dir)
			limited, there = g, err == nil && id == v.Limited
		}
	}
	if !there {
		return text + " with all of a group above it"
	}
	return text + " with all in " + limited
}

// name describes a victim.
func (v Victim) name(component func(int) string) string {
	name := fmt.Sprintf("process %d", v.PID)
	if v.Comm == "" {
		return name
	}
	name += " (" + v.Comm
	if v.Program != "" && !strings.HasPrefix(v.Program, v.Comm) {
		name += ", program " + v.Program
	}
	name += ")"
	c := sandbox.ComponentOf(v.Comm, []string{v.Program})
	if component != nil && c == "" {
		c = sandbox.Component(component(v.PID))
	}
	if c != "" && c != sandbox.Workload {
		name += ", the " + sandbox.ComponentName(c) + " of its sandbox,"
	}
	return name
}
