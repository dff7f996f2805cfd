package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/process"
	"tare/internal/experiment/process/part"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/workloads/load/command/tool"
)

// Own holds what is known about a load's program. It is stored in Result.Own.
type Own struct {
	Command string `json:"command"` // the program's command line, as it was started

	// WallSeconds is the time from the program's start to its end. WallSeconds and WindowSeconds are by Tare's clock.
	WallSeconds float64 `json:"wall_seconds"`
	// WindowSeconds is the part of the measured window in which the program ran.
	WindowSeconds float64 `json:"window_seconds"`
	// Stopped is true if Tare stopped the program, and false if it ended by itself.
	Stopped bool `json:"stopped,omitempty"`

	// Opened is the number of TCP connections that all programs in Tare's network namespace opened between two readings at
	// the edges of the window, OpenedSeconds apart. It is nil if the kernel does not report it.
	Opened        *uint64 `json:"machine_connections"`
	OpenedSeconds float64 `json:"machine_connections_seconds"`

	// Said is the tool's parsed output. It is nil if its format is unknown, or if it could not be parsed; Unread then says
	// why.
	Said   *tool.Reading `json:"said"`
	Unread string        `json:"unread,omitempty"`

	LastWords string `json:"last_words,omitempty"` // set if the program did not run over the whole window
}

// joined is the load's part of a trial: a kind.Generator.
type joined struct {
	part.Part
	of      *kind.Part
	options options
	early   bool // the program is started before the schedule begins, and then waits (await)

	command  process.Command // with the placeholders filled in
	line     string          // the program's command line, quoted for a shell, to be tried by hand
	begin    string          // the file that an early program waits for
	schedule role.Schedule
	running  *process.Running
	started  int64 // CLOCK_MONOTONIC, nanoseconds

	mu    sync.Mutex
	ended int64 // CLOCK_MONOTONIC, ns; 0: the program has not ended by itself

	watch     sync.WaitGroup
	stopWatch context.CancelFunc
	edges     [2]edge
}

func newJoined(t kind.Trial, name string, of *kind.Part, o options) *joined {
	return &joined{Part: part.Part{Trial: t, Name: name}, of: of, options: o}
}

// Aim fills in the command line, for which the application's address is now known. If the load is early, Aim starts the
// program.
func (j *joined) Aim(ctx context.Context, at kind.Site) error {
	place, err := j.Place()
	if err != nil {
		return err
	}
	setup := j.Trial.Setup()
	place.Address, place.Duration, place.Window = at.Address, setup.Warmup+setup.Duration, setup.Duration
	if j.command, err = j.options.command.At(place); err != nil {
		return err
	}
	if j.line = j.command.Line(); !j.early {
		return nil
	}
	return j.await(ctx, place.Dir)
}

// Generate starts the program, or, if Aim has started it, lets it begin to work.
func (j *joined) Generate(ctx context.Context, s role.Schedule) (err error) {
	j.schedule = s
	watching, stop := context.WithCancel(ctx)
	j.stopWatch = stop
	j.watch.Go(func() { j.edges = readAt(watching, s.Begin+s.Warmup, s.Begin+s.Warmup+s.Duration) })
	j.started = pace.Now()
	if j.early {
		return j.letBegin()
	}
	j.running, err = j.Start(ctx, j.command, j.onEnd)
	return err
}

// onEnd is called when the program has ended by itself. It ends the trial if err is not nil.
func (j *joined) onEnd(err error) {
	j.mu.Lock()
	j.ended = pace.Now()
	j.mu.Unlock()
	if err != nil {
		j.Trial.Fail(err)
	}
}

// Result returns the program's result. If the program's output is to be parsed, it waits for the program until the
// drain is over. It stops a program that still runs then.
func (j *joined) Result(ctx context.Context) (r load.Result, err error) {
	stopped, err := j.finish(ctx)
	if err != nil {
		return r, err
	}
	j.watch.Wait() // the window is over
	own := Own{Command: j.line, Stopped: stopped}
	end := j.endedAt()
	own.WallSeconds = float64(end-j.started) / 1e9
	own.WindowSeconds = j.inWindow(end)
	if own.WindowSeconds < j.windowSeconds() {
		own.LastWords = j.running.LastWords()
	}
	own.Opened, own.OpenedSeconds = opened(j.edges)
	j.read(&own)
	r = load.Result{
		Generator: Generator, Mode: load.Outside, Seconds: j.windowSeconds(), Errors: map[string]int64{},
		Histograms: map[string]string{}, CPUSeconds: j.cpuSeconds(), CPUs: j.cpus(),
	}
	if r.Own, err = json.Marshal(own); err != nil {
		return r, fmt.Errorf("encoding what is known of %s: %w", j.options.command.Name(), err)
	}
	return r, nil
}

// finish waits until the program has ended, or stops it. It returns an error if the program failed.
func (j *joined) finish(ctx context.Context) (stopped bool, err error) {
	if j.options.tool != "" {
		if err := j.wait(ctx); err != nil {
			return false, err
		}
	}
	select {
	case <-j.running.Ended():
		if j.running.Err() != nil {
			return false, j.running.Failure("during the trial")
		}
		return false, nil
	default:
	}
	if j.running.Stop() {
		j.Trial.Warn("load-killed", "%s did not end in time when asked to, and was killed",
			j.options.command.Name())
	}
	return true, nil
}

// wait waits until the program has ended, or until the drain is over.
func (j *joined) wait(ctx context.Context) error {
	asked := math.Ceil(float64(j.schedule.Warmup+j.schedule.Duration)/1e9) * 1e9 // the value of {seconds}
	until := j.started + int64(asked) + int64(j.of.Options.Duration(settingDrain))
	timer := time.NewTimer(time.Duration(until - pace.Now()))
	defer timer.Stop()
	select {
	case <-j.running.Ended():
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// endedAt returns when the program ended by itself, or the current time if it has not.
func (j *joined) endedAt() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return cmp.Or(j.ended, pace.Now())
}

// edgesOf returns when the window opens and closes.
func (j *joined) edgesOf() (from, to int64) {
	from = j.schedule.Begin + j.schedule.Warmup
	return from, from + j.schedule.Duration
}

func (j *joined) windowSeconds() float64 { return float64(j.schedule.Duration) / 1e9 }

// inWindow returns for how many seconds of the window the program ran, given the time of its end.
func (j *joined) inWindow(end int64) float64 {
	from, to := j.edgesOf()
	return float64(max(0, min(to, end)-max(from, j.started))) / 1e9
}

// read parses the tool's output.
func (j *joined) read(own *Own) {
	if j.options.tool == "" {
		return
	}
	text, cut := j.running.Output()
	reading, err := tool.Parse(j.options.tool, text)
	if err == nil && cut > 0 {
		err = fmt.Errorf("%s printed more than %d bytes, and what it printed first was not kept", j.options.tool,
			tool.MaxBytes)
	}
	if err != nil && own.Stopped {
		err = fmt.Errorf("it was still running %.3g s after its start and was stopped, so its output is incomplete "+
			"(%w); give it less to do, or raise its drain", own.WallSeconds, err)
	}
	if err != nil {
		own.Unread = err.Error()
		if words := j.running.LastWords(); words != "" {
			own.Unread += "; its last words: " + words
		}
		return
	}
	own.Said = &reading
}

// cpuSeconds returns the CPU time of the program's group in the window, or 0 if the ledger does not have it.
func (j *joined) cpuSeconds() float64 {
	if l := j.Trial.Record().Ledger; l != nil {
		for _, g := range l.Cgroups {
			if g.Path == j.GroupPath() && g.CPUSeconds != nil {
				return *g.CPUSeconds
			}
		}
	}
	return 0
}

// cpus returns the number of CPUs that the program could use.
func (j *joined) cpus() float64 {
	n := float64(runtime.NumCPU())
	if j.of.Limits.Float("pin") > 0 {
		n = 1
	}
	if limit := j.of.Limits.Float("cpus"); limit > 0 {
		n = min(n, limit)
	}
	return n
}

// Close ends the program and stops counting connections.
func (j *joined) Close() error {
	if j.stopWatch != nil {
		j.stopWatch()
		j.watch.Wait()
	}
	return j.Part.Close()
}
