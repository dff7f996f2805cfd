// Package pace is the clock that load generators share: an absolute schedule of intended starts, and a thread that can
// wait for a start to within microseconds.
//
// Go's own timers are too coarse: the runtime waits in epoll_wait, which counts in milliseconds, so a sleep of 50 us
// lasts about 1 ms (golang/go issue 53824). And with relative sleeps, each delay would postpone all later starts,
// which hides a stall of the server from the numbers. Here every start has a fixed time, and a late generator shows as
// lag.
package pace

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Arrivals says how intended starts are spaced.
type Arrivals string

// The kinds of arrivals.
const (
	Constant Arrivals = "constant" // equal gaps
	Poisson  Arrivals = "poisson"  // independent exponential gaps, from a seed
)

// epoch ties Go's monotonic clock to CLOCK_MONOTONIC. Both are the same kernel clock, but the runtime exposes only
// differences. Reading those takes no system call, while Clock takes one.
var epoch, epochNano = tieClocks()

func tieClocks() (time.Time, int64) {
	var at time.Time
	var nano int64
	best := time.Duration(math.MaxInt64)
	for range 8 {
		before := time.Now()
		read := Clock(unix.CLOCK_MONOTONIC)
		if took := time.Since(before); took < best {
			best, at, nano = took, before, read-int64(took)/2
		}
	}
	return at, nano
}

// Now returns CLOCK_MONOTONIC in nanoseconds: the clock of role.Schedule, comparable between processes on one machine.
func Now() int64 { return epochNano + int64(time.Since(epoch)) }

// Suspended returns how long the machine has been suspended since its boot, in nanoseconds: CLOCK_BOOTTIME goes on
// then, and CLOCK_MONOTONIC does not. It is too large by the time between two readings, which is some microseconds.
func Suspended() int64 {
	least := int64(math.MaxInt64)
	for range 4 {
		now := Clock(unix.CLOCK_MONOTONIC)
		least = min(least, Clock(unix.CLOCK_BOOTTIME)-now)
	}
	return least
}

// Clock reads a kernel clock that always exists (CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID ...), in nanoseconds.
func Clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("clock_gettime(%d): %v", id, err))
	}
	return ts.Nano()
}

// Schedule holds the intended starts of one generator, or one share of them. It is not safe for concurrent use.
type Schedule struct {
	begin int64 // beginning of the schedule, ns by Now
	next  int64

	// Constant arrivals: start k of this part is start part + k*parts of the whole schedule.
	rate        float64
	index, step int64

	// Poisson arrivals.
	rng  *rand.Rand
	mean float64 // gap, ns
	at   float64 // ns since begin, in floating point so that rounding errors do not add up
}

// NewSchedule returns one share of a schedule with the given beginning (ns by Now) and rate, which is the number of
// starts per second of all shares together. part is the number of the share, from 0, and parts is the number of shares;
// the whole schedule is part 0 of 1. Constant arrivals are dealt out in turn, so all shares together are evenly spaced;
// the first is at the beginning. The shares of Poisson arrivals are independent, and together they are one Poisson
// process.
func NewSchedule(begin int64, rate float64, a Arrivals, seed uint64, part, parts int) *Schedule {
	s := &Schedule{begin: begin}
	switch a {
	case Poisson:
		s.rng = rand.New(rand.NewPCG(seed, uint64(part)))
		s.mean = float64(parts) / rate * 1e9
	default:
		s.rate = rate
		s.index, s.step = int64(part)-int64(parts), int64(parts)
	}
	s.Advance()
	return s
}

// Peek returns the next intended start, in ns by Now.
func (s *Schedule) Peek() int64 { return s.next }

// Advance moves on to the following start.
func (s *Schedule) Advance() {
	if s.rng != nil {
		s.at += s.rng.ExpFloat64() * s.mean
		s.next = s.begin + int64(s.at)
		return
	}
	s.index += s.step
	// Computed from the index and not from the last start, because a gap of 1/3 ms must not drift. Floating point is
	// exact enough for months.
	s.next = s.begin + int64(math.Round(float64(s.index)*1e9/s.rate))
}

// DefaultSpin is how early a thread may wake to spin. Waking from sleep takes 25 to 60 us on virtual machines: a
// shorter time leaves lag, and a longer one wastes CPU time.
const DefaultSpin = 60 * time.Microsecond

// Thread is an operating-system thread that waits precisely: its goroutine is locked to it, and its timer slack is 1
// ns instead of the usual 50 us. It learns how late the kernel wakes it and asks to be woken that much earlier, so it
// sleeps for most of the margin and spins for little of it.
type Thread struct {
	slack  int     // original timer slack, ns
	spin   float64 // largest margin, ns
	margin float64 // about the 90th percentile of the observed lateness, ns
}

// LockThread makes the calling goroutine's thread a Thread until Close. spin bounds how early it wakes, and so how
// long it may spin per wait; with 0 it never spins.
func LockThread(spin time.Duration) (*Thread, error) {
	runtime.LockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("setting the timer slack: %w", err)
	}
	return &Thread{slack: slack, spin: float64(spin), margin: float64(spin) / 2}, nil
}

// Close restores the thread's timer slack and unlocks the goroutine from it.
func (t *Thread) Close() error {
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(t.slack), 0, 0, 0); err != nil {
		return fmt.Errorf("restoring the timer slack: %w", err)
	}
	return nil
}

// Margin returns how long before an intended start to stop sleeping and spin, in ns.
func (t *Thread) Margin() int64 { return int64(t.margin) }

// Woke adapts the margin, given the time for which the thread asked to be woken and the time at which the timer woke it
// (both ns by Now).
func (t *Thread) Woke(asked, now int64) {
	// With steps up nine times as large as steps down, the margin settles where one wake in ten is later: at the 90th
	// percentile.
	const step = 250 // ns
	if float64(now-asked) > t.margin {
		t.margin = min(t.margin+9*step, t.spin)
	} else {
		t.margin = max(t.margin-step, 0)
	}
}

// Until waits until the given time (ns by Now) and returns the time afterwards, or ends early with the context's error.
func (t *Thread) Until(ctx context.Context, at int64) (int64, error) {
	// Leave all but the last part of a long wait to the runtime. There the context can end it, while a goroutine that
	// sleeps in the kernel keeps the runtime's monitor thread busy taking its scheduler slot away.
	const last = 5 * time.Millisecond
	if coarse := time.Duration(at-Now()) - last; coarse > 0 {
		timer := time.NewTimer(coarse)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return Now(), ctx.Err()
		}
	}
	for {
		now := Now()
		if now >= at {
			return now, nil
		}
		wake := at - t.Margin()
		if wake <= now {
			continue // spin
		}
		ts := unix.NsecToTimespec(wake)
		switch err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil); err {
		case nil:
			t.Woke(wake, Now())
		case unix.EINTR: // a signal of the Go runtime
		default:
			return now, fmt.Errorf("sleeping until an intended start: %w", err)
		}
	}
}

// Sleep sleeps for d, or returns the context's cause if the context ends earlier.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SleepUntil sleeps until a time by Now, or returns the context's cause if the context ends earlier. The last two
// milliseconds cannot be interrupted: they use the kernel's own clock, because Go's timers round to about one
// millisecond.
func SleepUntil(ctx context.Context, at int64) error {
	const last = 2 * time.Millisecond
	if err := Sleep(ctx, time.Duration(at-Now())-last); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(max(at, 0)) // the kernel rejects negative times
	for {
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil); err != unix.EINTR {
			return err
		}
	}
}
