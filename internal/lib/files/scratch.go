package files

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// scratchPrefix begins the names of scratch directories.
const scratchPrefix = "tare-scratch-"

// Scratch is a private temporary directory, locked while it is open. Only its owner can list it, but processes of
// other users can open a file in it whose name they know.
type Scratch struct {
	path string
	fd   int // -1 after Close
}

// LargeTemp returns the directory for large temporary files: TMPDIR if it is set, or else /var/tmp
// (file-hierarchy(7)), or /tmp if that does not exist. It prefers /var/tmp because files in /tmp may be kept in memory,
// which the kernel charges to the process that writes them.
func LargeTemp() string {
	const disk = "/var/tmp"
	if info, err := os.Stat(disk); os.Getenv("TMPDIR") != "" || err != nil || !info.IsDir() {
		return os.TempDir()
	}
	return disk
}

// NewScratch creates a directory in parent, or in the system's directory for temporary files if parent is empty. Before
// that it removes the scratch directories that killed processes have left there, unless another user could have
// renamed directories there. The purpose, a word, is part of the directory's name.
//
// NewScratch fails in a system directory in which another user could replace what it creates, because other processes
// receive names of files in it. A caller that passes another parent should access the created directory by FD, which
// nobody can replace, and not by its path.
func NewScratch(parent, purpose string) (*Scratch, error) {
	parent = cmp.Or(parent, os.TempDir())
	if parent == os.TempDir() || parent == LargeTemp() {
		if err := CheckPath(parent); err != nil {
			return nil, fault.Wrap(err, fault.Machine, parent, "set TMPDIR to a directory of your own, or unset it",
				"temporary files are not safe here")
		}
	}
	// Ignore leftovers that cannot be removed. If parent does not exist, MkdirTemp fails below.
	_, _ = cleanScratch(parent, false)
	for {
		path, err := os.MkdirTemp(parent, scratchPrefix+purpose+"-")
		if err != nil {
			return nil, cannotMake(err, parent)
		}
		fd, err := retryOpen(path, openDir)
		if err == nil {
			err = lockScratch(fd, path, unix.LOCK_SH)
		}
		if err == nil {
			err = unix.Fchmod(fd, 0o711)
		}
		if err == nil {
			return &Scratch{path, fd}, nil
		}
		if fd >= 0 {
			_ = unix.Close(fd) // the descriptor was only used for the lock
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed it before it was locked
		}
		return nil, errors.Join(cannotMake(err, path), os.Remove(path))
	}
}

func cannotMake(err error, path string) error {
	return fault.Wrap(err, fault.Machine, path, "give a directory that can be written",
		"no directory for files can be made")
}

// Path returns the path of the directory; empty if d is nil.
func (d *Scratch) Path() string {
	if d == nil {
		return ""
	}
	return d.path
}

// FD returns the descriptor of the directory, which is open until Close.
func (d *Scratch) FD() int { return d.fd }

// Close removes the directory and everything in it. It does nothing if it was called before, or if d is nil.
func (d *Scratch) Close() error {
	if d == nil || d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	return remove(d.path, fd)
}

// CleanScratch removes the directories that ended processes have left in the system's directories for temporary files,
// and returns the removed paths. It leaves alone directories in use by a living process, directories of other users or
// to which others can write, mounts, and everything without a name from NewScratch. A dry run removes nothing, and
// returns the paths that it would remove.
func CleanScratch(dryRun bool) (removed []string, err error) {
	removed, err = cleanScratch(os.TempDir(), dryRun)
	if large := LargeTemp(); large != os.TempDir() {
		more, err2 := cleanScratch(large, dryRun)
		removed, err = append(removed, more...), errors.Join(err, err2)
	}
	return removed, err
}

// cleanScratch is CleanScratch for one directory. It removes nothing if other users may rename files there, because
// they could give any directory of this user such a name.
func cleanScratch(parent string, dryRun bool) (removed []string, err error) {
	if CheckPath(parent) != nil {
		return nil, nil
	}
	entries, err := os.ReadDir(parent)
	dir := -1
	if err == nil {
		dir, err = retryOpen(parent, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for directories that were left behind: %w", err)
	}
	defer unix.Close(dir)
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), scratchPrefix) {
			continue
		}
		path := filepath.Join(parent, e.Name())
		// Do not enter mounts: they are not Tare's, and a file system that a user mounted may list files without end.
		fd, err := openHow(dir, e.Name(), openDir, unix.RESOLVE_NO_XDEV)
		if err != nil {
			continue
		}
		if lockScratch(fd, path, unix.LOCK_EX|unix.LOCK_NB) != nil {
			_ = unix.Close(fd) // it is in use, belongs to another user, or is gone
			continue
		}
		if dryRun {
			_ = unix.Close(fd) // nothing was changed
		} else if err := remove(path, fd); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}

// openDir are the flags with which scratch directories are opened.
const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW

// lockScratch locks the open directory at a path. It returns fs.ErrNotExist if the directory was removed meanwhile.
func lockScratch(fd int, path string, lock int) (err error) {
	var mine, there unix.Stat_t
	for err = unix.EINTR; err == unix.EINTR; { // interrupted by a signal of the Go runtime
		err = unix.Flock(fd, lock)
	}
	if err == nil {
		err = errors.Join(unix.Fstat(fd, &mine), unix.Lstat(path, &there))
	}
	switch {
	case err == nil && (mine.Dev != there.Dev || mine.Ino != there.Ino):
		err = fs.ErrNotExist // another directory has taken its place
	case err == nil && (mine.Uid != uint32(os.Geteuid()) || mine.Mode&uint32(OthersWrite) != 0):
		err = fs.ErrPermission // another user owns it or may write to it
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", path, err)
	}
	return nil
}

// remove empties the directory open at fd, removes it from its path, and closes it. The lock is held until the
// directory is gone: otherwise a process waiting for the lock of a directory that it has just created would still find
// it there.
func remove(path string, fd int) error {
	dir := os.NewFile(uintptr(fd), path)
	err := empty(dir)
	if err == nil {
		err = gone(unix.Rmdir(path))
	}
	err = errors.Join(err, dir.Close())
	return fault.Wrap(err, fault.Machine, path, "run 'tare clean'", "a temporary directory cannot be removed")
}

// RemoveAll removes what is at a path, with everything in it if it is a directory. Unlike os.RemoveAll, it enters no
// mounts, because mounted files were not created there: it leaves them, and the directories above them, and returns an
// error that names the mount. A missing file is not an error.
func RemoveAll(path string) error {
	dir, err := retryOpen(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return pathError(path, gone(err))
	}
	defer unix.Close(dir)
	return removeEntry(path, dir, filepath.Base(path))
}

// empty removes everything in an open directory. It follows no links and enters no mounts, because mounted files were
// not created here. A missing file is not an error.
func empty(dir *os.File) error {
	names, err := dir.Readdirnames(-1)
	errs := []error{gone(err)}
	for _, name := range names {
		errs = append(errs, removeEntry(filepath.Join(dir.Name(), name), int(dir.Fd()), name))
	}
	return errors.Join(errs...)
}

// removeEntry removes the entry with a name from the directory open at fd.
func removeEntry(path string, fd int, name string) error {
	err := gone(unix.Unlinkat(fd, name, 0))
	if err != unix.EISDIR {
		return pathError(path, err)
	}
	below, err := unix.Openat2(fd, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if err == unix.EXDEV {
		return fmt.Errorf("something is mounted on %s: unmount it first", path)
	}
	if err != nil {
		return pathError(path, gone(err))
	}
	inner := os.NewFile(uintptr(below), path)
	if err := errors.Join(empty(inner), inner.Close()); err != nil {
		return err
	}
	return pathError(path, gone(unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)))
}

func pathError(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// gone returns nil for the error that a file does not exist.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
