package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/containment"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
)

// Kind is the kind of a target: something that was running before Tare observed it.
type Kind string

// The kinds of targets.
const (
	ByPID       Kind = "pid"       // a process, with all that it has started
	ByCgroup    Kind = "cgroup"    // a control group, by its path below the root of its hierarchy
	ByUnit      Kind = "unit"      // a systemd unit
	ByContainer Kind = "container" // a container, by its id or a prefix of it
)

// kinds holds the kinds in the order of the documentation.
var kinds = []string{string(ByPID), string(ByCgroup), string(ByUnit), string(ByContainer)}

// Target names something that is already running: pid:1234, cgroup:/system.slice/nginx.service, unit:nginx.service or
// container:0123456789ab. It is observed, and never started, moved or stopped.
type Target struct {
	Kind Kind
	Name string // in canonical form
}

func (t Target) String() string { return string(t.Kind) + ":" + t.Name }

var (
	containerID = text.LazyRegexp(`^[0-9a-f]{8,64}$`)
	unitName    = text.LazyRegexp(`^[A-Za-z0-9:_.\\@-]{1,255}$`)
)

// unitSuffixes are the suffixes of units that have control groups (systemd.unit(5)).
var unitSuffixes = []string{".service", ".scope", ".slice", ".socket", ".mount", ".swap"}

// ParseTarget reads a Target. Its error has the code fault.Usage.
func ParseTarget(raw string) (Target, error) {
	kind, name, ok := strings.Cut(strings.TrimLeftFunc(raw, unicode.IsSpace), ":")
	if Kind(kind) != ByCgroup { // the name of a group may end with a space
		name = strings.TrimSpace(name)
	}
	wrong := func(hint, format string, args ...any) (Target, error) {
		return Target{}, fault.New(fault.Usage, text.ClipTo(raw, 80), hint, format, args...)
	}
	if !ok || !slices.Contains(kinds, kind) {
		return wrong("write pid:1234, cgroup:/system.slice/nginx.service, unit:nginx.service or container:ID",
			"not a process, control group, unit or container%s", text.DidYouMean(kind, kinds))
	}
	switch Kind(kind) {
	case ByPID:
		n, err := strconv.ParseInt(name, 10, 32)
		if err != nil || n < 1 {
			return wrong("write the number of a process, such as pid:1234", "not a process")
		}
		name = strconv.FormatInt(n, 10)
	case ByCgroup:
		if !strings.HasPrefix(name, "/") || slices.Contains(strings.Split(name, "/"), "..") || strings.ContainsRune(name, 0) {
			return wrong("write its path as /proc/PID/cgroup has it, such as cgroup:/system.slice/nginx.service",
				"not the path of a control group")
		}
		name = path.Clean(name)
	case ByUnit:
		whole := name
		if !slices.ContainsFunc(unitSuffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			whole += ".service"
		}
		if !unitName().MatchString(whole) || strings.Trim(name, ".") == "" {
			return wrong("write the unit as systemctl shows it, such as unit:nginx.service", "not a systemd unit")
		}
		name = whole
	case ByContainer:
		if name = strings.ToLower(name); !containerID().MatchString(name) {
			return wrong("write its id, of which 8 digits will do: docker inspect -f '{{.Id}}' NAME, or crictl ps",
				"not the id of a container")
		}
	}
	return Target{Kind(kind), name}, nil
}

// Finder finds the control group or process that a Target names.
type Finder struct {
	Layout *cgroup.Layout
	Proc   proc.FS
	Self   int // pid of the Tare process, which is never observed; 0: this process
}

// Existing is the control group that a Target names, or the process with its descendants. A caller of Watch must close
// it.
type Existing struct {
	Target Target
	// Path is the identity of its control group, as in package cgroup. It is empty for a process that shares its group
	// with others: then its use is known only from its processes.
	Path string
	Dir  string // the group's directory in the hierarchy that counts CPU time; empty if Path is
	PIDs []int  // the pids of its processes, in ascending order

	cpu   *cgroup.Hierarchy // the hierarchy that counts CPU time; nil: there is none, and the target is a process
	pid   int               // the process's pid, if the target is a process
	start uint64            // when that process began (proc.Process.Start)
	// inode is the inode number of Dir when Watch was called; 0 before. A group that was removed and made again has
	// another number.
	inode  uint64
	finder Finder
	watch  *containment.Watch // nil before Watch
	spared []int              // set by members: the branch of the target's processes that contains this process
}

// Find finds the control group or process that a target names. The error has the code fault.Usage if there is none, if
// there are several, or if Tare itself is part of the target. It has the code fault.Machine if this machine has no
// control groups.
func (f Finder) Find(t Target) (*Existing, error) {
	if f.Self == 0 {
		f.Self = os.Getpid()
	}
	cpu, ok := f.Layout.CPU()
	if !ok && t.Kind != ByPID {
		return nil, fault.New(fault.Machine, t.String(), cgroup.Mount,
			"this machine has no control groups mounted")
	}
	e := &Existing{Target: t, finder: f, cpu: cpu}
	var err error
	switch t.Kind {
	case ByPID:
		err = e.findProcess()
	case ByCgroup:
		err = e.findGroup(t.Name)
	case ByUnit:
		err = e.search(func(name string) bool { return name == t.Name },
			"see systemctl status "+t.Name+"; a unit that is not active has no control group")
	case ByContainer:
		err = e.search(func(name string) bool { return isContainer(name, t.Name) },
			"see docker ps --no-trunc, or crictl ps; one that has ended has no control group")
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Existing) wrong(hint, format string, args ...any) error {
	return fault.New(fault.Usage, e.Target.String(), hint, format, args...)
}

// findProcess finds a process with its descendants.
func (e *Existing) findProcess() error {
	f := e.finder
	pid, err := strconv.Atoi(e.Target.Name)
	if err != nil {
		return e.wrong("write the number of a process, such as pid:1234", "not a process")
	}
	p, err := f.Proc.Process(pid)
	switch {
	case errors.Is(err, proc.ErrGone):
		return e.wrong("see ps -e", "there is no such process")
	case err != nil:
		return err
	case !p.Alive():
		return e.wrong("see ps -e", "the process %s has ended", text.Plain(p.Comm))
	case p.Kernel:
		return e.wrong("kernel threads have lines of their own in every ledger", "%s is a thread of the kernel",
			text.Plain(p.Comm))
	}
	if leader := f.Proc.Leader(pid); leader != 0 && leader != pid {
		return e.wrong("write pid:"+strconv.Itoa(leader), "it is a thread of the process %d", leader)
	}
	e.pid, e.start = pid, p.Start
	if e.PIDs = alive(f.Proc, WithDescendants(f.Proc, []int{pid})); slices.Contains(e.PIDs, f.Self) {
		return e.wrong("name one of its children, or start tare elsewhere", "tare itself is a child of %s",
			text.Plain(p.Comm))
	}
	return e.shareGroup(pid)
}

// shareGroup sets the target's group to the control group of a process, if all members of that group belong to the
// target.
func (e *Existing) shareGroup(pid int) error {
	f := e.finder
	if e.cpu == nil {
		return nil
	}
	identity, err := f.Layout.PathOf(pid)
	if errors.Is(err, proc.ErrGone) {
		return e.wrong("see ps -e", "the process has just ended")
	}
	if err != nil {
		return err
	}
	dir, ok := e.cpu.Dir(identity)
	if !ok || identity == "/" {
		return nil
	}
	for _, member := range cgroup.Members([]string{dir}) {
		if !slices.Contains(e.PIDs, member) {
			return nil
		}
	}
	e.Path, e.Dir = identity, dir
	return nil
}

// findGroup sets the target's group to the one with the given identity.
func (e *Existing) findGroup(identity string) error {
	f, h := e.finder, e.cpu
	dir, ok := h.Dir(identity)
	if ok {
		info, err := os.Stat(dir)
		ok = err == nil && info.IsDir()
	}
	if !ok {
		return e.wrong("see systemd-cgls, or ls "+h.Mount, "there is no control group %s in the hierarchy at %s",
			text.ClipTo(identity, 200), h.Mount)
	}
	own, err := f.Layout.PathOf(f.Self)
	if err != nil {
		return err
	}
	if identity == h.Root || cgroup.Within(own, identity) {
		return e.wrong("name a group that tare is not in, or start tare elsewhere", "tare itself runs in it")
	}
	e.Path, e.Dir, e.PIDs = identity, dir, cgroup.Members([]string{dir})
	return nil
}

// isContainer reports whether a control group with the given name belongs to the container with the given id, which may
// be a prefix of the whole id. It knows the names that package sandbox knows, and the names that engines make of a
// shortened id. A container's monitor, such as crio-conmon-ID.scope, is not part of the container.
func isContainer(name, id string) bool {
	if whole := sandbox.ContainerOf(name); whole != "" {
		return strings.HasPrefix(whole, id)
	}
	if strings.Contains(name, "conmon-") {
		return false
	}
	rest := strings.TrimSuffix(name, ".scope")
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		rest = rest[i+1:]
	}
	return strings.HasPrefix(rest, id) && containerID().MatchString(rest)
}

// maxGroups bounds the number of groups that the function find examines.
const maxGroups = 1 << 20

// search sets the target's group to the topmost group whose name fits. There must be exactly one.
func (e *Existing) search(fits func(name string) bool, hint string) error {
	found := find(e.cpu.Mount, fits)
	switch len(found) {
	case 0:
		if elsewhere := e.elsewhere(fits); elsewhere != "" {
			return fault.New(fault.Machine, e.Target.String(), "enable accounting for it (CPUAccounting=yes), or name its "+
				"process as pid:NUMBER", "its control group %s is in no hierarchy that counts CPU time", elsewhere)
		}
		return e.wrong(hint, "no control group has that name")
	case 1:
		return e.findGroup(e.cpu.Identity(found[0]))
	}
	const most = 4
	shown := found[:min(len(found), most)]
	return e.wrong("name one of them as cgroup:PATH", "%d control groups have that name: %s", len(found),
		strings.Join(shown, ", "))
}

// elsewhere looks in the hierarchies that do not count CPU time, such as systemd's own in v1, for a group whose name
// fits. It returns the group's path, or "" if there is none.
func (e *Existing) elsewhere(fits func(string) bool) string {
	for i := range e.finder.Layout.Hierarchies {
		h := &e.finder.Layout.Hierarchies[i]
		if h.Mount == e.cpu.Mount {
			continue
		}
		if found := find(h.Mount, fits); len(found) > 0 {
			return h.Identity(found[0])
		}
	}
	return ""
}

// find lists the groups below a mount whose names fit, in order, each with a leading slash. It does not descend into
// groups that fit.
func find(mount string, fits func(name string) bool) []string {
	var found []string
	seen := 0
	_ = filepath.WalkDir(mount, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || p == mount {
			return nil // unreadable directories have probably gone
		}
		if seen++; seen > maxGroups {
			return fs.SkipAll
		}
		if fits(d.Name()) {
			found = append(found, strings.TrimPrefix(p, mount))
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// alive returns the processes that can still run.
func alive(f proc.FS, pids []int) []int {
	return slices.DeleteFunc(pids, func(pid int) bool {
		p, err := f.Process(pid)
		return err != nil || !p.Alive()
	})
}

// Refresh reads the processes again. Its error has code fault.Invalid if the target is gone: the process has ended,
// even if its pid was reused, or the control group was removed, is empty, or was recreated since Watch, as happens
// when a unit or a container restarts.
func (e *Existing) Refresh() error {
	f := e.finder
	if e.Target.Kind == ByPID {
		p, err := f.Proc.Process(e.pid)
		if err != nil && !errors.Is(err, proc.ErrGone) {
			return err
		}
		if err != nil || p.Start != e.start || !p.Alive() {
			return e.ended("the process has ended")
		}
		e.PIDs = alive(f.Proc, WithDescendants(f.Proc, []int{e.pid}))
		return nil
	}
	inode, err := inodeOf(e.Dir)
	switch {
	case err != nil:
		return e.ended("its control group was removed")
	case e.inode != 0 && inode != e.inode:
		return e.ended("it was started again: its control group was removed and made again, and has counted anew since,")
	}
	if e.PIDs = cgroup.Members([]string{e.Dir}); len(e.PIDs) == 0 {
		return e.ended("no process is left in it")
	}
	return nil
}

// inodeOf returns the inode number of a directory. On 64-bit machines no other control group gets the same number
// while the hierarchy is mounted, because kernfs counts up (__kernfs_new_node in fs/kernfs/dir.c).
func inodeOf(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

const maxAncestors = 1000 // ancestors of this process that are examined

// Watch begins to check that processes that the target starts stay in its control group, and that the group is not
// removed. It does nothing for a process without a separate group. Close ends it.
func (e *Existing) Watch() (err error) {
	if e.Path == "" {
		return nil
	}
	if e.inode, err = inodeOf(e.Dir); err != nil {
		return e.ended("its control group was removed")
	}
	paths := map[string]string{e.Dir: e.Path}
	if slices.Contains(e.PIDs, 1) {
		paths = nil // PID 1 starts services, whose processes move to groups of their own
	}
	e.watch, err = containment.Begin(e.finder.Layout, e.finder.Proc, paths, e.members)
	return err
}

// Close ends the watch, if any. The Existing may be nil.
func (e *Existing) Close() error {
	if e == nil {
		return nil
	}
	return e.watch.Close()
}

// Unseen says why some processes that left the target's control group between the edges of the window, and ended
// elsewhere, may be unknown. It is empty if all are known, or if the target has no separate group.
func (e *Existing) Unseen() string {
	if e.watch == nil {
		return ""
	}
	if slices.Contains(e.PIDs, 1) {
		return containment.MayBeMissing(e.Target.String(),
			"it holds PID 1, and processes that PID 1 starts move to other groups")
	}
	if err := e.watch.Unseen(); err != nil {
		return containment.MayBeMissing(e.Target.String(), err.Error())
	}
	return ""
}

// Strays describes processes that the target started and that were in other control groups at any time since Watch, so
// the target's counters lack what they use. It is empty if there are none.
func (e *Existing) Strays() (string, error) {
	if e.Path == "" || e.watch == nil {
		return "", nil
	}
	strays, err := e.watch.End()
	strays = slices.DeleteFunc(strays, func(s containment.Stray) bool { return slices.Contains(e.spared, s.PID) })
	if err != nil || len(strays) == 0 {
		return "", err
	}
	return containment.Describe(strays, "what "+e.Target.String()+" has started") +
		": what it uses is not known; observe a group that holds both", nil
}

// invocationID is the variable by which systemd marks the processes of one start of a unit (systemd.exec(5)).
const invocationID = "INVOCATION_ID"

// invocationPatience limits the total wait for the variables of processes that are in execve.
const invocationPatience = time.Second

// members returns the processes of the target's group and their descendants. Whatever their present parents, it adds
// processes in a session that a process of the group leads, processes of the same start of a systemd unit, and those
// that were members when Watch began, with the descendants of all these. If a process of the group is an ancestor of
// this process, as an observed SSH server may be, members leaves out the child through which it is the ancestor, with
// all that this child has started.
func (e *Existing) members() ([]containment.Member, error) {
	f := e.finder
	all, err := f.Proc.Processes()
	if err != nil {
		return nil, err
	}
	e.spared = nil
	for pid, n := f.Self, 0; pid > 1 && n < maxAncestors; n++ {
		p, there := all[pid]
		if !there {
			break
		}
		if slices.Contains(e.PIDs, p.PPID) {
			e.spared = descendants(all, []int{pid})
			break
		}
		pid = p.PPID
	}
	own := cgroup.Members([]string{e.Dir})
	invocation, patience := "", invocationPatience
	if len(own) > 0 {
		invocation, _, _ = f.Proc.Getenv(own[0], invocationID, &patience)
	}
	for _, pid := range slices.Sorted(maps.Keys(all)) {
		p := all[pid]
		if p.Kernel {
			continue
		}
		known := slices.Contains(own, p.Session) || e.watch.Knows(p)
		if !known && invocation != "" {
			of, _, _ := f.Proc.Getenv(pid, invocationID, &patience)
			known = of == invocation
		}
		if known {
			own = append(own, pid)
		}
	}
	// PID 1 is the parent of services, which have separate groups, so its descendants are left out.
	first := slices.Contains(own, 1)
	own = descendants(all, slices.DeleteFunc(own, func(pid int) bool { return pid == 1 }))
	if first {
		own = append(own, 1)
	}
	home, within := &containment.Home{Path: e.Path, Dir: e.Dir}, e.counting()
	home.Within = func(m cgroup.Membership) bool {
		return !slices.Contains(within, m.Hierarchy) || cgroup.Within(m.Identity, e.Path)
	}
	var members []containment.Member
	for _, pid := range own {
		p, there := all[pid]
		if there && p.Alive() && !p.Kernel && !slices.Contains(e.spared, pid) {
			members = append(members, containment.Member{Process: p, Home: home})
		}
	}
	return members, nil
}

// counting returns the hierarchies that count CPU time and memory, and v2, if the target's group has the same path
// there.
func (e *Existing) counting() (all []*cgroup.Hierarchy) {
	l := e.finder.Layout
	memory, _ := l.Controller("memory")
	v2, _ := l.V2()
	for _, h := range []*cgroup.Hierarchy{e.cpu, memory, v2} {
		if h == nil {
			continue
		}
		if dir, ok := h.Dir(e.Path); ok {
			if _, err := os.Stat(dir); err == nil {
				all = append(all, h)
			}
		}
	}
	return all
}

func (e *Existing) ended(what string) error {
	return fault.New(fault.Invalid, e.Target.String(), "observe something that runs for longer than the experiment",
		"%s while it was observed", what)
}

// Found returns what belongs to the target now: its processes, and the eBPF programs and maps of the ledger that they
// hold, or that the processes of the last Refresh held. Refresh must be called when the ledger has been read. Objects
// that no process holds are left out: the target was running before, so their owner is unknown (Objects.Unheld).
func (e *Existing) Found(l *ledger.Ledger) (Found, error) {
	atEdge := e.PIDs
	if err := e.Refresh(); err != nil {
		return Found{}, err
	}
	found, err := Discover(e.finder.Proc, e.PIDs, atEdge, false, l, time.Time{})
	if err != nil {
		return Found{}, fmt.Errorf("observing %s: %w", e.Target, err)
	}
	found.Unheld = unheld(l)
	return found, nil
}
