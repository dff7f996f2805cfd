// Package containment checks whether processes stay in the control groups whose counters measure them. Those counters
// lack what a process uses in other groups, even briefly or with only one of its threads.
//
// A Watch lists the processes at both edges of a window, records those that leave their groups in between, and compares
// the CPU time of the processes' own clocks with the CPU time that their groups counted. It therefore also finds
// processes that left and came back, or left and ended. docs/bias.md says what it cannot see.
package containment

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/moves"
	"tare/internal/scale/host/proc"
)

// Home is a control group in which processes must be.
type Home struct {
	Path string // the group's identity, as in package cgroup
	// Dir is its directory in the hierarchy that counts CPU time. Empty: processes may move between groups within the
	// home, so their clocks cannot be compared with a counter.
	Dir string
	// Within reports whether a group is the home, is below it, or is in a hierarchy that does not matter.
	Within func(cgroup.Membership) bool
}

// Member is a process that must be in a group.
type Member struct {
	proc.Process
	Home *Home
	// Entered is true for a process that was started elsewhere and put into the group: its clock began earlier.
	Entered bool
}

// Stray is a process that was not in its group.
type Stray struct {
	PID  int
	Comm string
	// Group is the control group in which the process, or one of its threads, was found. If Lacking is not 0, it is the
	// group to which the process belongs.
	Group string
	What  string // controllers of Group's hierarchy, or "cgroup v2"; empty for the hierarchy that counts CPU time
	Back  bool   // it was in Group only at the first edge, and has come back or ended
	// Lacking is the CPU time, in seconds, that the process, its children and other processes of Group used and Group
	// did not count, because they were elsewhere between the edges. It is 0 for a process that is elsewhere at an edge.
	Lacking float64
	// Left is the group that the process left between the edges before it ended in Group. Used is an upper bound of its
	// CPU time since then, in seconds.
	Left string
	Used float64
}

// Watch observes processes over a window. The caller must close it.
type Watch struct {
	moves   *moves.Watch      // nil: processes that leave are not recorded
	unseen  error             // why moves are not recorded
	paths   map[string]string // paths of homes, by their directories
	layout  *cgroup.Layout
	fs      proc.FS
	list    func() ([]Member, error)
	cpus    int                // online, at the first edge
	took    time.Duration      // how long it took to list the members at the first edge and read their clocks
	at      uint64             // when the youngest process at the first edge began (proc.Process.Start)
	clocks  map[int]Member     // the members and their clocks at the first edge, by pid
	counted map[string]float64 // CPU time of the homes at the first edge, in seconds, by Home.Dir
	strays  []Stray            // strays at the first edge
}

// Begin examines the processes at the first edge. It calls list at each edge for the processes that exist then. They
// must not leave the groups in paths, which are keyed by their directories in the hierarchy that counts CPU time.
func Begin(l *cgroup.Layout, f proc.FS, paths map[string]string, list func() ([]Member, error)) (w *Watch, err error) {
	machine, err := f.Stat()
	if err != nil {
		return nil, err
	}
	w = &Watch{
		layout: l, fs: f, list: list, cpus: len(machine.Online), clocks: map[int]Member{}, counted: map[string]float64{},
		paths: paths,
	}
	begun := w // needed because returning nil sets w to nil
	defer func() {
		if err != nil {
			err = errors.Join(err, begun.Close())
		}
	}()
	if cpu, ok := l.CPU(); ok && len(paths) > 0 {
		w.moves, w.unseen = moves.Open(cpu, slices.Collect(maps.Keys(paths)))
	}
	began := time.Now()
	members, err := list()
	if err != nil {
		return nil, err
	}
	if w.strays, err = w.elsewhere(members); err != nil {
		return nil, err
	}
	// The counters of the homes are read before the processes' clocks here and after them in End, so they cover all the
	// time between the two readings of a clock.
	for _, m := range members {
		if _, known := w.counted[m.Home.Dir]; m.Home.Dir != "" && !known {
			if v := cgroup.CPUTime(m.Home.Dir); v.OK {
				w.counted[m.Home.Dir] = float64(v.N) / 1e9
			}
		}
	}
	for _, m := range members {
		now, err := f.Process(m.PID)
		if err == nil && now.Start == m.Start {
			m.Process = now
			w.clocks[m.PID] = m
			w.at = max(w.at, m.Start)
		}
	}
	w.took = time.Since(began)
	return w, nil
}

// Knows reports whether a process was a member at the first edge. A nil Watch knows none.
func (w *Watch) Knows(p proc.Process) bool {
	if w == nil {
		return false
	}
	before, known := w.clocks[p.PID]
	return known && before.Start == p.Start
}

// Close ends the watch. The Watch may be nil.
func (w *Watch) Close() error {
	if w == nil || w.moves == nil {
		return nil
	}
	err := w.moves.Close()
	w.moves = nil
	return err
}

// MayBeMissing returns a warning that processes may have left their groups unseen. Its arguments are the owner of the
// groups, and the reason.
func MayBeMissing(whose, why string) string {
	return fmt.Sprintf("processes of %s that left its control groups inside the window and ended elsewhere may not be "+
		"known, and what they used is counted nowhere then: %s", whose, why)
}

// Unseen returns why the result of End may lack processes that left their groups inside the window and ended
// elsewhere, or nil if it is complete.
func (w *Watch) Unseen() error { return w.unseen }

// End examines the processes at the second edge, and returns all that were not in their groups at one of the edges or
// in between, once each.
func (w *Watch) End() ([]Stray, error) {
	members, err := w.list()
	if err != nil {
		return nil, err
	}
	lacking := w.lacking(members)
	strays, err := w.elsewhere(members)
	if err != nil {
		return nil, err
	}
	for _, s := range w.left() {
		// The CPU time that the group s.Left did not count is part of s.Used.
		lacking = slices.DeleteFunc(lacking, func(o Stray) bool { return o.Group == s.Left })
		if !slices.ContainsFunc(strays, func(o Stray) bool { return o.PID == s.PID }) {
			strays = append(strays, s)
		}
	}
	for _, s := range append(w.strays, lacking...) {
		if !slices.ContainsFunc(strays, func(o Stray) bool { return o.PID == s.PID }) {
			s.Back = s.Lacking == 0
			strays = append(strays, s)
		}
	}
	return strays, nil
}

// little is the CPU time, in seconds, that processes may use elsewhere, all together, before they count as strays.
const little = 0.001

// left returns the processes that left their groups since the first edge and did not come back: first those that have
// ended, by descending CPU time, then the others. It leaves out those that have ended if all of them used less than
// little.
func (w *Watch) left() (strays []Stray) {
	if w.moves == nil {
		return nil
	}
	all, lost, err := w.moves.Left()
	if lost > 0 && err == nil {
		err = fmt.Errorf("there was no room to note %d of them", lost)
	}
	w.unseen = err
	used := 0.0
	for _, l := range all {
		used += l.Used.Seconds()
		s := Stray{PID: l.PID, Comm: l.Comm, Group: l.Group}
		if l.Ended {
			s.Left, s.Used = w.paths[l.Home], l.Used.Seconds()
		}
		strays = append(strays, s)
	}
	slices.SortStableFunc(strays, func(a, b Stray) int { return cmp.Compare(b.Used, a.Used) })
	if used < little {
		strays = slices.DeleteFunc(strays, func(s Stray) bool { return s.Left != "" })
	}
	return strays
}

// elsewhere returns the members that are not in their groups now.
func (w *Watch) elsewhere(members []Member) (strays []Stray, err error) {
	cpu, _ := w.layout.CPU()
	for _, m := range members {
		all, err := w.layout.Outside(m.PID, m.Home.Within)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			continue
		}
		at := all[max(0, slices.IndexFunc(all, func(m cgroup.Membership) bool { return m.Hierarchy == cpu }))]
		s := Stray{PID: m.PID, Comm: m.Comm, Group: at.Identity}
		switch {
		case at.Hierarchy == cpu:
		case at.Hierarchy.V2:
			s.What = "cgroup v2"
		default:
			s.What = strings.Join(at.Hierarchy.Controllers, " and ")
		}
		strays = append(strays, s)
	}
	return strays, nil
}

// grain is the most, in ticks, by which the difference between two readings of a process's clocks can exceed the CPU
// time used: each reading has four values, which are rounded down to ticks.
const grain = 4

// lacking returns, for each home whose processes used CPU time that the home did not count, the process that used the
// most.
func (w *Watch) lacking(members []Member) (strays []Stray) {
	type use struct {
		ticks, most int64
		of          Member
		n           uint64
		before      int // processes at the first edge
	}
	uses := map[string]*use{}
	ended := map[int]Member{}
	for pid, m := range w.clocks {
		if m.Home.Dir == "" {
			continue
		}
		ended[pid] = m
		if uses[m.Home.Dir] == nil {
			uses[m.Home.Dir] = &use{}
		}
		uses[m.Home.Dir].before++
	}
	for _, m := range members {
		u, since := uses[m.Home.Dir], int64(m.Ticks+m.ChildTicks)
		if u == nil {
			continue
		}
		if before, known := ended[m.PID]; known && before.Start == m.Start {
			since -= int64(before.Ticks + before.ChildTicks)
			delete(ended, m.PID)
		} else if m.Entered || m.Start <= w.at {
			continue // it may have used CPU time before it was in the group
		}
		u.n++
		if u.ticks += since; since > u.most {
			u.most, u.of = since, m
		}
	}
	for _, m := range ended { // its parent has waited for it since, so the parent's ChildTicks include its earlier use
		uses[m.Home.Dir].ticks -= int64(m.Ticks + m.ChildTicks)
	}
	for dir, u := range uses {
		before, known := w.counted[dir]
		now := cgroup.CPUTime(dir) // read after the clocks
		if !known || !now.OK || u.ticks <= 0 {
			continue
		}
		if float64(now.N)/1e9 < before {
			continue // the counter was reset, which the ledger reports
		}
		used, counted := w.fs.Seconds(uint64(u.ticks)), float64(now.N)/1e9-before
		// A child that began after the list at the first edge counts in full, because no earlier use is subtracted for it.
		// If the machine stalled before the last clock was read, such children may have used every CPU all that time.
		unlisted := w.took.Seconds() * float64(min(u.before, w.cpus))
		if used-counted > w.fs.Seconds(grain*u.n)+0.02*used+unlisted {
			strays = append(strays, Stray{PID: u.of.PID, Comm: u.of.Comm, Group: u.of.Home.Path, Lacking: used - counted})
		}
	}
	slices.SortFunc(strays, func(a, b Stray) int { return strings.Compare(a.Group, b.Group) })
	return strays
}

// Describe returns a sentence that says where the first stray is and how many others there are, or "" if there are
// none. The second argument names the owner of the strays.
func Describe(strays []Stray, of string) string {
	if len(strays) == 0 {
		return ""
	}
	s := strays[0]
	who := fmt.Sprintf("process %d (%s) of %s", s.PID, text.Plain(s.Comm), of)
	what := ""
	if s.What != "" {
		what = " of " + s.What
	}
	said := fmt.Sprintf("%s is in the control group %.200s%s", who, s.Group, what)
	switch {
	case s.Left != "":
		said = fmt.Sprintf("%s left the control group %.200s for %.200s and ended there: it used up to %.3f s of CPU time "+
			"in it", who, s.Left, s.Group, s.Used)
	case s.Lacking > 0:
		said = fmt.Sprintf("%s, or what it has started, was in other control groups for a time, or the group's counter was "+
			"reset: %.200s did not count %.2f s of its CPU time", who, s.Group, s.Lacking)
	case s.Back:
		said = fmt.Sprintf("%s was in the control group %.200s%s when the window began", who, s.Group, what)
	}
	if n := len(strays) - 1; n > 0 {
		said += fmt.Sprintf(", and %d more elsewhere", n)
	}
	return said
}
