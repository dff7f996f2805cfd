package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/scale/host/cgroup"
)

// manySandboxes is the number of sandboxes that Tare promises to read once a second with 1 % of a CPU.
const manySandboxes = 300

// crowd returns a machine with n pods under Kata on v2, each with a shim, a VMM of two vCPUs and a virtiofsd, and as
// many processes that are in no sandbox.
func crowd(n int) *fixture {
	f := &fixture{Cgroups: "v2", Groups: map[string]string{}}
	for i := range n {
		id, pod := fmt.Sprintf("%064x", i+1), fmt.Sprintf("%08x-92a0-4c63-8d0e-0d5b7f3a9e11", i+1)
		group := fmt.Sprintf("/kubepods/burstable/pod%s", pod)
		overhead := "/kata_overhead/" + id
		f.Groups[group], f.Groups[overhead] = "anon=100 shmem=200 file=50", "anon=20 shmem=5 file=5"
		at := 1000 + 10*i
		f.Procs = append(f.Procs,
			fixtureProcess{PID: at, Comm: "containerd-shim", At: overhead,
				Args: "containerd-shim-kata-v2 -namespace k8s.io -id " + id},
			fixtureProcess{PID: at + 1, PPID: at, Comm: "qemu-system-x86", At: group + "/kata_" + id,
				Args: "qemu-system-x86_64 -name sandbox-" + id + ",debug-threads=on",
				Threads: []fixtureThread{{TID: at + 2, Comm: "CPU 0/KVM"}, {TID: at + 3, Comm: "CPU 1/KVM"},
					{TID: at + 4, Comm: "IO mon_iothread"}}},
			fixtureProcess{PID: at + 5, PPID: at, Comm: "virtiofsd", At: overhead,
				Args: "virtiofsd --socket-path=/run/vc/vm/" + id + "/vhost-fs.sock"},
			fixtureProcess{PID: at + 6, Comm: "sh", At: "/system.slice/ssh.service", Args: "sh -c true"})
	}
	return f
}

// BenchmarkRead reads a tree of files with 300 sandboxes repeatedly, as would happen once a second. It reports the CPU
// time of one reading.
func BenchmarkRead(b *testing.B) {
	f, root := crowd(manySandboxes), b.TempDir()
	f.unpack(b, root)
	r, err := New(Options{Root: root})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	benchmarkRead(b, r, manySandboxes)
}

// BenchmarkReadKernel does the same with groups and processes of this machine's kernel: 300 sandboxes of three
// processes each, which do nothing but have Kata's command lines.
func BenchmarkReadKernel(b *testing.B) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		b.Fatal(err)
	}
	top := fmt.Sprintf("tare-test-%d-sandboxes", os.Getpid())
	var procs []*exec.Cmd
	var dirs []string
	b.Cleanup(func() {
		for _, c := range procs {
			c.Process.Kill()
			c.Wait()
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			if err := os.Remove(dirs[i]); err != nil {
				b.Errorf("removing a group of the test: %v", err)
			}
		}
	})
	in0, out, err := os.Pipe() // the processes wait for input from it
	if err != nil {
		b.Fatal(err)
	}
	defer in0.Close()
	defer out.Close()
	mkdir := func(path string) (made []string) {
		for i := range layout.Hierarchies {
			h := &layout.Hierarchies[i]
			if !h.V2 && !h.Has("cpuacct") && !h.Has("memory") {
				continue
			}
			dir := filepath.Join(h.Mount, path)
			if err := os.Mkdir(dir, 0o755); err != nil {
				b.Fatal(err)
			}
			dirs, made = append(dirs, dir), append(made, dir)
		}
		return made
	}
	start := func(in []string, args ...string) {
		c := exec.Command("sh", "-c", "read x")
		c.Args = append([]string{args[0], "-c", "read x"}, args[1:]...)
		c.Stdin = in0
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		procs = append(procs, c)
		for _, dir := range in {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendln(nil, c.Process.Pid), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	mkdir(top)
	mkdir(top + "/kata_overhead")
	for i := range manySandboxes {
		id := fmt.Sprintf("%064x", i+1)
		pod := fmt.Sprintf("%s/pod%08x-92a0-4c63-8d0e-0d5b7f3a9e11", top, i+1)
		mkdir(pod)
		inside, overhead := mkdir(pod+"/kata_"+id), mkdir(top+"/kata_overhead/"+id)
		start(overhead, "containerd-shim-kata-v2", "-id", id)
		start(inside, "qemu-system-x86_64", "-name", "sandbox-"+id)
		start(overhead, "virtiofsd", "--socket-path=/run/vc/vm/"+id+"/vhost-fs.sock")
	}
	r, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	benchmarkRead(b, r, manySandboxes)
}

func benchmarkRead(b *testing.B, r *Reader, want int) {
	c, err := r.Read(true)
	if err != nil {
		b.Fatal(err)
	}
	if len(c.Sandboxes) < want {
		b.Fatalf("%d sandboxes, want %d", len(c.Sandboxes), want)
	}
	first := r.cost
	for range settling + 1 {
		if _, err := r.Read(false); err != nil {
			b.Fatal(err)
		}
	}
	began := r.cost
	b.ResetTimer()
	for range b.N {
		if _, err := r.Read(false); err != nil {
			b.Fatal(err)
		}
	}
	each := (r.cost - began) / time.Duration(b.N)
	b.ReportMetric(float64(each.Microseconds())/1e3, "ms-CPU/reading")
	b.ReportMetric(float64(first.Microseconds())/1e3, "ms-CPU/first")
	b.ReportMetric(100*each.Seconds(), "%-of-a-CPU-at-1/s")
	if strings.Contains(b.Name(), "Kernel") {
		b.ReportMetric(float64(len(c.Sandboxes)), "sandboxes")
	}
}

// BenchmarkReadGather is BenchmarkRead with a helper of a sandbox that comes or goes before each reading, so everything
// is gathered again.
func BenchmarkReadGather(b *testing.B) {
	f, root := crowd(manySandboxes), b.TempDir()
	f.unpack(b, root)
	r, err := New(Options{Root: root})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	w := writer{b, root}
	p := fixtureProcess{PID: 9999, PPID: 1000, Comm: "x", Args: "x", At: f.Procs[1].At}
	if _, err := r.Read(true); err != nil {
		b.Fatal(err)
	}
	var cost time.Duration
	b.ResetTimer()
	for i := range b.N {
		if i%2 == 0 {
			f.process(w, p)
		} else if err := os.RemoveAll(filepath.Join(root, "proc", "9999")); err != nil {
			b.Fatal(err)
		}
		began := r.cost
		if _, err := r.Read(false); err != nil {
			b.Fatal(err)
		}
		cost += r.cost - began
	}
	b.ReportMetric(float64(cost.Microseconds())/1e3/float64(b.N), "ms-CPU/reading")
}
