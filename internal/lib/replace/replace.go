// Package replace writes files completely or not at all. Links in the place of a file are replaced, not followed, so
// that nobody who can write to a directory makes somebody else write elsewhere.
package replace

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// partSuffix ends the names of files that are being written. They begin with a dot and the name that they will have.
const partSuffix = ".part"

// File makes or replaces the file at a path through a new file beside it, with what the umask leaves of the mode. The
// data is on the disk when it returns.
func File(path string, data []byte, mode fs.FileMode) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(In(root, filepath.Base(path), data, mode), root.Close())
}

// In is File in a directory that is open.
func In(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	part := prefix(name) + rand.Text() + partSuffix
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
		_ = root.Remove(part) // what could not be written can most often be removed
	}
	return err
}

// Sweep removes what writers of the file left that were killed. Nobody else may be writing it.
func Sweep(root *os.Root, name string) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix(name)) && strings.HasSuffix(e.Name(), partSuffix) {
			if e := root.Remove(e.Name()); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

func prefix(name string) string { return "." + name + "-" }
