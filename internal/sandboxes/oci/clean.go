package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/lib/files"
	"tare/internal/lib/self"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/mount"
	"tare/internal/scale/host/sandbox"
)

// StateDir contains the state of all containers, in a directory for each run, named after the run's tree of control
// groups. The content of these directories determines which programs are run to remove a container, so other users must
// not be able to write there.
const StateDir = "/run/tare"

// NewState returns the directory for the containers of a tree of control groups. It creates the directory if necessary.
func NewState(tree string) (string, error) { return newState(StateDir, tree) }

func newState(base, tree string) (string, error) {
	dir := filepath.Join(base, tree)
	err := os.MkdirAll(dir, 0o711)
	for _, d := range []string{base, dir} {
		if err == nil {
			err = own(d, fs.ModeDir)
		}
	}
	if err != nil {
		return "", fmt.Errorf("making a directory for containers: %w", err)
	}
	return dir, nil
}

// RemoveState removes the state of the containers of a tree, together with the containers, mounts and control groups
// that are left. It returns the containers that it found.
func RemoveState(ctx context.Context, tree string) (left []string, err error) {
	left, err = removeState(ctx, StateDir, tree)
	_ = os.Remove(StateDir) // it may not be empty
	return left, err
}

// removeState does the same as RemoveState, below base instead of StateDir.
func removeState(ctx context.Context, base, tree string) (left []string, err error) {
	dir := filepath.Join(base, tree)
	for _, d := range []string{base, dir} {
		if err := own(d, fs.ModeDir); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, fmt.Errorf("looking for containers left behind: %w", err)
		}
	}
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	var ids []string
	for _, e := range entries {
		j, err := readJob(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // without a job there is no container yet
		}
		if _, err := j.Container.State(ctx); err == nil {
			left = append(left, "the container "+j.Container.ID+" of "+j.Container.Runtime.Name)
		}
		errs = append(errs, j.Abandon(ctx))
		ids = append(ids, j.Container.ID)
	}
	errs = append(errs, endInside(tree, ids))
	_, err = Unmount(dir) // runsc keeps a network namespace mounted in its state
	if err := errors.Join(append(errs, err)...); err != nil {
		return left, err
	}
	if err := files.RemoveAll(dir); err != nil {
		return left, fmt.Errorf("removing the state of containers: %w", err)
	}
	return left, removeGroups(tree)
}

// Clean removes what is left of the containers of runs that have ended, and returns the directories of their state. In
// a dry run (o.Dry), it only returns the directories. It must be called before the processes in the runs' control
// groups are ended, because the runtime's delete command removes more than processes.
func Clean(o kind.Owners) (removed []string, err error) {
	var errs []error
	entries, err := os.ReadDir(StateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("looking for containers left behind: %w", err))
	}
	for _, e := range entries {
		dir := filepath.Join(StateDir, e.Name())
		if own(dir, fs.ModeDir) != nil || !o.Ended(e.Name(), "the directory "+dir) {
			continue
		}
		if o.Dry() {
			removed = append(removed, dir)
			continue
		}
		// A runtime that is still running could create what is being removed here.
		err := o.EndMarked(e.Name())
		if err == nil {
			_, err = removeState(context.Background(), StateDir, e.Name())
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	if !o.Dry() {
		_ = os.Remove(StateDir) // it may not be empty
	}
	return removed, errors.Join(errs...)
}

// CleanGroups removes the control groups of ended runs that are left because runtimes, not Tare, made them. It must be
// called after the processes in the groups have ended.
func CleanGroups(l *cgroup.Layout, o kind.Owners) error {
	trees := map[string]bool{}
	for i := range l.Hierarchies {
		entries, _ := os.ReadDir(l.Hierarchies[i].Mount) // an unreadable hierarchy has no groups of Tare's
		for _, e := range entries {
			if e.IsDir() && o.Ended(e.Name(), "the control groups") {
				trees[e.Name()] = true
			}
		}
	}
	if o.Dry() {
		return nil
	}
	var errs []error
	for tree := range trees {
		errs = append(errs, removeGroups(tree))
	}
	return errors.Join(errs...)
}

// own returns an error unless the content of the file at a path can be trusted: the file must be of the given type
// (fs.ModeDir, or 0 for a regular file), and only this user and root may be able to write to it.
func own(path string, of fs.FileMode) error {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != of {
		err = errors.New("something else is in its place")
	}
	if err == nil {
		err = files.CheckPrivate(info, files.OthersWrite)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// readJob reads the job in a directory whose parent no other user can write to. If the job's runtime is one of Tare's
// own, the job names it by a link to the run's binary. After the run was killed, the link may be dangling or lead to
// another program, so readJob replaces it by this process's binary.
func readJob(dir string) (j Job, err error) {
	path := filepath.Join(dir, jobFile)
	if err := errors.Join(own(dir, fs.ModeDir), own(path, 0)); err != nil {
		return j, err
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err != nil {
		return j, fmt.Errorf("reading the job of a container: %w", err)
	}
	runtime := &j.Container.Runtime
	if len(runtime.Argv) == 0 {
		return j, errors.New("reading the job of a container: it names no runtime")
	}
	if sandbox.LaunchOf(runtime.Name).Own {
		binary, err := self.Path()
		if err != nil {
			return j, err
		}
		*runtime, err = Find(runtime.Name, binary, nil)
		return j, err
	}
	return j, nil
}

// killTime limits the wait for killed processes to end.
const killTime = 10 * time.Second

// endInside ends the processes in the control groups that runtimes made for the containers of a tree, given the
// containers' ids. A runtime's delete command is not enough: a runtime that was killed while it created a container may
// not know the container, and then deletes nothing. Nor are marks enough, because the process that waits to execute the
// container's program is not marked with the tree.
func endInside(tree string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	dirs, err := treeGroups(tree)
	if err != nil {
		return err
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !slices.Contains(ids, filepath.Base(dir)) })
	inside := func(pid int) bool { return slices.Contains(cgroup.Members(dirs), pid) }
	return child.EndAll(cgroup.Members(dirs), inside, killTime)
}

// treeGroups lists the control groups of a tree, with those below them, in all hierarchies. Children come first.
func treeGroups(tree string) ([]string, error) {
	if tree == "" || strings.ContainsAny(tree, "/.") {
		return nil, fmt.Errorf("%q is no name of a control group", tree)
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return nil, err
	}
	var all []string
	for i := range l.Hierarchies {
		if dir, ok := l.Hierarchies[i].Dir("/" + tree); ok {
			all = append(all, cgroup.Below(dir)...)
		}
	}
	slices.Reverse(all)
	return all, nil
}

// removeGroups removes control groups that runtimes made for a tree in hierarchies in which Tare makes none (devices,
// freezer, blkio and others). They are empty, because their processes have ended with those in the tree's own groups.
func removeGroups(tree string) error {
	dirs, err := treeGroups(tree)
	errs := []error{err}
	for _, d := range dirs {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("removing the control group %s: %w", d, err))
		}
	}
	return errors.Join(errs...)
}

// Unmount unmounts everything that is mounted below a directory in this mount namespace, and returns the mountpoints. A
// mount that is in use is only detached from the directory.
func Unmount(dir string) (found []string, err error) {
	mounts, err := mount.Read("")
	if err != nil {
		return nil, fmt.Errorf("looking for mounts left behind: %w", err)
	}
	var errs []error
	for _, m := range slices.Backward(mounts) { // the last mount first
		if !strings.HasPrefix(m.Point, dir+"/") {
			continue
		}
		found = append(found, m.Point)
		if err := unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", m.Point, err))
		}
	}
	return found, errors.Join(errs...)
}
