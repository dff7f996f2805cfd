package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/internal/scale/profile"
)

// Machine describes the machine on which trials run, and how to read its counters.
type Machine struct {
	Self    string // path of the tare binary, which is started in every role
	Cgroups *cgroup.Layout
	// OpenWindow opens a window: it reads every counter at the given time (CLOCK_MONOTONIC, in nanoseconds), or at once
	// if that time has passed. This is the window's first edge. If the context ends first, the error is its cause.
	OpenWindow func(ctx context.Context, at int64) (Window, error)
	Share      cluster.Share // share of the machine for all groups of a trial together
	Shared     bool          // other nodes of the same run run trials on this machine at the same time

	// Programs lists the eBPF programs that are loaded on the machine. nil: trials do not look for those that they leave.
	Programs func() ([]bpf.Program, error)

	// Stacks prepares to sample stacks during a window; nil: trials have no profiles.
	Stacks func() (Stacks, error)

	Nodes     Nodes         // where trials on nodes run; nil: there are no nodes
	NodeShare cluster.Share // the share of its machine that each node's trial gets
}

// Window is an open window of the meter.
type Window interface {
	// CloseAt reads every counter again at the given time (CLOCK_MONOTONIC, in nanoseconds). This is the window's second
	// edge. If the context ends first, the window is closed too, and an error is returned.
	CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error)
}

// Stacks samples what runs on the machine.
type Stacks interface {
	// Begin begins sampling. Only samples between the two given times (CLOCK_MONOTONIC, in nanoseconds) count.
	Begin(from, to int64) error
	// End ends sampling, and returns the samples; nil if sampling had not begun. It must be called once.
	End() (*profile.Window, error)
}

// window returns the ledger of a window between two times (CLOCK_MONOTONIC, in nanoseconds).
func (m Machine) window(ctx context.Context, from, to int64) (*ledger.Ledger, error) {
	w, err := m.open(ctx, from, to)
	if err != nil {
		return nil, err
	}
	return w.closeAt(ctx, to)
}

// openWindow is a window whose first edge has been read.
type openWindow struct {
	machine Machine
	window  Window // nil: it was closed
	others  []int  // Machine.others just after the first edge

	stacks    Stacks          // nil: not sampled, or sampling has ended
	sampled   *profile.Window // between the edges; nil: nothing was sampled
	unstacked error           // why stacks could not be sampled
}

// open opens a window at the first of two times, and samples stacks from then until the second, when the caller should
// close the window. Times are CLOCK_MONOTONIC in nanoseconds. If stacks cannot be sampled, the window has none, and
// w.unstacked says why.
func (m Machine) open(ctx context.Context, from, to int64) (w *openWindow, err error) {
	w = &openWindow{machine: m}
	if m.Stacks != nil {
		var stacks Stacks
		if stacks, w.unstacked = m.Stacks(); w.unstacked == nil {
			w.stacks, w.unstacked = stacks, stacks.Begin(max(from, pace.Now()), to)
		}
	}
	if w.window, err = m.OpenWindow(ctx, from); err != nil {
		w.endStacks()
		return nil, opening(ctx, err)
	}
	w.others = m.others()
	return w, nil
}

// endStacks ends the sampling of stacks, if it is under way.
func (w *openWindow) endStacks() {
	if w.stacks == nil {
		return
	}
	var err error
	w.sampled, err = w.stacks.End()
	w.stacks, w.unstacked = nil, errors.Join(w.unstacked, err)
}

// opening returns the error of a window that was not opened: the context's cause if the context has ended.
func opening(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("opening the window: %w", err)
}

// closeAt closes the window at the given time (CLOCK_MONOTONIC, in nanoseconds).
func (w *openWindow) closeAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	l, err := w.window.CloseAt(ctx, at)
	w.window = nil
	w.endStacks()
	if err != nil {
		return nil, err
	}
	if others := append(w.others, w.machine.others()...); len(others) > 0 {
		l.Warn(record.OtherRun, "%s", OtherRun(others))
	}
	return l, nil
}

// abandon closes the window and ends the sampling of stacks, unless that was done.
func (w *openWindow) abandon() {
	w.endStacks()
	if w.window != nil {
		_, _ = w.window.CloseAt(context.Background(), 0)
	}
}

// read reads all counters now and 10 ms later, because a window of length 0 has no rates.
func (m Machine) read(ctx context.Context) (*ledger.Ledger, error) {
	w, err := m.OpenWindow(ctx, 0)
	if err != nil {
		return nil, opening(ctx, err)
	}
	return w.CloseAt(ctx, pace.Now()+int64(10*time.Millisecond))
}

// others returns the pids of other runs of tare on this machine, or nil if it is Shared.
func (m Machine) others() []int {
	if m.Shared {
		return nil
	}
	others := placement.Others(m.Cgroups)
	if m.Nodes != nil {
		ours := m.Nodes.PIDs()
		others = slices.DeleteFunc(others, func(pid int) bool { return slices.Contains(ours, pid) })
	}
	return others
}

// OtherRun returns a warning that other processes run tare on this machine. pids must not be empty.
func OtherRun(pids []int) string {
	return fmt.Sprintf("another run of tare is under way on this machine (process %d), and the two disturb each other",
		pids[0])
}

// runFirst makes the scheduler prefer this process until done is called. If the kernel refuses that, done adds a
// warning to the window's ledger, unless that is nil.
func runFirst() (done func(*ledger.Ledger)) {
	early := pace.RunFirst(true)
	return func(l *ledger.Ledger) {
		_ = pace.RunFirst(false) // if it could be set, it can be undone
		if early != nil && l != nil {
			l.Warn("not-first", "%v (it takes CAP_SYS_NICE); a storm of execs may have held up the reading of counters", early)
		}
	}
}

// laps returns a function that records, as the named clock of a trial, the time since its previous call, or since laps
// was called.
func laps(t *record.Trial) func(clock string) {
	mark := time.Now()
	return func(clock string) {
		now := time.Now()
		t.Clocks[clock], mark = now.Sub(mark), now
	}
}
