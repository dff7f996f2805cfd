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

// Tree is a directory that acts as the root of a machine, such as /host in a container or a directory of test files.
// Links below it, including absolute ones, are resolved as if it were the root, so none leads out of it.
type Tree struct {
	Root string // empty: /
	// Below is a directory of the tree in which another user may create links. Paths then begin there, and are not
	// resolved through links or into mounts below it.
	Below string
}

// open opens the file at a path of the tree, with flags for open(2) such as O_RDONLY.
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

// openHow calls openat2(2), available since Linux 5.6, which fails with EAGAIN if something is renamed meanwhile.
func openHow(dir int, path string, flags int, resolve uint64) (int, error) {
	const tries = 100
	for i := 0; ; i++ {
		fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve})
		if i == tries || err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// Read is like the function Read, for a file in the tree. It calls accept with the file's info before reading it, and
// returns its error.
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

// Names returns the names of the entries of a directory of the tree, sorted. If there are more than most, it returns
// only the first ones that the kernel listed, in an order that depends on the file system.
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

// Stat describes what is at a path of the tree, without opening it for reading. The error is a *fs.PathError.
func (t Tree) Stat(path string) (fs.FileInfo, error) {
	fd, err := t.open(path, unix.O_PATH)
	if err != nil {
		return nil, t.pathError("open", path, err)
	}
	f := os.NewFile(uintptr(fd), t.path(path))
	defer f.Close()
	return f.Stat()
}

// path returns the path by which the caller sees a path of the tree, without resolving links.
func (t Tree) path(path string) string { return filepath.Join("/", t.Root, t.Below, path) }

func (t Tree) pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: t.path(path), Err: err}
}

// OwnedBy returns a function that accepts only files that belong to a user and to which no other user may write.
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
