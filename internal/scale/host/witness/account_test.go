package witness

import (
	"math"
	"testing"

	"tare/internal/scale/ledger"
)

const ms = int64(1e6)

// TestIdleStolen checks the stolen part of idle time for recorded intervals: of an idle machine, of a busy one, and of
// one that was both.
func TestIdleStolen(t *testing.T) {
	for name, c := range map[string]struct {
		look   Look
		lo, hi int64
	}{
		"idle CPU": {Look{Last: 0, Now: 12 * ms, Stolen: 10 * ms, Idle: 12 * ms, Late: 10 * ms}, 10 * ms,
			10 * ms},
		"idle CPU, some interrupts": {Look{Last: 0, Now: 12 * ms, Stolen: 10 * ms, Idle: 12*ms - 20_000, Late: 10 * ms},
			10*ms - 20_000, 10 * ms},
		"busy CPU":        {Look{Last: 0, Now: 42 * ms, Stolen: 40 * ms, Late: 40 * ms}, 0, 0},
		"busy, then idle": {Look{Last: 0, Now: 12 * ms, Stolen: 10 * ms, Idle: 1 * ms, Late: 10 * ms}, 0, 1 * ms},
		"idle, then busy for a while": {Look{Last: 0, Now: 12 * ms, Stolen: 10 * ms, Idle: 11 * ms, Late: 10 * ms}, 9 * ms,
			10 * ms},
		"short stall": {Look{Last: 0, Now: 2 * ms, Stolen: ms / 2, Idle: ms, Late: 0}, 0, ms / 2},
	} {
		lo, hi := c.look.idleStolen()
		if lo != c.lo || hi != c.hi {
			t.Errorf("%s: between %d and %d, want %d and %d", name, lo, hi, c.lo, c.hi)
		}
	}
}

// A stall across a window's edge counts on both sides, according to where it was: just before the look if that came
// late, else spread over the interval.
func TestAStallAcrossTheEdge(t *testing.T) {
	late := Look{Last: 100 * ms, Now: 142 * ms, Stolen: 40 * ms, Late: 40 * ms} // from 102 to 142
	short := Look{Last: 100 * ms, Now: 102 * ms, Stolen: ms, Late: 0}
	for _, c := range []struct {
		look     Look
		from, to int64
		want     float64
	}{
		{late, 0, 200 * ms, 1}, {late, 0, 102 * ms, 0}, {late, 0, 122 * ms, 0.5}, {late, 132 * ms, 200 * ms, 0.25},
		{late, 142 * ms, 200 * ms, 0},
		{short, 0, 101 * ms, 0.5}, {short, 101 * ms, 200 * ms, 0.5}, {short, 0, 200 * ms, 1},
	} {
		if got := c.look.part(c.from, c.to); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v from %d to %d: %v, want %v", c.look, c.from, c.to, got, c.want)
		}
	}
}

// An account adds up intervals with a record, those too small for one, and lost records, and excludes what lies outside
// the window.
func TestAccount(t *testing.T) {
	w := &Witness{source: Clock, period: 2 * 1e6}
	w.begin = []state{{Stolen: 1000, Small: 1000, SmallLo: 10, SmallHi: 20, Looks: 5}, {}}
	w.looks = []Look{
		{CPU: 0, Last: 100 * ms, Now: 112 * ms, Stolen: 10 * ms, Idle: 12 * ms, Late: 10 * ms},
		{CPU: 1, Last: 100 * ms, Now: 142 * ms, Stolen: 40 * ms, Late: 40 * ms},
		{CPU: 1, Last: 998 * ms, Now: 1010 * ms, Stolen: 10 * ms, Late: 10 * ms}, // stolen after the window's end at 1000
	}
	w.spans = []span{
		{cpu: 1, before: 200 * ms, first: 202 * ms, last: 222 * ms, after: 224 * ms, stolen: 2 * ms, pid: 7, comm: "hog"},
		{cpu: 1, before: 1100 * ms, first: 1102 * ms, last: 1104 * ms, after: 1106 * ms, pid: 8, comm: "later"},
	}
	ends := []state{
		{Stolen: uint64(10*ms) + 4000, Small: 4000, SmallLo: 40, SmallHi: 80, Looks: 505, Late: 2, Longest: uint64(5 * ms)},
		{Stolen: uint64(53 * ms), Lost: 1, Looks: 400}, // 3 ms more than the records say
	}
	w.spans = append(w.spans, span{ // 10 of its 40 ms are in the window
		cpu: 0, before: -30 * ms, first: -30 * ms, last: 10 * ms, after: 10 * ms, pid: 9, comm: "before",
	})
	a := w.account(ends, 0, 1000*ms)
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 5e-6 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("stolen", a.Stolen, 0.053) // 10 + 40 + 3 ms lost
	near("stolen from idle CPUs", a.IdleStolen, 0.0115)
	near("off by", a.IdleStolenError, 0.0015)
	near("longest", a.Noise.LongestSeconds, 0.040)
	near("longest late", a.Noise.LongestLate, 0.005)
	if a.Looks != 900 || a.Lost != 1 || a.Noise.Late != 2 {
		t.Errorf("%+v", a)
	}
	if len(a.Noise.Stalls) != 2 || !a.Noise.Stalls[0].Idle || a.Noise.Stalls[1].Idle ||
		a.Noise.Stalls[1].Cause != ledger.Hypervisor {
		t.Errorf("stalls %+v", a.Noise.Stalls)
	}
	if len(a.Noise.Occupied) != 2 || a.Noise.Occupied[0].Comm != "before" || a.Noise.Occupied[1].Comm != "hog" ||
		math.Abs(a.Noise.Occupied[0].Seconds-0.010) > 1e-9 || math.Abs(a.Noise.Occupied[1].Seconds-0.020) > 1e-9 {
		t.Errorf("occupied %+v", a.Noise.Occupied)
	}
}

// However many intervals there are, the sums are exact and the longest intervals are kept.
func TestTooManyIntervals(t *testing.T) {
	w := &Witness{source: Clock, period: 2 * 1e6, begin: make([]state, 1)}
	var all int64
	const n = 5 * maxKept
	for i := range int64(n) {
		stolen := ms/2 + (i*7919)%1000
		all += stolen
		w.looks = append(w.looks, Look{Last: i * 2 * ms, Now: (i + 1) * 2 * ms, Stolen: stolen, Idle: 2 * ms})
		w.compact()
	}
	if len(w.looks) > maxKept {
		t.Errorf("%d are kept", len(w.looks))
	}
	a := w.account([]state{{Stolen: uint64(all)}}, 0, n*2*ms)
	if math.Abs(a.Stolen-float64(all)/1e9) > 1e-6 || math.Abs(a.IdleStolen-a.Stolen) > 1e-6 {
		t.Errorf("%v stolen, %v of it idle; want %v", a.Stolen, a.IdleStolen, float64(all)/1e9)
	}
	if len(a.Noise.Stalls) != ledger.MaxStalls || len(a.Noise.Stalls)+a.Noise.StallsOmitted != n {
		t.Errorf("%d stalls and %d omitted of %d", len(a.Noise.Stalls), a.Noise.StallsOmitted, n)
	}
}
