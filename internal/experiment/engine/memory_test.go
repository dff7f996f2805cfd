package engine

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/mesh/kernelmesh"
	"tare/internal/scale/ledger"
	"tare/internal/workloads/load/probe"
)

// memorySpec returns a spec with one arm besides the baseline, with the given settings.
func memorySpec(arm string) string {
	return strings.Replace(shortSpec, "{subject: kernelmesh, steps: 10}", "{subject: kernelmesh"+arm+"}", 1)
}

func TestProbeLoad(t *testing.T) {
	with := strings.Replace(shortSpec, "  held: {", "  watcher: {kind: probe, interval: 2ms}\n  held: {", 1)
	s := mustParse(t, with)
	if s.Loads["watcher"].To != "" {
		t.Errorf("a probe goes to %q", s.Loads["watcher"].To)
	}
	if _, err := spec.Parse("spec.yaml", []byte(strings.Replace(with, "interval: 2ms", "to: server", 1)),
		nil); err == nil || !strings.Contains(err.Error(), `there is no key "to"`) {
		t.Errorf("a probe that goes somewhere: %v", err)
	}
	m := goodMeasurement(t)
	m.Setup.Loads["watcher"] = s.Loads["watcher"]
	before := m.Values()
	m.Loads["watcher"] = load.Result{Generator: probe.Generator, Mode: probe.Mode, Seconds: 2}
	if reasons := m.Judge(); len(reasons) != 1 || reasons[0].Gate != "probe" {
		t.Errorf("a probe that saw nothing: %+v", reasons)
	}
	r := m.Loads["watcher"]
	histogram(t, &r, probe.Delay, 1999, 50_000)
	h, _ := r.Histogram(probe.Delay)
	_ = h.RecordValue(80_000_000)
	_ = r.SetHistogram(probe.Delay, h)
	m.Loads["watcher"] = r
	if reasons := m.Judge(); len(reasons) > 0 {
		t.Errorf("tripped %+v", reasons)
	}
	m.Ledger.CPU = ledger.CPU{Capacity: 4, Idle: 4 - 0.5 - 1.01} // the trial's own 0.5 s, and 25.25 % used by others
	if reasons := m.Judge(); len(reasons) != 1 || reasons[0].Gate != "outside" {
		t.Errorf("others took more than is allowed: %+v", reasons)
	}
	m.Ledger.CPU.Idle += 0.02
	if reasons := m.Judge(); len(reasons) > 0 {
		t.Errorf("others took less than is allowed: %+v", reasons)
	}
	got := m.Values()
	if p50, longest := got["sched_delay_p50_seconds"], got["sched_delay_max_seconds"]; p50 < 49e-6 || p50 > 51e-6 ||
		longest < 79e-3 || longest > 81e-3 {
		t.Errorf("delays of %v and at most %v", p50, longest)
	}
	for name, v := range before { // a probe makes no requests
		if got[name] != v {
			t.Errorf("%s was %v, and is %v with a probe", name, v, got[name])
		}
	}
}

// TestUpAndDownAgain: a trial in which the number of services later drops to then-services has three windows, the last
// of them after the drop, and the subject began with the full number.
func TestUpAndDownAgain(t *testing.T) {
	g := newGround(t)
	s := mustParse(t, memorySpec(", services: 500, then-services: 2, fit: true"))
	dir := t.TempDir()
	var at []int // services in the file when each window opened
	g.onOpen = func() {
		services, err := kernelmesh.ReadFile(filepath.Join(dir, "services.yaml"))
		if err != nil {
			t.Error(err)
		}
		at = append(at, len(services))
	}
	x := newTrial(g.machine, s, record.PlannedTrial{Arm: "kernelmesh"}, 0, dir, 0)
	var tr record.Trial
	if err := x.run(t.Context(), &tr); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(at, []int{500, 500, 2}) || len(tr.Further) != 2 {
		t.Errorf("windows at %v services, and %d further readings are kept", at, len(tr.Further))
	}
	var ready kernelmesh.Ready
	if err := json.Unmarshal(tr.Subject, &ready); err != nil || ready.Services != 500 || ready.Endpoints != 500 {
		t.Errorf("the subject began with %d services and %d endpoints, %v", ready.Services, ready.Endpoints, err)
	}
}
