package cgroup

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestResets: a reset of a group's CPU counter is noticed, even if the counter has grown past its earlier value, and by
// readers that keep no file open. No reset is reported for a group that was not reset.
func TestResets(t *testing.T) {
	l := machine(t)
	h, _ := l.CPU()
	if h == nil || h.V2 {
		t.Skip("needs cgroup v1: the counters of v2 cannot be written")
	}
	var paths []string
	for _, name := range []string{"reset", "not-reset"} {
		path := fmt.Sprintf("/tare-test-%s-%d", name, os.Getpid())
		makeGroup(t, []*Hierarchy{h}, path)
		paths = append(paths, path)
	}
	for _, keep := range []bool{true, false} {
		r, err := NewReaderOfSome(l)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if !keep {
			r.budget = 0
		}
		read := func() (cpu [2]CPU) {
			t.Helper()
			for i, path := range paths {
				g := r.Add(path)
				if err := r.ReadCPUOf(g); err != nil {
					t.Fatal(err)
				}
				cpu[i] = g.CPU
			}
			return cpu
		}
		work := func(d time.Duration) {
			for _, path := range paths {
				inside(t, h, path, func() { spin(d) })
			}
		}
		work(10 * time.Millisecond)
		before := read()
		for n := 1; n <= 2; n++ { // a second reset is noticed too
			for range 3 { // a reader may count these as one
				if err := Write(h.Mount+paths[0]+"/"+usageV1, "0"); err != nil {
					t.Fatal(err)
				}
			}
			for now := read(); now[0].UsageNs.N <= before[0].UsageNs.N; now = read() {
				work(50 * time.Millisecond)
			}
			if now := read(); now[0].Resets != n || now[1].Resets != 0 {
				t.Errorf("keeping files open is %v: the counters were %+v and are %+v", keep, before, now)
			}
			before = read()
		}
		if err := r.Unnoted(); err != nil {
			t.Error(err)
		}
	}
}

// TestResetsBeyondLimit: Unnoted returns an error if no more watches can be added.
func TestResetsBeyondLimit(t *testing.T) {
	l := machine(t)
	if h, _ := l.CPU(); h == nil || h.V2 {
		t.Skip("needs cgroup v1: the counters of v2 cannot be written")
	}
	r, err := NewReader(l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull) // stands for an inotify descriptor that is full
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	own := r.inotify
	r.inotify = int(null.Fd())
	if err := r.ReadCPU(); err != nil {
		t.Error(err)
	}
	r.inotify = own
	if r.Unnoted() == nil {
		t.Error("nothing is said of counters that are not watched")
	}
}
