// Package exectrace is a tracer of execs: one eBPF program, a ring buffer, and a process that writes the events from
// the ring. Tare compares other tracers with it, so it is made to be cheap, and to be accurate even if it lacks CPU
// time: every exec that its program saw is delivered, or counted as lost at the stage that lost it. docs/exectrace.md
// describes the fields, the stages of loss and the limits.
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
	Count = "count" // running totals once per second as JSON lines, no events
)

// Outputs are the values of Options.Output.
var Outputs = []string{JSON, Table, Count}

// Defaults of Options.
const (
	DefaultArgs = 1024 // bytes
	// DefaultRing is in bytes. It has room for 8,000 execs with short arguments, or for a fifth of a second of the worst
	// storm on two CPUs.
	DefaultRing    = 1 << 20
	DefaultLatency = 50 * time.Millisecond // at most 20 wake-ups per second
)

// NoArgs is the value of Options.Args that keeps no arguments.
const NoArgs = -1

const (
	maxArgs    = 16384    // bytes; ARGS_BYTES of the program
	minRing    = 64 << 10 // bytes: three times the largest event
	maxRing    = 1 << 30  // bytes
	maxLatency = time.Second
)

// Options configures the tracer.
type Options struct {
	CgroupDir string // cgroup v2 directory: traces execs in it and below it; empty: the whole machine
	Node      bool   // traces execs in the tracer's PID namespace and below it; with CgroupDir: execs in both
	Output    string // JSON, Table or Count; empty: JSON
	Args      int    // bytes kept of each exec's arguments; 0: DefaultArgs; NoArgs: none
	Ring      int    // bytes of the ring buffer, a power of two; 0: DefaultRing
	// Latency is how long an event may wait for others, so that several are delivered together. 0 means DefaultLatency.
	Latency time.Duration
	For     time.Duration // how long to trace; 0: until the context ends
	Lean    bool          // the process does nothing else, so its memory can be kept small (see lean)

	Tell <-chan os.Signal `json:"-"` // each value makes the tracer print statistics; may be nil
}

// withDefaults fills in defaults.
func (o Options) withDefaults() Options {
	o.Output = cmp.Or(o.Output, JSON)
	o.Ring = cmp.Or(o.Ring, DefaultRing)
	o.Latency = cmp.Or(o.Latency, DefaultLatency)
	o.Args = cmp.Or(o.Args, DefaultArgs)
	return o
}

// Run traces until ctx ends, o.For is over, or output cannot be written. Then it processes the events that are still in
// the ring. Events go to out. Messages go to log, as lines of text: "exectrace: ready" when the tracer is attached, and
// statistics (see Statistics).
//
// An error with the code fault.Usage is about the options. An error with the code fault.Machine means that the machine
// does not support the tracer, or that output could not be written; events lost because of that are counted, and
// statistics are printed.
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

// batchBytes is the size at which a batch is written, in bytes: 50 ms of the worst storm of two CPUs. Each write costs
// more than its own time, because it wakes the thread with which the Go runtime monitors system calls.
const batchBytes = 512 << 10

// releaseEvery is the number of events after which their space in the ring is released.
const releaseEvery = 64

// tracer is a running tracer. Only one goroutine uses it.
type tracer struct {
	options Options
	kernel  *kernel
	groups  *groups
	out     io.Writer
	log     io.Writer

	clock  clock
	batch  []byte // output to be written
	events uint64 // number of events in the batch
	failed error  // the error after which no more output is written; nil if none has occurred

	delivered  uint64 // written events or, with Count, counted ones
	lostReader uint64 // invalid records
	lostOutput uint64 // events of failed writes, and all events after them
	truncated  uint64 // events whose arguments were truncated, delivered or not
	unreadable uint64 // events that could be read only in part
	toldLost   uint64 // lost events in the statistics printed last
	counted    uint64 // with Count: delivered events in the last line
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

// loop delivers events until it must end, or until no output can be written any more.
func (t *tracer) loop(ctx context.Context, w *waiter) {
	now := time.Now()
	second, end := now.Add(time.Second), now.Add(t.options.For)
	busy := false // whether there have been events since the last call of look
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
		// After a batch the tracer sleeps for the latency, so that the next events form a batch as well. After a sleep
		// without events it waits for the next event.
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

// earlier returns the earlier of two times. If a is the zero time, which means never, the result is b.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// drain delivers the events that are in the ring now, and reports whether there were any.
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
			r.release() // the write may block for a long time
			t.write()
		}
	}
	r.release()
	t.write()
	return n > 0
}

// deliver adds one record from the ring to the batch.
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

// write writes the batch. If a write fails partway, the complete lines that it wrote count as delivered.
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

// look prints totals, with Count, and statistics if there are new losses. loop calls it every second while there are
// events, and once when they have stopped. With Count, loop calls it every second in any case.
func (t *tracer) look() {
	if t.options.Output == Count {
		t.count()
	}
	if t.statistics().Lost != t.toldLost {
		t.tell()
	}
}
