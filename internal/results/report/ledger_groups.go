package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// usage holds the resources that groups used themselves, without the groups below them. Times are in nanoseconds, and
// memory is in bytes; an unknown value is nil.
type usage [5]*int64

// The columns of usage.
const (
	usedCPU = iota
	usedBPF // run time of eBPF programs that is included in the CPU time
	usedThrottled
	usedHard
	usedSoft
)

// columns read the counter of a group for each column of usage.
var columns = [len(usage{})]func(*ledger.Cgroup) *int64{
	(*ledger.Cgroup).CPUNanoseconds,
	func(g *ledger.Cgroup) *int64 { return ledger.Nanoseconds(g.BPFInsideSeconds) },
	func(g *ledger.Cgroup) *int64 { return ledger.Nanoseconds(g.ThrottledSeconds) },
	ofMemory(func(m *ledger.Memory) *int64 { return m.Hard }),
	ofMemory(func(m *ledger.Memory) *int64 { return m.Soft }),
}

func ofMemory(part func(*ledger.Memory) *int64) func(*ledger.Cgroup) *int64 {
	return func(g *ledger.Cgroup) *int64 {
		if g.Memory == nil {
			return nil
		}
		return part(g.Memory)
	}
}

// add adds the known values of another usage.
func (u *usage) add(other usage) {
	for i, n := range other {
		if n != nil && u[i] != nil {
			n = new(*u[i] + *n)
		}
		if n != nil {
			u[i] = n
		}
	}
}

// worth reports whether u has a column with a positive value of at least 1/least of the total, which is in the same
// column of all.
func (u *usage) worth(least int64, all usage) bool {
	for i, n := range u {
		if n != nil && *n > 0 && *n >= *all[i]/least {
			return true
		}
	}
	return false
}

// compare sorts by CPU time and then by hard memory, the largest first.
func (u *usage) compare(other *usage) int {
	last := func(unknown *int64) int64 { return known.Or(unknown, -1) }
	return cmp.Or(cmp.Compare(last(other[usedCPU]), last(u[usedCPU])),
		cmp.Compare(last(other[usedHard]), last(u[usedHard])))
}

// groupRow is a row of the table of groups: one group, and the groups included in it.
type groupRow struct {
	*ledger.Cgroup
	used   usage
	groups int  // number of groups included, itself among them
	above  bool // other rows have groups below this one
	lacks  int  // number of groups in other rows that have no CPU counter, so that this row includes their CPU time
}

// GroupTree holds the groups of a ledger, and what each used without the groups below it.
type GroupTree struct {
	*ledger.Tree

	groups []ledger.Cgroup
	own    []usage
	// alone is the index of the root if its own CPU time leaves out all groups below it, even those whose CPU time is
	// unknown (Ledger.CountsCPUs); otherwise -1.
	alone int
}

// NewGroupTree finds the parent of each group of a ledger, and what each used without the groups below it.
func NewGroupTree(l *ledger.Ledger) *GroupTree {
	groups := l.Cgroups
	t := &GroupTree{Tree: ledger.NewTree(groups), groups: groups, own: make([]usage, len(groups))}
	t.alone = slices.IndexFunc(groups, func(g ledger.Cgroup) bool { return l.CountsCPUs(&g) })
	for column, counter := range columns {
		var own []*int64
		switch column {
		case usedCPU:
			own = l.OwnCPU(t.Tree)
		case usedThrottled: // the kernel counts throttling for the group's own limit only
			for i := range groups {
				own = append(own, counter(&groups[i]))
			}
		default:
			own = t.Own(counter)
		}
		for i, n := range own {
			t.own[i][column] = n
		}
	}
	return t
}

// OwnCPU returns the CPU time in seconds that the group at index i used without the groups below it; nil if unknown. It
// includes the time of groups below whose CPU time is unknown, except for the root of a v2 machine, whose time includes
// no other group.
func (t *GroupTree) OwnCPU(i int) *float64 {
	return known.As(t.own[i][usedCPU], func(ns int64) float64 { return float64(ns) / 1e9 })
}

// named reports whether a rule names the group itself, rather than a group above it.
func (t *GroupTree) named(i int) bool {
	c := t.groups[i].Charged
	return c.Charge != "" && (t.Above(i) < 0 || t.groups[t.Above(i)].Charged != c)
}

// A group with less than 1/smallPart of the total in every column is too small for a row, unless all rows are asked for
// or a rule names the group.
const smallPart = 1000

// rows returns the groups that the options ask for, the biggest first, and groups with other rows below them last. A
// group below the maximum depth that no rule names is included in its nearest ancestor that is within that depth or
// named by a rule. A group without a row is included in its nearest ancestor that a rule names, or else in the row
// other. All rows, including the row other, add up to sum.
func (t *GroupTree) rows(o LedgerOptions) (rows []groupRow, other groupRow, sum usage) {
	to := make([]int, len(t.groups)) // the index of the row that includes a group; -1: other
	all := make([]groupRow, len(t.groups))
	for i := range t.groups {
		all[i].Cgroup = &t.groups[i]
		sum.add(t.own[i])
	}
	flat := func(i int) bool { return o.Depth == 0 || depth(t.groups[i].Path) <= o.Depth || t.named(i) }
	for i := range t.groups {
		if to[i] = i; !flat(i) {
			to[i] = t.Nearest(i, flat)
		}
		if to[i] >= 0 {
			all[to[i]].used.add(t.own[i])
		}
	}
	least := int64(smallPart)
	if o.Top < 0 {
		least = math.MaxInt64
	}
	var big []int
	shown := map[int]bool{}
	for i := range t.groups {
		shown[i] = t.named(i)
		if to[i] == i && all[i].used.worth(least, sum) && o.matches(t.groups[i].Path) {
			big = append(big, i)
		}
	}
	slices.SortStableFunc(big, func(i, j int) int { return all[i].used.compare(&all[j].used) })
	for _, i := range big[:o.rows(len(big))] {
		shown[i] = true
	}
	for i := range t.groups {
		if to[i] >= 0 && !shown[to[i]] {
			to[i] = t.Nearest(to[i], t.named)
		}
	}
	for i := range all {
		all[i].used = usage{}
	}
	for i, at := range to {
		row := &other
		if at >= 0 {
			row = &all[at]
		}
		row.used.add(t.own[i])
		row.groups++
		for j := t.Above(i); j >= 0; j = t.Above(j) {
			all[j].above = all[j].above || to[j] == j && at != j
		}
		if t.own[i][usedCPU] != nil {
			continue
		}
		counts := t.Nearest(i, func(j int) bool { return t.own[j][usedCPU] != nil })
		if counts >= 0 && counts != t.alone && to[counts] >= 0 && to[counts] != at {
			all[to[counts]].lacks++
		}
	}
	for i := range all {
		if shown[i] {
			rows = append(rows, all[i])
		}
	}
	slices.SortStableFunc(rows, func(a, b groupRow) int {
		switch {
		case a.above == b.above:
			return a.used.compare(&b.used)
		case a.above:
			return 1
		}
		return -1
	})
	return rows, other, sum
}

// unweighed returns the number of groups whose hard or soft memory is unknown and in no other group's, so that a sum
// lacks it. The root, to which v2 charges nothing, and removed groups are left out.
func (t *GroupTree) unweighed(sum usage) (n int) {
	for i := range t.groups {
		lacks := func(column int) bool {
			return sum[column] != nil && t.own[i][column] == nil &&
				t.Nearest(i, func(j int) bool { return t.own[j][column] != nil }) < 0
		}
		if g := &t.groups[i]; !g.Vanished && g.Path != "/" && (lacks(usedHard) || lacks(usedSoft)) {
			n++
		}
	}
	return n
}

// depth returns the number of levels that a group is below the root.
func depth(path string) int {
	if path == "/" {
		return 0
	}
	return strings.Count(path, "/")
}

// name returns the title of a row: the name of its group, what else the row includes, the charge and, if rule is true,
// the rule that the charge comes from.
func (r *groupRow) name(rule bool) string {
	var what []string
	switch {
	case r.groups > 1:
		what = append(what, fmt.Sprintf("with %d below it", r.groups-1))
	case r.above:
		what = append(what, "in itself")
	}
	if r.lacks > 0 {
		what = append(what, fmt.Sprintf("with the CPU time of %d that are not counted", r.lacks))
	}
	name := clean(r.Title())
	if len(what) > 0 {
		name += " (" + strings.Join(what, ", ") + ")"
	}
	if name += side(r.Charged); rule && r.Rule != "" {
		name += " by " + clean(r.Rule)
	}
	return name
}

func (t *screen) groups(l *ledger.Ledger) {
	t.line(t.bold(fmt.Sprintf("Control groups: %d", len(l.Cgroups))) + ", each without those below it")
	t.linef("  %10s %10s %10s %10s %10s  %s", "CPU", "eBPF in it", "throttled", "hard mem.", "soft mem.",
		"control group")
	left := l.CPU.BPFUnsplit
	row := func(u usage, name string) {
		if inside := u[usedBPF]; inside != nil && *inside == 0 && left != nil && *left > 0 {
			u[usedBPF] = nil // some of the time that could not be split may have been spent here
		}
		t.linef("  %10s %10s %10s %10s %10s  %s", secondsOf(u[usedCPU]), secondsOf(u[usedBPF]),
			secondsOf(u[usedThrottled]), orDash(u[usedHard], quantity.Bytes), orDash(u[usedSoft], quantity.Bytes), name)
	}
	tree := NewGroupTree(l)
	rows, other, sum := tree.rows(t.Ledger)
	for i := range rows {
		row(rows[i].used, rows[i].name(t.Ledger.Top < 0))
	}
	if other.groups > 0 {
		row(other.used, others(other.groups, "group"))
	}
	total := "total"
	if n := tree.unweighed(sum); n > 0 {
		total += ", without the memory of " + quantity.Counted(n, "group") + ": unknown"
	}
	row(sum, total)
	t.line("")
}

// secondsOf formats a time in nanoseconds; a dash if it is unknown.
func secondsOf(ns *int64) string {
	if ns == nil {
		return "-"
	}
	return inSeconds(float64(*ns) / 1e9)
}
