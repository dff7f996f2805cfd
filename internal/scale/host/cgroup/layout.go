// Package cgroup reads control groups: where this machine keeps them (v1, v2 or both), which group a thread runs in,
// and what each group has used. It reads raw counters and interprets nothing. The location of hierarchies always comes
// from mountinfo and /proc/self/cgroup and is never assumed.
//
// A group's identity is its path below the root of its hierarchy ("/system.slice/cron.service"). On v1 and hybrid
// machines the same path in several hierarchies is the same group.
package cgroup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/mount"
)

// The modes of a Layout.
const (
	ModeNone   = "none" // no control groups are mounted
	ModeV1     = "v1"
	ModeV2     = "v2"
	ModeHybrid = "hybrid" // both
)

// Roots configures where to look. The zero value stands for the machine that this process runs on.
type Roots struct {
	Proc   string // where proc is mounted; "/proc" if empty
	Prefix string // prepended to every mount point in mountinfo; for trees of test files
}

func (r Roots) proc() string {
	return cmp.Or(r.Proc, "/proc")
}

// Layout describes where a machine keeps its control groups.
type Layout struct {
	Mode        string // ModeNone, ModeV1, ModeV2 or ModeHybrid
	Hierarchies []Hierarchy
	roots       Roots
}

// Hierarchy is one mounted tree of control groups.
type Hierarchy struct {
	Controllers []string // v1: those of the hierarchy; v2: those available at the root of the mount
	Name        string   // name of a v1 hierarchy without controllers, e.g. "systemd"
	Mount       string   // absolute directory
	Root        string   // identity of the mounted group: "/" unless only a subtree is mounted
	V2          bool

	// base is the root of our cgroup namespace below the mount, if the mount includes groups above the namespace; else
	// empty. Paths in /proc/<pid>/cgroup are relative to the namespace.
	base string
}

// Has reports whether the hierarchy has the controller.
func (h *Hierarchy) Has(controller string) bool { return slices.Contains(h.Controllers, controller) }

// Within reports whether path is the given group or one below it. Both are identities.
func Within(path, group string) bool {
	return path == group || strings.HasPrefix(path, strings.TrimSuffix(group, "/")+"/")
}

// Dir returns the directory of the group with the given identity; false if it is outside the mount.
func (h *Hierarchy) Dir(identity string) (string, bool) {
	rel, ok := h.rel(identity)
	return h.Mount + rel, ok
}

// rel returns the path below the mount: "" for the mount itself, else with a leading slash. The second result is false
// if identity is outside the mount.
func (h *Hierarchy) rel(identity string) (string, bool) {
	rest := identity
	if h.Root != "/" {
		var ok bool
		if rest, ok = strings.CutPrefix(identity, h.Root); !ok || rest != "" && rest[0] != '/' {
			return "", false
		}
	}
	if rest == "/" {
		rest = ""
	}
	return rest, !slices.Contains(strings.Split(rest, "/"), "..")
}

// Identity returns the identity of the group at rel below the mount ("" is the mount itself, else with a leading
// slash).
func (h *Hierarchy) Identity(rel string) string {
	switch {
	case rel == "":
		return h.Root
	case h.Root == "/":
		return rel
	}
	return h.Root + rel
}

// fromProc returns the identity of a group given its path in /proc/<pid>/cgroup.
func (h *Hierarchy) fromProc(p string) string {
	if h.base == "" {
		return p
	}
	return path.Join(h.base, p)
}

// Controller returns the hierarchy that has the controller: that of v1 if mounted, else v2.
func (l *Layout) Controller(name string) (*Hierarchy, bool) {
	for i := range l.Hierarchies {
		if h := &l.Hierarchies[i]; !h.V2 && h.Has(name) {
			return h, true
		}
	}
	if h, ok := l.V2(); ok && h.Has(name) {
		return h, true
	}
	return nil, false
}

// V2 returns the v2 hierarchy.
func (l *Layout) V2() (*Hierarchy, bool) {
	for i := range l.Hierarchies {
		if h := &l.Hierarchies[i]; h.V2 {
			return h, true
		}
	}
	return nil, false
}

// V2Path returns the path of a directory below the mount of v2, with a leading slash; empty if there is no v2
// hierarchy.
func (l *Layout) V2Path(dir string) string {
	h, ok := l.V2()
	if !ok {
		return ""
	}
	return path.Join("/", strings.TrimPrefix(dir, h.Mount))
}

// MemoryPeak returns the result of the function MemoryPeak for the group with the given identity, in bytes; nil if the
// kernel does not expose it.
func (l *Layout) MemoryPeak(identity string) *uint64 {
	h, ok := l.Controller("memory")
	if !ok {
		return nil
	}
	dir, ok := h.Dir(identity)
	if !ok {
		return nil
	}
	return MemoryPeak(dir).Ptr()
}

// CPU returns the hierarchy that gives groups their identity and their CPU time: v1 cpuacct if mounted, else v2, which
// counts CPU time without any controller (cgroup_base_stat_cputime_show in kernel/cgroup/rstat.c).
func (l *Layout) CPU() (*Hierarchy, bool) {
	if h, ok := l.Controller("cpuacct"); ok {
		return h, true
	}
	return l.V2()
}

// CPUMode returns the version of the hierarchy that counts CPU time: ModeV1, ModeV2, or ModeNone without one. It may be
// ModeV2 on a hybrid machine, such as one with only a named hierarchy of v1.
func (l *Layout) CPUMode() string {
	h, ok := l.CPU()
	switch {
	case !ok:
		return ModeNone
	case h.V2:
		return ModeV2
	}
	return ModeV1
}

// initialNamespace is the inode number of the control group namespace that the machine starts with
// (include/linux/proc_ns.h).
const initialNamespace = 0xEFFFFFFB

// chargesKernel reports whether the kernel charges the memory that it uses itself to groups. It does, unless it was
// booted with cgroup.memory=nokmem (Documentation/admin-guide/kernel-parameters.txt).
func (l *Layout) chargesKernel() bool { return !Booted(l.roots.proc(), "cgroup.memory", "nokmem") }

// Booted reports whether the kernel was booted with a parameter whose list has one of the given values. proc is where
// proc is mounted.
func Booted(proc, parameter string, values ...string) bool {
	cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
	return slices.ContainsFunc(strings.Fields(string(cmdline)), func(word string) bool {
		name, list, _ := strings.Cut(word, "=")
		return name == parameter && slices.ContainsFunc(strings.Split(list, ","), func(value string) bool {
			return slices.Contains(values, value)
		})
	})
}

// Whole reports whether the hierarchy that counts CPU time shows all of the machine's groups. It is false if only a
// subtree is mounted, if this process is in a cgroup namespace and the mount does not include the groups above that
// namespace, or if the mount is that of another namespace, as in a pod of a node that is a container.
func (l *Layout) Whole() bool {
	h, ok := l.CPU()
	if !ok {
		return true
	}
	if h.base != "" {
		return h.fromRoot()
	}
	var st unix.Stat_t
	inside := unix.Stat(filepath.Join(l.roots.proc(), "self/ns/cgroup"), &st) == nil && st.Ino != initialNamespace
	return h.Root == "/" && !inside
}

// fromRoot reports whether the mount begins at the machine's root group, by the files that the kernel has only there
// (v1) or only in other groups (cgroup1_base_files in kernel/cgroup/cgroup-v1.c, cgroup_base_files in cgroup.c).
func (h *Hierarchy) fromRoot() bool {
	var st unix.Stat_t
	if h.V2 {
		return unix.Stat(filepath.Join(h.Mount, "cgroup.events"), &st) != nil
	}
	return unix.Stat(filepath.Join(h.Mount, "release_agent"), &st) == nil
}

// Discover finds the hierarchies. A machine without control groups is not an error: its Mode is ModeNone.
func Discover(r Roots) (*Layout, error) {
	read := func(name string) ([]byte, error) {
		b, err := os.ReadFile(filepath.Join(r.proc(), "self", name))
		return b, fault.Wrap(err, fault.Machine, r.proc(), "mount it: mount -t proc proc "+r.proc(),
			"looking for control groups")
	}
	info, err := read("mountinfo")
	if err != nil {
		return nil, err
	}
	l := &Layout{Mode: ModeNone, roots: r}
	own, err := read("cgroup")
	if errors.Is(err, os.ErrNotExist) {
		return l, nil // a kernel without CONFIG_CGROUPS
	}
	if err != nil {
		return nil, err
	}
	mounts := cgroupMounts(mount.Parse(info))
	for i := range mounts {
		mounts[i].Point = filepath.Join(r.Prefix, mounts[i].Point)
	}
	if r.Prefix == "" {
		mounts = slices.DeleteFunc(mounts, func(m mounted) bool { return !m.visible() })
	}
	for _, m := range parseMembership(own) {
		h, ok := pick(m, mounts, r)
		if !ok {
			continue
		}
		if h.V2 {
			b, err := os.ReadFile(filepath.Join(h.Mount, "cgroup.controllers"))
			if err != nil {
				return nil, fmt.Errorf("reading the controllers of the v2 hierarchy: %w", err)
			}
			h.Controllers = strings.Fields(string(b))
		}
		l.Hierarchies = append(l.Hierarchies, h)
	}
	_, v2 := l.V2()
	v1 := slices.ContainsFunc(l.Hierarchies, func(h Hierarchy) bool { return !h.V2 })
	switch {
	case v1 && v2:
		l.Mode = ModeHybrid
	case v1:
		l.Mode = ModeV1
	case v2:
		l.Mode = ModeV2
	}
	return l, nil
}

// mounted is a mount of a cgroup hierarchy.
type mounted struct {
	mount.Mount
	v2 bool
}

// cgroupMounts returns the mounts of cgroup hierarchies.
func cgroupMounts(all []mount.Mount) (found []mounted) {
	for _, m := range all {
		if v2 := m.Type == "cgroup2"; (v2 || m.Type == "cgroup") && strings.HasPrefix(m.Root, "/") {
			found = append(found, mounted{m, v2})
		}
	}
	return found
}

// visible reports whether the mount is what its mount point shows: another may be mounted over it.
func (m *mounted) visible() bool {
	var st unix.Stat_t
	return unix.Stat(m.Point, &st) == nil && st.Dev == m.Dev
}

// up returns how many levels the mount's root is above the root of our cgroup namespace.
func (m *mounted) up() int { return strings.Count(m.Root, "/..") }

// better reports whether m is a better mount of the same hierarchy than o: it shows more of the tree, or is writable.
func (m *mounted) better(o *mounted) bool {
	if a, b := m.up(), o.up(); a != b {
		return a > b
	}
	if len(m.Root) != len(o.Root) {
		return len(m.Root) < len(o.Root)
	}
	return !m.ReadOnly && o.ReadOnly
}

// membership is one line of /proc/<pid>/cgroup.
type membership struct {
	controllers []string
	name        string // of a named v1 hierarchy
	path        string
	v2          bool
}

func (m *membership) mountedBy(mt *mounted) bool {
	if m.v2 || mt.v2 {
		return m.v2 && mt.v2
	}
	if m.name != "" {
		return slices.Contains(mt.Options, "name="+m.name)
	}
	for _, c := range m.controllers {
		if !slices.Contains(mt.Options, c) {
			return false
		}
	}
	return len(m.controllers) > 0
}

// pick finds the best mount of the hierarchy that m is a member of.
func pick(m membership, mounts []mounted, r Roots) (Hierarchy, bool) {
	var best Hierarchy
	var from *mounted
	for i := range mounts {
		mt := &mounts[i]
		if !m.mountedBy(mt) || from != nil && !mt.better(from) {
			continue
		}
		h := Hierarchy{Controllers: m.controllers, Name: m.name, Mount: mt.Point, Root: mt.Root, V2: mt.v2}
		if n := mt.up(); n > 0 {
			// The names between the mount's root and our namespace are hidden, so search for the directory that contains this
			// process.
			base, ok := locate(r, mt, n, m.path)
			if !ok {
				continue
			}
			h.Root, h.base = "/", base
		}
		best, from = h, mt
	}
	return best, from != nil
}

// locate finds the group, depth levels below the mount, that is the root of our cgroup namespace; own is our path in
// it.
func locate(r Roots, m *mounted, depth int, own string) (string, bool) {
	if strings.Trim(m.Root, "./") != "" {
		return "", false // a mount of a group outside ours
	}
	self, err := os.Readlink(filepath.Join(r.proc(), "self"))
	if err != nil {
		return "", false
	}
	dirs := []string{m.Point}
	for range depth {
		var below []string
		for _, dir := range dirs {
			entries, _ := os.ReadDir(dir) // a group may vanish, but not the one that we look for
			for _, e := range entries {
				if e.IsDir() {
					below = append(below, filepath.Join(dir, e.Name()))
				}
			}
		}
		dirs = below
	}
	for _, dir := range dirs {
		procs, err := os.ReadFile(filepath.Join(dir, own, "cgroup.procs"))
		if err == nil && slices.Contains(strings.Fields(string(procs)), self) {
			return strings.TrimPrefix(dir, m.Point), true
		}
	}
	return "", false
}

// parseMembership reads /proc/<pid>/cgroup: lines of "id:controllers:path" (cgroups(7)). A path may contain colons.
func parseMembership(b []byte) []membership {
	var ms []membership
	for line := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 || !strings.HasPrefix(f[2], "/") {
			continue
		}
		m := membership{path: f[2]}
		switch name, named := strings.CutPrefix(f[1], "name="); {
		case f[0] == "0" && f[1] == "":
			m.v2 = true
		case named:
			m.name = name
		case f[1] == "":
			continue
		default:
			m.controllers = strings.Split(f[1], ",")
		}
		ms = append(ms, m)
	}
	return ms
}
