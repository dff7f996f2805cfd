package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
)

// Resolver finds the group that a thread runs in. It is made for frequent use: it reuses its buffer and its strings,
// and allocates only for a group that it has not seen. It is not safe for concurrent use.
type Resolver struct {
	proc   string
	v1, v2 *Hierarchy // v1: that of cpuacct, which defines identities on v1; nil if not mounted
	memory *Hierarchy // the one that counts memory; nil if none does
	name   []byte
	buf    []byte
	seen   [3]map[string]string // identities by v1, v2 and memory path as the kernel writes it
}

// maxSeen bounds the strings that a Resolver keeps while groups come and go.
const maxSeen = 1 << 14

// NewResolver returns a Resolver.
func (l *Layout) NewResolver() *Resolver {
	r := &Resolver{proc: l.roots.proc(), buf: make([]byte, 4096)}
	if h, ok := l.Controller("cpuacct"); ok && !h.V2 {
		r.v1 = h
	}
	r.v2, _ = l.V2()
	r.memory, _ = l.Controller("memory")
	for i := range r.seen {
		r.seen[i] = map[string]string{}
	}
	return r
}

// Charged holds the identities of the groups that a thread is charged to. Memory is charged to the group of the thread
// group's leader, whatever group the thread is in (mem_cgroup_from_task(mm->owner) in mm/memcontrol.c), so Memory is
// meaningful only for a leader. A field is empty if no hierarchy counts that resource.
type Charged struct{ CPU, Memory string }

// Charged returns the groups that a process is charged to, given the content of /proc/<pid>/cgroup. CPU is the group
// that Path returns.
func (r *Resolver) Charged(content []byte) Charged {
	_, v2, memory := r.paths(content)
	c := Charged{CPU: r.identity(content)}
	switch {
	case memory != nil:
		c.Memory = intern(r.seen[2], r.memory, memory)
	case v2 != nil && r.memory != nil && r.memory.V2:
		c.Memory = intern(r.seen[1], r.v2, v2)
	}
	return c
}

// Path returns the identity of the group to which the kernel charges the CPU time of a thread (or of a process: its
// first thread). That is its cpuacct group, or its v2 group if the cpuacct group is the root. It is empty on a machine
// without control groups. The error is proc.ErrGone if the thread no longer exists.
func (r *Resolver) Path(tid int) (string, error) {
	b, err := r.content(tid)
	if err != nil {
		return "", err
	}
	return r.identity(b), nil
}

// LivePath is like Path, but returns proc.ErrGone for an exiting thread that v1 has in its root: the kernel shows such
// a thread there, whatever group it is in (proc_cgroup_show in kernel/cgroup/cgroup.c).
func (r *Resolver) LivePath(tid int) (string, error) {
	path, err := r.Path(tid)
	if err != nil || path != "/" || r.v1 == nil {
		return path, err
	}
	p, err := proc.FS{Root: filepath.Dir(r.proc)}.Process(tid)
	if errors.Is(err, proc.ErrGone) || err == nil && p.Exiting() {
		return "", fmt.Errorf("reading the control group of thread %d: %w", tid, proc.ErrGone)
	}
	return path, nil // even if the state of the thread is hidden
}

// ChargedOf is like Charged, but reads the file of a process. Its errors are those of Path.
func (r *Resolver) ChargedOf(pid int) (Charged, error) {
	b, err := r.content(pid)
	if err != nil {
		return Charged{}, err
	}
	return r.Charged(b), nil
}

// content returns /proc/<tid>/cgroup; it is valid until the next call.
func (r *Resolver) content(tid int) ([]byte, error) {
	// /proc/<tid> exists for every thread, though only processes are listed.
	r.name = append(append(r.name[:0], r.proc...), '/')
	r.name = append(strconv.AppendInt(r.name, int64(tid), 10), "/cgroup\x00"...)
	b, err := r.read()
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			err = proc.ErrGone
		}
		return nil, fmt.Errorf("reading the control group of thread %d: %w", tid, err)
	}
	return b, nil
}

// PathOf is Resolver.Path for a single query.
func (l *Layout) PathOf(tid int) (string, error) { return l.NewResolver().Path(tid) }

// read reads the file r.name. The file has one path for each hierarchy, so its size is known only at its end.
func (r *Resolver) read() ([]byte, error) {
	fd, err := openat(unix.AT_FDCWD, r.name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for n := 0; ; {
		m, err := unix.Read(fd, r.buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m == 0 {
			return r.buf[:n], nil
		}
		if n += m; n == len(r.buf) {
			if n >= 1<<20 {
				return nil, unix.EFBIG
			}
			r.buf = append(r.buf, make([]byte, n)...)
		}
	}
}

// paths finds the paths in the hierarchies of v1 that count CPU time and memory, and in v2, in the content of
// /proc/<pid>/cgroup, which has lines of "id:controllers:path" (cgroups(7)). Missing ones are nil.
func (r *Resolver) paths(b []byte) (v1, v2, memory []byte) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		id, rest, _ := bytes.Cut(line, []byte(":"))
		controllers, path, ok := bytes.Cut(rest, []byte(":"))
		if !ok || len(path) == 0 || path[0] != '/' {
			continue
		}
		if r.v2 != nil && string(id) == "0" && len(controllers) == 0 {
			// The kernel marks a zombie whose group was removed (proc_cgroup_show in kernel/cgroup/cgroup.c).
			v2 = bytes.TrimSuffix(path, []byte(" (deleted)"))
		}
		if r.v1 != nil && hasController(controllers, "cpuacct") {
			v1 = path
		}
		if r.memory != nil && !r.memory.V2 && hasController(controllers, "memory") {
			memory = path
		}
	}
	return v1, v2, memory
}

// identity returns the identity of the group that CPU time is charged to.
func (r *Resolver) identity(content []byte) (id string) {
	v1, v2, _ := r.paths(content)
	if v1 != nil {
		id = intern(r.seen[0], r.v1, v1)
	}
	if v2 != nil && (id == "" || id == "/") {
		id = intern(r.seen[1], r.v2, v2)
	}
	return id
}

// hasController reports whether name is in a comma-separated list.
func hasController(list []byte, name string) bool {
	for len(list) > 0 {
		var one []byte
		if one, list, _ = bytes.Cut(list, []byte(",")); string(one) == name {
			return true
		}
	}
	return false
}

func intern(seen map[string]string, h *Hierarchy, path []byte) string {
	if id, ok := seen[string(path)]; ok {
		return id
	}
	if len(seen) >= maxSeen {
		clear(seen)
	}
	raw := string(path)
	id := h.fromProc(raw)
	seen[raw] = id
	return id
}

// IDs returns the v2 groups by cgroup id, the number that eBPF programs get from bpf_get_current_cgroup_id. It is
// empty if v2 is not mounted.
func (l *Layout) IDs() (map[uint64]string, error) {
	h, ok := l.V2()
	if !ok {
		return map[uint64]string{}, nil
	}
	return h.IDs()
}

// IDs returns the groups of a hierarchy by cgroup id. The id is the group's inode number on a 64-bit machine
// (kernfs_id in include/linux/kernfs.h).
func (h *Hierarchy) IDs() (map[uint64]string, error) {
	ids := map[uint64]string{}
	fd, err := unix.Open(h.Mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", h.Mount, err)
	}
	defer unix.Close(fd)
	return ids, newWalker(func(rel string, ino uint64) { ids[ino] = h.Identity(rel) }).walk(fd, "", "")
}

// ID returns the cgroup id of a directory, from the kernel itself.
func ID(dir string) (uint64, error) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, dir, 0)
	if err != nil {
		return 0, fmt.Errorf("asking for the cgroup id of %s: %w", dir, err)
	}
	if h.Size() != 8 {
		return 0, fmt.Errorf("asking for the cgroup id of %s: a handle of %d bytes is not one of a control group", dir,
			h.Size())
	}
	return binary.NativeEndian.Uint64(h.Bytes()), nil
}
