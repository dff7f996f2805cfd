package placement

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFlatTree: the scheduler treats the groups of a flat tree as one, except for those with a limit; to every other
// controller they are separate.
func TestFlatTree(t *testing.T) {
	l := machine(t)
	tree, err := NewFlatTree(l, "test-flat")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
		if left := traces(l, tree.Name()); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	cpu, ok := l.Controller("cpu")
	limited := ok && !cpu.V2
	for name, limits := range map[string]Limits{"work/load": {}, "subject": {}, "work/limited": {CPUs: 0.5}} {
		if limits.CPUs > 0 && !limited {
			continue
		}
		g, err := tree.Group(name, limits)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var out strings.Builder
		cmd := exec.Command("cat", "/proc/self/cgroup")
		cmd.Stdout = &out
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			for _, h := range tree.hs {
				if key := strings.Join(h.Controllers, ","); key != f[1] && !(h.V2 && f[1] == "") {
					continue
				}
				want := g.Path()
				if schedules(h) && limits.CPUs == 0 {
					want = "/" + tree.Name()
				}
				if f[2] != want {
					t.Errorf("%s: in %s it is in %s, want %s", name, h.Mount, f[2], want)
				}
			}
		}
		if h, ok := l.V2(); ok && slices.Contains(enabled(filepath.Join(h.Mount, tree.Name())), "cpu") {
			t.Errorf("v2 schedules by group: %v", enabled(filepath.Join(h.Mount, tree.Name())))
		}
	}
}
