package cluster

import "math"

// machineOf is the machine of an identity, which several nodes share.
func (m *Merger) machineOf(identity string) *machine {
	x := m.machines[identity]
	if x == nil {
		x = &machine{index: len(m.doc.Machines), cells: map[owner]*account{},
			kept: Machine{Identity: m.name(identity), Nodes: []string{}}}
		m.machines[identity] = x
		m.doc.Machines = append(m.doc.Machines, Machine{})
	}
	return x
}

// add adds CPU time that is no node's part.
func (x *machine) add(m *Merger, o owner, ns int64, seconds float64) {
	var a account
	a.add(cpu, o.side, ns)
	a.add(cpus, o.side, int64(math.Round(float64(ns)/seconds)))
	x.usage.merge(&a)
	m.add(&o, x.label(), &a)
}

// give notes that a node gave a part of what is the machine's to its pods, as shims are: no more than is there. The
// first node's cells have that already.
func (x *machine) give(w *node, from owner, figure int, n int64) {
	cell := x.cells[from]
	if len(x.kept.Nodes) == 0 || cell == nil {
		return
	}
	n = min(n, max(cell.sums[figure][from.side], 0))
	cell.add(figure, from.side, -n)
	if figure == cpu {
		cell.add(cpus, from.side, -int64(math.Round(float64(n)/w.l.Window.Seconds)))
	}
}

// label is the name of its row among nodes.
func (x *machine) label() string { return "(machine " + x.kept.Identity + ")" }

// finishMachine adds what groups used that are no node's part, and closes the budget.
func (m *Merger) finishMachine(x *machine) {
	left := x.groups
	for o, cell := range x.cells {
		for f, n := range cell.gross() {
			left[f] -= n
		}
		m.add(&o, x.label(), cell)
		x.usage.merge(cell)
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
	b := &x.kept.Budget
	b.Attributed = float64(x.usage.gross()[cpu]+x.placed[cpu]) / 1e9
	b.Unexplained = b.Capacity - b.Idle - b.Steal - b.Attributed
	x.kept.Usage = x.usage.usage(false)
	m.doc.Machines[x.index] = x.kept
}
