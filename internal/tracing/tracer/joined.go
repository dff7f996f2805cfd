package tracer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"tare/internal/experiment/kind"
	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/files"
	"tare/internal/lib/known"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	execload "tare/internal/tracing/exec"
	"tare/internal/workloads/subject/command"
)

// readyTimeout is the timeout of Running.Ready. It is long because some tracers first compile a program.
const readyTimeout = 2 * time.Minute

// joined is the tracer's part of a trial. It delivers the events of the trial's load (execload.Deliverer).
type joined struct {
	trial    kind.Trial
	part     *kind.Part
	tracer   *Tracer
	counting *execload.Counting

	group   kind.Group
	running *Running       // nil before Start
	began   time.Time      // just before the tracer's process was started
	atEdge  []int          // the processes in the tracer's group when the window was closed
	own     *files.Scratch // the tracer's private directory
	groups  *cgroup.Reader // reads the tracer's group; nil before Start
	counter *cgroup.Group  // the tracer's group in groups; nil if nothing counts CPU time
	found   *Evidence      // set once the tracer's processes were examined
}

// Start starts the tracer and waits until it sees every exec.
func (j *joined) Start(ctx context.Context) error {
	place, err := j.place()
	if err != nil {
		return err
	}
	limits := j.part.Limits.Clone()
	if _, limited := limits["cpus"]; limited {
		// The limit applies once the tracer is ready: compiling a program with a twentieth of a CPU takes minutes, and is not
		// what is measured.
		limits["cpus"] = strconv.Itoa(runtime.NumCPU())
	}
	if j.group, err = j.trial.SubjectGroup("", limits); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if j.groups, err = cgroup.NewReaderOfSome(j.trial.Cgroups()); err != nil {
		return err
	}
	j.counter = j.groups.Add(j.group.Path())
	j.began = time.Now()
	if j.running, err = Start(j.tracer, place, j.group.In(""), j.trial.Fail); err != nil {
		return fmt.Errorf("starting %s: %w", j.trial.Arm(), err)
	}
	if err := j.running.Ready(ctx, readyTimeout, j.counting.Probe); err != nil {
		return err
	}
	if err := j.group.LimitCPUs(j.part.Limits.Float("cpus")); err != nil {
		return err
	}
	return j.counting.Ready(ctx)
}

// place returns the values of the placeholders in the tracer's command line. It makes the tracer's directory, which
// Close removes.
func (j *joined) place() (p cmdline.Place, err error) {
	if j.own, err = files.NewScratch(files.LargeTemp(), "tracer"); err != nil {
		return p, err
	}
	p = cmdline.Place{Self: j.trial.Self(), Dir: j.own.Path()}
	p.CgroupDir, p.CgroupID = j.counting.Group()
	p.CgroupPath = j.trial.Cgroups().V2Path(p.CgroupDir)
	p.Port, err = cmdline.FreePort()
	return p, err
}

// Scope implements execload.Deliverer, together with Said, CountsExit, CPUSeconds, Waits, Stop and Unknown.
func (j *joined) Scope() execload.Scope { return j.tracer.Scope }

func (j *joined) Said(ctx context.Context) (execload.Said, error) { return j.running.Counts(ctx) }

// CountsExit returns false if delivered events are counted by a metric, which is read only while the tracer runs.
func (j *joined) CountsExit() bool { return j.tracer.Delivered.Metric == nil }

func (j *joined) CPUSeconds() *float64 {
	if j.counter == nil || j.groups.ReadCPUOf(j.counter) != nil || j.counter.Vanished {
		return nil
	}
	c := j.counter.CPU
	if c.Resets > 0 {
		j.trial.Warn(ledger.CounterReset, "the CPU counter of control group %s was reset: what %s used is not known",
			j.counter.Path, j.trial.Arm())
		return nil
	}
	return known.As(c.UsageNs.Ptr(), func(ns uint64) float64 { return float64(ns) / 1e9 })
}

func (j *joined) Waits() (drain, late time.Duration) {
	return j.part.Options.Duration(settingDrain), j.part.Options.Duration(settingLate)
}

// Closed notes the tracer's processes, so that programs and maps in the ledger are attributed to the tracer even if the
// processes that hold them end before Stop.
func (j *joined) Closed(context.Context) error {
	j.atEdge = j.group.Members()
	return nil
}

// Stop examines the tracer's processes and memory, and then ends it.
func (j *joined) Stop(ctx context.Context, used *float64) error {
	if err := j.look(used); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if j.running.Stop() {
		j.trial.Warn("tracer-killed",
			"%s did not end in time when asked to, and was killed: its last reports are missing",
			j.trial.Arm())
	}
	if why := j.running.LossUnknown(); why != "" {
		j.trial.Warn("loss-unknown", "it is not known how many events %s says it lost: %s", j.trial.Arm(), why)
	}
	if n := j.running.Unmatched(); n > 0 {
		j.trial.Warn("no-line-matches", "%s wrote %d lines, and not one is an event by the pattern that it is counted by",
			j.trial.Arm(), n)
	}
	return nil
}

func (j *joined) Unknown() error { return j.running.Unknown(j.trial.Arm()) }

// Evidence returns what was found about the tracer, or nil if it was not examined.
func (j *joined) Evidence() any {
	if j.found == nil {
		return nil
	}
	return j.found
}

// Evidence is what Tare finds about a tracer's processes before it stops them.
type Evidence struct {
	Processes []int  `json:"processes"`      // the processes in its control group
	RSS       uint64 `json:"rss_bytes"`      // the sum of their resident sets
	RSSPeak   uint64 `json:"rss_peak_bytes"` // the sum of the largest resident set of each process
	// MemoryPeak is the most memory that the kernel has charged to the group, in bytes. It is nil if the kernel does not
	// report that.
	MemoryPeak *uint64 `json:"memory_peak_bytes"`
	// CPUSeconds is the CPU time of the group from when everything was set up until the tracer was stopped. It is nil if
	// it is unknown.
	CPUSeconds *float64 `json:"cpu_seconds"`
}

// Resident implements command.Resident.
func (e *Evidence) Resident() (now, peak uint64) { return e.RSS, e.RSSPeak }

// GroupPeak implements command.Resident.
func (e *Evidence) GroupPeak() *uint64 { return e.MemoryPeak }

// look finds the tracer's processes, their memory, and their eBPF programs and maps. used becomes Evidence.CPUSeconds.
func (j *joined) look(used *float64) error {
	pids := j.group.Members()
	if len(pids) == 0 {
		return errors.New("listing the processes of the tracer: no process is left in its control group")
	}
	j.found = &Evidence{Processes: pids, MemoryPeak: j.trial.Cgroups().MemoryPeak(j.group.Path()), CPUSeconds: used}
	var err error
	if j.found.RSS, j.found.RSSPeak, err = cmdline.ResidentOf(proc.FS{}, pids); err != nil {
		return err
	}
	held := cmdline.ObjectsOf(proc.FS{}, j.trial.Record().Ledger, slices.Concat(pids, j.atEdge), j.began)
	objects := command.ForRecord(j.trial, held)
	raw, err := json.Marshal(struct {
		kind.Objects
		*Evidence
	}{objects, j.found})
	if err != nil {
		return fmt.Errorf("encoding what was found of %s: %w", j.trial.Arm(), err)
	}
	j.trial.SetSubject(objects, raw)
	return nil
}

// Close kills the tracer if it is still running, and removes its files.
func (j *joined) Close() error {
	if j.running != nil {
		j.running.Kill()
	}
	if j.groups != nil {
		j.groups.Close()
	}
	if err := j.own.Close(); err != nil {
		return fmt.Errorf("removing the tracer's files: %w", err)
	}
	return nil
}
