package oom

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"tare/internal/host/cgroup"
	"tare/internal/host/sandbox"
	"tare/internal/quantity"
)

// Say tells in words of the processes in a tree of control groups that were killed since the last call; it is empty
// where none was. whose gives the owner of a group, by its path; named that of one which has gone, by the end of its
// name after the tree's. Kills that the watch does not know, all of them where there is no watch (nil), are told by the
// kernel's counters of the groups that are still there.
func (w *Watch) Say(l *cgroup.Layout, tree string, whose, named func(string) string) string {
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
			kills[whose(group)] += n.N
		}
	}
	var victims []Victim
	if w != nil {
		victims, _ = w.Victims() // with an error it is those that could be read
	}
	var said []string
	for _, v := range victims {
		group, there := groups[v.Group]
		owner, own := strings.CutPrefix(v.GroupName, path.Base(tree)+"-")
		switch {
		case there:
			owner = whose(group)
		case own: // a container's own group, which has gone with it
			group, owner = v.GroupName, named(owner)
		default:
			continue // it is somebody else's
		}
		kills[owner] -= min(kills[owner], 1)
		said = append(said, fmt.Sprintf("the kernel killed %s of %s in the control group %s%s", v.name(), owner, group,
			limitOf(h, group)))
	}
	for _, owner := range slices.Sorted(maps.Keys(kills)) {
		if n := kills[owner]; n > 0 {
			said = append(said, fmt.Sprintf("the kernel killed processes of %s (%d)", owner, n))
		}
	}
	return strings.Join(said, "; ")
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

// name is what is known of a victim, in words.
func (v Victim) name() string {
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
