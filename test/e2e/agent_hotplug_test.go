package e2e

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"tare/test/long"
)

// TestAgentHotplug: the node's CPU budget adds up while a CPU goes offline and comes back, although the kernel's total
// of idle time then jumps by minutes (proc.Stat.Since).
func TestAgentHotplug(t *testing.T) {
	long.Test(t, "50 s: takes a CPU offline, for which the groups of cpuset on v1 lose it: nothing else may run beside it")
	const file = "/sys/devices/system/cpu/cpu1/online"
	state, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the kernel cannot take CPU 1 offline")
	}
	if err != nil {
		t.Fatal(err)
	}
	if string(state) != "1\n" {
		t.Fatalf("CPU 1 is offline: %q", state)
	}
	set := func(state string) {
		if err := os.WriteFile(file, []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { set("1") })
	leavesNothing(t)
	groups := makeTestGroups(t)
	dir, _ := groups.make(t, "busy")
	w := startWorker(t, dir)
	a := startAgent(t).serving(t)
	first := a.scraped(t)
	last := first
	for range 3 {
		for _, state := range []string{"0", "1"} {
			w.burn(t, 500*time.Millisecond)
			set(state)
			for range 2 {
				w.burn(t, time.Second)
				now := a.scraped(t)
				now.check(t, last)
				last = now
			}
		}
	}
	// How far off a reading of the counters may be is not certain, but it is hundredths of a second at most.
	const most = 0.5
	for _, c := range []struct {
		what string
		of   func(*scrape) float64
	}{
		{"unexplained", func(s *scrape) float64 {
			v, _ := s.sum("tare_node_cpu_seconds_total", "line", "unexplained")
			return v
		}},
		{"counted twice", func(s *scrape) float64 { return s.total("tare_node_cpu_counted_twice_seconds_total") }},
	} {
		got := c.of(last) - c.of(first)
		t.Logf("%s: %.3f s", c.what, got)
		if got > most {
			t.Errorf("%s: %.3f s, want at most %g", c.what, got, most)
		}
	}
}
