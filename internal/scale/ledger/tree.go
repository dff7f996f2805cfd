package ledger

import (
	"math"

	"tare/internal/lib/known"
)

// Tree is the groups of a ledger with the nearest listed one above each.
//
// The kernel counts a group with all groups below it, so a list of its counters repeats itself: the root holds what a
// service used, and so does each group in between. Own gives each group what it used in itself, and these add up.
type Tree struct {
	groups []Cgroup
	above  []int // -1 at the top
}

// NewTree finds the group above each.
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

// Above is the index of the nearest listed group above the one at index i; -1 where there is none.
func (t *Tree) Above(i int) int { return t.above[i] }

// Nearest is the nearest group above the one at index i that matches; -1 where there is none.
func (t *Tree) Nearest(i int, matches func(int) bool) int {
	for i = t.above[i]; i >= 0 && !matches(i); i = t.above[i] {
	}
	return i
}

// Own gives of each group the value of a counter without those of the groups listed below it. A counter that is not
// known is nil, and stays in that of the group above.
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

// CPUNanoseconds is the CPU time of the group and what is below it, in nanoseconds; nil where it is not known.
func (g *Cgroup) CPUNanoseconds() *int64 { return Nanoseconds(g.CPUSeconds) }

// Nanoseconds are whole nanoseconds, which add up as seconds in floating point do not; nil of nil.
func Nanoseconds(seconds *float64) *int64 {
	return known.As(seconds, func(s float64) int64 { return int64(math.Round(s * 1e9)) })
}
