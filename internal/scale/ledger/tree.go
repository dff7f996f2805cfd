package ledger

import (
	"cmp"
	"math"

	"tare/internal/lib/known"
)

// Tree links each group of a ledger to the nearest listed group above it.
//
// The kernel counts a group together with its descendants, so a list of groups counts the same time repeatedly: the
// root includes what a service used, and so does each group in between. Own reduces each group to what it used itself,
// and these values add up.
type Tree struct {
	groups []Cgroup
	above  []int // -1 at the top
}

// NewTree finds the nearest listed group above each group.
func NewTree(groups []Cgroup) *Tree {
	t := &Tree{groups: groups, above: make([]int, len(groups))}
	at := map[string]int{}
	for i := range groups {
		if old, twice := at[groups[i].Path]; !twice || groups[old].Vanished {
			at[groups[i].Path] = i
		}
	}
	for i := range groups {
		t.above[i] = -1
		Ancestors(groups[i].Path, func(path string) {
			if j, listed := at[path]; listed && t.above[i] < 0 && path != groups[i].Path {
				t.above[i] = j
			}
		})
	}
	return t
}

// Above returns the index of the nearest listed group above the one at index i; -1 if there is none.
func (t *Tree) Above(i int) int { return t.above[i] }

// Nearest returns the index of the nearest group above the one at index i that matches; -1 if there is none.
func (t *Tree) Nearest(i int, matches func(int) bool) int {
	for i = t.above[i]; i >= 0 && !matches(i); i = t.above[i] {
	}
	return i
}

// Own returns each group's value of a counter minus the values of the groups listed below it. An unknown value is nil,
// and remains part of the group above.
func (t *Tree) Own(counter func(*Cgroup) *int64) []*int64 {
	all, own := make([]*int64, len(t.groups)), make([]*int64, len(t.groups))
	for i := range t.groups {
		all[i] = counter(&t.groups[i])
		own[i] = all[i]
	}
	for i, n := range all {
		if n == nil {
			continue
		}
		if j := t.Nearest(i, func(j int) bool { return all[j] != nil }); j >= 0 {
			own[j] = new(*own[j] - *n)
		}
	}
	return own
}

// OwnCPU returns what t.Own returns for CPU time, in nanoseconds. t must be a tree of the ledger's groups. If the root
// group counts CPUs (see CountsCPUs), its value is the CPU time of its tasks instead.
func (l *Ledger) OwnCPU(t *Tree) []*int64 {
	own := t.Own((*Cgroup).CPUNanoseconds)
	for i := range l.Cgroups {
		if l.CountsCPUs(&l.Cgroups[i]) {
			own[i] = Nanoseconds(l.CPU.Root)
		}
	}
	return own
}

// CountsCPUs reports whether the CPU time of a group is that of the machine's CPUs, with interrupts, as for the root
// where v2 counts CPU time (root_cgroup_cputime in kernel/cgroup/rstat.c). Other groups count their tasks, by another
// clock, so subtracting their time from the root's does not give the time of the root's own tasks.
func (l *Ledger) CountsCPUs(g *Cgroup) bool {
	return g.Path == "/" && cmp.Or(l.Host.CgroupCPU, l.Host.CgroupMode) == "v2" && l.CPU.Part == nil
}

// CPUNanoseconds returns the CPU time of the group and its descendants in nanoseconds; nil if unknown.
func (g *Cgroup) CPUNanoseconds() *int64 { return Nanoseconds(g.CPUSeconds) }

// Nanoseconds returns whole nanoseconds, which add up exactly, unlike seconds in floating point; nil for nil.
func Nanoseconds(seconds *float64) *int64 {
	return known.As(seconds, func(s float64) int64 { return int64(math.Round(s * 1e9)) })
}
