package meter

import (
	"context"
	"errors"
	"slices"

	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// LightWarning is the code of the warning in every ledger of a light meter.
const LightWarning = "light"

// Light weighs only some of a machine: trees of control groups named by the caller, and the eBPF programs held by
// processes in them. It is for experiments in which many meters run on one machine and would disturb the subject if
// each read everything. It takes no samples, so there are no shares, and the ledger has no CPU budget of the machine.
// The caller switches the kernel's run statistics on. A Light is not safe for concurrent use.
type Light struct {
	m      *Meter // without kernel threads and samples
	window *LightWindow
}

// LightWindow is a window of a light meter: what Prepare found, and the counters of the first edge.
type LightWindow struct {
	m        *Meter
	first    edge
	snapshot *bpf.Snapshot // of the programs and maps being weighed
	programs map[bpf.Key]bpf.Counters
	known    map[bpf.Key]bool
}

// NewLight opens a light meter. It ignores options about samples. The caller must close it.
func NewLight(o Options) (l *Light, err error) {
	l = &Light{m: &Meter{uncounted: o.NoStatistics, whole: true}}
	if l.m.layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, err
	}
	if l.m.bpf, err = bpf.Open(bpf.Options{}); err != nil {
		return nil, err
	}
	l.m.describe()
	l.m.warn(LightWarning, "only the groups of one node and the programs that are held in them were weighed: the "+
		"machine's CPU budget, and shares of programs, are not here")
	return l, nil
}

// Close releases all resources.
func (l *Light) Close() error { return l.m.Close() }

// Prepare finds the groups in the given trees (names of groups at the top of the hierarchies), and the programs and
// maps that their processes hold. This is slow, and is therefore done before the window. What appears later is not
// weighed. Prepare must be called before each Open.
func (l *Light) Prepare(trees ...string) (err error) {
	if l.m.groups != nil {
		l.m.groups.Close()
	}
	if l.m.groups, err = cgroup.NewReaderOf(l.m.layout, trees); err != nil {
		return err
	}
	pids := lists.Keyed(l.m.layout.Members(trees), func(pid int) (int, bool) { return pid, true })
	s, err := l.m.bpf.Snapshot()
	if err != nil {
		return err
	}
	w := &LightWindow{m: l.m, snapshot: s, programs: map[bpf.Key]bpf.Counters{}, known: map[bpf.Key]bool{}}
	held := func(holders []bpf.Holder) bool {
		return slices.ContainsFunc(holders, func(h bpf.Holder) bool { return pids[h.PID] })
	}
	used := map[uint32]bool{}
	s.Programs = slices.DeleteFunc(s.Programs, func(p bpf.Program) bool { return !held(p.Owners) })
	for i := range s.Programs {
		w.known[s.Programs[i].Key()] = true
		for _, id := range s.Programs[i].MapIDs {
			used[id] = true
		}
	}
	s.Maps = slices.DeleteFunc(s.Maps, func(m bpf.Map) bool { return !used[m.ID] && !held(m.HeldBy) })
	s.Links = nil
	l.window = w
	return nil
}

// Open reads the counters of what Prepare found: the first edge.
func (l *Light) Open() (*LightWindow, error) {
	w := l.window
	if w == nil {
		return nil, errors.New("opening a light window that was not prepared")
	}
	l.window = nil
	var err error
	if w.first, err = l.m.readEdge(); err != nil {
		return nil, err
	}
	programs, err := w.readPrograms()
	if err != nil {
		return nil, err
	}
	for i := range programs {
		w.programs[programs[i].Key()] = programs[i].Counters
	}
	return w, nil
}

// OpenAt calls Open at the given CLOCK_MONOTONIC time in nanoseconds. If the context ends first, the error is its
// cause.
func (l *Light) OpenAt(ctx context.Context, at int64) (*LightWindow, error) {
	if err := pace.SleepUntil(ctx, at); err != nil {
		return nil, err
	}
	return l.Open()
}

// readPrograms reads the counters of the programs being weighed.
func (w *LightWindow) readPrograms() ([]bpf.Program, error) {
	all, err := w.m.bpf.ReadCounters()
	return slices.DeleteFunc(all, func(p bpf.Program) bool { return !w.known[p.Key()] }), err
}

// CloseAt calls Close at the given CLOCK_MONOTONIC time in nanoseconds. If the context ends first, CloseAt closes the
// window at once, and the error is the context's cause.
func (w *LightWindow) CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	ended := pace.SleepUntil(ctx, at)
	l, err := w.Close()
	if err = errors.Join(ended, err); err != nil {
		return nil, err
	}
	return l, nil
}

// Close reads the counters again and returns the ledger. Maps are as Prepare found them.
func (w *LightWindow) Close() (*ledger.Ledger, error) {
	m := w.m
	last, err := m.readEdge()
	if err != nil {
		return nil, err
	}
	programs, err := w.readPrograms()
	if err != nil {
		return nil, err
	}
	if err := m.unlessNamed(m.groups.ReadMemory()); err != nil {
		return nil, err
	}
	a := account{m: m, w: &Window{m: m, first: w.first, programs: w.programs, uncounted: m.uncounted}, last: last,
		programs: programs, snapshot: w.snapshot}
	a.warnings = slices.Clone(m.warnings)
	a.unread()
	l := &ledger.Ledger{Schema: ledger.Schema, Host: m.host, Window: a.window()}
	l.Programs, l.Maps = a.bpfPrograms(), a.bpfMaps()
	l.Cgroups, l.Self = a.cgroups(l.Programs), a.self()
	l.CPU.Lines = []ledger.CPULine{}
	l.Settle()
	l.Warnings = a.warnings
	return l, nil
}
