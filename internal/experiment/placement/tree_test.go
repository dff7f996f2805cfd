package placement

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/fault"
)

// TestTreeLimit: a limit of the whole tree applies to its groups together; their own weights and limits are kept.
func TestTreeLimit(t *testing.T) {
	l := machine(t)
	tree := newTree(t, l)
	if err := tree.Limit(Limits{CPUs: 0.2, Weight: 0.25}); err != nil {
		if len(tree.Missing()) > 0 {
			t.Skipf("needs a controller for CPU time: %v", err)
		}
		t.Fatal(err)
	}
	h, _ := l.Controller("cpu")
	want := map[string]string{"cpu.cfs_quota_us": "20000", "cpu.shares": "256"}
	if h.V2 {
		want = map[string]string{"cpu.max": "20000 100000", "cpu.weight": "25"}
	}
	for file, value := range want {
		if text, err := os.ReadFile(filepath.Join(tree.dir(h, ""), file)); err != nil ||
			strings.TrimSpace(string(text)) != value {
			t.Errorf("%s holds %q (%v), want %q", file, text, err, value)
		}
	}
	var pids []int
	for _, name := range []string{"work/a", "work/b"} {
		g, err := tree.Group(name, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() })
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		pids = append(pids, cmd.Process.Pid)
	}
	slices.Sort(pids)
	eventually(t, "both processes are in the tree",
		func() bool { return slices.Equal(l.Members([]string{tree.Name()}), pids) })
	if own := Own(l); !slices.Contains(own, tree.Name()) {
		t.Errorf("the trees of this process are %v", own)
	}
	if l.Members([]string{"tare-nobodys-p1-t1"}) != nil || l.Members(nil) != nil {
		t.Error("there are members of no tree")
	}
	eventually(t, "the tree is throttled", func() bool {
		text, err := os.ReadFile(filepath.Join(tree.dir(h, ""), "cpu.stat"))
		if err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(string(text), "nr_throttled 0\n")
	})
	time.Sleep(time.Millisecond) // so that Close interrupts it
	for _, wrong := range []Limits{{CPUs: 0.001}, {CPUs: -1}} {
		if err := tree.Limit(wrong); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if !strings.HasPrefix(tree.Path(), "/tare-test-") || !strings.HasSuffix(tree.Path(), tree.Name()) {
		t.Errorf("its path is %s", tree.Path())
	}
}

// TestLimitAboveTree: cgroup v1 rejects a limit above that of the parent group with EINVAL, and the error names the
// parent's limit. On v2 such a limit is set, and the parent's applies.
func TestLimitAboveTree(t *testing.T) {
	l := machine(t)
	tree := newTree(t, l)
	if err := tree.Limit(Limits{CPUs: 0.29}); err != nil {
		if len(tree.Missing()) > 0 {
			t.Skipf("needs a controller for CPU time: %v", err)
		}
		t.Fatal(err)
	}
	if _, err := tree.Group("work/equal", Limits{CPUs: 0.29}); err != nil {
		t.Errorf("a limit as high as that of the tree: %v", err)
	}
	_, err := tree.Group("work/more", Limits{CPUs: 0.3})
	if h, _ := l.Controller("cpu"); h.V2 {
		if err != nil {
			t.Error(err)
		}
		return
	}
	want := "a limit of 0.3 CPUs is above the 0.29 CPUs of " + tree.Name()
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v; want %q", err, want)
	}
}
