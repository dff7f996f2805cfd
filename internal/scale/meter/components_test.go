package meter

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"

	"tare/internal/lib/known"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

// Each of five daemons has a group to itself, and bpftrace, if installed, runs programs that interrupt them, beside
// whatever else runs, in window after window. The components add up exactly to the attributed CPU time, and each is
// within 1 % of its group's counter, read before and after the window. A daemon rests at the edges, so both readings
// cover the same work. All run time that the kernel counted for bpftrace's programs is in its component and in the
// total of tare.
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
	_, trace := exec.LookPath("bpftrace")
	tracer := mkdir(top + "/bpftrace")
	if trace == nil {
		startTracer(t, tracer)
	}
	m := meter(t, Options{})
	worst, windows := 0.0, long.Repeat(3, 20)
	if testing.Short() { // an emulated machine takes 10 s for the work of each daemon in a window
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
			} else if l.Cgroups[i].Path == top+"/bpftrace" {
				l.Cgroups[i].Charged = ledger.Charged{Charge: ledger.ChargeTare, Component: "bpftrace"}
			}
		}
		ran := int64(0) // run time of bpftrace's programs, ns
		for i := range l.Programs {
			p := &l.Programs[i]
			if slices.ContainsFunc(p.Owners, func(o ledger.Owner) bool { return o.Comm == "bpftrace" }) {
				p.Charged = ledger.Charged{Charge: ledger.ChargeTare, Component: "bpftrace"}
				s, _ := p.RanSeconds()
				ran += int64(math.Round(s * 1e9))
			}
		}
		l.Settle()
		l.AddComponents()
		sum, seen := int64(0), 0
		for _, c := range l.Components {
			sum += int64(math.Round(*c.CPUSeconds * 1e9))
			if c.Component == "bpftrace" && int64(math.Round(*c.BPFSeconds*1e9)) != ran || trace == nil && ran == 0 {
				t.Errorf("%s ran for %v s, and its programs for %d ns", c.Component, *c.BPFSeconds, ran)
			}
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
		if all := *l.Tare.CgroupsCPU + known.Or(l.Tare.BPF, 0) + *l.Tare.BPFUnsplit; math.Abs(*l.Tare.CPU-all) > 1e-9 {
			t.Errorf("tare used %v s in total, and its parts %v", *l.Tare.CPU, all)
		}
		if diff := sum - int64(math.Round(l.CPU.Attributed*1e9)); diff != 0 || seen != daemons {
			t.Errorf("%d daemons; the components' sum is %d ns off", seen, diff)
		}
	}
	t.Logf("%d windows, with bpftrace: %v; the worst component was %.3f %% off", windows, trace == nil, 100*worst)
}

// startTracer starts bpftrace in a group, and waits until its programs are loaded.
func startTracer(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("bpftrace", "-e",
		`BEGIN { printf("begun\n"); } profile:hz:499 { @[comm] = count(); } software:context-switches:1 { @s[pid] = count(); }`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := os.WriteFile(dir+"/cgroup.procs", fmt.Appendln(nil, cmd.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "begun" {
			return
		}
	}
	t.Fatal("bpftrace ended before it had begun")
}
