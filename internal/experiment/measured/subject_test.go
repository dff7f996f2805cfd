package measured

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
)

const subjectTree = "/tare/trial"

// inComponents returns a trial whose subject has a proxy and a control plane. Both have groups inside that of the
// subject, and the proxy created a group inside its own.
func inComponents() *Measured {
	group := func(path string, cpu float64, hard int64) ledger.Cgroup {
		anon, file, shmem, kernel := uint64(hard), uint64(2*hard), uint64(hard/2), uint64(hard/4)
		return ledger.Cgroup{
			Path: subjectTree + path, CPUSeconds: &cpu, ThrottledSeconds: new(0.5),
			Memory: &ledger.Memory{Hard: &hard, Soft: new(3 * hard), Anon: &anon, File: &file, Shmem: &shmem, Kernel: &kernel},
		}
	}
	held := func(id uint32, bytes uint64, pids ...int) ledger.Map {
		m := ledger.Map{ID: id, Bytes: &bytes}
		for _, pid := range pids {
			m.HeldBy = append(m.HeldBy, ledger.Owner{PID: pid})
		}
		return m
	}
	m := &Measured{
		Setup: &kind.Setup{
			Arms: map[string]*kind.Part{
				"mine": {Limits: param.Values{"cpus": "1"}}, "control": {Limits: param.Values{"cpus": "1"}},
			},
			Applications: map[string]*kind.Part{"worker": {Limits: param.Values{"cpus": "1"}}},
			Gates:        param.Defaults(GateSettings), Statistics: true,
		},
		Tree: subjectTree,
		Trial: record.Trial{PlannedTrial: record.PlannedTrial{Arm: "mine"}, Ledger: &ledger.Ledger{
			Window: ledger.Window{Seconds: 2},
			Cgroups: []ledger.Cgroup{
				group("/subject", 1.0, 1000), group("/subject/proxy", 0.6, 600), group("/subject/proxy/worker", 0.5, 500),
				group("/subject/control", 0.3, 300), {Path: "/tare/other/subject", Role: string(kind.Subject)},
			},
			Programs: []ledger.Program{{ID: 7, RunSeconds: new(0.25)}},
			Maps:     []ledger.Map{held(1, 100, 11), held(2, 20, 11, 21), held(3, 3)},
		}},
		Subject:   &kind.Objects{Programs: []kind.Object{{ID: 7}}},
		Processes: map[string][]int{"proxy": {11, 12}, "control": {21}},
	}
	whole, limited := NewRole(kind.Subject, ""), NewRole(kind.Subject, "proxy")
	whole.Limited, limited.Limited = true, true
	worker := NewRole(kind.Subject, "proxy") // a group below that has a separate role is still counted once
	m.SetRoles(map[string]GroupRole{
		subjectTree + "/subject": whole, subjectTree + "/subject/proxy": limited,
		subjectTree + "/subject/proxy/worker": worker, subjectTree + "/subject/control": NewRole(kind.Subject, "control"),
	})
	return m
}

// TestSubjectCountsOnce: a group of the subject is included in the group above it, whichever of them have a role.
func TestSubjectCountsOnce(t *testing.T) {
	whole := map[string]float64{
		"subject_cpus": 0.5, "subject_bpf_cpus": 0.125, "memory_hard_bytes": 1000, "memory_soft_bytes": 3000,
		"memory_anon_bytes": 1000, "memory_file_bytes": 2000, "memory_shmem_bytes": 500, "memory_kernel_bytes": 250,
	}
	cases := map[string]struct {
		change func(*Measured)
		want   map[string]float64
		absent []string
	}{
		"all": {func(*Measured) {}, whole, nil},
		"no group for both": {func(m *Measured) { m.Ledger.Cgroups[0].Role = "" },
			map[string]float64{"subject_cpus": 0.45, "memory_hard_bytes": 900, "memory_file_bytes": 1800}, nil},
		"no subject": {func(m *Measured) { m.Subject = nil },
			map[string]float64{"subject_cpus": 0, "subject_bpf_cpus": 0, "memory_anon_bytes": 0}, nil},
		"no counters": {func(m *Measured) { m.Ledger.Cgroups[0].CPUSeconds, m.Ledger.Cgroups[0].Memory.File = nil, nil },
			map[string]float64{"memory_anon_bytes": 1000}, []string{"subject_cpus", "memory_file_bytes"}},
		"no run statistics": {func(m *Measured) { m.Ledger.Programs[0].RunSeconds = nil },
			map[string]float64{"subject_cpus": 0.5}, []string{"subject_bpf_cpus"}},
	}
	for name, c := range cases {
		m := inComponents()
		c.change(m)
		got := m.Values()
		for metric, want := range c.want {
			if v, ok := got[metric]; !ok || math.Abs(v-want) > 1e-9 {
				t.Errorf("%s: %s is %v (%v), want %v", name, metric, v, ok, want)
			}
		}
		for _, metric := range c.absent {
			if v, ok := got[metric]; ok {
				t.Errorf("%s: %s is %v, and cannot be told", name, metric, v)
			}
		}
	}
}

// TestComponents: a metric is reported for each component for which it is known, and is absent for others.
func TestComponents(t *testing.T) {
	m := inComponents()
	delete(m.Processes, "control") // the processes had ended when they were to be read
	want := map[string]map[string]float64{
		"proxy": {"subject_cpus": 0.3, "memory_hard_bytes": 600, "memory_soft_bytes": 1800, "memory_anon_bytes": 600,
			"memory_file_bytes": 1200, "memory_shmem_bytes": 300, "memory_kernel_bytes": 150, "map_bytes": 120},
		"control": {"subject_cpus": 0.15, "memory_hard_bytes": 300, "memory_soft_bytes": 900, "memory_anon_bytes": 300,
			"memory_file_bytes": 600, "memory_shmem_bytes": 150, "memory_kernel_bytes": 75},
	}
	if got := m.Components(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if m = inComponents(); m.Components()["control"]["map_bytes"] != 20 {
		t.Errorf("maps that the control plane holds: %v", m.Components()["control"])
	}
	m.Ledger.Maps[1].Bytes = nil
	if v, ok := m.Components()["proxy"]["map_bytes"]; ok {
		t.Errorf("with a map of unknown size the proxy has %v", v)
	}
	m.Ledger.Cgroups = m.Ledger.Cgroups[:1]
	if got := m.Components(); got != nil {
		t.Errorf("a subject without components has %v", got)
	}
}

// TestThrottledComponents: in each component, throttling by a requested limit trips no gate, and any other does. The
// limit of another part that has the same name as a component, such as an arm, does not count.
func TestThrottledComponents(t *testing.T) {
	var tripped []string
	for _, trip := range inComponents().throttled() {
		path, _, _ := strings.Cut(trip.Message, " ")
		tripped = append(tripped, strings.TrimPrefix(path, subjectTree))
	}
	if want := []string{"/subject/proxy/worker", "/subject/control"}; !slices.Equal(tripped, want) {
		t.Errorf("tripped by %v, want %v: the arm and the proxy have limits", tripped, want)
	}
}

// TestThrottledAbove: if a group above the trial's is throttled, such as the container that tare runs in, so is the
// trial, whatever its own groups show. A group beside it has no effect.
func TestThrottledAbove(t *testing.T) {
	for path, want := range map[string]int{"/": 1, "/tare": 1, "/tare/other": 0, "/tar": 0} {
		m := inComponents()
		m.Ledger.Cgroups = []ledger.Cgroup{{Path: path, ThrottledSeconds: new(0.5)}}
		trips := m.throttled()
		if len(trips) != want || want == 1 && !strings.Contains(trips[0].Message, "it holds the trial") {
			t.Errorf("%s: %+v", path, trips)
		}
	}
}

// TestReset: if a counter of one of the trial's groups was reset, its cost is unknown, and the gate names the group,
// even if the ledger's warnings name only other groups. Resets in groups outside the trial void nothing.
func TestReset(t *testing.T) {
	deep := "/subject/" + strings.Repeat("deep/", 60) + "er" // longer than a warning's path
	for path, want := range map[string]int{
		"": 1, "/subject": 1, "/subject/proxy/worker": 1, deep: 1, "s": 0, "s/subject": 0,
	} {
		m := inComponents()
		l := m.Ledger
		for _, other := range []string{"/a", "/b", "/c", "/d"} {
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: other, CPUReset: true})
		}
		if trips := m.contained(); len(trips) != 0 {
			t.Errorf("counters of others were reset: %+v", trips)
		}
		l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: m.Tree + path, CPUReset: true})
		trips := m.contained()
		if len(trips) != want || want == 1 && !strings.Contains(trips[0].Message, m.Tree+path+" was reset") {
			t.Errorf("%s: %+v", path, trips)
		}
	}
}

// TestPoolComponents: over nodes, a component's metric is pooled like that of the whole, and is absent if a good node
// lacks it.
func TestPoolComponents(t *testing.T) {
	node := func(failed string, components map[string]map[string]float64) record.NodeTrial {
		return record.NodeTrial{Failed: failed, Trial: &record.Trial{Components: components}}
	}
	proxy := func(cpus, hard float64) map[string]map[string]float64 {
		return map[string]map[string]float64{"proxy": {"subject_cpus": cpus, "memory_hard_bytes": hard}}
	}
	for name, c := range map[string]struct {
		nodes []record.NodeTrial
		want  map[string]float64
	}{
		"two": {[]record.NodeTrial{node("", proxy(0.25, 100)), node("", proxy(0.5, 300))},
			map[string]float64{"subject_cpus": 0.75, "memory_hard_bytes": 200}},
		"one failed": {[]record.NodeTrial{node("", proxy(0.25, 100)), node("gone", nil)},
			map[string]float64{"memory_hard_bytes": 100}}, // sums would lack a node
		"one has no such component": {[]record.NodeTrial{node("", proxy(0.25, 100)), node("", nil)}, nil},
	} {
		p := &Pool{Setup: &kind.Setup{}, Trial: &record.Trial{Nodes: c.nodes}}
		p.Gather()
		if got := p.Trial.Components["proxy"]; !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestPoolWork: the trial has the sum of the work of all nodes' subjects, if every good node has it.
func TestPoolWork(t *testing.T) {
	node := func(failed string, work *load.Result) record.NodeTrial {
		return record.NodeTrial{Failed: failed, Trial: &record.Trial{Work: work}}
	}
	work := &load.Result{Seconds: 2, Done: 3, Streams: 4}
	for name, c := range map[string]struct {
		nodes []record.NodeTrial
		done  int64 // 0: the trial has no work
	}{
		"two":              {[]record.NodeTrial{node("", work), node("", work)}, 6},
		"one failed":       {[]record.NodeTrial{node("", work), node("gone", nil)}, 3},
		"one does no work": {[]record.NodeTrial{node("", work), node("", nil)}, 0},
		"none does":        {[]record.NodeTrial{node("", nil)}, 0},
	} {
		p := &Pool{Setup: &kind.Setup{}, Trial: &record.Trial{Nodes: c.nodes}}
		p.Gather()
		switch got := p.Trial.Work; {
		case got == nil && c.done == 0:
		case got == nil || got.Done != c.done || got.Seconds != 2 || got.Streams != 4:
			t.Errorf("%s: got %+v, want %d done", name, got, c.done)
		}
	}
}

// proxies is a subject in the path of requests.
type proxies struct{}

func (proxies) About() kind.About { return kind.About{Name: "proxies", InPath: kind.Always} }

// TestRequestParts: the parts of a request's CPU time add up to the whole, in arms with and without a subject; if no
// subject is in the path, there are no parts.
func TestRequestParts(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Measured)
		subject float64
		absent  bool
	}{
		{"a subject", func(*Measured) {}, 0.5, false},
		{"the baseline", func(m *Measured) { m.Subject = nil }, 0, false},
		{"counters that were read apart", func(m *Measured) {
			for i := range m.Ledger.Cgroups {
				if m.Ledger.Cgroups[i].Path == subjectTree {
					m.Ledger.Cgroups[i].CPUSeconds = new(1.71)
				}
			}
		}, 0.5, false},
		{"a subject without processes", func(m *Measured) {
			for i := range m.Ledger.Cgroups {
				if m.Ledger.Cgroups[i].Role == string(kind.Subject) {
					m.Ledger.Cgroups[i].Role = ""
				}
			}
		}, 0, false},
		{"no such subject", func(m *Measured) { m.Setup.Arms = nil }, 0, true},
		{"each request has its connection", func(m *Measured) {
			m.Loads["client"] = load.Result{Mode: load.Open, Seconds: 2, Done: 100, Opened: 100}
		}, 0, true},
		{"interrupts unknown", func(m *Measured) {
			m.Ledger.CPU.Lines = m.Ledger.CPU.Lines[:2]
			m.Ledger.CPU.Unexplained += 0.2
		}, 0.5, false},
		{"no budget", func(m *Measured) { m.Ledger.CPU.Lines = nil }, 0.5, true},
		{"a part of the machine", func(m *Measured) { m.Ledger.CPU.Part = new(2.0) }, 0.5, true},
	} {
		m := inComponents()
		m.Setup.Arms = map[string]*kind.Part{"mine": {Kind: proxies{}}}
		m.Loads = map[string]load.Result{"client": {Mode: load.Open, Seconds: 2, Done: 100, Opened: 1}}
		m.Ledger.Cgroups = append(m.Ledger.Cgroups,
			ledger.Cgroup{Path: subjectTree, CPUSeconds: new(1.7)},
			ledger.Cgroup{Path: subjectTree + "/work/server", CPUSeconds: new(0.4), Role: string(kind.Application)},
			ledger.Cgroup{Path: subjectTree + "/work/client", CPUSeconds: new(0.3), Role: string(kind.Load)})
		m.Ledger.CPU = ledger.CPU{Unexplained: -0.05, Lines: []ledger.CPULine{
			{Name: ledger.LineGroups, Seconds: 5}, {Name: ledger.LineKernel, Seconds: 0.1},
			{Name: ledger.LineInterrupts, Seconds: 0.2},
		}}
		c.change(m)
		if c.subject == 0 { // then the subject's groups use nothing
			m.Ledger.Cgroups[len(m.Ledger.Cgroups)-3].CPUSeconds = new(0.7)
		}
		values := m.Values()
		whole, told := values[requestBusy]
		if told == c.absent {
			t.Errorf("%s: %s is told: %v", c.name, requestBusy, told)
		}
		if c.absent {
			continue
		}
		sum := 0.0
		for _, one := range Metrics() {
			if one.PartOf == requestBusy {
				v, told := values[one.Name]
				if !told {
					t.Errorf("%s: %s is not told", c.name, one.Name)
				}
				sum += v
			}
		}
		if math.Abs(sum-whole) > 1e-12 {
			t.Errorf("%s: the parts are %g s, and the whole %g s", c.name, sum, whole)
		}
		if got := values["subject_cpu_seconds_per_request"]; math.Abs(got-2*c.subject/100) > 1e-12 {
			t.Errorf("%s: the subject takes %g s", c.name, got)
		}
		if proxy := m.Components()["proxy"]["subject_cpu_seconds_per_request"]; c.name == "a subject" &&
			math.Abs(proxy-0.6/100) > 1e-12 {
			t.Errorf("the proxy takes %g s", proxy)
		}
	}
}

// TestIncomplete: if programs or maps of the subject may be missing, what they use is unknown.
func TestIncomplete(t *testing.T) {
	for _, incomplete := range []bool{false, true} {
		m := inComponents()
		m.Subject.Incomplete = incomplete
		_, rate := m.BPFRate()
		_, bytes := m.MapBytes()
		if rate == incomplete || bytes == incomplete {
			t.Errorf("incomplete: %v; the eBPF time is known: %v, the bytes of maps: %v", incomplete, rate, bytes)
		}
	}
}
