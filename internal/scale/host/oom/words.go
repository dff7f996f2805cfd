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

// Naming says whose control groups and processes are.
type Naming struct {
	Owner func(group string) string             // of a group, by its path, in words
	Named func(name string) (who, group string) // an application or load by its name: in words, and its group
	// Component is what a process was, by its PID; empty or nil: not known.
	Component func(pid int) string
}

// Say tells in words of the processes in a tree of control groups that were killed since the last call; it is empty
// where none was. Kills that the watch does not know, all of them where there is no watch (nil), are told by the
// kernel's counters of the groups that are still there.
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
		victims, _ = w.Victims() // with an error it is those that could be read
	}
	var said []string
	for _, v := range victims {
		group, there := groups[v.Group]
		owner, parts := "", ""
		if there {
			owner = as.Owner(group)
		} else {
			// A container's own group has gone with it. Its name ends in that of its container, which begins as the tree's.
			_, name, own := strings.Cut(v.GroupName, path.Base(tree)+"-")
			if !own {
				continue // it is somebody else's
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

// limitOf is the limit that was reached, in words: of the victim's group, of one above it, or the machine's memory.
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

// name is what is known of a victim, in words.
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
