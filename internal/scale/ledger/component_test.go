package ledger

import (
	"encoding/json"
	"math"
	"testing"
)

// TestComponents: each second of CPU time is in one component; the run time of a program is in its owner's component,
// including the parts in groups of others and not placed; unknown values are nil.
func TestComponents(t *testing.T) {
	agent, shop := Charged{Charge: ChargeTare, Component: "agent"}, Charged{Charge: ChargeWorkload, Workload: "shop"}
	group := func(path string, cpu float64, hard int64, c Charged) Cgroup {
		return Cgroup{Path: path, Charged: c, CPUSeconds: &cpu, Memory: &Memory{Hard: &hard}}
	}
	self, path := "/shop", func(s string) *string { return &s }
	make := func() *Ledger {
		return &Ledger{
			CPU:  CPU{Attributed: 10, Lines: []CPULine{{Name: LineSelf, Seconds: 0.25}}},
			Self: Self{Cgroup: &self},
			Cgroups: []Cgroup{
				group("/", 9.5, 1000, Charged{}), group("/shop", 4, 600, shop), group("/shop/agent", 1, 200, agent),
				group("/agent", 2, 100, agent),
			},
			Programs: []Program{{Charged: agent, RunSeconds: new(1.0), Shares: []Share{
				{Cgroup: path("/shop"), Context: Task, Seconds: 0.5}, {Cgroup: path("/agent"), Context: Task, Seconds: 0.2},
				{Cgroup: path("(idle)"), Context: Softirq, Seconds: 0.1}, {Seconds: 0.2},
			}, StolenSeconds: &Interval{Value: 0.5}}, {Charged: Charged{Charge: ChargeSelf}, Own: true, RunSeconds: new(0.01)}},
			Maps: []Map{{Charged: agent, Bytes: new(uint64(70)), ChargedTo: path("/shop")}, {Charged: agent,
				Bytes: new(uint64(7))}, {Charged: shop, Bytes: new(uint64(5))}},
		}
	}
	l := make()
	l.Settle()
	l.AddComponents()
	got, err := json.Marshal(l.Components)
	want := `[{"charge":"workload","workload":"shop","cpu_seconds":2.75,"bpf_seconds":0,"bpf_others_seconds":0,` +
		`"bpf_unsplit_seconds":0,"memory_hard_bytes":400,"map_bytes":5},` +
		`{"charge":"tare","workload":"","component":"agent","cpu_seconds":2,"bpf_seconds":0.5,` +
		`"bpf_others_seconds":0.3,"bpf_unsplit_seconds":0.1,"memory_hard_bytes":100,"map_bytes":77},` +
		`{"charge":"tare","workload":"shop","component":"agent","cpu_seconds":1,"bpf_seconds":0,` +
		`"bpf_others_seconds":0,"bpf_unsplit_seconds":0,"memory_hard_bytes":200,"map_bytes":0},` +
		`{"charge":"self","workload":"","cpu_seconds":0.25,"bpf_seconds":0.01,"bpf_others_seconds":0,` +
		`"bpf_unsplit_seconds":0,"memory_hard_bytes":null,"map_bytes":0},` +
		`{"charge":"","workload":"","cpu_seconds":4,"bpf_seconds":0,"bpf_others_seconds":0,` +
		`"bpf_unsplit_seconds":0,"memory_hard_bytes":300,"map_bytes":0}]`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	sum := 0.0
	for _, c := range l.Components {
		sum += *c.CPUSeconds
	}
	if math.Abs(sum-l.CPU.Attributed) > 1e-9 {
		t.Errorf("components have %v s of %v", sum, l.CPU.Attributed)
	}

	l = make()
	*l.Cgroups[0].Memory.Hard = 690 // read before the groups in it, which grew
	l.Settle()
	l.AddComponents()
	if rest := l.Components[len(l.Components)-1]; rest.Charge != "" || *rest.MemoryHardBytes != 0 {
		t.Errorf("what no rule names holds %d bytes", *rest.MemoryHardBytes)
	}

	l = make()
	l.Cgroups[3].CPUSeconds, l.Cgroups[3].Memory = nil, nil
	l.Programs[0].RunSeconds, l.Maps[0].Bytes = nil, nil
	l.Settle()
	l.AddComponents()
	for _, c := range l.Components {
		unknown := c.Charged == agent
		rest := c.Charge == ""
		if (c.CPUSeconds == nil) != (unknown || rest) || (c.BPFSeconds == nil) != unknown ||
			(c.BPFOthersSeconds == nil) != unknown || (c.BPFUnsplitSeconds == nil) != unknown ||
			(c.MemoryHardBytes == nil) != (unknown || rest || c.Charge == ChargeSelf) || (c.MapBytes == nil) != unknown {
			t.Errorf("of an agent whose counters are missing: %+v", c)
		}
	}
}
