package meter

import (
	"errors"
	"time"

	"tare/internal/lib/lists"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/witness"
	"tare/internal/scale/ledger"
)

// Next closes the window and opens the next one at the same edge: the last counters of the one are the first of the
// other, so that all CPU time and each run of a program is in exactly one of them. Sampling goes on.
//
// With all it finds new groups, and reads memory and what programs and maps there are. Without, the ledger has those as
// they were read last, and a window costs a fraction. New groups at the top of the hierarchies and new kernel threads
// are found in any case, for nothing else counts their time. A new group below the top is in the groups around it until
// the next window with all, which then has what the group used since it was made.
//
// After an error, a window that is returned is open, and its ledger will have what was used meanwhile. Without one, the
// meter must be whole and its sampling has failed: Open another window. A meter that need not be whole begins to sample
// again in the next window.
func (w *Window) Next(all bool) (*ledger.Ledger, *Window, error) {
	m := w.m
	prepare := m.prepareTop
	if all {
		prepare = m.prepare
	}
	if err := w.parts.cpu.read(prepare); err != nil {
		return nil, w, err
	}
	if err := w.halt(); err != nil {
		return nil, nil, w.giveUp(err)
	}
	last, programs, listed, err := w.readNow()
	if err != nil {
		w.resume()
		return nil, w, err
	}

	next := newWindow(m)
	next.first, next.programs, next.watching, next.opening = last, countersOf(programs), w.watching, w.opening
	if programs == nil { // they are the first of the next window as well
		next.parts.programs.Err = w.parts.programs.Err
	}
	if w.collector != nil {
		next.collector = w.collector.cut(monotonic(), listed)
		next.collector.addText(programs)
	}
	seen, err := w.roll(next)
	if err == nil && (m.sampler != nil && w.parts.samples.Err != nil || w.watching && w.parts.witness.Err != nil) {
		err = next.restart(w, programs)
	}
	if err != nil {
		return nil, nil, w.giveUp(err)
	}
	go next.run()

	if all || m.snapshot == nil && m.bpf != nil {
		err = w.readSlow()
	}
	var l *ledger.Ledger
	if err == nil {
		l, err = w.account(last, programs, seen)
	}
	if err != nil {
		return nil, next, err
	}
	next.begin()
	m.spare, w.first.groups = w.first.groups, nil
	return l, next, nil
}

// Count switches the kernel's run statistics on or off for the window that Next has just opened. Without them, the
// ledger of that window does not say how often and how long programs ran. It does nothing where the meter has none.
func (m *Meter) Count(on bool) (err error) {
	switch {
	case !m.countable || on != m.uncounted:
		return nil
	case !on:
		err = m.stats.Close()
		m.stats, m.uncounted = nil, true
		return err
	}
	if m.stats, err = bpf.EnableStats(); err == nil {
		m.uncounted = false
	}
	return err
}

// begin turns the last edge of the window before into the first of this one: it drops what has gone.
func (w *Window) begin() {
	m := w.m
	m.forgetGroups()
	m.kernel.Forget()
	w.first.forget()
	w.first.kernel = lists.Map(m.kernel.Threads(), func(t proc.KernelThread) time.Duration { return t.Runtime })
}

// Discard ends the window without an account of it.
func (w *Window) Discard() error { return w.giveUp(w.halt()) }

// giveUp ends a window that cannot go on.
func (w *Window) giveUp(err error) error {
	w.m.open = false
	return errors.Join(err, w.switchOff())
}

// readNow reads an edge, and the programs' counters, which it began to list at the time listed.
func (w *Window) readNow() (last edge, programs []bpf.Program, listed int64, err error) {
	if last, err = w.readEdge(); err != nil {
		return last, nil, 0, err
	}
	listed = monotonic()
	programs, err = w.readCounters()
	return last, programs, listed, err
}

// resume drains again after halt.
func (w *Window) resume() {
	w.stop, w.done = make(chan struct{}), make(chan error, 1)
	go w.run()
}

// roll hands sampling and looking over to the next window, whose first edge is there. The account of the witness is of
// the time between the edges; it is nil without one.
func (w *Window) roll(next *Window) (seen *witness.Account, err error) {
	if w.watching {
		settle := func() error { return w.m.witness.Settle(next.first.at) }
		if err := w.try(&w.parts.witness, settle); err != nil {
			return nil, err
		}
	}
	if err := w.drain(); err != nil {
		return nil, err
	}
	if w.collector != nil {
		w.collector.join(forever)
		if err := w.try(&w.parts.samples, w.collector.sum); err != nil {
			return nil, err
		}
	}
	if !w.watching {
		return nil, nil
	}
	err = w.try(&w.parts.witness, func() (err error) {
		seen, err = w.m.witness.Roll(w.first.at, next.first.at)
		return err
	})
	if w.parts.witness.Err != nil {
		seen = nil
	}
	return seen, err
}

// restart begins to sample and to look anew, in a window whose edge was read, because one of the two failed in the
// window before.
func (w *Window) restart(before *Window, programs []bpf.Program) error {
	_ = before.switchOff() // what has failed may fail again
	if err := w.switchOn(); err != nil {
		return err
	}
	if w.watching {
		if err := w.try(&w.parts.witness, w.m.witness.Begin); err != nil {
			return err
		}
	}
	if w.collector != nil {
		if err := w.try(&w.parts.samples, w.collector.begin); err != nil {
			return err
		}
		w.collector.from = monotonic()
		w.collector.addText(programs)
	}
	w.unwatched = time.Duration(monotonic() - w.first.at)
	return nil
}

// countersOf are the counters of the programs that are there.
func countersOf(programs []bpf.Program) map[bpf.Key]bpf.Counters {
	counters := make(map[bpf.Key]bpf.Counters, len(programs))
	for i := range programs {
		if p := &programs[i]; !p.Vanished {
			counters[p.Key()] = p.Counters
		}
	}
	return counters
}

// forget drops the groups that have vanished before the window that the edge begins.
func (e *edge) forget() {
	for g := range e.groups {
		if g.Vanished {
			delete(e.groups, g)
		}
	}
}

// NotSampled is the code of the warning that CPUs went offline or came online. A CPU that came online has no sampler
// until there is a new meter.
const NotSampled = "cpus-not-sampled"
