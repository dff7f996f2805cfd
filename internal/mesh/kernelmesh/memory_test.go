package kernelmesh

import (
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
)

func TestDeclared(t *testing.T) {
	for _, c := range []struct {
		m    ledger.Map
		want float64
	}{
		{ledger.Map{Type: "hash", KeyBytes: 4, ValueBytes: 8, MaxEntries: 512}, 8192}, // 16 B each
		{ledger.Map{Type: "hash", KeyBytes: 4, ValueBytes: 8, MaxEntries: 513}, 12288},
		// 8 B on each of 2 CPUs, and the key
		{ledger.Map{Type: "percpu_array", KeyBytes: 4, ValueBytes: 4, MaxEntries: 1024}, 24576},
		{ledger.Map{Type: "ringbuf", MaxEntries: 4096}, 0},
		{ledger.Map{Type: "sk_storage", KeyBytes: 4, ValueBytes: 52}, 0},
	} {
		if got := declared(c.m, 2); got != c.want {
			t.Errorf("%+v: %g bytes, want %g", c.m, got, c.want)
		}
	}
}

// TestDeclaredPossible: a per-CPU map counts once for each possible CPU, also for those that are offline. Where their
// number is unknown, so is the size.
func TestDeclaredPossible(t *testing.T) {
	for possible, want := range map[int]float64{4: 3*4096 + 5*4096, 0: 0} {
		m := memoryTrial(param.Values{"services": "5"})
		m.Ledger.Host.CPUs, m.Ledger.Host.PossibleCPUs = 2, possible
		m.Ledger.Maps[1].Type = "percpu_array" // 512 x (8 B x 4, and the key, rounded to 40 B)
		if got, ok := mapDeclared(m, false); got != want || ok != (possible > 0) {
			t.Errorf("%d possible CPUs: %g, %v; want %g", possible, got, ok, want)
		}
	}
}

// memoryTrial is a trial whose subject has two programs, which share one of their maps.
func memoryTrial(o param.Values) *measured.Measured {
	const tree = "/tare-trial"
	group := tree + "/subject"
	inGroup := func(id uint32, bytes uint64, inner ...uint32) ledger.Map {
		return ledger.Map{
			ID: id, Bytes: &bytes, Inner: inner, ChargedTo: &group,
			Type: "array", KeyBytes: 4, ValueBytes: 4, MaxEntries: 512, // 4096 B
		}
	}
	part := partOf(o)
	l := &ledger.Ledger{
		Window: ledger.Window{Seconds: 2},
		Cgroups: []ledger.Cgroup{
			{Path: "/system.slice"}, {Path: tree},
			{
				Path: group, Role: string(kind.Subject),
				Memory: &ledger.Memory{Kernel: new(uint64(77)), Hard: new(int64(5 << 20))},
			},
		},
		Programs: []ledger.Program{
			{ID: 1, MapIDs: []uint32{90}},
			{ID: 2, MapIDs: []uint32{91, 92}},
			{ID: 3, MapIDs: []uint32{92}},
		},
		Maps: []ledger.Map{
			inGroup(90, 1<<30), // of another subject's program
			inGroup(91, 1000, 93), inGroup(92, 200), inGroup(93, 30), inGroup(94, 4),
		},
	}
	l.Maps[3].ChargedTo = new("/system.slice")
	return &measured.Measured{
		Setup:   &kind.Setup{Baseline: part, Arms: map[string]*kind.Part{"arm": part}},
		Trial:   record.Trial{Ledger: l},
		Tree:    tree,
		Subject: &kind.Objects{Programs: []kind.Object{{ID: 2}, {ID: 3}}, Maps: []kind.Object{{ID: 92}, {ID: 94}}},
	}
}

// otherMesh is a subject of another kind, with settings of the same names.
type otherMesh struct{}

func (otherMesh) About() kind.About { return kind.About{Name: "other"} }

// TestMemoryMetrics: a map that two programs use counts once in map_declared_bytes and twice in map_by_program_bytes.
func TestMemoryMetrics(t *testing.T) {
	if v, ok := memoryTrial(nil).Values()["map_declared_bytes"]; ok {
		t.Errorf("nobody asked, and map_declared_bytes is %g", v)
	}
	beside := memoryTrial(nil)
	beside.Setup.Arms["other"] = &kind.Part{Kind: otherMesh{},
		Options: param.Values{"services": "5", "then-services": "1"}}
	if v, ok := beside.Values()["map_declared_bytes"]; ok {
		t.Errorf("another subject has services, and map_declared_bytes is %g", v)
	}
	m := memoryTrial(param.Values{"services": "5", "then-services": "1"})
	after := *m.Ledger
	after.Maps = append([]ledger.Map(nil), m.Ledger.Maps...)
	after.Maps[1].Bytes = new(uint64(500))
	m.Further = map[string]*ledger.Ledger{readingAfter: &after}
	got := m.Values()
	for name, want := range map[string]float64{
		"map_bytes": 1234, "map_after_bytes": 734,
		"memory_kernel_bytes": 77, "memory_kernel_after_bytes": 77, "memory_hard_after_bytes": 5 << 20,
		"map_declared_bytes":   4 * 4096,
		"map_by_program_bytes": 3 * 4096, // two programs use map 92, one uses 91, and none lists 93 or 94
		"map_charged_share":    1204.0 / 1234,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, %v; want %v", name, v, ok, want)
		}
	}
	if v, ok := got["map_before_bytes"]; ok {
		t.Errorf("there is no reading before, and map_before_bytes is %g", v)
	}
	m.Subject, m.Further = nil, nil
	got = m.Values()
	for _, name := range []string{"map_before_bytes", "map_after_bytes", "map_declared_bytes"} {
		if v, ok := got[name]; !ok || v != 0 {
			t.Errorf("in the baseline %s is %v, %v", name, v, ok)
		}
	}
}
