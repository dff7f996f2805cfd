package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWriteReclaim: what the kernel cannot take back of a group is an error, and nothing to wait for.
func TestWriteReclaim(t *testing.T) {
	l, err := Discover(Roots{})
	if err != nil {
		t.Skip(err)
	}
	h, ok := l.Controller("memory")
	if !ok || !h.V2 || os.Geteuid() != 0 {
		t.Skip("needs root, and the memory controller on version 2 of control groups")
	}
	dir := filepath.Join(h.Mount, "tare-test-reclaim-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip(err)
	}
	defer os.Remove(dir)
	err = Write(filepath.Join(dir, "memory.reclaim"), "1073741824")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("memory.reclaim came with Linux 5.19, and where memory is enabled below the root")
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("taking back 1 GiB of an empty group: %v", err)
	}
}
