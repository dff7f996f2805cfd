package experiment

import (
	"maps"
	"slices"
	"testing"

	"tare/internal/ledger"
	"tare/internal/record"
)

// TestEveryMetricDeclaresItsNeeds goes over every metric and every gate: none is left undeclared, and each need is somebody's.
func TestEveryMetricDeclaresItsNeeds(t *testing.T) {
	names := map[string]bool{}
	needed, broken := map[Need]bool{}, map[Need]bool{}
	for _, m := range Metrics {
		if m.Needs == nil {
			t.Errorf("%s does not declare what it needs; one that nothing can void has needNothing", m.Name)
		}
		if names[m.Name] {
			t.Errorf("there are two metrics %s", m.Name)
		}
		names[m.Name] = true
		for _, n := range m.Needs {
			if !slices.Contains(Needs, n) {
				t.Errorf("%s needs %q, which no list has", m.Name, n)
			}
			needed[n] = true
		}
	}
	for _, g := range Gates {
		if g.Name == "" || len(g.Breaks) == 0 || g.Quiet == "" || g.Why == "" {
			t.Errorf("the gate %+v is not well defined", g)
		}
		for _, n := range g.Breaks {
			broken[n] = true
		}
	}
	for _, n := range Needs {
		if !needed[n] || !broken[n] {
			t.Errorf("the need %s: some metric has it %v, some gate breaks it %v", n, needed[n], broken[n])
		}
	}
	for _, k := range gateKnobs {
		if name := map[string]string{"generator_cpu": "generator-cpu"}[k.Name]; k.Name != "invalid" && !slices.ContainsFunc(Gates, func(g *Gate) bool { return g.Name == k.Name || g.Name == name }) {
			t.Errorf("the setting %s governs no gate", k.Name)
		}
	}
}

// TestWhatGatesVoid holds the table of gates and metrics against what it is meant to be, where that matters most.
func TestWhatGatesVoid(t *testing.T) {
	all := []string{"latency_p50_seconds", "throughput_per_second", "error_ratio", "own_lag_p99_seconds", "cpu_seconds_per_request", "cpu_seconds_per_connection", "bpf_seconds_per_connection",
		"bpf_client_share", "bpf_cpu_share", "memory_hard_bytes", "map_bytes", "events_lost", "events_lost_share", "cpu_seconds_per_kiloevent", "start_seconds", "sched_delay_p50_seconds",
		"flush_seconds", "limited_share", "nodes_failed"}
	for _, c := range []struct {
		gate  *Gate
		cause ledger.Cause
		voids []string
	}{
		{gateLag, ledger.Hypervisor, []string{"latency_p50_seconds", "throughput_per_second"}},
		{gateGenerator, ledger.Generator, []string{"latency_p50_seconds", "throughput_per_second"}},
		{gateRate, ledger.Hypervisor, []string{"bpf_cpu_share", "latency_p50_seconds", "throughput_per_second"}},
		{gateRate, ledger.Subject, []string{"bpf_cpu_share", "latency_p50_seconds"}},
		{gateDriftLatency, ledger.Unknown, []string{"latency_p50_seconds"}},
		{gateDriftRate, ledger.Unknown, []string{"bpf_cpu_share", "flush_seconds", "latency_p50_seconds", "throughput_per_second"}},
		{gateCounts, ledger.Unknown, []string{"cpu_seconds_per_kiloevent", "events_lost", "events_lost_share"}},
		{gateOutside, ledger.Neighbour, []string{"bpf_cpu_share", "latency_p50_seconds", "sched_delay_p50_seconds", "throughput_per_second"}},
		{gateHeld, ledger.Unknown, []string{"bpf_cpu_share", "latency_p50_seconds", "limited_share", "throughput_per_second"}},
		{gateProbe, ledger.Unknown, []string{"sched_delay_p50_seconds"}},
		{gateErrors, ledger.Subject, []string{"bpf_cpu_share", "bpf_seconds_per_connection", "cpu_seconds_per_connection", "cpu_seconds_per_kiloevent", "cpu_seconds_per_request", "flush_seconds", "latency_p50_seconds"}},
		{gateNodes, ledger.Unknown, slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(all), func(m string) bool {
			return m == "nodes_failed" || m == "error_ratio" || m == "own_lag_p99_seconds"
		})))},
	} {
		got := c.gate.voids(c.cause, func(m string) bool { return slices.Contains(all, m) })
		if !slices.Equal(got, c.voids) {
			t.Errorf("%s, by %s, voids %v\nwant %v", c.gate.Name, c.cause, got, c.voids)
		}
	}
	if v := gateLag.voids(ledger.Unknown, func(string) bool { return false }); v == nil || len(v) != 0 {
		t.Errorf("a trial without metrics has %v void; null would say all", v)
	}
}

// noisy is the ledger of a window of 2 s on 2 CPUs.
func noisy(change func(*ledger.Ledger)) *ledger.Ledger {
	l := &ledger.Ledger{
		Window: ledger.Window{Seconds: 2},
		CPU: ledger.CPU{Capacity: 4, Idle: 2.9, Lines: []ledger.CPULine{
			{Name: ledger.LineGroups, Seconds: 0.93}, {Name: ledger.LineRoot, Seconds: 0.02}, {Name: ledger.LineKernel, Seconds: 0.1}, {Name: ledger.LineSelf, Seconds: 0.05}}},
		Cgroups: []ledger.Cgroup{{Path: "/", CPUSeconds: ptr(1.1)}, {Path: "/trial", CPUSeconds: ptr(0.9), BPFInsideSeconds: ptr(0.05)}, {Path: "/trial/work", CPUSeconds: ptr(0.8)},
			{Path: "/system.slice", CPUSeconds: ptr(0.07)}, {Path: "/idle", CPUSeconds: ptr(0.0)}, {Path: "/gone"}},
	}
	change(l)
	return l
}

func TestCause(t *testing.T) {
	neighbour := func(l *ledger.Ledger) { // takes a quarter of the machine
		l.CPU.Lines[0].Seconds += 1
		l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/stress", CPUSeconds: ptr(1.0)})
	}
	stolen := func(seconds float64) func(*ledger.Ledger) { return func(l *ledger.Ledger) { l.CPU.Steal = seconds } }
	witness := func(n ledger.Noise) func(*ledger.Ledger) { return func(l *ledger.Ledger) { l.Noise = &n } }
	for _, c := range []struct {
		name   string
		change func(*ledger.Ledger)
		gate   *Gate
		seen   float64
		want   ledger.Cause
	}{
		{"late, quiet", func(*ledger.Ledger) {}, gateLag, 0.03, ledger.Generator},
		{"late, a little stolen", stolen(0.03), gateLag, 0.03, ledger.Generator}, // 0.75 %
		{"late, stolen", stolen(0.05), gateLag, 0.03, ledger.Hypervisor},
		{"late, stolen by the steal clock alone", witness(ledger.Noise{StolenSeconds: 0.4}), gateLag, 0.03, ledger.Hypervisor},
		{"late, neighbour", neighbour, gateLag, 0.03, ledger.Neighbour},
		{"late, both, and more is stolen for its kind", func(l *ledger.Ledger) { neighbour(l); l.CPU.Steal = 1 }, gateLag, 0.03, ledger.Hypervisor},
		{"late, a CPU was held", witness(ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.06, PID: 7, Comm: "fifo", Cgroup: "/"}}}), gateLag, 0.03, ledger.Neighbour},
		{"late, a CPU was held by the trial itself", witness(ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.06, PID: 7, Cgroup: "/trial/work/client"}}}), gateLag, 0.03, ledger.Generator},
		{"late, a CPU was held by the scale", witness(ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.06, PID: 99, Cgroup: "/"}}}), gateLag, 0.03, ledger.Generator},
		{"late, interrupts were off", witness(ledger.Noise{Late: 50, LongestLate: 0.2}), gateLag, 0.03, ledger.Generator}, // the subject may be the cause of that
		{"slow, quiet", func(*ledger.Ledger) {}, gateRate, 0.9, ledger.Subject},
		{"a little slow, stolen", stolen(0.2), gateRate, 0.9, ledger.Hypervisor}, // 5 % explain a tenth
		{"much too slow, a little stolen", stolen(0.2), gateRate, 0.6, ledger.Subject},
		{"nothing done, a little stolen", stolen(0.2), gateIdle, 0, ledger.Subject},
		{"errors, stolen", stolen(0.4), gateErrors, 0.01, ledger.Hypervisor},
		{"many errors, a little stolen", stolen(0.05), gateErrors, 0.5, ledger.Subject},
		{"drift, quiet", func(*ledger.Ledger) {}, gateDriftLatency, 0.9, ledger.Unknown},
		{"drift, stolen", stolen(0.4), gateDriftLatency, 0.9, ledger.Hypervisor},
		{"no budget", func(l *ledger.Ledger) { l.CPU = ledger.CPU{} }, gateLag, 0.03, ledger.Generator},
	} {
		d := disturbanceOf(noisy(c.change), "/trial", 99)
		got, part := d.cause(trip{c.gate, record.Reason{Gate: c.gate.Name, Seen: c.seen}})
		if got != c.want {
			t.Errorf("%s: %s, want %s (%+v)", c.name, got, c.want, d)
		}
		if outside := got == ledger.Hypervisor || got == ledger.Neighbour; outside != (part > 0) {
			t.Errorf("%s: %s took %g", c.name, got, part)
		}
	}
	if d := disturbanceOf(nil, "/trial", 99); d.stolen != 0 || d.foreign != 0 {
		t.Errorf("no ledger shows %+v", d)
	}
}

func TestDisturbance(t *testing.T) {
	d := disturbanceOf(noisy(func(*ledger.Ledger) {}), "/trial", 99)
	if want := (0.93 + 0.02 - 0.85) / 4; d.stolen != 0 || d.foreign < want-1e-12 || d.foreign > want+1e-12 || !slices.Equal(d.culprits, []string{"/system.slice"}) {
		t.Errorf("%+v, want %g foreign", d, want)
	}
	d = disturbanceOf(noisy(func(l *ledger.Ledger) {
		l.Noise = &ledger.Noise{Busiest: []ledger.Occupant{{PID: 1, Comm: "cc1", Seconds: 0.3}, {PID: 2, Comm: "cc1", Seconds: 0.3}, {PID: 3, Comm: "stress-ng", Cgroup: "/s", Seconds: 0.5},
			{PID: 4, Comm: "tare", Cgroup: "/trial/work/client", Seconds: 0.9}, {PID: 99, Comm: "tare", Seconds: 0.9}, {PID: 5, Comm: "a", Seconds: 0.1}, {PID: 6, Comm: "b", Seconds: 0.05}}}
	}), "/trial", 99)
	if !slices.Equal(d.culprits, []string{"cc1", "stress-ng", "a"}) {
		t.Errorf("culprits %q", d.culprits)
	}
}

// TestReasons: what a trial's reasons say once causes and voids are settled.
func TestReasons(t *testing.T) {
	values := map[string]float64{"latency_p50_seconds": 1, "throughput_per_second": 1, "map_bytes": 1}
	counts := map[string]record.Count{"bpf_client_share": {In: 1, Of: 2}}
	quiet := disturbanceOf(noisy(func(*ledger.Ledger) {}), "/trial", 99)
	// A generator that was late by itself is why the rate was missed: then it is no result of the subject.
	rs := reasonsOf([]trip{tripped(gateRate, 0.9, 0.99, "slow"), tripped(gateLag, 0.03, 0.025, "late")}, quiet, values, counts)
	if rs[0].Cause != ledger.Generator || !slices.Equal(rs[0].Voids, []string{"latency_p50_seconds", "throughput_per_second"}) || rs[0].CauseShare != nil {
		t.Errorf("%+v", rs[0])
	}
	rs = reasonsOf([]trip{tripped(gateRate, 0.9, 0.99, "slow")}, quiet, values, counts)
	if rs[0].Cause != ledger.Subject || !slices.Equal(rs[0].Voids, []string{"latency_p50_seconds"}) || lostToOthers(&record.Trial{Validity: record.Validity{Reasons: rs}}) != nil {
		t.Errorf("%+v: a subject that is too slow is a result, and is not run again", rs[0])
	}
	loud := disturbanceOf(noisy(func(l *ledger.Ledger) { l.CPU.Steal = 0.96 }), "/trial", 99)
	rs = reasonsOf([]trip{tripped(gateWindow, 0.3, 0.5, "cut")}, loud, values, counts)
	if rs[0].Cause != ledger.Hypervisor || *rs[0].CauseShare != 0.24 || !slices.Equal(rs[0].Voids, []string{"bpf_client_share", "map_bytes"}) {
		t.Errorf("%+v", rs[0])
	}
	if reasonsOf(nil, loud, values, counts) != nil {
		t.Error("noise alone is no reason")
	}
}

func TestSpoiled(t *testing.T) {
	reason := func(cause ledger.Cause, voids []string) record.Validity {
		return record.Validity{Reasons: []record.Reason{{Gate: "lag", Cause: cause, Voids: voids}}}
	}
	for _, c := range []struct {
		name string
		v    record.Validity
		want bool
	}{
		{"valid", record.Validity{Valid: true}, false},
		{"hypervisor", reason(ledger.Hypervisor, []string{"latency_p50_seconds"}), true},
		{"unknown", reason(ledger.Unknown, []string{"latency_p50_seconds"}), true},
		{"subject", reason(ledger.Subject, []string{"latency_p50_seconds"}), false},
		{"nothing lost", reason(ledger.Hypervisor, []string{}), false},
		{"failed", record.Validity{Failed: "it died"}, false},
		{"failed, disturbed", record.Validity{Failed: "it died", Cause: ledger.Hypervisor}, true},
		{"interrupted", record.Validity{Failed: record.Interrupted, Cause: ledger.Hypervisor}, false},
	} {
		if got := len(lostToOthers(&record.Trial{Validity: c.v, Metrics: maps.Clone(map[string]float64{"latency_p50_seconds": 1})})) > 0; got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestReasonsOfNodes: nodes that share a machine cannot see what others take of it, and the coordinator can; what is void at one node is void for all of
// them together.
func TestReasonsOfNodes(t *testing.T) {
	node := func(name string, r record.Reason) record.NodeTrial {
		return record.NodeTrial{Name: name, Trial: &record.Trial{Validity: record.Validity{Reasons: []record.Reason{r}}}}
	}
	slow := record.Reason{Gate: "rate", Seen: 0.9, Allowed: 0.99, Message: "slow", Cause: ledger.Subject, Voids: []string{"latency_p50_seconds"}}
	drift := record.Reason{Gate: "rate", Seen: 0.9, Allowed: 0.99, Message: "slow", Cause: ledger.Unknown, Voids: []string{"cpu_seconds_per_kiloevent"}}
	trial := &record.Trial{Nodes: []record.NodeTrial{node("a", slow), node("b", slow)},
		Metrics: map[string]float64{"latency_p50_seconds": 1, "throughput_per_second": 1, "map_bytes": 1, "cpu_seconds_per_kiloevent": 1, "node_max_cpu_seconds_per_kiloevent": 1}}
	p := &pooled{spec: mustParse(t, shortSpec), trial: trial}
	if r := p.judge(); len(r) != 1 || r[0].Cause != ledger.Subject || !slices.Equal(r[0].Voids, []string{"latency_p50_seconds"}) {
		t.Errorf("quiet: %+v", r)
	}
	p.outside = disturbance{stolen: 0.2}
	if r := p.judge(); len(r) != 1 || r[0].Cause != ledger.Hypervisor || *r[0].CauseShare != 0.2 || !slices.Equal(r[0].Voids, []string{"latency_p50_seconds", "throughput_per_second"}) {
		t.Errorf("stolen: %+v", r)
	}
	p.outside, trial.Nodes[1] = disturbance{}, node("b", drift)
	if r := p.judge(); len(r) != 1 || r[0].Cause != ledger.Unknown || !slices.Equal(r[0].Voids, []string{"cpu_seconds_per_kiloevent", "latency_p50_seconds", "node_max_cpu_seconds_per_kiloevent"}) {
		t.Errorf("two kinds: %+v", r)
	}
	old := slow
	old.Voids = nil
	trial.Nodes = []record.NodeTrial{node("a", old)}
	if r := p.judge(); len(r[0].Voids) != len(trial.Metrics) {
		t.Errorf("a reason without voids voids %v", r[0].Voids)
	}
}
