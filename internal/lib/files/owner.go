// Package files opens, checks and writes files safely in directories where other users may write too. It has six
// parts: checks of who may change a path (owner.go), opening only regular files (regular.go), opening only files below
// a directory that acts as the root (tree.go), replacing a file completely or not at all (replace.go), temporary
// directories that "tare clean" can find and remove (scratch.go), and closing descriptors cheaply (raw.go).
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// OthersWrite and OthersAny are the mode bits that other users must not have: permission to write, or any at all.
const (
	OthersWrite fs.FileMode = 0o022
	OthersAny   fs.FileMode = 0o077
)

// CheckPrivate returns an error if a file or directory does not belong to this user or root, or if its mode has bits
// of mask.
func CheckPrivate(info fs.FileInfo, mask fs.FileMode) error {
	if err := checkOwner(info); err != nil {
		return err
	}
	return checkMode(info, mask)
}

func checkMode(info fs.FileInfo, mask fs.FileMode) error {
	mode := info.Mode().Perm()
	switch {
	case mode&mask&OthersWrite != 0:
		return fmt.Errorf("others may write to it (its mode is %#o)", mode)
	case mode&mask != 0:
		return fmt.Errorf("others may read it (its mode is %#o)", mode)
	}
	return nil
}

func checkOwner(info fs.FileInfo) error {
	switch owner, known := ownerOf(info); {
	case !known:
		return errOwner
	case owner != 0 && int64(owner) != int64(os.Geteuid()):
		return fmt.Errorf("it belongs to another user (%d)", owner)
	}
	return nil
}

var errOwner = errors.New("its owner is unknown")

func ownerOf(info fs.FileInfo) (uid uint32, known bool) {
	s, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, false
	}
	return s.Uid, true
}

// CheckShared returns an error if another user could remove or replace files in a directory. It is like CheckPrivate,
// but accepts a directory with the sticky bit, such as /tmp, to which all may write.
func CheckShared(info fs.FileInfo) error {
	mask := OthersWrite
	if info.Mode()&fs.ModeSticky != 0 {
		mask = 0
	}
	return CheckPrivate(info, mask)
}

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// CheckPath returns an error if another user could replace the directory at a path: because others can remove files in
// a directory on the way (CheckShared), or because a link on the way belongs to another user. It accepts paths that do
// not exist yet.
func CheckPath(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	at, rest, links := "/", strings.Split(path, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "..": // from a link, because Abs leaves none
			at = filepath.Dir(at)
			continue
		case ".":
			continue
		}
		next := filepath.Join(at, name) // the root itself for an empty name
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case info.Mode().Type() != fs.ModeSymlink:
			if err := CheckShared(info); err != nil {
				return fmt.Errorf("%s: %w", next, err)
			}
			at = next
			continue
		}
		if err := checkOwner(info); err != nil {
			return fmt.Errorf("the link %s: %w", next, err)
		}
		if links++; links > maxLinks {
			return fmt.Errorf("there are more than %d links on the way", maxLinks)
		}
		to, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return nil
}
