package meter

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/known"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// A new group at the top of the hierarchy is on the line of groups in the window in which it appears, even if that
// window does not look for other groups. If it were found later, its counter would include time that is already on
// other lines.
func TestTopGroupIsFoundAtOnce(t *testing.T) {
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	dir := temporaryGroup(t)
	keepBusy(t, dir)
	for i, all := range []bool{false, true} {
		works(dir, 100*time.Millisecond)
		l, next, err := w.Next(all, nil)
		if err != nil {
			t.Fatal(err)
		}
		w = next
		var used *float64
		for _, g := range l.Cgroups {
			if g.Path == "/"+filepath.Base(dir) {
				used = g.CPUSeconds
			}
		}
		if used == nil || i == 0 && *used < 0.01 {
			t.Errorf("window %d: the group used %g s", i, known.Or(used, -1))
		}
		if got := codes(l, "hierarchies-overlap"); got != "" {
			t.Errorf("window %d warns: %s", i, messageOf(l, got))
		}
		apart := l.Window.EdgeSeconds / l.Window.Seconds
		if root, known := lineOf(l, ledger.LineRoot); known && root < -(0.01+apart)*l.CPU.Capacity {
			t.Errorf("window %d: the root group has %g s, with edges of %g s", i, root, l.Window.EdgeSeconds)
		}
	}
	_ = w.Discard()
}

// TestTopGroupRenamed: on v1, after a group is renamed, no window contains the CPU time of the group's whole life, and
// no time is counted twice. Its CPU time is known again in the next window.
func TestTopGroupRenamed(t *testing.T) {
	h := cpuHierarchy(t)
	if h.V2 {
		t.Skip("needs cgroup v1: groups of v2 cannot be renamed")
	}
	dir := temporaryGroup(t)
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(below) })
	used := func() float64 { return float64(cgroup.CPUTime(dir).N) / 1e9 }
	keepBusy(t, below)
	for used() < 0.5 {
		time.Sleep(10 * time.Millisecond)
	}
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	before := used() // the CPU time at a moment before the window
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Discard() }()
	renamed := dir + "-renamed"
	if err := os.Rename(dir, renamed); err != nil {
		t.Fatal(err)
	}
	dir, renamed = renamed, dir
	t.Cleanup(func() { _ = os.Rename(dir, renamed) }) // back to the name under which it is removed
	for i, known := range []bool{false, true, true} {
		time.Sleep(200 * time.Millisecond)
		nextBefore := used()
		l, next, err := w.Next(i == 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		w = next
		sum, top, n := 0.0, 0.0, 0
		for i, own := range ledger.NewTree(l.Cgroups).Own((*ledger.Cgroup).CPUNanoseconds) {
			if g := &l.Cgroups[i]; strings.HasPrefix(g.Path, "/"+filepath.Base(renamed)) && own != nil {
				sum += time.Duration(*own).Seconds()
				if atTop(g.Path, "/") {
					top += *g.CPUSeconds
					n++
				}
			}
		}
		silent := !known && codes(l, "root-usage-at-most") == ""
		if (n == 1) != known || n > 1 || sum > used()-before+0.1 || sum > top+1e-6 || silent || !l.CPU.Closes() {
			t.Errorf("window %d: %d groups have %.3g s of %.3g s; known: want %v; warnings %+v", i, n, sum, used()-before, known,
				l.Warnings)
		}
		before = nextBefore
	}
}

// keepBusy runs a process in a control group, which keeps a CPU busy until the test ends or stop is called.
func keepBusy(t *testing.T, dir string) (stop func()) {
	t.Helper()
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	}
	t.Cleanup(stop)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(busy.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return stop
}

// A group below the top is found several windows after it was created. Its CPU time is unknown in the window in which
// it is found, because its counter includes earlier windows, and is known in the next.
func TestGroupFoundLate(t *testing.T) {
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	top := temporaryGroup(t)
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "late")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	keepBusy(t, dir)
	for i, known := range []bool{false, false, true} {
		burn(200 * time.Millisecond) // in a window of a few milliseconds the edges of the counters weigh more
		l, next, err := w.Next(i > 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		w = next
		for _, g := range l.Cgroups {
			if g.Path != "/"+filepath.Base(top)+"/late" {
				continue
			}
			if (g.CPUSeconds != nil) != known || g.CPUSeconds != nil && *g.CPUSeconds > l.CPU.Capacity || i == 0 {
				t.Errorf("window %d: %+v; CPU time known: %t, want %t", i, g, g.CPUSeconds != nil, known)
			}
			if g.Began != nil || !known && g.Periods != nil {
				t.Errorf("window %d: it began at %v, with %v periods; want neither", i, g.Began, g.Periods)
			}
		}
	}
	_ = w.Discard()
}

func lineOf(l *ledger.Ledger, name string) (float64, bool) {
	for _, line := range l.CPU.Lines {
		if line.Name == name {
			return line.Seconds, true
		}
	}
	return 0, false
}

// TestAtTop: where only a part of the hierarchy is mounted, its topmost group takes the place of the root.
func TestAtTop(t *testing.T) {
	for _, c := range []struct {
		path, root string
		want       bool
	}{
		{"/", "/", true}, {"/a", "/", true}, {"/a/b", "/", false},
		{"/docker/x", "/docker/x", true}, {"/docker/x/a", "/docker/x", true}, {"/docker/x/a/b", "/docker/x", false},
		{"/docker", "/docker/x", false}, {"/docker/xy", "/docker/x", false}, {"/docker/xy/a", "/docker/x", false},
	} {
		if got := atTop(c.path, c.root); got != c.want {
			t.Errorf("%s below %s: %v", c.path, c.root, got)
		}
	}
}
