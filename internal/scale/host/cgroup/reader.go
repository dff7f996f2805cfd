package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/files"
	"tare/internal/lib/lists"

	"golang.org/x/sys/unix"
)

// Group is one control group and its latest counters.
type Group struct {
	Path     string // identity
	CPU      CPU    // as of the last ReadCPU
	Memory   Memory // as of the last ReadMemory
	Vanished bool   // it no longer exists; CPU and Memory are the last values read
	// Made is the latest time at which the group can have been created. It is zero for groups that were found before the
	// second Refresh, and if the wall clock was set back after the creation and before the group was found.
	Made time.Time
	// Renamed reports whether the group's directory had another path before (rename(2) on v1). The Group with the old path
	// has then Vanished, and the counters of this one include everything that the old one counted.
	Renamed bool

	nodes       []*node
	cpu, memory []file
	resets      int // see CPU.Resets
}

// node is the directory of a group in one hierarchy.
type node struct {
	tree  *tree
	group *Group
	rel   string // below the mount, as in Hierarchy.Identity
	ino   uint64
	dir   int    // descriptor (O_PATH); -1 if not open
	pass  uint64 // the Refresh that last saw it
	read  bool   // some file in it is read
	gone  bool
	watch int // inotify watch descriptor of its CPU counter, from 1; 0: none
}

// tree holds what a Reader knows about one hierarchy.
type tree struct {
	*Hierarchy
	dir    int // descriptor of the mount
	nodes  map[string]*node
	inodes map[uint64]*node // the same nodes by inode; until the end of Refresh also those that are gone
	usage  bool             // CPU time of groups is read here (v1)
	quota  bool             // their throttling is read here (v1)
	bytes  bool             // their memory is read here
}

// file is one file of one group.
type file struct {
	node   *node
	name   string
	parse  func(*Group, []byte)
	fd     int
	absent bool // this kernel has no such file, or its controller was not enabled here at the last attempt
}

// Reader reads the counters of all groups of a machine. It finds the groups once and keeps open what it reads often, so
// the readings at both ends of a window are cheap. Files of CPU time stay open as far as the limit on descriptors
// allows. Files of memory are opened for each reading, because each open file holds a page of kernel memory; their
// directories stay open. A Reader is not safe for concurrent use.
type Reader struct {
	trees  []*tree
	groups []*Group
	live   map[string]*Group
	buf    []byte
	name   []byte
	budget int // descriptors that may still be kept open
	pass   uint64
	forgot uint64   // number of calls of Forget
	tops   []string // below the mounts: only these and their descendants are read
	unread []Unread // groups that could not be read since the last Refresh
	// readable: groups that this process may not read are added to unread; otherwise they make Refresh fail
	readable bool
	lean     bool // see Lean
	noKernel bool // the kernel does not charge its own memory to groups: its counters of that are 0

	noting  bool // inotify is open, to notice writes to CPU counters of v1
	inotify int
	watched map[int]*node // by watch descriptor
	unnoted error         // why writes to some counters go unnoticed
}

// Unread is a group that could not be read, and why.
type Unread struct {
	Path string
	Err  error
}

// maxUnread bounds the list of groups that cannot be read.
const maxUnread = 1000

// Unread returns the groups that could not be read since the last Refresh. Their values are unknown. If Refresh could
// not read a group's directory, neither it nor its descendants are among Groups.
func (r *Reader) Unread() []Unread { return r.unread }

func (r *Reader) fail(path string, err error) {
	known := func(u Unread) bool { return u.Path == path }
	if len(r.unread) < maxUnread && !slices.ContainsFunc(r.unread, known) {
		r.unread = append(r.unread, Unread{path, err})
	}
}

// NewReader finds all groups. It fails if this process may not read one of them. The caller must close the Reader.
func NewReader(l *Layout) (*Reader, error) { return newReader(l, []string{""}, false) }

// NewReaderOfReadable finds all groups that this process may read. Unread returns the others.
func NewReaderOfReadable(l *Layout) (*Reader, error) { return newReader(l, []string{""}, true) }

// NewReaderOfSome reads only groups passed to Add.
func NewReaderOfSome(l *Layout) (*Reader, error) { return newReader(l, nil, false) }

// Add starts reading an existing group, without its descendants. It returns nil if the group is in none of the
// hierarchies that are read. It requires a Reader made by NewReaderOfSome.
func (r *Reader) Add(identity string) *Group {
	if g := r.live[identity]; g != nil && !g.Vanished {
		return g
	}
	var added *Group
	for _, t := range r.trees {
		rel, ok := t.rel(identity)
		if !ok {
			continue
		}
		var st unix.Stat_t
		if stat(t.dir, rel, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		r.see(t, rel, st.Ino)
		added = r.live[identity]
	}
	return added
}

// Remove stops reading a group that Add added. Values already read remain.
func (r *Reader) Remove(g *Group) {
	r.release(g.cpu, nil)
	for _, n := range g.nodes {
		r.closeDir(n)
		if n.tree.nodes[n.rel] == n {
			delete(n.tree.nodes, n.rel)
		}
	}
	if r.live[g.Path] == g {
		delete(r.live, g.Path)
	}
	r.groups = slices.DeleteFunc(r.groups, func(o *Group) bool { return o == g })
}

// ReadCPUOf reads the CPU time of one group, which is unknown after an error. A group that has vanished is not an
// error, and keeps the last values.
func (r *Reader) ReadCPUOf(g *Group) error {
	r.noteResets()
	return r.readCPU(g)
}

func (r *Reader) readCPU(g *Group) error {
	last := g.CPU
	g.CPU = CPU{} // a file loses what belongs to a controller that is disabled
	err := r.read(g, g.cpu, true)
	switch {
	case err != nil:
		g.CPU = CPU{}
	case g.Vanished && !g.CPU.UsageNs.OK:
		g.CPU = last
	}
	return err
}

// ReadMemoryOf reads the memory of one group. It treats errors like ReadCPUOf.
func (r *Reader) ReadMemoryOf(g *Group) error {
	last := g.Memory
	g.Memory = Memory{} // the files vanish if the controller is disabled
	err := r.read(g, g.memory, false)
	switch {
	case err != nil:
		g.Memory = Memory{}
	case g.Vanished:
		g.Memory = last
	case r.noKernel:
		g.Memory.Kernel = Value{}
	}
	return err
}

// NewReaderOf finds the groups with these names at the top of the hierarchies, and their descendants. It ignores all
// other groups.
func NewReaderOf(l *Layout, names []string) (*Reader, error) {
	tops := lists.Map(names, func(n string) string { return "/" + n })
	return newReader(l, tops, false)
}

func newReader(l *Layout, tops []string, readable bool) (*Reader, error) {
	r := &Reader{live: map[string]*Group{}, buf: make([]byte, 16<<10), tops: tops, readable: readable,
		watched: map[int]*node{}, noKernel: !l.chargesKernel()}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("reading the limit on open files: %w", err)
	}
	r.budget = int(min(limit.Cur/2, 1<<20)) // the other half is for samplers, programs and maps

	cpuacct, _ := l.Controller("cpuacct")
	cpu, _ := l.Controller("cpu")
	memory, _ := l.Controller("memory")
	v2, _ := l.V2()
	// The order matters for a group in several hierarchies: cpuacct comes before v2, which provides usage only if cpuacct
	// does not.
	for _, h := range []*Hierarchy{cpuacct, cpu, memory, v2} {
		if h == nil || r.has(h) {
			continue
		}
		fd, err := unix.Open(h.Mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("opening the control groups at %s: %w", h.Mount, err)
		}
		r.trees = append(r.trees, &tree{Hierarchy: h, dir: fd, nodes: map[string]*node{}, inodes: map[uint64]*node{},
			usage: h == cpuacct, quota: h == cpu, bytes: h == memory})
	}
	if cpuacct != nil && !cpuacct.V2 {
		r.inotify, r.unnoted = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		r.noting = r.unnoted == nil
	}
	if err := r.Refresh(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reader) has(h *Hierarchy) bool {
	return slices.ContainsFunc(r.trees, func(t *tree) bool { return t.Hierarchy == h })
}

// Close closes all descriptors. Values already read remain.
func (r *Reader) Close() {
	for _, g := range r.groups {
		r.release(g.cpu, nil)
	}
	for _, t := range r.trees {
		for _, n := range t.nodes {
			r.closeDir(n)
		}
		unix.Close(t.dir)
	}
	r.trees = nil
	if r.noting {
		unix.Close(r.inotify)
	}
	r.noting = false
}

// openDir opens the directory of a node, unless it is open or the budget is used up.
func (r *Reader) openDir(n *node) {
	if n.dir >= 0 || n.rel == "" || r.budget == 0 {
		return
	}
	if fd, err := openDir(n.tree.dir, n.rel[1:]); err == nil { // an error recurs where the file is opened
		n.dir = fd
		r.budget--
	}
}

func (r *Reader) closeDir(n *node) {
	if n.dir >= 0 {
		unix.Close(n.dir)
		n.dir = -1
		r.budget++
	}
}

// release closes the files that are in the directory of the given node, or all files if the node is nil. It also ends
// the watches of these directories.
func (r *Reader) release(files []file, of *node) {
	for i := range files {
		if f := &files[i]; f.fd >= 0 && (of == nil || f.node == of) {
			unix.Close(f.fd)
			f.fd = -1
			r.budget++
		}
		if of == nil || files[i].node == of {
			r.unwatch(files[i].node)
		}
	}
}

// Lean reduces what is read from now on: no throttling where it is in a separate file (v1), and no peaks or TCP memory,
// which need a file each. This halves the cost on v1. It is for continuous operation. A hierarchy with nothing else to
// read is dropped.
func (r *Reader) Lean() {
	r.lean = true
	r.trees = slices.DeleteFunc(r.trees, func(t *tree) bool {
		if t.V2 || t.usage || t.bytes {
			return false
		}
		for _, n := range t.nodes {
			r.lose(n)
		}
		unix.Close(t.dir)
		return true
	})
	for _, g := range r.groups {
		r.release(g.cpu, nil)
		g.cpu = slices.DeleteFunc(g.cpu, file.isExtra)
		g.memory = slices.DeleteFunc(g.memory, file.isExtra)
	}
}

// isExtra reports whether a lean reader skips the file.
func (f file) isExtra() bool {
	switch f.name {
	case "cpu.stat":
		return !f.node.tree.V2
	case "memory.max_usage_in_bytes", "memory.kmem.tcp.usage_in_bytes", "memory.peak":
		return true
	}
	return false
}

// Groups returns every group seen and not forgotten, including vanished ones. A group that was removed and created
// again is two groups.
func (r *Reader) Groups() []*Group { return r.groups }

// Forget drops the groups that have vanished, so the reader's cost depends on the groups that exist, however many
// there have been. Callers may keep dropped groups and their values.
func (r *Reader) Forget() {
	r.groups = slices.DeleteFunc(r.groups, func(g *Group) bool {
		if !g.Vanished {
			return false
		}
		r.release(g.cpu, nil)
		if r.live[g.Path] == g {
			delete(r.live, g.Path)
		}
		return true
	})
	if r.forgot++; r.forgot%renewal != 0 {
		return
	}
	r.live, r.watched = maps.Collect(maps.All(r.live)), maps.Collect(maps.All(r.watched))
	for _, t := range r.trees {
		t.nodes, t.inodes = maps.Collect(maps.All(t.nodes)), maps.Collect(maps.All(t.inodes))
	}
}

// renewal is the number of calls of Forget after which the maps are replaced: a map keeps room for the most entries
// that it ever had.
const renewal = 16

// Refresh finds new groups and marks those that have vanished. Files of memory that were missing are tried again.
func (r *Reader) Refresh() error {
	r.pass++
	r.unread = nil
	for _, t := range r.trees {
		for _, top := range r.tops {
			if err := r.walk(t, top, false); err != nil {
				return err
			}
		}
		for _, n := range t.nodes {
			if n.pass != r.pass {
				r.lose(n)
			}
		}
		// Not in lose: this Refresh may find a new directory under the old name of a renamed one before it finds the
		// renamed one, which it recognizes by its inode.
		maps.DeleteFunc(t.inodes, func(_ uint64, n *node) bool { return n.gone })
	}
	for _, g := range r.groups { // the memory controller may have been enabled
		for i := range g.memory {
			g.memory[i].absent = false
		}
	}
	return nil
}

// RefreshTop finds new groups at the top of the hierarchies, by listing one directory in each. What such a group uses
// is counted in no other group below the root, so it must be found before its first reading is due.
func (r *Reader) RefreshTop() error {
	for _, t := range r.trees {
		if err := r.walk(t, "", true); err != nil {
			return err
		}
	}
	return nil
}

// walk visits the group at top and all its descendants, parents first. If shallow is set, it visits only that group and
// those directly below it.
func (r *Reader) walk(t *tree, top string, shallow bool) error {
	w := walker{buf: r.buf, visit: func(rel string, ino uint64) { r.see(t, rel, ino) },
		unread:    func(rel string, err error) { r.fail(t.Identity(rel), err) },
		forbidden: r.readable, shallow: shallow}
	return w.walk(t.dir, "", top)
}

// see records the directory of a group.
func (r *Reader) see(t *tree, rel string, ino uint64) {
	if n := t.nodes[rel]; n != nil {
		if n.ino == ino && !n.gone {
			n.pass = r.pass
			return
		}
		r.lose(n)
	}
	before := r.renamed(t, ino)
	if before != nil {
		r.lose(before)
		// Those below it are read through open files under their old names, and the renamed group includes them.
		for _, n := range t.nodes {
			if strings.HasPrefix(n.rel, before.rel+"/") && r.removed(n) {
				r.lose(n)
			}
		}
	}
	id := t.Identity(rel)
	g := r.live[id]
	if g == nil || g.Vanished || g.in(t) {
		if g != nil {
			g.Vanished = true // created again under the same name
		}
		g = &Group{Path: id}
		if r.pass > 1 {
			g.Made = made(t.dir, rel)
		}
		r.live[id] = g
		r.groups = append(r.groups, g)
	}
	n := &node{tree: t, group: g, rel: rel, ino: ino, dir: -1, pass: r.pass}
	t.nodes[rel], t.inodes[ino] = n, n
	g.nodes = append(g.nodes, n)
	g.Renamed = g.Renamed || before != nil
	r.equip(g, n)
}

// renamed returns the directory that had the inode of a new one under another name, if CPU time is read there; else
// nil. Only groups of v1 can be renamed (cgroup1_rename in kernel/cgroup/cgroup-v1.c).
func (r *Reader) renamed(t *tree, ino uint64) *node {
	if r.pass <= 1 || t.V2 || !t.usage {
		return nil
	}
	return t.inodes[ino]
}

// made returns the latest time at which a directory can have been created: kernfs dates an inode at its first lookup
// (kernfs_init_inode in fs/kernfs/inode.c), which is usually that of the creator of the group. The result is zero if
// the date is in the future: the wall clock was set back, so the age is unknown. Otherwise it has a monotonic reading,
// so that comparisons with other times hold when the wall clock is set later.
func made(dir int, rel string) time.Time {
	now := time.Now()
	var st unix.Stat_t
	if stat(dir, rel, &st) != nil {
		return now
	}
	age := time.Duration(0)
	for _, ts := range []unix.Timespec{st.Atim, st.Mtim, st.Ctim} {
		since := now.Round(0).Sub(time.Unix(ts.Unix())) // by the wall clock
		if since < 0 {
			return time.Time{}
		}
		age = max(age, since)
	}
	return now.Add(-age)
}

// in reports whether the group has, or had, a directory in the tree.
func (g *Group) in(t *tree) bool {
	return slices.ContainsFunc(g.nodes, func(n *node) bool { return n.tree == t })
}

// equip adds to the group the files to read in its directory n.
func (r *Reader) equip(g *Group, n *node) {
	t := n.tree
	add := func(to *[]file, name string, parse func(*Group, []byte)) {
		f := file{node: n, name: name, parse: parse, fd: -1}
		if r.lean && f.isExtra() {
			return
		}
		*to = append(*to, f)
		n.read = true
	}
	if !t.V2 {
		if t.usage {
			add(&g.cpu, usageV1, parseUsage)
		}
		if t.quota {
			add(&g.cpu, "cpu.stat", parseThrottling)
		}
		if t.bytes {
			add(&g.memory, "memory.stat", parseMemoryStat1)
			add(&g.memory, "memory.usage_in_bytes", parseCurrent)
			add(&g.memory, "memory.max_usage_in_bytes", parsePeak)
			add(&g.memory, "memory.kmem.usage_in_bytes", parseKernel)
			add(&g.memory, "memory.kmem.tcp.usage_in_bytes", parseSock)
		}
		return
	}
	byCPUAcct := func(o *node) bool { return o.tree.usage && !o.tree.V2 }
	switch {
	case !slices.ContainsFunc(g.nodes, byCPUAcct) && n.rel == "" && t.fromRoot():
		add(&g.cpu, "cpu.stat", parseRootCPUStat)
	case !slices.ContainsFunc(g.nodes, byCPUAcct):
		add(&g.cpu, "cpu.stat", parseCPUStat)
	case t.quota:
		add(&g.cpu, "cpu.stat", parseThrottling)
	}
	if t.bytes {
		add(&g.memory, "memory.stat", parseMemoryStat2)
		add(&g.memory, "memory.current", parseCurrent)
		add(&g.memory, "memory.peak", parsePeak)
	}
}

// lose marks a directory as gone. A group has vanished once the last of its directories with something to read is
// gone. If others are left, what was read in this one is unknown from now on: CPU and Memory are cleared, and the next
// reading fills in what the other directories have.
func (r *Reader) lose(n *node) {
	if n.gone {
		return
	}
	n.gone = true
	r.closeDir(n)
	r.release(n.group.cpu, n)
	if n.tree.nodes[n.rel] == n {
		delete(n.tree.nodes, n.rel)
	}
	g := n.group
	for _, o := range g.nodes { // usually all of them are removed together
		if !o.gone && r.removed(o) {
			r.lose(o)
		}
	}
	left := func(o *node) bool { return o.read && !o.gone }
	if g.Vanished = g.Vanished || !slices.ContainsFunc(g.nodes, left); g.Vanished {
		return
	}
	within := func(f file) bool { return f.node == n }
	if slices.ContainsFunc(g.cpu, within) {
		g.CPU = CPU{}
	}
	if slices.ContainsFunc(g.memory, within) {
		g.Memory = Memory{}
	}
}

// ReadCPU reads the CPU time of all groups. A group that has vanished is not an error. If a group cannot be read, its
// CPU is unknown (see Unread) and the others are still read. ReadCPU returns the first such error, but prefers one
// about missing permission.
func (r *Reader) ReadCPU() error {
	r.noteResets()
	return r.readAll("CPU time", r.readCPU)
}

// ReadMemory reads the memory of all groups, and treats errors like ReadCPU.
func (r *Reader) ReadMemory() error { return r.readAll("memory", r.ReadMemoryOf) }

func (r *Reader) readAll(what string, read func(*Group) error) (first error) {
	for _, g := range r.groups {
		err := read(g)
		if err == nil {
			continue
		}
		r.fail(g.Path, err)
		if first == nil || errors.Is(err, unix.EACCES) && !errors.Is(first, unix.EACCES) {
			first = forbidden(fmt.Errorf("reading the %s of control group %s: %w", what, g.Path, err))
		}
	}
	return first
}

func (r *Reader) read(g *Group, files []file, keep bool) error {
	var first error
	for i := range files {
		f := &files[i]
		if f.node.gone || f.absent {
			continue
		}
		b, err := r.content(f, keep)
		switch {
		case err == nil:
			f.parse(g, b)
		case errors.Is(err, unix.ENOENT) && r.exists(f.node):
			f.absent = true
		case gone(err):
			r.lose(f.node)
			return r.read(g, files, keep) // read what the other directories have
		case errors.Is(err, unix.EOPNOTSUPP):
			f.absent = true // accounting is compiled in but was switched off at boot
		case first == nil:
			first = fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return first
}

// content reads a file, and opens it if necessary. If keep is set it leaves the file open, within the budget.
func (r *Reader) content(f *file, keep bool) ([]byte, error) {
	fd := f.fd
	if fd < 0 {
		if !keep {
			r.openDir(f.node)
		}
		dir, rel := f.node.tree.dir, f.node.rel
		if f.node.dir >= 0 {
			dir, rel = f.node.dir, ""
		} else if len(rel) > near {
			own, err := openDir(dir, rel[1:])
			if err != nil {
				return nil, err
			}
			defer unix.Close(own)
			dir, rel = own, ""
		}
		r.name = r.name[:0]
		if rel != "" {
			r.name = append(append(r.name, rel[1:]...), '/')
		}
		r.name = append(append(r.name, f.name...), 0)
		var err error
		if fd, err = openat(dir, r.name); err != nil {
			return nil, err
		}
		if keep && r.budget > 0 {
			r.budget--
			f.fd = fd
		} else {
			defer files.CloseRaw(fd)
		}
	}
	if f.name == usageV1 {
		r.watch(f.node, fd)
	}
	return pread(fd, &r.buf)
}

// exists reports whether the directory still exists and is the same.
func (r *Reader) exists(n *node) bool {
	var st unix.Stat_t
	return stat(n.tree.dir, n.rel, &st) == nil && st.Ino == n.ino
}

// removed reports whether the directory no longer exists, or is another one under the same name.
func (r *Reader) removed(n *node) bool {
	var st unix.Stat_t
	err := stat(n.tree.dir, n.rel, &st)
	return gone(err) || err == nil && st.Ino != n.ino
}

// stat returns the attributes of a group's directory below a mount.
func stat(dir int, rel string, st *unix.Stat_t) error {
	name := cmp.Or(strings.TrimPrefix(rel, "/"), ".")
	if len(name) > near {
		fd, err := openDir(dir, name)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		dir, name = fd, "."
	}
	return unix.Fstatat(dir, name, st, 0)
}
