// Package live weighs a machine for as long as one wants: windows that follow each other without a gap, each a ledger.
// Start reading at Open.
package live

import (
	"context"
	"time"

	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

// Scale gives one ledger after another. It is for one goroutine.
type Scale struct {
	m *meter.Meter
	w *meter.Window
}

// Open begins the first window. Close the Scale.
func Open(ctx context.Context, o meter.Options) (*Scale, error) {
	m, err := meter.New(ctx, o)
	if err != nil {
		return nil, err
	}
	w, err := m.Open()
	if err != nil {
		_ = m.Close()
		return nil, err
	}
	return &Scale{m: m, w: w}, nil
}

// Tick ends the window now, and begins the next one at the same edge: no second is in neither of them, or in both.
func (s *Scale) Tick() (*ledger.Ledger, error) {
	l, err := s.w.Close()
	if err != nil {
		return nil, err
	}
	s.w, err = s.m.Open()
	return l, err
}

// Next is Tick after d, or as soon as the context ends.
func (s *Scale) Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return s.Tick()
}

// Close gives everything back.
func (s *Scale) Close() error { return s.m.Close() }
