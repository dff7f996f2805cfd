package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckPrivate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		owner               int
		mode                os.FileMode
		write, all, inPlace string // the errors; empty: none
	}{
		{0, 0o700, "", "", ""},
		{0, 0o755, "", "others may read it (its mode is 0755)", ""},
		{0, 0o775, "others may write to it (its mode is 0775)", "others may write to it (its mode is 0775)",
			"others may write to it"},
		{0, 0o777, "others may write to it", "others may write to it", "others may write to it"},
		{0, 0o777 | os.ModeSticky, "others may write to it", "others may write to it", ""},
		{12345, 0o700, "it belongs to another user (12345)", "it belongs to another user", "it belongs to another user"},
		{12345, 0o777 | os.ModeSticky, "it belongs to another user", "it belongs to another user",
			"it belongs to another user"},
	} {
		if err := os.Chown(dir, c.owner, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, c.mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		for what, got := range map[string]struct {
			err  error
			want string
		}{"write": {CheckPrivate(info, OthersWrite), c.write}, "all": {CheckPrivate(info, OthersAny), c.all},
			"in place": {CheckShared(info), c.inPlace}} {
			if (got.err == nil) != (got.want == "") || got.err != nil && !strings.Contains(got.err.Error(), got.want) {
				t.Errorf("owner %d, mode %v, %s: %v, want %q", c.owner, c.mode, what, got.err, got.want)
			}
		}
	}
}

func TestCheckPath(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	try := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	const stranger = 12345
	try(os.MkdirAll(at("mine/below"), 0o755),
		os.MkdirAll(at("strange/mine"), 0o755), os.Chown(at("strange"), stranger, stranger),
		os.MkdirAll(at("all/mine"), 0o755), os.Chmod(at("all"), 0o777),
		os.MkdirAll(at("sticky/mine"), 0o755), os.Chmod(at("sticky"), 0o777|os.ModeSticky),
		os.Symlink("mine", at("link")), os.Symlink("circle", at("circle")),
		os.Symlink(at("strange"), at("mine/to-strange")), os.Symlink("../strange/mine", at("mine/into-strange")),
		os.Symlink(at("mine"), at("sticky/theirs")), os.Lchown(at("sticky/theirs"), stranger, stranger))
	for _, c := range []struct{ path, want string }{
		{"mine", ""},
		{"mine/below", ""},
		{"mine/below/new/newer", ""},
		{"link/below", ""},
		{"sticky/mine", ""},
		{"strange/mine", "strange: it belongs to another user"},
		{"strange/new", "strange: it belongs to another user"},
		{"strange/mine/../../mine", ""}, // only the cleaned name counts, which is "mine"
		{"all/mine", "all: others may write to it"},
		{"mine/to-strange/mine", "strange: it belongs to another user"},
		{"mine/into-strange", "strange: it belongs to another user"},
		{"sticky/theirs/below", "the link " + at("sticky/theirs") + ": it belongs to another user"},
		{"circle", "more than 40 links"},
	} {
		err := CheckPath(base + "/" + c.path)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
}
