package experiment

import (
	"slices"

	"tare/internal/ledger"
)

// The roles of groups.
const (
	roleApp     = "app"
	roleLoad    = "load"
	roleSubject = "subject"
	roleSelf    = "self"
)

// groupRole is what a group of a trial was for, and to whom what it used is charged.
type groupRole struct {
	role string
	ledger.Charged
}

// newRole is the role of a group in which the process called name ran.
func newRole(role, name string) groupRole {
	g := groupRole{role: role}
	switch role {
	case roleApp:
		g.Charged = ledger.Charged{Charge: ledger.ChargeWorkload, Workload: name}
	case roleLoad:
		g.Charge = ledger.ChargeLoad
	case roleSubject:
		g.Charge = ledger.ChargeTare
	case roleSelf:
		g.Charge = ledger.ChargeSelf
	}
	return g
}

// setRoles says in the ledgers what each group of the trial was for, charges to the subject what is its own, and
// settles what each application used, and what was used on its behalf.
func (m *measurement) setRoles(roles map[string]groupRole) {
	for _, l := range m.ledgers() {
		for i := range l.Cgroups {
			if r, ok := roles[l.Cgroups[i].Path]; ok {
				l.Cgroups[i].Role, l.Cgroups[i].Charged = r.role, r.Charged
			}
		}
		of := *m
		of.ledger = l
		of.chargeSubject()
		l.Settle()
	}
}

// chargeSubject charges the subject's programs and maps to it, wherever they ran and whoever pays for them.
func (m *measurement) chargeSubject() {
	if m.subject == nil {
		return
	}
	tare := ledger.Charged{Charge: ledger.ChargeTare}
	for i := range m.ledger.Programs {
		p := &m.ledger.Programs[i]
		if slices.ContainsFunc(m.subject.Programs, func(o object) bool { return o.ID == p.ID }) && p.Charge == "" {
			p.Charged = tare
		}
	}
	ids := m.subjectMaps()
	for i := range m.ledger.Maps {
		if mp := &m.ledger.Maps[i]; ids[mp.ID] && mp.Charge == "" {
			mp.Charged = tare
		}
	}
}

// nodesObjects are the programs and maps that are charged in the ledgers of nodes, by id. The ids mean the same in the
// coordinator's ledger only where the nodes share its machine.
type nodesObjects struct{ programs, maps map[uint32]ledger.Charged }

func (o *nodesObjects) add(l *ledger.Ledger) {
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

func (o *nodesObjects) charge(l *ledger.Ledger) {
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
