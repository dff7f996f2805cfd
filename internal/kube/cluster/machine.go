package cluster

import "math"

// machineOf returns the machine with an identity, which several nodes share.
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

// take removes from the view's cells what other nodes moved to their pods, as far as the cells have it.
func (x *machine) take() {
	for node, given := range x.given {
		for from, of := range given {
			cell := x.best.cells[from]
			if node == x.best.node || cell == nil {
				continue
			}
			for f, n := range of {
				n = min(n, max(cell.sums[f][from.side], 0))
				cell.add(f, from.side, -n)
				if f == cpu {
					cell.add(cpus, from.side, -int64(math.Round(float64(n)*x.best.budget.CPUs/x.best.budget.Capacity)))
				}
			}
		}
	}
}

// label returns the name of the machine's row among nodes.
func (x *machine) label() string { return "(machine " + x.kept.Identity + ")" }

// finishMachine adds the usage of groups that belong to none of the nodes, and closes the budget.
func (m *Merger) finishMachine(x *machine) {
	x.take()
	left := x.groups
	for _, cell := range x.best.cells {
		for f, n := range cell.gross() {
			left[f] -= n
		}
	}
	for _, cells := range []map[owner]*account{x.best.lines, x.best.cells} {
		for o, cell := range cells {
			m.add(&o, x.label(), cell)
			x.usage.merge(cell)
		}
	}
	var a account
	for f := range figures {
		if f != bpf {
			a.add(f, sideOther, max(left[f]-x.placed[f], 0))
		}
	}
	if a != (account{}) {
		m.add(&owner{side: sideOther, component: "others on the machine"}, x.label(), &a)
		x.usage.merge(&a)
	}
	x.kept.Budget = x.best.budget
	b := &x.kept.Budget
	b.Attributed = float64(x.usage.gross()[cpu]+x.placed[cpu]) / 1e9
	b.Unexplained = b.Capacity - b.Idle - b.Steal - b.Attributed
	x.kept.Usage = x.usage.usage(false)
	m.doc.Machines[x.index] = x.kept
}
