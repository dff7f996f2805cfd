package files

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// partSuffix is the end of the names of files that are being written. These names begin with a dot and the final name.
const partSuffix = ".part"

// Replace creates or replaces the file at path, completely or not at all: it writes a new file in the same directory,
// with the mode that the umask leaves, renames it, and waits until all that is on disk. A symbolic link at path is
// replaced, not followed, so another user with write access to the directory cannot redirect the write.
func Replace(path string, data []byte, mode fs.FileMode) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(ReplaceIn(root, filepath.Base(path), data, mode), root.Close())
}

// ReplaceIn is like Replace, in an open directory.
func ReplaceIn(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	part := partPrefix(name) + rand.Text() + partSuffix
	f, err := root.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		_ = root.Remove(part) // usually possible, even if the file could not be written
		return err
	}
	return syncNames(root)
}

// syncNames waits until the names in a directory are on disk: after a power failure, files that are written later must
// not exist without these names. Some network file systems cannot do that.
func syncNames(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// SweepParts removes the partial files that killed writers of name left behind. No other writer may be active.
func SweepParts(root *os.Root, name string) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix(name)) && strings.HasSuffix(e.Name(), partSuffix) {
			if e := root.Remove(e.Name()); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

func partPrefix(name string) string { return "." + name + "-" }
