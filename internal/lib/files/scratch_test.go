package files

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCleanScratch: what a process that has ended left is removed, and nothing else.
func TestCleanScratch(t *testing.T) {
	parent := t.TempDir()
	dead := filepath.Join(parent, scratchPrefix+"dead")
	elsewhere := t.TempDir()
	for _, dir := range []string{dead, filepath.Join(parent, "other"), elsewhere} {
		path := filepath.Join(dir, "0-0")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		filepath.Join(dead, "link"): filepath.Join(elsewhere, "0-0"), filepath.Join(parent, scratchPrefix+"link"): elsewhere,
		filepath.Join(dead, "directory"): elsewhere,
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, scratchPrefix+"file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dead, elsewhere} { // directories in them are removed, too, but nothing behind a link
		if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := cleanScratch(parent, true); err != nil || !slices.Equal(found, []string{dead}) ||
		len(namesIn(t, dead)) != 4 {
		t.Errorf("a dry run: %v, %v; left are %v", found, err, namesIn(t, dead))
	}
	living, err := NewScratch(parent, "test") // NewScratch also cleans up
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := cleanScratch(parent, false); err != nil || len(removed) > 0 {
		t.Errorf("cleaned again: %v, %v", removed, err)
	}
	want := []string{"other", scratchPrefix + "file", scratchPrefix + "link", filepath.Base(living.Path())}
	slices.Sort(want)
	if got := namesIn(t, parent); !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	if got := namesIn(t, elsewhere); len(got) != 2 {
		t.Errorf("behind a link there is %v", got)
	}
	if err := living.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(living.Path()); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// TestScratchWhileOthersClean: processes that start at the same time clean up without removing each other's
// directories. The lock is one of an open file, so that goroutines contend for it as processes do.
func TestScratchWhileOthersClean(t *testing.T) {
	parent := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				d, err := NewScratch(parent, "test")
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(d.Path(), "file"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if left := namesIn(t, parent); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// scratchHolder is the environment variable that makes this test's binary create a directory and keep it until it is
// killed.
const scratchHolder = "TARE_TEST_SCRATCH_HOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(scratchHolder); dir != "" {
		d, err := NewScratch(dir, "test")
		if err == nil {
			err = os.WriteFile(filepath.Join(d.Path(), "file"), []byte("x"), 0o600)
		}
		fmt.Println(err)
		_ = unix.Pause() // and not "select {}": without another goroutine, the runtime ends the process
	}
	os.Exit(m.Run())
}

// TestForeignParent: the owner of a directory can give any other directory in it a name like ours, so nothing is
// removed there.
func TestForeignParent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give a directory away")
	}
	parent := t.TempDir()
	theirs := filepath.Join(parent, scratchPrefix+"x", "precious")
	if err := os.MkdirAll(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(parent, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d, err := NewScratch(parent, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	t.Setenv("TMPDIR", parent)
	if removed, err := CleanScratch(false); err != nil || slices.Contains(removed, filepath.Dir(theirs)) {
		t.Errorf("removed %q, %v", removed, err)
	}
	below := filepath.Join(parent, "mine") // the other user can rename this one
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", below)
	if d, err := NewScratch("", "test"); err == nil ||
		!strings.Contains(err.Error(), parent+": it belongs to another user (65534)") {
		t.Errorf("below another user's directory: %v, %v", d, err)
	}
	t.Setenv("TMPDIR", filepath.Join(below, "absent"))
	if d, err := NewScratch("", "test"); err == nil {
		t.Errorf("in a directory that is absent, below another user's: %v", d)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
}

// TestKilled: the directory of a killed process is removed, and that of a living process is not.
func TestKilled(t *testing.T) {
	parent := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), scratchHolder+"="+parent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if removed, err := cleanScratch(parent, false); err != nil || len(removed) > 0 {
		t.Errorf("of a process that lives %v was taken, %v", removed, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil || line != "<nil>\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	left := namesIn(t, parent)
	if removed, err := cleanScratch(parent, false); err != nil || len(left) != 1 || len(removed) != 1 {
		t.Errorf("left was %v, removed %v, %v", left, removed, err)
	}
	if left := namesIn(t, parent); len(left) > 0 {
		t.Errorf("%v is still there", left)
	}
}

// TestMounted: a mount in a scratch directory is not entered, so nothing in it is removed. The error names the mount,
// and once it is unmounted the directory can be removed.
func TestMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	parent, elsewhere := t.TempDir(), t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(parent, scratchPrefix+"test-dead", "root", "mnt")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(elsewhere, at, "", unix.MS_BIND, ""); err != nil { // a mount of the same file system
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }() // in case the test ends early
	if removed, err := cleanScratch(parent, false); err == nil || !strings.Contains(err.Error(), at) || len(removed) > 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	if removed, err := cleanScratch(parent, false); err != nil || len(removed) != 1 {
		t.Errorf("removed %v, %v", removed, err)
	}
	at = filepath.Join(parent, scratchPrefix+"test-mount") // a user can mount something here, for example with FUSE
	if err := errors.Join(os.Mkdir(at, 0o700), os.Chmod(elsewhere, 0o700),
		unix.Mount(elsewhere, at, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	removed, err := cleanScratch(parent, false)
	if _, lost := os.Stat(kept); err != nil || lost != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v, %v", removed, err, lost)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveAll: like os.RemoveAll, except that what is mounted at a path or below it stays.
func TestRemoveAll(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	for _, below := range []string{".", "a", "a/b"} {
		dir, elsewhere := filepath.Join(t.TempDir(), "dir"), t.TempDir()
		at, kept := filepath.Join(dir, below), filepath.Join(elsewhere, "kept")
		err := errors.Join(os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
			os.Symlink(elsewhere, filepath.Join(dir, "link")), os.WriteFile(kept, nil, 0o600),
			unix.Mount(elsewhere, at, "", unix.MS_BIND, ""))
		if err != nil {
			t.Fatal(err)
		}
		err = RemoveAll(dir)
		unmounted := unix.Unmount(at, 0)
		if err == nil || err.Error() != "something is mounted on "+at+": unmount it first" {
			t.Errorf("with a mount on %s: %v", at, err)
		}
		if _, err := os.Stat(kept); err != nil || unmounted != nil {
			t.Fatal(err, unmounted)
		}
		for range 2 { // the second time there is nothing to remove
			if err := RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
		if err := RemoveAll(kept); err != nil { // a file
			t.Error(err)
		}
		if left := namesIn(t, elsewhere); len(left) > 0 {
			t.Errorf("%v is still there", left)
		}
	}
	if err := RemoveAll(filepath.Join(t.TempDir(), "absent", "file")); err != nil {
		t.Error(err)
	}
}

// TestCleanScratchOfOthers: a directory to which others can write is left alone: they could have renamed any such
// directory of this user.
func TestCleanScratchOfOthers(t *testing.T) {
	for mode, want := range map[os.FileMode]int{0o700: 1, 0o711: 1, 0o770: 0, 0o707: 0, 0o777 | os.ModeSticky: 0} {
		parent := t.TempDir()
		dir := filepath.Join(parent, scratchPrefix+"x")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
			os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		removed, err := cleanScratch(parent, false)
		if err != nil || len(removed) != want || len(namesIn(t, parent)) != 1-want {
			t.Errorf("mode %v: removed %v, %v", mode, removed, err)
		}
	}
}

// TestLargeTemp: large files go where the user says, or else to a disk.
func TestLargeTemp(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	if got := LargeTemp(); got != dir {
		t.Errorf("got %s", got)
	}
	t.Setenv("TMPDIR", "")
	if got := LargeTemp(); got != "/var/tmp" && got != os.TempDir() {
		t.Errorf("got %s", got)
	}
}
