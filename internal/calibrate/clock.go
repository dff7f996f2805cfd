package calibrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/load/pace"
	"tare/internal/quantity"
)

// clock weighs the clock that everything is timed by, and the pacer that keeps the schedule of loads.
func (b *bench) clock(ctx context.Context) error {
	err := b.weigh(ctx, "clock", "its rate", func(ctx context.Context) ([]Weight, error) {
		w, err := b.rate(ctx, b.length(5*time.Second, time.Second))
		return []Weight{w}, err
	})
	if err != nil {
		return err
	}
	for _, rate := range []float64{100, 1000, 5000, 10000, 20000} {
		err := b.weigh(ctx, "clock", fmt.Sprintf("the pacer at %g per second", rate), func(ctx context.Context) ([]Weight, error) { return b.pacer(ctx, rate) })
		if err != nil {
			return err
		}
	}
	return nil
}

// rate holds the scale's clock against the oscillator as the kernel gives it, without the corrections of network time, which are at most
// 500 parts in a million.
func (b *bench) rate(ctx context.Context, d time.Duration) (Weight, error) {
	const planted = "a second by the kernel's uncorrected clock (CLOCK_MONOTONIC_RAW)"
	both := func() (scale, raw, width int64, err error) {
		var ts unix.Timespec
		best := int64(1) << 62
		for range 20 { // the closest pair: nothing came between
			before := b.now()
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
				return 0, 0, 0, fmt.Errorf("reading CLOCK_MONOTONIC_RAW: %w", err)
			}
			if took := b.now() - before; took < best {
				best, scale, raw = took, before+took/2, ts.Nano()
			}
		}
		return scale, raw, best, nil
	}
	s1, r1, w1, err := both()
	if err != nil {
		return Weight{}, err
	}
	if err := sleep(ctx, d); err != nil {
		return Weight{}, err
	}
	s2, r2, w2, err := both()
	if err != nil {
		return Weight{}, err
	}
	// Somebody who came between the two clocks in all 20 pairs leaves the reading uncertain by as much as they lie
	// apart.
	apart := float64(w1+w2) / float64(r2-r1)
	second := float64(s2-s1) / float64(r2-r1)
	return known("length of a second", quantity.Seconds, 1, second, Tolerance{Absolute: apart, Part: 0.001}, planted), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enough values must lie beyond a quantile for it to be told (docs/statistics.md).
const enough = 10

// lagWindows is how many windows a pacer's rate is measured in. Quantiles are the medians of theirs: a burst of other work, or of the
// hypervisor's, spoils a window and not the figure.
const lagWindows = 5

// pacer measures how late a schedule is met. The truth is the schedule: no lag.
func (b *bench) pacer(ctx context.Context, rate float64) ([]Weight, error) {
	each := int(rate * b.length(2*time.Second, 300*time.Millisecond).Seconds())
	windows := lagWindows
	switch {
	case !b.o.Quick:
		each = max(each, enough*100)
		if rate < 1000 {
			windows = 1 // of 10 s
		}
	case rate < 1000:
		each, windows = 150, 1
	default:
		each, windows = max(each, enough*100/2), 2*lagWindows/3
	}
	lags, err := b.lags(ctx, rate, each*windows)
	if err != nil {
		return nil, err
	}
	planted := fmt.Sprintf("%d starts at %g per second, constant; the schedule is the truth", len(lags), rate)
	name := func(q string) string { return fmt.Sprintf("lag at %g/s, %s", rate, q) }
	var p50, p99 []float64
	longest := 0.0
	for part := range slices.Chunk(lags, each) {
		slices.Sort(part)
		p50 = append(p50, part[len(part)/2])
		p99 = append(p99, part[len(part)*99/100])
		longest = max(longest, part[len(part)-1])
	}
	slices.Sort(p50)
	slices.Sort(p99)
	// lag is one quantile. Is it the pacer, or the machine? Who is woken later than the pacer may spin, and more,
	// is late with any pacer.
	lag := func(q float64, quantile string, measured float64, allowed time.Duration) (Weight, error) {
		w := known(name(quantile), quantity.Seconds, 0, measured, Tolerance{Absolute: allowed.Seconds()}, planted).fragile()
		if measured <= allowed.Seconds() {
			return w, nil
		}
		tooLate := pace.DefaultSpin + allowed
		part, err := slept(ctx, rate, min(len(lags), enough*100), tooLate)
		return w.noted(fmt.Sprintf("of bare sleeps at this rate %.2g %% ended more than %v late", 100*part, tooLate)).
			unless(func(_ float64, s stood) bool { return part > (1-q)/2 || s.overQuantile(q) }), err
	}
	w, err := lag(0.5, "p50", p50[len(p50)/2], 20*time.Microsecond)
	if err != nil {
		return nil, err
	}
	ws := []Weight{w}
	if len(lags) >= enough*100 {
		if w, err = lag(0.99, "p99", p99[len(p99)/2], lagAllowed); err != nil {
			return nil, err
		}
		ws = append(ws, w)
	} else {
		ws = append(ws, missing(name("p99"), quantity.Seconds, planted, fmt.Sprintf("%d starts are too few for a p99: leave out --quick", len(lags))))
	}
	return append(ws, told(name("max"), quantity.Seconds, longest, planted)), nil
}

// lagAllowed is the tolerance of a 99th percentile of lag.
const lagAllowed = 50 * time.Microsecond

// slept is the part of n sleeps, each to the next of that many moments a second, that ended more than a time too late: what the machine does to
// anybody who sleeps, without a pacer.
func slept(ctx context.Context, rate float64, n int, tooLate time.Duration) (part float64, err error) {
	thread, err := pace.LockThread(0) // for its timer slack
	if err != nil {
		return 0, err
	}
	defer thread.Close()
	late, begin := 0, pace.Now()
	for i := 1; i <= n; i++ {
		at := begin + int64(float64(i)*1e9/rate)
		ts := unix.NsecToTimespec(at)
		for err = unix.EINTR; err == unix.EINTR && ctx.Err() == nil; { // the Go runtime's own signals
			err = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil)
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if err != nil {
			return 0, fmt.Errorf("sleeping: %w", err)
		}
		if pace.Now()-at > int64(tooLate) {
			late++
		}
	}
	return float64(late) / float64(n), nil
}

// missed is the part of the time in which a loop that reads the clock again and again does not get to it for more than 10 us: its CPU does something
// else, or nothing of this machine at all.
func missed(d time.Duration) (part float64) {
	const gap = int64(10 * time.Microsecond)
	begin := pace.Now()
	away, last := int64(0), begin
	for last-begin < int64(d) {
		now := pace.Now()
		if now-last > gap {
			away += now - last
		}
		last = now
	}
	return float64(away) / float64(last-begin)
}

// lags keeps a schedule of n starts and says how late each was, in seconds.
func (b *bench) lags(ctx context.Context, rate float64, n int) ([]float64, error) {
	thread, err := pace.LockThread(pace.DefaultSpin)
	if err != nil {
		return nil, err
	}
	defer thread.Close()
	out := make([]float64, n)
	s := pace.NewSchedule(pace.Now()+int64(10*time.Millisecond), rate, pace.Constant, 0, 0, 1)
	for i := range out {
		at, err := thread.Until(ctx, s.Peek())
		if err != nil {
			return nil, err
		}
		out[i] = float64(at-s.Peek()) / 1e9
		s.Advance()
	}
	return out, nil
}
