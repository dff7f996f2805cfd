package command

import (
	"testing"
	"time"
)

// TestSteadyFrom: start-up is over when the rate of CPU time has reached its final value.
func TestSteadyFrom(t *testing.T) {
	const ms = time.Millisecond
	// readingsOf returns readings every 50 ms of a command that uses the given fraction of a CPU in each interval.
	readingsOf := func(parts ...float64) []reading {
		all := []reading{{}}
		for _, p := range parts {
			last := all[len(all)-1]
			all = append(all, reading{last.at + 50*ms, last.cpu + time.Duration(p*float64(50*ms))})
		}
		return all
	}
	of := func(n int, part float64) []float64 {
		parts := make([]float64, n)
		for i := range parts {
			parts[i] = part
		}
		return parts
	}
	for _, c := range []struct {
		name  string
		parts []float64
		from  time.Duration
		to    time.Duration // at the latest
		ok    bool
	}{
		{"too little to say", of(19, 0), 0, 0, false},
		{"it sleeps", of(30, 0), 0, 0, true},
		{"it is as busy from the beginning", of(30, 1), 0, 0, true},
		{"it compiles for half a second", append(of(10, 1), of(30, 0.02)...), 500 * ms, 750 * ms, true},
		{"it compiles, and is then busy", append(of(10, 1), of(30, 0.4)...), 400 * ms, 750 * ms, true},
		{"a burst at the very end", append(of(30, 0), of(2, 1)...), 1500 * ms, 1600 * ms, true},
	} {
		from, ok := steadyFrom(readingsOf(c.parts...))
		if ok != c.ok || from < c.from || from > c.to {
			t.Errorf("%s: from %v (%v), want %v to %v (%v)", c.name, from, ok, c.from, c.to, c.ok)
		}
	}
}

// TestWatch: the wait for a command whose CPU time goes up and down is limited, and ends with its context.
func TestWatch(t *testing.T) {
	var used time.Duration
	after, settled, err := watch(t.Context(), time.Now(), func() time.Duration { return used })
	if err != nil || !settled || after > burstSpan {
		t.Errorf("one that does nothing: after %v (%v), %v", after, settled, err)
	}
	after, settled, err = watch(t.Context(), time.Now().Add(-mostTime), func() time.Duration { return used })
	if err != nil || settled || after != holdTime {
		t.Errorf("one that was watched for long enough: after %v (%v), %v", after, settled, err)
	}
}
