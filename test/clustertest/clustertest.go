// Package clustertest provides nodes, pods and ledgers for tests of a cluster's account.
package clustertest

import (
	"fmt"
	"time"

	"tare/internal/kube/cluster"
	"tare/internal/scale/ledger"
)

// Began is the start of the ledgers' window, by the clocks of the nodes.
var Began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// group returns a control group with the given CPU time in seconds and hard memory in bytes.
func group(path string, c ledger.Charged, n *ledger.Name, cpu float64, hard int64) ledger.Cgroup {
	return ledger.Cgroup{Path: path, Name: n, Charged: c, CPUSeconds: &cpu, Rule: "profile kubernetes:1 x",
		Memory: &ledger.Memory{Hard: &hard, Soft: new(hard / 2), WorkingSet: new(uint64(hard + hard/4))}}
}

func tare(component, workload string) ledger.Charged {
	return ledger.Charged{Charge: ledger.ChargeTare, Component: component, Workload: workload}
}

// Ledger returns the ledger of node i, which has the pods web (with a sidecar) and cni, a kubelet, and a session of a
// user, over 10 s on 4 CPUs.
func Ledger(i int) *ledger.Ledger {
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
		Window: ledger.Window{Start: Began, End: Began.Add(10 * time.Second), Seconds: 10},
		CPU: ledger.CPU{Capacity: 40, Idle: 28, Steal: 0.5, Attributed: 11, Unexplained: 0.5, BPFUnsplit: new(0.0),
			Lines: []ledger.CPULine{{Name: ledger.LineGroups, Seconds: 9.25}, {Name: ledger.LineRoot, Seconds: 0.25},
				{Name: ledger.LineKernel, Seconds: 0.5}, {Name: ledger.LineInterrupts, Seconds: 0.25},
				{Name: ledger.LineBPF, Seconds: 0.75}, {Name: ledger.LineSelf}}},
		Programs: []ledger.Program{{Charged: tare("cni", ""), RunSeconds: new(1.0), RunCount: new(uint64(9)),
			Shares: []ledger.Share{share(&app, 0.5), share(&idle, 0.25)}}},
		Maps:     []ledger.Map{{Charged: tare("cni", ""), ChargedTo: &app, Bytes: new(uint64(20e6))}},
		Warnings: []ledger.Warning{},
	}
	return l
}

// Pods returns the pods of the given number of nodes, the same as in the nodes' Ledgers.
func Pods(nodes int) (all []cluster.Pod) {
	for i := range nodes {
		all = append(all, cluster.Pod{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("uid-web-%d", i),
			Node: Name(i), OwnerKind: "Deployment", Owner: "web",
			Containers: []cluster.Container{{Name: "app", Class: cluster.App}, {Name: "proxy", Class: cluster.Injected}}},
			cluster.Pod{Namespace: "kube-system", Name: fmt.Sprintf("cilium-%d", i), UID: fmt.Sprintf("uid-cilium-%d", i),
				Node: Name(i), OwnerKind: "DaemonSet", Owner: "cilium",
				Containers: []cluster.Container{{Name: "agent", Class: cluster.App}}})
	}
	return all
}

// Name returns the name of node i.
func Name(i int) string { return fmt.Sprintf("node-%d", i) }

func resources(cpus float64, memory int64) cluster.Resources {
	return cluster.Resources{CPUs: &cpus, MemoryBytes: &memory}
}

// Node returns node i with the given ledger. The node's clock is half a second fast.
func Node(i int, l *ledger.Ledger) *cluster.Node {
	return &cluster.Node{Name: Name(i), Ledger: l,
		Clock:    cluster.Clock{OffsetSeconds: new(0.5), UncertaintySeconds: new(0.001)},
		Capacity: resources(4, 16e9), Allocatable: resources(3.9, 15e9)}
}

// Merged returns the account of a cluster of n nodes with their Pods and Ledgers.
func Merged(o cluster.Options, n int) *cluster.Cluster {
	o.Containers = true
	m := cluster.New(Pods(n), o)
	for i := range n {
		m.Add(Node(i, Ledger(i)))
	}
	return m.Finish()
}
