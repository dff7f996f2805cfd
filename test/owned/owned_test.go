package owned

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSweep: test/sweep removes the directories of processes that have ended, and no others.
func TestSweep(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	mine, err := TempDir("mine")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(filepath.Base(mine), Name("mine")+"-") {
		t.Errorf("%s does not begin with %s", mine, Name("mine"))
	}
	const none = "99999999" // no process has this number
	stay := []string{filepath.Base(mine), "tare-test-e2e-" + none, "tare-test-x-n4026532501-p" + none + "-t5", "other"}
	ended := []string{"tare-test-x-p" + none + "-t5-1", Name("gone") + "0-1"} // the second: this PID, another start time
	for _, name := range slices.Concat(stay[1:], ended) {
		if err := os.MkdirAll(filepath.Join(temp, name, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var groups []string // none where they cannot be made
	for _, top := range []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"} {
		group := filepath.Join(top, "tare-test-sweep-"+none)
		if os.MkdirAll(filepath.Join(group, "deep"), 0o755) == nil {
			groups = append(groups, group)
			break
		}
	}
	if out, err := exec.Command("../sweep").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("test/sweep: %v\n%s", err, out)
	}
	var left []string
	entries, err := os.ReadDir(temp)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if slices.Sort(stay); err != nil || !slices.Equal(left, stay) {
		t.Errorf("left are %q (%v), want %q", left, err, stay)
	}
	for _, group := range groups {
		if _, err := os.Stat(group); !os.IsNotExist(err) {
			t.Errorf("the group %s is left (%v)", group, err)
		}
	}
}
