// Package exectrace is a tracer of execs: one eBPF program, a ring buffer, and a process that writes the events in it.
// It is the tracer that Tare compares others with, so it is made to be cheap, and to be accurate when it lacks CPU
// time: every exec that its program saw is delivered, or counted as lost where it was lost. docs/exectrace.md has the
// fields, the stages of loss and the limits.
package exectrace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// Forms of the output.
const (
	JSON  = "json"  // one object on a line for each event
	Table = "table" // one line for each event, for people
	Count = "count" // running totals each second as JSON lines, no events
)

// Outputs are the values of Options.Output.
var Outputs = []string{JSON, Table, Count}

// Defaults of Options.
const (
	DefaultArgs = 1024 // bytes
	// In bytes: enough for 8,000 execs with short arguments, or for a fifth of a second of the worst storm on two
	// CPUs.
	DefaultRing    = 1 << 20
	DefaultLatency = 50 * time.Millisecond // at most 20 wake-ups per second
)

// NoArgs is the value of Options.Args for keeping no arguments.
const NoArgs = -1

const (
	maxArgs    = 16384    // bytes; ARGS_BYTES of the program
	minRing    = 64 << 10 // bytes: three times the largest event
	maxRing    = 1 << 30  // bytes
	maxLatency = time.Second
)

// Options configures a tracer.
type Options struct {
	CgroupDir string // cgroup v2 directory: execs in it and below it are traced; empty: those of the whole machine
	Output    string // JSON, Table or Count; empty: JSON
	Args      int    // bytes kept of each exec's arguments; 0: DefaultArgs; or NoArgs
	Ring      int    // bytes of the ring buffer, a power of two; 0: DefaultRing
	// Latency is how long an event may wait for others, so that they are delivered together; 0: DefaultLatency.
	Latency time.Duration
	For     time.Duration // when to end; 0: only when the context does
	Lean    bool          // the process does nothing else, so its memory can be kept small (see lean)

	Tell <-chan os.Signal `json:"-"` // each value makes it print statistics; may be nil
}

// withDefaults fills in defaults.
func (o Options) withDefaults() Options {
	o.Output = cmp.Or(o.Output, JSON)
	o.Ring = cmp.Or(o.Ring, DefaultRing)
	o.Latency = cmp.Or(o.Latency, DefaultLatency)
	o.Args = cmp.Or(o.Args, DefaultArgs)
	return o
}

// Run traces until ctx ends, or o.For is over, and then delivers what is still in the ring. Events go to out; messages
// go to log, as lines of text: that the tracer is attached ("exectrace: ready"), and statistics (see Statistics).
//
// An error with the code fault.Usage is about the options. One with the code fault.Machine is about a machine that
// does not support it, or about output that cannot be written: events lost because of that are counted, and statistics
// are printed.
func Run(ctx context.Context, o Options, out, log io.Writer) error {
	o = o.withDefaults()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return err
	}
	if o.Lean {
		lean()
	}
	k, err := load(o, layout)
	if err != nil {
		return err
	}
	t := &tracer{options: o, kernel: k, groups: newGroups(layout), out: out, log: log}
	err = t.run(ctx)
	return errors.Join(err, t.groups.close(), k.close())
}

// batchBytes is the maximum size of one write: 50 ms of the worst storm of two CPUs. Each write costs more than its
// own time, because it wakes the thread with which the Go runtime monitors system calls.
const batchBytes = 512 << 10

// releaseEvery is the number of events after which their room in the ring is freed.
const releaseEvery = 64

// tracer is a running tracer. It belongs to one goroutine.
type tracer struct {
	options Options
	kernel  *kernel
	groups  *groups
	out     io.Writer
	log     io.Writer

	clock  clock
	batch  []byte // output to be written
	events uint64 // number of events in the batch
	failed error  // why nothing can be written any more

	delivered  uint64
	lostReader uint64 // invalid records
	lostOutput uint64 // events of failed writes, and those after them
	truncated  uint64 // events whose arguments were cut, delivered or not
	unreadable uint64 // events that could be read only in part
	toldLost   uint64 // lost in the last statistics
	counted    uint64 // Count: delivered as of the last line
}

func (t *tracer) run(ctx context.Context) error {
	w, err := newWaiter(t.kernel)
	if err != nil {
		return err
	}
	defer w.close()
	t.batch = make([]byte, 0, batchBytes+4096)
	t.clock.table = t.options.Output == Table
	if t.options.Output == Table {
		t.batch = append(t.batch, tableHead...)
		t.write()
	}
	if err := t.kernel.attach(); err != nil {
		return err
	}
	if t.options.Lean {
		lean()
	}
	fmt.Fprintln(t.log, "exectrace: ready")
	t.loop(ctx, w)
	if err := t.kernel.detach(); err != nil {
		return err
	}
	for t.drain() {
	}
	if t.options.Output == Count {
		t.count()
	}
	t.tell()
	return t.failed
}

// loop delivers events until it must end, or nothing can be written any more.
func (t *tracer) loop(ctx context.Context, w *waiter) {
	now := time.Now()
	second, end := now.Add(time.Second), now.Add(t.options.For)
	busy := false // there were events since the last look at the losses
	for ended := false; ; {
		some := t.drain()
		now = time.Now()
		if ended || t.failed != nil || t.options.For > 0 && !now.Before(end) {
			return
		}
		busy = busy || some
		if due := !now.Before(second); busy && (due || !some) || due && t.options.Output == Count {
			t.look()
			second, busy = now.Add(time.Second), some
		}
		// After a batch it sleeps, so that the next is a batch as well. After a sleep without an event it waits for
		// the next one.
		state, until := exectraceReaderRESTS, now.Add(t.options.Latency)
		if !some {
			state, until = exectraceReaderIDLE, time.Time{}
		}
		if t.options.Output == Count {
			until = earlier(until, second)
		}
		if t.options.For > 0 {
			until = earlier(until, end)
		}
		atMost := time.Duration(0)
		if !until.IsZero() {
			atMost = max(until.Sub(now), 1)
		}
		var tell bool
		if ended, tell = w.wait(state, atMost, ctx.Done(), t.options.Tell); tell {
			t.tell()
		}
	}
}

// earlier returns the earlier of two times; a zero a means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// drain delivers what is in the ring at this moment, and reports whether there was an event.
func (t *tracer) drain() (some bool) {
	r := t.kernel.ring
	t.clock.set()
	end, n := r.produced(), 0
	for ; ; n++ {
		record, ok := r.next(end)
		if !ok {
			break
		}
		t.deliver(record)
		if n%releaseEvery == 0 {
			r.release()
		}
		if len(t.batch) >= batchBytes {
			r.release() // the write may block for long
			t.write()
		}
	}
	r.release()
	t.write()
	return n > 0
}

// deliver moves one record from the ring into the batch.
func (t *tracer) deliver(record []byte) {
	e, ok := decode(record)
	if !ok {
		t.lostReader++
		return
	}
	if e.head.Flags&uint32(exectraceFlagsARGS_CUT) != 0 {
		t.truncated++
	}
	if e.head.Flags&uint32(exectraceFlagsARGS_UNREADABLE|exectraceFlagsNAME_UNREADABLE) != 0 {
		t.unreadable++
	}
	switch {
	case t.failed != nil:
		t.lostOutput++
		return
	case t.options.Output == Count:
		t.delivered++
		return
	case t.options.Output == Table:
		t.batch = e.appendTable(t.batch, &t.clock, t.groups.of(e.head.Cgroup))
	default:
		t.batch = e.appendJSON(t.batch, &t.clock, t.groups.of(e.head.Cgroup))
	}
	t.events++
}

// write writes the batch. If a write fails part-way, its complete lines count as delivered.
func (t *tracer) write() {
	if len(t.batch) == 0 {
		return
	}
	n, err := t.out.Write(t.batch)
	whole := t.events
	if err != nil {
		t.fail(err)
		if whole = 0; t.events > 0 {
			whole = uint64(bytes.Count(t.batch[:n], []byte{'\n'}))
		}
	}
	t.delivered += whole
	t.lostOutput += t.events - whole
	t.batch, t.events = t.batch[:0], 0
}

func (t *tracer) fail(err error) {
	if t.failed == nil {
		t.failed = fault.Wrap(err, fault.Machine, "standard output", "make room, or write somewhere else",
			"cannot write events any more")
	}
}

// look reports totals and new losses. It runs every second, and when events have stopped.
func (t *tracer) look() {
	if t.options.Output == Count {
		t.count()
	}
	if t.statistics().Lost != t.toldLost {
		t.tell()
	}
}
