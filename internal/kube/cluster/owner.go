package cluster

import (
	"cmp"
	"strings"

	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

// ownerOf returns the owner of a group.
func (w *node) ownerOf(g *ledger.Cgroup) owner {
	if w.Root != "" && g.Path != w.Root && !strings.HasPrefix(g.Path, strings.TrimSuffix(w.Root, "/")+"/") {
		return owner{side: sideElsewhere}
	}
	if n := g.Name; n != nil && (n.PodUID != "" || n.Pod != "") {
		o, _ := w.pod(n)
		if o.side == sideElsewhere {
			return o
		}
		return w.inPod(o, g)
	}
	o := w.outside(g)
	o.machine = w.machine != nil && w.Root == "" && o.pod == "" && o.side != sideElsewhere
	return o
}

// outside returns the owner of a group outside of pods.
func (w *node) outside(g *ledger.Cgroup) owner {
	switch g.Charge {
	case ledger.ChargeTare, ledger.ChargeSelf:
		component := w.m.name(g.Component)
		if g.Charge == ledger.ChargeSelf {
			component = self
		}
		if namespace, name, found := strings.Cut(g.Workload, "/"); found {
			// This is a systemd unit, or another group outside of pods, that serves one pod.
			if o, known := w.pod(&ledger.Name{Namespace: namespace, Pod: name}); known {
				if o.side != sideElsewhere {
					o.side, o.component = sidePod, component
				}
				return o
			}
		}
		return shared(component)
	case ledger.ChargeWorkload, ledger.ChargeLoad:
		return owner{side: sideNet, workload: w.m.name(g.Workload), component: ""}
	}
	if strings.Contains(g.Path, "kubepods") {
		return owner{side: sideOther, component: ended}
	}
	return owner{side: sideOther}
}

// pod returns the owner of a pod's usage, by the names that the cluster has for it. It reports whether the cluster
// knows the pod.
func (w *node) pod(n *ledger.Name) (o owner, known bool) {
	p := w.find(n)
	about := func(namespace, pod string) string {
		return w.Name + ": " + strings.TrimPrefix(w.m.name(namespace)+"/"+w.m.name(pod), "/")
	}
	switch known = p != nil; {
	case !known && w.machine != nil && w.Root == "":
		return owner{side: sideElsewhere}, false // it may be on any node of this machine
	case !known:
		name := n.Pod
		if name == "" {
			name = n.PodUID
		}
		w.m.warn("pod-unknown", about(n.Namespace, name), "the nodes have control groups of pods that the cluster does not "+
			"know: they ended, or began after the cluster was asked; their names are those on the node")
		p = &Pod{Namespace: n.Namespace, Name: name}
	case p.Node != "" && p.Node != w.Name && w.machine != nil:
		w.view.private = false
		return owner{side: sideElsewhere}, true // on another node of this machine
	case p.Node != "" && p.Node != w.Name:
		w.m.warn("pod-elsewhere", about(p.Namespace, p.Name), "the cluster says that these pods are on another node than "+
			"the one that has their control groups; they are counted where the groups are")
	case n.Pod != "" && n.Pod != p.Name || n.Namespace != "" && n.Namespace != p.Namespace:
		w.m.warn("pod-renamed", about(p.Namespace, p.Name), "the nodes and the cluster have different names for "+
			"these pods; those of the cluster are used")
	}
	if w.m.o.Match != nil && !w.m.o.Match(p) {
		return owner{namespace: OtherPods, workload: OtherPods, pod: OtherPods}, known
	}
	kind, workload := workloadOf(p)
	return owner{namespace: w.m.name(p.Namespace), kind: w.m.name(kind), workload: w.m.name(workload),
		pod: w.m.name(p.Name)}, known
}

// inPod completes the owner of a group in a pod. The side comes from the ledger, but a container that the cluster knows
// to be a sidecar is tare of its pod, unless a rule that the user wrote matched it.
func (w *node) inPod(o owner, g *ledger.Cgroup) owner {
	name, class := w.container(g.Name)
	if o.container = w.m.name(name); o.pod == OtherPods {
		o.container = ""
	}
	o.component = w.m.name(g.Component)
	switch {
	case g.Charge == ledger.ChargeSelf:
		o.side, o.component = sideShared, self
	case g.Charge == ledger.ChargeTare && g.Workload == "":
		o.side = sideShared
	case g.Charge == ledger.ChargeTare:
		o.side = sidePod
	case name == podSandbox:
		o.side, o.component = sidePod, pause
	case (class == Sidecar || class == Injected) && (g.Rule == "" || strings.HasPrefix(g.Rule, "profile ")):
		o.side, o.component = sidePod, sidecar
	default:
		o.side = sideNet
	}
	w.apply(&o, g.Name, name)
	return o
}

// apply applies the first of the user's rules that matches a container.
func (w *node) apply(o *owner, n *ledger.Name, container string) {
	p := w.find(n)
	if len(w.m.o.Rules) == 0 || p == nil || o.component == self {
		return
	}
	kind, workload := workloadOf(p)
	name := &ledger.Name{Namespace: p.Namespace, Pod: p.Name, Container: container, Labels: p.Labels}
	for i := range w.m.o.Rules {
		r := &w.m.o.Rules[i]
		if !r.MatchesPod(name, kind, workload) || r.Container == "" && o.side == sidePod {
			continue
		}
		w.m.applied[i] = true
		switch {
		case r.Charge != ledger.ChargeTare:
			o.side, o.component = sideNet, ""
		case r.Container != "":
			o.side, o.component = sidePod, w.m.name(cmp.Or(r.Component, sidecar))
		default:
			o.side, o.component = sideShared, w.m.name(cmp.Or(r.Component, infrastructure))
		}
		return
	}
}

// workloadOf returns the workload of a pod, which is the pod itself if it has no owner.
func workloadOf(p *Pod) (kind, name string) {
	if p.Owner == "" {
		return "Pod", p.Name
	}
	return p.OwnerKind, p.Owner
}

// OwnedBy reports whether a pattern matches the pod's workload, as owner= in a rule does.
func (p *Pod) OwnedBy(pattern string) bool {
	kind, name := workloadOf(p)
	return charge.MatchOwner(pattern, kind, name)
}

// container returns the name of a container and, if the cluster knows it, its class.
func (w *node) container(n *ledger.Name) (name string, class Class) {
	if p := w.find(n); p != nil && (n.Container != "" || n.ContainerID != "") {
		for _, c := range p.Containers {
			if c.Name == n.Container || c.ID != "" && c.ID == n.ContainerID {
				return c.Name, c.Class
			}
		}
	}
	return cmp.Or(n.Container, n.ContainerID[:min(len(n.ContainerID), 12)]), ""
}

// find returns the pod to which a group belongs; nil if the cluster does not know it. Group names of systemd have
// underscores in the UID.
func (w *node) find(n *ledger.Name) *Pod {
	if n.PodUID == "" {
		return w.m.byName[[2]string{n.Namespace, n.Pod}]
	}
	if p := w.m.byUID[n.PodUID]; p != nil {
		return p
	}
	return w.m.byUID[strings.ReplaceAll(n.PodUID, "_", "-")]
}
