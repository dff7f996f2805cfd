package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is a directory that stands for the root of a machine, such as /host in a container or a tree of test files.
// Links below it, absolute ones too, are followed as if it were the root, so that none leads out of it.
type Tree struct {
	Root string // empty: /
	// Below is a directory of the tree in which another user may make links: paths begin there, and no link on them is
	// followed, nor anything that is mounted below it.
	Below string
}

// open opens the file at a path of the tree. The flags are those of open(2).
func (t Tree) open(path string, flags int) (int, error) {
	root := t.Root
	if root == "" {
		root = "/"
	}
	dir, err := retryOpen(root, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer func() { unix.Close(dir) }()
	resolve := uint64(unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS)
	if t.Below != "" {
		below, err := openHow(dir, t.Below, unix.O_PATH|unix.O_DIRECTORY, resolve)
		if err != nil {
			return -1, err
		}
		unix.Close(dir)
		dir, resolve = below, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV
		path = strings.TrimPrefix(path, "/")
	}
	return openHow(dir, path, flags, resolve)
}

// openHow is openat2(2), which Linux 5.6 brought. It fails with EAGAIN where something was renamed meanwhile.
func openHow(dir int, path string, flags int, resolve uint64) (int, error) {
	const tries = 100
	for i := 0; ; i++ {
		fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve})
		if i == tries || err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// Read is Read of a file in the tree. accept sees what the file is before it is read; its error is returned.
func (t Tree) Read(path string, most int64, accept func(fs.FileInfo) error) ([]byte, error) {
	refused := func(err error) ([]byte, error) { return nil, t.pathError("open", path, err) }
	place, err := t.open(path, unix.O_PATH)
	if err != nil {
		return refused(err)
	}
	defer unix.Close(place)
	f, err := openPlace(place, t.path(path))
	if err != nil {
		return refused(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = accept(info)
	}
	if err != nil {
		return refused(err)
	}
	return readBounded(f, most)
}

// Names lists a directory of the tree, in the order of names, and no more of it than most entries.
func (t Tree) Names(path string, most int) ([]string, error) {
	fd, err := t.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, t.pathError("open", path, err)
	}
	dir := os.NewFile(uintptr(fd), t.path(path))
	defer dir.Close()
	names, err := dir.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.Sort(names)
	return names, err
}

// Check returns why nothing can be found at a path of the tree: a *fs.PathError.
func (t Tree) Check(path string) error {
	fd, err := t.open(path, unix.O_PATH)
	if err != nil {
		return t.pathError("open", path, err)
	}
	unix.Close(fd)
	return nil
}

// path is where a path of the tree is for its reader, apart from links.
func (t Tree) path(path string) string { return filepath.Join("/", t.Root, t.Below, path) }

func (t Tree) pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: t.path(path), Err: err}
}

// OwnedBy accepts files that belong to a user and that no other user may write to.
func OwnedBy(user uint32) func(fs.FileInfo) error {
	return func(info fs.FileInfo) error {
		switch owner, known := ownerOf(info); {
		case !known:
			return errOwner
		case owner != user:
			return fmt.Errorf("it belongs to another user (%d)", owner)
		}
		return checkMode(info, OthersWrite)
	}
}
