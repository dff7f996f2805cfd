package cluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
	"tare/test/clustertest"
)

// splits returns the figures of a usage.
func splits(u *cluster.Usage) []cluster.Figure { return u.Figures() }

// addsUp fails unless gross = net + tare in each row, each view adds up to the total, and components to their node or
// machine, in whole nanoseconds and bytes.
func addsUp(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	units := func(v float64, figure int) int64 {
		if figure < 3 {
			v *= 1e9
		}
		return int64(math.Round(v))
	}
	for _, view := range cluster.Views() {
		var sums [6][2]int64
		for _, r := range c.By(view) {
			for f, s := range splits(&r.Usage) {
				sums[f][0] += units(s.NetKnown(), f)
				sums[f][1] += units(s.TareKnown(), f)
				if s.Gross != nil && s.Net != nil && units(*s.Gross, f) != units(*s.Net, f)+units(*s.Tare, f) {
					t.Errorf("%s %+v: figure %d: gross %v is not %v + %v", view, r, f, *s.Gross, *s.Net, *s.Tare)
				}
			}
		}
		for f, s := range splits(&c.Total) {
			if want := [2]int64{units(s.NetKnown(), f), units(s.TareKnown(), f)}; sums[f] != want {
				t.Errorf("by %s, figure %d adds up to %v, and the total is %v", view, f, sums[f], want)
			}
		}
	}
	parts := func(what string, whole *cluster.Usage, parts []*cluster.Row) {
		sum := cluster.Sum(parts)
		of := splits(&sum)
		for f, s := range splits(whole) {
			if units(s.NetKnown(), f) != units(of[f].NetKnown(), f) || units(s.TareKnown(), f) != units(of[f].TareKnown(), f) {
				t.Errorf("the components of %s, figure %d: %+v, and it has %+v", what, f, of[f], s)
			}
		}
	}
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Usage != nil {
			parts(n.Name, n.Usage, n.Components)
		}
	}
	for i := range c.Machines {
		parts(c.Machines[i].Label(), &c.Machines[i].Usage, c.Machines[i].Components)
	}
	sum := c.Capacity.Idle + c.Capacity.Steal + c.Capacity.Attributed + c.Capacity.Unexplained
	if math.Abs(sum-c.Capacity.Capacity) > 1e-9*sum {
		t.Errorf("the budget has %v of %v s", sum, c.Capacity.Capacity)
	}
	if got := c.Total.CPU.GrossKnown(); math.Abs(got-c.Capacity.Attributed) > 1e-9*sum {
		t.Errorf("%v s are in the total, and %v s are attributed", got, c.Capacity.Attributed)
	}
}

func at(rows []*cluster.Row, where func(*cluster.Row) bool) *cluster.Row {
	i := slices.IndexFunc(rows, where)
	if i < 0 {
		return &cluster.Row{}
	}
	return rows[i]
}

// is fails the test unless a split has the given net and tare.
func is(t *testing.T, what string, s cluster.Split, net, tare float64) {
	t.Helper()
	if s.Net == nil || s.Tare == nil || math.Abs(*s.Net-net) > 1e-9 || math.Abs(*s.Tare-tare) > 1e-9 {
		t.Errorf("%s: net %v and tare %v, want %v and %v", what, s.NetKnown(), s.TareKnown(), net, tare)
	}
}

func TestMerge(t *testing.T) {
	began := clustertest.Began.Add(-500 * time.Millisecond) // by the asker's clock
	c := clustertest.Merged(cluster.Options{Start: began, End: began.Add(10 * time.Second)}, 3)
	addsUp(t, c)
	if c.Asked != 3 || c.Answered != 3 || len(c.Warnings) > 0 {
		t.Errorf("%d of %d answered, warnings %+v", c.Answered, c.Asked, c.Warnings)
	}
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3*(6.5-2-0.125-0.5), 3*(2+0.125+0.5))
	is(t, "web's memory", web.Hard, 3*(700e6-180e6-1e6-20e6), 3*(180e6+1e6+20e6))
	for component, seconds := range map[string]float64{"sidecar": 2, "pause": 0.125, "cni": 1 + 0.5 + 0.25, "kubelet": 1,
		"node": 0.5, "kernel threads": 0.5, "interrupts": 0.25} {
		r := at(c.Components, func(r *cluster.Row) bool { return r.Component == component })
		is(t, component, r.CPU, 0, 3*seconds)
	}
	root := at(c.Components, func(r *cluster.Row) bool { return r.Component == "root group" })
	is(t, "processes that no rule can name", root.CPU, 3*0.25, 0)
	app := at(c.Containers, func(r *cluster.Row) bool { return r.Pod == "web-1" && r.Container == "app" })
	is(t, "the container app", app.CPU, 3.75, 0.5)
	is(t, "its eBPF", app.BPF, 0, 0.5)
	if r := at(c.Namespaces, func(r *cluster.Row) bool { return r.Namespace == "kube-system" }); *r.CPU.Shared != 3 {
		t.Errorf("kube-system has %+v", r.CPU)
	}
	r := c.Nodes[0].Reserve
	used := 1.5 + 0.25 + 0.5 + 0.25
	if math.Abs(*r.Used.CPUs-used/10) > 1e-9 || math.Abs(*r.Suggested.CPUs-0.38) > 1e-9 ||
		math.Abs(*r.Reserved.CPUs-0.1) > 1e-9 || *r.Reserved.MemoryBytes != 1e9 || *r.Used.MemoryBytes != 500e6 {
		for _, x := range []cluster.Resources{r.Used, r.Suggested, r.Reserved} {
			t.Errorf("reserve: %v CPUs, %v bytes", *x.CPUs, *x.MemoryBytes)
		}
	}
}

// TestSharedMachine: nodes on one machine have their own pods, and the machine counts once.
func TestSharedMachine(t *testing.T) {
	both := func() *ledger.Ledger { // as each of the two nodes sees the machine
		l := clustertest.Ledger(0)
		for _, g := range clustertest.Ledger(1).Cgroups {
			if g.Name != nil {
				g.Path = strings.Replace(g.Path, "/kubepods/", "/kubepods/b", 1)
				l.Cgroups = append(l.Cgroups, g)
			}
		}
		*l.Cgroups[1].CPUSeconds += 7.5
		l.CPU.Attributed, l.CPU.Idle = 18.5, 20.5
		for i := range 2 { // the shims of both nodes are in the group of a service
			l.Sandboxes = append(l.Sandboxes, ledger.Sandbox{Pod: &ledger.SandboxPod{UID: fmt.Sprintf("uid-web-%d", i)},
				Components: []ledger.SandboxComponent{{Component: "shim", Charge: ledger.ChargeTare}},
				Processes:  []ledger.SandboxProcess{{Component: "shim", CPUCgroup: "/system.slice", CPU: new(0.125)}}})
		}
		return l
	}
	pods := clustertest.Pods(2)
	m := cluster.New(pods, cluster.Options{Containers: true,
		Machines: map[string]string{"node-0": "boot", "node-1": "boot"}})
	m.Add(clustertest.Node(0, both()))
	m.Add(clustertest.Node(1, both()))
	c := m.Finish()
	addsUp(t, c)
	if len(c.Warnings) > 0 || c.Capacity.CPUs != 4 || c.Capacity.Capacity != 40 || *c.Capacity.MemoryBytes != 16e9 ||
		math.Abs(c.Capacity.Unexplained-0.5) > 1e-9 {
		t.Errorf("capacity %+v, warnings %+v", c.Capacity, c.Warnings)
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if math.Abs(*n.Usage.CPU.Gross-7.625) > 1e-9 || n.Machine == nil || n.Budget != nil || n.Reserve.Used.CPUs != nil {
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	rest := c.Machines[0].Usage.CPU
	if math.Abs(*rest.Gross-3.25) > 1e-9 {
		t.Errorf("the machine's rest is %v s", *rest.Gross)
	}
	kubelet := at(c.Components, func(r *cluster.Row) bool { return r.Component == "kubelet" })
	is(t, "the kubelets", kubelet.CPU, 0, 1)                 // both nodes see them
	is(t, "the machine", rest, 0.5+0.25+0.25, 1.5+1-2*0.125) // without the shims

	// Whichever node answers first, the figures of the machine come from the node that sees most of it.
	for first := range 2 {
		part, most := clustertest.Ledger(0), both() // of a node in a container, and of one around it
		part.CPU.Idle, part.CPU.Unexplained, part.CPU.Part = 20.5, 8, new(9.75)
		if most.CPU.Part = new(17.25); first == 0 {
			most.CPU.Part = nil // this ledger covers the whole machine
		}
		nodes := []*cluster.Node{clustertest.Node(0, part), clustertest.Node(1, most)}
		m = cluster.New(pods, cluster.Options{Machines: map[string]string{"node-0": "boot", "node-1": "boot"}})
		m.Add(nodes[first])
		m.Add(nodes[1-first])
		if c = m.Finish(); math.Abs(c.Capacity.Unexplained-0.5) > 1e-9 ||
			math.Abs(*c.Total.CPU.Gross-18.5) > 1e-9 {
			t.Errorf("%v s are in the total, and %v s are unexplained", *c.Total.CPU.Gross, c.Capacity.Unexplained)
		}
	}

	// A node whose control group is known has the usage of that group, even if it is alone on its machine.
	m = cluster.New(pods, cluster.Options{Containers: true})
	n := clustertest.Node(0, clustertest.Ledger(0))
	n.Root = "/system.slice"
	m.Add(n)
	if c = m.Finish(); math.Abs(*c.Nodes[0].Usage.CPU.Gross-1.5) > 1e-9 || *c.Nodes[0].Reserve.Used.CPUs != 0.15 {
		t.Errorf("the node in a group has %+v", c.Nodes[0].Usage.CPU)
	}
	addsUp(t, c)
}

// TestContainers: nodes that are containers see nothing of each other. Their daemons all count, and so do the groups of
// pods that the cluster does not know, but interrupts and kernel threads of the machine count once.
func TestContainers(t *testing.T) {
	for first := range 2 {
		m := cluster.New(clustertest.Pods(2)[:3], cluster.Options{Containers: true,
			Machines: map[string]string{"node-0": "boot", "node-1": "boot"}})
		for i := range 2 {
			l := clustertest.Ledger((first + i) % 2)
			l.CPU.Idle, l.CPU.Unexplained, l.CPU.Part = 15, 13.5, new(9.75)
			m.Add(clustertest.Node((first+i)%2, l))
		}
		c := m.Finish()
		addsUp(t, c)
		for component, seconds := range map[string]float64{"kubelet": 2, "node": 1, "cni": 1 + 2*0.5, "kernel threads": 0.5,
			"interrupts": 0.25, "ebpf": 0.25} {
			r := at(c.Components, func(r *cluster.Row) bool { return r.Component == component })
			is(t, component, r.CPU, 0, seconds)
		}
		root := at(c.Components, func(r *cluster.Row) bool { return r.Component == "root group" })
		is(t, "processes of root groups", root.CPU, 0.5, 0)
		kubelet := at(c.Components, func(r *cluster.Row) bool { return r.Component == "kubelet" })
		is(t, "memory of the kubelets", kubelet.Hard, 0, 600e6)
		others := at(c.Components, func(r *cluster.Row) bool { return r.Component == "others on the machine" })
		is(t, "the unknown pod", others.CPU, 1, 0)
		is(t, "its memory", others.Hard, 200e6, 0)
		if got := *c.Total.CPU.Gross; math.Abs(got-21) > 1e-9 || math.Abs(c.Capacity.Unexplained-3.5) > 1e-9 {
			t.Errorf("%v s are in the total, and %v s are unexplained", got, c.Capacity.Unexplained)
		}
		if w := c.Warnings; len(w) != 1 || w[0].Code != "machine-in-part" || w[0].Count != 2 {
			t.Errorf("warnings %+v", w)
		}
	}
}

// TestSpread: the usage of what serves nodes is spread over the workloads. Sums, and what the node reserves, stay the
// same.
func TestSpread(t *testing.T) {
	lines, c := clustertest.Merged(cluster.Options{}, 3), clustertest.Merged(cluster.Options{Spread: true}, 3)
	addsUp(t, c)
	for f, s := range splits(&lines.Total) {
		got := splits(&c.Total)[f]
		// CPUs are rounded for each owner
		if math.Abs(*s.Gross-*got.Gross) > 1e-7 || math.Abs(*s.Net-*got.Net) > 1e-7 || math.Abs(*got.Shared) > 1e-7 {
			t.Errorf("%s: %v, and spread %v with %v shared", s.Name, *s.Gross, *got.Gross, *got.Shared)
		}
	}
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3*3.875, 3*(2.625+3.5))
	kubelet := at(c.Components, func(r *cluster.Row) bool { return r.Component == "kubelet" })
	is(t, "the kubelet", kubelet.CPU, 0, 3)
	if got, want := c.Nodes[0].Reserve, lines.Nodes[0].Reserve; !reflect.DeepEqual(got, want) {
		t.Errorf("reserve: %v CPUs, spread %v", *want.Used.CPUs, *got.Used.CPUs)
	}
}

// TestReserveUnknown: the usage of what serves a node is unknown, rather than 0 or little, if no rule names what runs
// outside of pods.
func TestReserveUnknown(t *testing.T) {
	for _, test := range []struct {
		name         string
		alter        func(*ledger.Ledger)
		cpus, memory bool
	}{
		{"a small session of a user", func(*ledger.Ledger) {}, true, true},
		{"agents without rules", func(l *ledger.Ledger) {
			for i := range l.Cgroups {
				l.Cgroups[i].Charged = ledger.Charged{}
			}
		}, false, false},
		{"no group outside of pods", func(l *ledger.Ledger) { l.Cgroups = l.Cgroups[:8] }, true, false},
		{"a daemon without a rule", func(l *ledger.Ledger) {
			l.Cgroups[10].Memory.WorkingSet = new(uint64(130e6)) // of 500 MB that are named
		}, true, false},
		{"a daemon that was started again", func(l *ledger.Ledger) { l.Cgroups[9].CPUSeconds = nil }, false, true},
	} {
		l := clustertest.Ledger(0)
		test.alter(l)
		m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
		m.Add(clustertest.Node(0, l))
		c := m.Finish()
		r := c.Nodes[0].Reserve
		got := []bool{r.Used.CPUs != nil, r.Suggested.CPUs != nil, r.Used.MemoryBytes != nil, r.Suggested.MemoryBytes != nil}
		if want := []bool{test.cpus, test.cpus, test.memory, test.memory}; !slices.Equal(got, want) {
			t.Errorf("%s: used and suggested CPUs and memory are known: %v, want %v", test.name, got, want)
		}
		warned := slices.ContainsFunc(c.Warnings, func(w cluster.Warning) bool { return w.Code == "reserve-unknown" })
		if warned != (!test.cpus || !test.memory) {
			t.Errorf("%s: warned %v", test.name, warned)
		}
	}
}

// TestUnknown: the CPU time of a container that ended in the window is unknown rather than 0. The total includes it,
// because the group above it counts it, but the net and tare of the total are unknown.
func TestUnknown(t *testing.T) {
	l := clustertest.Ledger(0)
	l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/kubepods/cron", Vanished: true,
		Name:    &ledger.Name{Namespace: "shop", Pod: "cron-1", PodUID: "uid-cron"},
		Charged: ledger.Charged{Charge: ledger.ChargeTare, Component: "agent"}})
	m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
	m.Add(clustertest.Node(0, l))
	c := m.Finish()
	addsUp(t, c)
	agent := at(c.Components, func(r *cluster.Row) bool { return r.Component == "agent" })
	if agent.CPU.Gross != nil || agent.CPU.Known.Missing != 1 || agent.Hard.Gross == nil || *agent.Hard.Gross != 0 {
		t.Errorf("the component has %+v and %+v", agent.CPU, agent.Hard)
	}
	if s := c.Total.CPU; s.Gross == nil || s.Net != nil || s.Tare != nil || s.Known == nil {
		t.Errorf("the total has %+v", s)
	}

	l = clustertest.Ledger(0)
	l.Cgroups[8].CPUSeconds = nil // no group above it counts its CPU time
	m = cluster.New(clustertest.Pods(1), cluster.Options{})
	m.Add(clustertest.Node(0, l))
	if s := m.Finish().Total.CPU; s.Gross != nil {
		t.Errorf("the total has %+v", s)
	}
}

// TestUnknownAbove: where the CPU time of a group is unknown and that of the groups below it is known, as after a write
// to cpuacct.usage, these count for their owners, and in the nearest group above whose CPU time is known.
func TestUnknownAbove(t *testing.T) {
	for _, test := range []struct {
		name              string
		group             int
		attributed        float64
		web, ended, total float64 // what is known of them
	}{
		{"a pod", 2, 12, 4.25 + 2 + 0.125, 8 - (4.25 + 2 + 0.125) - 1, 12},
		{"all pods", 1, 12 - 0.5, 6.5, 0, 12 - 0.5},
	} {
		l := clustertest.Ledger(0)
		l.Cgroups[test.group].CPUSeconds = nil
		l.CPU.Unexplained += l.CPU.Attributed - test.attributed
		l.CPU.Attributed = test.attributed
		m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
		m.Add(clustertest.Node(0, l))
		c := m.Finish()
		addsUp(t, c)
		web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
		ended := at(c.Components, func(r *cluster.Row) bool { return r.Component == "pods that ended" })
		for what, x := range map[string]struct {
			of   cluster.Split
			want float64
		}{"web": {web.CPU, test.web}, "pods that ended": {ended.CPU, test.ended}, "the total": {c.Total.CPU, test.total}} {
			if math.Abs(x.of.GrossKnown()-x.want) > 1e-9 {
				t.Errorf("%s: of %s, %v s are known, want %v s", test.name, what, x.of.GrossKnown(), x.want)
			}
		}
		if web.CPU.Gross != nil && test.group == 2 || c.Total.CPU.Gross != nil && test.group == 1 {
			t.Errorf("%s: web has %+v, and the total is %+v", test.name, web.CPU, c.Total.CPU)
		}
		if s := c.Total.CPU; s.TareKnown() < 0 || s.NetKnown() < 0 {
			t.Errorf("%s: the total has %+v", test.name, s.Known)
		}
	}
}

// TestUncounted: where the run time of eBPF programs was not counted, it is not a known 0.
func TestUncounted(t *testing.T) {
	for _, test := range []struct {
		name  string
		alter func(*ledger.Ledger)
		known bool
	}{
		{"without run statistics", func(l *ledger.Ledger) { l.Programs[0].RunSeconds = nil }, false},
		{"programs that cannot be read", func(l *ledger.Ledger) { l.Programs = nil }, false},
		{"no programs", func(l *ledger.Ledger) { l.Programs = []ledger.Program{} }, true},
		{"only programs of Tare", func(l *ledger.Ledger) {
			l.Programs[0].RunSeconds, l.Programs[0].Own = nil, true
		}, true},
	} {
		l := clustertest.Ledger(0)
		l.CPU.BPFUnsplit = nil
		test.alter(l)
		m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true, Spread: true})
		m.Add(clustertest.Node(0, l))
		c := m.Finish()
		addsUp(t, c)
		warned := slices.ContainsFunc(c.Warnings, func(w cluster.Warning) bool { return w.Code == "no-ebpf" })
		if known := c.Total.BPF.Gross != nil; known != test.known || warned == test.known {
			t.Errorf("%s: known %v, warned %v", test.name, known, warned)
		}
		for _, view := range cluster.Views() {
			for _, r := range c.By(view) {
				if known := r.BPF.Gross != nil; known != test.known {
					t.Errorf("%s: eBPF time of %s %+v is known: %v", test.name, view, r, known)
				}
			}
		}
	}
}

// TestRestarted: if a container was restarted, the rows of containers show neither the CPU time since the restart as
// that of the whole container, nor the CPU time before it as the pod's own. The CPU time of the whole pod is known.
func TestRestarted(t *testing.T) {
	l := clustertest.Ledger(0)
	before := l.Cgroups[3] // /kubepods/web/app
	before.Path, before.Vanished, before.CPUSeconds, before.Memory = "/kubepods/web/app-old", true, nil, nil
	l.Cgroups = append(l.Cgroups, before)
	*l.Cgroups[3].CPUSeconds = 1
	m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
	m.Add(clustertest.Node(0, l))
	c := m.Finish()
	addsUp(t, c)
	of := func(container string) *cluster.Row {
		return at(c.Containers, func(r *cluster.Row) bool { return r.Pod == "web-0" && r.Container == container })
	}
	for container, seconds := range map[string]float64{"app": 1, "": 4.25 - 1 + 0.125} {
		r := of(container)
		if r.CPU.Gross != nil || r.CPUs.Gross != nil || math.Abs(r.CPU.GrossKnown()-seconds) > 1e-9 || r.Hard.Gross == nil {
			t.Errorf("container %q has %+v", container, r.Usage)
		}
	}
	is(t, "the proxy", of("proxy").CPU, 0, 2)
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3.875, 2.625)
	if c.Total.CPU.Gross == nil || c.Nodes[0].Usage.CPU.Known != nil {
		t.Errorf("the total has %+v, and the node %+v", c.Total.CPU, c.Nodes[0].Usage.CPU)
	}
}

// TestDisagreement: where the cluster and the kernel disagree, figures follow the kernel and a warning says so.
func TestDisagreement(t *testing.T) {
	pods := clustertest.Pods(3)
	pods[0].Node = "node-2"
	pods[2].Name = "another"
	pods = slices.Delete(pods, 5, 6)
	m := cluster.New(pods, cluster.Options{Containers: true, Start: clustertest.Began,
		End: clustertest.Began.Add(10 * time.Second)})
	for i := range 3 {
		n := clustertest.Node(i, clustertest.Ledger(i))
		if n.Clock.OffsetSeconds = new(0.0); i == 1 {
			n.Clock = cluster.Clock{}
		}
		if i == 2 {
			n.Clock.OffsetSeconds = new(3.0)
			n.Ledger.Programs = nil
		}
		m.Add(n)
	}
	m.Add(&cluster.Node{Name: "node-9"})
	c := m.Finish()
	addsUp(t, c)
	var codes []string
	for _, w := range c.Warnings {
		codes = append(codes, fmt.Sprint(w.Code, " ", w.About, " ", w.Count > 0))
	}
	want := []string{
		"clock-unknown [node-1] true", "no-ebpf [node-2] true", "pod-elsewhere [node-0: shop/web-0] true",
		"pod-renamed [node-1: shop/another] true", "pod-unknown [node-2: kube-system/cilium-2] true",
		"window-apart [node-2] true",
	}
	if !slices.Equal(codes, want) {
		t.Errorf("warnings\n%q, want\n%q", codes, want)
	}
	if n := c.Nodes[3]; c.Asked != 4 || c.Answered != 3 || n.Failed == "" || n.Usage != nil {
		t.Errorf("%d of %d answered; the last is %+v", c.Answered, c.Asked, n)
	}
	r := at(c.Containers, func(r *cluster.Row) bool { return r.Pod == "another" && r.Container == "app" })
	if r.CPU.Gross == nil {
		t.Error("a pod does not have the name that the cluster has for it")
	}
}

// TestStaticPods: a static pod is found by the UID that it has on its node, and no pod takes over the UID of another.
func TestStaticPods(t *testing.T) {
	for _, at := range []int{0, 2} { // first or last among the pods
		pods := slices.Insert(clustertest.Pods(1), at, cluster.Pod{Namespace: "evil", Name: "x", UID: "uid-x",
			ConfigHash: "uid-web-0", Node: "node-0"})
		for i := range pods {
			if p := &pods[i]; p.Namespace == "kube-system" {
				p.UID, p.ConfigHash = "uid-mirror", p.UID
			}
		}
		m := cluster.New(pods, cluster.Options{Containers: true})
		m.Add(clustertest.Node(0, clustertest.Ledger(0)))
		c := m.Finish()
		addsUp(t, c)
		got := map[string]float64{}
		for _, r := range c.Namespaces {
			got[r.Namespace] = r.CPU.GrossKnown()
		}
		if got["evil"] != 0 || got["shop"] != 6.5 || got["kube-system"] != 1 || len(c.Warnings) > 0 {
			t.Errorf("by namespace: %v, warnings %+v", got, c.Warnings)
		}
	}
}

// TestMatch: pods that Match rejects are combined in shared rows, and sums stay the same.
func TestMatch(t *testing.T) {
	c := clustertest.Merged(cluster.Options{Match: func(p *cluster.Pod) bool { return p.Name == "web-1" }}, 3)
	addsUp(t, c)
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3.875, 2.625)
	for _, r := range c.Containers {
		if r.Pod != "" && r.Pod != "web-1" && r.Pod != cluster.OtherPods {
			t.Errorf("there is a row of %s", r.Pod)
		}
	}
	sidecars := at(c.Components, func(r *cluster.Row) bool { return r.Component == "sidecar" })
	is(t, "its sidecar", sidecars.CPU, 0, 2)
	others := at(c.Components, func(r *cluster.Row) bool { return r.Component == cluster.OtherPods })
	if *others.CPU.Net <= 0 || *others.CPU.Tare <= 0 {
		t.Errorf("components of other pods: %+v", others.CPU)
	}
	none := clustertest.Merged(cluster.Options{Match: func(*cluster.Pod) bool { return false }}, 3)
	for of, want := range map[*cluster.Cluster]bool{c: false, none: true} {
		got := slices.ContainsFunc(of.Warnings, func(w cluster.Warning) bool { return w.Code == "no-such-pod" })
		if got != want {
			t.Errorf("warns of no pod that was asked for: %v, want %v", got, want)
		}
	}
}

// TestSandboxes: a shim that the kernel charges to the container runtime is tare of its pod.
func TestSandboxes(t *testing.T) {
	l := clustertest.Ledger(0)
	l.Sandboxes = []ledger.Sandbox{{Pod: &ledger.SandboxPod{UID: "uid-web-0"},
		Components: []ledger.SandboxComponent{{Component: "shim", Charge: ledger.ChargeTare},
			{Component: "application", Charge: ledger.ChargeWorkload}},
		Processes: []ledger.SandboxProcess{
			{Component: "shim", CPUCgroup: "/system.slice", CPU: new(0.25)},
			{Component: "application", CPUCgroup: "/kubepods/web/app", CPU: new(4.0)},
		}}}
	m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
	m.Add(clustertest.Node(0, l))
	c := m.Finish()
	addsUp(t, c)
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3.875, 2.625+0.25)
	shim := at(c.Components, func(r *cluster.Row) bool { return r.Component == "shim" })
	if is(t, "the shim", shim.CPU, 0, 0.25); *shim.CPU.Shared != 0 {
		t.Errorf("%v s of the shim are shared", *shim.CPU.Shared)
	}
}

// TestInterrupts: if the kernel accounts interrupts separately, the run time of infrastructure's programs in interrupts
// above a pod's tasks is tare of the pod, in addition to the CPU time of its groups, and is not counted twice.
func TestInterrupts(t *testing.T) {
	l := clustertest.Ledger(0)
	l.Host.IRQTime = new(true)
	l.Programs[0].Shares[0].Context = ledger.Softirq
	l.CPU.Attributed, l.CPU.Unexplained = 11.5, 0 // the share, 0.5 s, is in addition to the CPU time of groups
	m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
	m.Add(clustertest.Node(0, l))
	c := m.Finish()
	addsUp(t, c)
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 4.375, 2.125+0.5)
	is(t, "its eBPF", web.BPF, 0, 0.5)
}

// TestNamesOfContainers: if a node's files do not name a container, the cluster does, by the container's id.
func TestNamesOfContainers(t *testing.T) {
	l, pods := clustertest.Ledger(0), clustertest.Pods(1)
	pods[0].Containers[1].ID = "0123456789abcdef"
	l.Cgroups[4].Name = &ledger.Name{PodUID: strings.ReplaceAll(pods[0].UID, "-", "_"), ContainerID: "0123456789abcdef"}
	l.Cgroups[3].Name = &ledger.Name{PodUID: pods[0].UID, ContainerID: "fedcba9876543210"}
	m := cluster.New(pods, cluster.Options{Containers: true})
	m.Add(clustertest.Node(0, l))
	c := m.Finish()
	addsUp(t, c)
	proxy := at(c.Containers, func(r *cluster.Row) bool { return r.Container == "proxy" })
	is(t, "the proxy", proxy.CPU, 0, 2)
	app := at(c.Containers, func(r *cluster.Row) bool { return r.Container == "fedcba987654" })
	is(t, "a container without a name", app.CPU, 3.75, 0.5)
}

// TestRules: a rule that a user wrote takes precedence over what the cluster knows about a container.
func TestRules(t *testing.T) {
	l := clustertest.Ledger(0)
	l.Cgroups[4].Rule = "--workload shop=container=proxy"
	m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
	m.Add(clustertest.Node(0, l))
	proxy := at(m.Finish().Containers, func(r *cluster.Row) bool { return r.Container == "proxy" })
	is(t, "the proxy", proxy.CPU, 2, 0)
}

// TestClusterRules: rules about what the cluster knows of pods, such as their owners, take precedence over those of the
// nodes.
func TestClusterRules(t *testing.T) {
	rules, err := charge.ParseClusterFile("rules.yaml", []byte(`rules:
- {charge: tare, component: edge, owner: Deployment/we*}
- {charge: workload, owner: DaemonSet/cilium}
- {charge: tare, container: nobody}`))
	if err != nil {
		t.Fatal(err)
	}
	m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true, Rules: rules})
	m.Add(clustertest.Node(0, clustertest.Ledger(0)))
	c := m.Finish()
	addsUp(t, c)
	for component, want := range map[string]float64{"edge": 4.375, "sidecar": 2, "pause": 0.125} {
		r := at(c.Components, func(r *cluster.Row) bool { return r.Component == component })
		is(t, component, r.CPU, 0, want)
	}
	cilium := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "cilium" })
	if *cilium.CPU.Net != 1 || cilium.Kind != "DaemonSet" {
		t.Errorf("%s of net %v", cilium.Kind, *cilium.CPU.Net)
	}
	if len(c.Warnings) != 1 || c.Warnings[0].Code != "rule-unused" || c.Warnings[0].About[0] != "rules.yaml:4:3" {
		t.Errorf("warnings: %+v", c.Warnings)
	}
}

// TestBounds: the numbers of nodes and rows, and the lengths of names, are bounded whatever nodes answer, and an
// impossible ledger is refused.
func TestBounds(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	many := clustertest.Ledger(1)
	for i := range 50_100 {
		many.Cgroups = append(many.Cgroups, ledger.Cgroup{Path: fmt.Sprintf("/kubepods/p%d", i), CPUSeconds: new(1e-5),
			Name:   &ledger.Name{Namespace: long, Pod: fmt.Sprint(i, long), Container: long},
			Memory: &ledger.Memory{Hard: new(int64(1)), Soft: new(int64(1)), WorkingSet: new(uint64(1))}})
	}
	huge, short := clustertest.Ledger(2), clustertest.Ledger(3)
	huge.Cgroups[3].CPUSeconds = new(1e300)
	short.Window.Seconds = 0
	m := cluster.New(nil, cluster.Options{Containers: true})
	for i, l := range []*ledger.Ledger{{}, many, huge, short} {
		m.Add(clustertest.Node(i, l))
	}
	for range cluster.MaxNodes {
		m.Add(&cluster.Node{Name: long, Failed: long})
	}
	c := m.Finish()
	addsUp(t, c)
	if c.Asked != cluster.MaxNodes || c.Answered != 1 || len(c.Containers) > 50_010 {
		t.Errorf("%d nodes of which %d answered, %d containers", c.Asked, c.Answered, len(c.Containers))
	}
	for _, r := range c.Containers {
		if len(r.Namespace)+len(r.Pod)+len(r.Container) > 3*256 {
			t.Fatal("a name is longer than one of Kubernetes")
		}
	}
	codes := ""
	for _, w := range c.Warnings {
		codes += w.Code + " "
	}
	if codes != "pod-unknown too-many-nodes too-many-owners " {
		t.Errorf("warnings %s", codes)
	}
}

// TestImpossible: figures and times with which sums would overflow, or the account could not be written, cost only the
// node that answers them.
func TestImpossible(t *testing.T) {
	for what, change := range map[string]func(l *ledger.Ledger){
		"start":       func(l *ledger.Ledger) { l.Window.Start = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) },
		"end":         func(l *ledger.Ledger) { l.Window.End = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) },
		"idle stolen": func(l *ledger.Ledger) { l.CPU.IdleStolen = new(-1e308) },
		"CPUs":        func(l *ledger.Ledger) { l.Host.CPUs = 1e9 },
		"no CPUs":     func(l *ledger.Ledger) { l.Host.CPUs = -1 },
	} {
		m := cluster.New(clustertest.Pods(3), cluster.Options{})
		m.Add(clustertest.Node(0, clustertest.Ledger(0)))
		for i := 1; i < 3; i++ {
			l, n := clustertest.Ledger(i), clustertest.Node(i, nil)
			change(l)
			n.Ledger, n.Clock.OffsetSeconds = l, new(float64(3-2*i)) // fast and slow
			m.Add(n)
		}
		c := m.Finish()
		if err := text.WriteJSON(io.Discard, c); err != nil || c.Answered != 1 || c.Capacity.CPUs != 4 {
			t.Errorf("%s: %d nodes with %v CPUs answered, error %v", what, c.Answered, c.Capacity.CPUs, err)
		}
	}
}

// TestManyCPUs: the longest window of a node with very many busy CPUs is plausible, although each level of control
// groups counts their time again.
func TestManyCPUs(t *testing.T) {
	const used = 1100 * 300 // CPUs, seconds
	l := clustertest.Ledger(0)
	l.Window.End, l.Window.Seconds, l.Host.CPUs = l.Window.Start.Add(5*time.Minute), 300, 1100
	l.CPU = ledger.CPU{Capacity: used, Attributed: used, BPFUnsplit: new(0.0),
		Lines: []ledger.CPULine{{Name: ledger.LineGroups, Seconds: used}}}
	l.Cgroups, l.Programs, l.Maps = nil, nil, nil
	name := &ledger.Name{Namespace: "shop", Pod: "web-0", PodUID: "uid-web-0", Container: "app"}
	for _, path := range []string{"/", "/kubepods", "/kubepods/burstable", "/kubepods/burstable/pod",
		"/kubepods/burstable/pod/app"} {
		g := ledger.Cgroup{Path: path, CPUSeconds: new(float64(used))}
		if strings.HasSuffix(path, "/app") {
			g.Name = name
		}
		l.Cgroups = append(l.Cgroups, g)
	}
	m := cluster.New(clustertest.Pods(1), cluster.Options{})
	m.Add(clustertest.Node(0, l))
	c := m.Finish()
	if got := c.Total.CPU.NetKnown(); c.Answered != 1 || got != used {
		t.Errorf("%d nodes answered (%s), and used %v s, want %d", c.Answered, c.Nodes[0].Failed, got, used)
	}
}

// FuzzMerge: whatever a node answers, the account adds up, and its names are bounded.
func FuzzMerge(f *testing.F) {
	for i := range 2 {
		data, err := json.Marshal(clustertest.Ledger(i))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, i == 1)
	}
	f.Fuzz(func(t *testing.T, data []byte, spread bool) {
		var l ledger.Ledger
		if json.Unmarshal(data, &l) != nil {
			return
		}
		m := cluster.New(clustertest.Pods(2), cluster.Options{Containers: true, Spread: spread})
		m.Add(clustertest.Node(0, &l))
		m.Add(clustertest.Node(1, clustertest.Ledger(1)))
		m.Add(clustertest.Node(2, &l)) // sums of two such nodes may overflow
		c := m.Finish()
		var b bytes.Buffer
		if err := text.WriteJSON(&b, c); err != nil {
			t.Fatal(err)
		}
		for _, r := range c.Containers {
			for _, name := range []string{r.Namespace, r.Workload, r.Pod, r.Container, r.Component} {
				if len(name) > 256 {
					t.Errorf("a name of %d bytes", len(name))
				}
			}
		}
		var back cluster.Cluster
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || back.Answered != c.Answered {
			t.Errorf("the account cannot be read: %v", err)
		}
		for _, view := range cluster.Views() {
			var net, tare float64
			for _, r := range c.By(view) {
				net, tare = net+r.CPU.NetKnown(), tare+r.CPU.TareKnown()
			}
			if limit := 1e-9 * (1 + math.Abs(c.Capacity.Capacity)); math.Abs(net-c.Total.CPU.NetKnown()) > limit*10 ||
				math.Abs(tare-c.Total.CPU.TareKnown()) > limit*10 {
				t.Errorf("by %s: net %v and tare %v, and in total %v and %v", view, net, tare, c.Total.CPU.NetKnown(),
					c.Total.CPU.TareKnown())
			}
		}
	})
}

// BenchmarkMerge merges 1,000 nodes with 100 pods each. It reads each ledger from JSON first.
func BenchmarkMerge(b *testing.B) {
	const nodes, perNode = 1000, 100
	for _, containers := range []bool{false, true} {
		b.Run(fmt.Sprintf("containers=%v", containers), func(b *testing.B) {
			pods, data := crowd(nodes, perNode)
			for b.Loop() {
				var peak runtime.MemStats
				m := cluster.New(pods, cluster.Options{Containers: containers})
				var merging time.Duration
				for i := range nodes {
					var l ledger.Ledger
					if err := json.Unmarshal(fmt.Appendf(nil, data, i), &l); err != nil {
						b.Fatal(err)
					}
					began := time.Now()
					m.Add(clustertest.Node(i, &l))
					merging += time.Since(began)
				}
				began := time.Now()
				c := m.Finish()
				merging += time.Since(began)
				runtime.ReadMemStats(&peak)
				b.ReportMetric(merging.Seconds(), "merge-s")
				b.ReportMetric(float64(peak.Sys)/1e6, "MB")
				if c.Answered != nodes || containers && len(c.Containers) < nodes*perNode*2 {
					b.Fatalf("%d nodes and %d containers", c.Answered, len(c.Containers))
				}
			}
		})
	}
}

// crowd returns pods, each with two containers and a sandbox, and the ledger of a node with such pods as JSON, in which
// the verb %[1]d stands for the number of the node.
func crowd(nodes, perNode int) (pods []cluster.Pod, data string) {
	for i := range nodes {
		for j := range perNode {
			pods = append(pods, cluster.Pod{Namespace: fmt.Sprintf("team-%d", j%20), Name: fmt.Sprintf("app-%d-%d", i, j),
				UID: fmt.Sprintf("uid-%d-%d", i, j), Node: clustertest.Name(i), OwnerKind: "Deployment",
				Owner:      fmt.Sprintf("app-%d", j),
				Containers: []cluster.Container{{Name: "app", Class: cluster.App}, {Name: "proxy", Class: cluster.Injected}}})
		}
	}
	l := clustertest.Ledger(0)
	l.Cgroups = l.Cgroups[:2]
	for j := range perNode {
		of := ledger.Charged{Charge: ledger.ChargeWorkload, Workload: fmt.Sprintf("team-%d/app-NODE-%d", j%20, j)}
		path := fmt.Sprintf("/kubepods/burstable/pod%d", j)
		for _, container := range []string{"", "app", "proxy", "(sandbox)"} {
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: strings.TrimSuffix(path+"/"+container, "/"), Charged: of,
				CPUSeconds: new(0.01), Rule: "profile kubernetes:1 x",
				Name: &ledger.Name{Namespace: fmt.Sprintf("team-%d", j%20), Pod: fmt.Sprintf("app-NODE-%d", j),
					PodUID: fmt.Sprintf("uid-NODE-%d", j), Container: container},
				Memory: &ledger.Memory{Hard: new(int64(1e6)), Soft: new(int64(1e6)), WorkingSet: new(uint64(2e6))}})
		}
	}
	text, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return pods, strings.ReplaceAll(string(text), "NODE", "%[1]d")
}
