package pace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNowIsTheKernelsMonotonicClock(t *testing.T) {
	var before, after unix.Timespec
	for range 1000 {
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
			t.Fatal(err)
		}
		now := Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
			t.Fatal(err)
		}
		const tie = 2000 // ns that tying the two clocks may be off by
		if now < before.Nano()-tie || now > after.Nano()+tie {
			t.Fatalf("Now is %d ns, outside [%d, %d]", now, before.Nano(), after.Nano())
		}
	}
}

// starts returns all starts before the given time.
func starts(s *Schedule, end int64) []int64 {
	var at []int64
	for ; s.Peek() < end; s.Advance() {
		at = append(at, s.Peek())
	}
	return at
}

func TestConstantArrivals(t *testing.T) {
	for _, tt := range []struct {
		rate    float64
		seconds float64
		parts   int
	}{
		{1000, 2, 1}, {3000, 1, 1}, {3000, 1, 2}, {7, 3, 3}, {20000, 1, 4}, {0.5, 10, 1}, {123456, 1, 2},
	} {
		t.Run(fmt.Sprintf("%g/s in %d", tt.rate, tt.parts), func(t *testing.T) {
			const begin = int64(5e9)
			var all []int64
			for part := range tt.parts {
				s := NewSchedule(begin, tt.rate, Constant, 0, part, tt.parts)
				all = append(all, starts(s, begin+int64(tt.seconds*1e9))...)
			}
			slices.Sort(all)
			if want := int(tt.rate * tt.seconds); len(all) != want {
				t.Fatalf("%d starts, want %d", len(all), want)
			}
			for i, at := range all {
				if want := begin + int64(math.Round(float64(i)/tt.rate*1e9)); at-want > 1 || want-at > 1 {
					t.Fatalf("start %d is %d ns off", i, at-want)
				}
			}
		})
	}
}

func TestPoissonArrivals(t *testing.T) {
	const rate, seconds, parts = 5000.0, 4.0, 2
	draw := func(seed uint64) []int64 {
		var all []int64
		for part := range parts {
			all = append(all, starts(NewSchedule(0, rate, Poisson, seed, part, parts), int64(seconds*1e9))...)
		}
		slices.Sort(all)
		return all
	}
	a := draw(1)
	if !slices.Equal(a, draw(1)) {
		t.Error("the same seed gave another schedule")
	}
	if slices.Equal(a, draw(2)) {
		t.Error("another seed gave the same schedule")
	}
	// The variance of the counts of a Poisson process is their mean, and the standard deviation of its gaps is theirs.
	if mean := rate * seconds; math.Abs(float64(len(a))-mean) > 5*math.Sqrt(mean) {
		t.Errorf("%d starts, want about %g", len(a), mean)
	}
	var sum, squares float64
	for i := 1; i < len(a); i++ {
		gap := float64(a[i]-a[i-1]) * rate / 1e9
		sum += gap
		squares += gap * gap
	}
	n := float64(len(a) - 1)
	if deviation := math.Sqrt(squares/n - sum/n*sum/n); math.Abs(deviation-1) > 0.05 {
		t.Errorf("gaps deviate by %.3f means, want 1", deviation)
	}
}

func TestUntil(t *testing.T) {
	for _, spin := range []time.Duration{0, DefaultSpin} {
		thread, err := LockThread(spin)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			at := Now() + 500_000
			now, err := thread.Until(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			if now < at {
				t.Fatalf("woke %d ns early", at-now)
			}
		}
		if m := thread.Margin(); m < 0 || m > int64(spin) {
			t.Errorf("margin %d ns, want at most %d", m, spin)
		}
		if err := thread.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUntilEndsWithItsContext(t *testing.T) {
	thread, err := LockThread(DefaultSpin)
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // deadline under test
	defer cancel()
	if _, err := thread.Until(ctx, Now()+int64(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestSlackIsRestored(t *testing.T) {
	thread, err := LockThread(0)
	if err != nil {
		t.Fatal(err)
	}
	was := thread.slack
	if now, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); now != 1 {
		t.Errorf("slack %d ns while locked, want 1", now)
	}
	if err := thread.Close(); err != nil {
		t.Fatal(err)
	}
	if now, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); now != was {
		t.Errorf("slack %d ns after, want %d", now, was)
	}
}

// BenchmarkLag reports how late the schedule is met, and what that costs.
func BenchmarkLag(b *testing.B) {
	for _, spin := range []time.Duration{0, DefaultSpin} {
		for _, rate := range []float64{100, 1000, 5000, 10000, 20000} {
			b.Run(fmt.Sprintf("spin=%s/rate=%g", spin, rate), func(b *testing.B) {
				thread, err := LockThread(spin)
				if err != nil {
					b.Fatal(err)
				}
				defer thread.Close()
				var before, after unix.Rusage
				lag := make([]int64, b.N)
				begin := Now() + 1e6
				s := NewSchedule(begin, rate, Constant, 0, 0, 1)
				_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
				for i := range lag {
					now, err := thread.Until(b.Context(), s.Peek())
					if err != nil {
						b.Fatal(err)
					}
					lag[i] = now - s.Peek()
					s.Advance()
				}
				_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
				cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
				slices.Sort(lag)
				b.ReportMetric(float64(lag[len(lag)/2]), "p50-ns")
				b.ReportMetric(float64(lag[len(lag)*99/100]), "p99-ns")
				b.ReportMetric(float64(lag[len(lag)-1]), "max-ns")
				b.ReportMetric(float64(cpu)/float64(Now()-begin)*100, "%cpu")
				b.ReportMetric(float64(thread.Margin()), "margin-ns")
			})
		}
	}
}
