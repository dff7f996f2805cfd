package meter

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
	"tare/test/rights"
	"tare/test/vm/guest"
)

// pages is the resident memory of a process in a tree of files, in MB.
type pages struct{ anon, file, shmem, tables int }

// machine makes a tree of files: a machine with cgroup v2 and one sandbox of Kata, whose shim and virtiofsd are outside
// of its pod.
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

// A sandbox of a virtual machine, taken apart: the guest's memory is that which its VMM and virtiofsd share, gross is
// net and tare, and charges are told apart from what processes have resident.
func TestSandboxesAddTo(t *testing.T) {
	guest.KernelFree(t)
	root, id := machine(t)
	s, err := OpenSandboxes(sandbox.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := &ledger.Ledger{}
	if err := s.AddTo(l); err != nil {
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
	s, err := OpenSandboxes(sandbox.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := s.reader.Read(true)
	if err != nil {
		t.Fatal(err)
	}
	memory, unread := s.resident(c, -1)
	if len(memory) != 0 || unread != 3 {
		t.Errorf("%d were read, %d not", len(memory), unread)
	}
	e := entry{s: s, c: c, b: c.Sandboxes[0], l: &ledger.Ledger{}, memory: memory}
	b, err := e.sandbox()
	if err != nil {
		t.Fatal(err)
	}
	if b.GrossMemory != nil || b.NetMemory != nil || b.TareMemory != nil || b.MeasuredOverhead != nil ||
		len(b.Notes) == 0 {
		t.Errorf("%+v", b)
	}
	if !strings.Contains(b.Findings[0].Message, "size not read") {
		t.Errorf("%+v", b.Findings)
	}
}

// On this machine: gross is net and tare of a container of runc's that was never in an engine's hands, and its CPU time
// is what its group has used.
func TestSandboxesOnThisMachine(t *testing.T) {
	h := cpuHierarchy(t)
	id := strings.Repeat("5a", 32)
	top := fmt.Sprintf("/tare-test-%d", os.Getpid())
	for _, path := range []string{top, top + "/" + id} {
		dir, _ := h.Dir(path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir)
	}
	busy := exec.Command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; read x")
	in, err := busy.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := busy.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenSandboxes(sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer busy.Wait()
	defer in.Close()
	dir, _ := h.Dir(top + "/" + id)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendln(nil, busy.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	l := &ledger.Ledger{}
	if err := s.AddTo(l); err != nil {
		t.Fatal(err)
	}
	for _, b := range l.Sandboxes {
		if b.ID != id {
			continue
		}
		if len(b.Components) != 1 || b.Components[0].Component != "workload" || b.Components[0].CPU == nil ||
			b.NetCPU == nil || *b.NetCPU <= 0 || *b.GrossCPU != *b.NetCPU+*b.TareCPU || *b.TareCPU != 0 {
			t.Errorf("%+v", b)
		}
		if b.GrossMemory == nil || *b.GrossMemory == 0 || *b.GrossMemory != *b.NetMemory+*b.TareMemory {
			t.Errorf("memory %+v", b)
		}
		return
	}
	t.Error("the container was not found")
}

// Without the right to see which programs others run, the ledger says that sandboxes may be missing.
func TestSandboxesWithoutRights(t *testing.T) {
	other := exec.Command("sleep", "60") // of root
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	warned := func() (found bool) {
		s, err := OpenSandboxes(sandbox.Options{})
		if err != nil {
			t.Error(err)
			return false
		}
		defer s.Close()
		l := &ledger.Ledger{Window: ledger.Window{Seconds: 1}}
		if err := s.AddTo(l); err != nil {
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
