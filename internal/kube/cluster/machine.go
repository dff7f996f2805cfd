package cluster

import (
	"cmp"
	"math"
	"slices"
)

// machineOf returns the shared machine with the given identity, adding it if it is new.
func (m *Merger) machineOf(identity string) *machine {
	x := m.machines[identity]
	if x == nil {
		x = &machine{index: len(m.doc.Machines), given: map[string]map[owner]*metrics{},
			kept: Machine{Identity: m.name(identity), Nodes: []string{}}}
		m.machines[identity] = x
		m.doc.Machines = append(m.doc.Machines, Machine{})
	}
	return x
}

// give records that a node moved usage of the machine, such as that of shims, to its pods.
func (x *machine) give(node string, from owner, figure int, n int64) {
	if x.given[node] == nil {
		x.given[node] = map[owner]*metrics{}
	}
	if x.given[node][from] == nil {
		x.given[node][from] = &metrics{}
	}
	x.given[node][from][figure] += n
}

// take removes from a view's cells the usage that other nodes moved to their pods, as far as the cells contain it.
func (x *machine) take(v *view) {
	for node, given := range x.given {
		for from, of := range given {
			cell := v.cells[from]
			if node == v.node || cell == nil {
				continue
			}
			for f, n := range of {
				n = min(n, max(cell.sums[f][from.side], 0))
				cell.add(f, from.side, -n)
				if f == cpu {
					cell.add(cpus, from.side, -int64(math.Round(float64(n)*v.budget.CPUs/v.budget.Capacity)))
				}
			}
		}
	}
}

// counted returns the best view, and the views whose groups count. If all views are private, all of them count, and the
// best is the one with the most CPU time in its budget. Otherwise only the best counts, which is then not private.
func (x *machine) counted() (best *view, views []*view) {
	best = slices.MaxFunc(x.views, func(a, b *view) int {
		switch {
		case a.private == b.private:
			return cmp.Compare(a.budget.Attributed, b.budget.Attributed)
		case a.private:
			return -1
		}
		return 1
	})
	if best.private {
		return best, x.views
	}
	x.take(best)
	return best, []*view{best}
}

// finishMachine adds the usage of groups that belong to none of the nodes, and puts the machine into the account.
func (m *Merger) finishMachine(x *machine) {
	slices.Sort(x.kept.Nodes)
	label := x.kept.Label()
	var left metrics
	components := map[key]*account{}
	add := func(o owner, cell *account) {
		m.add(&o, label, cell)
		x.usage.merge(cell)
		m.addTo(components, o.componentKey(), cell)
	}
	best, views := x.counted()
	for _, v := range views {
		for f, n := range v.groups {
			left[f] += n
		}
		for o, cell := range v.cells {
			add(o, cell)
			for f, n := range cell.gross() {
				left[f] -= n
			}
		}
		for o, cell := range v.lines {
			// Of the usage in no group, only that of processes is the node's own. The rest is the machine's: all nodes see it.
			if v == best || o.component == rootProcesses || o.component == self {
				add(o, cell)
			}
		}
		if v.private {
			m.inPart(v.node)
		}
	}
	var a account
	for f := range figures {
		if f != bpf {
			a.add(f, sideOther, max(left[f]-x.placed[f], 0))
		}
	}
	if a != (account{}) {
		add(owner{side: sideOther, component: "others on the machine"}, &a)
	}
	x.kept.Budget = best.budget
	b := &x.kept.Budget
	b.Attributed = float64(x.usage.gross()[cpu]+x.placed[cpu]) / 1e9
	b.Unexplained = b.Capacity - b.Idle - b.Steal - b.Attributed
	x.kept.Usage, x.kept.Components = x.usage.usage(false), rows(components)
	m.doc.Machines[x.index] = x.kept
}

// inPart warns that a node is only a part of a machine, and that no agent sees the rest of it.
func (m *Merger) inPart(node string) {
	m.warn("machine-in-part", node, "these nodes are only parts of a machine, and no agent sees the rest of it: what ran "+
		"there is unexplained, and its memory is in no figure")
}
