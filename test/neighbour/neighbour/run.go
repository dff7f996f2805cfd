// Package neighbour is a busy tenant of the same machine, for tests: it takes a part of every CPU away in bursts at
// SCHED_FIFO.
//
// What it did is known to the microsecond: each burst is reported with its beginning and end, by the clock of the
// sampler and of the loads. So a test can compare what Tare reports about a disturbance with the truth.
package neighbour

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The default bounds of the lengths of bursts.
const (
	Shortest = 5 * time.Millisecond
	Longest  = 50 * time.Millisecond
)

// maxFor bounds the plan of bursts, which is made beforehand.
const maxFor = 24 * time.Hour

// Options says what a neighbour does.
type Options struct {
	For      time.Duration // how long the neighbour runs; 0 means a minute
	Part     float64       // part of every CPU that it takes; 0 means a half
	Seed     uint64        // of the random lengths of bursts and gaps
	Shortest time.Duration // shortest burst; 0 means the constant Shortest
	Longest  time.Duration // longest burst; 0 means the constant Longest
}

// Burst is a stretch of time in which the neighbour held a CPU.
type Burst struct {
	CPU  int   `json:"cpu"`
	From int64 `json:"from_ns"` // CLOCK_MONOTONIC
	To   int64 `json:"to_ns"`
}

// Seconds returns the length of the burst in seconds.
func (b Burst) Seconds() float64 { return float64(b.To-b.From) / 1e9 }

func (o Options) withDefaults() (Options, error) {
	if o.For == 0 {
		o.For = time.Minute
	}
	if o.Part == 0 {
		o.Part = 0.5
	}
	if o.Shortest == 0 {
		o.Shortest = Shortest
	}
	if o.Longest == 0 {
		o.Longest = Longest
	}
	switch {
	case o.For < 0 || o.For > maxFor:
		return o, fmt.Errorf("the time %s is out of range (above 0, to %s)", o.For, maxFor)
	case o.Part < 0 || o.Part > 0.9: // the kernel leaves 5 % to others by default: sched_rt_runtime_us
		return o, fmt.Errorf("the part %g is out of range (above 0, to 0.9)", o.Part)
	case o.Shortest < 100*time.Microsecond || o.Longest < o.Shortest || o.Longest > time.Second:
		return o, fmt.Errorf("bursts of %s to %s are out of range (100 µs to 1 s)", o.Shortest, o.Longest)
	}
	return o, nil
}

// span is one burst as planned, in nanoseconds from the start.
type span struct{ from, to int64 }

// plan draws the bursts of one CPU. The lengths of bursts are uniform between Shortest and Longest, and those of gaps
// likewise, scaled so that bursts make up the part. Each CPU has a separate random stream, so that CPUs are
// independent.
func plan(o Options, cpu int) []span {
	r := rand.New(rand.NewPCG(o.Seed, uint64(cpu)))
	draw := func() float64 { return float64(o.Shortest) + r.Float64()*float64(o.Longest-o.Shortest) }
	gap := func() float64 { return draw() * (1 - o.Part) / o.Part }
	var spans []span
	for at := r.Float64() * gap(); at < float64(o.For); at += gap() {
		s := span{from: int64(at)}
		at = min(at+draw(), float64(o.For))
		s.to = int64(at)
		spans = append(spans, s)
	}
	return spans
}

// Run is the neighbour itself: it takes CPUs away in this process until its time is over or ctx ends. It calls the
// function burst with each burst, from one goroutine, at most about 20 ms after the burst ended. It turns off the
// garbage collector of this process, so it needs a separate process: see Start.
func Run(ctx context.Context, o Options, burst func(Burst)) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	var online unix.CPUSet
	if err := unix.SchedGetaffinity(0, &online); err != nil {
		return fmt.Errorf("finding the CPUs: %w", err)
	}
	// A burst holds one of Go's processors without a break, and must not wait for a processor when it begins. A garbage
	// collection would wait for the end of all bursts.
	runtime.GOMAXPROCS(online.Count() + 4)
	debug.SetGCPercent(-1)

	var stop atomic.Bool
	var threads []*thread
	for cpu := range len(online) * 64 {
		if online.IsSet(cpu) {
			spans := plan(o, cpu)
			threads = append(threads, &thread{cpu: cpu, plan: spans, done: make([]span, len(spans)), stop: &stop})
		}
	}
	// The CPUs start together, when all of them are ready.
	ready, start := make(chan error, len(threads)), make(chan struct{})
	var running sync.WaitGroup
	for _, t := range threads {
		running.Go(func() { t.run(ready, start) })
	}
	for range threads {
		err = errors.Join(err, <-ready)
	}
	if err != nil {
		stop.Store(true)
	}
	t0 := monotonic()
	for _, t := range threads {
		t.t0 = t0
	}
	close(start)
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	report(ctx, threads, &stop, ended, burst)
	return err
}

// report passes bursts on as they end, until the threads have ended.
func report(ctx context.Context, threads []*thread, stop *atomic.Bool, ended <-chan struct{}, burst func(Burst)) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	cancelled := ctx.Done()
	for over := false; !over; {
		select {
		case <-cancelled:
			stop.Store(true)
			cancelled = nil
		case <-ended:
			over = true
		case <-tick.C:
		}
		for _, t := range threads {
			for n := t.count.Load(); t.reported < n; t.reported++ {
				b := t.done[t.reported]
				burst(Burst{CPU: t.cpu, From: b.from, To: b.to})
			}
		}
	}
}

// thread takes one CPU away.
type thread struct {
	cpu  int
	plan []span
	t0   int64 // CLOCK_MONOTONIC at the start of the plan
	stop *atomic.Bool

	done     []span // actual bursts, by CLOCK_MONOTONIC
	count    atomic.Int64
	reported int64 // number of bursts that report has passed on
}

// run prepares the thread, reports on ready that it has, and takes its CPU away according to plan. The operating
// system's thread ends with run.
func (t *thread) run(ready chan<- error, start <-chan struct{}) {
	runtime.LockOSThread() // and never unlocked: priority and mask end with the thread
	ready <- t.prepare()
	<-start
	t.bursts()
}

// rtPriority is the lowest real-time priority: enough against everything that is not real-time itself.
const rtPriority = 1

func (t *thread) prepare() error {
	var own unix.CPUSet
	own.Set(t.cpu)
	if err := unix.SchedSetaffinity(0, &own); err != nil {
		return fmt.Errorf("binding a thread to CPU %d: %w", t.cpu, err)
	}
	// Go's scheduler sends a signal to interrupt a goroutine that has run for 10 ms. With signals blocked, a burst goes
	// on.
	all := unix.Sigset_t{}
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, nil); err != nil {
		return fmt.Errorf("blocking signals: %w", err)
	}
	if err := setFIFO(); err != nil {
		return fmt.Errorf("running at SCHED_FIFO on CPU %d: %w", t.cpu, err)
	}
	return nil
}

// setFIFO makes the calling thread a real-time one. With CONFIG_RT_GROUP_SCHED, only control groups with a real-time
// budget may hold such threads. By default only the root group of v1 has such a budget; then the thread moves there.
func setFIFO() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: rtPriority}
	err := unix.SchedSetAttr(0, &attr, 0)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	for _, root := range []string{"/sys/fs/cgroup/cpu/tasks", "/sys/fs/cgroup/cpu,cpuacct/tasks",
		"/sys/fs/cgroup/cgroup.threads"} {
		if os.WriteFile(root, []byte("0"), 0) == nil {
			if err = unix.SchedSetAttr(0, &attr, 0); err == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("%w (it needs CAP_SYS_NICE, and a control group with a real-time budget)", err)
}

// bursts follows the plan. It must not enter Go's scheduler, in which it could wait for threads of ordinary priority.
// RawSyscall does not enter it, and neither does the function itself, because nosplit removes the check of the stack at
// which Go can stop a goroutine. The times of the plan do not move: a burst that is due while the hypervisor has the
// CPU becomes shorter, or is left out.
//
//go:nosplit
func (t *thread) bursts() {
	var ts unix.Timespec
	for i := range t.plan {
		from, to := t.t0+t.plan[i].from, t.t0+t.plan[i].to
		// It waits in steps of at most 100 ms, so that it soon sees a request to stop.
		for now := rawMonotonic(&ts); now < from; now = rawMonotonic(&ts) {
			if t.stop.Load() {
				return
			}
			at := min(from, now+int64(100*time.Millisecond))
			ts.Sec, ts.Nsec = at/1e9, at%1e9
			_, _, _ = unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME,
				uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		}
		began := rawMonotonic(&ts)
		now := began
		for now < to && !t.stop.Load() {
			now = rawMonotonic(&ts)
		}
		if now > began {
			n := t.count.Load()
			t.done[n] = span{began, now}
			t.count.Store(n + 1)
		}
	}
}

// rawMonotonic reads CLOCK_MONOTONIC by a real system call, during which the kernel may do what is due on this CPU.
//
//go:nosplit
func rawMonotonic(ts *unix.Timespec) int64 {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(ts)), 0)
	return ts.Sec*1e9 + ts.Nsec
}

func monotonic() int64 {
	var ts unix.Timespec
	return rawMonotonic(&ts)
}
