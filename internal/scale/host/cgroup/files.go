package cgroup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Write writes a value to an existing file of a group, such as cgroup.procs. It makes the system calls itself: the
// kernel answers a write to memory.reclaim with EAGAIN if it could not reclaim everything, and because such files can
// be polled, package os would wait forever for the file to become writable.
func Write(file, value string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: file, Err: err}
	}
	_, err = unix.Write(fd, []byte(value))
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Write(fd, []byte(value))
	}
	if err != nil {
		err = &fs.PathError{Op: "write", Path: file, Err: err}
	}
	return errors.Join(err, unix.Close(fd))
}

// Below returns a group's directory and those of its descendants, parents first. The result is empty if there is no
// such group.
func Below(dir string) []string {
	var dirs []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil // what cannot be read is gone
	})
	return dirs
}

// Members returns, in ascending order, the processes in the top-level groups with these names and in their descendants,
// in all hierarchies.
func (l *Layout) Members(names []string) []int {
	var dirs []string
	for i := range l.Hierarchies {
		for _, name := range names {
			dirs = append(dirs, filepath.Join(l.Hierarchies[i].Mount, name))
		}
	}
	return Members(dirs)
}

// Members returns the processes in the groups with these directories and in their descendants, in ascending order.
// Paths may be of any length. A group that cannot be read is skipped.
func Members(dirs []string) []int {
	var pids []int
	for _, dir := range dirs {
		_ = Walk(dir, func(_ string, group int) {
			fd, err := openat(group, []byte("cgroup.procs\x00"))
			if err != nil {
				return
			}
			f := os.NewFile(uintptr(fd), "cgroup.procs")
			defer f.Close()
			b, _ := io.ReadAll(f)
			for line := range strings.Lines(string(b)) {
				// 0 stands for a process of another PID namespace, which has no number in this one.
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
		}, func(string, error) {})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
