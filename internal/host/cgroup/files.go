package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Write writes a value into a file of a group, such as cgroup.procs. The file must be there.
func Write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
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

// Members lists the processes in groups, whose directories are given, and in all groups below them, in order. A group
// that cannot be read has gone.
func Members(dirs []string) []int {
	var pids []int
	for _, dir := range dirs {
		for _, d := range Below(dir) {
			b, _ := os.ReadFile(filepath.Join(d, "cgroup.procs"))
			for line := range strings.Lines(string(b)) {
				// 0 is a process of another PID namespace, which cannot be named.
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
