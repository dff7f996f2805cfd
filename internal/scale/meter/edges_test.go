package meter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"tare/internal/lib/known"
	"tare/internal/scale/attribution"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
)

// A first edge that cannot be read is an error, and sampling ends.
func TestAnEdgeThatCannotBeRead(t *testing.T) {
	m := meter(t, Options{})
	m.fs.Root = t.TempDir()
	if _, err := m.Open(); err == nil {
		t.Error("a window opened without /proc/stat")
	}
	m.fs.Root = ""
	if l := ledgerOf(t, m, func() {}); !l.CPU.Closes() {
		t.Errorf("the window after a failed one: %+v", l.CPU)
	}
}

// The run time of a program that was unloaded inside the window is unknown: nil, not 0.
func TestAProgramThatWasUnloadedHasNoCounters(t *testing.T) {
	a := account{m: &Meter{layout: &cgroup.Layout{Mode: cgroup.ModeV1}}, w: &Window{}}
	misses := uint64(1)
	c := bpf.Counters{RunCount: 10, RunNs: 1000, RecursionMisses: &misses}
	later := bpf.Counters{RunCount: 12, RunNs: 1200, RecursionMisses: &misses} // read by the Snapshot after the edge
	for _, last := range []bpf.Counters{c, later} {
		gone := a.program(&bpf.Program{ID: 1, Counters: last, Vanished: true}, c)
		if gone.RunCount != nil || gone.RunSeconds != nil || gone.NsPerRun != nil || gone.RecursionMisses != nil ||
			len(gone.Shares) > 0 || !gone.Unloaded {
			t.Errorf("unloaded: %+v", gone)
		}
		a.warnings = nil
		if a.unloaded([]ledger.Program{gone, gone}); len(a.warnings) != 1 || a.warnings[0].Code != "program-unloaded" {
			t.Errorf("%v", a.warnings)
		}
	}
	there := a.program(&bpf.Program{ID: 1, Counters: c}, c)
	if there.RunCount == nil || *there.RunCount != 0 || *there.RunSeconds != 0 {
		t.Errorf("idle: %+v", there)
	}
}

// fakeGroups returns the account of one second on a machine whose only group is /unit. counters reads the group again.
func fakeGroups(t *testing.T) (a account, root string, counters func() map[*cgroup.Group]cgroup.CPU) {
	t.Helper()
	root = t.TempDir()
	writeUnder(t, root, "proc/self/cgroup", "0::/\n")
	writeUnder(t, root, "proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n")
	writeUnder(t, root, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	writeUnder(t, root, "sys/fs/cgroup/unit/cpu.stat", "usage_usec 7000000\n")
	layout, err := cgroup.Discover(cgroup.Roots{Proc: root + "/proc", Prefix: root})
	if err != nil {
		t.Fatal(err)
	}
	groups, err := cgroup.NewReader(layout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(groups.Close)
	counters = func() map[*cgroup.Group]cgroup.CPU {
		if err := groups.ReadCPU(); err != nil {
			t.Fatal(err)
		}
		all := map[*cgroup.Group]cgroup.CPU{}
		for _, g := range groups.Groups() {
			all[g] = g.CPU
		}
		return all
	}
	a = account{m: &Meter{layout: layout, groups: groups}, w: &Window{}, snapshot: &bpf.Snapshot{}, found: &findings{}}
	a.w.first = edge{wall: time.Now().Add(-time.Second), groups: counters()}
	return a, root, counters
}

func writeUnder(t *testing.T, root, path, content string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestBPFTimeOfAPathOnce: samples name only a path, so the eBPF time there is not counted in both the group that was
// removed and the one that was created again.
func TestBPFTimeOfAPathOnce(t *testing.T) {
	a, root, counters := fakeGroups(t)
	writeUnder(t, root, "again/cpu.stat", "usage_usec 2000000\n") // another inode
	unit := root + "/sys/fs/cgroup/unit"
	if err := errors.Join(os.Rename(unit, root+"/old"), os.Rename(root+"/again", unit), a.m.groups.Refresh()); err != nil {
		t.Fatal(err)
	}
	a.last = edge{at: 1e9, groups: counters()}
	path, sum, n := "/unit", 0.0, 0
	share := ledger.Share{Cgroup: &path, Context: ledger.Task, Seconds: 1}
	for _, g := range a.cgroups([]ledger.Program{{ID: 1, Shares: []ledger.Share{share}}}) {
		if g.Path == path {
			sum += known.Or(g.BPFSeconds, 0)
			n++
		}
		if inside := known.Or(g.BPFInsideSeconds, 0); g.Path == path && !g.Vanished && inside != 1 {
			t.Errorf("%g s are in the group that is there, want 1", inside)
		}
	}
	if sum != 1 || n != 2 {
		t.Errorf("%d groups have %g s, want 2 with 1 s", n, sum)
	}
}

// TestBPFTimeOfGroupsIsNotStolen: time stolen while programs ran is in neither the eBPF time of groups nor the unsplit
// time.
func TestBPFTimeOfGroupsIsNotStolen(t *testing.T) {
	a, root, counters := fakeGroups(t)
	writeUnder(t, root, "sys/fs/cgroup/unit/cpu.stat", "usage_usec 9000000\n")
	a.last = edge{at: 1e9, groups: counters()}
	run, path := 1.0, "/unit"
	programs := []ledger.Program{{RunSeconds: &run, StolenSeconds: &ledger.Interval{Value: 0.25, Lo: 0.2, Hi: 0.3},
		Shares: []ledger.Share{{Cgroup: &path, Context: ledger.Task, Seconds: 0.8}, {Seconds: 0.2}}}}
	all := a.cgroups(programs)
	i := slices.IndexFunc(all, func(g ledger.Cgroup) bool { return g.Path == path })
	if g := &all[i]; math.Abs(known.Or(g.BPFSeconds, -1)-0.6) > 1e-9 ||
		math.Abs(known.Or(g.BPFInsideSeconds, -1)-0.6) > 1e-9 {
		t.Errorf("the group has %g s, %g s of them inside; want 0.6", known.Or(g.BPFSeconds, -1),
			known.Or(g.BPFInsideSeconds, -1))
	}
	if split, unsplit := a.splitTime(programs); math.Abs(split-0.6) > 1e-9 || math.Abs(unsplit-0.15) > 1e-9 {
		t.Errorf("%g s are split and %g are not, want 0.6 and 0.15", split, unsplit)
	}
}

// TestKernelThreadInAGroup: the CPU time of a kernel thread in a control group is counted in the group, and not also on
// the line of kernel threads. So is that of one in a group that is not listed below one that is.
func TestKernelThreadInAGroup(t *testing.T) {
	for path, want := range map[string]map[string]float64{
		"/unit":    {ledger.LineGroups: 6, ledger.LineKernel: 0},
		"/unit/vm": {ledger.LineGroups: 6, ledger.LineKernel: 0}, // it is not listed, and is part of /unit
		"/unit2":   {ledger.LineGroups: 6, ledger.LineKernel: 6},
		"/":        {ledger.LineGroups: 6, ledger.LineKernel: 6},
		"/unknown": {ledger.LineGroups: 6, ledger.LineKernel: 6}, // there is no such group
	} {
		a, root, counters := fakeGroups(t)
		writeUnder(t, root, "proc/7/stat", "7 (vhost-6) S 2 0 0 0 -1 2097152 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0") // PF_KTHREAD
		writeUnder(t, root, "proc/7/cgroup", "0::"+path+"\n")
		writeUnder(t, root, "sys/fs/cgroup/unit/cpu.stat", "usage_usec 13000000\n")
		var err error
		if a.m.kernel, err = (proc.FS{Root: root}).KernelThreads(); err != nil {
			t.Fatal(err)
		}
		a.found, a.w.first.kernel = nil, []time.Duration{time.Second}
		a.last = edge{at: 10e9, groups: counters(), kernel: []time.Duration{7 * time.Second}}
		l := &ledger.Ledger{}
		l.Cgroups = a.cgroups(nil)
		l.CPU = a.budget(l)
		for name, want := range want {
			if got, known := lineOf(l, name); !known || math.Abs(got-want) > 1e-9 {
				t.Errorf("a thread in %s: %s has %g s, want %g", path, name, got, want)
			}
		}
	}
}

func TestACounterThatWentBackIsNotKnown(t *testing.T) {
	v := func(n uint64) cgroup.Value { return cgroup.Value{N: n, OK: true} }
	if got := counted(v(5), v(7), true); got != nil {
		t.Errorf("from 7 to 5: %d", *got)
	}
	if got := counted(v(7), v(7), true); got == nil || *got != 0 {
		t.Errorf("from 7 to 7: %v", got)
	}
}

// TestCounterReset: the CPU time of a group whose counter was reset inside the window is unknown, even if the counter
// has grown past its earlier value, and so is the root group's, which cannot be computed without it. The next window
// has both again; other groups are never affected.
func TestCounterReset(t *testing.T) {
	h := cpuHierarchy(t)
	if h.V2 {
		t.Skip("needs cgroup v1: the counters of v2 cannot be written")
	}
	w := startWorker(t)
	dir := temporaryGroup(t)
	path := h.Identity(strings.TrimPrefix(dir, h.Mount))
	w.join(t, dir+"/cgroup.procs")
	t.Cleanup(func() { // before the group is removed
		w.in.Close()
		_ = w.cmd.Wait()
	})
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	for _, reset := range []bool{false, true, false} {
		l := ledgerOf(t, m, func() {
			before := cgroup.CPUTime(dir).N
			if reset {
				if err := cgroup.Write(dir+"/cpuacct.usage", "0"); err != nil {
					t.Fatal(err)
				}
			}
			w.work(t)
			for cgroup.CPUTime(dir).N <= before { // otherwise the counter alone would show the reset
				w.work(t)
			}
		})
		i := slices.IndexFunc(l.Cgroups, func(g ledger.Cgroup) bool { return g.Path == path })
		if i < 0 || (l.Cgroups[i].CPUSeconds == nil) != reset || l.Cgroups[i].CPUReset != reset {
			t.Fatalf("reset is %v: %+v", reset, l.Cgroups[max(i, 0)])
		}
		_, hasRoot := lineOf(l, ledger.LineRoot)
		warned := strings.Contains(messageOf(l, "counter-reset"), path)
		if warned != reset || hasRoot == reset || !l.CPU.Closes() {
			t.Errorf("reset is %v: it has a line of the root group %v; warnings %v", reset, hasRoot, l.Warnings)
		}
	}
}

// TestTopGroupRemoved: on v1 the root's counter includes the usage of a group that was removed inside the window, and a
// warning says so.
func TestTopGroupRemoved(t *testing.T) {
	if cpuHierarchy(t).V2 {
		t.Skip("needs cgroup v1: on v2 the root group has no counter")
	}
	dir := temporaryGroup(t)
	l := ledgerOf(t, meter(t, Options{SampleHz: -1, NoWitness: true}), func() {
		stop := keepBusy(t, dir)
		works(dir, 300*time.Millisecond)
		stop()
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	})
	root, _ := lineOf(l, ledger.LineRoot)
	if warned := codes(l, "root-usage-at-most") != ""; root <= 0 || !warned || !l.CPU.Closes() {
		t.Errorf("the root group has %.3g s, warned: %v", root, warned)
	}
}

// TestManyCountersReset: warnings name three groups whose counters were reset and count the others; each group's
// CPUReset is set.
func TestManyCountersReset(t *testing.T) {
	h := cpuHierarchy(t)
	if h.V2 {
		t.Skip("needs cgroup v1: the counters of v2 cannot be written")
	}
	parent := temporaryGroup(t)
	want := map[string]bool{}
	var dirs []string
	for i := range 5 {
		dir := fmt.Sprintf("%s/%d", parent, i)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		dirs, want[h.Identity(strings.TrimPrefix(dir, h.Mount))] = append(dirs, dir), true
	}
	l := ledgerOf(t, meter(t, Options{SampleHz: -1, NoWitness: true}), func() {
		for _, dir := range dirs {
			if err := cgroup.Write(dir+"/cpuacct.usage", "0"); err != nil {
				t.Fatal(err)
			}
		}
	})
	got := map[string]bool{}
	for _, g := range l.Cgroups {
		if g.CPUReset {
			got[g.Path] = g.CPUSeconds == nil
		}
	}
	var said []string
	for _, w := range l.Warnings {
		if w.Code == ledger.CounterReset {
			said = append(said, w.Message)
		}
	}
	if !maps.Equal(got, want) || len(said) != 4 || !strings.Contains(said[3], "2 more") {
		t.Errorf("reset: %v, want %v; warnings %q", got, want, said)
	}
}

// TestTopGroupUnknown: if a group's CPU time is unknown, the budget still counts that of the groups below it.
func TestTopGroupUnknown(t *testing.T) {
	a := account{m: &Meter{layout: &cgroup.Layout{Mode: cgroup.ModeV1}, groups: &cgroup.Reader{},
		kernel: &proc.KernelThreads{}}, w: &Window{}, untold: true}
	a.last.at = int64(10 * time.Second)
	a.last.stat.Online = []proc.CPUTime{{CPU: 0}}
	a.w.first.stat.Online = a.last.stat.Online
	l := &ledger.Ledger{Cgroups: []ledger.Cgroup{{Path: "/", CPUSeconds: new(9.0)}, {Path: "/reset"},
		{Path: "/reset/a", CPUSeconds: new(2.0)}, {Path: "/reset/a/b", CPUSeconds: new(1.0)},
		{Path: "/x", CPUSeconds: new(4.0)}, {Path: "/x/y", CPUSeconds: new(3.0)}}}
	l.CPU = a.budget(l)
	if got, _ := lineOf(l, ledger.LineGroups); math.Abs(got-6) > 1e-9 || !l.CPU.Closes() {
		t.Errorf("control groups have %v s, want 6: %+v", got, l.CPU)
	}
}

// A task that is in one group of cpuacct and in another of v2 is counted in both groups, but in the budget only once.
func TestHierarchiesThatDisagree(t *testing.T) {
	two := 2.0
	a := account{m: &Meter{layout: &cgroup.Layout{Mode: cgroup.ModeHybrid}, groups: &cgroup.Reader{},
		kernel: &proc.KernelThreads{}}, w: &Window{}}
	a.last.at, a.last.stat.Idle = int64(2*time.Second), 2
	a.w.first.stat.Online = []proc.CPUTime{{CPU: 0}, {CPU: 1}}
	a.last.stat.Online = a.w.first.stat.Online
	l := &ledger.Ledger{Cgroups: []ledger.Cgroup{{Path: "/", CPUSeconds: &two}, {Path: "/x", CPUSeconds: &two},
		{Path: "/y", CPUSeconds: &two}}}
	cpu := a.budget(l)
	for _, line := range cpu.Lines {
		want := 0.0
		if line.Name == ledger.LineGroups {
			want = two
		}
		if line.Seconds != want {
			t.Errorf("%s: %v s, want %v", line.Name, line.Seconds, want)
		}
	}
	if len(a.warnings) != 1 || a.warnings[0].Code != "hierarchies-overlap" || !cpu.Closes() {
		t.Errorf("warnings %v, budget %+v", a.warnings, cpu)
	}
	// If the edges take 1.1 s, the counters of two CPUs may differ by these 2 s without a warning.
	a.warnings, a.w.first.took, a.last.took, l.Host.CPUs = nil, 100*time.Millisecond, time.Second, 2
	if cpu = a.budget(l); len(a.warnings) > 0 || !cpu.Closes() {
		t.Errorf("with edges of 1.1 s: warnings %v, budget %+v", a.warnings, cpu)
	}
}

// TestRootBesideANamedHierarchy: where v2 counts CPU time, its root counts CPUs and not tasks, also if a v1 hierarchy
// without controllers is mounted beside it.
func TestRootBesideANamedHierarchy(t *testing.T) {
	root := t.TempDir()
	writeUnder(t, root, "proc/self/cgroup", "1:name=systemd:/\n0::/\n")
	writeUnder(t, root, "proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"+
		"31 30 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n")
	writeUnder(t, root, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	writeUnder(t, root, "sys/fs/cgroup/cgroup.procs", strconv.Itoa(os.Getpid())+"\n")
	layout, err := cgroup.Discover(cgroup.Roots{Proc: root + "/proc", Prefix: root})
	if err != nil || layout.Mode != cgroup.ModeHybrid {
		t.Fatalf("%+v, %v", layout, err)
	}
	m := &Meter{layout: layout, groups: &cgroup.Reader{}, kernel: &proc.KernelThreads{}}
	m.describe()
	a := account{m: m, w: &Window{m: m}}
	a.w.first.at = monotonic()
	a.last.at = a.w.first.at + int64(10*time.Second)
	a.last.stat.Online = []proc.CPUTime{{CPU: 0}}
	a.w.first.stat.Online = a.last.stat.Online
	a.w.first.root, a.last.root = map[int]time.Duration{1: 0}, map[int]time.Duration{1: time.Second / 5}
	// 30 s of the group, 0.2 s of the root's process, and interrupts of 12 s
	l := &ledger.Ledger{Host: m.host, Cgroups: []ledger.Cgroup{{Path: "/", CPUSeconds: new(42.2)},
		{Path: "/a", CPUSeconds: new(30.0)}}}
	l.CPU = a.budget(l)
	if got, _ := lineOf(l, ledger.LineRoot); got != 0.2 {
		t.Errorf("the root group has %v s, want 0.2", got)
	}
	if own := l.OwnCPU(ledger.NewTree(l.Cgroups))[0]; own == nil || *own != 2e8 {
		t.Errorf("the root itself has %v ns, want 0.2 s", known.Or(own, -1))
	}
	if read, err := m.readRoot(); err != nil || len(read) != 1 {
		t.Errorf("of the processes in the root group: %v, %v", read, err)
	}
}

// TestIRQTimeOfAnUnstableClock: once the clock is unstable, it is unknown whether interrupts are in tasks' CPU time
// until the kernel counts some apart.
func TestIRQTimeOfAnUnstableClock(t *testing.T) {
	root := t.TempDir()
	m := &Meter{fs: proc.FS{Root: root}, host: ledger.Host{IRQTime: new(true)}}
	for _, c := range []struct {
		clocks string
		irq    float64
		want   *bool
	}{
		{"tsc hpet", 3, new(true)},
		{"hpet", 4, nil}, // what grew may have grown before
		{"hpet", 4, nil},
		{"hpet", 4.01, new(true)},
		{"tsc hpet", 4.01, new(true)},
		{"hpet", 4.02, nil},
	} {
		writeUnder(t, root, "sys/devices/system/clocksource/clocksource0/available_clocksource", c.clocks+"\n")
		m.judgeIRQTime(proc.Stat{IRQ: c.irq})
		if got := m.host.IRQTime; (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for _, before := range []*bool{nil, new(false)} {
		m := &Meter{fs: m.fs, host: ledger.Host{IRQTime: before}}
		if m.judgeIRQTime(proc.Stat{IRQ: 1}); m.host.IRQTime != before {
			t.Errorf("it became %v", m.host.IRQTime)
		}
	}
}

// TestWarnOfNoHzFull: the meter warns of CPUs without ticks, where the kernel counts CPU time late.
func TestWarnOfNoHzFull(t *testing.T) {
	for list, want := range map[string]string{"2-7\n": "CPUs 2-7 run without ticks", "  (null)\n": "", "\n": ""} {
		root := t.TempDir()
		writeUnder(t, root, "sys/devices/system/cpu/nohz_full", list)
		m := &Meter{fs: proc.FS{Root: root}, layout: &cgroup.Layout{}}
		m.describe()
		m.host.Clocksource = "tsc"
		m.warnOfClocks()
		got := ""
		for _, w := range m.warnings {
			got += w.Message
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// TestGroupsMadeInTheWindow: a group created in the window has its time of creation (Began), and if it was created
// again under the same name, a warning says that its counters started from 0.
func TestGroupsMadeInTheWindow(t *testing.T) {
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	h, ok := m.layout.CPU()
	if !ok {
		t.Skip("needs control groups that count CPU time")
	}
	dir := func(name string) string {
		return filepath.Join(h.Mount, fmt.Sprintf("tare-test-%s-%d", name, os.Getpid()))
	}
	for _, name := range []string{"old", "again", "new"} {
		if err := os.Mkdir(dir(name), 0o755); err != nil {
			t.Skip("needs to make control groups: ", err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir(name)); err != nil {
				t.Error(err)
			}
		})
	}
	if err := os.Remove(dir("new")); err != nil {
		t.Fatal(err)
	}
	const wait = 200 * time.Millisecond
	l := ledgerOf(t, m, func() {
		time.Sleep(wait)
		for _, err := range []error{os.Remove(dir("again")), os.Mkdir(dir("again"), 0o755), os.Mkdir(dir("new"), 0o755)} {
			if err != nil {
				t.Error(err)
			}
		}
		// kernfs dates an inode at its first lookup, and whoever creates a group soon looks it up.
		for _, name := range []string{"again", "new"} {
			if _, err := os.Stat(dir(name)); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(wait)
	})
	began := map[string][]*float64{}
	for _, g := range l.Cgroups {
		began[g.Path] = append(began[g.Path], g.Began)
		// Only this test's groups: another program's may be removed after its CPU time was read at the edge.
		if g.Vanished && g.CPUSeconds != nil && strings.HasSuffix(g.Path, fmt.Sprint("-", os.Getpid())) {
			t.Errorf("%s has vanished and used %v s", g.Path, *g.CPUSeconds)
		}
	}
	of := func(name string) []*float64 { return began[h.Identity(strings.TrimPrefix(dir(name), h.Mount))] }
	inside := func(b *float64) bool {
		return b != nil && *b > 0.9*wait.Seconds() && *b < l.Window.Seconds-0.9*wait.Seconds()
	}
	if all := of("old"); len(all) != 1 || all[0] != nil {
		t.Errorf("the old group: %v", all)
	}
	if all := of("new"); len(all) != 1 || !inside(all[0]) {
		t.Errorf("the new group: %v", all)
	}
	if all := of("again"); len(all) != 2 || !slices.Contains(all, nil) || !slices.ContainsFunc(all, inside) {
		t.Errorf("the group that was made again: %v", all)
	}
	warned := slices.DeleteFunc(slices.Clone(l.Warnings), func(w ledger.Warning) bool {
		return w.Code != "group-made" || !strings.Contains(w.Message, dir("again")[len(h.Mount):])
	})
	if len(warned) != 1 {
		t.Errorf("warnings %v", l.Warnings)
	}
}

// A group that is only in the memory controller's hierarchy has no CPU time, so its eBPF time is nil, not 0.
func TestAGroupWithoutCPUTimeHasNoEBPFTime(t *testing.T) {
	m := meter(t, Options{})
	memory, ok := m.layout.Controller("memory")
	if cpu, _ := m.layout.CPU(); !ok || memory.V2 || memory == cpu {
		t.Skip("needs a v1 hierarchy of the memory controller without cpuacct")
	}
	const path = "/tare-test-memory-only"
	if err := os.Mkdir(filepath.Join(memory.Mount, path), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(filepath.Join(memory.Mount, path)) })
	l := ledgerOf(t, m, func() {})
	i := slices.IndexFunc(l.Cgroups, func(c ledger.Cgroup) bool { return c.Path == path })
	if i < 0 {
		t.Fatalf("no %s in the ledger", path)
	}
	if c := l.Cgroups[i]; c.CPUSeconds != nil || c.BPFSeconds != nil || c.BPFInsideSeconds != nil {
		t.Errorf("%+v", c)
	}
}

// The CPU time that a process used before it was moved into the root group is not counted in the window.
func TestAProcessThatWasMovedToTheRoot(t *testing.T) {
	m := &Meter{}
	a := account{m: m, w: &Window{m: m}}
	a.w.first.at = monotonic()
	a.last.root = map[int]time.Duration{1: time.Hour} // process 1 has been there since the machine started
	if got := a.rootUsage(); got != 0 || len(a.warnings) != 1 || a.warnings[0].Code != "moved-to-root" {
		t.Errorf("a process that was moved is charged %v s, warnings %v", got, a.warnings)
	}
	a.warnings = nil
	a.w.first.root = map[int]time.Duration{1: time.Hour - time.Second}
	if got := a.rootUsage(); got != 1 || len(a.warnings) != 0 {
		t.Errorf("a process that was there is charged %v s, warnings %v", got, a.warnings)
	}
}

// TestReusedPIDInTheRoot: a process in the root group that began in the window is charged all of its CPU time, no
// matter how much the process that had the same PID at the first edge had used.
func TestReusedPIDInTheRoot(t *testing.T) {
	m := &Meter{}
	a := account{m: m, w: &Window{m: m}}
	now, pid := monotonic(), os.Getpid()
	a.w.first.at, a.last.at = now-int64(time.Hour), now // this process began in between
	for _, before := range []time.Duration{time.Second, time.Hour} {
		a.w.first.root, a.last.root = map[int]time.Duration{pid: before}, map[int]time.Duration{pid: time.Minute}
		if got := a.rootUsage(); got != 60 || len(a.warnings) != 0 {
			t.Errorf("after a process that had used %v: %v s, warnings %v", before, got, a.warnings)
		}
	}
}

// In a separate PID namespace, a task outside it has PID 0, but is not the idle task.
func TestTasksOfOtherNamespacesAreNotIdle(t *testing.T) {
	l, reads := testLocator(nil)
	outside := &perf.Sample{PID: 0, TID: 0, Time: 1}
	if got := l.group(outside); got != groupIdle {
		t.Errorf("in the first namespace: group %d", got)
	}
	l.hidden = true
	if got := l.group(outside); got != groupUnknown || *reads != 0 {
		t.Errorf("in a namespace of our own: group %d after %d reads", got, *reads)
	}
}

// One warning covers all programs that came and went.
func TestProgramsThatCameAndWent(t *testing.T) {
	a := account{found: &findings{loaded: map[uint32]bool{1: true, 2: true, 3: true}}}
	a.missed(map[uint32]bool{2: true})
	if len(a.warnings) != 1 || a.warnings[0].Code != "program-missed" ||
		!strings.Contains(a.warnings[0].Message, "[1 3]") {
		t.Errorf("%v", a.warnings)
	}
}

// TestBoundOfProgramsMissed: samples give an upper bound of the run time of programs that came and went inside the
// window.
func TestBoundOfProgramsMissed(t *testing.T) {
	m := meter(t, Options{NoWitness: true})
	if m.sampler == nil || m.sampler.Source() != perf.CPUClock {
		t.Skip("needs samples by the clock")
	}
	l := ledgerOf(t, m, func() {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_brief", Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if !slices.ContainsFunc(l.Warnings, func(w ledger.Warning) bool {
		return w.Code == "program-missed" && strings.Contains(w.Message, "they ran for at most ")
	}) {
		t.Errorf("%v", l.Warnings)
	}
}

// Samples that may belong to another program do not split a program's time.
func TestUnsureProgramsAreNotSplit(t *testing.T) {
	a := account{m: &Meter{layout: &cgroup.Layout{}}, w: &Window{}, found: &findings{
		unsure: map[uint32]bool{1: true, 3: true}, places: map[uint32]map[attribution.Place]int{1: {{Group: "/web"}: 1000}},
	}}
	p := a.program(&bpf.Program{ID: 1, Counters: bpf.Counters{RunCount: 10, RunNs: 1e9}}, bpf.Counters{})
	if len(p.Seen) > 0 || p.SampledSeconds != nil || *p.RunSeconds != 1 {
		t.Errorf("%+v", p)
	}
	for _, s := range p.Shares {
		if s.Cgroup != nil {
			t.Errorf("a share of %s", *s.Cgroup)
		}
	}
	a.unsure(map[uint32]bool{1: true, 2: true})
	if len(a.warnings) != 1 || a.warnings[0].Code != "program-unsure" || !strings.Contains(a.warnings[0].Message, "[1]") {
		t.Errorf("%v", a.warnings)
	}
}

func TestSoleGroup(t *testing.T) {
	for _, c := range []struct {
		kind     string
		attached []string
		want     string
	}{
		{"cgroup_sock_addr", []string{"cgroup:/web connect4 (link 7)", "cgroup:/web connect6"}, "/web"},
		{"cgroup_sock", []string{"cgroup:/web sock_create"}, "/web"},
		{"cgroup_sock", []string{"cgroup:/web sock_release (link 7)"}, ""},
		{"cgroup_sock_addr", []string{"cgroup:/web connect4", "cgroup:/other connect4"}, ""},
		{"cgroup_sock_addr", []string{"cgroup:/web connect4", "tracepoint:sched_switch"}, ""},
		{"cgroup_skb", []string{"cgroup:/web ingress"}, ""},
		{"cgroup_sock", nil, ""},
	} {
		if got := soleGroup(&bpf.Program{Type: c.kind, Attached: c.attached}); got != c.want {
			t.Errorf("%s at %v: %q, want %q", c.kind, c.attached, got, c.want)
		}
	}
}

// A window ends on time even if finding and reading all control groups takes long, because the work being measured has
// ended by the time they are read.
func TestWindowEndsInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a real processor: it compares two times, in which an emulated one stands still")
	}
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	h, ok := m.layout.Controller("cpuacct")
	if !ok {
		h, ok = m.layout.Controller("cpu")
	}
	if !ok {
		t.Skip("needs a hierarchy with CPU time")
	}
	above := filepath.Join(h.Mount, fmt.Sprintf("tare-test-edges-%d", os.Getpid()))
	groups := []string{above}
	for i := range 2000 {
		groups = append(groups, filepath.Join(above, strconv.Itoa(i)))
	}
	t.Cleanup(func() {
		for _, dir := range slices.Backward(groups) {
			_ = os.Remove(dir)
		}
	})
	for _, dir := range groups {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("needs to make control groups: ", err)
		}
	}
	// On a busy machine this process may be held up at any edge. So lateness is measured relative to the time that the
	// same window took to prepare and to read, and the smallest of many windows counts.
	least := math.Inf(1)
	for until := time.Now().Add(time.Minute); least > 0.5 && time.Now().Before(until); {
		w, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		end := monotonic() + int64(200*time.Millisecond)
		l, err := w.CloseAt(t.Context(), end)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Duration(l.Window.EdgeSeconds * 1e9)
		late := l.Window.End.Add(took).Sub(w.first.wall.Add(time.Duration(end - w.first.at)))
		t.Logf("%v late; to prepare and to read took %v", late, m.preparing+took)
		least = min(least, late.Seconds()/(m.preparing+took).Seconds())
	}
	if least > 0.5 {
		t.Errorf("all windows end later than %.0f %% of what it takes to prepare and to read", 100*least)
	}
}

// TestWindowOfACancelledContext: the window is closed, and everything that it switched on is off again.
func TestWindowOfACancelledContext(t *testing.T) {
	m := meter(t, Options{})
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if l, err := w.CloseAt(ctx, monotonic()+int64(time.Hour)); l != nil || !errors.Is(err, why) {
		t.Errorf("%v, %v", l, err)
	}
	if w, err = m.Open(); err != nil {
		t.Fatalf("the next window: %v", err)
	}
	if _, err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestSelfOfProgramsGone: a program that was gone before the window opened did not run in it, and the cost of
// statistics for its earlier runs is not a cost of the window.
func TestSelfOfProgramsGone(t *testing.T) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	each := 20e-9
	gone := bpf.Program{ID: 1, Vanished: true, Counters: bpf.Counters{RunCount: 1e9, RunNs: 1e12}}
	here := bpf.Program{ID: 2, Counters: bpf.Counters{RunCount: 150, RunNs: 300}}
	a := account{
		m: &Meter{layout: layout, statsCost: &each}, snapshot: &bpf.Snapshot{},
		w:        &Window{programs: map[bpf.Key]bpf.Counters{here.Key(): {RunCount: 50, RunNs: 100}}},
		programs: []bpf.Program{gone, here},
	}
	if s := a.self(); s.StatsSeconds == nil || math.Abs(*s.StatsSeconds-100*each) > each/10 {
		t.Errorf("the statistics cost %v s, want %v for 100 runs", *s.StatsSeconds, 100*each)
	}
}

// TestReadClosely: counters that took unusually long to read are read again, a few times; the last reading counts.
func TestReadClosely(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name  string
		took  []time.Duration // of each reading; a negative one fails
		reads int
		err   error
	}{
		{"at once", []time.Duration{edgeTime / 2}, 1, nil},
		{"held up once", []time.Duration{time.Second, edgeTime / 2}, 2, nil},
		{"slow each time", []time.Duration{30 * time.Millisecond, 31 * time.Millisecond}, 2, nil}, // as on a large machine
		{"held up each time", []time.Duration{time.Second, 300 * time.Millisecond, 90 * time.Millisecond,
			20 * time.Millisecond}, edgeTries, nil},
		{"failed", []time.Duration{time.Second, -1}, 2, failed},
	} {
		m, reads := &Meter{}, 0
		e, err := m.readClosely(func() (edge, error) {
			took := c.took[reads]
			reads++
			if took < 0 {
				return edge{}, failed
			}
			return edge{took: took}, nil
		})
		if reads != c.reads || !errors.Is(err, c.err) || err == nil && e.took != c.took[reads-1] {
			t.Errorf("%s: %d readings, the last took %v, error %v", c.name, reads, e.took, err)
		}
	}
}

// TestOwnMapUnknown: if the size of one of the meter's own maps is unknown, so is the total memory of its eBPF objects.
func TestOwnMapUnknown(t *testing.T) {
	size := uint64(4096)
	s := &bpf.Snapshot{Maps: []bpf.Map{{ID: 1, Own: true, Bytes: &size}, {ID: 2}}}
	a := account{m: &Meter{layout: &cgroup.Layout{}}, w: &Window{}, snapshot: s}
	if got := a.self().BPFBytes; got == nil || *got != size {
		t.Errorf("of a known map %v", got)
	}
	s.Maps[1].Own = true
	if got := a.self().BPFBytes; got != nil {
		t.Errorf("with an unknown map %d", *got)
	}
}
