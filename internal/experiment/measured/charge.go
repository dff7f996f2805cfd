package measured

import (
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// GroupRole is the role of a trial's group, and the account to which its use is charged.
type GroupRole struct {
	Role kind.Role
	ledger.Charged
	Limited bool    // it may be throttled: it has a CPU limit on purpose
	Limit   float64 // the CPU limit that the spec gives it, in CPUs; 0 if it has none
}

// Words describes the owner of the group called name, or returns "" if it has none.
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

// NewRole returns the role of a group. name is the workload for an application, and for a subject the component, or ""
// without components.
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

// SetRoles sets the role of each group in the ledgers, charges the subject for its programs and maps, and determines
// what each application used and what was used on its behalf.
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

// MarkRoles sets the role of each group in a ledger. Groups that are not in roles have no role.
func MarkRoles(l *ledger.Ledger, roles map[string]GroupRole) {
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		g.Role = ""
		if r, ok := roles[g.Path]; ok {
			g.Role, g.Charged = string(r.Role), r.Charged
		}
	}
}

// ownGroup returns a function that reports whether a group belongs to a trial: it is at or below one of the trial's
// trees, or has a role in the trial but was there before and is only observed.
func ownGroup(l *ledger.Ledger, trees ...string) func(group string) bool {
	groups := slices.Clone(trees)
	for _, g := range observed(l, trees...) {
		groups = append(groups, g.Path)
	}
	return func(path string) bool { return withinAny(path, groups) }
}

// withinAny reports whether a group is at or below one of the given groups.
func withinAny(path string, groups []string) bool {
	return slices.ContainsFunc(groups, func(group string) bool { return cgroup.Within(path, group) })
}

// observed returns the groups of a ledger that have a role in a trial but were not made for it. It leaves out groups
// inside another such group, and the groups of Tare itself.
func observed(l *ledger.Ledger, trees ...string) []*ledger.Cgroup {
	all := Topmost(l, func(g *ledger.Cgroup) bool { return g.Role != "" && !withinAny(g.Path, trees) })
	return slices.DeleteFunc(all, func(g *ledger.Cgroup) bool { return g.Role == string(kind.Self) })
}

// chargeSubject charges the subject for its programs and maps, wherever they ran and whichever group was charged.
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

// NodesObjects holds the programs and maps that are charged in the ledgers of nodes, by id. The ids are valid in the
// coordinator's ledger only if the nodes share its machine.
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
