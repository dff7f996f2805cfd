package cluster_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"tare/internal/kube/cluster"
	"tare/internal/kube/cluster/clustertest"
	"tare/internal/lib/lists"
)

// splits are the figures of a usage.
func splits(u *cluster.Usage) []cluster.Figure { return u.Figures() }

// addsUp fails unless gross = net + tare in each row, and each view adds up to the total, in whole nanoseconds and bytes.
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
				sums[f][0] += units(s.NetKnown, f)
				sums[f][1] += units(s.TareKnown, f)
				if s.Gross != nil && s.Net != nil && units(*s.Gross, f) != units(*s.Net, f)+units(*s.Tare, f) {
					t.Errorf("%s %+v: figure %d: gross %v is not %v + %v", view, r, f, *s.Gross, *s.Net, *s.Tare)
				}
			}
		}
		for f, s := range splits(&c.Total) {
			if want := [2]int64{units(s.NetKnown, f), units(s.TareKnown, f)}; sums[f] != want {
				t.Errorf("by %s, figure %d adds up to %v, and the total is %v", view, f, sums[f], want)
			}
		}
	}
	sum := c.Capacity.Idle + c.Capacity.Steal + c.Capacity.Attributed + c.Capacity.Unexplained
	if math.Abs(sum-c.Capacity.Capacity) > 1e-9*sum {
		t.Errorf("the budget has %v of %v s", sum, c.Capacity.Capacity)
	}
	if got := c.Total.CPU.GrossKnown(); math.Abs(got-c.Capacity.Attributed) > 1e-9*sum {
		t.Errorf("%v s are in the total, and %v s are attributed", got, c.Capacity.Attributed)
	}
}

func at(rows []cluster.Row, where func(*cluster.Row) bool) *cluster.Row {
	i := slices.IndexFunc(rows, func(r cluster.Row) bool { return where(&r) })
	if i < 0 {
		return &cluster.Row{}
	}
	return &rows[i]
}

// is fails unless a split has these parts.
func is(t *testing.T, what string, s cluster.Split, net, tare float64) {
	t.Helper()
	if s.Net == nil || s.Tare == nil || math.Abs(*s.Net-net) > 1e-9 || math.Abs(*s.Tare-tare) > 1e-9 {
		t.Errorf("%s: net %v and tare %v, want %v and %v", what, s.NetKnown, s.TareKnown, net, tare)
	}
}

func TestMerge(t *testing.T) {
	c := clustertest.Merged(cluster.Options{Start: clustertest.Began.Add(-500 * time.Millisecond), End: clustertest.Began.Add(9500 * time.Millisecond)}, 3)
	addsUp(t, c)
	if c.Asked != 3 || c.Answered != 3 || len(c.Warnings) > 0 {
		t.Errorf("%d of %d answered, warnings %+v", c.Answered, c.Asked, c.Warnings)
	}
	web := at(c.Workloads, func(r *cluster.Row) bool { return r.Workload == "web" })
	is(t, "web", web.CPU, 3*(6.5-2-0.125-0.5), 3*(2+0.125+0.5))
	is(t, "web's memory", web.Hard, 3*(700e6-180e6-1e6-20e6), 3*(180e6+1e6+20e6))
	for component, seconds := range map[string]float64{"sidecar": 2, "pause": 0.125, "cni": 1 + 0.5 + 0.25, "kubelet": 1,
		"node": 0.5, "kernel threads": 0.5, "root group": 0.25, "interrupts": 0.25} {
		r := at(c.Components, func(r *cluster.Row) bool { return r.Component == component })
		is(t, component, r.CPU, 0, 3*seconds)
	}
	app := at(c.Containers, func(r *cluster.Row) bool { return r.Pod == "web-1" && r.Container == "app" })
	is(t, "the container app", app.CPU, 3.75, 0.5)
	is(t, "its eBPF", app.BPF, 0, 0.5)
	if r := at(c.Namespaces, func(r *cluster.Row) bool { return r.Namespace == "kube-system" }); *r.CPU.Shared != 3 {
		t.Errorf("kube-system has %+v", r.CPU)
	}
	r := c.Nodes[0].Reserve
	if used := 1.5 + 0.25 + 0.5 + 0.25 + 0.25; math.Abs(*r.Used.CPUs-used/10) > 1e-9 || math.Abs(*r.Suggested.CPUs-0.42) > 1e-9 ||
		math.Abs(*r.Reserved.CPUs-0.1) > 1e-9 || *r.Reserved.MemoryBytes != 1e9 || *r.Used.MemoryBytes != 500e6 {
		t.Errorf("reserve: %v", lists.Map([]cluster.Resources{r.Used, r.Suggested, r.Reserved}, func(x cluster.Resources) string {
			return fmt.Sprint(*x.CPUs, *x.MemoryBytes)
		}))
	}
}
