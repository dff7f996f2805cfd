package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"tare/internal/kube/cluster"
)

// Node is a node as the cluster describes it.
type Node struct {
	Name                  string
	Machine               string // boot ID of its machine, or the node's name if that is unknown
	Hardware              string // system UUID or machine ID, which a reboot does not change; empty if unknown
	OS                    string // value of the label kubernetes.io/os
	Ready                 bool
	Schedulable           bool // it accepts pods without tolerations
	Labels                map[string]string
	Kernel, Runtime       string
	Capacity, Allocatable cluster.Resources
}

// Nodes returns all nodes, sorted by name.
func (c *Cluster) Nodes(ctx context.Context) (nodes []Node, err error) {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.core.Nodes().List(ctx, o)
	}
	err = each(ctx, list, "", func(n *api.Node) {
		info := &n.Status.NodeInfo
		nodes = append(nodes, Node{
			Name: n.Name, Machine: cmp.Or(info.BootID, n.Name), Hardware: cmp.Or(info.SystemUUID, info.MachineID),
			OS: info.OperatingSystem,
			Ready: slices.ContainsFunc(n.Status.Conditions, func(c api.NodeCondition) bool {
				return c.Type == api.NodeReady && c.Status == api.ConditionTrue
			}),
			Schedulable: !n.Spec.Unschedulable && !slices.ContainsFunc(n.Spec.Taints, func(t api.Taint) bool {
				return t.Effect != api.TaintEffectPreferNoSchedule
			}),
			Labels: n.Labels, Kernel: info.KernelVersion, Runtime: info.ContainerRuntimeVersion,
			Capacity: resources(n.Status.Capacity), Allocatable: resources(n.Status.Allocatable),
		})
	})
	if err != nil {
		return nil, refused(err, "listing nodes")
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// Matches reports whether a selector matches the labels of the node.
func (n *Node) Matches(selector string) (bool, error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return false, fmt.Errorf("%q is not a selector of labels: %w", selector, err)
	}
	return s.Matches(labels.Set(n.Labels)), nil
}

func resources(l api.ResourceList) (r cluster.Resources) {
	if q, ok := l[api.ResourceCPU]; ok {
		r.CPUs = new(q.AsApproximateFloat64())
	}
	if q, ok := l[api.ResourceMemory]; ok {
		r.MemoryBytes = new(q.Value())
	}
	return r
}

// Pods returns all pods that have a node.
func (c *Cluster) Pods(ctx context.Context) (pods []cluster.Pod, err error) {
	err = c.eachPod(ctx, "", "", func(p *api.Pod) {
		if p.Spec.NodeName != "" {
			pods = append(pods, podOf(p))
		}
	})
	return pods, err
}

// Annotations in which other components describe a pod.
const (
	mirrorOf    = "kubernetes.io/config.mirror" // by the kubelet: UID on the node of the static pod that this one mirrors
	istioStatus = "sidecar.istio.io/status"     // by Istio's injector: the containers that it added
	meshStatus  = "mesh.tare/status"            // by Tare's injector: the same (docs/injection.md)
)

func podOf(p *api.Pod) cluster.Pod {
	pod := cluster.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName,
		Labels: p.Labels}
	if o := metav1.GetControllerOf(p); o != nil && o.Kind == "Node" {
		pod.ConfigHash = p.Annotations[mirrorOf]
	}
	pod.OwnerKind, pod.Owner = workloadOf(p)
	var by [2]struct{ Containers, InitContainers []string }
	for i, key := range []string{istioStatus, meshStatus} {
		_ = json.Unmarshal([]byte(p.Annotations[key]), &by[i]) // invalid JSON names no containers
	}
	ids := map[string]string{}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		_, ids[c.Name], _ = strings.Cut(c.ContainerID, "://")
	}
	add := func(name string, class cluster.Class, injected ...[]string) {
		if class != cluster.Sidecar && slices.Contains(slices.Concat(injected...), name) {
			class = cluster.Injected
		}
		pod.Containers = append(pod.Containers, cluster.Container{Name: name, ID: ids[name], Class: class})
	}
	for i := range p.Spec.InitContainers {
		class := cluster.Init
		if r := p.Spec.InitContainers[i].RestartPolicy; r != nil && *r == api.ContainerRestartPolicyAlways {
			class = cluster.Sidecar
		}
		add(p.Spec.InitContainers[i].Name, class, by[0].InitContainers, by[1].InitContainers)
	}
	for i := range p.Spec.Containers {
		add(p.Spec.Containers[i].Name, cluster.App, by[0].Containers, by[1].Containers)
	}
	return pod
}

// scheduled matches the names of a CronJob's Jobs, which end in the minute for which they were scheduled, counted from
// 1970. Names of other Jobs may end in as many digits, such as those of a date.
var scheduled = regexp.MustCompile(`^(.+)-(\d{8})$`)

// maxWait is how long after that minute a pod may be created: a Job may be suspended, and pods that fail are replaced.
const maxWait = 30 * 24 * time.Hour

// workloadOf returns the workload to which a pod belongs, as the user deployed it: a Deployment rather than its
// ReplicaSet, whose name ends in a hash that is also a label of its pods. The kubelet's own pods belong to no workload.
func workloadOf(p *api.Pod) (kind, name string) {
	o := metav1.GetControllerOf(p)
	switch {
	case o == nil || o.Kind == "Node":
		return "", ""
	case o.Kind == "ReplicaSet":
		hash := "-" + p.Labels["pod-template-hash"]
		if short, found := strings.CutSuffix(o.Name, hash); found && len(hash) > 1 {
			return "Deployment", short
		}
	case o.Kind == "Job":
		if m := scheduled.FindStringSubmatch(o.Name); m != nil {
			minutes, _ := strconv.ParseInt(m[2], 10, 64) // 8 digits
			if wait := p.CreationTimestamp.Sub(time.Unix(60*minutes, 0)); wait > -time.Hour && wait < maxWait {
				return "CronJob", m[1]
			}
		}
	}
	return o.Kind, o.Name
}
