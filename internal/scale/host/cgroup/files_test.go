package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"tare/test/rights"
)

// TestMembersForbidden: the members of the other groups are returned even if one group may not be read.
func TestMembersForbidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose group is hidden then")
	}
	top := t.TempDir()
	for i, group := range []string{"a/below", "b", "c/below"} {
		dir := filepath.Join(top, group)
		if err := errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0\n"+strconv.Itoa(i+7)+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Dir(top), 0o755), os.Chmod(filepath.Join(top, "a"), 0o700)); err != nil {
		t.Fatal(err)
	}
	rights.Without(t, func() {
		if got := Members([]string{filepath.Join(top, "none"), top}); !slices.Equal(got, []int{8, 9}) {
			t.Errorf("members %v, want 8 and 9", got)
		}
		var unread []string
		err := Walk(top, func(string, int) {}, func(rel string, err error) {
			if errors.Is(err, unix.EACCES) {
				unread = append(unread, rel)
			}
		})
		if err != nil || !slices.Equal(unread, []string{"/a"}) {
			t.Errorf("unread %q, %v", unread, err)
		}
	})
	if got := Members([]string{top}); !slices.Equal(got, []int{7, 8, 9}) {
		t.Errorf("members %v with all rights", got)
	}
}

// TestWriteReclaim: if the kernel cannot reclaim all memory of a group, Write returns an error and does not wait.
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
