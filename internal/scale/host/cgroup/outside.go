package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
	"tare/internal/scale/host/proc"
)

// Membership is a group that a thread is in: its identity in one hierarchy.
type Membership struct {
	Hierarchy *Hierarchy
	Identity  string
}

// Outside returns the groups that threads of a process are in and for which within returns false, at most one for each
// hierarchy. A thread can be in another group than its process, through the file tasks of v1 or in a threaded group of
// v2, and it can be in different groups in different hierarchies. Threads that have ended, or are about to, are
// skipped.
func (l *Layout) Outside(pid int, within func(Membership) bool) ([]Membership, error) {
	ended := func(err error) bool {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, proc.ErrGone)
	}
	dir := filepath.Join(l.roots.proc(), strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(dir)
	if err != nil && !ended(err) {
		return nil, fmt.Errorf("reading the threads of process %d: %w", pid, err)
	}
	var all []Membership
	for _, t := range threads {
		b, err := os.ReadFile(filepath.Join(dir, t.Name(), "cgroup"))
		if err != nil && !ended(err) {
			return nil, fmt.Errorf("reading the control groups of process %d: %w", pid, err)
		}
		var out []Membership
		for _, line := range parseMembership(b) {
			h := l.of(line)
			if h == nil {
				continue
			}
			if m := (Membership{h, h.fromProc(line.path)}); !within(m) {
				out = append(out, m)
			}
		}
		if len(out) == 0 {
			continue
		}
		tid, _ := strconv.Atoi(t.Name())
		p, err := proc.FS{Root: filepath.Dir(l.roots.proc())}.Process(tid)
		if err != nil && !ended(err) {
			return nil, err
		}
		if err != nil || p.Exiting() {
			continue
		}
		for _, m := range out {
			if !slices.ContainsFunc(all, func(o Membership) bool { return o.Hierarchy == m.Hierarchy }) {
				all = append(all, m)
			}
		}
	}
	return all, nil
}

// of returns the hierarchy of a membership; nil if it is not mounted.
func (l *Layout) of(m membership) *Hierarchy {
	return lists.Find(l.Hierarchies, func(h *Hierarchy) bool {
		return h.V2 == m.v2 && h.Name == m.name && (m.v2 || slices.Equal(h.Controllers, m.controllers))
	})
}
