// Package placement makes control groups for experiments, starts processes inside them, and removes everything
// afterwards. The names of groups identify their owner, so that the groups of a killed run can be recognized and
// removed; nothing else on the machine is ever touched.
//
// A tree of groups is a directory tare-<id>-p<owner's pid>-t<owner's start time> at the top of every hierarchy that
// Tare uses. A pid can be reused, but a pid with its start time cannot. A pid has a meaning only in its PID namespace,
// while the groups of a run may be visible in others. In a container, the part of the name for the owner therefore
// begins with the PID namespace (tare-<id>-n<inode number>-p...). Every owner holds a lock on the directory, which the
// kernel releases when the owner ends. See Owners.
package placement

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

var (
	validID   = text.LazyRegexp(`^[a-z0-9][a-z0-9-]{0,63}$`)
	treeName  = text.LazyRegexp(`^tare-[a-z0-9][a-z0-9-]{0,63}?(?:-n([0-9]{10}))?-p([0-9]{1,10})-t([0-9]{1,20})$`)
	groupName = text.LazyRegexp(`^[a-z0-9][a-z0-9_-]{0,63}(/[a-z0-9][a-z0-9_-]{0,63}){0,7}$`)
)

// parseTreeName reads the owner from the name of a tree; it returns false for every other name.
func parseTreeName(name string) (proc.Identity, bool) {
	m := treeName().FindStringSubmatch(name)
	if m == nil {
		return proc.Identity{}, false
	}
	namespace, _ := strconv.ParseUint(m[1], 10, 64) // 0 if there is none
	pid, err1 := strconv.Atoi(m[2])
	start, err2 := strconv.ParseUint(m[3], 10, 64)
	return proc.Identity{PID: pid, Start: start, Namespace: namespace}, err1 == nil && err2 == nil && pid > 0
}

// OwnerOf returns the pid, in its PID namespace, of the owner of the tree with the given name; false if no tree has
// such a name.
func OwnerOf(tree string) (pid int, ok bool) {
	id, ok := parseTreeName(tree)
	return id.PID, ok
}

// treeNameOf returns the name of a tree with the given id whose owner is self; false if the id cannot be part of such a
// name.
func treeNameOf(id string, self proc.Identity) (string, bool) {
	name := "tare-" + id + "-" + self.String()
	owner, ok := parseTreeName(name)
	return name, ok && owner.String() == self.String() // an id may end like the name of a namespace
}

// controllers are the controllers that Tare uses. Others (cpuset, devices, freezer) stay unchanged.
var controllers = []string{"cpu", "cpuacct", "memory", "pids"}

// hierarchies returns the hierarchies in which Tare makes groups: v2 if it is mounted, and the v1 hierarchies with a
// controller that Tare uses.
func hierarchies(l *cgroup.Layout) []*cgroup.Hierarchy {
	var hs []*cgroup.Hierarchy
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if h.V2 || slices.ContainsFunc(controllers, h.Has) {
			hs = append(hs, h)
		}
	}
	return hs
}

// Limits bounds the use of a group. 0 means no limit.
type Limits struct {
	CPUs        float64 // enforced as a quota of CPU time for every 100 ms
	MemoryBytes uint64
	// Weight is the group's share if CPU time is short, relative to groups of weight 1, which is the kernel's default,
	// and to single processes of the root group.
	Weight float64
	// Pin selects the only CPU for processes that are started in the group: the Pin-th of the allowed CPUs, counted from 1
	// and wrapping around if there are fewer.
	Pin int
}

// Tree is a tree of control groups, and owns the processes in it. Its methods may be used concurrently.
type Tree struct {
	layout *cgroup.Layout
	name   string
	hs     []*cgroup.Hierarchy
	flat   bool // see NewFlatTree
	start  chan startRequest
	exited chan struct{} // closed when the starting thread has ended
	locks  []*os.File    // the tree's directories, locked

	mu      sync.Mutex
	groups  map[string]*Group
	missing []string
	started map[int]starting // processes that Start started, by pid
	known   map[int]uint64   // start times (proc.Process.Start) of other processes of the tree that were seen, by pid
	closed  bool
}

// starting holds when a process was started (proc.Process.Start), and in which group.
type starting struct {
	at    uint64
	group string
}

// Group is one control group of a Tree: a directory in each hierarchy.
type Group struct {
	tree *Tree
	name string // path inside the tree

	// Guarded by tree.mu.
	inner bool // contains other groups
	used  bool // processes were started in it
	pin   int  // see Limits
}

// NewTree makes a tree of groups that this process owns. It starts a thread, from which all processes in the tree are
// started. The caller must close the tree, which ends them and removes the groups.
//
// An error has the code fault.Usage for an invalid id (lower-case letters, digits and hyphens), and fault.Machine for
// a machine on which no groups can be made.
func NewTree(l *cgroup.Layout, id string) (*Tree, error) { return plant(l, id, false) }

// NewFlatTree is NewTree, except that the kernel's scheduler sees all groups of the tree as one and divides the CPU
// among their tasks. CPU time, memory and processes are still counted and limited by group. On v1 a group with a limit
// of CPU time, or a weight, is separate for the scheduler too, and if cpu and cpuacct are one hierarchy, all groups
// are. On v2 no group of a flat tree can have such a limit.
//
// It is for work that forks constantly. With Linux 6.18, a group with many short tasks can keep other groups' tasks
// that sleep and wake, such as a tracer's, from the CPU for a second and more, whatever the weights. Among tasks of one
// group the scheduler is fair.
func NewFlatTree(l *cgroup.Layout, id string) (*Tree, error) { return plant(l, id, true) }

func plant(l *cgroup.Layout, id string, flat bool) (*Tree, error) {
	if !validID().MatchString(id) {
		return nil, fault.New(fault.Usage, id, "use lower-case letters, digits and hyphens, at most 64",
			"not a valid name for control groups")
	}
	self, err := proc.FS{}.Identify()
	if err != nil {
		return nil, err
	}
	name, ok := treeNameOf(id, self)
	if !ok {
		return nil, fault.New(fault.Usage, id, "use another", "the name could be mistaken for that of a PID namespace")
	}
	t := &Tree{
		layout: l, hs: hierarchies(l), flat: flat, groups: map[string]*Group{}, name: name,
		started: map[int]starting{}, known: map[int]uint64{}, start: make(chan startRequest), exited: make(chan struct{}),
	}
	if len(t.hs) == 0 {
		return nil, fault.New(fault.Machine, "", cgroup.Mount,
			"no control groups are mounted on this machine")
	}
	for i, h := range t.hs {
		if err := t.plantIn(t.dir(h, "")); err != nil {
			for _, made := range t.hs[:i] {
				_ = os.Remove(t.dir(made, "")) // it is empty; Clean finds one that stays
			}
			t.release()
			return nil, err
		}
	}
	t.missing = t.lacks()
	go t.serveStarts()
	if err := t.delegate(""); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// plantIn makes the tree's directory in a hierarchy and locks it.
func (t *Tree) plantIn(dir string) error {
	for {
		if err := os.Mkdir(dir, 0o700); err != nil { // no other user may lock it
			return cannotMake(err, dir)
		}
		lock, err := hold(dir)
		if err == nil {
			t.locks = append(t.locks, lock)
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // else another process's cleanup removed it before it was locked
			return errors.Join(cannotMake(err, dir), os.Remove(dir))
		}
	}
}

func (t *Tree) release() {
	for _, d := range t.locks {
		_ = d.Close() // nothing was written
	}
	t.locks = nil
}

// cannotMake explains why a group could not be made.
func cannotMake(err error, dir string) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fault.Wrap(err, fault.Machine, dir, "mount the control groups for writing, or run outside the container",
			"control groups are mounted read-only")
	case errors.Is(err, fs.ErrPermission):
		return fault.Wrap(err, fault.Machine, dir, "run as root, or with CAP_DAC_OVERRIDE",
			"no permission to make control groups")
	case errors.Is(err, fs.ErrExist):
		return fault.Wrap(err, fault.Usage, dir, "use another name", "the control group exists already")
	}
	return fault.Wrap(err, fault.Machine, dir, "see 'tare doctor'", "cannot make a control group")
}

// dir returns the directory of a group in a hierarchy; "" is the tree itself. The tree is at the top of the mount: in
// a cgroup namespace that is the root of the namespace.
func (t *Tree) dir(h *cgroup.Hierarchy, group string) string {
	return filepath.Join(h.Mount, t.name, group)
}

// Name returns the name of the tree's directory, which is the value of child.Mark in its processes.
func (t *Tree) Name() string { return t.name }

// Path returns the identity of the tree's top group, as in cgroup.Resolver and cgroup.Reader.
func (t *Tree) Path() string { return t.top().Path() }

// Limit bounds all groups of the tree together. Pin applies to single groups only. A limit that this machine cannot
// set is an error with the code fault.Machine.
func (t *Tree) Limit(l Limits) error { return t.top().limit(l) }

// LimitCPUs bounds the CPU time of the group from now on, in CPUs; 0 leaves the limit unchanged.
func (g *Group) LimitCPUs(cpus float64) error { return g.limit(Limits{CPUs: cpus}) }

func (t *Tree) top() *Group { return &Group{tree: t} }

// Own returns the names of the trees that this process owns.
func Own(l *cgroup.Layout) []string {
	self, err := proc.FS{}.Identify()
	if err != nil {
		return nil
	}
	var names []string
	for _, h := range hierarchies(l) {
		entries, _ := os.ReadDir(h.Mount) // this process cannot have made trees in a directory that it cannot read
		for _, e := range entries {
			if o, ok := parseTreeName(e.Name()); ok && o.String() == self.String() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names
}

// Missing describes what cannot be limited or counted in the groups of this tree, with hints. Tare changes only groups
// that it has made, and does not enable controllers in the root of v2.
func (t *Tree) Missing() []string { return t.missing }

func (t *Tree) lacks() []string {
	var missing []string
	for _, c := range []string{"cpu", "memory"} {
		h, ok := t.layout.Controller(c)
		switch {
		case !ok:
			missing = append(missing, fmt.Sprintf("no hierarchy has the controller %s: enable it at boot (remove "+
				"cgroup_disable=%s)", c, c))
		case h.V2 && !slices.Contains(enabled(h.Mount), c):
			missing = append(missing, fmt.Sprintf("the controller %s is not enabled for groups below the root: echo +%s > "+
				"%s/cgroup.subtree_control", c, c, h.Mount))
		}
	}
	return missing
}

// enabled returns the controllers that a v2 group enables for its children, or none if that cannot be read.
func enabled(dir string) []string {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	return strings.Fields(string(b))
}

// delegate enables controllers for the children of a v2 group of the tree: those of Tare's controllers that the group
// itself has, except cpu in a flat tree.
func (t *Tree) delegate(group string) error {
	for _, h := range t.hs {
		if !h.V2 {
			continue
		}
		dir := t.dir(h, group)
		for _, c := range enabled(filepath.Dir(dir)) {
			if !slices.Contains(controllers, c) || t.flat && c == "cpu" {
				continue
			}
			if err := cgroup.Write(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
				return fmt.Errorf("enabling the controller %s in %s: %w", c, dir, err)
			}
		}
	}
	return nil
}

// Group makes a group, and its parents ("work" for "work/client"). Limits of a group apply to its contents together.
// Processes can be started only in groups that contain no groups, which is the rule of v2, kept on v1 as well. A limit
// that this machine cannot set is an error with the code fault.Machine.
func (t *Tree) Group(name string, limits Limits) (*Group, error) {
	if !groupName().MatchString(name) {
		return nil, fault.New(fault.Usage, name,
			"use lower-case letters, digits, hyphens and underscores, with / between levels",
			"not a valid name for a control group")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("making control group %s: the tree is closed", name)
	}
	if t.groups[name] != nil {
		return nil, fault.New(fault.Usage, name, "use another name",
			"a control group of that name exists already in this tree")
	}
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if g := t.groups[above]; g != nil && g.used {
			return nil, fault.New(fault.Usage, name, "put processes and groups into different groups",
				"the parent group has processes in it")
		}
	}
	if above := path.Dir(name); above != "." {
		if err := t.inner(above); err != nil {
			return nil, err
		}
	}
	g, err := t.make(name, limits.CPUs > 0 || limits.Weight > 0)
	if err != nil {
		return nil, err
	}
	g.pin = limits.Pin
	return g, g.limit(limits)
}

// inner makes the group if it does not exist, and prepares it for containing groups.
func (t *Tree) inner(name string) error {
	g := t.groups[name]
	if g == nil {
		if above := path.Dir(name); above != "." {
			if err := t.inner(above); err != nil {
				return err
			}
		}
		var err error
		if g, err = t.make(name, false); err != nil {
			return err
		}
	}
	if g.inner {
		return nil
	}
	g.inner = true
	return t.delegate(name)
}

// schedules reports whether a hierarchy is of v1 and is for the scheduler alone.
func schedules(h *cgroup.Hierarchy) bool {
	return !h.V2 && h.Has("cpu") && !slices.ContainsFunc(controllers,
		func(c string) bool { return c != "cpu" && h.Has(c) })
}

// entry returns the directory that processes of a group enter in a hierarchy.
func (t *Tree) entry(h *cgroup.Hierarchy, group string) string {
	dir := t.dir(h, group)
	if _, err := os.Lstat(dir); err != nil && t.flat && schedules(h) {
		return t.dir(h, "")
	}
	return dir
}

// make makes a group. apart is true if the scheduler must treat the group as separate, even in a flat tree.
func (t *Tree) make(name string, apart bool) (*Group, error) {
	for _, h := range t.hs {
		if t.flat && schedules(h) {
			if !apart {
				continue
			}
			if err := os.MkdirAll(path.Dir(t.dir(h, name)), 0o755); err != nil {
				return nil, cannotMake(err, t.dir(h, name))
			}
		}
		if err := os.Mkdir(t.dir(h, name), 0o755); err != nil {
			return nil, cannotMake(err, t.dir(h, name))
		}
	}
	g := &Group{tree: t, name: name}
	t.groups[name] = g
	return g, nil
}

// quotaPeriod is the period of CPU quotas in microseconds: the kernel's default.
const quotaPeriod = 100_000

func (g *Group) limit(l Limits) error {
	if l.CPUs < 0 || l.CPUs > 0 && l.CPUs < 0.01 {
		// The kernel's smallest quota is 1 ms.
		return fault.New(fault.Usage, g.name, "use at least 0.01", "%g CPUs is not a valid limit", l.CPUs)
	}
	if l.CPUs > 0 {
		quota := strconv.Itoa(int(math.Round(l.CPUs * quotaPeriod)))
		err := g.set("cpu", "cpu.max", quota+" "+strconv.Itoa(quotaPeriod),
			"cpu.cfs_period_us", strconv.Itoa(quotaPeriod), "cpu.cfs_quota_us", quota)
		if above, most, ok := g.limitAbove(); errors.Is(err, unix.EINVAL) && ok && l.CPUs > most {
			return fault.Wrap(err, fault.Machine, g.name, "use a lower limit, or raise that of the group above",
				"a limit of %g CPUs is above the %g CPUs of %s, which cgroup v1 refuses", l.CPUs, most, above)
		}
		if err != nil {
			return err
		}
	}
	if l.Weight > 0 {
		err := g.set("cpu", "cpu.weight", strconv.Itoa(max(1, int(100*l.Weight))), "cpu.shares",
			strconv.Itoa(max(2, int(1024*l.Weight))))
		if err != nil {
			return err
		}
	}
	if l.MemoryBytes > 0 {
		bytes := strconv.FormatUint(l.MemoryBytes, 10)
		return g.set("memory", "memory.max", bytes, "memory.limit_in_bytes", bytes)
	}
	return nil
}

// limitAbove returns the lowest CPU limit of the groups above this one, on v1, and the group that has it. cgroup v1
// refuses a higher limit for groups below that group (tg_cfs_schedulable_down in kernel/sched/core.c). With v2 the
// lowest limit applies.
func (g *Group) limitAbove() (group string, cpus float64, ok bool) {
	h, has := g.tree.layout.Controller("cpu")
	if !has || h.V2 {
		return "", 0, false
	}
	number := func(dir, file string) float64 {
		text, err := os.ReadFile(filepath.Join(dir, file))
		n, perr := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil || perr != nil {
			return -1 // the root has no limit
		}
		return n
	}
	for dir := g.tree.dir(h, g.name); dir != h.Mount && dir != "/"; {
		dir = path.Dir(dir)
		quota, period := number(dir, "cpu.cfs_quota_us"), number(dir, "cpu.cfs_period_us")
		if quota <= 0 || period <= 0 || ok && quota/period >= cpus {
			continue
		}
		group, cpus, ok = strings.TrimPrefix(strings.TrimPrefix(dir, h.Mount), "/"), quota/period, true
		if group == "" {
			group = "the group that this machine's control groups are mounted from"
		}
	}
	return group, cpus, ok
}

// set writes a value to a file of v2, or values to files of v1, depending on which has the controller.
func (g *Group) set(controller, file2, value2 string, v1 ...string) error {
	h, ok := g.tree.layout.Controller(controller)
	if !ok {
		return fault.New(fault.Machine, g.name, "leave the limit out, or enable the controller at boot",
			"the limit needs the controller %s, which no hierarchy has", controller)
	}
	files := v1
	if h.V2 {
		files = []string{file2, value2}
	}
	dir := g.tree.dir(h, g.name)
	for i := 0; i < len(files); i += 2 {
		err := cgroup.Write(filepath.Join(dir, files[i]), files[i+1])
		if errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(err, fault.Machine, g.name, strings.Join(g.tree.missing, "; "), "cannot set the limit")
		}
		if err != nil {
			return fault.Wrap(err, fault.Machine, dir, "", "writing %s to %s", files[i+1], files[i])
		}
	}
	return nil
}

// Path returns the group's identity, as in cgroup.Resolver and cgroup.Reader.
func (g *Group) Path() string {
	h, ok := g.tree.layout.CPU()
	if !ok {
		h = g.tree.hs[0]
	}
	return h.Identity("/" + path.Join(g.tree.name, g.name))
}

// TreeName returns the name of the group's tree.
func (g *Group) TreeName() string { return g.tree.name }

// V2Dir returns the group's directory in the v2 hierarchy, to which eBPF programs are attached, or "" without v2.
func (g *Group) V2Dir() string {
	h, ok := g.tree.layout.V2()
	if !ok {
		return ""
	}
	return g.tree.dir(h, g.name)
}
