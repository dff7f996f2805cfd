package calibrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
)

// clock weighs the clock of all measurements, and the pacer that keeps the schedules of loads.
func (b *bench) clock() ([]planting, error) {
	all := []planting{{"its rate", func(ctx context.Context) ([]Weight, error) {
		w, seen, err := watched(func() (Weight, error) { return b.rate(ctx, b.length(5*time.Second, time.Second)) })
		b.observe(seen)
		return []Weight{w}, err
	}}}
	for _, rate := range []float64{100, 1000, 5000, 10000, 20000} {
		all = append(all, planting{fmt.Sprintf("the pacer at %g per second", rate),
			func(ctx context.Context) ([]Weight, error) { return b.pacer(ctx, rate) }})
	}
	return all, nil
}

// rate compares the scale's clock over d with CLOCK_MONOTONIC_RAW. The latter lacks the corrections for network time,
// which are at most 500 parts in a million.
func (b *bench) rate(ctx context.Context, d time.Duration) (Weight, error) {
	const planted = "a second by the kernel's uncorrected clock (CLOCK_MONOTONIC_RAW)"
	both := func() (scale, raw, apart int64) {
		return closest(b.now, func() int64 { return pace.Clock(unix.CLOCK_MONOTONIC_RAW) }, int64(d/wholeWithin))
	}
	s1, r1, w1 := both()
	if err := pace.Sleep(ctx, d); err != nil {
		return Weight{}, err
	}
	s2, r2, w2 := both()
	// If the thread was interrupted between two readings, the result is uncertain by the time between them.
	apart := float64(w1+w2) / float64(r2-r1)
	second := float64(s2-s1) / float64(r2-r1)
	return known("length of a second", quantity.Seconds, 1, second, Tolerance{Absolute: apart, Part: 0.001}, planted), nil
}

const (
	closestOf   = 20      // minimum number of pairs of readings; the closest counts
	closestMost = 100_000 // maximum number of pairs, if none is close enough
	// The time between two pairs divided by wholeWithin is the maximum distance within a pair. wholeWithin is large, so
	// that a busy machine cannot widen the tolerance until a wrong clock passes.
	wholeWithin = 10_000
)

// closest repeatedly reads the second clock between two readings of the first, and returns the closest readings: at is
// the midpoint of the first clock's two readings, apart is the time between them, and other is the second clock's
// reading. It tries up to closestMost times while apart is larger than the argument within, and at least closestOf
// times.
func closest(scale, raw func() int64, within int64) (at, other, apart int64) {
	apart = 1 << 62
	for i := 0; i < closestOf || apart > within && i < closestMost; i++ {
		before := scale()
		read := raw()
		if took := scale() - before; took < apart {
			apart, at, other = took, before+took/2, read
		}
	}
	return at, other, apart
}

// enough is the minimum number of values beyond a quantile for it to be reported (docs/statistics.md).
const enough = 10

const (
	// lagWindows is the number of windows in which a pacer's rate is measured. Quantiles are medians over windows, so a
	// burst of other load, or of the hypervisor, spoils a window and not the figure.
	lagWindows = 5
	// lagPasses is the maximum number of times that a rate is measured to get enough undisturbed starts.
	lagPasses = 5
	// leastForP50 is the minimum number of undisturbed starts for a median.
	leastForP50 = 5 * enough
	// leastForP99 is the minimum number of starts for a 99th percentile.
	leastForP99 = 100 * enough
)

// pacer measures how late a schedule is kept. The true lag is 0. Starts that the witness saw disturbed, by the
// hypervisor or by a task that held a CPU, say nothing about the pacer: it is judged by the others if there are enough
// of them, whatever their lag is.
func (b *bench) pacer(ctx context.Context, rate float64) ([]Weight, error) {
	each := int(rate * b.length(2*time.Second, 300*time.Millisecond).Seconds())
	windows := lagWindows
	switch {
	case !b.o.Quick:
		each = max(each, leastForP99)
		if rate < 1000 {
			windows = 1 // of 10 s or more
		}
	case rate < 1000:
		each, windows = 150, 1
	default:
		each, windows = max(each, leastForP99/2), 2*lagWindows/3
	}
	want := leastForP50
	if each*windows >= leastForP99 {
		want = leastForP99
	}
	var all, clear []float64
	for range lagPasses {
		k, seen, err := watched(func() (kept, error) { return lags(ctx, rate, each*windows) })
		if err != nil {
			return nil, err
		}
		b.observe(seen)
		all = append(all, lagsOf(k.starts)...)
		spans, known := spansOf(seen.noise, b.ours, k.cpu, 0)
		if !known {
			break
		}
		if clear = append(clear, lagsOf(undisturbed(k.starts, spans))...); len(clear) >= want || b.late() {
			break
		}
	}
	planted := fmt.Sprintf("%d starts at %g per second, constant; the schedule is the truth", len(all), rate)
	name := func(q string) string { return fmt.Sprintf("lag at %g/s, %s", rate, q) }
	longest := slices.Max(all)
	// lag weighs one quantile. To distinguish the machine from the pacer, it also times bare sleeps: if these end later
	// than the pacer's spin time plus the tolerance, any pacer would be late.
	lag := func(q float64, quantile string, least int, allowed time.Duration) (Weight, error) {
		by := all
		if len(clear) >= least {
			by = clear
		}
		measured := medianOfQuantiles(by, each, q)
		w := known(name(quantile), quantity.Seconds, 0, measured, Tolerance{Absolute: allowed.Seconds()}, planted).fragile()
		w = w.by(len(by), len(all), "starts")
		if measured <= allowed.Seconds() {
			return w, nil
		}
		tooLate := pace.DefaultSpin + allowed
		part, err := b.slept(ctx, rate, min(each*windows, leastForP99), tooLate)
		note := fmt.Sprintf("%.3g %% of bare sleeps at this rate ended more than %v late", 100*part, tooLate)
		if len(clear) < least {
			note = fmt.Sprintf("only %d of %d starts were undisturbed; %s", len(clear), len(all), note)
		}
		return w.noted(note).unless(func(_ float64, s stood) bool { return part > (1-q)/2 || s.overQuantile(q) }), err
	}
	w, err := lag(0.5, "p50", leastForP50, 20*time.Microsecond)
	if err != nil {
		return nil, err
	}
	ws := []Weight{w}
	if each*windows >= leastForP99 {
		if w, err = lag(0.99, "p99", leastForP99, lagAllowed); err != nil {
			return nil, err
		}
		ws = append(ws, w)
	} else {
		ws = append(ws, missing(name("p99"), quantity.Seconds, planted,
			fmt.Sprintf("%d starts are too few for a p99: leave out --quick", len(all))))
	}
	return append(ws, told(name("max"), quantity.Seconds, longest, planted)), nil
}

// medianOfQuantiles splits the values, in their order, into windows of about the given number of values or more, and
// returns the median of the windows' quantiles.
func medianOfQuantiles(values []float64, each int, q float64) float64 {
	windows := max(1, len(values)/each)
	var of []float64
	for i := range windows {
		part := slices.Sorted(slices.Values(values[len(values)*i/windows : len(values)*(i+1)/windows]))
		of = append(of, part[min(int(float64(len(part))*q), len(part)-1)])
	}
	slices.Sort(of)
	return of[len(of)/2]
}

// lagAllowed is the tolerance of a 99th percentile of lag.
const lagAllowed = 50 * time.Microsecond

// start is one start of a schedule, in ns by pace.Now.
type start struct{ due, at int64 }

func lagsOf(starts []start) []float64 {
	return lists.Map(starts, func(s start) float64 { return float64(s.at-s.due) / 1e9 })
}

// undisturbed returns the starts that no span touched between the pacer's wake-up and the start itself, however late
// they are. A start that had to wait for a touched one counts as touched, because it is in the same backlog.
func undisturbed(starts []start, spans []span) (clear []start) {
	queued, last := false, int64(0)
	for _, s := range starts {
		wakes := s.due - int64(pace.DefaultSpin)
		queued = touched(spans, wakes, s.at) || queued && last > s.due
		if last = s.at; !queued {
			clear = append(clear, s)
		}
	}
	return clear
}

// slept returns the fraction of n sleeps, at the given rate per second, that ended more than tooLate after their time:
// the delay that any sleeper on the machine has, without a pacer. It counts only undisturbed sleeps if there are
// enough of them.
func (b *bench) slept(ctx context.Context, rate float64, n int, tooLate time.Duration) (part float64, err error) {
	k, seen, err := watched(func() (kept, error) { return sleeps(ctx, rate, n) })
	if err != nil {
		return 0, err
	}
	if spans, known := spansOf(seen.noise, b.ours, k.cpu, 0); known {
		if clear := undisturbed(k.starts, spans); len(clear) >= leastForP50 {
			return lateBy(clear, tooLate), nil
		}
	}
	return lateBy(k.starts, tooLate), nil
}

// lateBy returns the fraction of starts that were later than tooLate.
func lateBy(starts []start, tooLate time.Duration) float64 {
	late := 0
	for _, s := range starts {
		if s.at-s.due > int64(tooLate) {
			late++
		}
	}
	return float64(late) / float64(len(starts))
}

// kept holds the starts of a schedule that was kept on one CPU.
type kept struct {
	starts []start
	cpu    int
}

// keep waits for n points in time on one CPU, and returns when each was due and when it was reached. The other CPUs
// stay free for other work.
func keep(
	spin time.Duration, n int, due func(i int) int64, wait func(thread *pace.Thread, at int64) (int64, error),
) (k kept, err error) {
	thread, err := pace.LockThread(spin) // LockThread also sets the timer slack
	if err != nil {
		return k, err
	}
	defer thread.Close()
	cpu, release, err := pinAnywhere()
	if err != nil {
		return k, err
	}
	defer release()
	k = kept{make([]start, n), cpu}
	for i := range k.starts {
		at := due(i)
		came, err := wait(thread, at)
		if err != nil {
			return kept{}, err
		}
		k.starts[i] = start{at, came}
	}
	return k, nil
}

// startLead is the time between making a schedule and its first start.
const startLead = 10 * time.Millisecond

// lags keeps a schedule of n starts with the pacer.
func lags(ctx context.Context, rate float64, n int) (kept, error) {
	s := pace.NewSchedule(pace.Now()+int64(startLead), rate, pace.Constant, 0, 0, 1)
	due := func(int) int64 {
		defer s.Advance()
		return s.Peek()
	}
	return keep(pace.DefaultSpin, n, due, func(t *pace.Thread, at int64) (int64, error) { return t.Until(ctx, at) })
}

// sleeps keeps a schedule of n starts, at the given rate per second, with bare sleeps instead of the pacer.
func sleeps(ctx context.Context, rate float64, n int) (kept, error) {
	begin := pace.Now() + int64(startLead)
	due := func(i int) int64 { return begin + int64(float64(i)*1e9/rate) }
	return keep(0, n, due, func(_ *pace.Thread, at int64) (int64, error) {
		ts, err := unix.NsecToTimespec(at), error(unix.EINTR)
		for err == unix.EINTR && ctx.Err() == nil { // signals of the Go runtime interrupt sleeps
			err = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil)
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if err != nil {
			return 0, fmt.Errorf("sleeping: %w", err)
		}
		return pace.Now(), nil
	})
}

// missed runs a loop that reads the clock for the time d. It returns the fraction of that time in gaps of more than 10
// us between two readings, in which the CPU did something else or the hypervisor had taken it.
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
