package role

import "testing"

// TestWants: the schedule of a process with another clock is converted to that clock; the time that a message takes
// does not count as a difference of clocks.
func TestWants(t *testing.T) {
	for name, c := range map[string]struct{ clock, heard, want int64 }{
		"the same clock":        {5e12, 5e12 + 3e6, 7e12},
		"one that started late": {40e9, 5e12, 7e12 - (5e12 - 40e9)},
		"one that is ahead":     {9e12, 5e12, 7e12 + 4e12},
		"none told":             {0, 5e12, 7e12},
	} {
		w := Wants{Clock: c.clock}
		w.Heard(c.heard)
		if got := w.Translate(Schedule{Begin: 7e12, Warmup: 1, Duration: 2}); got.Begin != c.want || got.Warmup != 1 {
			t.Errorf("%s: %+v, want the begin %d", name, got, c.want)
		}
	}
}
