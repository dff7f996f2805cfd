package mount

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for line, want := range map[string]*Mount{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue`: {
			Root: "/mnt1", Point: "/mnt2", Type: "ext3", Options: []string{"rw", "errors=continue"}, Dev: unix.Mkdev(98, 0),
		},
		`1 2 0:3 /a\040b /c\134d\1\011 ro,nosuid - cgroup cgroup rw,cpu`: {
			Root: "/a b", Point: "/c\\d\\1\t", Type: "cgroup", Options: []string{"rw", "cpu"}, Dev: unix.Mkdev(0, 3),
			ReadOnly: true,
		},
		"1 2 0:4 net:[4026532233] /run/netns/a\u00a0b rw shared:1 - nsfs nsfs rw": {
			Root: "net:[4026532233]", Point: "/run/netns/a\u00a0b", Type: "nsfs", Options: []string{"rw"}, Dev: unix.Mkdev(0, 4),
		},
		`1 2 0:5 / /- rw - tmpfs  rw`:       {Root: "/", Point: "/-", Type: "tmpfs", Options: []string{"rw"}, Dev: 5},
		``:                                  nil,
		`x`:                                 nil,
		`1 2 - cgroup2`:                     nil,
		`1 2 a:b / / rw - cgroup2 a b`:      nil,
		`1 2 0:3 / relative rw - tmpfs a b`: nil,
		`1 2 0:3 / / rw shared:1 tmpfs a b`: nil,
		`1 2 0:3 / / rw - tmpfs none`:       nil,
	} {
		got := Parse([]byte("x\n" + line + "\n"))
		if want == nil && len(got) > 0 || want != nil && (len(got) != 1 || !reflect.DeepEqual(got[0], *want)) {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
}

// TestRead: a mount point with characters that the kernel escapes is returned unescaped.
func TestRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	dir := filepath.Join(t.TempDir(), "a b\tc\nd\\e#\u00a0f")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tare test", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	mounts, err := Read("")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.Point == dir && m.Type == "tmpfs" && m.Dev == st.Dev && m.Root == "/" && !m.ReadOnly {
			return
		}
	}
	t.Errorf("%q is not in %+v", dir, mounts)
}

func TestReadNothing(t *testing.T) {
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("nothing was read, and there is no error")
	}
}

// FuzzParse: every mount has an absolute mount point, and no line makes more than one.
func FuzzParse(f *testing.F) {
	if own, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		f.Add(own)
	}
	f.Add([]byte(`1 2 0:3 /a\040b /c\134d\1 ro,nosuid shared:1 - cgroup cgroup rw,cpu` + "\n"))
	f.Add([]byte("1 2 0:3 /.. / rw - cgroup2 x y"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all := Parse(text)
		if lines := strings.Count(string(text), "\n") + 1; len(all) > lines {
			t.Errorf("%d mounts of %d lines", len(all), lines)
		}
		for _, m := range all {
			if !strings.HasPrefix(m.Point, "/") || len(m.Options) == 0 {
				t.Errorf("%+v", m)
			}
		}
	})
}
