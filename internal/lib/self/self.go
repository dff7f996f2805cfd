// Package self describes the running binary: its path, as it was when the run began, so that a binary replaced during a
// run starts no process of that run, and its version.
package self

import (
	"fmt"
	"os"
	"path/filepath"
)

// Path is a path of this process's own binary. A process that was started by a path that Link made has that for its
// first argument, and goes on using it.
func Path() (string, error) {
	if given := os.Args[0]; filepath.IsAbs(given) && isOwn(given) {
		return given, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the tare binary: %w", err)
	}
	return path, nil
}

// isOwn says whether a path leads to the binary of this process.
func isOwn(path string) bool {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	at, err := os.Stat(path)
	return err == nil && os.SameFile(own, at)
}

// Link makes a path in dir that leads to the binary of this process, as long as this process lives and whatever is put
// in the place of the file. Processes that are started by it are called as others of tare are. Those of other users
// cannot follow it.
func Link(dir string) (string, error) {
	path := filepath.Join(dir, "tare")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/exe", os.Getpid()), path); err != nil {
		return "", fmt.Errorf("linking the tare binary: %w", err)
	}
	return path, nil
}
