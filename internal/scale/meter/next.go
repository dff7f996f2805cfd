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

// Next closes the window and opens the next one at the same edge: the last counters of one are the first of the other,
// so all CPU time and each run of a program is in exactly one of them. Sampling continues.
//
// It calls atEdge, if that is not nil, as soon as it has read the counters of the edge: Count, called there, is in time
// for the next window.
//
// If all is true, it finds new groups, and reads memory and the list of programs and maps. Otherwise the ledger has
// those from the last such reading, and a window costs a fraction. New groups at the top of the hierarchies and new
// kernel threads are found in any case, because no other counter contains their time. A new group below the top is
// counted in its ancestors until the next window with all set. If the group was made before that window began, its CPU
// time and throttling are nil in the window's ledger, because its counters include earlier windows; they are known from
// the next window on.
//
// After an error, the returned window, if any, is open, and its ledger will include what was used in the meantime. If
// sampling fails in a meter that must be whole, Next returns no window, and the caller may open another. Other meters
// start sampling again in the next window.
func (w *Window) Next(all bool, atEdge func()) (*ledger.Ledger, *Window, error) {
	m := w.m
	prepare := m.prepareTop
	if all {
		prepare = m.prepare
	}
	if err := w.prepare(prepare); err != nil {
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
	if atEdge != nil {
		atEdge()
	}

	next := newWindow(m)
	next.first, next.programs, next.watching, next.opening = last, countersOf(programs), w.watching, w.opening
	if programs == nil { // they would also be the next window's first counters
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

// Count switches the kernel's run statistics on or off for the windows that are opened from now on, including the one
// whose first edge Next has just read. Without statistics, a ledger does not say how often and how long programs ran.
// Count does nothing if the meter never had statistics.
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

// begin turns the last edge of the previous window into the first of this one: it drops what has gone.
func (w *Window) begin() {
	m := w.m
	m.forgetGroups()
	m.kernel.Forget()
	w.first.forget()
	w.first.kernel = lists.Map(m.kernel.Threads(), func(t proc.KernelThread) time.Duration { return t.Runtime })
}

// Discard ends the window without a ledger.
func (w *Window) Discard() error { return w.giveUp(w.halt()) }

// giveUp ends a window that cannot continue.
func (w *Window) giveUp(err error) error {
	w.m.open = false
	return errors.Join(err, w.switchOff())
}

// readNow reads an edge and then the programs' counters. It also returns the time at which it began to list the
// programs.
func (w *Window) readNow() (last edge, programs []bpf.Program, listed int64, err error) {
	if last, err = w.readEdge(); err != nil {
		return last, nil, 0, err
	}
	listed = monotonic()
	programs, err = w.readCounters()
	return last, programs, listed, err
}

// resume restarts draining after halt.
func (w *Window) resume() {
	w.stop, w.done = make(chan struct{}), make(chan error, 1)
	go w.run()
}

// roll hands sampling and the witness over to the next window, whose first edge has been read. It returns the
// witness's account of the time between the edges, or nil without a witness.
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

// restart starts sampling and the witness anew in a window whose first edge has been read, because one of them failed
// in the previous window.
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

// countersOf returns the counters of the programs that still exist.
func countersOf(programs []bpf.Program) map[bpf.Key]bpf.Counters {
	counters := make(map[bpf.Key]bpf.Counters, len(programs))
	for i := range programs {
		if p := &programs[i]; !p.Vanished {
			counters[p.Key()] = p.Counters
		}
	}
	return counters
}

// forget drops the groups that vanished before the window that starts at this edge.
func (e *edge) forget() {
	for g := range e.groups {
		if g.Vanished {
			delete(e.groups, g)
		}
	}
}

// NotSampled is the code of the warning that CPUs went offline or came online. A CPU that came online is not sampled
// by existing meters.
const NotSampled = "cpus-not-sampled"
