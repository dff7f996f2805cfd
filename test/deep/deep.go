// Package deep makes directories whose paths are longer than a single system call accepts (PATH_MAX). Anyone who may
// make control groups can make such paths.
package deep

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Directory makes a directory in the directory that the descriptor parent refers to, and returns a descriptor of the
// new directory. The directory is removed at the end of the test.
func Directory(t *testing.T, parent int, name string) (child int) {
	t.Helper()
	if err := unix.Mkdirat(parent, name, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil {
			t.Error(err)
		}
	})
	child, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(child) })
	return child
}
