package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
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

// Own is what is known of a load's program, stored in Result.Own.
type Own struct {
	Command string `json:"command"` // its command line, as it was started

	// WallSeconds is the time from the program's start until its end. It and WindowSeconds are by Tare's clock.
	WallSeconds float64 `json:"wall_seconds"`
	// WindowSeconds is how much of the measured window it ran.
	WindowSeconds float64 `json:"window_seconds"`
	// Stopped is true if it was stopped instead of ending by itself.
	Stopped bool `json:"stopped,omitempty"`

	// Opened is how many TCP connections any program opened in Tare's network namespace between two readings at the
	// edges of the window, OpenedSeconds apart; nil if the kernel does not report it.
	Opened        *uint64 `json:"machine_connections"`
	OpenedSeconds float64 `json:"machine_connections_seconds"`

	// Said is the tool's parsed output; nil if its format is unknown or it could not be read: Unread says why.
	Said   *tool.Reading `json:"said"`
	Unread string        `json:"unread,omitempty"`

	LastWords string `json:"last_words,omitempty"` // if the program did not run over the whole window
}

// joined is the load in a trial: a kind.Generator.
type joined struct {
	part.Part
	of      *kind.Part
	options options
	early   bool // it is started before the schedule begins, and waits (await)

	command  process.Command // with the placeholders filled in
	line     string          // as given, for the user to try by hand
	begin    string          // the file that an early program waits for
	schedule role.Schedule
	running  *process.Running
	started  int64 // CLOCK_MONOTONIC, nanoseconds

	mu    sync.Mutex
	ended int64 // CLOCK_MONOTONIC, ns; 0: it has not ended by itself

	watch     sync.WaitGroup
	stopWatch context.CancelFunc
	edges     [2]edge
}

func newJoined(t kind.Trial, name string, of *kind.Part, o options) *joined {
	return &joined{Part: part.Part{Trial: t, Name: name}, of: of, options: o}
}

// Aim fills in the command line, since the application's address is now known. It starts an early program.
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

// Generate starts the program.
func (j *joined) Generate(ctx context.Context, s role.Schedule) (err error) {
	j.schedule = s
	watching, stop := context.WithCancel(ctx)
	j.stopWatch = stop
	j.watch.Go(func() { j.edges = readAt(watching, s.Begin+s.Warmup, s.Begin+s.Warmup+s.Duration) })
	j.started = pace.Now()
	if j.early {
		return os.WriteFile(j.begin, nil, 0o644)
	}
	j.running, err = j.Start(ctx, j.command, j.onEnd)
	return err
}

// onEnd is called when the program has ended by itself. With an error it ends the trial.
func (j *joined) onEnd(err error) {
	j.mu.Lock()
	j.ended = pace.Now()
	j.mu.Unlock()
	if err != nil {
		j.Trial.Fail(err)
	}
}

// Result waits for a program whose output is read, and stops any other.
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

// wait waits for the program, until its drain is over.
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

// endedAt returns when the program ended: by itself, or just now.
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

// inWindow returns how many seconds of the window the program ran, if it ended at end.
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

// cpus returns how many CPUs the program could use.
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
