package engine

import (
	"context"
	"errors"
	"math"
	"testing"

	"tare/internal/lib/pace"
	"tare/internal/scale/ledger"
	"tare/internal/scale/profile"
)

// fakeStacks records the calls of its methods.
type fakeStacks struct {
	begin    error
	from, to int64
	ended    int
}

func (s *fakeStacks) Begin(from, to int64) error {
	s.from, s.to = from, to
	return s.begin
}

func (s *fakeStacks) End() (*profile.Window, error) {
	s.ended++
	return &profile.Window{}, nil
}

type fakeWindow struct{ err error }

func (w fakeWindow) CloseAt(context.Context, int64) (*ledger.Ledger, error) {
	return &ledger.Ledger{}, w.err
}

// TestStacksOfAWindow: stacks are sampled between the edges of the window and ended once, whatever fails. If they
// cannot be sampled, a warning says so, and nothing fails.
func TestStacksOfAWindow(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct{ stacks, begin, open, closing error }{
		"all well": {}, "no sampler": {stacks: broken}, "no samples": {begin: broken}, "no window": {open: broken},
		"no second edge": {closing: broken},
	} {
		stacks := &fakeStacks{begin: c.begin}
		m := Machine{
			Shared:     true,
			OpenWindow: func(context.Context, int64) (Window, error) { return fakeWindow{c.closing}, c.open },
			Stacks: func() (Stacks, error) {
				if c.stacks != nil {
					return nil, c.stacks
				}
				return stacks, nil
			},
		}
		from, to := pace.Now()+1e9, int64(math.MaxInt64)
		w, err := m.open(t.Context(), from, to)
		if (err != nil) != (c.open != nil) {
			t.Errorf("%s: opening gives %v", name, err)
		}
		if err == nil {
			if _, err = w.closeAt(t.Context(), to); (err != nil) != (c.closing != nil) {
				t.Errorf("%s: closing gives %v", name, err)
			}
			w.endStacks()
			if (w.unstacked != nil) != (c.stacks != nil || c.begin != nil) || (w.sampled != nil) != (c.stacks == nil) {
				t.Errorf("%s: %v, %v", name, w.sampled, w.unstacked)
			}
		}
		if want := 1; c.stacks == nil && (stacks.ended != want || stacks.from != from || stacks.to != to) {
			t.Errorf("%s: sampling was ended %d times, of %d to %d", name, stacks.ended, stacks.from, stacks.to)
		}
	}
}
