package analysis

import (
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// TestNestedGroups: the counters of a group contain those of the groups inside it, which also have a role if they are
// components of a subject, or the application in a sandbox.
func TestNestedGroups(t *testing.T) {
	group := func(path, role string, cpu float64, hard, peak *int64) ledger.Cgroup {
		g := ledger.Cgroup{Path: path, Role: role, CPUSeconds: &cpu}
		if hard != nil {
			g.Memory = &ledger.Memory{Hard: hard}
			if peak != nil {
				g.Memory.Peak = new(uint64(*peak))
			}
		}
		return g
	}
	mb := func(n int64) *int64 { return new(n * 1e6) }
	trial := func(groups ...ledger.Cgroup) record.Trial {
		l := &ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 10, Idle: 5, Groups: 5, Steal: 1,
			IdleStolen: new(0.5)}), Cgroups: groups}
		return record.Trial{PlannedTrial: record.PlannedTrial{Arm: "a"}, Validity: record.Validity{Valid: true}, Ledger: l}
	}
	trials := []record.Trial{
		trial(group("/t/subject", "subject", 3, mb(30), mb(40)), group("/t/subject/a", "subject", 1, mb(10), nil),
			group("/t/subject/b/c", "subject", 0.5, mb(5), nil), group("/t/subject/b/app", "app", 0.25, mb(1), nil),
			group("/t/load", "load", 1, nil, nil)),
		trial(group("/t/subject", "subject", 3, mb(20), nil)),
	}
	budgets := Budgets(trials)
	if len(budgets) != 1 {
		t.Fatalf("%d budgets", len(budgets))
	}
	sum := budgets[0].Idle
	got := map[string]float64{}
	for _, p := range budgets[0].Parts {
		got[p.Name] = p.Seconds
		sum += p.Seconds
	}
	want := map[string]float64{"subject's processes": 5.75, "application processes": 0.25, "load generator": 1,
		partOther: 3}
	for name, s := range want {
		if got[name] != s {
			t.Errorf("%s: %g s, want %g", name, got[name], s)
		}
	}
	if sum != budgets[0].Capacity {
		t.Errorf("the parts add up to %g s, want %g", sum, budgets[0].Capacity)
	}
	for _, h := range Memory(trials) {
		switch {
		case h.Role == "subject" && (h.Bytes["hard"] != 25e6 || h.Bytes["peak"] != 40e6):
			t.Errorf("the subject holds %v, want the means of its outer groups", h.Bytes)
		case h.Role == "load":
			t.Errorf("the load, whose memory is not known, holds %v", h.Bytes)
		}
	}
}

// TestSelfOfNodes: the cost of Tare is that of the coordinator and of every node.
func TestSelfOfNodes(t *testing.T) {
	of := func(cpu float64, rss uint64) *ledger.Ledger {
		return &ledger.Ledger{Self: ledger.Self{CPUSeconds: cpu, RSSBytes: rss}}
	}
	trial := record.Trial{Ledger: of(0.25, 1000), Nodes: []record.NodeTrial{
		{Name: "a", Trial: &record.Trial{Ledger: of(0.5, 3000)}}, {Name: "b", Trial: &record.Trial{Ledger: of(1, 2000)}},
		{Name: "c", Failed: "gone"}, {Name: "d", Failed: "cut short", Trial: &record.Trial{}},
	}}
	s, err := Summarize(record.Run{Schema: record.RunSchema}, []record.Trial{trial})
	if err != nil || s.Self != (Self{1.75, 3000}) {
		t.Errorf("%+v, %v", s.Self, err)
	}
}

// TestUnnamedGate: a record without the gate that voids its trials gets sentences that say so, and not that they
// failed.
func TestUnnamedGate(t *testing.T) {
	run, trials := made(measured.Definitions(), nil, func(string, factors) map[string]float64 {
		return map[string]float64{"memory_hard_bytes": 1e6}
	})
	for i := range trials {
		trials[i].Validity = record.Validity{}
	}
	s, err := Summarize(run, trials)
	if err != nil || len(s.Missing) == 0 {
		t.Fatal(s, err)
	}
	if got := s.Missing[0].Because(); got != "the trial is invalid, and no gate is named" {
		t.Error(got)
	}
	const want = "arm proxy lost 8 of 8 trials, and an interval needs 6; 8 of them invalid, and no gate is named"
	if len(s.InvalidReasons) != 1 || s.InvalidReasons[0] != want {
		t.Errorf("%q", s.InvalidReasons)
	}
}

// TestSameButForLosses: an arm that lost blocks beside the baseline is not "the same", however alike the others are.
func TestSameButForLosses(t *testing.T) {
	run, trials := made(measured.Definitions(), nil, func(string, factors) map[string]float64 {
		return map[string]float64{"map_bytes": 0, "cpu_seconds_per_request": 1e-5}
	})
	for i := range trials {
		trials[i].Metrics["map_bytes"] = 4096
	}
	if said := answersOf(t, run, trials); !strings.Contains(said, "memory in maps is the same") {
		t.Error(said)
	}
	for i := range trials {
		if trials[i].Arm == "proxy" && trials[i].Block < 2 {
			trials[i].Validity = record.Validity{Reasons: []record.Reason{{Gate: "errors", Cause: ledger.Subject}}}
		}
	}
	said := answersOf(t, run, trials)
	if want := "memory in maps"; strings.Contains(said, want+" is the same") || !strings.Contains(said, want) ||
		!strings.Contains(said, "lost trials: the 2 blocks without a value could change it by any amount") {
		t.Error(said)
	}
}
