package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mostDoing is how many processes Doing tells of, and how many places of each.
const mostDoing = 8

// Doing says in words what a process and its descendants are doing, for an error about one that does not do what it
// should: whether each runs, and else the kernel's functions in which its threads wait (/proc/<pid>/task/*/wchan, which
// takes CAP_SYS_PTRACE of others' processes). It is empty where nothing is known. Descendants need
// CONFIG_PROC_CHILDREN.
func (f FS) Doing(pid int) string {
	var said []string
	for todo := []int{pid}; len(todo) > 0 && len(said) < mostDoing; todo = todo[1:] {
		p, err := f.Process(todo[0])
		if err != nil {
			continue // it has ended
		}
		said = append(said, fmt.Sprintf("%q (%d) %s", p.Comm, p.PID, f.state(p)))
		todo = append(todo, f.children(p.PID)...)
	}
	return strings.Join(said, ", ")
}

// state is what a process does, as a predicate.
func (f FS) state(p Process) string {
	if !p.Alive() {
		return "has ended"
	}
	var in []string
	running := false
	for _, task := range f.tasks(p.PID, "stat") {
		b, err := os.ReadFile(task)
		if t, bad := parseProcess(b); err != nil || bad != nil {
			continue // the thread has ended
		} else if t.State == 'R' {
			running = true
			continue
		}
		if b, err = os.ReadFile(filepath.Join(filepath.Dir(task), "wchan")); err == nil && len(b) > 1 { // else "0": not known
			in = append(in, string(bytes.TrimSpace(b)))
		}
	}
	slices.Sort(in)
	in = slices.Compact(in)
	what := "waits"
	switch {
	case running:
		return "runs"
	case p.State == 'D':
		what = "is in uninterruptible sleep"
	case p.State == 'T' || p.State == 't':
		what = "is stopped"
	}
	if len(in) == 0 {
		return what
	}
	return what + " in " + strings.Join(in[:min(len(in), mostDoing)], " and ")
}

// children are the processes that a process has started and that live.
func (f FS) children(pid int) (pids []int) { return f.childrenOf(f.tasks(pid, "children")...) }

// childrenOf are the processes that threads have started and that live, by the threads' files children.
func (f FS) childrenOf(files ...string) (pids []int) {
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended, or the kernel does not say
		}
		for _, word := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// tasks are the files of that name of the threads of a process.
func (f FS) tasks(pid int, name string) []string {
	paths, _ := filepath.Glob(f.path("proc", strconv.Itoa(pid), "task", "*", name)) // the pattern is sound
	return paths
}
