package measured

import (
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// The roles of a trial's groups determine their charges, and the subject's programs and maps are charged to the subject
// wherever they run.
func TestTrialIsCharged(t *testing.T) {
	group := func(path string, cpu float64, hard int64) ledger.Cgroup {
		return ledger.Cgroup{Path: path, CPUSeconds: &cpu, Memory: &ledger.Memory{Hard: &hard}}
	}
	made := func() *ledger.Ledger {
		ran, bytes, app := 0.5, uint64(30), "/tare/trial/work/web"
		return &ledger.Ledger{
			Cgroups: []ledger.Cgroup{group("/tare/trial", 4, 400), group("/tare/trial/work/web", 2, 100),
				group("/tare/trial/work/web/x", 1, 10),
				group("/tare/trial/work/client", 1, 50), group("/tare/trial/subject", 0.25, 20)},
			Programs: []ledger.Program{
				{ID: 7, RunSeconds: &ran, MapIDs: []uint32{3}, Shares: []ledger.Share{{Cgroup: &app,
					Context: ledger.Task, Seconds: ran, Lo: 0.4, Hi: 0.6}}},
				{ID: 8, Charged: ledger.Charged{Charge: ledger.ChargeSelf}},
			},
			Maps: []ledger.Map{{ID: 3, Bytes: &bytes, ChargedTo: &app, Inner: []uint32{4}}, {ID: 4, Bytes: &bytes,
				ChargedTo: &app}, {ID: 5, Bytes: &bytes}},
		}
	}
	roles := map[string]GroupRole{
		"/tare/trial/work/web": NewRole(kind.Application, "web"), "/tare/trial/work/client": NewRole(kind.Load, "client"),
		"/tare/trial/subject": NewRole(kind.Subject, "mesh"),
	}
	after := made()
	m := &Measured{Trial: record.Trial{Ledger: made(), Further: map[string]*ledger.Ledger{"after": after}},
		Subject: &kind.Objects{Programs: []kind.Object{{ID: 7}}}}
	m.SetRoles(roles)
	for _, l := range []*ledger.Ledger{m.Ledger, after} {
		if len(l.Workloads) != 1 || l.Workloads[0].Name != "web" {
			t.Fatalf("workloads %+v", l.Workloads)
		}
		w := l.Workloads[0]
		if *w.GrossCPU != 2.25 || *w.NetCPU != 1.5 || *w.TareCPU != 0.75 || *w.GrossMemory != 120 ||
			*w.NetMemory != 40 || *w.TareMemory != 80 {
			t.Errorf("CPU %g = %g + %g, memory %d = %d + %d", *w.GrossCPU, *w.NetCPU, *w.TareCPU, *w.GrossMemory,
				*w.NetMemory, *w.TareMemory)
		}
		var got []ledger.Charge
		for _, g := range l.Cgroups {
			got = append(got, g.Charge)
		}
		got = append(got, l.Programs[0].Charge, l.Programs[1].Charge, l.Maps[0].Charge, l.Maps[1].Charge,
			l.Maps[2].Charge)
		want := []ledger.Charge{"", "workload", "workload", "load", "tare", "tare", "self", "tare", "tare", ""}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("charges %q, want %q", got, want)
				break
			}
		}
		if l.Cgroups[1].Role != "app" || l.Cgroups[2].Role != "" {
			t.Errorf("roles: %+v", l.Cgroups)
		}
	}

	// In a baseline arm nothing belongs to the subject.
	m = &Measured{Trial: record.Trial{Ledger: made()}}
	delete(roles, "/tare/trial/subject")
	m.SetRoles(roles)
	if w := m.Ledger.Workloads[0]; *w.GrossCPU != 2 || *w.NetCPU != 2 || *w.TareCPU != 0 || m.Ledger.Tare == nil {
		t.Errorf("a baseline: %+v, %+v", w, m.Ledger.Tare)
	}

	// The coordinator's ledger includes the programs of local nodes, whose records contain their charges.
	objects := NodesObjects{programs: map[uint32]ledger.Charged{}, maps: map[uint32]ledger.Charged{}}
	objects.add(after)
	whole := made()
	objects.charge(whole)
	if whole.Programs[0].Charge != ledger.ChargeTare || whole.Maps[1].Charge != ledger.ChargeTare ||
		whole.Maps[2].Charge != "" {
		t.Errorf("of nodes: %+v, %+v", whole.Programs, whole.Maps)
	}
}
