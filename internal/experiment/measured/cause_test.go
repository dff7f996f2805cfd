package measured

import (
	"slices"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

func ptr[T any](v T) *T { return &v }

// noisy returns the ledger of a window of 2 s on 2 CPUs, after change.
func noisy(change func(*ledger.Ledger)) *ledger.Ledger {
	l := &ledger.Ledger{
		Window: ledger.Window{Seconds: 2},
		CPU: ledger.CPU{Capacity: 4, Idle: 2.9, Lines: []ledger.CPULine{
			{Name: ledger.LineGroups, Seconds: 0.93}, {Name: ledger.LineRoot, Seconds: 0.02},
			{Name: ledger.LineKernel, Seconds: 0.1}, {Name: ledger.LineSelf, Seconds: 0.05}}},
		Cgroups: []ledger.Cgroup{{Path: "/", CPUSeconds: ptr(1.1)},
			{Path: "/trial", CPUSeconds: ptr(0.9), BPFInsideSeconds: ptr(0.05)}, {Path: "/trial/work", CPUSeconds: ptr(0.8)},
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
		{"late, quiet", func(*ledger.Ledger) {}, GateLag, 0.03, ledger.Generator},
		{"late, a little stolen", stolen(0.03), GateLag, 0.03, ledger.Generator}, // 0.75 %
		{"late, stolen", stolen(0.05), GateLag, 0.03, ledger.Hypervisor},
		{"late, stolen by the steal clock alone", witness(ledger.Noise{StolenSeconds: 0.4}), GateLag, 0.03,
			ledger.Hypervisor},
		{"late, neighbour", neighbour, GateLag, 0.03, ledger.Neighbour},
		{"late, both, and more is stolen for its kind", func(l *ledger.Ledger) { neighbour(l); l.CPU.Steal = 1 }, GateLag,
			0.03, ledger.Hypervisor},
		{"late, a CPU was held", witness(ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.06, PID: 7, Comm: "fifo",
			Cgroup: "/"}}}), GateLag, 0.03, ledger.Neighbour},
		{"late, a CPU was held by the trial itself",
			witness(ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.06, PID: 7, Cgroup: "/trial/work/client"}}}), GateLag,
			0.03, ledger.Generator},
		{"late, a CPU was held by the scale", witness(ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.06, PID: 99,
			Cgroup: "/"}}}), GateLag, 0.03, ledger.Generator},
		// Interrupts may have been off because of the subject, so nothing outside the trial is blamed.
		{"late, interrupts were off", witness(ledger.Noise{Late: 50, LongestLate: 0.2}), GateLag, 0.03, ledger.Generator},
		{"slow, quiet", func(*ledger.Ledger) {}, GateRate, 0.9, ledger.Subject},
		{"a little slow, stolen", stolen(0.2), GateRate, 0.9, ledger.Hypervisor}, // 5 % explain a tenth
		{"much too slow, a little stolen", stolen(0.2), GateRate, 0.6, ledger.Subject},
		{"nothing done, a little stolen", stolen(0.2), GateIdle, 0, ledger.Subject},
		{"errors, stolen", stolen(0.4), GateErrors, 0.01, ledger.Hypervisor},
		{"many errors, a little stolen", stolen(0.05), GateErrors, 0.5, ledger.Subject},
		{"drift, quiet", func(*ledger.Ledger) {}, GateDriftLatency, 0.9, ledger.Unknown},
		{"drift, stolen", stolen(0.4), GateDriftLatency, 0.9, ledger.Hypervisor},
		{"late, and a process of the trial is elsewhere", func(l *ledger.Ledger) {
			neighbour(l)
			l.Warnings = append(l.Warnings, ledger.Warning{Code: WarnStrays})
		}, GateLag, 0.03, ledger.Generator},
		{"elsewhere, and stolen", stolen(0.4), GateContained, 1, ledger.Subject},
		{"no budget", func(l *ledger.Ledger) { l.CPU = ledger.CPU{} }, GateLag, 0.03, ledger.Generator},
	} {
		d := DisturbanceOf(noisy(c.change), 99, "/trial")
		got, part := d.cause(Trip{c.gate, record.Reason{Gate: c.gate.Name, Seen: c.seen}})
		if got != c.want {
			t.Errorf("%s: %s, want %s (%+v)", c.name, got, c.want, d)
		}
		if outside := got == ledger.Hypervisor || got == ledger.Neighbour; outside != (part > 0) {
			t.Errorf("%s: %s took %g", c.name, got, part)
		}
	}
	if d := DisturbanceOf(nil, 99, "/trial"); d.Stolen != 0 || d.Foreign != 0 {
		t.Errorf("no ledger shows %+v", d)
	}
}

func TestDisturbance(t *testing.T) {
	d := DisturbanceOf(noisy(func(*ledger.Ledger) {}), 99, "/trial")
	if want := (0.93 + 0.02 - 0.85) / 4; d.Stolen != 0 || d.Foreign < want-1e-12 || d.Foreign > want+1e-12 ||
		!slices.Equal(d.Culprits, []string{"/system.slice"}) {
		t.Errorf("%+v, want %g foreign", d, want)
	}
	// A process whose group could not be read because it had ended may belong to the trial: the kernel's counters decide.
	short := DisturbanceOf(noisy(func(l *ledger.Ledger) {
		l.Noise = &ledger.Noise{Occupied: []ledger.Stall{{Seconds: 0.8, PID: 7, Comm: "sh"}}}
	}), 99, "/trial")
	if short.Foreign != d.Foreign || short.Occupied != d.Foreign {
		t.Errorf("%+v, want %g foreign", short, d.Foreign)
	}
	d = DisturbanceOf(noisy(func(l *ledger.Ledger) {
		l.Noise = &ledger.Noise{Busiest: []ledger.Occupant{{PID: 1, Comm: "cc1", Seconds: 0.3},
			{PID: 2, Comm: "cc1", Seconds: 0.3}, {PID: 3, Comm: "stress-ng", Cgroup: "/s", Seconds: 0.5},
			{PID: 4, Comm: "tare", Cgroup: "/trial/work/client", Seconds: 0.9}, {PID: 99, Comm: "tare", Seconds: 0.9},
			{PID: 5, Comm: "a", Seconds: 0.1}, {PID: 6, Comm: "b", Seconds: 0.05}}}
	}), 99, "/trial")
	if !slices.Equal(d.Culprits, []string{"cc1", "stress-ng", "a"}) {
		t.Errorf("culprits %q", d.Culprits)
	}
}

// TestReasons checks the reasons of a trial once the cause of each, and the metrics that it voids, have been
// determined.
func TestReasons(t *testing.T) {
	values := map[string]float64{"latency_p50_seconds": 1, "throughput_per_second": 1, "map_bytes": 1}
	counts := map[string]record.Count{"bpf_client_share": {In: 1, Of: 2}}
	quiet := DisturbanceOf(noisy(func(*ledger.Ledger) {}), 99, "/trial")
	// If a generator that was late by itself is why the rate was missed, that is not a result of the subject.
	rs := ReasonsOf([]Trip{Tripped(GateRate, 0.9, 0.99, "slow"), Tripped(GateLag, 0.03, 0.025, "late")}, quiet,
		values, counts)
	if rs[0].Cause != ledger.Generator || !slices.Equal(rs[0].Voids,
		[]string{"latency_p50_seconds", "throughput_per_second"}) || rs[0].CauseShare != nil {
		t.Errorf("%+v", rs[0])
	}
	rs = ReasonsOf([]Trip{Tripped(GateRate, 0.9, 0.99, "slow")}, quiet, values, counts)
	if rs[0].Cause != ledger.Subject || !slices.Equal(rs[0].Voids, []string{"latency_p50_seconds"}) ||
		LostToOthers(&record.Trial{Validity: record.Validity{Reasons: rs}}) != nil {
		t.Errorf("%+v: a subject that is too slow is a result, and is not run again", rs[0])
	}
	loud := DisturbanceOf(noisy(func(l *ledger.Ledger) { l.CPU.Steal = 0.96 }), 99, "/trial")
	rs = ReasonsOf([]Trip{Tripped(GateWindow, 0.3, 0.5, "cut")}, loud, values, counts)
	if rs[0].Cause != ledger.Hypervisor || *rs[0].CauseShare != 0.24 ||
		!slices.Equal(rs[0].Voids, []string{"bpf_client_share", "map_bytes"}) {
		t.Errorf("%+v", rs[0])
	}
	if ReasonsOf(nil, loud, values, counts) != nil {
		t.Error("noise alone is no reason")
	}
}
