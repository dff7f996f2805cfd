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

// Write writes a value into a file of a group, such as cgroup.procs. The file must be there. It makes the system calls
// itself: the kernel answers a write to memory.reclaim with EAGAIN where it could not take back all, and as such files
// can be polled, package os would wait for ever until it can be written.
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

// Below lists a group's directory and those below it, each after the one that it is in. It is empty where there is no
// such group.
func Below(dir string) []string {
	var dirs []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil // what cannot be read has gone
	})
	return dirs
}

// Members lists the processes in the groups at the top of the hierarchies that have one of these names, and in all
// groups below them, in order.
func (l *Layout) Members(names []string) []int {
	var dirs []string
	for i := range l.Hierarchies {
		for _, name := range names {
			dirs = append(dirs, filepath.Join(l.Hierarchies[i].Mount, name))
		}
	}
	return Members(dirs)
}

// Members lists the processes in groups, whose directories are given, and in all groups below them, in order, however
// long the paths of those are. A group that cannot be read has gone.
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
				// 0 is a process of another PID namespace, which cannot be named.
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
		}, func(string, error) {})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
