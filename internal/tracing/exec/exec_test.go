package exec

import (
	"bytes"
	"context"
	"debug/elf"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	osexec "os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/cgroup"
	"tare/internal/tracing/execs"
	"tare/test/vm/guest"
)

// If one of these variables is set, the test binary plays a role instead of running tests.
const (
	roleEnv   = "TARE_TEST_ROLE"   // the load, with the options in the variable
	noexecEnv = "TARE_TEST_NOEXEC" // a process in a PID namespace where files in memory cannot be executed
)

func TestMain(m *testing.M) {
	switch {
	case os.Args[0] == Argv0:
		os.Exit(playTarget())
	case len(os.Args) > 1 && os.Args[1] == placement.EnterCommand:
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	case os.Getenv(roleEnv) != "":
		os.Exit(playRole(os.Getenv(roleEnv)))
	case os.Getenv(noexecEnv) != "":
		os.Exit(playNoexec())
	}
	os.Exit(m.Run())
}

// playTarget is the program that the load executes in some tests. It writes how it was executed to a file named after
// its argument, and ends as the file "end" says.
func playTarget() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 99
	}
	report := fmt.Sprintf("Args:\t%q\nEnv:\t%q\n%s", os.Args, os.Environ(), status)
	if err := os.WriteFile(os.Args[1], []byte(report), 0o600); err != nil {
		return 99
	}
	switch end, _ := os.ReadFile("end"); string(end) { // without the file it succeeds
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	case "exit":
		return 3
	}
	return 0
}

func playRole(options string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	var o Options
	err := json.Unmarshal([]byte(options), &o)
	if err == nil {
		err = Run(ctx, o, role.Stdio())
	}
	return int(fault.CodeOf(err))
}

func playNoexec() int {
	if err := os.WriteFile("/proc/sys/vm/memfd_noexec", []byte("2"), 0); err != nil {
		fmt.Println(err)
		return 99
	}
	l, err := New(Options{})
	if err == nil {
		_ = l.Close()
	}
	fmt.Println(err, fault.HintOf(err))
	return int(fault.CodeOf(err))
}

func schedule(warmup, duration time.Duration) role.Schedule {
	return role.Schedule{Begin: pace.Now() + int64(5*time.Millisecond), Warmup: int64(warmup), Duration: int64(duration)}
}

// window returns a duration in which something must happen, longer on an emulated machine.
func window(d time.Duration) time.Duration {
	if testing.Short() {
		return 5 * d
	}
	return d
}

func start(t testing.TB, o Options) *Load {
	t.Helper()
	l, err := New(o)
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

// run starts a load, and runs it once it is ready, because starting it may take longer than a window.
func run(t testing.TB, o Options, warmup, duration time.Duration) (*Load, *load.Result) {
	t.Helper()
	l := start(t, o)
	r, err := l.Run(t.Context(), schedule(warmup, duration))
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

// process is a load that runs as a process in a separate control group.
type process struct {
	*role.Conn
	cmd   *osexec.Cmd
	input io.Closer
	ready Ready
	dir   string // of its v2 group
}

func startProcess(t *testing.T, o Options) *process {
	t.Helper()
	tree := newTree(t)
	g, err := tree.Group("load", placement.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: osexec.Command(exe), dir: g.V2Dir()}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+string(options))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	p.Conn, p.input = role.NewConn(out, in), in
	if err := p.Expect(role.Ready, &p.ready, nil); err != nil {
		t.Fatal(err)
	}
	return p
}

func newTree(t *testing.T) *placement.Tree {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := placement.NewTree(layout, "load-exec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// emptied waits until the process's group is empty.
func (p *process) emptied(t *testing.T) {
	t.Helper()
	for {
		b, err := os.ReadFile(filepath.Join(p.dir, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestCounts: from ready to result, the load's count exactly equals the kernel's count of its group, in storm after
// storm.
func TestCounts(t *testing.T) {
	warmed, made := false, 0.0
	for name, c := range map[string]struct {
		o     Options
		times int
	}{
		"storm":             {Options{}, 5},
		"storm on one CPU":  {Options{Workers: 1}, 2},
		"storm of many":     {Options{Workers: MaxPerCPU * runtime.NumCPU()}, 2},
		"rate":              {Options{Rate: 400}, 2},
		"more than it can":  {Options{Rate: 50_000}, 1},
		"rate, no spinning": {Options{Rate: 400, Spin: -1}, 1},
	} {
		if testing.Short() {
			c.times = 1
		}
		for i := range c.times {
			t.Run(fmt.Sprintf("%s %d", name, i), func(t *testing.T) {
				all, inWindow := countBoth(t, c.o)
				warmed, made = warmed || all > inWindow, made+all
			})
		}
	}
	if (!warmed || made == 0) && !t.Failed() {
		t.Errorf("%g execs were made, and none outside of a window; all have a warm-up", made)
	}
}

// countBoth compares both counts for one run of the load, and returns how many execs were made in all, and in the
// window. Both are 0 if the machine stood still for the whole run.
func countBoth(t *testing.T, o Options) (all, inWindow float64) {
	p := startProcess(t, o)
	group, err := execs.CgroupID(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	counter, err := execs.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer counter.Close()
	time.Sleep(20 * time.Millisecond) // nothing may be executed meanwhile
	if n, err := counter.Read(); err != nil || n.Group != 0 {
		t.Errorf("%d execs before the start, %v", n.Group, err)
	}
	if err := p.Send(role.Start, schedule(window(50*time.Millisecond), window(200*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	var r load.Result
	if err := p.Expect(role.Result, &r, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	n, err := counter.Read()
	if err != nil {
		t.Fatal(err)
	}
	missed, err := counter.Missed()
	if err != nil || missed != 0 {
		t.Errorf("the kernel's counter missed %d, %v", missed, err)
	}
	if made := r.Counts[CountMade]; float64(n.Group) != made || r.Counts[CountFailed] != 0 ||
		made < float64(*r.Finished) || *r.Finished < r.Done-r.Late || r.Done != r.Sent {
		t.Errorf("made %g, the kernel counted %d; %g failed, %d of %d done in the window", made, n.Group,
			r.Counts[CountFailed], r.Done, r.Intended)
	}
	p.input.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	p.emptied(t)
	return r.Counts[CountMade], float64(r.Done)
}

// TestRate: the schedule contains exactly rate times duration execs, and all of them are made.
func TestRate(t *testing.T) {
	guest.KernelFree(t)
	const rate, length = 100.0, time.Second // the last exec has 10 ms to end inside the window
	for try := 1; ; try++ {
		_, r := run(t, Options{Rate: rate}, 100*time.Millisecond, length)
		want := int64(rate * length.Seconds())
		if r.Intended != want || r.Mode != load.Open || r.Arrivals != string(pace.Constant) || r.TargetRate != rate ||
			r.Counts[CountMade] != float64(r.Done)+rate/10 && r.Done == want {
			t.Fatalf("%+v", r)
		}
		if r.Done == want && r.Rate == rate {
			return
		}
		// If the machine is busy at the very end of the window, the last execs start late and are not made, or end after it.
		if try == 20 {
			t.Fatalf("of %d execs %d were made, at %g/s", r.Intended, r.Done, r.Rate)
		}
	}
}

// TestThird: a rate whose gaps are not a whole number of ns keeps to its schedule: a window of 10 ms has the starts at
// 0, 1 and 2 times 10/3 ms, and not the one at its end.
func TestThird(t *testing.T) {
	guest.KernelFree(t)
	for _, workers := range []int{1, 2, 3} {
		if _, r := run(t, Options{Rate: 300, Workers: workers}, 0, 10*time.Millisecond); r.Intended != 3 {
			t.Errorf("%d workers: the schedule holds %d", workers, r.Intended)
		}
	}
}

// TestMeasures: times, slices and CPU time cover the window, and are consistent.
func TestMeasures(t *testing.T) {
	guest.KernelFree(t)
	for name, c := range map[string]struct {
		o          Options
		histograms []string
		mode       string
	}{
		"storm": {Options{}, []string{load.Latency, load.Service}, load.Closed},
		"rate":  {Options{Rate: 200}, []string{load.Latency, load.Service, load.Lag, load.OwnLag}, load.Open},
	} {
		t.Run(name, func(t *testing.T) {
			l, r := run(t, c.o, 50*time.Millisecond, 300*time.Millisecond)
			if r.Generator != Generator || r.Mode != c.mode || r.Seconds != (300*time.Millisecond).Seconds() ||
				len(r.Errors) != 0 || r.Unfinished != 0 || r.Done != r.Sent || r.Done > r.Intended ||
				r.Late > int64(len(l.workers)) {
				t.Errorf("%+v", r)
			}
			if r.CPUs != float64(min(len(l.workers), runtime.NumCPU())) || r.Counts[CountWorkers] != float64(len(l.workers)) ||
				r.CPUSeconds <= 0 {
				t.Errorf("%g CPU seconds of %g CPUs, %g workers", r.CPUSeconds, r.CPUs, r.Counts[CountWorkers])
			}
			if len(r.Histograms) != len(c.histograms) {
				t.Errorf("%d histograms, want %v", len(r.Histograms), c.histograms)
			}
			for _, name := range c.histograms {
				h, err := r.Histogram(name)
				if err != nil || h == nil || h.TotalCount() != r.Done {
					t.Fatalf("%s: %v, %v", name, h, err)
				}
				var sum uint64
				for _, w := range l.workers {
					sum += map[string]*fine{load.Latency: &w.s.Latency, load.Service: &w.s.Service, load.Lag: &w.s.Lag,
						load.OwnLag: &w.s.OwnLag}[name].Sum
				}
				// The worker sums the times as well: a value in a wrong bucket would show.
				mean := float64(sum) / float64(r.Done)
				if got := h.Mean(); math.Abs(got-mean) > 0.001*mean+1 {
					t.Errorf("%s: the mean of the histogram is %g ns, that of the values %g", name, got, mean)
				}
			}
			latency, _ := r.Histogram(load.Latency)
			service, _ := r.Histogram(load.Service)
			if service.Min() < 10_000 || latency.Mean() < service.Mean() {
				t.Errorf("an exec took %d ns at least, %g on average, and %g from its intended start", service.Min(),
					service.Mean(), latency.Mean())
			}
			sum := int64(0)
			for _, s := range r.Slices {
				sum += s.Done
				if s.Done > 0 && (s.P50 < float64(latency.Min())/1.02e9 || s.P50 > 1.02*float64(latency.Max())/1e9) {
					t.Errorf("a slice's median is %g s, of %d to %d ns", s.P50, latency.Min(), latency.Max())
				}
			}
			if len(r.Slices) != load.Slices || sum != r.Done {
				t.Errorf("%d in %d slices, %d done", sum, len(r.Slices), r.Done)
			}
		})
	}
}

// TestCPUTime: the load's CPU time includes the cost of the execs, and is not more than was used.
func TestCPUTime(t *testing.T) {
	own, execs := usedCPU(t, unix.RUSAGE_SELF), usedCPU(t, unix.RUSAGE_CHILDREN)
	l, r := run(t, Options{Workers: 1}, 0, window(300*time.Millisecond))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	own, execs = usedCPU(t, unix.RUSAGE_SELF)-own, usedCPU(t, unix.RUSAGE_CHILDREN)-execs
	// This process's supervision of the workers counts as CPU time of the load, but not what else the process does. An
	// emulated processor may stand still for seconds before or after the window, which counts as CPU time of the process
	// that was running.
	if r.CPUSeconds > 1.2*(own+execs)+0.02 || r.CPUSeconds < 0.5*execs-0.02 && !testing.Short() {
		t.Errorf("%g CPU seconds, and the kernel says %g of the execs and %g of this process", r.CPUSeconds, execs, own)
	}
}

// usedCPU returns the CPU time so far of this process, or of its children that have ended.
func usedCPU(t *testing.T, who int) float64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// inEmptyDirectory enters an empty directory, for the reports of playTarget, and returns the test binary as the target.
func inEmptyDirectory(t *testing.T) (target []byte) {
	t.Helper()
	target, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	return target
}

// TestTarget: each exec has a unique name, an empty environment, its worker's CPU, and signals as a program expects
// them.
func TestTarget(t *testing.T) {
	target := inEmptyDirectory(t)
	signal.Ignore(unix.SIGHUP)
	t.Cleanup(func() { signal.Reset(unix.SIGHUP) })
	l := start(t, Options{Rate: 40, Workers: 2, target: target})
	ready := l.Ready()
	r, err := l.Run(t.Context(), schedule(0, window(250*time.Millisecond)))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0.0
	for worker := range 2 {
		for number := 0; ; number++ {
			name := fmt.Sprintf("%d.%d", worker, number)
			b, err := os.ReadFile(name)
			if errors.Is(err, os.ErrNotExist) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			seen++
			for _, want := range []string{
				fmt.Sprintf("Args:\t%q\n", []string{Argv0, name}), "Env:\t[]\n", "SigBlk:\t0000000000000000\n",
				"SigIgn:\t0000000000000000\n",
				fmt.Sprintf("Cpus_allowed_list:\t%d\n", ready.CPUs[worker]), fmt.Sprintf("PPid:\t%d\n", ready.Workers[worker]),
			} {
				if !strings.Contains(string(b), want) {
					t.Fatalf("%s lacks %q:\n%s", name, want, b)
				}
			}
		}
	}
	if files, err := os.ReadDir("."); err != nil || float64(len(files)) != r.Counts[CountMade] ||
		seen != r.Counts[CountMade] || seen < 2 {
		t.Errorf("%g execs, %g reported as they should, %d files, %v", r.Counts[CountMade], seen, len(files), err)
	}
}

// TestFailures: a failed exec does not count as an exec, and is counted by its cause.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		end  string // of the target
		kind string
	}{
		"no permission":    {Options{mode: 0o600}, "", "execveat EACCES"},
		"no program":       {Options{target: []byte("not a program")}, "", "execveat ENOEXEC"},
		"ends with a code": {Options{target: inEmptyDirectory(t), Rate: 20}, "exit", "exited 3"},
		"ends by a signal": {Options{target: inEmptyDirectory(t), Rate: 20}, "kill", "killed SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("end", []byte(c.end), 0o600); err != nil {
				t.Fatal(err)
			}
			c.o.Workers = 1
			if testing.Short() {
				// A storm, because an emulated processor on a busy machine may be too late for every start of a schedule.
				c.o.Rate = 0
			}
			var r *load.Result
			for range 5 { // a machine that stands still for the whole window, as emulated ones do, makes none
				if _, r = run(t, c.o, 0, window(100*time.Millisecond)); r.Sent > 0 {
					break
				}
			}
			if r.Sent == 0 || r.Done != 0 || len(r.Errors) != 1 || r.Errors[c.kind] != r.Sent || r.Unfinished != 0 ||
				r.Counts[CountMade] != 0 || r.Counts[CountFailed] != float64(r.Sent) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestNoProcesses: at the limit of processes, attempts fail, and the load goes on.
func TestNoProcesses(t *testing.T) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.Controller("pids")
	if !ok {
		t.Skip("needs the controller pids")
	}
	tree := newTree(t)
	if _, err := tree.Group("full", placement.Limits{}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(h.Mount, tree.Name(), "full")
	l := start(t, Options{Workers: 1})
	for file, value := range map[string]string{"pids.max": "1", "cgroup.procs": strconv.Itoa(l.Ready().Workers[0])} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.Run(t.Context(), schedule(0, 2*time.Second)) // longer than a machine stands still
	if err != nil || r.Sent == 0 || r.Errors["clone EAGAIN"] != r.Sent || r.Done != 0 || r.Counts[CountMade] != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := l.Close(); err != nil { // before its group is removed
		t.Error(err)
	}
}

// TestWorkerKilled: if a worker is killed, the other workers are ended, and the load returns an error that names the
// killed worker, instead of a result.
func TestWorkerKilled(t *testing.T) {
	for _, when := range []string{"before the start", "while it runs"} {
		t.Run(when, func(t *testing.T) {
			l := start(t, Options{Workers: 2})
			pids := l.Ready().Workers
			kill := func() {
				if err := unix.Kill(pids[1], unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			if when == "before the start" {
				kill()
			} else {
				time.AfterFunc(50*time.Millisecond, kill)
			}
			r, err := l.Run(t.Context(), schedule(0, time.Hour))
			if r != nil || fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "worker 1 ") ||
				!strings.Contains(err.Error(), "SIGKILL") || fault.HintOf(err) == "" {
				t.Errorf("%v, %v", r, err)
			}
			for _, pid := range pids {
				if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
					t.Errorf("process %d is still there: %v", pid, err)
				}
			}
		})
	}
}

// TestRoleEnds: however the load ends, in the middle of a storm or before it, nothing is left.
//
// One worker leaves a CPU to other processes. A storm on each CPU, beside work at the lowest priority such as
// test/run's, was seen to keep all other processes from running for as long as 30 s (Linux 6.18), this test's own
// among them.
func TestRoleEnds(t *testing.T) {
	for name, end := range map[string]func(p *process) error{
		"killed":       func(p *process) error { return p.cmd.Process.Kill() },
		"terminated":   func(p *process) error { return p.cmd.Process.Signal(unix.SIGTERM) },
		"end of input": func(p *process) error { return p.input.Close() },
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, running %v", name, running), func(t *testing.T) {
				p := startProcess(t, Options{Workers: 1})
				if running {
					if err := p.Send(role.Start, schedule(0, time.Hour)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if err := end(p); err != nil {
					t.Fatal(err)
				}
				if err := p.cmd.Wait(); (err == nil) != (name == "end of input") {
					t.Errorf("it ended with %v", err)
				}
				p.emptied(t)
			})
		}
	}
}

// TestRole: the messages ready, start, result and end, and an end that comes early.
func TestRole(t *testing.T) {
	for _, early := range []string{"", "before the start", "while it runs"} {
		t.Run(early, func(t *testing.T) {
			childIn, parentOut := io.Pipe()
			parentIn, childOut := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- Run(context.Background(), Options{Workers: 2, Rate: 100}, role.NewConn(childIn, childOut))
				childOut.Close()
			}()
			parent := role.NewConn(parentIn, parentOut)
			var ready Ready
			if err := parent.Expect(role.Ready, &ready, nil); err != nil || ready.PID != os.Getpid() ||
				len(ready.Workers) != 2 || len(ready.CPUs) != 2 {
				t.Fatalf("ready: %+v, %v", ready, err)
			}
			length := 2 * time.Second // longer than a machine stands still
			if early == "while it runs" {
				length = time.Hour
			}
			if early != "before the start" {
				if err := parent.Send(role.Start, schedule(0, length)); err != nil {
					t.Fatal(err)
				}
			}
			if early == "" {
				var r load.Result
				if err := parent.Expect(role.Result, &r, nil); err != nil || r.Done == 0 {
					t.Errorf("%+v, %v", r, err)
				}
			}
			parentOut.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("another message", func(t *testing.T) {
		in := strings.NewReader(`{"event":"result"}` + "\n")
		if err := Run(context.Background(), Options{Workers: 1}, role.NewConn(in, io.Discard)); err == nil ||
			!strings.Contains(err.Error(), "waiting for start") {
			t.Error(err)
		}
	})
}

func TestWrongUse(t *testing.T) {
	for name, o := range map[string]Options{
		"negative rate": {Rate: -1},
		"no number":     {Rate: math.NaN()},
		"slow":          {Rate: 0.0004},
		"fast":          {Rate: 2e6},
		"many":          {Workers: MaxPerCPU*runtime.NumCPU() + 1},
		"negative":      {Workers: -1},
		"long spin":     {Spin: time.Second},
	} {
		if l, err := New(o); l != nil || fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", name, err, fault.HintOf(err))
		}
	}
	l := start(t, Options{Workers: 1})
	for name, s := range map[string]role.Schedule{"no window": {}, "no time": {Begin: -1, Duration: 1},
		"negative warm-up": {Warmup: -1, Duration: 1}, "long": {Duration: math.MaxInt64},
		"long warm-up": {Warmup: math.MaxInt64, Duration: 1}} {
		if _, err := l.Run(t.Context(), s); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := l.Run(ctx, schedule(time.Hour, time.Hour)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestNoexec: if files in memory cannot be executed, the error says which setting to change. The setting is changed in
// a new PID namespace.
func TestNoexec(t *testing.T) {
	const setting = "/proc/sys/vm/memfd_noexec"
	before, err := os.ReadFile(setting)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("needs Linux 6.3, which brought the setting")
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), noexecEnv+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if after, _ := os.ReadFile(setting); !bytes.Equal(before, after) {
		t.Errorf("the setting of this machine was %s and is %s", before, after)
		_ = os.WriteFile(setting, before, 0)
	}
	var exit *osexec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != int(fault.Machine) ||
		!strings.Contains(string(out), "sysctl -w vm.memfd_noexec=1") {
		t.Errorf("%v: %s", err, out)
	}
}

//go:embed *.elf
var programs embed.FS

// TestPrograms: the programs, for each architecture, are one segment that is only readable and executable, and need no
// interpreter and no library.
func TestPrograms(t *testing.T) {
	for name, machine := range map[string]elf.Machine{
		"worker_amd64.elf": elf.EM_X86_64, "target_amd64.elf": elf.EM_X86_64, "worker_arm64.elf": elf.EM_AARCH64,
		"target_arm64.elf": elf.EM_AARCH64,
	} {
		b, err := programs.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f.Type != elf.ET_EXEC || f.Machine != machine || len(f.Sections) != 0 || len(f.Progs) != 2 {
			t.Fatalf("%s: %v for %v, %d sections, %d segments", name, f.Type, f.Machine, len(f.Sections), len(f.Progs))
		}
		code, stack := f.Progs[0], f.Progs[1]
		if code.Type != elf.PT_LOAD || code.Flags != elf.PF_R|elf.PF_X || code.Filesz != uint64(len(b)) ||
			f.Entry < code.Vaddr || f.Entry >= code.Vaddr+code.Filesz {
			t.Errorf("%s: entry %#x, segment %+v", name, f.Entry, code.ProgHeader)
		}
		if stack.Type != elf.PT_GNU_STACK || stack.Flags != elf.PF_R|elf.PF_W {
			t.Errorf("%s: stack %+v", name, stack.ProgHeader)
		}
	}
}

// TestLayout: the workers' histograms have as many buckets as those of the Go library.
func TestLayout(t *testing.T) {
	for digits, want := range map[int]int{3: fineCounts, 2: coarseCounts} {
		if got := len(hdrhistogram.New(1, load.Longest, digits).Export().Counts); got != want {
			t.Errorf("%d digits: %d places, not %d", digits, want, got)
		}
	}
}

func TestErrorName(t *testing.T) {
	for want, c := range map[string][2]int{
		"clone EAGAIN": {kindClone, int(unix.EAGAIN)}, "execveat EACCES": {kindExec, int(unix.EACCES)},
		"execveat 254":   {kindExec, 254},
		"killed SIGSEGV": {kindKilled, int(unix.SIGSEGV)}, "killed 99": {kindKilled, 99}, "exited 3": {kindExited, 3},
	} {
		if got := errorName(c[0], c[1]); got != want {
			t.Errorf("%v is %q, want %q", c, got, want)
		}
	}
}

// BenchmarkStorm measures the number of execs in a storm of half a second.
func BenchmarkStorm(b *testing.B) {
	for _, workers := range []int{1, runtime.NumCPU()} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			var done int64
			var seconds, cpu float64
			for b.Loop() {
				_, r := run(b, Options{Workers: workers}, 100*time.Millisecond, 500*time.Millisecond)
				done, seconds, cpu = done+r.Done, seconds+r.Seconds, cpu+r.CPUSeconds
			}
			b.ReportMetric(float64(done)/seconds, "execs/s")
			b.ReportMetric(float64(done)/cpu, "execs/cpu-s")
		})
	}
}

// BenchmarkForkExec executes the same program as a Go program would, from one thread.
func BenchmarkForkExec(b *testing.B) {
	target, err := program(Argv0, targetProgram)
	if err != nil {
		b.Fatal(err)
	}
	defer target.Close()
	path := "/proc/self/fd/" + strconv.Itoa(int(target.Fd()))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for b.Loop() {
		pid, err := syscall.ForkExec(path, []string{Argv0, "0.0"}, &syscall.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Exited() || status.ExitStatus() != 0 {
			b.Fatalf("%v, status %d", err, status)
		}
	}
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "execs/s")
}
