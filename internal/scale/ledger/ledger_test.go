package ledger

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func line(c CPU, name string) float64 {
	for _, l := range c.Lines {
		if l.Name == name {
			return l.Seconds
		}
	}
	return math.NaN()
}

// For any input, the parts add up to the capacity and no line loses more eBPF time than it had.
func TestBudgetCloses(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		idle := rng.Float64()
		u := Usage{
			Capacity: 20, Idle: 10 * rng.Float64(), Softirq: rng.Float64(), IRQ: rng.Float64(), Steal: rng.Float64(),
			Groups: 5 * rng.Float64(), Root: rng.Float64(), Kernel: rng.Float64(), Self: 0.1 * rng.Float64(),
			InGroup: rng.IntN(2) == 0, IRQTime: rng.IntN(2) == 0, IdleInterrupts: &idle,
		}
		for range rng.IntN(5) {
			u.BPF = append(u.BPF, BPFTime{Where(rng.IntN(3)), []Context{Task, Softirq, Hardirq}[rng.IntN(3)], rng.Float64()})
		}
		c := Budget(u)
		if !c.Closes() {
			t.Fatalf("%+v: does not close: %+v", u, c)
		}
		base := u
		base.BPF = nil
		if !near(Budget(base).Attributed, c.Attributed) {
			t.Fatalf("%+v: eBPF time was counted twice: %v attributed with, %v without", u, c.Attributed,
				Budget(base).Attributed)
		}
	}
}

func TestBudgetLines(t *testing.T) {
	interrupts := 0.5
	u := Usage{
		Capacity: 20, Idle: 10, Steal: 1, Softirq: 0.7, IRQ: 0.1, Groups: 6, Root: 1.5, Kernel: 0.5, Self: 0.25,
		IdleInterrupts: &interrupts,
		BPF: []BPFTime{{InGroups, Task, 1}, {InGroups, Softirq, 0.5}, {InRoot, Task, 1.5},
			{InIdle, Softirq, 0.125}},
	}
	inTasks := Budget(u)
	for name, want := range map[string]float64{
		LineGroups: 4.5, LineRoot: 0, LineKernel: 0.25, LineBPF: 3.125, LineInterrupts: 0.375, LineSelf: 0.25,
	} {
		if got := line(inTasks, name); !near(got, want) {
			t.Errorf("interrupts in tasks' time: %s: got %v, want %v", name, got, want)
		}
	}
	if inTasks.Root == nil || !near(*inTasks.Root, 2) {
		t.Errorf("the root's tasks used %v, want 2", inTasks.Root)
	}
	without := u
	without.BPF, without.NoBPF = nil, true
	uncounted := Budget(without)
	for name, want := range map[string]float64{LineGroups: 6, LineRoot: 1.25, LineKernel: 0.5} {
		if got := line(uncounted, name); !near(got, want) {
			t.Errorf("eBPF time that nobody counted: %s: got %v, want %v", name, got, want)
		}
	}
	if len(uncounted.Lines) != len(inTasks.Lines)-1 || !near(uncounted.Attributed, inTasks.Attributed) ||
		!uncounted.Closes() {
		t.Errorf("eBPF time that nobody counted: %+v", uncounted)
	}
	without.NoRoot, without.NoKernel = true, true
	hidden := Budget(without)
	for _, l := range hidden.Lines {
		if l.Name == LineRoot || l.Name == LineKernel {
			t.Errorf("a line of what is not known: %+v", l)
		}
	}
	if hidden.Root != nil || !hidden.Closes() || !near(hidden.Unexplained, uncounted.Unexplained+1.25+0.5) {
		t.Errorf("what is not known is not in what is unexplained: %+v, with it %+v", hidden, uncounted)
	}
	without = u
	without.IdleInterrupts = nil
	unmeasured := Budget(without)
	for _, l := range unmeasured.Lines {
		if l.Name == LineInterrupts {
			t.Errorf("a line of interrupts that nothing measured: %+v", l)
		}
	}
	if !unmeasured.Closes() {
		t.Errorf("interrupts that nothing measured: %+v", unmeasured)
	}
	u.IRQTime = true
	apart := Budget(u)
	for name, want := range map[string]float64{LineGroups: 5, LineInterrupts: 0.175, LineBPF: 3.125} {
		if got := line(apart, name); !near(got, want) {
			t.Errorf("interrupts apart: %s: got %v, want %v", name, got, want)
		}
	}
	ksoftirqd := Budget(Usage{Capacity: 20, Idle: 11.4, IRQTime: true, Kernel: 8, Ksoftirqd: 8, Softirq: 8.5, IRQ: 0.1,
		BPF: []BPFTime{{InRoot, Softirq, 3}}})
	for name, want := range map[string]float64{LineKernel: 5.6, LineInterrupts: 0, LineBPF: 3} {
		if got := line(ksoftirqd, name); !near(got, want) {
			t.Errorf("programs in ksoftirqd: %s: got %v, want %v", name, got, want)
		}
	}
}

// Run time that could not be split has no separate line, because it is inside the others, and the ebpf line does not
// claim that there was none.
func TestBudgetNamesWhatWasNotSplit(t *testing.T) {
	u := Usage{Capacity: 20, Idle: 10, Groups: 8, Root: 2, NotSplit: 0.127}
	bpfLine := func(c CPU) CPULine {
		i := slices.IndexFunc(c.Lines, func(l CPULine) bool { return l.Name == LineBPF })
		return c.Lines[i]
	}
	c := Budget(u)
	if c.BPFUnsplit == nil || *c.BPFUnsplit != 0.127 || bpfLine(c).Method != MethodNone || bpfLine(c).Seconds != 0 {
		t.Errorf("nothing was split: %+v", c)
	}
	if !c.Closes() || !near(c.Attributed, 10) || !near(line(c, LineGroups), 8) {
		t.Errorf("what could not be split was taken from a line or counted twice: %+v", c)
	}
	u.BPF = []BPFTime{{InGroups, Task, 1}}
	if c := Budget(u); *c.BPFUnsplit != 0.127 || bpfLine(c) != (CPULine{LineBPF, 1, MethodBoth}) || !c.Closes() {
		t.Errorf("a part was split: %+v", c)
	}
	u.BPF, u.NotSplit = nil, 0
	if c := Budget(u); c.BPFUnsplit == nil || *c.BPFUnsplit != 0 || bpfLine(c).Method != MethodBoth {
		t.Errorf("nothing ran: %+v", c)
	}
	u.NoBPF = true
	if c := Budget(u); c.BPFUnsplit != nil {
		t.Errorf("nobody counted, and %g s were not split", *c.BPFUnsplit)
	}
}

// Time stolen from an idle CPU is counted both as idle and as steal: it is subtracted once, whatever the bounds.
func TestBudgetTakesStolenIdleTimeOutOnce(t *testing.T) {
	stolen, off := 0.84, 0.02
	u := Usage{Capacity: 6.02, Idle: 1.13, Steal: 1.88, Root: 3.85}
	without := Budget(u)
	u.IdleStolen, u.IdleStolenError = &stolen, &off
	with := Budget(u)
	if !with.Closes() || !without.Closes() {
		t.Errorf("does not close: %+v, %+v", with, without)
	}
	if !near(with.Unexplained-without.Unexplained, stolen) || !near(with.Waited(), 1.13-stolen) || !near(with.Idle, 1.13) {
		t.Errorf("%+v", with)
	}
}

// Stolen time that the kernel charged to tasks is at most the excess over the ticks, which leave it out, at most the
// time stolen from busy CPUs, and at most the negative remainder.
func TestBudgetBoundsStolenTimeOfTasks(t *testing.T) {
	for _, c := range []struct {
		name                         string
		root, user, idle, idleStolen float64
		charged                      float64
	}{
		{"all of it", 4.4, 4, 1, 0.5, 0.4},
		{"the ticks know of a part", 4.4, 4.3, 1, 0.5, 0.1},
		{"less was stolen from busy CPUs", 5.4, 4, 1, 0.5, 1},
		{"the ticks are low as well", 4, 3, 1, 0.5, 0},
		{"too little is attributed", 3, 2, 1, 0.5, 0},
	} {
		off := 0.01
		u := Usage{Capacity: 6, Idle: c.idle, Steal: 1.5, Root: c.root, User: c.user}
		without := Budget(u)
		u.IdleStolen, u.IdleStolenError = &c.idleStolen, &off
		got := Budget(u)
		if !got.Closes() || !near(*got.ChargedStolen, c.charged) || !near(got.Unexplained, without.Unexplained+c.idleStolen) {
			t.Errorf("%s: charged %g, unexplained %g: %+v", c.name, *got.ChargedStolen, got.Unexplained, got)
		}
		if without.ChargedStolen != nil {
			t.Errorf("%s, without a witness: %+v", c.name, without)
		}
	}
}

func TestRanSeconds(t *testing.T) {
	run := 0.5
	for _, c := range []struct {
		p    Program
		want float64
		ok   bool
	}{
		{Program{}, 0, false},
		{Program{RunSeconds: &run}, 0.5, true},
		{Program{RunSeconds: &run, StolenSeconds: &Interval{Value: 0.2, Lo: 0.1, Hi: 0.3}}, 0.3, true},
		{Program{RunSeconds: &run, StolenSeconds: &Interval{Value: 0.6, Hi: 0.6}}, 0, true},
	} {
		if got, ok := c.p.RanSeconds(); !near(got, c.want) || ok != c.ok {
			t.Errorf("%+v: %v, %v", c.p, got, ok)
		}
	}
}

func TestDeriveMemory(t *testing.T) {
	v := func(n uint64) *uint64 { return &n }
	m := Memory{Current: v(1000), Anon: v(300), File: v(500), Shmem: v(100), Kernel: v(200), SlabReclaimable: v(50),
		InactiveFile: v(250)}
	m.Derive()
	if *m.Hard != 550 || *m.Soft != 450 || *m.WorkingSet != 750 {
		t.Errorf("hard %d, soft %d, working set %d", *m.Hard, *m.Soft, *m.WorkingSet)
	}
	m = Memory{Current: v(10), InactiveFile: v(20)}
	m.Derive()
	if m.Hard != nil || m.Soft != nil || *m.WorkingSet != 0 {
		t.Errorf("missing fields: hard %v, soft %v, working set %v", m.Hard, m.Soft, *m.WorkingSet)
	}
}

// TestTitle: the title of a group is the name of its container with the path below the container, or else its path.
func TestTitle(t *testing.T) {
	const pod, id = "/kubepods/pod1", "0123456789abcdef0123456789abcdef"
	const group = pod + "/" + id
	web := Name{Namespace: "shop", Pod: "web-0", Container: "nginx", ContainerID: id, Top: group}
	with := func(change func(*Name)) *Name {
		n := web
		change(&n)
		return &n
	}
	for _, c := range []struct {
		what, path string
		name       *Name
		want       string
	}{
		{"no name", group, nil, group},
		{"a container of a pod", group, &web, "shop/web-0/nginx"},
		{"a group in it", group + "/init/x", &web, "shop/web-0/nginx/init/x"},
		{"the pod", pod, &Name{Namespace: "shop", Pod: "web-0", Top: pod}, "shop/web-0"},
		{"what holds the pod open", group, with(func(n *Name) { n.Container = "(sandbox)" }), "shop/web-0/(sandbox)"},
		{"an unnamed container of a pod", group, with(func(n *Name) { n.Container = "" }), "shop/web-0/0123456789ab"},
		{"a short id", group, with(func(n *Name) { n.Container, n.ContainerID = "", "01" }), "shop/web-0/01"},
		{"a container of no pod", group, &Name{Container: "web", ContainerID: id, Top: group}, "web"},
		{"a container that is known by its id alone", group, &Name{ContainerID: id, Top: group}, group},
		{"a pod that is known by its UID alone", pod, &Name{PodUID: "1", Top: pod}, pod},
		{"a unit", "/system.slice/ssh.service", &Name{Unit: "ssh.service", Top: "/system.slice/ssh.service"},
			"/system.slice/ssh.service"},
		{"a unit that is a container", group, with(func(n *Name) { n.Unit = "x.scope" }), group},
		{"a name of another group", "/other", &web, "/other"},
	} {
		g := Cgroup{Path: c.path, Name: c.name}
		if got := g.Title(); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
		titles := (&Ledger{Cgroups: []Cgroup{g}}).Titles()
		if _, listed := titles[c.path]; titles.Of(c.path) != c.want || listed != (c.want != c.path) {
			t.Errorf("%s: titles are %q, want %q", c.what, titles, c.want)
		}
	}
}

func TestAncestors(t *testing.T) {
	for path, want := range map[string][]string{"/": {"/"}, "/a": {"/a", "/"}, "/a/b/c": {"/a/b/c", "/a/b", "/a", "/"},
		"": {"/"}} {
		var got []string
		Ancestors(path, func(p string) { got = append(got, p) })
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %v", path, got)
		}
	}
}

// The names in the JSON form are a contract: this list changes only with the schema.
func TestJSONNames(t *testing.T) {
	want := strings.Fields(`
		schema host.hostname host.kernel host.cpus host.cpu_model host.cgroup_mode host.clocksource host.sampler host.sampler_period_seconds
		host.irq_time_accounting host.tare window.start window.end window.seconds
		cpu.capacity_seconds cpu.charged_stolen_seconds cpu.idle_seconds cpu.user_seconds cpu.system_seconds cpu.softirq_seconds cpu.irq_seconds cpu.steal_seconds
		cpu.attributed_seconds cpu.unexplained_seconds cpu.lines cpu.bpf_unsplit_seconds
		cpu.idle_stolen_seconds cpu.idle_stolen_error_seconds
		programs maps cgroups
		workloads tare self.cgroup
		self.cpu_seconds self.rss_bytes self.bpf_seconds self.bpf_bytes self.stats_seconds self.sampler_seconds self.witness_seconds self.samples self.samples_lost
		noise warnings`)
	raw, err := json.Marshal(Ledger{Programs: []Program{}, Maps: []Map{}, Cgroups: []Cgroup{}, Workloads: []Workload{},
		Warnings: []Warning{}})
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	var got []string
	for name, v := range doc {
		if inner, ok := v.(map[string]any); ok {
			for sub := range inner {
				got = append(got, name+"."+sub)
			}
			continue
		}
		got = append(got, name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, c := range []struct {
		v    any
		want string
	}{
		{Share{}, "cgroup seconds lo hi samples method"},
		{Program{}, "charge workload id name type tag loaded_at owners attached run_count run_seconds ns_per_run " +
			"recursion_misses memory_bytes shares seen sampled_seconds stolen_seconds stolen_method map_ids own unloaded"},
		{Noise{}, "witness period_seconds stolen_seconds longest_stall_seconds stalls stalls_omitted occupied " +
			"occupied_omitted busiest late_looks longest_late_seconds"},
		{Stall{PID: 1, Comm: "x", Cgroup: "/"}, "cpu from_ns to_ns seconds cause idle pid comm cgroup"},
		{Occupant{}, "pid comm cgroup processes seconds"},
		{Map{}, "charge workload id name type key_bytes value_bytes max_entries bytes bytes_method charged_to held_by " +
			"inner used_by"},
		{Cgroup{}, "charge workload path role cpu_seconds bpf_seconds bpf_inside_seconds throttled_seconds " +
			"throttled_periods periods memory began"},
		{Charged{Component: "x"}, "charge workload component"},
		{Workload{}, "name cgroups gross_cpu_seconds net_cpu_seconds tare_cpu_seconds tare_bpf_seconds " +
			"tare_cgroups_cpu_seconds gross_memory_hard_bytes net_memory_hard_bytes tare_memory_hard_bytes tare_map_bytes " +
			"tare_cgroups_memory_hard_bytes notes"},
		{Tare{}, "cpu_seconds cgroups_cpu_seconds bpf_seconds bpf_unsplit_seconds cpu_twice_at_most_seconds " +
			"unassigned_cpu_seconds memory_hard_bytes unassigned_memory_hard_bytes"},
		{Memory{}, "current peak anon file shmem kernel slab_reclaimable sock inactive_file hard soft working_set"},
	} {
		raw, _ := json.Marshal(c.v)
		var doc map[string]any
		if err := json.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		names := strings.Fields(c.want)
		if len(doc) != len(names) {
			t.Errorf("%T has %d fields, want %d", c.v, len(doc), len(names))
		}
		for _, n := range names {
			if _, ok := doc[n]; !ok {
				t.Errorf("%T has no field %s", c.v, n)
			}
		}
	}
}
