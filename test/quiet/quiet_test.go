package quiet

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/test/neighbour/neighbour"
)

func TestWait(t *testing.T) {
	quiet := Noise{Seconds: 1, CPUs: 2, Stolen: 0.01, Used: 0.1}
	stolen, used := quiet, quiet
	stolen.Stolen, used.Used = 0.3, 1
	for _, c := range []struct {
		name  string
		noise []Noise // in one stretch after the other
		looks int
		err   string // part of it; none when empty
	}{
		{"quiet from the start", []Noise{quiet}, 1, ""},
		{"quiet after a while", []Noise{stolen, used, quiet}, 3, ""},
		{"never", []Noise{used, stolen, used, used}, 4, "the quietest had 15.0 % stolen, 5.0 % used by others"},
	} {
		t.Run(c.name, func(t *testing.T) {
			looks, slept := 0, time.Duration(0)
			err := wait(time.Second, 4*time.Second, func() (func() (Noise, error), error) {
				n := c.noise[looks]
				looks++
				return func() (Noise, error) { return n, nil }, nil
			}, func(d time.Duration) { slept += d })
			if (err != nil) != (c.err != "") || err != nil && (!strings.Contains(err.Error(), c.err) ||
				!strings.HasPrefix(err.Error(), Reason)) {
				t.Errorf("%v, want %q", err, c.err)
			}
			if looks != c.looks || slept != time.Duration(looks)*time.Second {
				t.Errorf("%d looks in %s, want %d", looks, slept, c.looks)
			}
		})
	}
}

// TestSeesANeighbour: the CPU time that a neighbour took counts as used by others, or as stolen.
func TestSeesANeighbour(t *testing.T) {
	p := neighbour.Start(t, neighbour.Options{For: 30 * time.Second, Seed: 5})
	w, from := Start(t), monotonic(t)
	time.Sleep(3 * time.Second)
	n, to := w.Noise(t), monotonic(t)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	took := neighbour.Taken(p.Bursts(), from, to)
	// The kernel counts in ticks of at most 10 ms. Each of some 100 bursts is off by up to one tick, either way, so all of
	// them by 50 ms (1 sigma).
	if got := n.Used + n.Stolen; took < 1 || got < took-0.2 {
		t.Errorf("%.3f s used and %.3f s stolen, the neighbour took %.3f s", n.Used, n.Stolen, took)
	}
	if n.quiet() {
		t.Errorf("quiet with %s", n)
	}
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}
