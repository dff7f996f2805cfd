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
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
	"tare/internal/scale/profile"
)

// Machine is what trials need of the machine that they run on.
type Machine struct {
	Self    string // path of the tare binary, which starts itself in every role
	Cgroups *cgroup.Layout
	// OpenWindow reads every counter at a time by CLOCK_MONOTONIC in nanoseconds, or at once where that has passed: the
	// first edge. It returns the context's cause when that ends before.
	OpenWindow func(ctx context.Context, at int64) (Window, error)
	Share      cluster.Share // of the machine, that the groups of a trial may have together
	Shared     bool          // other nodes of the same run have trials on this machine at the same time

	// Stacks makes ready to sample stacks during a window; nil: trials have no profiles.
	Stacks func() (Stacks, error)

	Nodes     Nodes         // where trials on nodes run; nil: there are none
	NodeShare cluster.Share // of each
}

// Window is an open window of the meter.
type Window interface {
	// CloseAt reads every counter again, the second edge, at a time by CLOCK_MONOTONIC in nanoseconds. It is closed too
	// when the context ends before, and the error says so.
	CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error)
}

// Stacks samples what runs on the machine.
type Stacks interface {
	// Begin begins sampling. Samples count that are between two times by CLOCK_MONOTONIC, in nanoseconds.
	Begin(from, to int64) error
	// End ends sampling, and gives what was sampled; nil where it was not begun. It is called once.
	End() (*profile.Window, error)
}

// window reads all counters at two times by CLOCK_MONOTONIC, in nanoseconds.
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
	window  Window
	others  []int // just after the first edge: see Machine.others

	stacks    Stacks          // nil: none are sampled, or no longer
	sampled   *profile.Window // between the edges; nil: nothing was
	unstacked error           // why stacks could not be sampled
}

// open opens a window at a time by CLOCK_MONOTONIC, in nanoseconds, that is to be closed at another. Stacks that cannot
// be sampled do not fail it.
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

// endStacks ends sampling, where stacks are sampled and it has not been ended.
func (w *openWindow) endStacks() {
	if w.stacks == nil {
		return
	}
	var err error
	w.sampled, err = w.stacks.End()
	w.stacks, w.unstacked = nil, errors.Join(w.unstacked, err)
}

// opening is the error of a window that was not opened: why its trial ends, where it does.
func opening(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("opening the window: %w", err)
}

// closeAt closes the window at a time by CLOCK_MONOTONIC, in nanoseconds.
func (w *openWindow) closeAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	l, err := w.window.CloseAt(ctx, at)
	w.endStacks()
	if err != nil {
		return nil, err
	}
	if others := append(w.others, w.machine.others()...); len(others) > 0 {
		l.Warn(record.OtherRun, "%s", OtherRun(others))
	}
	return l, nil
}

// read reads all counters now and 10 ms later, because a window of length 0 has no rates.
func (m Machine) read(ctx context.Context) (*ledger.Ledger, error) {
	w, err := m.OpenWindow(ctx, 0)
	if err != nil {
		return nil, opening(ctx, err)
	}
	return w.CloseAt(ctx, pace.Now()+int64(10*time.Millisecond))
}

// others are the processes with runs of tare that are no part of this one.
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

// OtherRun says that other processes have runs of tare under way on this machine.
func OtherRun(pids []int) string {
	return fmt.Sprintf("another run of tare is under way on this machine (process %d), and the two disturb each other",
		pids[0])
}

// runFirst has this process run before others until the function that it returns is called with the ledger of the
// window, where there is one: a failure is a warning in it.
func runFirst() (done func(*ledger.Ledger)) {
	early := pace.RunFirst(true)
	return func(l *ledger.Ledger) {
		_ = pace.RunFirst(false) // what could be set can be taken back
		if early != nil && l != nil {
			l.Warn("not-first", "%v (it takes CAP_SYS_NICE); a storm of execs may have held up the reading of counters", early)
		}
	}
}

// laps gives a function that puts the time since it was called last among the clocks of a trial, under a name.
func laps(t *record.Trial) func(clock string) {
	mark := time.Now()
	return func(clock string) {
		now := time.Now()
		t.Clocks[clock], mark = now.Sub(mark), now
	}
}
