// Package live weighs a machine continuously: windows that follow each other without a gap, each with a ledger (Scale),
// and their sums (Totals). Start reading at Scale.Tick.
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

// Scale makes one ledger after another. It is for one goroutine.
type Scale struct {
	o     meter.Options
	duty  Duty
	m     *meter.Meter
	w     *meter.Window // nil where sampling failed: the next Tick opens one
	read  time.Time     // when everything was last read
	parts []meter.Part  // of the last ledger

	cycle   time.Time // when the cycle of the duty began
	toggle  time.Time // when statistics are switched on, or off, next
	counts  bool      // they are on
	since   time.Time // when they were switched on last
	skipped int       // cycles of the duty
}

// Duty says when the kernel's run statistics are on: for On in each Every, at a random time in it, so that what happens
// at regular times is neither always missed nor always seen. The zero value means always.
type Duty struct{ On, Every time.Duration }

// Factor is the whole time divided by the time with statistics.
func (d Duty) Factor() float64 {
	if d.On == 0 {
		return 1
	}
	return float64(d.Every) / float64(d.On)
}

// next returns when the next cycle begins, and when statistics are switched on in it; they were on from since until
// now. Every time of the cycle is as likely as any other, also the last ones, from which they stay on into the cycle
// after it: otherwise what happens once in each cycle, such as a job every minute, would be seen more or less often
// than it is counted for.
//
// A process that was stopped for longer than a cycle skips cycles. Those in which statistics stayed on were counted.
func (d Duty) next(cycle, since, now time.Time, draw func(time.Duration) time.Duration) (
	begins, on time.Time, skipped int) {
	cycle = cycle.Add(d.Every)
	for now.After(cycle.Add(d.Every)) {
		cycle = cycle.Add(d.Every)
		skipped++
	}
	skipped = max(skipped-int(now.Sub(since)/d.Every), 0)
	on = cycle.Add(draw(d.Every))
	if on.Before(now) { // they still were on then
		on = now
	}
	return cycle, on, skipped
}

// allEvery is how often new groups are looked for, and memory, programs and maps are listed. It costs several times
// what the counters of CPU time cost.
const allEvery = 10 * time.Second

// retryAfter is when statistics that could not be switched are tried again.
const retryAfter = 5 * time.Second

// drainEvery is how often samples are taken out of their rings, unless these fill sooner: seldom, to keep what runs all
// day cheap. Each time costs a waking of the process too. The end of a window empties them as well, so that it is a
// little more than the second between two readings.
const drainEvery = 1250 * time.Millisecond

// Open begins the first window. Close the Scale.
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
	if s.w, err = s.m.Open(); err != nil {
		return errors.Join(err, s.Close())
	}
	s.read = time.Time{}
	switch {
	case s.duty.On == 0:
	case s.cycle.IsZero(): // the first cycle begins with statistics on: there is something to see early
		s.counts, s.cycle = true, time.Now()
		s.since, s.toggle = s.cycle, s.cycle.Add(s.duty.On)
	default: // the duty goes on where it was
		return s.m.Count(s.counts)
	}
	return nil
}

// Due is when Tick must be called at the latest, to switch the kernel's run statistics on or off. It is the zero time
// where they are never switched.
func (s *Scale) Due() time.Time { return s.toggle }

// Skipped is how many cycles of the duty passed without statistics, because the process was stopped. What eBPF programs
// ran in them is in no total.
func (s *Scale) Skipped() int { return s.skipped }

// switchStatistics does that if it is due. A window has just begun.
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

// Parts are what the last ledger was made from, and what reading it cost. A part that was not read again is left out.
func (s *Scale) Parts() []meter.Part { return s.parts }

// Tick ends the window now and begins the next one at the same edge, so that each second is in exactly one of them.
// After an error the next ledger has what was used meanwhile, unless sampling failed: then its window begins later, as
// its start says.
func (s *Scale) Tick(ctx context.Context) (*ledger.Ledger, error) {
	if s.w == nil {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	all := now.Sub(s.read) >= allEvery
	before := s.w
	l, w, err := before.Next(all)
	s.w = w
	s.parts = slices.DeleteFunc(before.Parts(), func(p meter.Part) bool { return p.Took == 0 && p.Err == nil })
	if err != nil {
		return nil, err
	}
	if err := s.switchStatistics(); err != nil {
		l.Warn("no-statistics", "the kernel's run statistics could not be switched: %v", err)
	}
	if all {
		s.read = now
	}
	if slices.ContainsFunc(l.Warnings, func(w ledger.Warning) bool { return w.Code == meter.NotSampled }) {
		// A CPU came online, which has no sampler. A new meter has. Until it is open nothing is counted.
		if err := errors.Join(s.Close(), s.open(ctx)); err != nil {
			l.Warn("sampler", "sampling could not begin again: %v", err)
		}
	}
	return l, nil
}

// Next is Tick after d, or as soon as the context ends.
func (s *Scale) Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return s.Tick(ctx)
}

// Close releases everything.
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
