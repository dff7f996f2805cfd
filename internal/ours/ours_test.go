package ours

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
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
		write, all, inPlace string // what is said; empty: nothing is wrong
	}{
		{0, 0o700, "", "", ""},
		{0, 0o755, "", "others may read it (its mode is 0755)", ""},
		{0, 0o775, "others may write to it (its mode is 0775)", "others may write to it (its mode is 0775)", "others may write to it"},
		{0, 0o777, "others may write to it", "others may write to it", "others may write to it"},
		{0, 0o777 | os.ModeSticky, "others may write to it", "others may write to it", ""},
		{12345, 0o700, "it belongs to another user (12345)", "it belongs to another user", "it belongs to another user"},
		{12345, 0o777 | os.ModeSticky, "it belongs to another user", "it belongs to another user", "it belongs to another user"},
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
		}{"write": {Check(info, Write), c.write}, "all": {Check(info, All), c.all}, "in place": {CheckShared(info), c.inPlace}} {
			if (got.err == nil) != (got.want == "") || got.err != nil && !strings.Contains(got.err.Error(), got.want) {
				t.Errorf("owner %d, mode %v, %s: %v, want %q", c.owner, c.mode, what, got.err, got.want)
			}
		}
	}
}
