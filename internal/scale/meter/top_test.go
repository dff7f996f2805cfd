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
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(busy.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
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

func lineOf(l *ledger.Ledger, name string) (float64, bool) {
	for _, line := range l.CPU.Lines {
		if line.Name == name {
			return line.Seconds, true
		}
	}
	return 0, false
}
