// Package exec is the load that executes programs and nothing else, by an absolute schedule or as fast as it goes,
// and knows to the exec how many it made: what a tracer of processes delivers is held against that. It runs as a
// process of its own (tare load exec).
//
// The execs are made by workers, one small process for each CPU (c/worker.c), which this process starts and reads. An
// exec counts when the program was reached, told by the program's own end, and not when a child has come and gone: an
// execve that fails is counted apart, with its errno. Between the ready message and the begin of the schedule, and
// after its end, nothing here executes anything, so that the kernel's count of the control group between ready and
// result is the load's own (CountMade) exactly, or one of the two is wrong.
//
// Every exec can be told from every other by its arguments: Argv0 and "<worker>.<number>", both counted from 0.
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
	osexec "os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Generator is what results name as their generator.
const Generator = "exec"

// Argv0 is the first argument of every program that the load executes.
const Argv0 = "tare-exec"

// What results count (load.Result.Counts), all from the start message on, warm-up included.
const (
	CountMade    = "execs_made"   // programs executed
	CountFailed  = "execs_failed" // attempts that failed
	CountWorkers = "workers"      // processes that made them
)

// MaxPerCPU bounds Options.Workers.
const MaxPerCPU = 4

// MaxRate bounds Options.Rate, per second: more than any machine executes.
const MaxRate = 1e6

// MaxTime bounds warm-up and window together.
const MaxTime = 24 * time.Hour

// Options of a load.
type Options struct {
	// execs per second in all, to a thousandth, at constant gaps; 0 for a storm: each worker goes on as soon as its child
	// has ended
	Rate float64
	// processes that execute, dealt out to the CPUs that this process may use in turn; 0 for one on each
	Workers int
	Spin    time.Duration // largest wait that may be spun through; default pace.DefaultSpin, negative for none

	target []byte      // of tests: what is executed instead of the program of the package
	mode   os.FileMode // of tests: its permissions
}

// Ready is what a load says of itself before the start.
type Ready struct {
	PID     int   `json:"pid"`
	Workers []int `json:"workers"` // process ids
	CPUs    []int `json:"cpus"`    // on which each of them runs, and what it executes
}

// Load is a load that is ready to run, once.
type Load struct {
	o       Options
	cpus    int // different ones in use
	workers []*worker
	running int           // workers whose end has not been taken from ended
	ended   chan *worker  // as each ends
	release chan struct{} // closed when the thread that started them may end
}

// worker is one process that executes.
type worker struct {
	part, cpu int
	s         *shared
	mem       []byte
	cmd       *osexec.Cmd
	start     io.WriteCloser
	err       error // of its end
}

// New starts the workers; they execute nothing yet. Its errors are of wrong use, and of machines where files in
// memory cannot be executed.
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
		return nil, fault.New(fault.Usage, "--rate", fmt.Sprintf("give 0.001 to %g execs per second", MaxRate),
			"%g is no rate", o.Rate)
	case o.Workers < 1 || o.Workers > most:
		return nil, fault.New(fault.Usage, "--workers", fmt.Sprintf("give 1 to %d: %d for each CPU that may be used", most,
			MaxPerCPU), "%d processes cannot execute", o.Workers)
	case o.Spin > time.Millisecond:
		return nil, fault.New(fault.Usage, "--spin", "give at most 1ms", "a wait of %v is not to be spun through", o.Spin)
	case workerProgram == nil:
		return nil, noProgram()
	}
	l = &Load{o: o, cpus: min(o.Workers, len(cpus)), ended: make(chan *worker, o.Workers), release: make(chan struct{})}
	for part := range o.Workers {
		l.workers = append(l.workers, &worker{part: part, cpu: cpus[part%len(cpus)]})
	}
	started := make(chan error)
	go l.start(started, l.release)
	if err := <-started; err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// noProgram is why nothing can be executed on this machine, which is of a type that the package has no programs for.
func noProgram() error {
	return fault.New(fault.Machine, "", "use amd64 or arm64", "the load has no program for machines of type %s",
		runtime.GOARCH)
}

// start starts the workers from a thread that lives as long as they do: the signal by which they die with this
// process comes when the thread that started them ends (PR_SET_PDEATHSIG(2const)).
func (l *Load) start(started chan<- error, release <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	started <- l.startAll()
	<-release
}

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

// startOne starts a worker and waits until it is ready. Each has a target of its own: executing a file counts in it,
// and on many CPUs at once that would be what is measured.
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

	const first = 3 // the number of the first of ExtraFiles in the child
	w.cmd = &osexec.Cmd{
		Path: "/proc/self/fd/" + strconv.Itoa(first), Args: []string{"tare-exec-worker", strconv.Itoa(w.part)},
		ExtraFiles: []*os.File{file, memory, target},
		// A group of its own: what ends a run from a terminal goes to this process alone, which ends the workers in
		// good order.
		SysProcAttr: &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true},
	}
	if w.start, err = w.cmd.StdinPipe(); err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	ready, err := w.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	if err := w.cmd.Start(); err != nil {
		return fmt.Errorf("starting worker %d: %w", w.part, err)
	}
	_, none := io.ReadFull(ready, make([]byte, 1))
	l.running++
	go func() { // ends with the worker, for which await waits
		child.Await(w.cmd.Process.Pid) // in no system call: the process may stop all of its threads now (privilege.Keep)
		w.err = w.cmd.Wait()
		l.ended <- w
	}()
	if none != nil { // it ended
		return l.await(nil)
	}
	return nil
}

// Ready describes the load.
func (l *Load) Ready() Ready {
	r := Ready{PID: os.Getpid()}
	for _, w := range l.workers {
		r.Workers, r.CPUs = append(r.Workers, w.cmd.Process.Pid), append(r.CPUs, w.cpu)
	}
	return r
}

// patience is how long a worker that is to end may take until it is killed: it looks for the word every 20 ms.
const patience = 5 * time.Second

// await waits until all workers have ended. When one of them ends other than it should, or when done is closed, it
// has the others end too. The error is of the first that failed.
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
				_ = w.start.Close() // one that has not started ends by it, and it may be closed
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
				if w.cmd != nil && w.cmd.Process != nil {
					_ = w.cmd.Process.Kill() // it may have ended meanwhile
				}
			}
		}
	}
	return err
}

// verdict is what was wrong with the end of a worker.
func (w *worker) verdict() error {
	where := fmt.Sprintf("worker %d (process %d)", w.part, w.cmd.Process.Pid)
	state := w.s.State.Load()
	var exit *osexec.ExitError
	if errors.As(w.err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return fault.New(fault.Invalid, where, "see who did it: the kernel's log tells of memory limits",
				"was killed by %s, so the execs that it made are not all counted", unix.SignalName(status.Signal()))
		}
	}
	switch state {
	case stateDone, stateStopped:
		if w.err != nil {
			return fmt.Errorf("waiting for %s: %w", where, w.err)
		}
		return nil
	case stateLayout:
		return fmt.Errorf("%s is of another version: go generate ./internal/tracing/exec", where)
	case stateOrphan:
		return fmt.Errorf("%s finds this process gone", where)
	case stateFailed:
		return fmt.Errorf("%s: system call %d: %w", where, w.s.Step, unix.Errno(w.s.Error))
	}
	if w.err == nil {
		return fmt.Errorf("%s exited unexpectedly (status 0) in state %d", where, state)
	}
	return fmt.Errorf("%s ended in state %d: %w", where, state, w.err)
}

// Close ends the workers, if they have not, and gives everything back.
func (l *Load) Close() error {
	over := make(chan struct{})
	close(over)
	_ = l.await(over) // it is over for them, whatever comes
	var errs []error
	for _, w := range l.workers {
		if w.mem != nil {
			errs = append(errs, unix.Munmap(w.mem))
			w.s, w.mem = nil, nil
		}
	}
	if l.release != nil {
		close(l.release)
		l.release = nil
	}
	return errors.Join(errs...)
}

// Run makes execs by the schedule and says what came of it. Those count that are intended in the window. It ends
// early with the context's error, and with one of code Invalid when a worker was killed.
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
		_, _ = w.start.Write([]byte{1}) // one that is not there to read it is found by its end
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

// result adds up what the workers counted.
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

// merge adds a worker's counts, which are laid out as those of h, and sees that they are n in all.
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

// errorName is the kind of a failure, as results have it: "execveat EACCES", "clone EAGAIN", "killed SIGSEGV",
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

// Run plays a load's part in the role protocol on conn: starts the workers, says ready, waits for the start,
// executes, sends the result, and stays until the parent closes its end. If the parent does so earlier, that is the
// end, and no error.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	l, err := New(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.Work(ctx, conn, l.Ready(), l.Run)
}
