package meter

import (
	"errors"

	"tare/internal/scale/attribution"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
)

// groupNames gives each group a small number, so that samples can be counted without strings.
type groupNames struct {
	names []string
	index map[string]int32
}

// The first numbers are fixed.
const (
	groupUnknown int32 = iota // the thread ended before its group could be read
	groupIdle                 // no task: the CPU was idle
)

func newGroupNames() *groupNames {
	return &groupNames{names: []string{"", attribution.Idle},
		index: map[string]int32{"": groupUnknown, attribution.Idle: groupIdle}}
}

func (g *groupNames) number(name string) int32 {
	n, ok := g.index[name]
	if !ok {
		n = int32(len(g.names))
		g.names = append(g.names, name)
		g.index[name] = n
	}
	return n
}

// locator finds the group of a sample's task. On pure v2 the sample itself contains it. On v1 and hybrid machines CPU
// time is charged by another hierarchy than the one whose id is in the sample, so the thread's group is read from
// /proc soon after the sample; a thread that is gone by then is assumed to be in the group of the thread that created
// it.
type locator struct {
	names   *groupNames
	byID    bool // the sample's id is that of the group whose CPU time is charged
	hidden  bool // a task of another PID namespace has PID 0 here, like the idle task
	layout  *cgroup.Layout
	ids     map[uint64]int32
	stale   bool // ids have not been read in this drain
	threads map[uint32]thread
	read    func(tid int) (string, error)
	exited  []uint32
	budget  int   // reads of /proc that this drain may still do
	drained int64 // when the latest drain began, ns by CLOCK_MONOTONIC
}

type thread struct {
	group  int32
	maker  uint32 // the thread that created it, until its own group is read; otherwise 0
	readAt int64  // when reading the group was last tried, in ns; 0 if never
}

const (
	rereadAfter   = int64(500e6) // ns: how long a thread's group is cached; threads are rarely moved
	readsPerDrain = 200          // bounds the cost of a storm of new threads: about 2 ms of CPU time
	maxMakers     = 64           // how far up a chain of creators to search
)

func newLocator(layout *cgroup.Layout, names *groupNames, sampleHasID bool) *locator {
	l := &locator{
		names: names, layout: layout, threads: map[uint32]thread{}, read: layout.NewResolver().LivePath,
		byID: sampleNames(layout, sampleHasID),
	}
	if l.byID {
		l.refreshIDs()
	}
	return l
}

// sampleNames reports whether a sample's group id identifies the group whose CPU time is charged.
func sampleNames(layout *cgroup.Layout, sampleHasID bool) bool {
	return sampleHasID && layout.Mode == cgroup.ModeV2
}

func (l *locator) refreshIDs() {
	l.stale = false
	ids, err := l.layout.IDs()
	if err != nil {
		return // samples of unknown ids count as groupUnknown
	}
	if l.ids == nil {
		l.ids = make(map[uint64]int32, len(ids))
	}
	for id, path := range ids {
		l.ids[id] = l.names.number(path)
	}
}

// begin starts a drain. Drains in quick succession share the budget of one interval.
func (l *locator) begin() {
	now := monotonic()
	passed := min(now-l.drained, int64(drainEvery))
	l.budget = min(readsPerDrain, l.budget+int(readsPerDrain*passed/int64(drainEvery)))
	l.drained, l.stale = now, true
}

// task records the creation or exit of a thread.
func (l *locator) task(t perf.Task) {
	if l.byID {
		return
	}
	if t.Exit {
		l.exited = append(l.exited, t.TID)
		return
	}
	child := thread{group: groupUnknown, maker: t.PTID}
	if p, ok := l.threads[t.PTID]; ok {
		child.group = p.group
	}
	l.threads[t.TID] = child
}

// end forgets the threads that exited, once the samples of this drain have been located.
func (l *locator) end() {
	for _, tid := range l.exited {
		delete(l.threads, tid)
	}
	l.exited = l.exited[:0]
}

// group returns the number of the group that a sample's task was in.
func (l *locator) group(s *perf.Sample) int32 {
	if s.PID == 0 && !l.hidden {
		return groupIdle
	}
	if l.byID {
		g, ok := l.ids[s.Cgroup]
		if !ok && l.stale {
			l.refreshIDs()
			g = l.ids[s.Cgroup]
		}
		return g
	}
	if s.PID == 0 {
		return groupUnknown
	}
	t, known := l.threads[s.TID]
	if known && t.readAt != 0 && s.Time-t.readAt < rereadAfter || l.budget == 0 {
		return t.group
	}
	l.budget--
	path, err := l.read(int(s.TID))
	switch {
	case err == nil:
		t = thread{group: l.names.number(path), readAt: s.Time}
	case errors.Is(err, proc.ErrGone) && t.group == groupUnknown:
		t.group = l.inherited(t.maker)
		t.readAt = s.Time
	default:
		t.readAt = s.Time // it has gone or cannot be read, and keeps its last group
	}
	l.threads[s.TID] = t
	return t.group
}

// inherited returns the group of the nearest creator that is known or alive.
func (l *locator) inherited(maker uint32) int32 {
	for range maxMakers {
		if maker == 0 {
			break
		}
		t, ok := l.threads[maker]
		if ok && t.group != groupUnknown {
			return t.group
		}
		if path, err := l.read(int(maker)); err == nil {
			g := l.names.number(path)
			l.threads[maker] = thread{group: g, readAt: 1}
			return g
		}
		maker = t.maker
	}
	return groupUnknown
}
