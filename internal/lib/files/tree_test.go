package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTree: links stay within the tree, and below a directory of another user none is followed.
func TestTree(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, "tree", name) }
	if err := errors.Join(
		os.MkdirAll(at("dir/below"), 0o755), os.MkdirAll(at("data"), 0o755),
		os.WriteFile(at("data/file"), []byte("in the tree"), 0o644),
		os.WriteFile(filepath.Join(base, "file"), []byte("outside"), 0o644),
		os.WriteFile(at("large"), make([]byte, 2000), 0o644),
		os.Symlink("/data/file", at("dir/absolute")), os.Symlink("../data/file", at("dir/relative")),
		os.Symlink("../../../../../../../../"+base+"/file", at("dir/far")), os.Symlink(base+"/file", at("dir/out")),
		os.Symlink("/data", at("dir/data")), os.Symlink("/proc/self/root"+base, at("dir/magic")),
		os.WriteFile(at("dir/below/file"), []byte("below"), 0o644), unix.Mkfifo(at("dir/pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		below, path, want string
		err               error
	}{
		{"", "/data/file", "in the tree", nil},
		{"", "data/file", "in the tree", nil},
		{"", "/dir/absolute", "in the tree", nil},
		{"", "/dir/relative", "in the tree", nil},
		{"", "/dir/data/file", "in the tree", nil},
		{"", "/../../data/file", "in the tree", nil},
		{"", "/dir/far", "", fs.ErrNotExist},
		{"", "/dir/out", "", fs.ErrNotExist},
		{"", "/dir/magic/file", "", fs.ErrNotExist},
		{"", "/dir/pipe", "", ErrNotRegular},
		{"", "/dir", "", ErrNotRegular},
		{"/dir", "/below/file", "below", nil},
		{"/dir/data", "file", "in the tree", nil}, // links on the way to Below are followed
		{"/dir", "/relative", "", unix.ELOOP},
		{"/dir", "/data/file", "", unix.ELOOP},
		{"/dir", "/../data/file", "", unix.EXDEV},
		{"/none", "/file", "", fs.ErrNotExist},
	} {
		tree := Tree{Root: filepath.Join(base, "tree"), Below: c.below}
		got, err := tree.Read(c.path, 1024, func(fs.FileInfo) error { return nil })
		if string(got) != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s, %s: %q, %v; want %q, %v", c.below, c.path, got, err, c.want, c.err)
		}
	}
	tree := Tree{Root: filepath.Join(base, "tree")}
	accept := func(fs.FileInfo) error { return nil }
	if _, err := tree.Read("/large", 1024, accept); err == nil || !strings.Contains(err.Error(), "more than 1 KiB") {
		t.Errorf("a large file: %v", err)
	}
	refused := errors.New("refused")
	if _, err := tree.Read("/data/file", 1024, func(fs.FileInfo) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("%v, want %v", err, refused)
	}
	names, err := tree.Names("/dir", 100)
	if want := []string{"absolute", "below", "data", "far", "magic", "out", "pipe", "relative"}; err != nil ||
		!slices.Equal(names, want) {
		t.Errorf("%q, %v; want %q", names, err, want)
	}
	if names, err := tree.Names("/dir", 3); err != nil || len(names) != 3 {
		t.Errorf("%q, %v; want three", names, err)
	}
	if names, err := tree.Names("/dir/below", 1); err != nil || len(names) != 1 {
		t.Errorf("%q, %v; want one", names, err)
	}
	if info, err := tree.Stat("/dir/data"); err != nil || !info.IsDir() {
		t.Errorf("%v, %v; want a directory", info, err)
	}
	if _, err := (Tree{}).Stat("/proc/self"); err != nil {
		t.Error(err)
	}
	if _, err := tree.Stat("/dir/far"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestOwnedBy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		owner int
		mode  fs.FileMode
		user  uint32
		want  string
	}{
		{0, 0o644, 0, ""},
		{1000, 0o644, 1000, ""},
		{0, 0o644, 1000, "it belongs to another user (0)"},
		{1000, 0o644, 0, "it belongs to another user (1000)"},
		{0, 0o664, 0, "others may write to it (its mode is 0664)"},
	} {
		if err := errors.Join(os.Chown(file, c.owner, c.owner), os.Chmod(file, c.mode)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := OwnedBy(c.user)(info); (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%d, %v: %v, want %q", c.owner, c.mode, err, c.want)
		}
	}
}
