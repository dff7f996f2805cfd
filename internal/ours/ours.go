// Package ours tells whether a file or a directory is this user's and root's alone. Where it is not, somebody else can
// put a link in the place of a file that is about to be written, or change what is about to be read.
package ours

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// What others must not be able to do, as the bits of a mode.
const (
	Write fs.FileMode = 0o022
	All   fs.FileMode = 0o077
)

// Check says why a file or a directory is not this user's and root's alone: it belongs to another user, or its mode has
// some of the bits of mask.
func Check(info fs.FileInfo, mask fs.FileMode) error {
	switch s, known := info.Sys().(*syscall.Stat_t); {
	case !known:
		return errors.New("nobody knows whom it belongs to")
	case s.Uid != 0 && int64(s.Uid) != int64(os.Geteuid()):
		return fmt.Errorf("it belongs to another user (%d)", s.Uid)
	}
	mode := info.Mode().Perm()
	switch {
	case mode&mask&Write != 0:
		return fmt.Errorf("others may write to it (its mode is %#o)", mode)
	case mode&mask != 0:
		return fmt.Errorf("others may read it (its mode is %#o)", mode)
	}
	return nil
}

// CheckShared says why somebody else could take things in a directory away, or put others in their place: as Check
// does, but in a directory with the sticky bit, as /tmp has it, all may write.
func CheckShared(info fs.FileInfo) error {
	mask := Write
	if info.Mode()&fs.ModeSticky != 0 {
		mask = 0
	}
	return Check(info, mask)
}
