// Package exec is a load that only executes programs, on an absolute schedule or as fast as it can, and knows exactly
// how many execs it made. The events that a tracer of processes delivers are compared with that number. The load runs
// as a separate process (tare load exec).
//
// Workers make the execs. They are small processes (c/worker.c), by default one for each CPU. This process starts them,
// and reads their results. An exec counts when the executed program was reached, as its exit status shows, not when a
// child has been created and reaped. An execve that fails is counted separately, with its errno. Between the ready
// message and the start of the schedule, and after the schedule's end, nothing here executes anything. The kernel's
// count of the control group between ready and result must therefore equal the load's own count (CountMade) exactly, or
// one of the two is wrong.
//
// Every exec has unique arguments: Argv0 and "<worker>.<number>", both counted from 0.
package exec

//go:generate go run ./freestanding -arch amd64 -o worker_amd64.elf c/worker.c
//go:generate go run ./freestanding -arch amd64 -o target_amd64.elf c/target.c
//go:generate go run ./freestanding -arch arm64 -o worker_arm64.elf c/worker.c
//go:generate go run ./freestanding -arch arm64 -o target_arm64.elf c/target.c

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Generator is the name of the generator in results.
const Generator = "exec"

// Argv0 is the first argument of every program that the load executes.
const Argv0 = "tare-exec"

// The names of counts in results (load.Result.Counts). Execs are counted from the start message on, so those made
// during the warm-up are included.
const (
	CountMade    = "execs_made"   // programs executed
	CountFailed  = "execs_failed" // attempts that failed
	CountWorkers = "workers"      // number of processes that made the execs
)

// MaxPerCPU is the maximum number of workers per CPU (Options.Workers).
const MaxPerCPU = 4

// MaxRate is the maximum of Options.Rate, in execs per second: more than any machine can make.
const MaxRate = 1e6

// MaxTime is the maximum of warm-up and window together.
const MaxTime = 24 * time.Hour

// Options configures the load.
type Options struct {
	// Rate is the number of execs per second over all workers, at constant gaps, with a resolution of a thousandth. 0
	// means a storm: each worker makes the next exec as soon as its child has ended.
	Rate float64
	// Workers is the number of worker processes. The CPUs available to this process are assigned to them in turn. 0 means
	// one worker for each CPU.
	Workers int
	Spin    time.Duration // how long a worker spins before an exec at most; 0: pace.DefaultSpin, negative: not at all

	target []byte      // in tests: executed instead of the package's program
	mode   os.FileMode // in tests: that program's permissions
}

// Ready is the load's ready message.
type Ready struct {
	PID     int   `json:"pid"`
	Workers []int `json:"workers"` // process ids
	CPUs    []int `json:"cpus"`    // the CPU to which each worker and its children are bound
}

// Load is a load that is ready to run, once.
type Load struct {
	o       Options
	cpus    int // number of distinct CPUs in use
	workers []*worker
	running int          // number of started workers that await has not yet received from ended
	ended   chan *worker // receives each worker that ends
}

// worker is one process that makes execs.
type worker struct {
	part, cpu int
	s         *shared
	mem       []byte
	process   child.Process
	start     io.WriteCloser
}

// firstFile is the path of Files[0] of a child.Command, as seen by the process that it starts.
const firstFile = "/proc/self/fd/3"

// New starts the workers, which do not execute anything yet. It returns an error if options are invalid, or if the
// machine cannot execute files in memory. The caller must call Close.
func New(o Options) (l *Load, err error) {
	cpus, err := pace.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	o.Workers = cmp.Or(o.Workers, len(cpus))
	o.Spin = max(cmp.Or(o.Spin, pace.DefaultSpin), 0)
	if o.target == nil {
		o.target = targetProgram
	}
	o.mode = cmp.Or(o.mode, 0o700)
	switch most := MaxPerCPU * len(cpus); {
	case o.Rate != 0 && !(o.Rate >= 0.001 && o.Rate <= MaxRate):
		return nil, fault.New(fault.Usage, "--rate", "storm runs them as fast as they go",
			"must be 0.001 to %g execs per second, got %g", MaxRate, o.Rate)
	case o.Workers < 1 || o.Workers > most:
		return nil, fault.New(fault.Usage, "--workers", fmt.Sprintf("%d for each CPU that may be used", MaxPerCPU),
			"must be 1 to %d, got %d", most, o.Workers)
	case o.Spin > time.Millisecond:
		return nil, fault.New(fault.Usage, "--spin", "0s for none", "must be at most 1ms, got %v", o.Spin)
	case workerProgram == nil:
		return nil, noProgram()
	}
	l = &Load{o: o, cpus: min(o.Workers, len(cpus)), ended: make(chan *worker, o.Workers)}
	for part := range o.Workers {
		l.workers = append(l.workers, &worker{part: part, cpu: cpus[part%len(cpus)]})
	}
	if err := l.startAll(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// noProgram returns the error for an architecture without a program in this package.
func noProgram() error {
	return fault.New(fault.Machine, "", "use amd64 or arm64", "the load has no program for machines of type %s",
		runtime.GOARCH)
}

// startAll starts the workers.
func (l *Load) startAll() (err error) {
	file, err := program("tare-exec-worker", workerProgram)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for _, w := range l.workers {
		if err := l.startOne(w, file); err != nil {
			return err
		}
	}
	return nil
}

// startOne starts a worker and waits until it is ready. Each worker has a separate target file: executing a file
// updates counters in the file, and doing so on many CPUs at once would dominate the measurement.
func (l *Load) startOne(w *worker, file *os.File) (err error) {
	target, err := program(Argv0, l.o.target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := target.Chmod(l.o.mode); err != nil {
		return fmt.Errorf("making a file in memory executable: %w", err)
	}
	var memory *os.File
	if w.s, w.mem, memory, err = newShared("tare-exec-counts"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	s := w.s
	s.Layout, s.Size, s.Parent, s.CPU = layout, uint64(sharedSize), uint64(os.Getpid()), uint64(w.cpu)
	copy(s.Name[:], "tare-exec-work")
	copy(s.Argv0[:], Argv0)
	copy(s.Argv1[:], strconv.Itoa(w.part)+".")

	input, start, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer input.Close() // the worker has a copy
	ready, output, err := os.Pipe()
	if err != nil {
		return errors.Join(fmt.Errorf("making a pipe: %w", err), start.Close())
	}
	defer ready.Close()
	w.start = start
	err = child.Start(&w.process, child.Command{
		Path: firstFile, Argv: []string{"tare-exec-worker", strconv.Itoa(w.part)}, Files: []*os.File{file, memory, target},
		Stdin: input, Stdout: output,
	}, child.Options{Name: fmt.Sprintf("worker %d", w.part)})
	_ = output.Close() // the worker has a copy
	if err != nil {
		return fmt.Errorf("starting worker %d: %w", w.part, err)
	}
	_, none := io.ReadFull(ready, make([]byte, 1))
	l.running++
	go func() { // ends with the worker; await waits for it
		<-w.process.Ended()
		l.ended <- w
	}()
	if none != nil { // the worker ended
		return l.await(nil)
	}
	return nil
}

// Ready describes the load.
func (l *Load) Ready() Ready {
	r := Ready{PID: os.Getpid()}
	for _, w := range l.workers {
		r.Workers, r.CPUs = append(r.Workers, w.process.PID()), append(r.CPUs, w.cpu)
	}
	return r
}

// patience is the time that workers get to end after await has set their stop flags, which they check every 20 ms. Then
// await kills them.
const patience = 5 * time.Second

// await waits until all workers have ended. It ends them itself if one fails or if the channel done, which may be nil,
// is closed. It returns the error of the worker that failed first.
func (l *Load) await(done <-chan struct{}) (err error) {
	var kill <-chan time.Time
	stop := func() {
		if kill != nil {
			return
		}
		kill = time.After(patience)
		for _, w := range l.workers {
			if w.s != nil {
				w.s.Stop.Store(1)
			}
			if w.start != nil {
				_ = w.start.Close() // ends a worker that has not started; the pipe may already be closed
			}
		}
	}
	for l.running > 0 {
		select {
		case w := <-l.ended:
			l.running--
			if e := w.verdict(); e != nil {
				if err == nil {
					err = e
				}
				stop()
			}
		case <-done:
			done = nil
			stop()
		case <-kill:
			for _, w := range l.workers {
				w.process.Kill()
			}
		}
	}
	return err
}

// verdict returns an error if a worker did not end properly.
func (w *worker) verdict() error {
	where := fmt.Sprintf("worker %d (process %d)", w.part, w.process.PID())
	state := w.s.State.Load()
	if status := w.process.Status(); status.Signaled() {
		return fault.New(fault.Invalid, where, "see who did it: the kernel's log shows kills by memory limits",
			"was killed by %s, so the execs that it made are not all counted", unix.SignalName(status.Signal()))
	}
	switch state {
	case stateDone, stateStopped:
		if err := w.process.Err(); err != nil {
			return fmt.Errorf("waiting for %s: %w", where, err)
		}
		return nil
	case stateLayout:
		return fmt.Errorf("%s is of another version: go generate ./internal/tracing/exec", where)
	case stateOrphan:
		return fmt.Errorf("%s finds this process gone", where)
	case stateFailed:
		return fmt.Errorf("%s: system call %d: %w", where, w.s.Step, unix.Errno(w.s.Error))
	}
	err := w.process.Err()
	if err == nil {
		return fmt.Errorf("%s exited unexpectedly (status 0) in state %d", where, state)
	}
	return fmt.Errorf("%s ended in state %d: %w", where, state, err)
}

// Close ends the workers, if they are still running, and releases all resources.
func (l *Load) Close() error {
	over := make(chan struct{})
	close(over)
	_ = l.await(over) // their errors do not matter now
	var errs []error
	for _, w := range l.workers {
		if w.mem != nil {
			errs = append(errs, unix.Munmap(w.mem))
			w.s, w.mem = nil, nil
		}
	}
	return errors.Join(errs...)
}

// Run makes execs on the schedule and returns the result. The totals, errors and histograms of the result cover the
// execs whose intended start is in the window. Finished and Rate cover those that ended in it, and Counts also those of
// the warm-up. Run must be called only once. If the context ends first, Run returns the context's cause. If a worker
// was killed, the error has the code fault.Invalid.
func (l *Load) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	switch {
	case s.Duration <= 0 || s.Warmup < 0:
		return nil, fault.New(fault.Usage, "duration", "give a length of time", "there is no time to measure in")
	case s.Begin < 0:
		return nil, fault.New(fault.Usage, "begin", "give a time of CLOCK_MONOTONIC",
			"the load cannot begin before the machine did")
	case s.Warmup > int64(MaxTime) || s.Duration > int64(MaxTime)-s.Warmup:
		return nil, fault.New(fault.Usage, "duration", fmt.Sprintf("give at most %v", MaxTime),
			"the load would run for too long")
	}
	warm := s.Begin + s.Warmup
	end := warm + s.Duration
	for _, w := range l.workers {
		m := w.s
		m.Rate, m.Part, m.Parts = uint64(math.Round(l.o.Rate*1000)), uint64(w.part), uint64(len(l.workers))
		m.Begin, m.Warm, m.End, m.Spin = uint64(s.Begin), uint64(warm), uint64(end), uint64(l.o.Spin)
	}
	for _, w := range l.workers {
		_, _ = w.start.Write([]byte{1}) // if the worker has ended, await will notice
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	type used struct {
		seconds float64
		err     error
	}
	own := make(chan used, 1)
	go func() {
		seconds, err := pace.ProcessCPU(running, warm, end)
		own <- used{seconds, err}
	}()
	err := l.await(ctx.Done())
	if err != nil || ctx.Err() != nil {
		cancel()
	}
	cpu := <-own
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case cpu.err != nil:
		return nil, cpu.err
	}
	return l.result(s, cpu.seconds)
}

// result adds up the counts of the workers. cpu is the CPU time of this process in the window, in seconds.
func (l *Load) result(s role.Schedule, cpu float64) (*load.Result, error) {
	r := &load.Result{
		Generator: Generator, Mode: load.Closed, Seconds: float64(s.Duration) / 1e9, TargetRate: l.o.Rate,
		Errors: map[string]int64{}, CPUSeconds: cpu, CPUs: float64(l.cpus),
	}
	if l.o.Rate > 0 {
		r.Mode, r.Arrivals = load.Open, string(pace.Constant)
	}
	sum := load.NewTally()
	var made, failed uint64
	for _, w := range l.workers {
		m := w.s
		if m.State.Load() != stateDone {
			return nil, fmt.Errorf("worker %d ended in state %d, before its time", w.part, m.State.Load())
		}
		made, failed = made+m.Made, failed+m.Failed
		sum.Intended += int64(m.Intended)
		sum.Sent += int64(m.Sent)
		sum.Done += int64(m.Done)
		sum.Late += int64(m.Late)
		sum.Finished += int64(m.Finished)
		r.CPUSeconds += float64(m.CPUAfter-m.CPUBefore) / 1e9
		for kind := range m.Errors {
			for code, n := range m.Errors[kind] {
				if n > 0 {
					r.Errors[errorName(kind, code)] += int64(n)
				}
			}
		}
		for name, h := range map[string]*fine{load.Latency: &m.Latency, load.Service: &m.Service, load.Lag: &m.Lag,
			load.OwnLag: &m.OwnLag} {
			if err := merge(sum.Histogram(name), 3, h.Counts[:], h.N); err != nil {
				return nil, fmt.Errorf("%s of worker %d: %w", name, w.part, err)
			}
		}
		for i := range m.Slices {
			if err := merge(sum.Slices[i], 2, m.Slices[i].Counts[:], m.Slices[i].N); err != nil {
				return nil, fmt.Errorf("slice %d of worker %d: %w", i, w.part, err)
			}
		}
	}
	r.Counts = map[string]float64{CountMade: float64(made), CountFailed: float64(failed),
		CountWorkers: float64(len(l.workers))}
	return r, sum.Into(r)
}

// merge adds a worker's histogram, which has the same layout as h, to h. It checks that the histogram holds n values.
func merge(h *hdrhistogram.Histogram, digits int64, counts []int64, n uint64) error {
	before := h.TotalCount()
	h.Merge(hdrhistogram.Import(&hdrhistogram.Snapshot{
		LowestTrackableValue: 1, HighestTrackableValue: load.Longest, SignificantFigures: digits, Counts: counts,
	}))
	if got := h.TotalCount() - before; got != int64(n) {
		return fmt.Errorf("its histogram holds %d values, and %d were recorded", got, n)
	}
	return nil
}

// errorName returns the name of a failure in results, such as "execveat EACCES", "clone EAGAIN", "killed SIGSEGV" or
// "exited 1".
func errorName(kind, code int) string {
	number := strconv.Itoa(code)
	switch kind {
	case kindClone, kindExec:
		if name := unix.ErrnoName(unix.Errno(code)); name != "" {
			number = name
		}
		if kind == kindClone {
			return "clone " + number
		}
		return "execveat " + number
	case kindKilled:
		if name := unix.SignalName(unix.Signal(code)); name != "" {
			number = name
		}
		return "killed " + number
	}
	return "exited " + number
}

// Run runs the load by the role protocol on conn: it starts the workers, sends the ready message, waits for the start,
// makes execs, sends the result, and waits until the parent closes its end. If the parent closes earlier, Run ends
// without an error.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	l, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.Work(ctx, conn, l.Ready(), l.Run)
}
