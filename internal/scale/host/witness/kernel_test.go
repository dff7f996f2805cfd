package witness

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" -output-suffix _test spin bpf/spin.bpf.c

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/test/owned"
	"tare/test/quiet"
	"tare/test/vm/guest"
)

// hold keeps one CPU busy at real-time priority for a time, repeatedly, and returns when it really had the CPU.
func hold(t *testing.T, cpu int, d time.Duration, pause time.Duration, times int) (held [][2]int64) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, with its priority, ends with the goroutine
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("pinning to CPU %d: %w", cpu, err)
			return
		}
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}
		if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
			done <- fmt.Errorf("becoming a real-time thread: %w", err)
			return
		}
		for range times {
			began := monotonic()
			from, last := began, began
			for last-began < int64(d) { // the kernel lets others in between, so that they do not starve (its fair server)
				now := monotonic()
				if now-last > int64(time.Millisecond)/2 {
					held = append(held, [2]int64{from, last})
					from = now
				}
				last = now
			}
			held = append(held, [2]int64{from, last})
			ts := unix.NsecToTimespec(int64(pause))
			_ = unix.Nanosleep(&ts, nil)
		}
		done <- nil
	}()
	err := <-done
	if errors.Is(err, unix.EPERM) {
		t.Skipf("needs real-time threads: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// A task that holds a CPU for 20 ms at real-time priority is seen with its name. Three stretches in four are seen to
// within 3 ms (one and a half periods) of both true edges, and none is mistaken for the one before or after it.
// Stretches with a stall of the CPU near an edge are not checked. A look that comes late because the CPU was idle makes
// an edge less exact.
func TestAHogIsSeen(t *testing.T) {
	const (
		length, pause = 20 * time.Millisecond, 15 * time.Millisecond
		times, rounds = 20, 5
	)
	cpu := runtime.NumCPU() - 1
	var h hog
	for round := 0; round < rounds && h.checked < times/2 && !t.Failed(); round++ {
		before := kernelSteal(t)
		r := start(t, Options{})
		held := hold(t, cpu, length, pause, times)
		n, err := r.Stop()
		if err != nil {
			t.Fatal(err)
		}
		if len(n.Busiest) == 0 {
			t.Error("nobody was seen running")
		}
		h.judge(t, n, cpu, held, pause)
		// The witness itself decides which stretches are not checked, so the kernel's counter must confirm it. That counts on
		// every CPU in ticks of at most 10 ms.
		if stolen := kernelSteal(t) - before; h.stolen > stolen+0.01*float64(runtime.NumCPU()) {
			t.Errorf("the witness saw %.3f s stolen from CPU %d around the stretches, and the kernel counted %.3f s from all",
				h.stolen, cpu, stolen)
		}
	}
	t.Logf("%d of %d stretches of at least 5 ms were seen to within 3 ms", h.near, h.checked)
	if 4*h.near < 3*h.checked && !testing.Short() { // the looks of an emulated processor come late
		t.Errorf("only %d of %d stretches were seen to within 3 ms", h.near, h.checked)
	}
	if h.checked > 0 && h.found == 0 { // on an emulated processor, looks come too late for some
		t.Error("none of them was seen")
	}
	if h.checked < times/2 && !t.Failed() {
		t.Skipf("%s: in %d rounds of %d stretches the hypervisor disturbed %d, other tasks cut %d short, and %d are left",
			quiet.Reason, rounds, times, h.disturbed, h.short, h.checked)
	}
}

// TestIdleGroupsHoldNobodyUp: a process in an idle control group gives way to all others at once, so it is not an
// occupant, however long it runs. In an ordinary group the same process is one.
func TestIdleGroupsHoldNobodyUp(t *testing.T) {
	guest.Slow(t)
	cpu := runtime.NumCPU() - 1
	group := cpuGroup(t)
	busy := exec.Command("sh", "-c", "while :; do :; done")
	busy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	pid := busy.Process.Pid
	t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
	// If others wake up often, a process of the same priority has the CPU only in stretches that are too short to be seen,
	// so it gets a higher priority. In an idle group that has no effect on the others.
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, -20); err != nil {
		t.Skipf("needs the right to raise a priority: %v", err)
	}
	const enough = 100 * time.Millisecond // fifty looks
	seen := func() (n int, ran time.Duration) {
		t.Helper()
		r := start(t, Options{})
		before := runtimeOf(t, pid)
		for tries := 0; tries < 100 && ran < enough; tries++ { // others decide how long it may run
			time.Sleep(100 * time.Millisecond)
			ran = runtimeOf(t, pid) - before
		}
		noise, err := r.Stop()
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range noise.Occupied {
			if o.PID == pid {
				n++
			}
		}
		return n, ran
	}
	if n, ran := seen(); n == 0 {
		t.Fatalf("a process in an ordinary group was not seen, and ran for %v", ran)
	}
	if err := os.WriteFile(filepath.Join(group, "cpu.idle"), []byte("1"), 0); err != nil {
		t.Skipf("needs Linux 5.15, which brought idle groups: %v", err)
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
	n, ran := seen()
	if n > 0 {
		t.Errorf("a process in an idle group, which ran for %v, is said to have held its CPU %d times", ran, n)
	} else if ran < enough {
		t.Skipf("%s: a process in an idle group ran for %v only", quiet.Reason, ran)
	}
}

func runtimeOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	d, err := proc.Runtime(pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// cpuGroup creates a control group with the cpu controller, at the top of its hierarchy.
func cpuGroup(t *testing.T) string {
	t.Helper()
	root := "/sys/fs/cgroup/cpu"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
		control := filepath.Join(root, "cgroup.subtree_control")
		if had, err := os.ReadFile(control); err == nil && !slices.Contains(strings.Fields(string(had)), "cpu") {
			_ = os.WriteFile(control, []byte("+cpu"), 0)                       // a failure shows when the group is made idle
			t.Cleanup(func() { _ = os.WriteFile(control, []byte("-cpu"), 0) }) // after the group has gone
		}
	}
	dir := filepath.Join(root, owned.Name("idle"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("needs the right to make control groups: %v", err)
	}
	t.Cleanup(func() {
		for try := 0; ; try++ { // a process that was killed stays in its group for a moment
			err := unix.Rmdir(dir)
			if err == nil {
				return
			}
			if try == 100 {
				t.Errorf("removing %s: %v", dir, err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return dir
}

// hog counts what the witness saw of stretches in which a task held a CPU.
type hog struct {
	checked          int     // stretches
	found, near      int     // stretches that were seen at all, and to within 3 ms
	short, disturbed int     // stretches left out: cut short by others, or with a stall near an edge
	stolen           float64 // seconds stolen around the latter according to the witness, in the last round
}

// judge compares what the witness saw of one CPU with the stretches in which a task of this process held it.
func (g *hog) judge(t *testing.T, n *ledger.Noise, cpu int, held [][2]int64, pause time.Duration) {
	t.Helper()
	const within = int64(3 * time.Millisecond)
	g.stolen = 0
	counted := map[int]bool{} // stalls, by their index
	for at, h := range held {
		if h[1]-h[0] < int64(5*time.Millisecond) {
			g.short++
			continue
		}
		touches := func(s ledger.Stall, from, to int64) bool { return s.CPU == cpu && s.From < to && from < s.To }
		if from, to := h[0]-2*within, h[1]+2*within; slices.ContainsFunc(n.Stalls, func(s ledger.Stall) bool {
			return touches(s, from, to)
		}) {
			g.disturbed++
			for i, s := range n.Stalls {
				if touches(s, from, to) && !counted[i] {
					counted[i] = true
					g.stolen += s.Seconds
				}
			}
			continue
		}
		g.checked++
		var seen *ledger.Stall // a brief preemption cuts a stretch into several
		for _, o := range n.Occupied {
			if o.CPU != cpu || o.PID != os.Getpid() || o.From >= h[1] || h[0] >= o.To {
				continue
			}
			if o.Comm == "" || o.Cause != ledger.Neighbour {
				t.Errorf("%+v", o)
			}
			if seen == nil {
				seen = &o
			}
			seen.From, seen.To = min(seen.From, o.From), max(seen.To, o.To)
		}
		if seen == nil {
			if !testing.Short() {
				t.Errorf("nobody was seen on CPU %d from %d to %d", cpu, h[0], h[1])
			}
			continue
		}
		g.found++
		h = whole(held, at, seen, int64(n.PeriodSeconds*1e9))
		off := max(seen.From-h[0], h[0]-seen.From, seen.To-h[1], h[1]-seen.To)
		if off <= within {
			g.near++
			continue
		}
		t.Logf("seen %.2f ms after its begin and until %.2f ms after its end", float64(seen.From-h[0])/1e6,
			float64(seen.To-h[1])/1e6)
		if off > int64(pause) && !testing.Short() {
			t.Errorf("it is taken for another")
		}
	}
}

// whole returns the stretch at an index, together with the stretches next to it that the witness saw as one with it.
// Gaps of less than the time between two looks lie between them: an interrupt, or a stall that is too short for a
// record, which does not end the task's turn. The task sleeps for longer than that between its turns.
func whole(held [][2]int64, at int, seen *ledger.Stall, period int64) [2]int64 {
	h := held[at]
	for i := at - 1; i >= 0 && h[0]-held[i][1] < period && seen.From < held[i][1]; i-- {
		h[0] = held[i][0]
	}
	for i := at + 1; i < len(held) && held[i][0]-h[1] < period && held[i][0] < seen.To; i++ {
		h[1] = held[i][1]
	}
	return h
}

// kernelSteal returns the CPU time in seconds that the kernel has counted as stolen since boot.
func kernelSteal(t *testing.T) float64 {
	t.Helper()
	s, err := (proc.FS{}).Stat()
	if err != nil {
		t.Fatal(err)
	}
	return s.Steal
}

// spinner is a program that spins in the timer interrupt of one CPU, with interrupts off.
type spinner struct {
	objects spinObjects
	event   int
}

// plantSpinner loads a program that spins for the duration length at the interval every, while it is enabled.
func plantSpinner(t *testing.T, cpu int, length, every time.Duration) *spinner {
	t.Helper()
	s := &spinner{}
	spec, err := loadSpin()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["length"].Set(uint64(length)); err != nil {
		t.Fatal(err)
	}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		t.Fatalf("loading a program that spins: %v", err)
	}
	t.Cleanup(func() { s.objects.Close() })
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(every), Bits: unix.PerfBitDisabled,
	}
	if s.event, err = unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.event) })
	if err := unix.IoctlSetInt(s.event, unix.PERF_EVENT_IOC_SET_BPF, s.objects.TareTestSpin.FD()); err != nil {
		t.Fatal(err)
	}
	return s
}

// spin enables the program for a time, and returns how often it ran.
func (s *spinner) spin(t *testing.T, d time.Duration) (runs uint64) {
	t.Helper()
	if err := unix.IoctlSetInt(s.event, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d)
	if err := unix.IoctlSetInt(s.event, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.objects.Runs.Lookup(uint32(0), &runs); err != nil {
		t.Fatal(err)
	}
	return runs
}

// keepBusy keeps a CPU from sleeping until the test ends.
func keepBusy(t *testing.T, cpu int) {
	t.Helper()
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set) // on another CPU it does no harm
		for !stop.Load() {                 //nolint:revive // keeping the CPU busy is the point
		}
	}()
	t.Cleanup(func() { stop.Store(true); <-done })
}

// Looks that are late because interrupts were off for long do not count as stolen time. If the hypervisor interrupts a
// spin, its look is late for both reasons, so rounds are repeated until one spin was undisturbed.
func TestInterruptsOffAreNotStolen(t *testing.T) {
	guest.Slow(t)
	const length, every, rounds = 12 * time.Millisecond, 50 * time.Millisecond, 5
	cpu := runtime.NumCPU() - 1
	spinner := plantSpinner(t, cpu, length, every)
	keepBusy(t, cpu)
	clear := false // a look was seen to be late by a whole spin
	for round := 0; round < rounds && !clear; round++ {
		r := start(t, Options{})
		runs := spinner.spin(t, 20*every)
		n, err := r.Stop()
		if err != nil {
			t.Fatal(err)
		}
		disturbed, stolen := 0, 0.0
		for _, s := range n.Stalls {
			if s.CPU == cpu {
				disturbed++
				stolen += s.Seconds
			}
		}
		off := float64(runs) * length.Seconds()
		t.Logf("%d spins of %v: %d late looks, the latest by %.1f ms; %d stalls of that CPU, %.4f s stolen", runs, length,
			n.Late, 1e3*n.LongestLate, disturbed, stolen)
		if runs < 5 {
			t.Fatalf("the program ran %d times", runs)
		}
		if n.Late+disturbed < int(runs) {
			t.Errorf("%d late looks and %d stalls, interrupts were off %d times", n.Late, disturbed, runs)
		}
		// The hypervisor's own count is the truth: it includes all that the witness counts as stolen, however long interrupts
		// were off.
		if stolen > off && stolen > n.StolenSeconds {
			t.Errorf("%v s stolen of that CPU, %v s of all", stolen, n.StolenSeconds)
		}
		clear = n.LongestLate >= length.Seconds()-n.PeriodSeconds
		if !clear && disturbed < int(runs) {
			t.Fatalf("the latest look was late by %.4f s, interrupts were off for %v at a time, and not every time disturbed",
				n.LongestLate, length)
		}
	}
	if !clear && !t.Failed() {
		t.Skipf("%s: the hypervisor disturbed every spin of %d rounds", quiet.Reason, rounds)
	}
}

// opened returns a witness that is not enabled yet.
func opened(t *testing.T, o Options) *Witness {
	t.Helper()
	w, err := Open(o)
	if errors.Is(err, feature.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// Witnesses can share a program, which is adapted to the kernel once; each has separate looks.
func TestSharedProgram(t *testing.T) {
	var p Program
	idle := opened(t, Options{Program: &p})
	fitted := p.spec
	w := opened(t, Options{Program: &p})
	if fitted == nil || p.spec != fitted || w.source != idle.source {
		t.Errorf("fitted %p and then %p, %s and %s", fitted, p.spec, idle.source, w.source)
	}
	if err := errors.Join(w.Reset(), w.Enable(), w.Settle(0), w.Disable()); err != nil {
		t.Fatal(err)
	}
	looks := func(w *Witness) (n uint64) {
		states, err := w.states()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range states {
			n += s.Looks
		}
		return n
	}
	if looks(w) == 0 || looks(idle) != 0 {
		t.Errorf("the witness that was enabled has looked %d times, the other %d times", looks(w), looks(idle))
	}
}

// When Settle returns, every CPU has been looked at, even one whose timer fires late or not at all because it is idle.
func TestSettle(t *testing.T) {
	w := opened(t, Options{})
	if err := errors.Join(w.Enable(), w.Settle(0), w.Begin()); err != nil {
		t.Fatal(err)
	}
	before := w.begin
	for range 20 {
		time.Sleep(30 * time.Millisecond) // CPUs that nobody else uses fall asleep
		after := monotonic()
		if err := w.Settle(after); err != nil {
			t.Fatal(err)
		}
		states, err := w.states()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range w.events {
			s, b := states[e.cpu], before[e.cpu]
			if s.Queue == 0 {
				continue // this process may not run there, and no other task has
			}
			if int64(s.Last) <= after || s.Looks <= b.Looks || s.Stolen < b.Stolen || s.Asked != 0 {
				t.Errorf("CPU %d at %d: %+v, before %+v", e.cpu, after, s, b)
			}
		}
		before = states
	}
}

// An account excludes what happened before its window began: looks, whether or not they were drained, and who held a
// CPU.
func TestBeginForgets(t *testing.T) {
	w := opened(t, Options{})
	if err := errors.Join(w.Reset(), w.Enable()); err != nil {
		t.Fatal(err)
	}
	hold(t, 0, 30*time.Millisecond, 10*time.Millisecond, 3)
	w.looks = append(w.looks, Look{Last: 1, Now: monotonic(), Stolen: int64(time.Hour)})
	w.spans = append(w.spans, span{before: 1, first: 1, last: 2, after: monotonic(), comm: "before"})
	began := monotonic()
	if err := w.Begin(); err != nil {
		t.Fatal(err)
	}
	from := monotonic()
	if n := len(w.looks) + len(w.spans); n != 0 || !w.past(0, int64(w.begin[0].Last)) ||
		w.past(0, int64(w.begin[0].Last)+1) {
		t.Errorf("%d looks and spans are left", n)
	}
	seen := map[uint32]uint64{}
	if err := w.processes(func(pid uint32, p process) { seen[pid] = p.Looks }); err != nil {
		t.Error(err)
	}
	// Each CPU may have been looked at since, once per period.
	most := (uint64(monotonic()-began)/uint64(w.period) + 2) * uint64(len(w.events))
	for pid, looks := range seen {
		if looks > most {
			t.Errorf("process %d was seen %d times, since the begin at most %d", pid, looks, most)
		}
	}
	if err := errors.Join(w.Settle(monotonic()), w.Disable()); err != nil {
		t.Fatal(err)
	}
	a, err := w.End(from, monotonic())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Noise.Stalls {
		if s.To <= from {
			t.Errorf("%+v was before %d", s, from)
		}
	}
	for _, s := range a.Noise.Occupied {
		if s.To <= from || s.Seconds > float64(monotonic()-from)/1e9 {
			t.Errorf("%+v was before %d", s, from)
		}
	}
}

// TestCostIsBounded: however long a measurement spins under a witness, the kernel ends the looks after a few. Otherwise
// a CPU whose interrupts take as long as the time between looks could do nothing else.
func TestCostIsBounded(t *testing.T) {
	w, err := Open(Options{})
	if errors.Is(err, feature.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The shortest of three, because an emulated processor counts the time for which it stands still.
	steps := 1 << 14
	for min(spin(steps), spin(steps), spin(steps)) < 100*costSpin {
		steps *= 2
	}
	looks := uint64(0)
	for range 10 { // a processor that stands still also skips looks
		if err := w.Reset(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.spinUnder(steps, true); err != nil {
			t.Fatal(err)
		}
		states, err := w.states()
		if err != nil {
			t.Fatal(err)
		}
		looks = 0
		for _, s := range states {
			looks += s.Looks
		}
		// If the kernel ends the looks by a separate interrupt, the next look may already have begun.
		if looks > costLooks+2 {
			t.Errorf("%d looks in %v, and at most %d are to be", looks, 100*costSpin, costLooks+2)
		}
		if looks >= costLooks/2 {
			return
		}
	}
	t.Errorf("%d looks in %v, and %d are to be", looks, 100*costSpin, costLooks)
}
