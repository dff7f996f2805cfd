package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tare/internal/lib/known"
)

// machine returns the ledger of a machine with two CPUs over one second, with a program that runs in two groups and has
// a map.
func machine(busy float64) *Ledger {
	at := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	root, a := "/", "/pods/a"
	return &Ledger{
		Schema: Schema, Host: Host{CPUs: 2, Kernel: "6.1"}, Window: Window{Start: at, End: at.Add(time.Second), Seconds: 1},
		CPU: Budget(Usage{Capacity: 2, Idle: 1.9 - busy, Groups: busy, InGroup: true}),
		Cgroups: []Cgroup{{Path: "/"}, {Path: "/pods/a", CPUSeconds: new(busy), Name: &Name{Pod: "a", Top: "/pods/a"},
			Charged: Charged{Charge: ChargeWorkload, Workload: "a"}}},
		Programs: []Program{{ID: 7, RunSeconds: new(0.2), MapIDs: []uint32{3}, Attached: []string{"cgroup:/pods/a connect4"},
			Charged: Charged{Charge: ChargeTare},
			Shares:  []Share{{Cgroup: &a, Seconds: 0.15, Context: Task}, {Cgroup: &root, Seconds: 0.05, Context: Task}}}},
		Maps:     []Map{{ID: 3, Bytes: new(uint64(100)), UsedBy: []uint32{7}, ChargedTo: &a}},
		Warnings: []Warning{{"w", "something"}},
	}
}

func TestJoin(t *testing.T) {
	l := Join([]View{{"n1", machine(0.5)}, {"n2", machine(1)}})
	if c := l.CPU; c.Capacity != 4 || c.Attributed != 1.5 || !c.Closes() {
		t.Errorf("the budget: %+v", c)
	}
	if l.Host.CPUs != 4 || l.Host.Hostname != "n1, n2" || l.Host.Kernel != "6.1" || l.Window.Seconds != 1 {
		t.Errorf("%+v, %+v", l.Host, l.Window)
	}
	var paths []string
	for _, g := range l.Cgroups {
		paths = append(paths, g.Path)
	}
	if want := []string{"/n1", "/n1/pods/a", "/n2", "/n2/pods/a"}; !slices.Equal(paths, want) {
		t.Errorf("groups %q", paths)
	}
	if g := l.Cgroups[3]; g.Name.Top != g.Path || g.Title() != "a" {
		t.Errorf("%+v is called %s", g.Name, g.Title())
	}
	// Each machine's program has the map of that machine and runs in groups of that machine.
	for i, p := range l.Programs {
		m, group := l.Maps[i], fmt.Sprintf("/n%d/pods/a", i+1)
		if p.ID != uint32(i+1) || !slices.Equal(p.MapIDs, []uint32{m.ID}) || !slices.Equal(m.UsedBy, []uint32{p.ID}) ||
			*p.Shares[0].Cgroup != group || *m.ChargedTo != group || p.Attached[0] != "cgroup:"+group+" connect4" {
			t.Errorf("%+v with %+v", p, m)
		}
	}
	// The workload covers both machines: gross = net + tare, and tare is the program's time in the workload's groups.
	w := l.Workloads[0]
	if len(l.Workloads) != 1 || *w.GrossCPU != 1.5 || *w.NetCPU != 1.2 || *w.TareCPU != 0.3 {
		t.Errorf("%+v", l.Workloads)
	}
	if want := (Warning{"w", "n2: something"}); l.Warnings[1] != want {
		t.Errorf("%+v", l.Warnings)
	}
}

// TestJoinUnknown: what is unknown for one machine is unknown for all together, and the budget still closes.
func TestJoinUnknown(t *testing.T) {
	blind := machine(1)
	blind.Programs, blind.Maps, blind.CPU.BPFUnsplit = nil, nil, nil
	witnessed := machine(0.5)
	witnessed.CPU = Budget(Usage{Capacity: 2, Idle: 1.4, Groups: 0.5, InGroup: true, Steal: 0.2, IdleStolen: new(0.1),
		IdleStolenError: new(0.01)})
	for _, views := range [][]View{{{"a", blind}, {"b", witnessed}}, {{"a", witnessed}, {"b", blind}}} {
		l := Join([]View{{views[0].Name, clone(views[0].Ledger)}, {views[1].Name, clone(views[1].Ledger)}})
		if l.Programs != nil || l.Maps != nil || l.CPU.BPFUnsplit != nil || l.CPU.IdleStolenError != nil {
			t.Errorf("%+v, %d programs", l.CPU, len(l.Programs))
		}
		if !l.CPU.Closes() {
			t.Errorf("the budget does not close: %+v", l.CPU)
		}
		if w := l.Workloads[0]; w.NetCPU != nil || w.TareCPU != nil {
			t.Errorf("%+v", w)
		}
	}
}

func clone(l *Ledger) *Ledger {
	c := *l
	c.Cgroups = slices.Clone(l.Cgroups)
	return &c
}

// TestJoinInterrupts: where one machine keeps interrupts out of the CPU time of groups and another does not, net is
// without the run time inside that time only, on each machine.
func TestJoinInterrupts(t *testing.T) {
	apart, inside := new(true), new(false)
	for _, c := range []struct {
		first, second *bool
		want          string // gross, net and tare; the programs run for 0.15 s on each machine
	}{
		{inside, inside, "1.5 1.2 0.3"},
		{nil, inside, "1.5 1.2 0.3"},
		{apart, inside, "1.65 1.35 0.3"},
		{inside, apart, "1.65 1.35 0.3"},
		{apart, nil, "1.65 1.35 0.3"},
		{apart, apart, "1.8 1.5 0.3"},
	} {
		views := []View{{"n1", machine(0.5)}, {"n2", machine(1)}}
		for i, irqTime := range []*bool{c.first, c.second} {
			l := views[i].Ledger
			l.Host.IRQTime = irqTime
			p := &l.Programs[0]
			p.Shares[0].Context = Softirq
			p.Seen = []Seen{{p.Shares[0].Cgroup, Softirq, 75}, {p.Shares[1].Cgroup, Task, 25}}
		}
		l := Join(views)
		for what, w := range map[string]Workload{"joined": l.Workloads[0], "pooled": Pool([]*Ledger{l})[0]} {
			if got := fmt.Sprint(*w.GrossCPU, *w.NetCPU, *w.TareCPU); got != c.want {
				t.Errorf("%v, %v, %s: gross, net and tare %s, want %s", known.Or(c.first, false), known.Or(c.second, false),
					what, got, c.want)
			}
		}
	}
}
