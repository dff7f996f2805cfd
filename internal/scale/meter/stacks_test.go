package meter

import (
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"tare/internal/lib/pace"
	"tare/internal/lib/stats/interval"
	"tare/internal/scale/host/ksym"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/profile"
	"tare/test/busy"
)

// workVariable has a test's process work in two functions.
const workVariable = "TARE_TEST_STACKS"

// threadTime works for so much CPU time of its thread.
func threadTime(d time.Duration) {
	for end := pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID) + int64(d); pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID) < end; {
	}
}

//go:noinline
func threeParts(d time.Duration) { threadTime(3 * d) }

//go:noinline
func onePart(d time.Duration) { threadTime(d) }

// workOn works until it is killed, in threeParts three times as long as in onePart: in turns of random lengths, for
// samples would keep step with regular ones.
func workOn() {
	runtime.LockOSThread() // whose clock it works by
	for {
		d := time.Duration(rand.Int64N(int64(2 * time.Millisecond)))
		threeParts(d)
		onePart(d)
	}
}

// processTime is the CPU time of all threads of a process.
func processTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	d, err := proc.Runtime(pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// startWork starts a process that works until the test ends.
func startWork(t testing.TB) (pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// TestStacks: of a process that divides its CPU time 3:1 between two functions, the profile does so too, and names what
// it does in the kernel.
func TestStacks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("needs a real processor: an emulated one counts time in which it stood still as CPU time")
	}
	pid := startWork(t)
	s, err := OpenStacks(999)
	if err != nil {
		t.Fatal(err)
	}
	began := processTime(t, pid)
	if err := s.Begin(0, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	for range 600 { // whatever else runs here
		if time.Sleep(100 * time.Millisecond); processTime(t, pid)-began > 2*time.Second {
			break
		}
	}
	w, err := s.End()
	if err != nil {
		t.Fatal(err)
	}
	used := (processTime(t, pid) - began).Seconds()
	table := ksym.Open()
	defer table.Close()
	p, err := profile.Build(w, profile.NewFiles(table.Resolve), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	count := func(of string) (n int) {
		for _, sample := range p.Sample {
			if sample.NumLabel["pid"] == nil || sample.NumLabel["pid"][0] != int64(pid) {
				continue
			}
			if slices.ContainsFunc(sample.Location, func(l *pprof.Location) bool {
				return slices.ContainsFunc(l.Line, func(l pprof.Line) bool { return strings.HasSuffix(l.Function.Name, of) })
			}) {
				n += int(sample.Value[0])
			}
		}
		return n
	}
	three, one := count(".threeParts"), count(".onePart")
	lo, hi := interval.Binomial(three, three+one, 0.9999)
	if !(lo < 0.75 && 0.75 < hi) {
		t.Errorf("%d and %d samples: three parts of four are between %.3f and %.3f", three, one, lo, hi)
	}
	// A sample that comes late because the machine stood still counts once: there may be fewer.
	if all := float64(three + one); all > 999*used*1.2+10 || all < 999*used*0.5 {
		t.Errorf("%g samples of %.3g s", all, used)
	}
	if n := count("clock_gettime"); n == 0 { // of a system call: that clock is not in the vDSO
		t.Error("nothing of the kernel is named")
	}
	if w.Left > 0 || w.Lost > 0 {
		t.Logf("%d samples lost, %d of too many stacks", w.Lost, w.Left)
	}
	groups := map[string]bool{}
	for _, sample := range p.Sample {
		if sample.NumLabel["pid"] != nil && sample.NumLabel["pid"][0] == int64(pid) {
			groups[strings.Join(sample.Label["group"], " ")] = true
		}
	}
	if len(groups) != 1 || groups[""] {
		t.Errorf("its groups are %v", groups)
	}
}

// namesIn counts the samples of each function in a window, by the names that the kernel has at its end.
func namesIn(t *testing.T, w *profile.Window, kernel func([]uint64) ([]string, error)) map[string]int {
	t.Helper()
	p, err := profile.Build(w, profile.NewFiles(kernel), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, sample := range p.Sample {
		for _, l := range sample.Location {
			for _, line := range l.Line {
				names[line.Function.Name] += int(sample.Value[0])
			}
		}
	}
	return names
}

// withoutSampler is a Stacks that is given its samples.
func withoutSampler() *Stacks {
	l, _ := testLocator(nil)
	return &Stacks{index: map[string]int{}, current: map[uint32]*readProcess{}, locator: l, left: maxMapped, to: forever}
}

// TestUnloadedPrograms: samples of an eBPF program have its name, though it was unloaded in the window, and though
// others took its place.
func TestUnloadedPrograms(t *testing.T) {
	const tag = "bpf_prog_0123456789abcdef_"
	s := withoutSampler()
	sample := func(at int64, chain ...uint64) { s.sample(&perf.Sample{PID: 5, TID: 5, Time: at, Chain: chain}) }
	sample(10, 0x1010, 0x501)
	sample(11, 0x501, 0x1100) // a return address just behind it
	s.symbol(perf.Symbol{Start: 0x1000, Len: 0x100, Removed: true, Name: tag + "first", Time: 20})
	s.symbol(perf.Symbol{Start: 0x1000, Len: 0x80, Name: tag + "second", Time: 30})
	s.symbol(perf.Symbol{Start: 0x1000, Len: 0x80, Removed: true, Name: tag + "second", Time: 40})
	for _, at := range []int64{15, 35, 36, 45, 19, 39} { // of several CPUs, so in no order
		sample(at, 0x1010, 0x501)
	}
	sample(45, 0x501)
	got := namesIn(t, &s.window, func(addresses []uint64) ([]string, error) {
		names := make([]string, len(addresses))
		for i, a := range addresses {
			switch {
			case a < 0x1000:
				names[i] = "run"
			case a < 0x1080:
				names[i] = tag + "third"
			}
		}
		return names, nil
	})
	if want := map[string]int{"bpf:first": 4, "bpf:second": 3, "bpf:third": 1, "run": 9}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestUnloadedProgram: the kernel says when a program is unloaded, and what it was called.
func TestUnloadedProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s, err := OpenStacks(999)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(0, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tare_old", "tare_older", "tare_new"} {
		p, err := busy.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
			if err := busy.Run(p, 1000); err != nil {
				t.Fatal(err)
			}
		}
		if name != "tare_new" {
			p.Close()
		}
	}
	w, err := s.End()
	if err != nil {
		t.Fatal(err)
	}
	table := ksym.Open()
	defer table.Close()
	names := namesIn(t, w, table.Resolve)
	for _, name := range []string{"bpf:tare_old", "bpf:tare_older", "bpf:tare_new"} {
		if names[name] < 10 {
			t.Errorf("%s has %d samples", name, names[name])
		}
	}
}

// TestManyProcesses: processes that have ended make room for others, and what there is no room for is counted.
func TestManyProcesses(t *testing.T) {
	for exits, want := range map[bool]int{true: 0, false: 2 * maxProfileProcesses} {
		s := withoutSampler()
		s.budget = mappedPerDrain
		for pid := uint32(1 << 23); pid < 1<<23+3*maxProfileProcesses; pid++ { // none is so high
			s.sample(&perf.Sample{PID: pid, TID: pid, Chain: []uint64{1}})
			if exits {
				s.task(perf.Task{Exit: true, PID: pid, TID: pid})
			}
		}
		if s.window.Unread != want {
			t.Errorf("exits: %v: %d samples of processes that were not read, want %d", exits, s.window.Unread, want)
		}
	}
}

// What stacks at the usual rate cost while all CPUs are busy: the CPU time of this process, in percent of a CPU, for
// windows of 3 s. The kernel's share, which is charged to what it interrupts, is not in it.
func BenchmarkStacks(b *testing.B) {
	for range runtime.NumCPU() {
		startWork(b)
	}
	used, took := time.Duration(0), time.Duration(0)
	for b.Loop() {
		began, cpu := time.Now(), pace.Clock(unix.CLOCK_PROCESS_CPUTIME_ID)
		s, err := OpenStacks(profile.Hz)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Begin(0, math.MaxInt64); err != nil {
			b.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if _, err := s.End(); err != nil {
			b.Fatal(err)
		}
		used += time.Duration(pace.Clock(unix.CLOCK_PROCESS_CPUTIME_ID) - cpu)
		took += time.Since(began)
	}
	b.ReportMetric(100*used.Seconds()/took.Seconds(), "%CPU")
}
