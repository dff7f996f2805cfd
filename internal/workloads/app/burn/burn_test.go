package burn

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/pace"
)

// used returns the CPU time of this process in seconds.
func used(t *testing.T) float64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// burned returns the CPU time that an application with the given share uses in one second, and its number of threads.
func burned(t *testing.T, share float64) (seconds float64, threads int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var before float64
	var began int64
	err := Serve(ctx, Options{Share: share}, func(r Ready) error {
		threads, before, began = r.Threads, used(t), pace.Now()
		time.AfterFunc(time.Second, cancel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return (used(t) - before) / (float64(pace.Now()-began) / 1e9), threads
}

func TestServe(t *testing.T) {
	none, threads := burned(t, 0)
	if threads != 0 {
		t.Errorf("%d threads for nothing", threads)
	}
	// Other processes take CPU time from this one, so only the upper bounds are certain. If they leave little, the order
	// of the two values is random, but not in many tries.
	const most = 10
	for try := 1; ; try++ {
		half, threads := burned(t, 0.5)
		whole, _ := burned(t, 1)
		if threads == 0 {
			t.Fatal("no thread")
		}
		above := half > 0.6*float64(threads) || whole > 1.05*float64(threads)
		ordered := none < half && half < whole
		if above || !ordered && try == most {
			t.Errorf("a share of 0, 0.5 and 1 of %d CPUs took %.3f, %.3f and %.3f CPU seconds in a second", threads, none,
				half, whole)
		}
		if above || ordered || try == most {
			return
		}
	}
}

func TestServeRefuses(t *testing.T) {
	for _, share := range []float64{-0.1, 1.1} {
		err := Serve(t.Context(), Options{Share: share}, func(Ready) error { t.Error("it began"); return nil })
		if err == nil || !strings.Contains(err.Error(), "must be at ") {
			t.Errorf("a share of %g: %v", share, err)
		}
	}
}
