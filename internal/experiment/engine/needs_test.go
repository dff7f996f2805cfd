package engine

import (
	"maps"
	"slices"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// TestEveryMetricDeclaresItsNeeds: every metric and every gate declares its needs, and each need is used by both a
// metric and a gate.
func TestEveryMetricDeclaresItsNeeds(t *testing.T) {
	names := map[string]bool{}
	needed, broken := map[measured.Need]bool{}, map[measured.Need]bool{}
	for _, m := range measured.Metrics() {
		if m.Needs == nil {
			t.Errorf("%s does not declare what it needs; one that nothing can void has needNothing", m.Name)
		}
		if names[m.Name] {
			t.Errorf("there are two metrics %s", m.Name)
		}
		names[m.Name] = true
		for _, n := range m.Needs {
			if !slices.Contains(allNeeds, n) {
				t.Errorf("%s needs %q, which no list has", m.Name, n)
			}
			needed[n] = true
		}
	}
	for _, g := range measured.Gates() {
		if g.Name == "" || len(g.Breaks) == 0 || g.Quiet == "" || g.Why == "" {
			t.Errorf("the gate %+v is not well defined", g)
		}
		for _, n := range g.Breaks {
			broken[n] = true
		}
	}
	for _, n := range allNeeds {
		if !needed[n] || !broken[n] {
			t.Errorf("the need %s: some metric has it %v, some gate breaks it %v", n, needed[n], broken[n])
		}
	}
	for _, k := range measured.GateSettings {
		if name := map[string]string{"generator_cpu": "generator-cpu"}[k.Name]; k.Name != "invalid" &&
			!slices.ContainsFunc(measured.Gates(), func(g *measured.Gate) bool { return g.Name == k.Name || g.Name == name }) {
			t.Errorf("the setting %s governs no gate", k.Name)
		}
	}
}

// TestWhatGatesVoid compares the metrics that the most important gates void with the intended ones.
func TestWhatGatesVoid(t *testing.T) {
	all := []string{"latency_p50_seconds", "throughput_per_second", "error_ratio", "own_lag_p99_seconds",
		"cpu_seconds_per_request", "cpu_seconds_per_connection", "bpf_seconds_per_connection",
		"bpf_client_share", "bpf_cpu_share", "memory_hard_bytes", "map_bytes", "events_lost", "events_lost_share",
		"cpu_seconds_per_kiloevent", "start_seconds", "sched_delay_p50_seconds",
		"flush_seconds", "limited_share", "nodes_failed"}
	for _, c := range []struct {
		gate  *measured.Gate
		cause ledger.Cause
		voids []string
	}{
		{measured.GateLag, ledger.Hypervisor, []string{"latency_p50_seconds", "throughput_per_second"}},
		{measured.GateGenerator, ledger.Generator, []string{"latency_p50_seconds", "throughput_per_second"}},
		{measured.GateRate, ledger.Hypervisor, []string{"bpf_cpu_share", "latency_p50_seconds", "throughput_per_second"}},
		{measured.GateRate, ledger.Subject, []string{"bpf_cpu_share", "latency_p50_seconds"}},
		{measured.GateUnsent, ledger.Subject, []string{"bpf_cpu_share", "latency_p50_seconds"}},
		{measured.GateDriftLatency, ledger.Unknown, []string{"latency_p50_seconds"}},
		{measured.GateDriftRate, ledger.Unknown, []string{"bpf_cpu_share", "flush_seconds", "latency_p50_seconds",
			"throughput_per_second"}},
		{gateOf(t, "counts"), ledger.Unknown, []string{"cpu_seconds_per_kiloevent", "events_lost", "events_lost_share"}},
		{gateOf(t, "outside"), ledger.Neighbour, []string{"bpf_cpu_share", "latency_p50_seconds", "sched_delay_p50_seconds",
			"throughput_per_second"}},
		{measured.GateHeld, ledger.Unknown, []string{"bpf_cpu_share", "latency_p50_seconds", "limited_share",
			"throughput_per_second"}},
		{gateOf(t, "probe"), ledger.Unknown, []string{"sched_delay_p50_seconds"}},
		{measured.GateErrors, ledger.Subject, []string{"bpf_cpu_share", "bpf_seconds_per_connection",
			"cpu_seconds_per_connection", "cpu_seconds_per_kiloevent", "cpu_seconds_per_request", "flush_seconds",
			"latency_p50_seconds"}},
		{measured.GateNodes, ledger.Unknown, slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(all),
			func(m string) bool {
				return m == "nodes_failed" || m == "error_ratio" || m == "own_lag_p99_seconds"
			})))},
	} {
		got := c.gate.Voids(c.cause, func(m string) bool { return slices.Contains(all, m) })
		if !slices.Equal(got, c.voids) {
			t.Errorf("%s, by %s, voids %v\nwant %v", c.gate.Name, c.cause, got, c.voids)
		}
	}
	if v := measured.GateLag.Voids(ledger.Unknown, func(string) bool { return false }); v == nil || len(v) != 0 {
		t.Errorf("a trial without metrics has %v void; null would say all", v)
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
		if got := len(measured.LostToOthers(&record.Trial{Validity: c.v,
			Metrics: maps.Clone(map[string]float64{"latency_p50_seconds": 1})})) > 0; got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestReasonsOfNodes: nodes that share a machine cannot see what others take of it, but the coordinator can. What is
// void at one node is void for all of them together.
func TestReasonsOfNodes(t *testing.T) {
	node := func(name string, r record.Reason) record.NodeTrial {
		return record.NodeTrial{Name: name, Trial: &record.Trial{Validity: record.Validity{Reasons: []record.Reason{r}}}}
	}
	slow := record.Reason{Gate: "rate", Seen: 0.9, Allowed: 0.99, Message: "slow", Cause: ledger.Subject,
		Voids: []string{"latency_p50_seconds"}}
	drift := record.Reason{Gate: "rate", Seen: 0.9, Allowed: 0.99, Message: "slow", Cause: ledger.Unknown,
		Voids: []string{"cpu_seconds_per_kiloevent"}}
	trial := &record.Trial{Nodes: []record.NodeTrial{node("a", slow), node("b", slow)},
		Metrics: map[string]float64{"latency_p50_seconds": 1, "throughput_per_second": 1, "map_bytes": 1,
			"cpu_seconds_per_kiloevent": 1, "node_max_cpu_seconds_per_kiloevent": 1}}
	p := &measured.Pool{Setup: &mustParse(t, shortSpec).Setup, Trial: trial}
	if r := p.Judge(); len(r) != 1 || r[0].Cause != ledger.Subject ||
		!slices.Equal(r[0].Voids, []string{"latency_p50_seconds"}) {
		t.Errorf("quiet: %+v", r)
	}
	p.Outside = measured.Disturbance{Stolen: 0.2}
	if r := p.Judge(); len(r) != 1 || r[0].Cause != ledger.Hypervisor || *r[0].CauseShare != 0.2 ||
		!slices.Equal(r[0].Voids, []string{"latency_p50_seconds", "throughput_per_second"}) {
		t.Errorf("stolen: %+v", r)
	}
	p.Outside, trial.Nodes[1] = measured.Disturbance{}, node("b", drift)
	if r := p.Judge(); len(r) != 1 || r[0].Cause != ledger.Unknown || !slices.Equal(r[0].Voids,
		[]string{"cpu_seconds_per_kiloevent", "latency_p50_seconds", "node_max_cpu_seconds_per_kiloevent"}) {
		t.Errorf("two kinds: %+v", r)
	}
	old := slow
	old.Voids = nil
	trial.Nodes = []record.NodeTrial{node("a", old)}
	if r := p.Judge(); len(r[0].Voids) != len(trial.Metrics) {
		t.Errorf("a reason without voids voids %v", r[0].Voids)
	}
}

func gateOf(t *testing.T, name string) *measured.Gate {
	t.Helper()
	i := slices.IndexFunc(measured.Gates(), func(g *measured.Gate) bool { return g.Name == name })
	if i < 0 {
		t.Fatalf("there is no gate %s", name)
	}
	return measured.Gates()[i]
}

// allNeeds lists the needs, in the order of the gates.
var allNeeds = []measured.Need{
	measured.Whole, measured.Worked, measured.Paced, measured.PacedAwake, measured.Rated, measured.Complete,
	measured.Connected, measured.Steady, measured.SteadyRate, measured.Unthrottled, measured.Held, measured.Probed,
	measured.Alone, measured.Windowed, measured.Contained, measured.Counted, measured.Read, measured.Untouched,
}
