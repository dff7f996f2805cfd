package cgroup

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestResets: that a group's CPU counter was set back is known, also where it has grown past what it was, and by
// readers that keep no file open; a group that was not touched has none.
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
		for n := 1; n <= 2; n++ { // it is seen again after it was seen
			for range 3 { // which a reader may take for one
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

// TestResetsBeyondLimit: where no more watches are to be had, that is said.
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
	null, err := os.Open(os.DevNull) // as good as a descriptor that has no room
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
