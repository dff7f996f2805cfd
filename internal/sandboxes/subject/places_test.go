package subject

import (
	"encoding/json"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// group makes a control group with its charges.
func group(path, role, component string, hard int64, cpu float64) ledger.Cgroup {
	soft, working := int64(0), uint64(hard)
	g := ledger.Cgroup{Path: path, Role: role, CPUSeconds: &cpu,
		Memory: &ledger.Memory{Hard: &hard, Soft: &soft, WorkingSet: &working}}
	g.Component = component
	return g
}

// TestPlaces: if only the virtual CPUs of a virtual machine are in the pod's group, their CPU time counts there, and
// its memory in the overhead group. Each byte and each CPU second counts once.
func TestPlaces(t *testing.T) {
	used, small := 1.2, 0.1
	e := &Evidence{Sandboxes: []Sandbox{{Name: "server", Cgroup: "/t/server", Processes: []Process{
		{PID: 1, Component: VMM, MemoryCgroup: "/t/subject/overhead/server/x", CPUCgroup: "/t/subject/overhead/server/x",
			CPUSeconds: &used, CPUElsewhere: map[string]float64{"/t/server/x": 1}, Resident: Resident{PSS: 300}},
		{PID: 2, Component: Shim, MemoryCgroup: "/t/subject/shim/server", CPUCgroup: "/t/subject/shim/server",
			CPUSeconds: &small, Resident: Resident{PSS: 20}},
	}}}}
	l := &ledger.Ledger{Window: ledger.Window{Seconds: 2}, Cgroups: []ledger.Cgroup{
		group("/t/server", "app", "", 1, 1.0), group("/t/client", "load", "", 7, 0.4),
		group("/t/client/x", "load", "", 6, 0.3), group("/t/client/x/y", "load", "", 5, 0.2),
		group("/t/subject", "subject", "", 330, 0.3), group("/t/subject/overhead", "subject", "overhead", 310, 0.2),
		group("/t/subject/overhead/server", "subject", "overhead", 310, 0.2),
		group("/t/subject/shim", "subject", "shim", 20, 0.1),
	}}
	text, err := json.Marshal(e.places(l))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"name":"pod","hard_bytes":1,"soft_bytes":0,"cpus":0.5,"kubernetes_bytes":1,` +
		`"components":[{"component":"vmm","bytes":0,"cpus":0.5}]},` +
		`{"name":"overhead","hard_bytes":310,"soft_bytes":0,"cpus":0.1,` +
		`"components":[{"component":"vmm","bytes":300,"cpus":0.09999999999999998}]},` +
		`{"name":"outside","hard_bytes":20,"soft_bytes":0,"cpus":0.04999999999999999,` +
		`"components":[{"component":"shim","bytes":20,"cpus":0.05}]},` +
		`{"name":"load","hard_bytes":7,"soft_bytes":0,"cpus":0.2}]`
	if string(text) != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
	m := &measured.Measured{Trial: record.Trial{Ledger: l}}
	hard, _ := charged(m.Ledger, e, true, true, hard)
	sum := 0.0
	for _, p := range e.places(l)[:3] {
		sum += *p.HardBytes
	}
	if sum != hard {
		t.Errorf("places are charged %g, the sandbox %g", sum, hard)
	}
}

// TestCourse: a part is 0 at moments for which it has no value, and unknown values are nil, not 0.
func TestCourse(t *testing.T) {
	c := newCourse("x")
	add := func(ns int64, parts map[string]*float64) {
		c.moment(ns)
		for of, v := range parts {
			c.add(of, "anon", v)
		}
	}
	f := func(v float64) *float64 { return &v }
	add(-1e6, map[string]*float64{"a": f(1)})
	add(5e8, map[string]*float64{"a": f(2), "b": f(3)})
	c.add("b", "anon", f(4))
	add(1e9, map[string]*float64{"b": nil})
	text, _ := json.Marshal(record.Pictured{Series: []record.Series{c.Series}})
	want := `{"series":[{"name":"x","unit":"bytes","seconds":[-0.001,0.5,1],"parts":[` +
		`{"of":"a","kind":"anon","values":[1,2,0]},{"of":"b","kind":"anon","values":[0,7,null]}]}]}`
	if string(text) != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}
