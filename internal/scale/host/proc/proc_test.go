package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/known"
	"tare/test/rights"
	"tare/test/started"
	"tare/test/vm/guest"
)

var fixture = FS{Root: "testdata/machine"}

func TestStatFixture(t *testing.T) {
	want := Stat{User: 10, Nice: 0.2, System: 3, Idle: 50, IOWait: 0.6, IRQ: 0.07, Softirq: 0.8, Steal: 0.09, Guest: 0.1,
		GuestNice: 0.02, Online: []CPUTime{{0, 25.3, 7.07}, {2, 25.3, 7.09}}}
	if got, err := fixture.Stat(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "cpu\n", "cpu  1 2 3\n", "cpu 1 2 3 4 5 6 7 8 9 x\ncpu0\n", "cpu0 1\n",
		"cpu 1 2 3 4 5 6 7 8 9 10\ncpux 1 2 3 4 5 6 7 8 9 10\n", "cpu 1 2 3 4 5 6 7 8 9 10\n"} {
		if s, err := parseStat([]byte(bad), 100); err == nil {
			t.Errorf("%q: %+v without error", bad, s)
		}
	}
}

// When a CPU goes offline or comes back, the kernel's total of idle time switches to another clock for that CPU.
func TestStatSince(t *testing.T) {
	const seconds = 2
	before := func(cpus ...int) Stat { // each has been idle for 100 s and busy for 10
		s := Stat{User: 20, Idle: 200}
		for _, n := range cpus {
			s.Online = append(s.Online, CPUTime{n, 100, 10})
		}
		return s
	}
	after := func(idle float64, cpus ...CPUTime) Stat { // the two were busy for 1.5 s in all
		return Stat{User: 21.5, Idle: idle, Online: cpus}
	}
	one, other := CPUTime{0, 101, 11}, CPUTime{1, 101.5, 10.5}
	for name, c := range map[string]struct {
		first, last    Stat
		idle, capacity float64
		moved          []int
	}{
		"all stay":         {before(0, 1), after(202.5, one, other), 2.5, 4, nil},
		"one goes":         {before(0, 1), after(350, one), 1, 2.5, []int{1}},
		"one comes":        {before(0), after(53, one, other), 1, 2.5, []int{1}},
		"one goes for one": {before(1), after(53, one), 0, 1.5, []int{0, 1}},
		"one comes back":   {before(0, 1), after(104, one, CPUTime{1, 3, 10.5}), 1, 2.5, []int{1}},
		"numbers differ":   {before(0, 7), after(53, one, CPUTime{3, 1, 1}), 1, 2.5, []int{3, 7}},
		"nothing is read":  {Stat{}, Stat{}, 0, 0, nil},
	} {
		got := c.last.Since(c.first, seconds)
		if got.Idle != c.idle || got.Capacity != c.capacity || !slices.Equal(got.Moved, c.moved) {
			t.Errorf("%s: %+v, want idle %g, capacity %g, moved %v", name, got, c.idle, c.capacity, c.moved)
		}
	}
}

// TestIRQTime: the kernel's configuration alone does not show that interrupts are kept out of tasks' time.
func TestIRQTime(t *testing.T) {
	on := map[string]string{"CONFIG_IRQ_TIME_ACCOUNTING": "y"}
	for _, c := range []struct {
		name, stat string
		config     map[string]string
		cmdline    string
		want       *bool
	}{
		{"configured", "cpu 9000 0 0 1 0 1 0 0 0 0", on, "", new(true)},
		{"not configured", "cpu 9000 0 0 1 0 0 0 0 0 0", map[string]string{"CONFIG_X": "y"}, "", new(false)},
		{"told not to", "cpu 9000 0 0 1 0 1 0 0 0 0", on, "tsc=noirqtime", new(false)},
		{"the clock was never stable", "cpu 9000 0 0 1 0 0 0 0 0 0", on, "", new(false)},
		{"just booted", "cpu 900 0 0 1 0 0 0 0 0 0", on, "", nil},
		{"unreadable", "cpu 9000 0 0 1 0 1 0 0 0 0", nil, "", nil},
	} {
		f := FS{Root: t.TempDir()}
		if err := os.MkdirAll(filepath.Join(f.Root, "proc"), 0o755); err != nil {
			t.Fatal(err)
		}
		stat := c.stat + "\n" + strings.Replace(c.stat, "cpu", "cpu0", 1) + "\n"
		if err := os.WriteFile(filepath.Join(f.Root, "proc/stat"), []byte(stat), 0o600); err != nil {
			t.Fatal(err)
		}
		got := f.irqTime(c.config, strings.Fields(c.cmdline))
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %v, want %v", c.name, known.Or(got, false), known.Or(c.want, false))
		}
	}
}

func TestMachineFixture(t *testing.T) {
	got := fixture.Machine()
	if got.IRQTime == nil || !*got.IRQTime {
		t.Error("interrupt time accounting was not found")
	}
	got.IRQTime = nil
	want := Machine{Hostname: "example", Kernel: "6.1.0-1-cloud-amd64", BootID: "11111111-2222-3333-4444-555555555555",
		Distro:   "Example Linux 1",
		CPUModel: "Example CPU @ 2.0GHz", CPUs: 2, Possible: 6, NoHzFull: "1",
		MemoryBytes: 24684092 << 10, SwapBytes: 1 << 20,
		Governor:    "performance,powersave",
		Clocksource: "kvm-clock", Lockdown: "integrity", Virtual: "QEMU Standard PC"}
	if got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if empty := (FS{Root: t.TempDir()}).Machine(); empty != (Machine{}) {
		t.Errorf("of nothing: %+v", empty)
	}
}

func TestCPUs(t *testing.T) {
	for list, want := range map[string][]int{
		"0": {0}, "0-2,5": {0, 1, 2, 5}, "0-3,8\n": {0, 1, 2, 3, 8}, "": nil, "(null)": nil, "  (null)\n": nil, "a": nil,
		"3-1": nil, "0-": nil, "-1": nil, "0-99999999": nil,
	} {
		got, err := CPUs(list)
		if (err != nil) != (want == nil) || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
	}
	if got, err := CPUs("0-127,256-383"); len(got) != 256 || err != nil {
		t.Errorf("got %d CPUs, %v", len(got), err)
	}
}

func TestProcessFixture(t *testing.T) {
	for pid, want := range map[int]Process{
		7: {PID: 7, Comm: "evil) R 1 (x", State: 'S', PPID: 1, Session: 5, Start: 12345, Threads: 1, Ticks: 11,
			ChildTicks: 15},
		8: {PID: 8, Comm: "kworker/0:0H", State: 'I', PPID: 2, Start: 24, Threads: 1, Kernel: true, Forked: true},
	} {
		if got, err := fixture.Process(pid); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if r, err := fixture.Rollup(7); err != nil || r.PSS != 358<<10 {
		t.Errorf("PSS %d, %v", r.PSS, err)
	}
	if a, err := fixture.Cmdline(7); err != nil || !reflect.DeepEqual(a, []string{"a", "b c", ""}) {
		t.Errorf("arguments %q, %v", a, err)
	}
	if c, err := fixture.Comm(7); err != nil || c != "evil) R 1 (x" {
		t.Errorf("name %q, %v", c, err)
	}
	if _, err := fixture.Process(9); !errors.Is(err, ErrGone) {
		t.Errorf("a process that is not there: %v", err)
	}
}

func TestMachine(t *testing.T) {
	m := FS{}.Machine()
	t.Logf("%+v", m)
	if m.Kernel == "" || m.BootID == "" || m.CPUs == 0 || m.MemoryBytes == 0 || m.Clocksource == "" {
		t.Errorf("%+v", m)
	}
}

func TestStat(t *testing.T) {
	a, err := FS{}.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var up unix.Sysinfo_t
	if err := unix.Sysinfo(&up); err != nil {
		t.Fatal(err)
	}
	// All modes together are the time that the CPUs were online: at most uptime x CPUs, give or take the resolution. The
	// kernel counts time stolen from an idle CPU both as idle and as stolen, so at most that much is counted twice.
	sum := a.User + a.Nice + a.System + a.Idle + a.IOWait + a.IRQ + a.Softirq + a.Steal
	twice := min(a.Steal, a.Idle+a.IOWait)
	if sum <= 0 {
		t.Errorf("no CPU time at all: %+v", a)
	}
	// An emulated processor that was held up makes up for missed ticks, but not for clock time: one counted 279 s of ticks
	// on each CPU at an uptime of 237 s. So the upper bound holds only on a real processor.
	if limit := float64(up.Uptime+2) * float64(len(a.Online)); !testing.Short() && sum-twice > limit {
		t.Errorf("%.2f s of CPU time, of them %.2f s stolen, in %d s with %d CPUs", sum, a.Steal, up.Uptime, len(a.Online))
	}
}

func TestSelf(t *testing.T) {
	pid := os.Getpid()
	p, err := FS{}.Process(pid)
	if err != nil || p.PID != pid || p.PPID != os.Getppid() || p.Kernel || !p.Alive() || p.Start == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	exe, err := FS{}.Exe(pid)
	if want, _ := os.Executable(); err != nil || exe != want {
		t.Errorf("runs %s, %v; want %s", exe, err, want)
	}
	args, err := FS{}.Cmdline(pid)
	if err != nil || !reflect.DeepEqual(args, os.Args) {
		t.Errorf("arguments %q, %v", args, err)
	}
	if now, peak, err := (FS{}).Resident(pid); err != nil || now == 0 || peak < now || peak>>30 > 0 {
		t.Errorf("resident %d, at most %d, %v", now, peak, err)
	}
	if r, err := (FS{}).Rollup(pid); err != nil || r.PSS == 0 {
		t.Errorf("PSS %d, %v", r.PSS, err)
	}
}

func TestRuntime(t *testing.T) {
	before, err := Runtime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// The work is 30 ms of CPU time, not of wall time, in which an emulated machine may stand still.
	for start := processorTime(t); processorTime(t) < start+30*time.Millisecond; {
	}
	after, err := Runtime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	if after <= before || after > time.Duration(u.Utime.Nano()+u.Stime.Nano())+20*time.Millisecond {
		t.Errorf("from %v to %v, by getrusage %v + %v", before, after, u.Utime, u.Stime)
	}
	if _, err := Runtime(1 << 22); !errors.Is(err, ErrGone) {
		t.Errorf("of no process: %v", err)
	}
}

// processorTime returns the CPU time of this process.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// Every reader returns ErrGone for a process that has ended, but not for a zombie.
func TestGone(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	stdin.Close()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if p, err := (FS{}).Process(pid); err != nil || p.Alive() {
		t.Errorf("the zombie: %+v, %v", p, err)
	}
	if r, err := (FS{}).Rollup(pid); err != nil || r.PSS != 0 {
		t.Errorf("the zombie's PSS: %d, %v", r.PSS, err)
	}
	if exe, err := (FS{}).Exe(pid); err != nil || exe != "" {
		t.Errorf("the zombie's file: %q, %v", exe, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"Process":     func() error { _, err := FS{}.Process(pid); return err },
		"Comm":        func() error { _, err := FS{}.Comm(pid); return err },
		"Exe":         func() error { _, err := FS{}.Exe(pid); return err },
		"Cmdline":     func() error { _, err := FS{}.Cmdline(pid); return err },
		"Getenv":      func() error { _, _, err := FS{}.Getenv(pid, "HOME", new(time.Second)); return err },
		"Rollup":      func() error { _, err := FS{}.Rollup(pid); return err },
		"Runtime":     func() error { _, err := Runtime(pid); return err },
		"Resident":    func() error { _, _, err := FS{}.Resident(pid); return err },
		"ResidentNow": func() error { _, err := FS{}.ResidentNow(pid); return err },
	} {
		if err := f(); !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEnvironWhileItChanges: the environment of a process that calls execve over and over is always found, although the
// kernel shows none while the program is being replaced.
func TestEnvironWhileItChanges(t *testing.T) {
	const again = `exec sh -c "$AGAIN"`
	cmd := exec.Command("sh", "-c", again)
	cmd.Env = append(os.Environ(), "AGAIN="+again, "TARE_TEST=yes")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := started.Await(cmd.Process.Pid, "sh"); err != nil {
		t.Fatal(err)
	}
	times := 2000
	if testing.Short() {
		times = 100
	}
	for range times {
		patience := time.Minute
		value, has, err := FS{}.Getenv(cmd.Process.Pid, "TARE_TEST", &patience)
		if err != nil || !has || value != "yes" {
			t.Fatalf("its variable is %q, %v, %v; given up after %v (0 s: it was seen to have none)", value, has, err,
				time.Minute-patience)
		}
	}
}

// TestSlowExecve: Getenv waits for a process that takes long to become another program, and looks for a moment as if it
// had no environment, however long the machine stands still between two attempts. The files are pipes, so that reads
// happen in this order.
func TestSlowExecve(t *testing.T) {
	stat := func(begin, end int) string {
		return "7 (sleep) R 1 7 7 0 -1 0" + strings.Repeat(" 0", 10) + " 1 0 5" +
			strings.Repeat(" 0", 27) + fmt.Sprintf(" %d %d 0\n", begin, end)
	}
	if sure, unsure := becoming([]byte(stat(0, 0))), becoming([]byte(stat(9, 9))); sure != another ||
		unsure != itselfOrAnother {
		t.Fatalf("the test's processes are becoming %d and %d", sure, unsure)
	}
	root := t.TempDir()
	dir := filepath.Join(root, "proc/7")
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mkfifo(filepath.Join(dir, "environ"), 0o600),
		unix.Mkfifo(filepath.Join(dir, "stat"), 0o600)); err != nil {
		t.Fatal(err)
	}
	say := func(name, what string) { // blocks until it is read
		if err := os.WriteFile(filepath.Join(dir, name), []byte(what), 0); err != nil {
			t.Error(err)
		}
	}
	var done sync.WaitGroup
	done.Go(func() {
		for _, what := range []string{stat(0, 0), stat(0, 0), stat(9, 9)} {
			say("environ", "")
			say("stat", what)
			time.Sleep(100 * time.Millisecond)
		}
		say("environ", "A=1\x00")
	})
	patience := 40 * time.Millisecond // 10 ms for each attempt; a deadline under test
	value, has, err := FS{Root: root}.Getenv(7, "A", &patience)
	if err != nil || !has || value != "1" {
		t.Fatalf("%q, %v, %v", value, has, err)
	}
	done.Wait()
}

// TestClaimedEnvironment: a process may claim that its environment is anywhere, of any size, readable or not. That
// costs no more memory than an environment may have, and no more time in all than patience allows.
func TestClaimedEnvironment(t *testing.T) {
	guest.Slow(t)
	claims := func(part string) int {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), partEnv+"="+part)
		in, out := started.Piped(t, cmd)
		t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
		var said string
		if _, err := fmt.Fscan(out, &said); err != nil {
			t.Fatal(err)
		}
		if said != "claimed" {
			t.Skipf("needs PR_SET_MM_MAP (CONFIG_CHECKPOINT_RESTORE): %s", said)
		}
		return cmd.Process.Pid
	}
	large := claims(claimsMuch)
	b, err := FS{}.readAtOnce(large, "environ")
	if err != nil || len(b) != maxStrings {
		t.Errorf("%d bytes are read of %d, %v; %d are the most", len(b), claimed, err, maxStrings)
	}
	if _, has, err := (FS{}).Getenv(large, "PATH", new(time.Second)); has || err != nil {
		t.Errorf("of zeros: %v, %v", has, err)
	}
	hidden := claims(claimsHidden)
	patience := 200 * time.Millisecond // deadline under test
	for range 3 {
		before := patience
		_, has, err := FS{}.Getenv(hidden, "PATH", &patience)
		if has {
			t.Error("something was read where nothing can be")
		}
		if err == nil || errors.Is(err, ErrGone) {
			t.Errorf("that it cannot be seen is not said: %v", err)
		}
		t.Logf("waited %v: %v", before-patience, err)
	}
	if patience > 0 { // Getenv has to wait until the patience is used up
		t.Errorf("%v of the patience are left", patience)
	}
}

// TestNoEnviron: a zombie has no environment, and neither has a process that was started without one.
func TestNoEnviron(t *testing.T) {
	bare := exec.Command("/bin/sleep", "100")
	bare.Env = []string{}
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bare.Process.Kill()
		_ = bare.Wait()
	}()
	if err := started.Await(bare.Process.Pid, "sleep"); err != nil {
		t.Fatal(err)
	}
	if value, has, err := (FS{}).Getenv(bare.Process.Pid, "PATH", new(time.Second)); err != nil || has {
		t.Errorf("of one without: %q, %v", value, err)
	}
	cmd := exec.Command("/bin/sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	if err := errors.Join(cmd.Process.Kill(), unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT,
		nil)); err != nil {
		t.Fatal(err)
	}
	if _, has, err := (FS{}).Getenv(cmd.Process.Pid, "PATH", new(time.Second)); err != nil && !errors.Is(err,
		ErrGone) || has {
		t.Errorf("of a zombie: %v", err)
	}
	_ = cmd.Wait()
}

// Hidden kernel threads cause no error, and none are invented.
func TestKernelThreadsThatAreHidden(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	rights.WithoutProc(t, func() {
		k, err := FS{}.KernelThreads()
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(k.Refresh(), k.Read()); err != nil || len(k.Threads()) > 0 {
			t.Errorf("%d threads, %v", len(k.Threads()), err)
		}
	})
}

func TestKernelThreads(t *testing.T) {
	k, err := FS{}.KernelThreads()
	if err != nil {
		t.Fatal(err)
	}
	if len(k.Threads()) == 0 {
		t.Skip("needs the PID namespace of the machine, where kernel threads can be seen")
	}
	if err := errors.Join(k.Read(), k.Refresh(), k.Read()); err != nil {
		t.Fatal(err)
	}
	between := map[int]time.Duration{}
	for _, th := range k.Threads() {
		if th.Gone || th.New {
			continue // workers come and go
		}
		if th.PID == os.Getpid() || th.Comm == "" {
			t.Errorf("%+v", th)
		}
		// schedstat has the same counter, read later, so it is never less.
		b, err := os.ReadFile("/proc/" + strconv.Itoa(th.PID) + "/schedstat")
		if err != nil {
			continue
		}
		ns, err := time.ParseDuration(strings.Fields(string(b))[0] + "ns")
		if err != nil {
			t.Fatal(err)
		}
		if th.Runtime > ns {
			t.Errorf("%s: %v by its clock, and later %v by schedstat", th.Comm, th.Runtime, ns)
		}
		between[th.PID] = ns
	}
	// Read again, it is never less than the value from schedstat.
	if err := k.Read(); err != nil {
		t.Fatal(err)
	}
	for _, th := range k.Threads() {
		if ns := between[th.PID]; !th.Gone && !th.New && th.Runtime < ns {
			t.Errorf("%s: %v by schedstat, and later %v by its clock", th.Comm, ns, th.Runtime)
		}
	}
	if n := testing.AllocsPerRun(10, func() { _ = k.Read() }); n > 0 {
		t.Errorf("%.1f allocations", n)
	}
}

// TestKernelThreadsReusedPID: the time of a process is not that of a kernel thread that had its PID before.
func TestKernelThreadsReusedPID(t *testing.T) {
	pid := os.Getpid() // that of a thread that ended
	for name, ended := range map[string]KernelThread{
		"it used more": {PID: pid, Runtime: time.Hour}, "it used less": {PID: pid, Runtime: 1},
	} {
		k := &KernelThreads{threads: []KernelThread{ended}, known: map[int]bool{pid: true}}
		if err := k.Refresh(); err != nil {
			t.Fatal(err)
		}
		if err := k.Read(); err != nil {
			t.Fatal(err)
		}
		if got := k.Threads()[0]; !got.Gone || got.Runtime != ended.Runtime || !k.known[pid] {
			t.Errorf("%s: %+v", name, got)
		}
	}
	k := &KernelThreads{threads: []KernelThread{{PID: pid, Runtime: time.Hour}}}
	if err := k.Read(); err != nil { // without Refresh
		t.Fatal(err)
	}
	if got := k.Threads()[0]; !got.Gone || got.Runtime != time.Hour {
		t.Errorf("without Refresh: %+v", got)
	}
}

// TestKernelThreadsReusedPIDOfAnother: RefreshNew, which lists no processes, notices that the PID of a kernel thread is
// that of another process, but not that a thread is missing from the list of children.
func TestKernelThreadsReusedPIDOfAnother(t *testing.T) {
	pid, root := os.Getpid(), t.TempDir()
	for name, content := range map[string]string{
		"2/task/2/children":         "3 4 ",
		strconv.Itoa(pid) + "/stat": strconv.Itoa(pid) + " (x) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0",
	} {
		file := filepath.Join(root, "proc", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for start, gone := range map[uint64]bool{400: true, 500: false} {
		k := &KernelThreads{fs: FS{Root: root}, threads: []KernelThread{{PID: pid, Runtime: 1, start: start}},
			known: map[int]bool{pid: true, 3: true, 4: true}}
		if err := errors.Join(k.RefreshNew(), k.Read()); err != nil {
			t.Fatal(err)
		}
		if got := k.Threads()[0]; got.Gone != gone || (got.Runtime == 1) != gone {
			t.Errorf("a thread that started at %d: %+v", start, got)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, file := range []string{"proc/stat", "proc/7/stat", "proc/8/stat", "proc/meminfo", "proc/zoneinfo",
		"proc/cpuinfo", "proc/7/smaps_rollup"} {
		b, err := os.ReadFile(fixture.path(file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b, 100); err == nil && (len(s.Online) < 1 || s.User < 0) {
			t.Errorf("%+v", s)
		}
		_, _ = parseProcess(b)
		becoming(b)
		parseKB(b, "Pss")
		keptPages(b)
		parseRollup(b)
		parseConfig(strings.NewReader(string(b)))
		cpuField(string(b), "flags")
		list(b)
	})
}

func BenchmarkKernelThreads(b *testing.B) {
	k, err := FS{}.KernelThreads()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("find", func(b *testing.B) {
		for b.Loop() {
			if _, err := (FS{}).KernelThreads(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Refresh", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			if err := k.Read(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if err := k.Refresh(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Read", func(b *testing.B) {
		for b.Loop() {
			if err := k.Read(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(k.Threads())), "threads")
	})
}
