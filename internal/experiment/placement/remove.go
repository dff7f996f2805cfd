package placement

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/containment"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// patience limits the wait for killed processes to end and for their groups to become free. A process in the middle of
// a large write, or with much memory to free, may take seconds.
const patience = 20 * time.Second

// markPatience limits the total wait for processes in execve, whose marks cannot be read until execve is over.
const markPatience = 3 * time.Second

// Close kills the processes that still run in the tree, waits until they have ended, and removes the groups. It may be
// called again to retry what failed.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		close(t.start)
		<-t.exited // the thread's end kills its children, even one that has yet to enter a group
	}
	dirs := t.dirs("")
	deadline := time.Now().Add(patience)
	err := empty(dirs, deadline, func(dirs []string) error {
		for _, dir := range dirs {
			// One write kills all processes, even processes that are just being started (Linux 5.14, cgroup v2). Processes that
			// remain are killed one by one.
			_ = cgroup.Write(filepath.Join(dir, "cgroup.kill"), "1")
		}
		for _, pid := range cgroup.Members(dirs) {
			if err := child.Kill(pid, func() bool { return inside(t.layout, pid, t.name) }); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		// A process that had yet to enter its group is in none, and may not have ended. During its execve it has no mark
		// either, so it is recognized by its start time. So are processes that left the groups.
		for pid, s := range t.started {
			t.known[pid] = s.at
		}
		still := func(pid int) bool {
			p, err := proc.FS{}.Process(pid)
			return err == nil && p.Start == t.known[pid]
		}
		err = child.EndAll(slices.Sorted(maps.Keys(t.known)), still, time.Until(deadline))
	}
	if err = errors.Join(err, removeAll(dirs, deadline)); err == nil {
		t.release()
	}
	return err
}

// empty calls clear until no process is left in the groups. It returns an error if some are left at the deadline.
func empty(dirs []string, deadline time.Time, clear func(dirs []string) error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		left := cgroup.Members(dirs)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fault.New(fault.Machine, dirs[0], "look at their state (ps -o pid,stat,wchan), then run 'tare clean'",
				"processes %v do not end when killed: %s", left, child.Doing(left...))
		}
		if err := clear(dirs); err != nil {
			return err
		}
		time.Sleep(wait)
	}
}

// Members returns the processes in the group and in groups below it, in order of pid.
func (g *Group) Members() []int {
	return cgroup.Members(g.tree.dirs(g.name))
}

// dirs returns the directories of a group in all hierarchies.
func (t *Tree) dirs(group string) []string {
	return lists.Map(t.hs, func(h *cgroup.Hierarchy) string { return t.dir(h, group) })
}

// TreeMembers returns the processes of the group's whole tree.
func (g *Group) TreeMembers() []int { return g.tree.top().Members() }

// inside reports whether the process is in the tree, in any hierarchy.
func inside(l *cgroup.Layout, pid int, tree string) bool {
	return slices.ContainsFunc(hierarchies(l), func(h *cgroup.Hierarchy) bool {
		return slices.Contains(cgroup.Members([]string{filepath.Join(h.Mount, tree)}), pid)
	})
}

// removeAll removes groups with all groups below them. A group may be busy for a moment after its last process has
// ended.
func removeAll(dirs []string, deadline time.Time) error {
	var errs []error
	for _, dir := range dirs {
		all := cgroup.Below(dir)
		slices.Reverse(all)
		for _, d := range all {
			err := os.Remove(d)
			for wait := time.Millisecond; errors.Is(err, unix.EBUSY) &&
				time.Now().Before(deadline); wait = min(2*wait, 100*time.Millisecond) {
				time.Sleep(wait)
				err = os.Remove(d)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				hint := "run 'tare clean' later"
				if errors.Is(err, fs.ErrPermission) {
					hint = "run 'tare clean' as root, or with CAP_DAC_OVERRIDE"
				}
				errs = append(errs, fault.Wrap(err, fault.Machine, d, hint, "cannot remove the control group"))
			}
		}
	}
	return errors.Join(errs...)
}

// Process is a process that Clean killed or moved.
type Process struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	Tree string `json:"tree"`
}

// Report says what Clean did.
type Report struct {
	Trees  []string  `json:"trees"`  // names of trees that were removed
	Killed []Process `json:"killed"` // processes of dead runs
	// Moved holds the processes that were moved from a tree to the group above it, because they lack the mark of its run
	// or are this process or its ancestors.
	Moved []Process `json:"moved"`
}

// Clean is Owners.Clean for a caller that cleans up nothing else.
func Clean(l *cgroup.Layout) (Report, error) {
	o := NewOwners(l)
	defer o.Close()
	return o.Clean()
}

// Clean removes what runs that have ended left behind: trees whose owner is dead, with their processes, and processes
// outside the trees that are marked as part of such a run. Processes in a tree without the mark were put there by
// another program, and are moved to the group above the tree. This process and its ancestors are moved there too, and
// never killed. Trees with a living owner are left alone, as is everything whose name NewTree cannot have made.
func (o *Owners) Clean() (Report, error) {
	c := cleaning{o: o, report: Report{Trees: []string{}, Killed: []Process{}, Moved: []Process{}}, spared: ancestors(),
		killed: map[int]bool{}, deadline: time.Now().Add(patience)}
	if o.DryRun {
		o.wouldEnd = c.killed
	}
	for {
		n := len(c.killed)
		if err := c.round(); err != nil || len(c.killed) == n {
			return c.report, err
		}
		o.forgetRunning() // killed processes may own trees
	}
}

// cleaning is the state of Clean.
type cleaning struct {
	o        *Owners
	report   Report
	spared   map[int]bool
	killed   map[int]bool
	deadline time.Time
}

// round removes the trees whose owners are dead now, and ends all processes of these runs.
func (c *cleaning) round() error {
	all, err := c.o.trees()
	errs := []error{err} // Join ignores nil
	dead := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(tree string) bool {
		return slices.Contains(c.report.Trees, tree) || !c.o.Ended(tree, "the control groups")
	})
	treeOf := marks(dead)
	for _, tree := range dead {
		if err := c.remove(tree, treeOf); err != nil {
			errs = append(errs, err)
			continue
		}
		c.report.Trees = append(c.report.Trees, tree)
	}
	pids, err := proc.FS{}.PIDs()
	errs = append(errs, err)
	for _, pid := range pids {
		errs = append(errs, c.end(pid, treeOf))
	}
	return errors.Join(errs...)
}

// remove empties a tree whose owner is dead, and removes it.
func (c *cleaning) remove(tree string, treeOf func(pid int) string) error {
	dirs := lists.Map(c.o.hs, func(h *cgroup.Hierarchy) string { return filepath.Join(h.Mount, tree) })
	if c.o.DryRun {
		for _, pid := range cgroup.Members(dirs) {
			if treeOf(pid) != tree || c.spared[pid] {
				c.report.Moved = append(c.report.Moved, Process{PID: pid, Comm: child.Comm(pid), Tree: tree})
			}
		}
		return nil
	}
	err := empty(dirs, c.deadline, func(dirs []string) error {
		for _, pid := range cgroup.Members(dirs) {
			if treeOf(pid) == tree && !c.spared[pid] {
				if err := c.end(pid, treeOf); err != nil {
					return err
				}
			} else if err := canTell(pid); err != nil {
				return err
			} else if err := c.report.move(pid, dirs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return removeAll(dirs, c.deadline)
}

// end kills a process if it is marked as part of a dead run.
func (c *cleaning) end(pid int, treeOf func(pid int) string) error {
	tree := treeOf(pid)
	if tree == "" || c.spared[pid] || !c.o.Ended(tree, child.Named(pid)) {
		return nil
	}
	p := Process{PID: pid, Comm: child.Comm(pid), Tree: tree}
	still := c.o.DryRun
	var err error
	if !c.o.DryRun {
		err = child.Kill(pid, func() bool { still = treeOf(pid) == tree; return still })
	}
	if err == nil && still && !c.killed[pid] {
		c.killed[pid] = true
		c.report.Killed = append(c.report.Killed, p)
	}
	return err
}

// EndMarked ends all processes that are marked as part of a tree, wherever they are, except this process and its
// ancestors, and waits until they have ended. It is for callers that must remove, before Clean, something that such
// processes use.
func (*Owners) EndMarked(tree string) error {
	spared, treeOf := ancestors(), marks([]string{tree})
	marked := func(pid int) bool { return !spared[pid] && treeOf(pid) == tree }
	for deadline := time.Now().Add(patience); ; {
		pids, err := proc.FS{}.PIDs()
		if err != nil {
			return err
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool { return !marked(pid) })
		if len(pids) == 0 {
			return nil
		}
		if err := child.EndAll(pids, marked, time.Until(deadline)); err != nil {
			return err
		}
	}
}

// Watch begins to check whether the processes of a tree stay in its groups, because the counters of the groups do not
// include processes that left. The processes of a tree are the processes that have its mark (child.Mark, or the limit
// of markByLimit), that Start started, or that are in its groups, and the descendants of all these. If apart is true,
// each must be in the group in which it was started, and that group must have counted all its CPU time. Otherwise it
// may be in any group of the tree, because a container runtime moves processes between groups. The caller must close
// the watch.
func (t *Tree) Watch(apart bool) (*containment.Watch, error) {
	paths := map[string]string{} // paths of the groups that processes must not leave, by the groups' directories
	if h, ok := t.layout.CPU(); ok {
		paths[t.dir(h, "")] = t.home("", false).Path
		t.mu.Lock()
		for _, g := range t.groups {
			if apart && !g.inner {
				paths[t.dir(h, g.name)] = g.Path()
			}
		}
		t.mu.Unlock()
	}
	w, err := containment.Begin(t.layout, proc.FS{}, paths,
		func() ([]containment.Member, error) { return t.members(apart) })
	if err != nil {
		return nil, fmt.Errorf("looking at the processes of %s: %w", t.name, err)
	}
	return w, nil
}

// members returns the living processes of the tree, wherever they are, each with the group in which it must be.
func (t *Tree) members(apart bool) ([]containment.Member, error) {
	all, err := proc.FS{}.Processes()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(_ int, p proc.Process) bool { return !p.Alive() || p.Kernel })
	t.mu.Lock()
	defer t.mu.Unlock()
	whole := t.home("", false)
	homes := map[uint64]*containment.Home{} // the homes of groups, by the group's mark
	of := map[int]*containment.Home{}       // the homes of processes, by pid
	first := uint64(math.MaxUint64)
	for _, g := range t.groups {
		if g.inner {
			continue
		}
		home := whole
		if apart {
			home = t.home(g.name, true)
			homes[groupMark(t.name, g.name)] = home
		}
		for _, pid := range g.Members() {
			of[pid] = home
		}
	}
	for pid, s := range t.started {
		first = min(first, s.at)
		if all[pid].Start == s.at {
			of[pid] = cmp.Or(homes[groupMark(t.name, s.group)], whole)
		}
	}
	spared, mark, left := ancestors(), limitMark(t.name), markPatience
	var members []containment.Member
	for _, pid := range slices.Sorted(maps.Keys(all)) {
		p := all[pid]
		if spared[pid] {
			continue
		}
		limit := limitOf(pid)
		home := homes[limit.Cur]
		if limit.Max == mark && home == nil {
			home = whole
		}
		for at, n := pid, 0; home == nil && at > 1 && n <= len(all) && !spared[at]; n++ {
			home, at = of[at], all[at].PPID
		}
		if home == nil && p.Start >= first && markOf(pid, &left) == t.name {
			home = whole
		}
		if home != nil && !t.onTheWay(p) {
			members = append(members, containment.Member{Process: p, Home: home, Entered: t.started[pid].at == p.Start})
			t.known[pid] = p.Start
		}
	}
	return members, nil
}

// onTheWay reports whether a process that Start started has yet to enter its group and become the program.
func (t *Tree) onTheWay(p proc.Process) bool {
	args, err := proc.FS{}.Cmdline(p.PID)
	if err != nil {
		return false
	}
	// Start returns once execve(2) has closed the child's copies of this process's files. On Linux 6.1 the child still
	// has this process's memory then, and its new memory has no arguments at first.
	if t.started[p.PID].at == p.Start && (p.Forked || len(args) == 0) {
		return true
	}
	return len(args) > 1 && args[0] == enterArgs[0] && args[1] == enterArgs[1]
}

// home describes the group in which processes must be; an empty name means the whole tree. If counts is true, the
// group's counter must have all their CPU time.
func (t *Tree) home(group string, counts bool) *containment.Home {
	g := &Group{tree: t, name: group}
	home := &containment.Home{Path: g.Path()}
	if h, ok := t.layout.CPU(); ok && counts {
		home.Dir = t.dir(h, group)
	}
	own := map[*cgroup.Hierarchy]string{} // the group's identity in the hierarchies that measure something
	for _, h := range t.hs {
		if h.V2 || h.Has("cpu") || h.Has("cpuacct") || h.Has("memory") {
			own[h] = h.Identity(strings.TrimPrefix(t.entry(h, group), h.Mount))
		}
	}
	home.Within = func(m cgroup.Membership) bool {
		path, weighs := own[m.Hierarchy]
		return !weighs || cgroup.Within(m.Identity, path)
	}
	return home
}

// Others returns the owners of other runs of tare that have control groups now, in order of pid. For an owner that is
// not visible from here, the result has the pid in the owner's PID namespace, which may be unused here or belong to
// another process.
func Others(l *cgroup.Layout) []int {
	self, err := proc.FS{}.Identify()
	if err != nil {
		return nil
	}
	o := NewOwners(l)
	defer o.Close()
	var pids []int
	for _, h := range o.hs {
		entries, _ := os.ReadDir(h.Mount) // a directory that cannot be read shows no runs
		for _, e := range entries {
			owner, ok := parseTreeName(e.Name())
			if !ok || !e.IsDir() || owner.String() == self.String() {
				continue
			}
			if found := o.find(e.Name(), owner); found.fate != proc.Ended && !slices.Contains(pids, found.pid) {
				pids = append(pids, found.pid)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// move moves a process out of those of the given trees that contain it, into the group above each.
func (r *Report) move(pid int, trees []string) error {
	p := Process{PID: pid, Comm: child.Comm(pid), Tree: filepath.Base(trees[0])}
	meant, err := proc.FS{}.Process(pid)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	moved := false
	for _, dir := range trees {
		if !slices.Contains(cgroup.Members([]string{dir}), pid) {
			continue
		}
		above := filepath.Dir(dir)
		err := cgroup.Write(filepath.Join(above, "cgroup.procs"), strconv.Itoa(pid))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("moving process %d (%s) out of %s: %w", pid, p.Comm, dir, err)
		}
		other, err2 := putBack(pid, meant, above)
		if err2 != nil {
			return err2
		}
		moved = moved || err == nil && !other
	}
	if moved {
		r.Moved = append(r.Moved, p)
	}
	return nil
}

// putBack corrects a move into the group with the given directory, if the wrong process was moved: the kernel moves
// whatever process has the pid, and the pid may have been reused just before the write. A process that has just been
// created belongs in the group of its parent. The result other is true if the process was not the one meant.
func putBack(pid int, meant proc.Process, from string) (other bool, err error) {
	now, err := proc.FS{}.Process(pid)
	if err != nil || now.Start == meant.Start {
		return false, nil //nolint:nilerr // it has ended, or is the one meant
	}
	for _, dir := range cgroup.Below(from) {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // a group that cannot be read has gone
		if dir == from || !slices.Contains(strings.Fields(string(text)), strconv.Itoa(now.PPID)) {
			continue
		}
		err := cgroup.Write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return true, fmt.Errorf("putting %s back into %s: %w", child.Named(pid), dir, err)
		}
	}
	return true, nil
}

// markOf reads the mark of a process, from its environment or else from an open file, and returns the name of the tree
// that it names. It returns "" if the process has no mark, or if its mark cannot be read. For a process in execve it
// waits no longer than patience, from which it subtracts the time waited.
func markOf(pid int, patience *time.Duration) string {
	if tree, has, _ := (proc.FS{}).Getenv(pid, child.Mark, patience); has {
		return tree
	}
	for fd := firstMarkFD; fd <= lastMarkFD; fd++ {
		if tree := markOfFD(pid, fd); tree != "" {
			return tree
		}
	}
	return ""
}

// canTell returns an error if this process is not permitted to read to which run another process belongs.
func canTell(pid int) error {
	_, _, err := proc.FS{}.Getenv(pid, child.Mark, new(time.Duration))
	if !errors.Is(err, fs.ErrPermission) {
		return nil // the environment can be read, or the process has ended
	}
	return fault.Wrap(err, fault.Machine, child.Named(pid), "run 'tare clean' as root, or with CAP_SYS_PTRACE",
		"it is in a control group left by a run that has ended, and cannot be inspected")
}

// marks returns a function that does what markOf does, and also recognizes processes of the given trees by their limit
// of file locks alone. All its calls together wait no longer than markPatience.
func marks(trees []string) func(pid int) string {
	byLimit := lists.Keyed(trees, func(tree string) (uint64, string) { return limitMark(tree), tree })
	left := markPatience
	return func(pid int) string {
		tree := markOf(pid, &left)
		if tree == "" && len(byLimit) > 0 {
			tree = byLimit[limitOf(pid).Max]
		}
		return tree
	}
}

// ancestors returns this process and its ancestors: 'tare clean' may well be run from a shell in a dead run.
func ancestors() map[int]bool {
	all := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !all[pid]; {
		all[pid] = true
		p, err := proc.FS{}.Process(pid)
		if err != nil {
			break
		}
		pid = p.PPID
	}
	return all
}
