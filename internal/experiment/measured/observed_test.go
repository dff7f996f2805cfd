package measured

import (
	"slices"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// TestObserved: the group of an application that ran before the trial counts as the trial's own: its CPU time is the
// cost of the work, it does not count as a neighbour, and it is kept in the record.
func TestObserved(t *testing.T) {
	const tree, there = "/tare-trial-1", "/system.slice/nginx.service"
	group := func(path string, cpu float64) ledger.Cgroup { return ledger.Cgroup{Path: path, CPUSeconds: &cpu} }
	made := func() *Measured {
		return &Measured{Setup: &kind.Setup{}, Tree: tree, Trial: record.Trial{Ledger: &ledger.Ledger{
			Window: ledger.Window{Seconds: 2},
			CPU:    ledger.CPU{Capacity: 4, Lines: []ledger.CPULine{{Name: ledger.LineGroups, Seconds: 1.7}}},
			Cgroups: []ledger.Cgroup{group("/", 2), group("/system.slice", 1.2), group(there, 1), group(there+"/worker", 0.9),
				group("/system.slice/cron.service", 0.2), group(tree, 0.5), group(tree+"/work/client", 0.4)},
			Noise: &ledger.Noise{Occupied: []ledger.Stall{
				{Cause: ledger.Neighbour, Cgroup: there + "/worker", Comm: "nginx", From: 10, Seconds: 0.1},
				{Cause: ledger.Neighbour, Cgroup: "/system.slice/cron.service", Comm: "cron", From: 20, Seconds: 0.1},
			}},
		}}}
	}
	roles := map[string]GroupRole{
		there: NewRole(kind.Application, "server"), tree + "/work/client": NewRole(kind.Load, "client"),
	}
	m := made()
	if rate, ok := m.CPURate(); !ok || rate != 0.25 {
		t.Errorf("without the observed group the trial uses %v CPUs, %v", rate, ok)
	}
	before := DisturbanceOf(m.Ledger, 1, tree)
	if s := StallsOf(m.Ledger, tree, false); len(s.Spans) != 2 {
		t.Errorf("stalls by others: %v", s.Spans)
	}

	MarkRoles(m.Ledger, roles)
	if rate, ok := m.CPURate(); !ok || rate != 0.75 {
		t.Errorf("the trial uses %v CPUs, %v", rate, ok)
	}
	if seconds, ok := m.RoleSeconds(kind.Application); !ok || seconds != 1 {
		t.Errorf("the application used %v s, %v", seconds, ok)
	}
	after := DisturbanceOf(m.Ledger, 1, tree)
	if near := func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }; !near(before.Foreign, 1.2/4) ||
		!near(after.Foreign, 0.2/4) || !near(before.Occupied, 0.2/4) || !near(after.Occupied, 0.1/4) {
		t.Errorf("others took %+v before and %+v after it was known", before, after)
	}
	if s := StallsOf(m.Ledger, tree, false); len(s.Spans) != 1 {
		t.Errorf("stalls by others, the application not among them: %v", s.Spans)
	}
	m.SetRoles(roles)
	m.Trim()
	has := func(path string) bool {
		return slices.ContainsFunc(m.Ledger.Cgroups, func(g ledger.Cgroup) bool { return g.Path == path })
	}
	if !has(there) || has("/system.slice/cron.service") || len(m.Ledger.Noise.Occupied) != 1 {
		t.Errorf("the record keeps %+v, %+v", m.Ledger.Cgroups, m.Ledger.Noise.Occupied)
	}
	if w := m.Ledger.Workloads; len(w) != 1 || w[0].Name != "server" {
		t.Errorf("workloads %+v", w)
	}
}

// TestSharedGroup: if the subject shares its control group, the trial's CPU time is not known: without the subject's it
// would look like a subject that costs nothing.
func TestSharedGroup(t *testing.T) {
	cpu := 0.5
	m := &Measured{Setup: &kind.Setup{}, Tree: "/tare-trial-1", Subject: &kind.Objects{},
		Trial: record.Trial{Ledger: &ledger.Ledger{
			Window: ledger.Window{Seconds: 2}, Cgroups: []ledger.Cgroup{{Path: "/tare-trial-1", CPUSeconds: &cpu}},
		}}}
	for _, known := range []bool{true, false} {
		rate, ok := m.CPURate()
		seconds, has := m.subjectSeconds()
		if ok != known || has != known {
			t.Errorf("%g CPUs (%v), of which the subject %g s (%v)", rate, ok, seconds, has)
		}
		m.Ledger.Warn(WarnShared, "it shares its control group")
	}
}
