package authority

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
)

// private is a directory in which no other user can create files. Keys are kept there with mode 0600.
type private struct {
	path string
	root *os.Root
}

const privateHint = "name a directory of your own that nobody else can write (chmod go-w)"

// openPrivate opens a directory. It refuses one that belongs to another user, or that other users can write to.
func openPrivate(path string) (*private, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, path, privateHint, "the directory for keys cannot be opened")
	}
	info, err := root.Stat(".")
	if err == nil {
		err = files.CheckPrivate(info, files.OthersWrite)
	}
	if err != nil {
		_ = root.Close() // nothing was changed in it
		return nil, fault.Wrap(err, fault.Usage, path, privateHint, "keys cannot be kept here")
	}
	return &private{path, root}, nil
}

func (d *private) close() { _ = d.root.Close() } // files are closed, and their errors checked, where they are used

func (d *private) at(name string) string { return filepath.Join(d.path, name) }

// write makes or replaces a file of mode 0600 by rename. A link in its place is replaced, not followed.
func (d *private) write(name string, text []byte) error {
	return fault.Wrap(files.ReplaceIn(d.root, name, text, 0o600), fault.Machine, d.at(name), privateHint,
		"keys cannot be written")
}

// sweep removes the leftovers of a write that was killed.
func (d *private) sweep(name string) error {
	return fault.Wrap(files.SweepParts(d.root, name), fault.Machine, d.path, privateHint,
		"temporary files cannot be removed")
}

// maxFile is the maximum size of a file that is read, in bytes.
const maxFile = 64 << 10

// read reads a regular file that only its owner can read. It does not follow links. If there is no file, the error
// wraps fs.ErrNotExist.
func (d *private) read(name string) ([]byte, error) {
	text, err := d.readOurs(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, d.at(name), "it must be a file of your own with mode 0600",
			"the file cannot be used")
	}
	return text, nil
}

func (d *private) readOurs(name string) ([]byte, error) {
	info, err := d.root.Lstat(name) // no other user can replace it
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxFile)
	}
	if err := files.CheckPrivate(info, files.OthersAny); err != nil {
		return nil, err
	}
	return d.root.ReadFile(name)
}

// lock locks the directory for this process, until the returned file is closed.
func (d *private) lock() (*os.File, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, fault.Wrap(err, fault.Machine, d.path, privateHint, "the directory cannot be locked")
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written to it
		return nil, fault.Wrap(err, fault.Usage, d.path, "end it, or name another directory",
			"another process uses this directory")
	}
	return f, nil
}
