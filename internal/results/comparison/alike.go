package comparison

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
)

// Apart returns the differences between two runs that rule out a comparison of their results; none if the runs are
// comparable. What is measured may differ, because that is what a comparison is about, and so may the length of the
// runs. A property that is known for only one of the runs counts as different. So does a machine with an unknown host
// name or kernel, and a cluster with unknown nodes.
func Apart(a, b record.Run) (reasons []string) {
	differ := func(what, x, y string) {
		if x != y {
			reasons = append(reasons, fmt.Sprintf("%s: %s and %s", what, cmp.Or(x, "unknown"), cmp.Or(y, "unknown")))
		}
	}
	differ("the experiment", a.Experiment, b.Experiment)
	differ("the baseline", a.Baseline, b.Baseline)
	x, y := a.Environment, b.Environment
	differ("the machine", x.Hostname, y.Hostname)
	differ("the kernel", x.Kernel, y.Kernel)
	differ("the CPU", fmt.Sprintf("%d x %s", x.CPUs, x.CPUModel), fmt.Sprintf("%d x %s", y.CPUs, y.CPUModel))
	differ("its memory in GB", gigabytes(x.MemoryBytes), gigabytes(y.MemoryBytes))
	differ("the virtualization", x.Virtual, y.Virtual)
	differ("the control groups", x.CgroupMode, y.CgroupMode)
	differ("the clock", x.Clocksource, y.Clocksource)
	differ("the CPU frequency governor", x.Governor, y.Governor)
	if x.Hostname == "" || x.Kernel == "" {
		reasons = append(reasons, "the machine: not known of either")
	}
	switch names, known := OtherNodes(x, y); {
	case len(names) > 0:
		reasons = append(reasons, "the machines of the cluster: "+strings.Join(analysis.FirstOf(names, maxNames), ", "))
	case !known:
		reasons = append(reasons, "the cluster: not known whether it is the same")
	}
	differ("the nodes", nodesOf(a), nodesOf(b))
	if names := redefined(a, b); len(names) > 0 {
		reasons = append(reasons, "the definitions of "+strings.Join(names, ", "))
	}
	if keys := respecified(a.Spec, b.Spec); len(keys) > 0 {
		reasons = append(reasons, "the spec: "+strings.Join(keys, ", "))
	}
	return reasons
}

// OtherNodes returns the names of the nodes that two runs in clusters do not have in common: either only one of the
// runs had a node of that name, or the node was a different machine. known is false if a record does not identify all
// machines. If one of the runs was not in a cluster, OtherNodes returns no names, and known is true.
func OtherNodes(x, y record.Environment) (names []string, known bool) {
	if !x.InCluster() || !y.InCluster() {
		return nil, true
	}
	if len(x.ClusterNodes) == 0 || len(y.ClusterNodes) == 0 {
		return nil, false
	}
	known = true
	all := maps.Clone(x.ClusterNodes)
	maps.Copy(all, y.ClusterNodes)
	for name := range lists.ByKey(all) {
		a, inX := x.ClusterNodes[name]
		b, inY := y.ClusterNodes[name]
		if !inX || !inY || a != b {
			names = append(names, name)
		}
		known = known && a != "" && b != ""
	}
	return names, known
}

// gigabytes rounds a size to gigabytes: different kernels reserve different amounts on the same machine.
func gigabytes(bytes uint64) string { return fmt.Sprintf("%.0f", float64(bytes)/1e9) }

// nodesOf describes the nodes of a run.
func nodesOf(r record.Run) string {
	if r.Nodes == nil {
		return "none"
	}
	text := fmt.Sprintf("%d, local %v, %g CPUs each", r.Nodes.Count, r.Nodes.Local, r.Nodes.CPUs)
	for _, n := range r.Nodes.Nodes {
		text += fmt.Sprintf(", %s (%s, %d CPUs)", n.Hostname, n.Kernel, n.CPUs)
	}
	return text
}

// Mixed returns what differs between runs that are supposed to be repeats of the same thing; empty if nothing does.
func Mixed(runs []record.Run) string {
	for _, r := range runs[1:] {
		switch {
		case !reflect.DeepEqual(r.Environment.Subjects, runs[0].Environment.Subjects):
			return "the versions of what was weighed"
		case !reflect.DeepEqual(armsOf(r.Spec), armsOf(runs[0].Spec)):
			return "their arms"
		}
	}
	return ""
}

func armsOf(spec json.RawMessage) any {
	var s struct {
		Arms any `json:"arms"`
	}
	if json.Unmarshal(spec, &s) != nil {
		return nil
	}
	return s.Arms
}

// maxNames is the maximum number of nodes, or of redefined metrics, that a reason names.
const maxNames = 4

// redefined returns the metrics that both runs define, but in different ways. Descriptions and presentation do not
// count, nor do metrics whose rule changed: Compare leaves these out.
func redefined(a, b record.Run) (names []string) {
	was := a.Defined()
	for _, d := range b.Metrics {
		o, has := was[d.Name]
		if has && o.Rule == d.Rule && (o.Unit != d.Unit || o.Pool != d.Pool || o.Better != d.Better ||
			o.Histogram != d.Histogram || o.Quantile != d.Quantile || o.Per != d.Per || o.Undisturbed != d.Undisturbed) {
			names = append(names, d.Name)
		}
	}
	return analysis.FirstOf(names, maxNames)
}

// free lists the keys of a spec that may differ between compared runs: they set what is measured, for how long, and how
// the results are judged.
var free = []string{
	"arms", "assert", "blocks", "factors", "gates", "name", "needs", "precision", "question", "quick", "repeat", "until",
}

// Conditions returns the keys of a spec in JSON that must not differ between compared runs: the conditions under which
// its arms ran.
func Conditions(spec json.RawMessage) (keys map[string]any, err error) {
	if err := json.Unmarshal(spec, &keys); err != nil {
		return nil, err
	}
	maps.DeleteFunc(keys, func(key string, _ any) bool { return slices.Contains(free, key) })
	return keys, nil
}

// respecified returns the keys in which two specs differ but must not.
func respecified(a, b json.RawMessage) (keys []string) {
	x, errX := Conditions(a)
	y, errY := Conditions(b)
	if errX != nil || errY != nil {
		return []string{"not known"}
	}
	for key := range x {
		if !reflect.DeepEqual(x[key], y[key]) {
			keys = append(keys, key)
		}
	}
	for key := range y {
		if _, both := x[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
