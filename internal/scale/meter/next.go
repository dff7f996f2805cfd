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

// Next closes the window and opens the one that follows it at the same edge: the last counters of the one are the first
// of the other, so that no CPU time and no run of a program is in neither of them, or in both. Sampling goes on.
//
// With all it finds new groups and kernel threads, and reads memory and what programs and maps there are. Without, the
// ledger has those as they were read last, and a window costs a fraction; a group that has come since is in the groups
// around it until the next window with all, which then has what the group used since it was made.
//
// After an error the window is still open if it is the one that is returned, and the next ledger has what was used
// meanwhile. If none is returned, sampling has failed: the window is gone, and another can be opened.
func (w *Window) Next(all bool) (*ledger.Ledger, *Window, error) {
	m := w.m
	if all {
		if err := m.prepare(); err != nil {
			return nil, w, err
		}
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
	if w.collector != nil {
		next.collector = w.collector.cut(monotonic(), listed)
		next.collector.addText(programs)
	}
	seen, err := w.roll(next)
	if err != nil {
		return nil, nil, w.giveUp(err)
	}
	go next.run()

	var unread error
	if all || m.snapshot == nil {
		unread = m.readSlow()
	}
	l, err := w.account(last, programs, seen)
	if err != nil {
		return nil, next, err
	}
	if unread != nil {
		l.Warn("unread", "memory, programs and maps are as they were read last: %v", unread)
	}
	next.begin()
	return l, next, nil
}

// begin makes the last edge of the window before the first edge of this one: what has gone is not in it.
func (w *Window) begin() {
	m := w.m
	m.groups.Forget()
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
	if last, err = w.m.readEdge(); err != nil {
		return last, nil, 0, err
	}
	listed = monotonic()
	programs, err = w.m.bpf.ReadCounters()
	return last, programs, listed, err
}

// resume drains again after halt.
func (w *Window) resume() {
	w.stop, w.done = make(chan struct{}), make(chan error, 1)
	go w.run()
}

// roll hands sampling and looking over to the next window, whose first edge is there. The account of the witness is of
// the time between the edges; it is nil without one.
func (w *Window) roll(next *Window) (*witness.Account, error) {
	if w.watching {
		if err := w.m.witness.Settle(next.first.at); err != nil {
			return nil, err
		}
	}
	if err := w.drain(); err != nil {
		return nil, err
	}
	if w.collector != nil {
		w.collector.join(forever)
		if err := w.collector.sum(); err != nil {
			return nil, err
		}
	}
	if !w.watching {
		return nil, nil
	}
	return w.m.witness.Roll(w.first.at, next.first.at)
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

// NotSampled is the code of the warning that CPUs went offline or came online: those that came have no sampler until
// there is a new meter.
const NotSampled = "cpus-not-sampled"
