package meter

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"tare/internal/lib/known"
	"tare/internal/scale/ledger"
)

// A group at the top of the hierarchy is on the line of groups in the window that it came in, also where that window
// does not look for groups elsewhere: found later, it would bring along time that other lines have by then.
func TestTopGroupIsFoundAtOnce(t *testing.T) {
	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	dir := temporaryGroup(t)
	keepBusy(t, dir)
	for i, all := range []bool{false, true} {
		time.Sleep(200 * time.Millisecond) // in a window of a few milliseconds the edges of the counters weigh more
		l, next, err := w.Next(all)
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
		if root, known := lineOf(l, ledger.LineRoot); known && root < -0.01*l.CPU.Capacity {
			t.Errorf("window %d: the root group has %g s", i, root)
		}
	}
	_ = w.Discard()
}

// keepBusy runs a process in a control group that uses a CPU until the test ends or stop is called.
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

// A group below the top is found windows after it was made. What it used is not known in the window in which it is
// found, as its counter includes earlier ones, and is known in the next.
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
		l, next, err := w.Next(i > 0)
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
