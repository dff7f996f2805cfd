package write

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/fault"
)

// prefix begins the names of the directories that loads make.
const prefix = "tare-write-"

// directory is one that a load has made, open and locked.
type directory struct {
	path string
	fd   int
}

// newDirectory makes a directory of one's own below parent, or below the system's for temporary files where that is
// empty, and removes what loads that were killed have left there.
func newDirectory(parent string) (*directory, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	_, _ = Clean(parent) // what cannot be removed is no obstacle; a directory that is not there shows below
	for {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, cannotMake(err, parent)
		}
		fd, err := openDirectory(path, unix.LOCK_SH)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a load that cleaned up saw it before it was locked
		}
		if err != nil {
			return nil, errors.Join(cannotMake(err, path), os.Remove(path))
		}
		return &directory{path, fd}, nil
	}
}

func cannotMake(err error, path string) error {
	return fault.Wrap(err, fault.Machine, path, "give a directory that can be written",
		"the load has no place for its files")
}

// openDirectory opens and locks the directory at a path. It is fs.ErrNotExist where the directory was removed
// meanwhile.
func openDirectory(path string, lock int) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var mine, there unix.Stat_t
	if err = again(func() error { return unix.Flock(fd, lock) }); err == nil {
		err = errors.Join(unix.Fstat(fd, &mine), unix.Lstat(path, &there))
	}
	switch {
	case err == nil && (mine.Dev != there.Dev || mine.Ino != there.Ino):
		err = fs.ErrNotExist // another is in its place
	case err == nil && mine.Uid != uint32(os.Geteuid()):
		err = fs.ErrPermission // somebody else's is left alone
	}
	if err != nil {
		_ = unix.Close(fd) // it was only looked at
		return -1, fmt.Errorf("locking %s: %w", path, err)
	}
	return fd, nil
}

// close removes the directory with everything in it.
func (d *directory) close() error {
	if d.fd < 0 {
		return nil
	}
	err := remove(d.path, d.fd)
	d.fd = -1
	return err
}

// remove empties the directory open at fd, closes it, and removes it from its path. It follows no link, and what is
// gone already is no error.
func remove(path string, fd int) error {
	dir := os.NewFile(uintptr(fd), path)
	names, err := dir.Readdirnames(-1)
	errs := []error{gone(err)}
	for _, name := range names {
		errs = append(errs, gone(unix.Unlinkat(fd, name, 0)))
	}
	errs = append(errs, gone(unix.Rmdir(path)), dir.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}

// gone leaves out the error that something is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Clean removes what loads that were killed left behind in a directory, or in the system's for temporary files where
// that is empty, and gives the paths that it removed. A directory that a living load holds is left alone, and so is
// everything that is not of this user and named as loads name theirs.
func Clean(parent string) (removed []string, err error) {
	if parent == "" {
		parent = os.TempDir()
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("looking for what loads have left behind: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		path := filepath.Join(parent, e.Name())
		fd, err := openDirectory(path, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue // a load has it, or it is not ours, or it has gone
		}
		if err := remove(path, fd); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}
