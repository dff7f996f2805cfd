package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/cgroup"
	"tare/internal/tracing/execs"
)

// Intervals and time limits for waiting until counts are complete.
const (
	stable     = 300 * time.Millisecond // a count that has not changed for this long has settled
	settleTime = 2 * time.Second        // the longest wait before the load
	pollEvery  = 50 * time.Millisecond
)

// Counting counts the events of one trial: the execs that the kernel counts inside and outside of the load's control
// group, and the events that a tracer delivers (Deliverer). Its methods must not be called concurrently.
type Counting struct {
	trial kind.Trial
	load  string // the load's name

	group     kind.Group
	dir       string // the group's v2 directory
	id        uint64 // the group's id, as in execs.Open
	kernel    *execs.Counter
	deliverer Deliverer // nil in an arm without a tracer

	ready  reading // counts when the deliverer was ready
	offset reading // counts when everything was set up
	end    <-chan reading
	stop   context.CancelFunc // stops the goroutine that reads at the load's end
}

// reading holds all counts at one time.
type reading struct {
	inside, outside int64  // execs in and outside of the group, read before the deliverer's count
	after           int64  // execs outside of the group, read after the deliverer's count
	ended           int64  // only in the reading at the load's end: execs outside of the group when the load had ended
	missed          uint64 // execs that the kernel's counter missed, inside and outside of the group
	said            Said
	cpu             *float64 // CPU time of the deliverer, in seconds; nil if unknown
	err             error
}

// newCounting makes the control group of a load, without processes, and starts the kernel's count of the execs in it.
func newCounting(t kind.Trial, load string) (*Counting, error) {
	g, err := t.PartGroup(load)
	if err != nil {
		return nil, err
	}
	c := &Counting{trial: t, load: load, group: g, dir: g.V2Dir()}
	if c.dir == "" {
		return nil, fault.New(fault.Machine, load, cgroup.MountV2,
			"events are counted by their cgroup v2, and no v2 hierarchy is mounted")
	}
	if c.id, err = execs.CgroupID(c.dir); err != nil {
		return nil, err
	}
	if c.kernel, err = execs.Open(c.id); err != nil {
		return nil, fmt.Errorf("counting execs in the kernel: %w", err)
	}
	return c, nil
}

// Deliver sets the deliverer of the events. It must be called before the trial starts anything.
func (c *Counting) Deliver(d Deliverer) { c.deliverer = d }

// Group returns the v2 directory of the load's control group, and the group's id as bpf_get_current_cgroup_id returns
// it.
func (c *Counting) Group() (dir string, id uint64) { return c.dir, c.id }

// Ready records the counts when the deliverer is ready. From now on the deliverer must deliver every event.
func (c *Counting) Ready(ctx context.Context) error {
	c.ready = c.read(ctx)
	return c.ready.err
}

// Probe executes the load's tiny program once in the load's control group, and waits until the program has ended. It
// must be called before Before, which reads the offset: the exec is then part of the offset, and not of the results.
func (c *Counting) Probe(ctx context.Context) (err error) {
	if targetProgram == nil {
		return noProgram()
	}
	file, err := program(Argv0, targetProgram)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	cmd := child.Command{Path: firstFile, Argv: []string{Argv0}, Files: []*os.File{file}}
	if err := child.Run(ctx, cmd, child.Options{Name: "the probe", Begin: c.group.In("")}); err != nil {
		return fmt.Errorf("probing: %w", err)
	}
	return nil
}

// read reads all counts. It reads the kernel's counts before and after the deliverer's, because other processes may
// exec in between.
func (c *Counting) read(ctx context.Context) (r reading) {
	var err error
	if r.inside, r.outside, err = c.counted(); err != nil {
		return reading{err: err}
	}
	if c.deliverer != nil {
		r.cpu = c.deliverer.CPUSeconds()
		if r.said, err = c.deliverer.Said(ctx); err != nil {
			return reading{err: err}
		}
	}
	if _, r.after, err = c.counted(); err != nil {
		return reading{err: err}
	}
	if r.missed, err = c.kernel.Missed(); err != nil {
		return reading{err: fmt.Errorf("reading what the kernel's counter missed: %w", err)}
	}
	return r
}

// counted returns the number of execs since the counter was opened, inside and outside of the load's control group.
func (c *Counting) counted() (inside, outside int64, err error) {
	counts, err := c.kernel.Read()
	if err != nil {
		return 0, 0, fmt.Errorf("reading the kernel's count of execs: %w", err)
	}
	inside = int64(counts.Group)
	return inside, int64(counts.All) - inside, nil
}

// expected returns how many events must be delivered between two readings. It leaves out execs of other processes
// during the first reading, because the deliverer's count in that reading may already include them.
func expected(s Scope, from, to reading) int64 {
	n := to.inside - from.inside
	if s == ScopeMachine {
		n += to.outside - from.after
	}
	return n
}

// late returns how many of the load's events were late, that is, delivered after the reading at the load's end. The
// argument delivered is the number of all events, including those of other processes, that the deliverer has delivered
// since it began.
//
// A deliverer of the whole machine also delivers execs of other processes. Those made between the reading at the end
// and the last reading are not the load's. The number of late events has two upper bounds. One is the number of events
// that were outstanding: those made until the load ended, minus those delivered until the reading. The other is the
// number of events that the load made: any further ones were delivered twice, or belong to other processes.
func late(s Scope, offset, end, last reading, delivered int64) int64 {
	since := delivered - end.said.Delivered - expected(s, end, last)
	made := end.inside - offset.inside
	owed := made - (end.said.Delivered - offset.said.Delivered)
	if s == ScopeMachine {
		owed += end.ended - offset.after
	}
	return max(min(since, owed, made), 0)
}

// Before reads the offset: the harness's own execs, as counted and as delivered, before the load makes any. It first
// waits until the execs since Ready have been delivered and the deliverer's count is stable.
func (c *Counting) Before(ctx context.Context) (err error) {
	if c.deliverer == nil {
		c.offset = c.read(ctx)
		return c.offset.err
	}
	if c.offset, err = c.settle(ctx, c.ready, settleTime); err != nil {
		return err
	}
	owed := expected(c.deliverer.Scope(), c.ready, c.offset) - (c.offset.said.Delivered - c.ready.said.Delivered)
	if owed > 0 {
		c.trial.Warn("events-outstanding", "when the load began, %s had not delivered %d events from before it: if they "+
			"come later, as many of the load's events count as delivered that were not", c.trial.Arm(), owed)
	}
	return nil
}

// Begun schedules the reading at the load's end, after which events are late. The load ends when it has sent its
// result, but not before the end of its schedule. The reading follows after the delay that the deliverer's Waits
// returns.
func (c *Counting) Begun(ctx context.Context, s role.Schedule) error {
	if c.deliverer == nil {
		return nil
	}
	ctx, c.stop = context.WithCancel(ctx)
	read, load := make(chan reading, 1), c.trial.Process(c.load)
	c.end = read
	_, lateAfter := c.deliverer.Waits()
	go func() { // ends with the context; Close waits for it
		defer close(read)
		select {
		case <-load.Finished():
		case <-load.Ended():
		case <-ctx.Done():
		}
		end := max(s.Begin+s.Warmup+s.Duration, pace.Now())
		if pace.Sleep(ctx, time.Duration(end-pace.Now())) != nil {
			return
		}
		_, ended, err := c.counted()
		if pace.Sleep(ctx, time.Duration(end+int64(lateAfter)-pace.Now())) != nil {
			return
		}
		r := c.read(ctx)
		r.ended, r.err = ended, errors.Join(err, r.err)
		read <- r
	}()
	return nil
}

// After waits for the remaining events, stops the deliverer, and writes the counts to the record.
func (c *Counting) After(ctx context.Context) error {
	result := c.trial.Result(c.load)
	events := &record.Events{KernelCount: &record.KernelCount{}, Offset: &record.Offset{Counted: c.offset.inside}}
	events.Generated, events.Failed = asLoad{}.Events(&result)
	var last reading
	if c.deliverer == nil {
		last = c.read(ctx)
	} else {
		var err error
		if last, err = c.drain(ctx, events); err != nil {
			return err
		}
	}
	if last.err != nil {
		return last.err
	}
	events.Counted, events.Elsewhere = last.inside-c.offset.inside, last.outside-c.offset.after
	events.Missed = int64(last.missed - c.offset.missed)
	c.trial.Record().Events = events
	return nil
}

// drain waits for the remaining events, stops the deliverer, and adds the delivered counts to events. It returns the
// counts from just before it stopped the deliverer.
func (c *Counting) drain(ctx context.Context, events *record.Events) (last reading, err error) {
	atEnd, ok := <-c.end
	if !ok {
		return last, context.Cause(ctx)
	}
	if atEnd.err != nil {
		return last, atEnd.err
	}
	wait, _ := c.deliverer.Waits()
	if last, err = c.settle(ctx, c.offset, wait); err != nil {
		return last, err
	}
	var used *float64
	if c.offset.cpu != nil && last.cpu != nil {
		used = new(*last.cpu - *c.offset.cpu)
	}
	if err := c.deliverer.Stop(ctx, used); err != nil {
		return last, err
	}
	said, err := c.deliverer.Said(ctx)
	if err != nil {
		return last, err
	}
	inside, outside, err := c.counted()
	if err != nil {
		return last, err
	}
	// After the offset, a deliverer of the whole machine may deliver any exec that was made since the counter was opened,
	// except those that it had delivered before the offset.
	most := inside + outside - c.offset.said.Delivered
	if c.deliverer.Scope() == ScopeGroup {
		most = expected(ScopeGroup, c.offset, last)
	}
	events.AtMost = &most
	return last, c.writeDown(events, atEnd, last, said)
}

// settle reads the counts until all events since an earlier reading have been delivered and the count is stable, or
// until the time limit.
func (c *Counting) settle(ctx context.Context, from reading, atMost time.Duration) (last reading, err error) {
	scope := c.deliverer.Scope()
	still, deadline := time.Now(), time.Now().Add(atMost)
	for last = c.read(ctx); last.err == nil; {
		all := last.said.Delivered-from.said.Delivered >= expected(scope, from, last)
		if all && time.Since(still) >= stable || time.Now().After(deadline) {
			break
		}
		if err := pace.Sleep(ctx, pollEvery); err != nil {
			return last, err
		}
		before := last.said
		if last = c.read(ctx); last.said != before {
			still = time.Now()
		}
	}
	return last, last.err
}

// writeDown adds the delivered counts to events: the total, the late events, and those after the deliverer was asked to
// stop.
func (c *Counting) writeDown(events *record.Events, atEnd, last reading, said Said) error {
	if !said.Knows {
		return c.deliverer.Unknown()
	}
	offset, scope := c.offset.said, c.deliverer.Scope()
	delivered := said.Delivered - offset.Delivered
	if delivered < 0 {
		return fmt.Errorf("%s said at the end that it had delivered %d events, and before that %d: its count goes backwards",
			c.trial.Arm(), said.Delivered, offset.Delivered)
	}
	events.Scope, events.Delivered = string(scope), &delivered
	events.Expected = new(expected(scope, c.offset, last))
	events.Late = new(min(late(scope, c.offset, atEnd, last, said.Delivered), delivered))
	owed := *events.Expected - delivered
	switch {
	case c.deliverer.CountsExit():
		events.AtExit = new(min(max(said.Delivered-last.said.Delivered, 0), delivered))
	case owed > 0:
		c.trial.Warn("exit-uncounted", "when %s was asked to end, its metrics lacked %d events: they count as lost even if "+
			"it delivered them then, because its metrics were read just before", c.trial.Arm(), owed)
	}
	events.Offset.Delivered = &offset.Delivered
	if said.Says && said.Lost >= offset.Lost {
		events.SaidLost = new(said.Lost - offset.Lost)
	}
	return nil
}

// Close closes the kernel's counter. It first ends the goroutine that may still read the counter.
func (c *Counting) Close() error {
	if c.stop != nil {
		c.stop()
		for range c.end { // ends when the channel is closed: its sender has returned
		}
	}
	if err := c.kernel.Close(); err != nil {
		return fmt.Errorf("closing the kernel's counter of execs: %w", err)
	}
	return nil
}
