package meter

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/ledger"
)

// TestMain lets the test binary enter a control group, as tare does when it executes itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	if os.Getenv(workVariable) != "" {
		workOn()
	}
	if d, err := time.ParseDuration(os.Getenv(runVariable)); err == nil {
		if err := runProgram(d); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func light(t testing.TB) *Light {
	t.Helper()
	l, err := NewLight(Options{})
	if errors.Is(err, feature.ErrMissing) {
		t.Skipf("needs a machine that can be weighed: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// ownTree returns a tree of groups with a process in the group "work" that holds the given number of programs, each of
// which was a filter of one socket. It also returns the last program, and a function that sends packets to the socket.
func ownTree(t testing.TB, programs int) (*placement.Tree, *ebpf.Program, func(packets int)) {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := placement.NewTree(layout, "light")
	if err != nil {
		t.Skipf("needs control groups that can be made: %v", err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	group, err := tree.Group("work", placement.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	var last *ebpf.Program
	for range programs {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "light_filter", Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		fd, err := unix.FcntlInt(uintptr(p.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "program")
		t.Cleanup(func() { f.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		last = p
	}
	if err := group.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // it is dead once the tree is closed
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for len(layout.Members([]string{tree.Name()})) == 0 { // the process may not have entered yet
		time.Sleep(time.Millisecond)
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_BPF, last.FD()); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree, last, func(packets int) {
		for range packets {
			if _, err := conn.WriteTo([]byte{0}, conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLight: a light meter measures only the groups of the given trees and the programs held there, and its counters
// equal those in the files.
func TestLight(t *testing.T) {
	l := light(t)
	tree, program, send := ownTree(t, 2)
	stats, err := bpf.EnableStats()
	if err != nil {
		t.Skipf("needs the kernel's run statistics: %v", err)
	}
	defer stats.Close()
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "not_ours", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() // held by this process, which is in none of the groups being weighed

	group, ok := cpuHierarchy(t).Dir(tree.Path())
	if !ok {
		t.Fatalf("%s is not in the hierarchy of CPU time", tree.Path())
	}
	if _, err := l.Open(); err == nil {
		t.Error("a window was opened that nobody had prepared")
	}
	for range 2 {
		if err := l.Prepare(tree.Name()); err != nil {
			t.Fatal(err)
		}
		w, err := l.Open()
		if err != nil {
			t.Fatal(err)
		}
		send(10)
		works(group, 30*time.Millisecond)
		got, err := w.Close()
		if err != nil {
			t.Fatal(err)
		}
		checkLight(t, got, tree.Path(), program)
	}
}

// cpuHierarchy returns this machine's hierarchy of control groups that counts CPU time.
func cpuHierarchy(t *testing.T) *cgroup.Hierarchy {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.CPU()
	if !ok {
		t.Skip("needs the CPU time of control groups")
	}
	return h
}

// works waits until the processes of the control group in a directory have used the given additional CPU time, which
// may take a while on a busy machine, and at least 200 ms.
func works(dir string, more time.Duration) {
	used := func() time.Duration { return time.Duration(cgroup.CPUTime(dir).N) }
	for began := used(); used() < began+more; {
		time.Sleep(200 * time.Millisecond)
	}
}

func checkLight(t *testing.T, l *ledger.Ledger, tree string, program *ebpf.Program) {
	t.Helper()
	if l.Window.EdgeSeconds <= 0 {
		t.Error("it does not say how far apart its counters were read")
	}
	var paths []string
	for _, g := range l.Cgroups {
		paths = append(paths, g.Path)
		// if this process is held up between the window's end and a counter, it reads more
		most := 1.2*l.Window.Seconds + l.Window.EdgeSeconds
		if g.CPUSeconds == nil || g.Memory == nil || g.BPFSeconds != nil {
			t.Errorf("%s: CPU %v, memory %v, BPF time %v", g.Path, g.CPUSeconds, g.Memory, g.BPFSeconds)
		} else if *g.CPUSeconds < 0.02 || *g.CPUSeconds > most {
			t.Errorf("%s: CPU %g s of %+v", g.Path, *g.CPUSeconds, l.Window)
		}
	}
	slices.Sort(paths)
	if want := []string{tree, tree + "/work"}; !slices.Equal(paths, want) {
		t.Errorf("the groups are %v, want %v", paths, want)
	}
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	if len(l.Programs) != 2 {
		t.Errorf("%d programs", len(l.Programs))
	}
	for _, p := range l.Programs {
		runs := uint64(0)
		if p.ID == uint32(id) {
			runs = 10
		}
		if p.RunCount == nil || *p.RunCount != runs || len(p.Owners) != 2 || !strings.HasPrefix(p.Name, "light_filter") {
			t.Errorf("%+v, want %d runs and two owners", p, runs)
		}
	}
	if l.CPU.Capacity != 0 || l.Host.Sampler != "" || len(l.Warnings) == 0 || l.Warnings[0].Code != LightWarning {
		t.Errorf("it claims more than it weighs: %+v, %+v", l.CPU, l.Warnings)
	}
	if l.Window.Seconds < 0.2 || l.Self.CPUSeconds <= 0 {
		t.Errorf("window %+v, self %+v", l.Window, l.Self)
	}
}

// BenchmarkLight compares the cost of both edges with that of a full meter, on a machine with as many programs as 25
// nodes with a tracer have.
func BenchmarkLight(b *testing.B) {
	l := light(b)
	tree, _, _ := ownTree(b, 50)
	spent := map[string]time.Duration{}
	step := func(name string, do func() error) {
		before := selfTime()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		spent[name] += selfTime() - before
	}
	var w *LightWindow
	for b.Loop() {
		step("prepare", func() error { return l.Prepare(tree.Name()) })
		step("open", func() (err error) { w, err = l.Open(); return err })
		step("close", func() error { _, err := w.Close(); return err })
	}
	for name, d := range spent {
		b.ReportMetric(float64(d.Microseconds())/float64(b.N), "us-"+name)
	}
}
