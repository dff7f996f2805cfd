package experiment

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/fault"
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/load/probe"
	"tare/internal/param"
	"tare/internal/record"
	"tare/internal/subject/mesh/kernelmesh"
)

// memorySpec is an experiment with one arm, whose settings are given.
func memorySpec(arm string) string {
	return strings.Replace(shortSpec, "{subject: kernelmesh, steps: 10}", "{subject: kernelmesh"+arm+"}", 1)
}

func TestServiceKnobs(t *testing.T) {
	for _, c := range []struct{ arm, wrong string }{
		{"", ""},
		{", services: 1024", ""},
		{", services: 5, then-services: 1000", ""},
		{", services: 5000, fit: true", ""},
		{", services: 5000, max-services: 5000", ""},
		{", services: 1025", `1025 services are more than the 1024 that its maps hold`},
		{", services: 5, then-services: 2000", "2000 services"},
		{", services: 5, fit: true, max-services: 9", `"max-services" has no meaning`},
		{", services: 5, then-services: 6, fit: true", "is more than"},
		{", services: 0", "must be at least 1"},
		{", store: pooled:ondemand, fail: closed, peer: endpoint", ""},
		{", store: shelf", `there is no store "shelf"`},
		{", store: sized:xl", `no variant "xl"`},
		{", peer: both", "peer"},
	} {
		_, err := Parse("spec.yaml", []byte(memorySpec(c.arm)), nil)
		if c.wrong == "" && err != nil || c.wrong != "" && (fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%q: %v", c.arm, err)
		}
	}
}

func TestSubjectOptions(t *testing.T) {
	got := subjectOptions(param.Values{"services": "7", "then-services": "1", "fit": "true", "steps": "3"}, 7)
	if len(got) != 3 || got["max-services"] != "7" || got["max-endpoints"] != "7" || got["steps"] != "3" {
		t.Errorf("fitted: %v", got)
	}
	given := param.Values{"services": "7", "max-services": "9"}
	if got := subjectOptions(given, 7); len(got) != 1 || got["max-services"] != "9" || len(given) != 2 {
		t.Errorf("sized: %v of %v", got, given)
	}
}

// What is written is a services file that the subject reads, with the applications first and no address twice.
func TestWriteServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), servicesFile)
	x := &trial{spec: mustParse(t, shortSpec), apps: map[string]string{"server": "127.0.0.1:4711", "other": "127.0.0.1:4712"}}
	for _, n := range []int{0, 2, 300, 70_000} {
		if err := x.writeServices(file, n); err != nil {
			t.Fatal(err)
		}
		services, err := kernelmesh.ReadFile(file)
		if err != nil {
			t.Fatalf("%d services: %v", n, err)
		}
		if len(services) != max(n, 2) || services[1].Address.String() != "10.96.0.2:80" || services[1].Endpoints[0].Address.String() != "127.0.0.1:4711" {
			t.Errorf("asked for %d services: %d, the second is %+v", n, len(services), services[1])
		}
	}
	// The reader refuses an address that stands twice, so 70,000 were as many; the others need no file.
	if a, b := serviceIP(1_000_000), fillerIP(1_000_000); a != "10.111.66.64:80" || b != "198.19.66.64:8087" {
		t.Errorf("the last service is %s at %s", a, b)
	}
	x.dir = filepath.Dir(file)
	if err := x.writeServices(filepath.Join(file, "no"), 1); fault.CodeOf(err) != fault.Machine {
		t.Errorf("no such place: %v", err)
	}
}

func TestDeclared(t *testing.T) {
	for _, c := range []struct {
		m    ledger.Map
		want float64
	}{
		{ledger.Map{Type: "hash", KeyBytes: 4, ValueBytes: 8, MaxEntries: 512}, 8192}, // 16 B each
		{ledger.Map{Type: "hash", KeyBytes: 4, ValueBytes: 8, MaxEntries: 513}, 12288},
		{ledger.Map{Type: "percpu_array", KeyBytes: 4, ValueBytes: 4, MaxEntries: 1024}, 24576}, // 8 B on each of 2 CPUs, and the key
		{ledger.Map{Type: "ringbuf", MaxEntries: 4096}, 0},
		{ledger.Map{Type: "sk_storage", KeyBytes: 4, ValueBytes: 52}, 0},
	} {
		if got := declared(c.m, 2); got != c.want {
			t.Errorf("%+v: %g bytes, want %g", c.m, got, c.want)
		}
	}
}

// A map that two programs use counts once in map_declared_bytes and twice in map_by_program_bytes.
func TestMemoryMetrics(t *testing.T) {
	m := goodMeasurement(t)
	if v, ok := m.values()["map_declared_bytes"]; ok {
		t.Errorf("nobody asked, and map_declared_bytes is %g", v)
	}
	m.spec = mustParse(t, memorySpec(", services: 5, then-services: 1"))
	group := m.tree + "/subject"
	for i := range m.ledger.Maps {
		m.ledger.Maps[i].Type, m.ledger.Maps[i].KeyBytes, m.ledger.Maps[i].ValueBytes, m.ledger.Maps[i].MaxEntries = "array", 4, 4, 512 // 4096 B
		m.ledger.Maps[i].ChargedTo = &group
	}
	m.ledger.Maps[3].ChargedTo = ptr("/system.slice")
	for i := range m.ledger.Cgroups {
		if mem := m.ledger.Cgroups[i].Memory; mem != nil {
			mem.Kernel = ptr(uint64(77))
		}
	}
	after := *m.ledger
	after.Maps = append([]ledger.Map(nil), m.ledger.Maps...)
	after.Maps[1].Bytes = ptr(uint64(500))
	m.further = map[string]*ledger.Ledger{readingAfter: &after}
	got := m.values()
	for name, want := range map[string]float64{
		"map_bytes": 1234, "map_after_bytes": 734, "memory_kernel_bytes": 77, "memory_kernel_after_bytes": 77,
		"map_declared_bytes": 4 * 4096, "map_by_program_bytes": 3 * 4096, // 92 has two programs, 91 one; 93 and 94 no program's list holds
		"map_charged_share": 1204.0 / 1234,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, %v; want %v", name, v, ok, want)
		}
	}
	if v, ok := got["map_before_bytes"]; ok {
		t.Errorf("there is no reading before, and map_before_bytes is %g", v)
	}
	m.subject, m.further = nil, nil
	if got := m.values(); got["map_before_bytes"] != 0 || got["map_declared_bytes"] != 0 {
		t.Errorf("in the baseline: %v", got)
	} else if _, ok := got["map_after_bytes"]; !ok {
		t.Error("the baseline has no map_after_bytes to compare with")
	}
}

func TestProbeLoad(t *testing.T) {
	with := strings.Replace(shortSpec, "  held: {", "  watcher: {kind: probe, interval: 2ms}\n  held: {", 1)
	s := mustParse(t, with)
	if s.Loads["watcher"].To != "" {
		t.Errorf("a probe goes to %q", s.Loads["watcher"].To)
	}
	if _, err := Parse("spec.yaml", []byte(strings.Replace(with, "interval: 2ms", "to: server", 1)), nil); err == nil || !strings.Contains(err.Error(), `there is no key "to"`) {
		t.Errorf("a probe that goes somewhere: %v", err)
	}
	m := goodMeasurement(t)
	m.spec.Loads["watcher"] = s.Loads["watcher"]
	before := m.values()
	m.loads["watcher"] = load.Result{Generator: probe.Generator, Mode: probe.Mode, Seconds: 2}
	if reasons := m.judge(); len(reasons) != 1 || reasons[0].Gate != "probe" {
		t.Errorf("a probe that saw nothing: %+v", reasons)
	}
	r := m.loads["watcher"]
	histogram(t, &r, probe.Delay, 1999, 50_000)
	h, _ := r.Histogram(probe.Delay)
	_ = h.RecordValue(80_000_000)
	_ = r.SetHistogram(probe.Delay, h)
	m.loads["watcher"] = r
	if reasons := m.judge(); len(reasons) > 0 {
		t.Errorf("tripped %+v", reasons)
	}
	m.ledger.CPU = ledger.CPU{Capacity: 4, Idle: 4 - 0.5 - 1.01} // the trial's own 0.5 s, and 25.25 % that is others'
	if reasons := m.judge(); len(reasons) != 1 || reasons[0].Gate != "outside" {
		t.Errorf("others took more than is allowed: %+v", reasons)
	}
	m.ledger.CPU.Idle += 0.02
	if reasons := m.judge(); len(reasons) > 0 {
		t.Errorf("others took less than is allowed: %+v", reasons)
	}
	got := m.values()
	if p50, longest := got["sched_delay_p50_seconds"], got["sched_delay_max_seconds"]; p50 < 49e-6 || p50 > 51e-6 || longest < 79e-3 || longest > 81e-3 {
		t.Errorf("delays of %v and at most %v", p50, longest)
	}
	for name, v := range before { // a probe makes no requests
		if got[name] != v {
			t.Errorf("%s was %v, and is %v with a probe", name, v, got[name])
		}
	}
}

// A trial that goes up and down again is read three times, and the subject has really read its services again.
func TestUpAndDownAgain(t *testing.T) {
	g := newGround(t)
	s := mustParse(t, memorySpec(", services: 500, then-services: 2, fit: true"))
	dir := t.TempDir()
	var at []int // services in the file when each window opened
	g.onOpen = func() {
		services, err := kernelmesh.ReadFile(filepath.Join(dir, servicesFile))
		if err != nil {
			t.Error(err)
		}
		at = append(at, len(services))
	}
	x := &trial{machine: g.machine, spec: s, arm: "kernelmesh", dir: dir}
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
