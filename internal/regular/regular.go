// Package regular opens files that somebody else names or wrote: a pipe or a device in the place of a file could keep
// its reader for ever.
package regular

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is the error of what is no regular file: a directory, a pipe, a device.
var ErrNotRegular = errors.New("it is not a file")

// Open opens a regular file for reading, and waits for nobody. The error of anything else is a *fs.PathError with
// ErrNotRegular.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		if errors.Is(err, unix.ENXIO) { // a socket, or a device that is not there
			err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
		}
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
