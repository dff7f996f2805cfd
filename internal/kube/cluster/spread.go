package cluster

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
)

// SharedContainer is the container name of the usage that was spread over a pod.
const SharedContainer = "(shared)"

// spread distributes what serves a node over the pods of its workloads, each figure in proportion to the pods' gross of
// that figure. Each part keeps its component. Running totals are rounded down, so that the parts add up exactly.
func spread(cells map[owner]*account) {
	var pods []owner
	weights := map[owner]*metrics{}
	var all metrics
	for o, cell := range cells {
		if o.side != sideNet && o.side != sidePod {
			continue
		}
		pod := owner{side: sidePod, namespace: o.namespace, kind: o.kind, workload: o.workload, pod: o.pod,
			container: SharedContainer}
		if weights[pod] == nil {
			weights[pod] = &metrics{}
			pods = append(pods, pod)
		}
		for f, n := range cell.gross() {
			weights[pod][f] += n
		}
	}
	slices.SortFunc(pods, func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind),
			cmp.Compare(a.workload, b.workload), cmp.Compare(a.pod, b.pod))
	})
	for _, pod := range pods {
		for f := range figures {
			weights[pod][f] = max(weights[pod][f], 0)
			all[f] += weights[pod][f]
		}
	}
	all[bpf] = all[cpu] // eBPF time is included in CPU time, and is spread with it
	for _, from := range slices.Collect(maps.Keys(cells)) {
		if from.side != sideShared {
			continue
		}
		for _, f := range []int{cpu, bpf, hard, soft, workingSet} {
			n := cells[from].sums[f][sideShared]
			if all[f] == 0 || n <= 0 {
				continue
			}
			var upTo, given int64
			for _, pod := range pods {
				if upTo += weights[pod][weightOf(f)]; upTo == 0 {
					continue
				}
				part := scaled(n, upTo, all[f]) - given
				given += part
				to := pod
				to.component = from.component
				if cells[to] == nil {
					cells[to] = &account{}
				}
				cells[to].add(f, sidePod, part)
			}
			cells[from].add(f, sideShared, -given)
		}
	}
}

// weightOf returns the figure in proportion to which another is spread.
func weightOf(figure int) int {
	if figure == bpf {
		return cpu
	}
	return figure
}

// scaled returns n x part / of, rounded down. part must not exceed of.
func scaled(n, part, of int64) int64 {
	high, low := bits.Mul64(uint64(n), uint64(part))
	q, _ := bits.Div64(high, low, uint64(of))
	return int64(q)
}
