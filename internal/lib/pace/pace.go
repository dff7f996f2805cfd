// Package pace is the clock that load generators share: an absolute schedule of intended starts, and a thread that can
// wait for one of them to within microseconds.
//
// Go's own timers will not do: the runtime waits in epoll_wait, which counts in milliseconds, so that a sleep of 50 us
// lasts about 1 ms (golang/go issue 53824). And a relative sleep adds each lateness to all that follows, which hides a
// stall of the server from the numbers. Here every start has its own fixed time; a generator that is late shows as lag.
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

// epoch ties Go's monotonic reading to CLOCK_MONOTONIC. Both are the same clock of the kernel, but the runtime shows
// only differences, and reading those costs no system call while Clock makes one.
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

// Now is CLOCK_MONOTONIC in nanoseconds: the clock of role.Schedule, comparable between processes of one machine.
func Now() int64 { return epochNano + int64(time.Since(epoch)) }

// Clock reads one of the kernel's clocks that are always there (CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID ...), in
// nanoseconds.
func Clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("clock_gettime(%d): %v", id, err))
	}
	return ts.Nano()
}

// Schedule holds the intended starts of one generator, or of its share of them. It is for one goroutine.
type Schedule struct {
	begin int64 // of the schedule, ns by Now
	next  int64

	// Constant arrivals: this part's k-th start is number part+k*parts of the whole.
	rate        float64
	index, step int64

	// Poisson arrivals.
	rng  *rand.Rand
	mean float64 // gap, ns
	at   float64 // ns since begin: in floating point, so that rounding does not pile up
}

// NewSchedule is share part of parts (0 of 1 for the whole) of a schedule that starts at begin (ns by Now) with rate
// starts per second in all. Constant arrivals are dealt out in turn, so all shares together are evenly spaced; the
// first is at begin. The shares of Poisson arrivals are independent and make up one Poisson process together.
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

// Peek is the next intended start, in ns by Now.
func (s *Schedule) Peek() int64 { return s.next }

// Advance passes on to the start after that.
func (s *Schedule) Advance() {
	if s.rng != nil {
		s.at += s.rng.ExpFloat64() * s.mean
		s.next = s.begin + int64(s.at)
		return
	}
	s.index += s.step
	// From the index, not from the last start: a gap of 1/3 ms must not drift. Floating point is exact enough for
	// months.
	s.next = s.begin + int64(math.Round(float64(s.index)*1e9/s.rate))
}

// DefaultSpin is how early a thread may wake to spin. Waking from sleep takes 25 to 60 us on virtual machines, so less
// than that leaves lag, and more burns CPU.
const DefaultSpin = 60 * time.Microsecond

// Thread is an operating-system thread that waits precisely: its goroutine is locked to it and its timer slack is 1 ns
// instead of the usual 50 us. It learns how late the kernel wakes it and asks to be woken that much earlier, so most of
// the margin is spent asleep and little of it spinning.
type Thread struct {
	slack  int     // to be restored, ns
	spin   float64 // largest margin, ns
	margin float64 // about the 90th percentile of lateness seen, ns
}

// LockThread makes a Thread of the calling goroutine's thread, until Close. Spin bounds how early it wakes, hence how
// long it may spin per wait; 0 sleeps to the full and never spins.
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

// Close gives the thread its old timer slack back and unlocks the goroutine from it.
func (t *Thread) Close() error {
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(t.slack), 0, 0, 0); err != nil {
		return fmt.Errorf("restoring the timer slack: %w", err)
	}
	return nil
}

// Margin is how long before an intended start to stop sleeping and spin, in ns.
func (t *Thread) Margin() int64 { return int64(t.margin) }

// Woke tells the thread that it asked to sleep until asked and woke by the timer at now (ns by Now).
func (t *Thread) Woke(asked, now int64) {
	// A step up nine times as long as a step down settles where one wake in ten is later: the 90th percentile.
	const step = 250 // ns
	if float64(now-asked) > t.margin {
		t.margin = min(t.margin+9*step, t.spin)
	} else {
		t.margin = max(t.margin-step, 0)
	}
}

// Until waits for time at (ns by Now) and returns the time when it is over, or ends early with the context's error.
func (t *Thread) Until(ctx context.Context, at int64) (int64, error) {
	// All but the last of a long wait goes to the runtime: there the context can end it, and a goroutine that sleeps in
	// the kernel keeps the runtime's monitor thread busy taking its scheduler slot away.
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
		case unix.EINTR: // the Go runtime's own signals
		default:
			return now, fmt.Errorf("sleeping until an intended start: %w", err)
		}
	}
}

// Sleep sleeps for d, or until the context ends: its error is then the context's cause.
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

// SleepUntil sleeps until a time by Now. The context can end all but the last two milliseconds, with its cause as the
// error: the kernel's own clock times these, for Go's timers round to about one.
func SleepUntil(ctx context.Context, at int64) error {
	const last = 2 * time.Millisecond
	if err := Sleep(ctx, time.Duration(at-Now())-last); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(max(at, 0)) // it refuses times before its beginning
	for {
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil); err != unix.EINTR {
			return err
		}
	}
}
