package cluster

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// group is a control group with its figures.
func group(path string, c ledger.Charged, n *ledger.Name, cpu float64, hard int64) ledger.Cgroup {
	return ledger.Cgroup{Path: path, Name: n, Charged: c, CPUSeconds: &cpu, Rule: "profile kubernetes:1 x",
		Memory: &ledger.Memory{Hard: &hard, Soft: new(hard / 2), WorkingSet: new(uint64(hard + hard/4))}}
}

func tare(component, workload string) ledger.Charged {
	return ledger.Charged{Charge: ledger.ChargeTare, Component: component, Workload: workload}
}

// nodeLedger is the ledger of a node that has the pods web (with a sidecar) and cni, a kubelet, and a session of a user.
// It has 4 CPUs and 10 s.
func nodeLedger(i int) *ledger.Ledger {
	shop := ledger.Charged{Charge: ledger.ChargeWorkload, Workload: fmt.Sprintf("shop/web-%d", i)}
	pod := func(namespace, name, uid, container string) *ledger.Name {
		return &ledger.Name{Namespace: namespace, Pod: name, PodUID: uid, Container: container}
	}
	web, webUID := fmt.Sprintf("web-%d", i), fmt.Sprintf("uid-web-%d", i)
	cni, cniUID := fmt.Sprintf("cilium-%d", i), fmt.Sprintf("uid-cilium-%d", i)
	groups := []ledger.Cgroup{
		group("/", ledger.Charged{}, nil, 12, 999),
		group("/kubepods", ledger.Charged{}, nil, 8.0, 1000e6),
		group("/kubepods/web", shop, pod("shop", web, webUID, ""), 6.5, 700e6),
		group("/kubepods/web/app", shop, pod("shop", web, webUID, "app"), 4.25, 500e6),
		group("/kubepods/web/proxy", shop, pod("shop", web, webUID, "proxy"), 2, 180e6),
		group("/kubepods/web/pause", tare("pause", shop.Workload), pod("shop", web, webUID, "(sandbox)"), 0.125, 1e6),
		group("/kubepods/cilium", tare("cni", ""), pod("kube-system", cni, cniUID, ""), 1, 200e6),
		group("/kubepods/cilium/agent", tare("cni", ""), pod("kube-system", cni, cniUID, "agent"), 0.875, 190e6),
		group("/system.slice", tare("node", ""), nil, 1.5, 400e6),
		group("/system.slice/kubelet", tare("kubelet", ""), nil, 1, 300e6),
		group("/user.slice", ledger.Charged{}, nil, 0.25, 50e6),
	}
	app, idle := "/kubepods/web/app", "(idle)"
	share := func(cgroup *string, seconds float64) ledger.Share {
		return ledger.Share{Cgroup: cgroup, Context: ledger.Task, Seconds: seconds, Method: ledger.Sampled}
	}
	l := &ledger.Ledger{Schema: ledger.Schema, Cgroups: groups, Host: ledger.Host{CPUs: 4},
		Window: ledger.Window{Start: began, End: began.Add(10 * time.Second), Seconds: 10},
		CPU: ledger.CPU{Capacity: 40, Idle: 28, Steal: 0.5, Attributed: 11, Unexplained: 0.5, BPFUnsplit: new(0.0),
			Lines: []ledger.CPULine{{Name: ledger.LineGroups, Seconds: 9.25}, {Name: ledger.LineRoot, Seconds: 0.25},
				{Name: ledger.LineKernel, Seconds: 0.5}, {Name: ledger.LineInterrupts, Seconds: 0.25},
				{Name: ledger.LineBPF, Seconds: 0.75}, {Name: ledger.LineSelf}}},
		Programs: []ledger.Program{{Charged: tare("cni", ""), RunSeconds: new(1.0), RunCount: new(uint64(9)),
			Shares: []ledger.Share{share(&app, 0.5), share(&idle, 0.25)}}},
		Maps: []ledger.Map{{Charged: tare("cni", ""), ChargedTo: &app, Bytes: new(uint64(20e6))}}, Warnings: []ledger.Warning{},
	}
	return l
}

func podsOf(nodes int) (all []Pod) {
	for i := range nodes {
		all = append(all, Pod{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("uid-web-%d", i),
			Node: nodeName(i), OwnerKind: "Deployment", Owner: "web",
			Containers: []Container{{"app", App}, {"proxy", Injected}}},
			Pod{Namespace: "kube-system", Name: fmt.Sprintf("cilium-%d", i), UID: fmt.Sprintf("uid-cilium-%d", i),
				Node: nodeName(i), OwnerKind: "DaemonSet", Owner: "cilium", Containers: []Container{{"agent", App}}})
	}
	return all
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func resources(cpus float64, memory int64) Resources { return Resources{&cpus, &memory} }

func nodeOf(i int, l *ledger.Ledger) *Node {
	return &Node{Name: nodeName(i), Ledger: l, Clock: Clock{new(0.5), new(0.001)}, Capacity: resources(4, 16e9),
		Allocatable: resources(3.9, 15e9)}
}

// merged is the account of n such nodes.
func merged(o Options, n int) *Cluster {
	o.Containers = true
	m := New(podsOf(n), o)
	for i := range n {
		m.Add(nodeOf(i, nodeLedger(i)))
	}
	return m.Finish()
}

// splits are the figures of a usage.
func splits(u *Usage) []Split { return []Split{u.CPU, u.CPUs, u.BPF, u.Hard, u.Soft, u.WorkingSet} }

// addsUp fails unless gross = net + tare in each row, and each view adds up to the total, in whole nanoseconds and bytes.
func addsUp(t *testing.T, c *Cluster) {
	t.Helper()
	units := func(v float64, figure int) int64 {
		if figure <= bpf {
			v *= 1e9
		}
		return int64(math.Round(v))
	}
	for _, view := range Views() {
		var sums [figures][2]int64
		for _, r := range c.By(view) {
			for f, s := range splits(&r.Usage) {
				sums[f][0] += units(s.NetAtLeast, f)
				sums[f][1] += units(s.TareAtLeast, f)
				if s.Gross != nil && s.Net != nil && units(*s.Gross, f) != units(*s.Net, f)+units(*s.Tare, f) {
					t.Errorf("%s %+v: figure %d: gross %v is not %v + %v", view, r, f, *s.Gross, *s.Net, *s.Tare)
				}
			}
		}
		for f, s := range splits(&c.Total) {
			if want := [2]int64{units(s.NetAtLeast, f), units(s.TareAtLeast, f)}; sums[f] != want {
				t.Errorf("by %s, figure %d adds up to %v, and the total is %v", view, f, sums[f], want)
			}
		}
	}
	sum := c.Capacity.Idle + c.Capacity.Steal + c.Capacity.Attributed + c.Capacity.Unexplained
	if math.Abs(sum-c.Capacity.Capacity) > 1e-9*sum {
		t.Errorf("the budget has %v of %v s", sum, c.Capacity.Capacity)
	}
	if got := c.Total.CPU.GrossAtLeast(); math.Abs(got-c.Capacity.Attributed) > 1e-9*sum {
		t.Errorf("%v s are in the total, and %v s are attributed", got, c.Capacity.Attributed)
	}
}

func at(rows []Row, where func(*Row) bool) *Row {
	i := slices.IndexFunc(rows, func(r Row) bool { return where(&r) })
	if i < 0 {
		return &Row{}
	}
	return &rows[i]
}

// is fails unless a split has these parts.
func is(t *testing.T, what string, s Split, net, tare float64) {
	t.Helper()
	if s.Net == nil || s.Tare == nil || math.Abs(*s.Net-net) > 1e-9 || math.Abs(*s.Tare-tare) > 1e-9 {
		t.Errorf("%s: net %v and tare %v, want %v and %v", what, s.NetAtLeast, s.TareAtLeast, net, tare)
	}
}

func TestMerge(t *testing.T) {
	c := merged(Options{Start: began.Add(-500 * time.Millisecond), End: began.Add(9500 * time.Millisecond)}, 3)
	addsUp(t, c)
	if c.Asked != 3 || c.Answered != 3 || len(c.Warnings) > 0 {
		t.Errorf("%d of %d answered, warnings %+v", c.Answered, c.Asked, c.Warnings)
	}
	web := at(c.Workloads, func(r *Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3*(6.5-2-0.125-0.5), 3*(2+0.125+0.5))
	is(t, "web's memory", web.Hard, 3*(700e6-180e6-1e6-20e6), 3*(180e6+1e6+20e6))
	for component, seconds := range map[string]float64{"sidecar": 2, "pause": 0.125, "cni": 1 + 0.5 + 0.25, "kubelet": 1,
		"node": 0.5, kernelThreads: 0.5, rootProcesses: 0.25, interrupts: 0.25} {
		r := at(c.Components, func(r *Row) bool { return r.Component == component })
		is(t, component, r.CPU, 0, 3*seconds)
	}
	app := at(c.Containers, func(r *Row) bool { return r.Pod == "web-1" && r.Container == "app" })
	is(t, "the container app", app.CPU, 3.75, 0.5)
	is(t, "its eBPF", app.BPF, 0, 0.5)
	if r := at(c.Namespaces, func(r *Row) bool { return r.Namespace == "kube-system" }); *r.CPU.Shared != 3 {
		t.Errorf("kube-system has %+v", r.CPU)
	}
	r := c.Nodes[0].Reserve
	if used := 1.5 + 0.25 + 0.5 + 0.25 + 0.25; math.Abs(*r.Used.CPUs-used/10) > 1e-9 || math.Abs(*r.Suggested.CPUs-0.42) > 1e-9 ||
		math.Abs(*r.Reserved.CPUs-0.1) > 1e-9 || *r.Reserved.MemoryBytes != 1e9 || *r.Used.MemoryBytes != 500e6 {
		t.Errorf("reserve: %v", lists.Map([]Resources{r.Used, r.Suggested, r.Reserved}, func(x Resources) string {
			return fmt.Sprint(*x.CPUs, *x.MemoryBytes)
		}))
	}
}
