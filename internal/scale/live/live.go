// Package live weighs a machine for as long as one wants: windows that follow each other without a gap, each a ledger
// (Scale), and what they add up to (Totals). Start reading at Scale.Tick.
package live

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

// Scale gives one ledger after another. It is for one goroutine.
type Scale struct {
	o    meter.Options
	m    *meter.Meter
	w    *meter.Window // nil where sampling failed: the next Tick opens one
	read time.Time     // when all was read last
}

// allEvery is how often new groups are looked for, and memory, programs and maps are listed. It costs several times
// what the counters of CPU time cost.
const allEvery = 10 * time.Second

// drainEvery is how often samples are taken out of their rings: seldom, for what runs always must cost little.
const drainEvery = 500 * time.Millisecond

// Open begins the first window. Close the Scale.
func Open(ctx context.Context, o meter.Options) (*Scale, error) {
	s := &Scale{o: o}
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
	return nil
}

// Tick ends the window now, and begins the next one at the same edge: no second is in neither of them, or in both. After
// an error the next ledger has what was used meanwhile, unless sampling failed: then its window begins later, as its
// start says.
func (s *Scale) Tick(ctx context.Context) (*ledger.Ledger, error) {
	if s.w == nil {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	all := now.Sub(s.read) >= allEvery
	l, w, err := s.w.Next(all)
	s.w = w
	if err != nil {
		return nil, err
	}
	if all {
		s.read = now
	}
	if slices.ContainsFunc(l.Warnings, func(w ledger.Warning) bool { return w.Code == meter.NotSampled }) {
		// A CPU came online, which has no sampler. A new meter has.
		if err := s.Close(); err != nil {
			l.Warn("sampler", "sampling could not be ended: %v", err)
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

// Close gives everything back.
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
