package execs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	loadexec "tare/internal/tracing/exec"
	"tare/internal/tracing/execs"
)

func open(t testing.TB, group uint64) *execs.Counter {
	t.Helper()
	c, err := execs.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if missed, err := c.Missed(); err != nil || missed != 0 {
			t.Errorf("the kernel left %d runs of the program out: %v", missed, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func read(t testing.TB, c *execs.Counter) execs.Counts {
	t.Helper()
	n, err := c.Read()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// group is a v2 control group for the processes of a test.
type group struct {
	dir *os.File
	id  uint64
}

// groups makes control groups and removes them after the test.
func groups(t testing.TB, names ...string) map[string]group {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := placement.NewTree(layout, "execs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	all := map[string]group{}
	for _, name := range names {
		g, err := tree.Group(name, placement.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(g.V2Dir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		id, err := execs.CgroupID(dir.Name())
		if err != nil {
			t.Fatal(err)
		}
		all[name] = group{dir, id}
	}
	return all
}

// in runs a program in the group.
func (g group) in(path string, args ...string) error {
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.dir.Fd())}
	return cmd.Run()
}

// TestCounts: each successful exec counts once, in its group.
func TestCounts(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/true\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := groups(t, "one", "two", "above/below")
	for name, c := range map[string]struct {
		run   func() error
		fails bool
		want  map[string]uint64
	}{
		"a program": {func() error { return g["one"].in("true") }, false, map[string]uint64{"one": 1}},
		"a script":  {func() error { return g["one"].in(script) }, false, map[string]uint64{"one": 1}},
		"a shell and more": {func() error { return g["two"].in("sh", "-c", "/bin/true; exec /bin/true") }, false,
			map[string]uint64{"two": 3}},
		"another group": {func() error { return g["above/below"].in("true") }, false,
			map[string]uint64{"above/below": 1}},
		"a program that fails": {func() error { return g["one"].in("false") }, true, map[string]uint64{"one": 1}},
		"no program":           {func() error { return g["one"].in(text) }, true, nil},
		"no such file":         {func() error { return g["one"].in(filepath.Join(t.TempDir(), "none")) }, true, nil},
		"elsewhere":            {func() error { return exec.Command("true").Run() }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			counters := map[string]*execs.Counter{}
			for name, g := range g {
				counters[name] = open(t, g.id)
			}
			if err := c.run(); (err != nil) != c.fails {
				t.Fatal(err)
			}
			for group, counter := range counters {
				n := read(t, counter)
				if n.Group != c.want[group] || n.All < n.Group || name == "elsewhere" && n.All == 0 {
					t.Errorf("%d execs in %s and %d in all, want %d", n.Group, group, n.All, c.want[group])
				}
			}
		})
	}
}

// TestBelow: a group's count does not include the groups below it.
func TestBelow(t *testing.T) {
	g := groups(t, "above/below")["above/below"]
	above, err := execs.CgroupID(filepath.Dir(g.dir.Name()))
	if err != nil {
		t.Fatal(err)
	}
	c, ofAbove := open(t, g.id), open(t, above)
	if err := g.in("true"); err != nil {
		t.Fatal(err)
	}
	if n, above := read(t, c).Group, read(t, ofAbove).Group; above != 0 || n != 1 {
		t.Errorf("%d execs above, %d below", above, n)
	}
}

// TestOpen: execs before Open do not count.
func TestOpen(t *testing.T) {
	g := groups(t, "one")["one"]
	for want := range uint64(2) {
		c := open(t, g.id)
		for range want {
			if err := g.in("true"); err != nil {
				t.Fatal(err)
			}
		}
		if n := read(t, c); n.Group != want {
			t.Errorf("%d execs are counted, want %d", n.Group, want)
		}
	}
}

// TestProgram: Program returns the id of the counting program.
func TestProgram(t *testing.T) {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(open(t, 1).Program()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name != "tare_execs" || info.Type != ebpf.RawTracepoint {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestAgainstPerf: the machine's count equals perf's count of the same tracepoint. Other processes execute meanwhile,
// so each reading must lie between two of perf's.
func TestAgainstPerf(t *testing.T) {
	witness := openPerf(t, tracepointID(t))
	g := groups(t, "one")["one"]
	c := open(t, g.id)
	type reading struct{ before, ours, after uint64 }
	look := func() reading { return reading{witness.count(t), read(t, c).All, witness.count(t)} }
	first := look()
	for range 50 {
		if err := g.in("true"); err != nil {
			t.Fatal(err)
		}
	}
	last := look()
	ours, least, most := last.ours-first.ours, last.before-first.after, last.after-first.before
	if ours < least || ours > most || ours < 50 {
		t.Errorf("counted %d, and perf %d to %d", ours, least, most)
	}
	t.Logf("counted %d execs, perf %d to %d", ours, least, most)
}

// tracepointID returns perf's number of the tracepoint. Only tracefs has it, which is mounted here in a private
// namespace.
func tracepointID(t *testing.T) uint64 {
	t.Helper()
	dir := t.TempDir()
	text, err := make(chan string, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its mounts
		b, e := func() ([]byte, error) {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return nil, fmt.Errorf("leaving the mounts of others: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return nil, fmt.Errorf("keeping mounts to itself: %w", err)
			}
			if err := unix.Mount("tracefs", dir, "tracefs", 0, ""); err != nil {
				return nil, fmt.Errorf("mounting tracefs: %w", err)
			}
			return os.ReadFile(filepath.Join(dir, "events/sched/sched_process_exec/id"))
		}()
		text <- string(b)
		err <- e
	}()
	s, e := <-text, <-err
	if errors.Is(e, unix.ENODEV) {
		t.Skip("needs tracefs, which this kernel does not have")
	}
	if e != nil {
		t.Fatal(e)
	}
	id, e := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if e != nil {
		t.Fatal(e)
	}
	return id
}

// perf is a counter of a tracepoint on each CPU.
type perf []int

func openPerf(t *testing.T, id uint64) (p perf) {
	t.Helper()
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	for cpu := range cpus {
		fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Size: unix.PERF_ATTR_SIZE_VER5,
			Config: id}, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENODEV) {
			continue // the CPU is not online
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		p = append(p, fd)
	}
	return p
}

func (p perf) count(t *testing.T) (sum uint64) {
	t.Helper()
	for _, fd := range p {
		var b [8]byte
		if n, err := unix.Read(fd, b[:]); n != len(b) || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		sum += binary.NativeEndian.Uint64(b[:])
	}
	return sum
}

// TestClose: nothing is left in the kernel.
func TestClose(t *testing.T) {
	c, err := execs.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	id := ebpf.ProgramID(c.Program())
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for { // the kernel frees the program with a delay
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
}

// TestUnprivileged: without privileges there is an error that says so.
func TestUnprivileged(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=nobody")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != int(fault.Machine) || !strings.Contains(string(out), "run as root") {
		t.Errorf("%v: %s", err, out)
	}
}

const helperEnv = "TARE_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) == "nobody" {
		err := unix.Setuid(65534)
		if err == nil {
			_, err = execs.Open(1)
		}
		fmt.Println(err, fault.HintOf(err))
		os.Exit(int(fault.CodeOf(err)))
	}
	os.Exit(m.Run())
}

// BenchmarkCost measures the program's cost per exec, as its run time in the kernel. Each iteration is a storm of half
// a second in the counted group.
func BenchmarkCost(b *testing.B) {
	id, err := ownGroup()
	if err != nil {
		b.Fatal(err)
	}
	c := open(b, id)
	stats, err := bpf.EnableStats()
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(c.Program()))
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for b.Loop() {
		l, err := loadexec.New(loadexec.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.Run(context.Background(), role.Schedule{Begin: pace.Now(), Duration: 500e6}); err != nil {
			b.Fatal(err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	n, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n.Runtime.Nanoseconds())/float64(n.RunCount), "ns/exec")
}

// ownGroup returns the id of this process's v2 group.
func ownGroup() (uint64, error) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return 0, err
	}
	h, ok := layout.V2()
	if !ok {
		return 0, errors.New("no v2 hierarchy is mounted")
	}
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return execs.CgroupID(filepath.Join(h.Mount, path))
		}
	}
	return 0, errors.New("this process is in no v2 group")
}
