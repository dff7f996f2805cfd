// Package self describes the running binary: its version, and a path to it that stays valid if the file is replaced,
// so that all processes of a run are of the same build.
package self

import (
	"fmt"
	"os"
	"path/filepath"
)

// Path returns a path of this process's own binary. If the process was started by an absolute path that still leads to
// its binary, such as a path from Link, Path returns that path (os.Args[0]).
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

// isOwn reports whether a path leads to the binary of this process.
func isOwn(path string) bool {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	at, err := os.Stat(path)
	return err == nil && os.SameFile(own, at)
}

// Link creates a path in dir that leads to the binary of this process while this process lives, even if the file is
// replaced. Processes started by this path have the name tare, like all processes of this program. Processes of other
// users cannot follow the link.
func Link(dir string) (string, error) {
	path := filepath.Join(dir, "tare")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/exe", os.Getpid()), path); err != nil {
		return "", fmt.Errorf("linking the tare binary: %w", err)
	}
	return path, nil
}
