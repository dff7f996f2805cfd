package write

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestClean: what a dead load has left is removed, and nothing else.
func TestClean(t *testing.T) {
	parent := t.TempDir()
	dead := filepath.Join(parent, prefix+"dead")
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
		filepath.Join(dead, "link"): filepath.Join(elsewhere, "0-0"), filepath.Join(parent, prefix+"link"): elsewhere,
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, prefix+"file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	living, err := newDirectory(parent) // which cleans as well
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := Clean(parent); err != nil || len(removed) > 0 {
		t.Errorf("cleaned again: %v, %v", removed, err)
	}
	want := []string{"other", prefix + "file", prefix + "link", filepath.Base(living.path)}
	slices.Sort(want)
	if got := namesIn(t, parent); !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	if got := namesIn(t, elsewhere); len(got) != 1 {
		t.Errorf("behind a link there is %v", got)
	}
	if err := living.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(living.path); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
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

// holder is the environment variable that has this test's binary make a load and keep it until it is killed.
const holder = "TARE_TEST_WRITE_HOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holder); dir != "" {
		l, err := New(Options{Rate: 1, Workers: 1, Size: 4096, Limit: 1 << 20, Directory: dir})
		if err == nil {
			if f := l.workers[0].put(); f.step != "" {
				err = fmt.Errorf("%s", f)
			}
		}
		fmt.Println(err)
		select {}
	}
	os.Exit(m.Run())
}

// TestKilled: of a load that was killed, the next one and Clean find what is left; of one that lives, neither takes
// anything.
func TestKilled(t *testing.T) {
	parent := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holder+"="+parent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if removed, err := Clean(parent); err != nil || len(removed) > 0 {
		t.Errorf("from a load that lives %v was taken, %v", removed, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil || line != "<nil>\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	left := namesIn(t, parent)
	if removed, err := Clean(parent); err != nil || len(left) != 1 || len(removed) != 1 {
		t.Errorf("left was %v, removed %v, %v", left, removed, err)
	}
	if left := namesIn(t, parent); len(left) > 0 {
		t.Errorf("%v is still there", left)
	}
}
