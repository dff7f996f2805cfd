package files

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	umask := unix.Umask(0o022)
	defer unix.Umask(umask)
	for _, c := range []struct{ mode, umask, want fs.FileMode }{
		{0o644, 0o022, 0o644}, {0o644, 0o077, 0o600}, {0o600, 0o022, 0o600},
		{0o600, 0, 0o600}, {0o644, 0, 0o644}, {0o644, 0o027, 0o640},
	} {
		unix.Umask(int(c.umask))
		if err := Replace(path, []byte(c.mode.String()), c.mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if text, _ := os.ReadFile(path); err != nil || info.Mode() != c.want || string(text) != c.mode.String() {
			t.Errorf("%v with a umask of %#o: %v, %v: %q", c.mode, c.umask, info.Mode(), err, text)
		}
	}
	unix.Umask(0o077)
	if err := errors.Join(os.WriteFile(other, []byte("theirs"), 0o600), os.Remove(path),
		os.Symlink(other, path)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(other); string(text) != "theirs" {
		t.Errorf("a link was followed: %q", text)
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("there is %v, %v", info.Mode(), err)
	}
	if all := names(t, dir); !slices.Equal(all, []string{"file", "other"}) {
		t.Errorf("there are %q", all)
	}
}

// TestReplaceFails: a write that fails leaves nothing behind, and the file is as it was before.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "taken", "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "taken"), []byte("text"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if err := Replace(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	// A disk of one page.
	full := filepath.Join(dir, "full")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", full, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("needs to mount a file system: %v", err)
	}
	defer unix.Unmount(full, 0)
	path := filepath.Join(full, "file")
	if err := Replace(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, bytes.Repeat([]byte("x"), 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "text" {
		t.Errorf("the file is %q", text)
	}
	if all := append(names(t, dir), names(t, full)...); !slices.Equal(all, []string{"full", "taken", "file"}) {
		t.Errorf("there are %q", all)
	}
}

func TestSweepParts(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"file", ".file", ".file-x.part", ".file-y.part", ".files-x.part", ".file-x.partly"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := SweepParts(root, "file"); err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(names(t, dir), " "); all != ".file .file-x.partly .files-x.part file" {
		t.Errorf("left are %s", all)
	}
}
