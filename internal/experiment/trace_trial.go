package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/fault"
	"tare/internal/host/cgroup"
	"tare/internal/host/execs"
	"tare/internal/host/proc"
	"tare/internal/ledger"
	"tare/internal/load/exec"
	"tare/internal/pace"
	"tare/internal/placement"
	"tare/internal/record"
	"tare/internal/subject/tracer"
)

// tracing counts the events of one trial: what the kernel counts in the load's control group and outside of it, and what a tracer delivers.
type tracing struct {
	load   string // its name
	dir    string // v2 directory of its control group
	id     uint64 // of the group
	kernel *execs.Counter
	tracer *tracer.Running // null in an arm without one
	scope  tracer.Scope
	drain  time.Duration // see the knobs
	late   time.Duration
	own    string // directory of the tracer's
	cpu    string // directory of its control group where CPU time is counted
	began  time.Time

	ready  reading // when the tracer was ready
	offset reading // when all was set up
	end    <-chan reading
	stop   context.CancelFunc // of what reads at the load's end
}

// reading is all counts at one time.
type reading struct {
	inside, outside int64 // execs, as the kernel counts them, before the tracer's count was read
	after           int64 // those outside, after it was read
	missed          uint64
	said            tracer.Counts
	cpu             *float64 // CPU time of the tracer's control group, in seconds; null where that is not known
	err             error
}

// flat says whether the groups of the trial are to be one for the scheduler, for there is a load that execs. With v2 no limit can be set then.
func (x *trial) flat() bool {
	if h, ok := x.machine.Cgroups.Controller("cpu"); ok && h.V2 {
		arm := x.spec.Subject(x.arm)
		for _, sec := range x.spec.sections() {
			for _, p := range sec.parts {
				other := sec.name == "arms" || sec.name == baselineKey
				if _, limited := p.Limits["cpus"]; limited && (!other || p == arm) {
					return false
				}
			}
		}
	}
	return x.spec.execs() != ""
}

// watchExecs makes the control group of the load whose events are counted, before anything is in it, and has the kernel count there.
func (x *trial) watchExecs() error {
	name := x.spec.execs()
	if name == "" {
		return nil
	}
	g, err := x.group(path.Join(workGroup, name), x.spec.Loads[name].Limits)
	if err != nil {
		return err
	}
	e := &tracing{load: name, dir: g.V2Dir(), scope: tracer.Group}
	if e.dir == "" {
		return fault.New(fault.Machine, name, "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified", "events are counted by their cgroup v2, and no v2 hierarchy is mounted")
	}
	if e.id, err = execs.CgroupID(e.dir); err != nil {
		return err
	}
	if e.kernel, err = execs.Open(); err != nil {
		return fmt.Errorf("counting execs in the kernel: %w", err)
	}
	x.tracing = e
	return e.kernel.Watch(e.id)
}

// startTracer starts the tracer of an arm and waits until it sees every exec.
func (x *trial) startTracer(ctx context.Context, arm *Part) error {
	e := x.tracing
	t, err := arm.tracer()
	if err != nil {
		return err
	}
	if e.own, err = os.MkdirTemp(x.dir, "tracer-"); err != nil {
		return fault.Wrap(err, fault.Machine, x.dir, "make room, or name another directory with --out", "the tracer's files cannot be written")
	}
	place := tracer.Place{Self: x.machine.Self, CgroupDir: e.dir, CgroupID: e.id, CgroupPath: x.belowV2(e.dir), Dir: e.own}
	if place.Port, err = freePort(); err != nil {
		return err
	}
	limits := arm.Limits.clone()
	if _, limited := limits["cpus"]; limited {
		// It holds from when it is ready: to compile a program with a twentieth of a CPU takes minutes, and is not what is asked about.
		limits["cpus"] = strconv.Itoa(runtime.NumCPU())
	}
	g, err := x.group(subjectGroup, limits)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if h, ok := x.machine.Cgroups.CPU(); ok {
		e.cpu, _ = h.Dir(g.Path())
	}
	e.scope, e.drain, e.late = t.Scope, arm.Options.duration(knobDrain), arm.Options.duration(knobLate)
	e.began = time.Now()
	if e.tracer, err = tracer.Start(t, place, g.Start, x.cancel); err != nil {
		return fmt.Errorf("starting %s: %w", x.arm, err)
	}
	x.mu.Lock()
	x.roles[g.Path()] = newRole(roleSubject, x.arm)
	x.mu.Unlock()
	if err := e.tracer.Ready(ctx, tracerTimeout); err != nil {
		return err
	}
	x.readyIn = time.Since(e.began)
	if err := g.Limit(placement.Limits{CPUs: arm.Limits.float("cpus")}); err != nil {
		return err
	}
	e.ready = e.read(ctx)
	return e.ready.err
}

// belowV2 is the path of a directory below the mount of v2.
func (x *trial) belowV2(dir string) string {
	h, ok := x.machine.Cgroups.V2()
	if !ok {
		return ""
	}
	return path.Join("/", strings.TrimPrefix(dir, h.Mount))
}

// freePort is a TCP port of this machine, or network namespace, that nobody uses at this moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// read reads all counts. The kernel's are read on both sides of the tracer's, for others may exec meanwhile.
func (e *tracing) read(ctx context.Context) (r reading) {
	var err error
	if r.inside, r.outside, err = e.counted(); err != nil {
		return reading{err: err}
	}
	if e.tracer != nil {
		r.cpu = e.usage()
		if r.said, err = e.tracer.Counts(ctx); err != nil {
			return reading{err: err}
		}
	}
	if _, r.after, err = e.counted(); err != nil {
		return reading{err: err}
	}
	if r.missed, err = e.kernel.Missed(); err != nil {
		return reading{err: fmt.Errorf("reading what the kernel's counter missed: %w", err)}
	}
	return r
}

// counted are the execs since the counter was opened, in the load's control group and outside of it.
func (e *tracing) counted() (inside, outside int64, err error) {
	counts, err := e.kernel.Read()
	if err != nil {
		return 0, 0, fmt.Errorf("reading the kernel's count of execs: %w", err)
	}
	inside = int64(counts.Groups[e.id])
	return inside, int64(counts.All) - inside, nil
}

// usage is the CPU time in seconds that the kernel has charged to the tracer's control group; null where it does not tell.
func (e *tracing) usage() *float64 {
	v := cgroup.CPUTime(e.cpu)
	if !v.OK {
		return nil
	}
	return new(float64(v.N) / 1e9)
}

// expected is how many events a tracer has to deliver between two readings: not those of others that came while the first was made, which it may have
// delivered before.
func (e *tracing) expected(from, to reading) int64 {
	n := to.inside - from.inside
	if e.scope == tracer.Machine {
		n += to.outside - from.after
	}
	return n
}

// calibrate reads the offset: what is counted, and delivered, of the harness's own execs before the load has made any. It waits until the tracer has
// delivered those since it was ready, and what it has delivered stands still.
func (x *trial) calibrate(ctx context.Context) error {
	e := x.tracing
	if e == nil {
		return nil
	}
	e.offset = e.read(ctx)
	if e.tracer == nil {
		return e.offset.err
	}
	still, deadline := time.Now(), time.Now().Add(settleTime)
	for e.offset.err == nil && time.Now().Before(deadline) {
		if e.offset.said.Delivered >= e.expected(e.ready, e.offset) && time.Since(still) >= stable {
			break
		}
		if err := sleep(ctx, pollEvery); err != nil {
			return err
		}
		before := e.offset.said
		if e.offset = e.read(ctx); e.offset.said != before {
			still = time.Now()
		}
	}
	return e.offset.err
}

// readEnd has the counts read at the load's end and the time after which an event is late: when the load has said what it did, and not before
// the end of its schedule.
func (x *trial) readEnd(ctx context.Context, end int64) {
	e := x.tracing
	if e == nil || e.tracer == nil {
		return
	}
	ctx, e.stop = context.WithCancel(ctx)
	read, load := make(chan reading, 1), x.loads[e.load]
	e.end = read
	go func() {
		defer close(read)
		select {
		case <-load.finished:
		case <-load.ended:
		case <-ctx.Done():
		}
		if err := sleepUntil(ctx, max(end, pace.Now())+int64(e.late)); err != nil {
			return
		}
		read <- e.read(ctx)
	}()
}

// drainEvents waits for what the tracer still delivers, has it end, and writes down what was counted. l is the ledger of the window.
func (x *trial) drainEvents(ctx context.Context, t *record.Trial) error {
	e := x.tracing
	if e == nil {
		return nil
	}
	result := t.Loads[e.load]
	events := &record.Events{Generated: int64(result.Counts[exec.CountMade]), Failed: int64(result.Counts[exec.CountFailed])}
	events.Offset.Counted = e.offset.inside
	var last reading
	if e.tracer == nil {
		last = e.read(ctx)
	} else {
		var err error
		if last, err = x.drainTracer(ctx, t, events); err != nil {
			return err
		}
	}
	if last.err != nil {
		return last.err
	}
	events.Counted, events.Elsewhere = last.inside-e.offset.inside, last.outside-e.offset.after
	events.Missed = int64(last.missed - e.offset.missed)
	t.Events = events
	return nil
}

// drainTracer is drainEvents for the tracer. It gives the counts as they were when the tracer was told to end.
func (x *trial) drainTracer(ctx context.Context, t *record.Trial, events *record.Events) (last reading, err error) {
	e := x.tracing
	atEnd, ok := <-e.end
	if !ok {
		return last, context.Cause(ctx)
	}
	if atEnd.err != nil {
		return last, atEnd.err
	}
	still, deadline := time.Now(), time.Now().Add(e.drain)
	for last = e.read(ctx); last.err == nil; {
		all := last.said.Delivered-e.offset.said.Delivered >= e.expected(e.offset, last)
		if all && time.Since(still) >= stable || time.Now().After(deadline) {
			break
		}
		if err := sleep(ctx, pollEvery); err != nil {
			return last, err
		}
		before := last.said
		if last = e.read(ctx); last.said != before {
			still = time.Now()
		}
	}
	if last.err != nil {
		return last, last.err
	}
	if err := x.lookAtTracer(t, last); err != nil {
		return last, err
	}
	if err := ctx.Err(); err != nil {
		return last, context.Cause(ctx)
	}
	if e.tracer.Stop() {
		x.warn(t, "tracer-killed", "%s did not end in its time when it was told to, and was killed: what it would still have said is not known", x.arm)
	}
	said, err := e.tracer.Counts(ctx)
	if err != nil {
		return last, err
	}
	inside, outside, err := e.counted()
	if err != nil {
		return last, err
	}
	// Of others it can have delivered, since the offset, whatever they have made since the counter was opened and it had not delivered by then.
	most := inside + outside - e.offset.said.Delivered
	if e.scope == tracer.Group {
		most = e.expected(e.offset, last)
	}
	events.AtMost = &most
	return last, x.writeDown(t, events, atEnd.said, last, said)
}

// writeDown puts what the tracer delivered into events: at the load's end, until it was told to end, and in all.
func (x *trial) writeDown(t *record.Trial, events *record.Events, atEnd tracer.Counts, last reading, said tracer.Counts) error {
	e := x.tracing
	if !said.Knows {
		return e.tracer.Unknown(x.arm)
	}
	offset := e.offset.said
	delivered := said.Delivered - offset.Delivered
	if delivered < 0 {
		return fmt.Errorf("%s said at the end that it had delivered %d events, and before that %d: its count goes backwards", x.arm, said.Delivered, offset.Delivered)
	}
	expected, late, atExit := e.expected(e.offset, last), said.Delivered-atEnd.Delivered, said.Delivered-last.said.Delivered
	late = min(max(late, 0), delivered)
	atExit = min(max(atExit, 0), delivered)
	events.Scope, events.Expected, events.Delivered, events.Late, events.AtExit = string(e.scope), &expected, &delivered, &late, &atExit
	events.Offset.Delivered = &offset.Delivered
	if said.Says {
		lost := max(said.Lost-offset.Lost, 0)
		events.SaidLost = &lost
	}
	if n := e.tracer.Unmatched(); n > 0 {
		x.warn(t, "no-line-matches", "%s wrote %d lines, and not one is an event by the pattern that it is counted by", x.arm, n)
	}
	return nil
}

func (x *trial) warn(t *record.Trial, code, format string, args ...any) {
	t.Ledger.Warnings = append(t.Ledger.Warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// tracerReady is what a tracer would say of itself when it is ready, if it were a subject that does: here it is found out.
type tracerReady struct {
	subjectReady
	Processes []int  `json:"processes"`      // in its control group
	RSS       uint64 `json:"rss_bytes"`      // of these, added up: resident sets before they were told to end
	RSSPeak   uint64 `json:"rss_peak_bytes"` // likewise: the highest that each has had
	// MemoryPeak is the most memory that the kernel has charged to the group, in bytes; null where it does not tell.
	MemoryPeak *uint64 `json:"memory_peak_bytes"`
	// CPUSeconds is the CPU time of the group from when all was set up until it was told to end; null where that is not known.
	CPUSeconds *float64 `json:"cpu_seconds"`
}

// lookAtTracer finds the tracer's processes, their memory, and the programs and maps that are theirs: those that they hold, and programs that came
// with the tracer and are held by nobody but a file (pinned).
func (x *trial) lookAtTracer(t *record.Trial, last reading) error {
	e := x.tracing
	g := x.groups[subjectGroup]
	pids, err := processesIn(g)
	if err != nil {
		return err
	}
	ready := tracerReady{subjectReady: subjectReady{Programs: []object{}, Maps: []object{}}, Processes: pids}
	for _, pid := range pids {
		now, peak, err := proc.FS{}.Resident(pid)
		if errors.Is(err, proc.ErrGone) {
			continue // it has none any more
		}
		if err != nil {
			return err
		}
		ready.RSS, ready.RSSPeak = ready.RSS+now, ready.RSSPeak+peak
	}
	mine := func(holders []ledger.Owner) bool {
		return slices.ContainsFunc(holders, func(o ledger.Owner) bool { return slices.Contains(pids, o.PID) })
	}
	began := e.began.Add(-100 * time.Millisecond) // the kernel's clock of loading is not that of the day
	for _, p := range t.Ledger.Programs {
		pinned := len(p.Owners) == 0 && !p.Unloaded && p.LoadedAt != nil && p.LoadedAt.After(began)
		if mine(p.Owners) || pinned {
			ready.Programs = append(ready.Programs, object{p.ID, p.Name})
		}
	}
	for _, m := range t.Ledger.Maps {
		if mine(m.HeldBy) {
			ready.Maps = append(ready.Maps, object{m.ID, m.Name})
		}
	}
	ready.MemoryPeak = x.memoryPeak(g)
	if e.offset.cpu != nil && last.cpu != nil {
		ready.CPUSeconds = new(*last.cpu - *e.offset.cpu)
	}
	x.ready, x.found = &ready.subjectReady, &ready
	x.readyRaw, err = json.Marshal(ready)
	if err != nil {
		return fmt.Errorf("encoding what was found of %s: %w", x.arm, err)
	}
	return nil
}

// memoryPeak is the most memory that a group has had; null where the kernel does not tell.
func (x *trial) memoryPeak(g *placement.Group) *uint64 {
	h, ok := x.machine.Cgroups.Controller("memory")
	if !ok {
		return nil
	}
	dir, ok := h.Dir(g.Path())
	if !ok {
		return nil
	}
	return cgroup.MemoryPeak(dir).Ptr()
}

// processesIn lists the processes in a group, and in groups that they made below it.
func processesIn(g *placement.Group) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(g.V2Dir(), func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it has gone
		}
		text, _ := os.ReadFile(filepath.Join(p, "cgroup.procs")) // likewise
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	if err == nil && len(pids) == 0 {
		err = errors.New("no process is left in its control group")
	}
	if err != nil {
		return nil, fmt.Errorf("listing the processes of the tracer: %w", err)
	}
	return pids, nil
}

// close ends the tracer and the kernel's counter, and whatever still reads them.
func (e *tracing) close() error {
	if e == nil {
		return nil
	}
	if e.stop != nil {
		e.stop()
		for range e.end { // until it is closed: its reader has returned
		}
	}
	if e.tracer != nil {
		e.tracer.Kill()
	}
	var errs []error
	if e.kernel != nil {
		errs = append(errs, e.kernel.Close())
	}
	if e.own != "" {
		errs = append(errs, os.RemoveAll(e.own))
	}
	return errors.Join(errs...)
}
