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

// workVariable makes the test binary run as a process that works in two functions.
const workVariable = "TARE_TEST_STACKS"

// threadTime keeps its thread busy for the CPU time d.
func threadTime(d time.Duration) {
	for end := pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID) + int64(d); pace.Clock(unix.CLOCK_THREAD_CPUTIME_ID) < end; {
	}
}

//go:noinline
func threeParts(d time.Duration) { threadTime(3 * d) }

//go:noinline
func onePart(d time.Duration) { threadTime(d) }

// workOn works until it is killed, three times as long in threeParts as in onePart. The lengths of its turns are
// random, so samples do not stay in step with them.
func workOn() {
	runtime.LockOSThread() // threadTime uses the clock of this thread
	for {
		d := time.Duration(rand.Int64N(int64(2 * time.Millisecond)))
		threeParts(d)
		onePart(d)
	}
}

// processTime returns the CPU time of all threads of a process.
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

// TestStacks: for a process that divides its CPU time 3:1 between two functions, the profile has the same ratio, and
// names what the process does in the kernel.
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
	for range 600 { // however busy the machine is
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
	// A sample that is late because the machine stood still counts once, so there may be fewer.
	if all := float64(three + one); all > 999*used*1.2+10 || all < 999*used*0.5 {
		t.Errorf("%g samples of %.3g s", all, used)
	}
	if n := count("clock_gettime"); n == 0 { // a system call, because the vDSO does not have that clock
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

// namesIn counts the samples of each function in a window, named by the kernel's symbols at its end.
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

// withoutSampler returns a Stacks without a sampler; tests pass it samples.
func withoutSampler() *Stacks {
	l, _ := testLocator(nil)
	return &Stacks{index: map[string]int{}, current: map[uint32]*readProcess{}, locator: l, left: maxMapped, to: forever}
}

// TestUnloadedPrograms: samples of an eBPF program have its name even if it was unloaded in the window and other
// programs took its place.
func TestUnloadedPrograms(t *testing.T) {
	const tag = "bpf_prog_0123456789abcdef_"
	s := withoutSampler()
	sample := func(at int64, chain ...uint64) { s.sample(&perf.Sample{PID: 5, TID: 5, Time: at, Chain: chain}) }
	sample(10, 0x1010, 0x501)
	sample(11, 0x501, 0x1100) // a return address just behind the program
	s.symbol(perf.Symbol{Start: 0x1000, Len: 0x100, Removed: true, Name: tag + "first", Time: 20})
	s.symbol(perf.Symbol{Start: 0x1000, Len: 0x80, Name: tag + "second", Time: 30})
	s.symbol(perf.Symbol{Start: 0x1000, Len: 0x80, Removed: true, Name: tag + "second", Time: 40})
	for _, at := range []int64{15, 35, 36, 45, 19, 39} { // from several CPUs, so in any order
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

// TestUnloadedProgram: the kernel reports when a program is unloaded, and its name.
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
		if err := runFor(p, 300*time.Millisecond); err != nil {
			t.Fatal(err)
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

// TestManyProcesses: processes that have ended make room for others, and samples of processes without room are counted.
func TestManyProcesses(t *testing.T) {
	for exits, want := range map[bool]int{true: 0, false: 2 * maxProfileProcesses} {
		s := withoutSampler()
		s.budget = mappedPerDrain
		for pid := uint32(1 << 23); pid < 1<<23+3*maxProfileProcesses; pid++ { // no process has such a high PID
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

// BenchmarkStacks measures what stacks at the usual rate cost while all CPUs are busy: the CPU time of this process, in
// percent of one CPU, over windows of 3 s. It excludes the kernel's part, which is charged to the interrupted tasks.
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
