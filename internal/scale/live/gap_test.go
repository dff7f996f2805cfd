package live

import (
	"errors"
	"slices"
	"testing"
	"time"

	"tare/internal/scale/host/feature"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

// TestGapWarning: what was used between two meters, for example after a CPU came online, is in no ledger, and the next
// ledger warns of that. Other windows follow each other directly.
func TestGapWarning(t *testing.T) {
	s, err := Open(t.Context(), meter.Options{SampleHz: -1, NoWitness: true, NoStatistics: true}, Duty{})
	if errors.Is(err, feature.ErrMissing) {
		t.Skip("needs a machine that can be weighed: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for i, gap := range []bool{false, false, true, false} {
		if gap {
			if err := errors.Join(s.Close(), s.open(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		l, err := s.Next(t.Context(), 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		of := func(w ledger.Warning) bool { return w.Code == "window-gap" }
		if slices.ContainsFunc(l.Warnings, of) != gap {
			t.Errorf("window %d: warnings %v; of a gap: want %v", i, l.Warnings, gap)
		}
	}
}
