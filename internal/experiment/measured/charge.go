package measured

import (
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// GroupRole is what a group of a trial was for, and to whom what it used is charged.
type GroupRole struct {
	Role kind.Role
	ledger.Charged
	Limited bool // it was given a CPU limit
}

// Words names the owner of the group called name; empty if the group has no particular owner.
func (g GroupRole) Words(name string) string {
	switch {
	case g.Role == kind.Application:
		return "the application " + g.Workload
	case g.Role == kind.Load:
		return "the load " + name
	case g.Role == kind.Subject && g.Component != "":
		return "the subject's " + g.Component
	case g.Role == kind.Subject:
		return "the subject"
	}
	return ""
}

// NewRole is the role of a group in which the part called name ran: of an application its workload, of a subject a
// component of it, empty where it has none.
func NewRole(role kind.Role, name string) GroupRole {
	g := GroupRole{Role: role}
	switch role {
	case kind.Application:
		g.Charged = ledger.Charged{Charge: ledger.ChargeWorkload, Workload: name}
	case kind.Load:
		g.Charge = ledger.ChargeLoad
	case kind.Subject:
		g.Charged = ledger.Charged{Charge: ledger.ChargeTare, Component: name}
	case kind.Self:
		g.Charge = ledger.ChargeSelf
	}
	return g
}

// SetRoles says in the ledgers what each group of the trial was for, charges to the subject what is its own, and
// settles what each application used, and what was used on its behalf.
func (m *Measured) SetRoles(roles map[string]GroupRole) {
	m.roles = roles
	for _, l := range m.ledgers() {
		MarkRoles(l, roles)
		of := *m
		of.Ledger = l
		of.chargeSubject()
		l.Settle()
	}
}

// MarkRoles says in a ledger what each group of a trial was for. Groups that were for nothing in it have no role.
func MarkRoles(l *ledger.Ledger, roles map[string]GroupRole) {
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		g.Role = ""
		if r, ok := roles[g.Path]; ok {
			g.Role, g.Charged = string(r.Role), r.Charged
		}
	}
}

// ownGroup gives a function that reports whether a group belongs to a trial: it is one of the trial's own, at or below
// tree, or of an application that ran before the trial and is only observed.
func ownGroup(l *ledger.Ledger, tree string) func(group string) bool {
	groups := []string{tree}
	for _, g := range observed(l, tree) {
		groups = append(groups, g.Path)
	}
	return func(path string) bool {
		return slices.ContainsFunc(groups, func(group string) bool { return cgroup.Within(path, group) })
	}
}

// observed are the groups of a ledger that have a part in a trial and were not made for it, without those within
// another of them.
func observed(l *ledger.Ledger, tree string) []*ledger.Cgroup {
	all := Topmost(l, func(g *ledger.Cgroup) bool { return g.Role != "" && !cgroup.Within(g.Path, tree) })
	return slices.DeleteFunc(all, func(g *ledger.Cgroup) bool { return g.Role == string(kind.Self) })
}

// chargeSubject charges the subject for its programs and maps, wherever they ran and whichever group paid for them.
func (m *Measured) chargeSubject() {
	if m.Subject == nil {
		return
	}
	tare := ledger.Charged{Charge: ledger.ChargeTare}
	for i := range m.Ledger.Programs {
		p := &m.Ledger.Programs[i]
		if slices.ContainsFunc(m.Subject.Programs, func(o kind.Object) bool { return o.ID == p.ID }) && p.Charge == "" {
			p.Charged = tare
		}
	}
	ids := m.SubjectMaps()
	for i := range m.Ledger.Maps {
		if mp := &m.Ledger.Maps[i]; ids[mp.ID] && mp.Charge == "" {
			mp.Charged = tare
		}
	}
}

// NodesObjects are the programs and maps that are charged in the ledgers of nodes, by id. The ids mean the same in the
// coordinator's ledger only where the nodes share its machine.
type NodesObjects struct{ programs, maps map[uint32]ledger.Charged }

func (o *NodesObjects) add(l *ledger.Ledger) {
	for _, p := range l.Programs {
		if p.Charge == ledger.ChargeTare {
			o.programs[p.ID] = p.Charged
		}
	}
	for _, m := range l.Maps {
		if m.Charge == ledger.ChargeTare {
			o.maps[m.ID] = m.Charged
		}
	}
}

func (o *NodesObjects) charge(l *ledger.Ledger) {
	for i := range l.Programs {
		if c, ok := o.programs[l.Programs[i].ID]; ok {
			l.Programs[i].Charged = c
		}
	}
	for i := range l.Maps {
		if c, ok := o.maps[l.Maps[i].ID]; ok {
			l.Maps[i].Charged = c
		}
	}
}
