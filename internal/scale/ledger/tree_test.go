package ledger

import (
	"slices"
	"testing"
)

// TestCountsCPUs: the hierarchy that counts CPU time decides, and in ledgers without that, the mode.
func TestCountsCPUs(t *testing.T) {
	for _, c := range []struct {
		mode, cpu string
		want      bool
	}{
		{"v2", "", true}, {"v1", "", false}, {"hybrid", "", false}, {"v2", "v2", true}, {"hybrid", "v1", false},
		{"hybrid", "v2", true},
	} {
		l := Ledger{Host: Host{CgroupMode: c.mode, CgroupCPU: c.cpu}}
		if got := l.CountsCPUs(&Cgroup{Path: "/"}); got != c.want {
			t.Errorf("%s, CPU time by %q: %v", c.mode, c.cpu, got)
		}
	}
}

// TestOwn: what groups used themselves adds up to what the topmost ones used, and an unknown part stays with the group
// above.
func TestOwn(t *testing.T) {
	groups := []Cgroup{
		{Path: "/a", CPUSeconds: new(5.0)}, {Path: "/a/b/c", CPUSeconds: new(1.0)}, {Path: "/", CPUSeconds: new(9.0)},
		{Path: "/a/b"}, {Path: "/a/b/c", CPUSeconds: new(0.5), Vanished: true}, {Path: "/a/d", CPUSeconds: new(2.0)},
	}
	tree := NewTree(groups)
	var own []int64
	for _, n := range tree.Own((*Cgroup).CPUNanoseconds) {
		if n == nil {
			n = new(int64(-1))
		}
		own = append(own, *n)
	}
	if want := []int64{1.5e9, 1e9, 4e9, -1, 0.5e9, 2e9}; !slices.Equal(own, want) {
		t.Errorf("%v, want %v", own, want)
	}
	var above []int
	for i := range groups {
		above = append(above, tree.Above(i))
	}
	if want := []int{2, 3, -1, 0, 3, 0}; !slices.Equal(above, want) {
		t.Errorf("above are %v, want %v", above, want)
	}
}
