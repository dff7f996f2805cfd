// Package live weighs a machine continuously: consecutive windows, each with a ledger (Scale), and their
// sums (Totals). Start reading at Scale.Tick.
package live

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

// Scale makes one ledger after another. It is not safe for concurrent use.
type Scale struct {
	o     meter.Options
	duty  Duty
	m     *meter.Meter
	w     *meter.Window // nil if sampling failed: the next Tick opens one
	read  time.Time     // when everything was last read
	end   time.Time     // of the last ledger's window; zero before the first
	parts []meter.Part  // read for the last ledger

	cycle   time.Time // when the current cycle of the duty began
	toggle  time.Time // when statistics are next switched on or off
	counts  bool      // statistics are on
	since   time.Time // when they were last switched on
	skipped int       // number of cycles without statistics
}

// Duty says when the kernel's run statistics are on: once in each cycle of length Every, for the duration On. They are
// switched on at a random time, so that periodic events are neither always missed nor always seen. The zero value means
// always.
type Duty struct{ On, Every time.Duration }

// Factor returns the total time divided by the time with statistics.
func (d Duty) Factor() float64 {
	if d.On == 0 {
		return 1
	}
	return float64(d.Every) / float64(d.On)
}

// next returns when the next cycle begins, when statistics are switched on in it, and how many cycles were skipped
// because the process was stopped. Its arguments are the start of the current cycle, the time at which statistics were
// last switched on, the present time, and a function that returns a random duration below its argument.
//
// All times of the cycle are equally likely, including the last ones, from which statistics stay on into the following
// cycle. If some times were excluded, what happens once per cycle, such as a job every minute, would be seen too often
// or too seldom. Cycles during which statistics stayed on do not count as skipped.
func (d Duty) next(cycle, since, now time.Time, draw func(time.Duration) time.Duration) (
	begins, on time.Time, skipped int) {
	cycle = cycle.Add(d.Every)
	for now.After(cycle.Add(d.Every)) {
		cycle = cycle.Add(d.Every)
		skipped++
	}
	skipped = max(skipped-int(now.Sub(since)/d.Every), 0)
	on = cycle.Add(draw(d.Every))
	if on.Before(now) { // statistics were still on at that time
		on = now
	}
	return cycle, on, skipped
}

// allEvery is the time between two full readings, which look for new groups, and read memory, programs and maps. A full
// reading costs several times as much as reading the counters of CPU time.
const allEvery = 10 * time.Second

// retryAfter is the time until another attempt if statistics could not be switched.
const retryAfter = 5 * time.Second

// drainEvery is the time after which samples are taken out of their rings, unless these fill up sooner. It is long to
// keep continuous operation cheap, because each drain also wakes the process. The end of a window drains the rings as
// well, so drainEvery is a little longer than the usual second between two readings.
const drainEvery = 1250 * time.Millisecond

// Open begins the first window. The caller must close the Scale.
func Open(ctx context.Context, o meter.Options, d Duty) (*Scale, error) {
	s := &Scale{o: o, duty: d}
	s.o.DrainEvery = cmp.Or(o.DrainEvery, drainEvery)
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Scale) open(ctx context.Context) (err error) {
	if s.m == nil {
		if s.m, err = meter.New(ctx, s.o); err != nil {
			return err
		}
	}
	continues := s.duty.On != 0 && !s.cycle.IsZero()
	if continues {
		err = s.m.Count(s.counts)
	}
	if err == nil {
		s.w, err = s.m.Open()
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	s.read = time.Time{}
	if s.duty.On != 0 && !continues { // start with statistics on, to have results early
		s.counts, s.cycle = true, time.Now()
		s.since, s.toggle = s.cycle, s.cycle.Add(s.duty.On)
	}
	return nil
}

// Due returns the latest time for the next call of Tick, so that the kernel's run statistics are switched in time. It
// is the zero time if they are never switched.
func (s *Scale) Due() time.Time { return s.toggle }

// Skipped returns how many cycles of the duty passed without statistics because the process was stopped. The run time
// of eBPF programs in these cycles is in no total.
func (s *Scale) Skipped() int { return s.skipped }

// switchStatistics switches statistics on or off if that is due. It must be called at the edge of two windows: Totals
// takes a window with statistics to have had them from its beginning.
func (s *Scale) switchStatistics() error {
	now := time.Now()
	if s.duty.On == 0 || now.Before(s.toggle) {
		return nil
	}
	if err := s.m.Count(!s.counts); err != nil {
		s.toggle = now.Add(retryAfter)
		return err
	}
	if s.counts = !s.counts; s.counts {
		s.since, s.toggle = now, now.Add(s.duty.On)
		return nil
	}
	var skipped int
	s.cycle, s.toggle, skipped = s.duty.next(s.cycle, s.since, now, rand.N[time.Duration])
	s.skipped += skipped
	return nil
}

// Parts returns what was read for the last ledger, and what reading it cost. It leaves out parts that were not read
// again.
func (s *Scale) Parts() []meter.Part { return s.parts }

// due reports whether it is time to read everything again. Ticks come a little late, some more than others, so a tick
// may seem to come slightly less than allEvery after the last full reading.
func due(read, now time.Time) bool { return now.Sub(read) >= allEvery-allEvery/20 }

// Tick ends the window now and begins the next one at the same edge, so each second is in exactly one of them. After an
// error, the next ledger includes what was used meanwhile. If sampling failed, the window of the next ledger begins
// later instead, as the window's Start shows.
func (s *Scale) Tick(ctx context.Context) (*ledger.Ledger, error) {
	if s.w == nil {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	all := due(s.read, now)
	before := s.w
	var switching error
	l, w, err := before.Next(all, func() { switching = s.switchStatistics() })
	s.w = w
	s.parts = slices.DeleteFunc(before.Parts(), func(p meter.Part) bool { return p.Took == 0 && p.Err == nil })
	if err != nil {
		return nil, err
	}
	if switching != nil {
		l.Warn("no-statistics", "the kernel's run statistics could not be switched: %v", switching)
	}
	if all {
		s.read = now
	}
	if gap := l.Window.Start.Sub(s.end); !s.end.IsZero() && gap > 0 {
		l.Warn("window-gap", "what was used in the %.3g s between the window before and this one is in no ledger, because "+
			"sampling began again", gap.Seconds())
	}
	s.end = l.Window.End
	if slices.ContainsFunc(l.Warnings, func(w ledger.Warning) bool { return w.Code == meter.NotSampled }) {
		// A CPU came online and has no sampler; a new meter has one. No ledger covers the time until the new meter is open.
		if err := errors.Join(s.Close(), s.open(ctx)); err != nil {
			l.Warn("sampler", "sampling could not begin again: %v", err)
		}
	}
	return l, nil
}

// Next calls Tick after the given time, or as soon as the context ends.
func (s *Scale) Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return s.Tick(ctx)
}

// Close releases all resources.
func (s *Scale) Close() error {
	if s.m == nil {
		return nil
	}
	var err error
	if s.w != nil {
		err = s.w.Discard()
	}
	err = errors.Join(err, s.m.Close())
	s.m, s.w = nil, nil
	return err
}
