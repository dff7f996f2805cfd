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

// mostDoing is the maximum number of processes that Doing describes, and of kernel functions that it names for each.
const mostDoing = 8

// Doing describes the present activity of a process and its descendants, for example for an error about a process that
// hangs. For each process, the result says that the process runs, or names the kernel functions in which its threads
// wait (/proc/<pid>/task/*/wchan; for other users' processes this requires CAP_SYS_PTRACE). The result is empty if
// nothing is known. Descendants are found only with CONFIG_PROC_CHILDREN.
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

// state describes what a process is doing, such as "waits in do_epoll_wait".
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
		// The content "0" means unknown.
		if b, err = os.ReadFile(filepath.Join(filepath.Dir(task), "wchan")); err == nil && len(b) > 1 {
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

// children returns the children of a process, including those that have ended and were not reaped.
func (f FS) children(pid int) (pids []int) { return f.childrenOf(f.tasks(pid, "children")...) }

// childrenOf returns the children of threads, given the threads' children files.
func (f FS) childrenOf(files ...string) (pids []int) {
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended, or the kernel has no such file
		}
		for _, word := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// tasks returns the paths of a file in the directories of a process's threads.
func (f FS) tasks(pid int, name string) []string {
	paths, _ := filepath.Glob(f.path("proc", strconv.Itoa(pid), "task", "*", name)) // the pattern is valid
	return paths
}
