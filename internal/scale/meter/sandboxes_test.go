package meter

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
	"tare/test/rights"
	"tare/test/vm/guest"
)

// pages is the resident memory of a process in a tree of files, in MB.
type pages struct{ anon, file, shmem, tables int }

// machine creates a tree of files for a machine with cgroup v2 and one Kata sandbox, whose shim and virtiofsd are
// outside its pod.
func machine(t *testing.T) (root, id string) {
	t.Helper()
	root, id = t.TempDir(), strings.Repeat("ab", 32)
	file := func(name, content string) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pod := "/kubepods/pod6f2f4b1c-92a0-4c63-8d0e-0d5b7f3a9e11"
	file("/proc/self/mountinfo", "30 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	file("/proc/self/cgroup", "0::/\n")
	file("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	process := func(pid int, group, args string, p pages) {
		t.Helper()
		dir := fmt.Sprintf("/proc/%d/", pid)
		comm, _, _ := strings.Cut(args, " ")
		file(dir+"stat", fmt.Sprintf("%d (%.15s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, comm, pid))
		file(dir+"comm", comm+"\n")
		file(dir+"cmdline", strings.ReplaceAll(args, " ", "\x00")+"\x00")
		file(dir+"cgroup", "0::"+group+"\n")
		file(dir+"smaps_rollup", fmt.Sprintf("0-1 ---p 0 00:00 0 [rollup]\nRss: %d kB\nPss: %d kB\n"+
			"Pss_Anon: %d kB\nPss_File: %d kB\nPss_Shmem: %d kB\n", 9999<<10, (p.anon+p.file+p.shmem)<<10, p.anon<<10,
			p.file<<10, p.shmem<<10))
		file(dir+"status", fmt.Sprintf("VmPTE: %d kB\n", p.tables<<10))
		if err := os.MkdirAll(filepath.Join(root, "/sys/fs/cgroup", group), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	process(10, "/kata_overhead/"+id, "containerd-shim-kata-v2 -id "+id, pages{anon: 40, file: 4})
	process(20, pod+"/kata_"+id, "qemu-system-x86_64 -name sandbox-"+id, pages{anon: 30, file: 20, shmem: 100, tables: 3})
	process(30, "/kata_overhead/"+id, "virtiofsd --socket-path=/run/vc/vm/"+id+"/vhost-fs.sock",
		pages{anon: 2, file: 1, shmem: 10})
	memory := func(group string, anon, shmem, file_ int) {
		file("/sys/fs/cgroup"+group+"/memory.stat", fmt.Sprintf("anon %d\nshmem %d\nfile %d\nkernel %d\nslab_reclaimable 0\n",
			anon<<20, shmem<<20, (shmem+file_)<<20, 1<<20))
		file("/sys/fs/cgroup"+group+"/memory.current", fmt.Sprintln((anon+shmem+file_+1)<<20))
	}
	memory(pod, 30, 90, 5)
	memory("/kata_overhead/"+id, 42, 20, 6)
	return root, id
}

const mb = 1 << 20

// openSandboxes returns a Sandboxes that has read the first edge of a window.
func openSandboxes(t *testing.T, o sandbox.Options) *Sandboxes {
	t.Helper()
	s := NewSandboxes(o)
	t.Cleanup(s.Close)
	if s.ReadEdge(); s.failed != nil {
		t.Fatal(s.failed)
	}
	return s
}

// endWindow reads the last edge of a window, and sets the window of the ledger to the time between the edges.
func endWindow(s *Sandboxes, l *ledger.Ledger) *ledger.Ledger {
	l.Window.Start = s.edges[0].at
	s.ReadEdge()
	l.Window.End = s.edges[len(s.edges)-1].at
	l.Window.Seconds = l.Window.End.Sub(l.Window.Start).Seconds()
	return l
}

// In a sandbox with a virtual machine, the guest's memory is what the VMM and virtiofsd share, gross is net plus tare,
// and memory charged to groups is separate from resident memory.
func TestSandboxesAddTo(t *testing.T) {
	guest.KernelFree(t)
	root, id := machine(t)
	s := openSandboxes(t, sandbox.Options{Root: root})
	l := &ledger.Ledger{}
	if err := s.AddTo(endWindow(s, l)); err != nil {
		t.Fatal(err)
	}
	if len(l.Sandboxes) != 1 || l.Sandboxes[0].ID != id {
		t.Fatalf("%+v", l.Sandboxes)
	}
	b := l.Sandboxes[0]
	parts := map[string]string{}
	for _, c := range b.Components {
		m := c.Memory
		if m == nil {
			t.Fatalf("%s has no memory", c.Component)
		}
		parts[c.Component] = fmt.Sprintf("%s %d %d %d %d %d", c.Charge, m.PSS/mb, *m.Anon/mb, *m.File/mb,
			*m.Shmem/mb, m.PageTables/mb)
	}
	want := map[string]string{"guest": "workload 110 0 0 110 0", "vmm": "tare 50 30 20 0 3", "virtiofsd": "tare 3 2 1 0 0",
		"shim": "tare 44 40 4 0 0"}
	if fmt.Sprint(parts) != fmt.Sprint(want) {
		t.Errorf("components are\n%v, want\n%v", parts, want)
	}
	if *b.GrossMemory != 207*mb || *b.NetMemory != 110*mb || *b.TareMemory != 97*mb {
		t.Errorf("gross %d, net %d, tare %d", *b.GrossMemory/mb, *b.NetMemory/mb, *b.TareMemory/mb)
	}
	if *b.MeasuredOverhead != (30+2+40+3)*mb {
		t.Errorf("overhead %d MB", *b.MeasuredOverhead/mb)
	}
	if *b.ChargedInside != 121*mb || *b.ChargedOutside != 63*mb {
		t.Errorf("charged %d inside, %d outside", *b.ChargedInside/mb, *b.ChargedOutside/mb)
	}
	if b.GrossCPU != nil {
		t.Errorf("CPU time is known of a machine of files: %g", *b.GrossCPU)
	}
	codes := ""
	for _, f := range b.Findings {
		codes += f.Code + " "
	}
	if codes != "overhead-outside-pod overhead-outside-pod " || !strings.Contains(b.Findings[1].Message, "46.1 MB PSS") {
		t.Errorf("findings %s: %+v", codes, b.Findings)
	}
	if b.Arrangement != "kata-v2-cgroupfs-false" || l.Self.SandboxSeconds == nil || l.Self.SmapsSeconds == nil {
		t.Errorf("arrangement %q, self %+v", b.Arrangement, l.Self)
	}
}

// What was not read is not 0, and the ledger says so.
func TestSandboxesWithoutTimeForMemory(t *testing.T) {
	guest.KernelFree(t)
	root, _ := machine(t)
	s := openSandboxes(t, sandbox.Options{Root: root})
	c, err := s.reader.Read(true)
	if err != nil {
		t.Fatal(err)
	}
	memory, unread := s.resident(c, -1)
	if len(memory) != 0 || unread != 3 {
		t.Errorf("%d were read, %d not", len(memory), unread)
	}
	e := entry{s: s, c: c, b: c.Sandboxes[0], first: &s.edges[0], last: &s.edges[0], memory: memory}
	b := e.sandbox()
	if b.GrossMemory != nil || b.NetMemory != nil || b.TareMemory != nil || b.MeasuredOverhead != nil ||
		len(b.Notes) == 0 {
		t.Errorf("%+v", b)
	}
	if !strings.Contains(b.Findings[0].Message, "size not read") {
		t.Errorf("%+v", b.Findings)
	}
}

// If memory cannot be read, a note says why.
func TestSandboxesUnreadableMemory(t *testing.T) {
	guest.KernelFree(t)
	root, _ := machine(t)
	if err := os.WriteFile(filepath.Join(root, "proc/30/smaps_rollup"), []byte("Rss: 1 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := openSandboxes(t, sandbox.Options{Root: root})
	l := &ledger.Ledger{}
	if err := s.AddTo(endWindow(s, l)); err != nil {
		t.Fatal(err)
	}
	if b := l.Sandboxes[0]; b.GrossMemory != nil ||
		!strings.Contains(strings.Join(b.Notes, "\n"), "reading smaps_rollup of process 30: no line Pss") {
		t.Errorf("memory %v: %q", b.GrossMemory, b.Notes)
	}
}

// Huge pages are in no PSS. Those of the VMM may be its own or the guest's, so no sum is known, and the guest's memory
// is not said to be private.
func TestSandboxesHugePages(t *testing.T) {
	guest.KernelFree(t)
	root, _ := machine(t)
	rollup := "Rss: 50 kB\nPss: 50 kB\nPss_Anon: 30 kB\nPss_File: 20 kB\nPss_Shmem: 0 kB\nShared_Hugetlb: 0 kB\n" +
		"Private_Hugetlb: 4194304 kB\n"
	if err := os.WriteFile(filepath.Join(root, "proc/20/smaps_rollup"), []byte(rollup), 0o644); err != nil {
		t.Fatal(err)
	}
	s := openSandboxes(t, sandbox.Options{Root: root})
	l := &ledger.Ledger{}
	if err := s.AddTo(endWindow(s, l)); err != nil {
		t.Fatal(err)
	}
	b := l.Sandboxes[0]
	notes := strings.Join(b.Notes, "\n")
	if b.GrossMemory != nil || b.NetMemory != nil || b.TareMemory != nil || b.MeasuredOverhead != nil ||
		!strings.Contains(notes, "up to 4.29 GB of huge pages") || strings.Contains(notes, "not shared memory") {
		t.Errorf("gross %v, net %v, tare %v, overhead %v: %q", b.GrossMemory, b.NetMemory, b.TareMemory,
			b.MeasuredOverhead, b.Notes)
	}

	// Those of an application in a container leave tare known.
	app, shim := &sandbox.Process{PID: 1, Component: sandbox.Workload}, &sandbox.Process{PID: 2, Component: sandbox.Shim}
	e := entry{s: s, b: &sandbox.Sandbox{Processes: []*sandbox.Process{app, shim}}, memory: memories{
		app: {memory: &ledger.SandboxMemory{PSS: 50}, huge: 2 << 20}, shim: {memory: &ledger.SandboxMemory{PSS: 7}}}}
	out := ledger.Sandbox{Components: []ledger.SandboxComponent{
		{Component: string(sandbox.Workload), Charge: ledger.ChargeWorkload, Memory: e.memory[app].memory},
		{Component: string(sandbox.Shim), Charge: ledger.ChargeTare, Memory: e.memory[shim].memory}}}
	if e.sums(&out); out.GrossMemory != nil || out.NetMemory != nil || out.TareMemory == nil || *out.TareMemory != 7 {
		t.Errorf("of a container: gross %v, net %v, tare %v", out.GrossMemory, out.NetMemory, out.TareMemory)
	}
}

// container creates the group of a runc container without an engine, and returns its id and the file by which processes
// join it.
func container(t *testing.T) (id, procs string) {
	t.Helper()
	h := cpuHierarchy(t)
	id = strings.Repeat("5a", 32)
	top := fmt.Sprintf("/tare-test-%d", os.Getpid())
	for _, path := range []string{top, top + "/" + id} {
		dir, _ := h.Dir(path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
	}
	dir, _ := h.Dir(top + "/" + id)
	return id, filepath.Join(dir, "cgroup.procs")
}

// worker is a process that uses some CPU time for each line of its input, then answers with a line, and exits at the
// end of its input.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startWorker(t *testing.T) *worker {
	t.Helper()
	w := &worker{cmd: exec.Command("sh", "-c",
		"while read x; do i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; done")}
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.in.Close(); _ = w.cmd.Wait() }) // a test may have waited for it
	return w
}

func (w *worker) work(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(w.in, "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
}

func (w *worker) join(t *testing.T, procs string) {
	t.Helper()
	if err := os.WriteFile(procs, fmt.Appendln(nil, w.cmd.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
}

// theSandbox weighs the sandbox with the given id while window runs.
func theSandbox(t *testing.T, id string, window func()) ledger.Sandbox {
	t.Helper()
	s := openSandboxes(t, sandbox.Options{})
	window()
	l := &ledger.Ledger{}
	if err := s.AddTo(endWindow(s, l)); err != nil {
		t.Fatal(err)
	}
	for _, b := range l.Sandboxes {
		if b.ID == id {
			return b
		}
	}
	t.Fatal("the container was not found")
	return ledger.Sandbox{}
}

// On this machine, gross is net plus tare for a container that was created in the window.
func TestSandboxesOnThisMachine(t *testing.T) {
	id, procs := container(t)
	b := theSandbox(t, id, func() {
		w := startWorker(t)
		w.join(t, procs)
		w.work(t)
	})
	if len(b.Components) != 1 || b.Components[0].Component != "workload" || b.Components[0].CPU == nil ||
		b.NetCPU == nil || *b.NetCPU <= 0 || *b.GrossCPU != *b.NetCPU+*b.TareCPU || *b.TareCPU != 0 {
		t.Errorf("%+v", b)
	}
	if b.GrossMemory == nil || *b.GrossMemory == 0 || *b.GrossMemory != *b.NetMemory+*b.TareMemory {
		t.Errorf("memory %+v", b)
	}
}

// For a process that joins a sandbox in the window, CPU time counts from the beginning of the window, not from the
// start of the process.
func TestSandboxesLateJoiner(t *testing.T) {
	id, procs := container(t)
	w := startWorker(t)
	w.work(t)
	before, err := proc.Runtime(w.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	b := theSandbox(t, id, func() { w.join(t, procs) })
	if b.GrossCPU == nil || *b.GrossCPU > before.Seconds()/2 {
		t.Errorf("it has used %v s in the window, and %v before", b.GrossCPU, before)
	}
}

// CPU time of a process that existed before the window but was not read then does not count from the start of the
// process.
func TestSandboxesFirstEdgeUnread(t *testing.T) {
	id, procs := container(t)
	w := startWorker(t)
	w.work(t)
	w.join(t, procs)
	time.Sleep(50 * time.Millisecond) // the kernel reports start times with a resolution of 10 ms
	s := openSandboxes(t, sandbox.Options{})
	clear(s.edges[0].used)
	l := &ledger.Ledger{}
	if err := s.AddTo(endWindow(s, l)); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(l.Sandboxes, func(b ledger.Sandbox) bool { return b.ID == id })
	if i < 0 {
		t.Fatal("the container was not found")
	}
	if b := l.Sandboxes[i]; b.GrossCPU != nil ||
		!strings.Contains(strings.Join(b.Notes, "\n"), fmt.Sprintf("CPU time of process %d (sh)", w.cmd.Process.Pid)) {
		t.Errorf("CPU time %v: %q", b.GrossCPU, b.Notes)
	}
}

// In consecutive windows, each second of a process is in one of them, and the cost of reading an edge is in the window
// that begins there.
func TestSandboxesTick(t *testing.T) {
	id, procs := container(t)
	w := startWorker(t)
	w.join(t, procs)
	s := openSandboxes(t, sandbox.Options{})
	sum, began := 0.0, clockOf(t, w)
	for i, works := range []bool{true, false, true} {
		if works {
			w.work(t)
		}
		self := 1.0
		l := endWindow(s, &ledger.Ledger{Self: ledger.Self{CPUSeconds: self}})
		cost := s.cost.Seconds()
		if err := s.Tick(l); err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(l.Sandboxes, func(b ledger.Sandbox) bool { return b.ID == id })
		if at < 0 || l.Sandboxes[at].GrossCPU == nil {
			t.Fatalf("window %d: the container was not found, or not read", i)
		}
		used := *l.Sandboxes[at].GrossCPU
		if sum += used; works != (used > 0.01) {
			t.Errorf("window %d: the container used %v s", i, used)
		}
		if l.Self.SandboxSeconds == nil || *l.Self.SandboxSeconds != cost || l.Self.CPUSeconds != self {
			t.Errorf("window %d: the edge before took %v s, and the scale used %+v", i, cost, l.Self)
		}
	}
	if all := (clockOf(t, w) - began).Seconds(); sum > all+0.001 || sum < all-0.02 {
		t.Errorf("all windows have %v s of the %v s that it used", sum, all)
	}
}

// TestSandboxesSpan: the CPU time of a process in a sandbox is that of the window, however long opening the meter and
// writing the ledger take. If edges are read at other times than those of the window, a warning says so.
func TestSandboxesSpan(t *testing.T) {
	id, procs := container(t)
	keepBusy(t, filepath.Dir(procs))
	s := NewSandboxes(sandbox.Options{})
	t.Cleanup(s.Close)
	m := meter(t, Options{Sandboxes: s})
	l := ledgerOf(t, m, func() { works(filepath.Dir(procs), 300*time.Millisecond) })
	if err := s.AddTo(l); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(l.Sandboxes, func(b ledger.Sandbox) bool { return b.ID == id })
	if i < 0 || len(l.Sandboxes[i].Processes) != 1 {
		t.Fatal("the container was not found")
	}
	used := l.Sandboxes[i].Processes[0].CPU
	i = slices.IndexFunc(l.Cgroups, func(c ledger.Cgroup) bool { return filepath.Base(c.Path) == id })
	counted := l.Cgroups[i].CPUSeconds
	t.Logf("in %.3g s it used %.4g s, and its group %.4g s", l.Window.Seconds, *used, *counted)
	if math.Abs(*used-*counted) > 0.25**counted && codes(l, "sandboxes-span") == "" {
		t.Errorf("in %.3g s it used %.4g s, and its group %.4g s", l.Window.Seconds, *used, *counted)
	}
	l = &ledger.Ledger{Window: ledger.Window{Start: l.Window.Start, End: l.Window.End, Seconds: 0.9 * l.Window.Seconds}}
	if err := s.AddTo(l); err != nil || codes(l, "sandboxes-span") == "" {
		t.Errorf("error %v, warnings %v; want one about the span", err, l.Warnings)
	}
}

func clockOf(t *testing.T, w *worker) time.Duration {
	t.Helper()
	used, err := proc.Runtime(w.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// The CPU time of a container is that of its group in the ledger, so it includes processes that have ended.
func TestSandboxesCountByGroup(t *testing.T) {
	id, procs := container(t)
	w := startWorker(t)
	w.join(t, procs)
	s := openSandboxes(t, sandbox.Options{})
	path := fmt.Sprintf("/tare-test-%d/%s", os.Getpid(), id)
	counted, held := 3.25, &ledger.Memory{Hard: new(int64(1234))}
	l := &ledger.Ledger{Cgroups: []ledger.Cgroup{{Path: path, CPUSeconds: &counted, Memory: held}}}
	if err := s.AddTo(endWindow(s, l)); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(l.Sandboxes, func(b ledger.Sandbox) bool { return b.ID == id })
	if i < 0 {
		t.Fatal("the container was not found")
	}
	if b := l.Sandboxes[i]; b.GrossCPU == nil || *b.GrossCPU != counted || *b.NetCPU != counted || *b.TareCPU != 0 {
		t.Errorf("its group counted %g s: %+v", counted, b)
	}
	by := l.Sandboxes[i].ByContainer
	if len(by) != 1 || by[0].ID != id || by[0].Processes != 1 || by[0].CPU == nil || *by[0].CPU != counted ||
		by[0].Memory == nil ||
		by[0].Memory.PSS != *l.Sandboxes[i].GrossMemory {
		t.Errorf("by container: %+v", by)
	}
	groups := l.Sandboxes[i].Groups
	if g := slices.IndexFunc(groups, func(g ledger.SandboxGroup) bool { return g.Path == path }); g < 0 ||
		groups[g].Memory != held {
		t.Errorf("its group holds what the list of groups says: %+v", groups)
	}
}

// A process that has ended but has not been waited for has no memory, and the memory of the others is known.
func TestSandboxesWithZombie(t *testing.T) {
	id, procs := container(t)
	lives, dies := startWorker(t), startWorker(t)
	lives.join(t, procs)
	dies.join(t, procs)
	b := theSandbox(t, id, func() {
		dies.in.Close()
		for p, err := (proc.FS{}).Process(dies.cmd.Process.Pid); err != nil || p.Alive(); {
			time.Sleep(time.Millisecond)
			p, err = proc.FS{}.Process(dies.cmd.Process.Pid)
		}
	})
	alone, err := proc.FS{}.Rollup(lives.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if b.GrossMemory == nil || *b.GrossMemory == 0 || *b.GrossMemory > 2*alone.PSS || b.MeasuredOverhead == nil {
		t.Errorf("memory %v, and the process that is left has %d: %q", b.GrossMemory, alone.PSS, b.Notes)
	}
}

// A process that ended after the census, whose PID another process may have by now, has no memory either.
func TestSandboxesEndedProcess(t *testing.T) {
	s := &Sandboxes{}
	pid := os.Getpid()
	for _, p := range []*sandbox.Process{{PID: 1 << 22, Start: 1}, {PID: pid, Start: 1}} {
		if r := s.memoryOf(p); r.err != nil || r.memory.PSS != 0 || r.memory.Anon == nil {
			t.Errorf("process %d: %+v", p.PID, r)
		}
	}
	me, err := proc.FS{}.Process(pid)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.memoryOf(&sandbox.Process{PID: pid, Start: me.Start}); r.err != nil || r.memory.PSS == 0 {
		t.Errorf("this process: %+v", r)
	}
}

// Without the right to see which programs other users run, a warning says that sandboxes may be missing.
func TestSandboxesWithoutRights(t *testing.T) {
	other := exec.Command("sleep", "60") // of root
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	warned := func() (found bool) {
		s := openSandboxes(t, sandbox.Options{})
		l := &ledger.Ledger{}
		if err := s.AddTo(endWindow(s, l)); err != nil {
			t.Error(err)
		}
		return slices.ContainsFunc(l.Warnings, func(w ledger.Warning) bool { return w.Code == "programs-hidden" })
	}
	if warned() {
		t.Error("a warning, with all rights")
	}
	rights.Without(t, func() {
		if !warned() {
			t.Error("no warning, without the right to read programs")
		}
	})
}
