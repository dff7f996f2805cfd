package speed

import (
	"testing"
	"time"
)

func TestScale(t *testing.T) {
	for _, c := range []struct {
		slowest     time.Duration
		least, want int
	}{
		{0, 0, 1}, {round, 0, 1}, {round + 1, 0, 2}, {10 * round, 0, 10}, {10 * round, 20, 20}, {time.Hour, 0, maxFactor},
		{time.Hour, 50, 50},
	} {
		if got := scale(c.slowest, c.least); got != c.want {
			t.Errorf("a round of %v and at least %d: %d, want %d", c.slowest, c.least, got, c.want)
		}
	}
	if Scale(time.Second) < time.Second {
		t.Errorf("a second becomes %v", Scale(time.Second))
	}
	for _, rounds := range [][]time.Duration{{time.Hour, 2, 3}, {2, time.Hour, 3}, {3, 1, time.Hour}, {3, 3, 3}} {
		if got := typical(func() time.Duration { d := rounds[0]; rounds = rounds[1:]; return d }); got != 3 {
			t.Errorf("one stall and two rounds of 3 or less are typically %v", got)
		}
	}
	t.Logf("factor %d here; slowest round %v", factor(), slowest())
}
