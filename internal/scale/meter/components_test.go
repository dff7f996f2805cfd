package meter

import (
	"fmt"
	"math"
	"os"
	"testing"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

// Five daemons in groups that only they are in, beside what else runs, in window after window: the components add up to
// the CPU time that was attributed, with a difference of 0, and each is within 1 % of what its group's counter says,
// read before the window and after it. A daemon rests at the edges, so the two readings are of the same work.
func TestComponentsAgreeWithCounters(t *testing.T) {
	h := cpuHierarchy(t)
	top := fmt.Sprintf("/tare-test-%d", os.Getpid())
	mkdir := func(path string) string {
		dir, _ := h.Dir(path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("needs to make control groups: %v", err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		return dir
	}
	mkdir(top)
	const daemons = 5
	var dirs [daemons]string
	var workers [daemons]*worker
	for i := range daemons {
		dirs[i] = mkdir(fmt.Sprintf("%s/%d", top, i))
	}
	for i := range daemons { // after the groups, so that they end before them
		workers[i] = startWorker(t)
		workers[i].join(t, dirs[i]+"/cgroup.procs")
	}
	m := meter(t, Options{})
	worst, windows := 0.0, long.Repeat(3, 20)
	if testing.Short() { // an emulated machine works for 10 s for each daemon in a window
		windows = 1
	}
	for range windows {
		var before [daemons]cgroup.Value
		for i, dir := range dirs {
			before[i] = cgroup.CPUTime(dir)
		}
		l := ledgerOf(t, m, func() {
			for _, w := range workers {
				w.work(t)
			}
		})
		for i := range l.Cgroups {
			var n int
			if _, err := fmt.Sscanf(l.Cgroups[i].Path, top+"/%d", &n); err == nil {
				l.Cgroups[i].Charged = ledger.Charged{Charge: ledger.ChargeTare, Component: fmt.Sprint(n)}
			}
		}
		l.Settle()
		l.AddComponents()
		sum, seen := int64(0), 0
		for _, c := range l.Components {
			sum += int64(math.Round(*c.CPUSeconds * 1e9))
			var n int
			if _, err := fmt.Sscanf(c.Component, "%d", &n); err != nil {
				continue
			}
			seen++
			want := float64(cgroup.CPUTime(dirs[n]).N-before[n].N) / 1e9
			off := *c.CPUSeconds/want - 1
			worst = max(worst, math.Abs(off))
			if math.Abs(off) > 0.01 {
				t.Errorf("daemon %d used %g s, and its group counted %g", n, *c.CPUSeconds, want)
			}
		}
		if diff := sum - int64(math.Round(l.CPU.Attributed*1e9)); diff != 0 || seen != daemons {
			t.Errorf("%d daemons; the components' sum is %d ns off", seen, diff)
		}
	}
	t.Logf("the worst component was %.3f %% off", 100*worst)
}
