package attribution

import (
	"math/rand/v2"
	"testing"

	"tare/internal/scale/ledger"
)

// stalledRun simulates a program that runs for a part of a busy CPU's time while stalls of a given length hit the CPU
// at random times. It returns the input for the estimator, and the true stolen time. The witness looks at every
// samples-th sample.
func stalledRun(rng *rand.Rand, part, stall, between, seconds, hz, samples float64, hidden bool) (Stalled, float64) {
	period := 1 / hz
	s := Stalled{Period: period, LookPeriod: samples * period}
	truth := 0.0
	ran := 0.0 // CPU time
	for at := rng.ExpFloat64() * between; at < seconds; at += rng.ExpFloat64() * between {
		length := stall * (0.5 + rng.Float64())
		s.BusyStolen += length
		if rng.Float64() < part { // it hit the program
			truth += length
			// A look is due at any time of its period: while the CPU is away if the stall is long enough.
			late := length - rng.Float64()*s.LookPeriod
			if late > 0 && !hidden {
				s.Hits = append(s.Hits, Hit{Stolen: length, Late: late})
			}
		}
	}
	ran = seconds * part
	s.RunSeconds = ran + truth
	s.Busy = seconds + s.BusyStolen
	if !hidden {
		for range int(seconds / period) {
			if rng.Float64() < part {
				s.Samples++
			}
		}
	}
	return s, truth
}

// The interval contains the stolen time, and the estimate is right on average: for long and short stalls, and for a
// program that no sample sees.
func TestStolenHoldsTheTruth(t *testing.T) {
	for _, c := range []struct {
		name                 string
		part, stall, between float64
		hz, samples          float64 // samples per second; the witness looks at every samples-th
		hidden               bool
		method               string
	}{
		{"stalls of 20 ms, a large program", 0.5, 0.020, 0.1, 499, 1, false, ledger.StolenWitnessed},
		{"stalls of 20 ms, a small program", 0.02, 0.020, 0.1, 499, 1, false, ledger.StolenWitnessed},
		{"stalls of 1 ms, a large program", 0.5, 0.001, 0.01, 499, 1, false, ledger.StolenWitnessed},
		{"stalls of 1 ms, a small program", 0.02, 0.001, 0.01, 499, 1, false, ledger.StolenWitnessed},
		{"stalls of 0.5 ms, a look at every fourth sample", 0.5, 0.0005, 0.01, 1997, 4, false, ledger.StolenWitnessed},
		{"interrupts off", 0.2, 0.020, 0.1, 499, 1, true, ledger.StolenProportion},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		const trials = 2000
		hits, others, sum, truths := 0, 0, 0.0, 0.0
		for range trials {
			s, truth := stalledRun(rng, c.part, c.stall, c.between, 10, c.hz, c.samples, c.hidden)
			v, method := Stolen(s)
			if method != c.method {
				others++
			}
			if v.Lo-1e-9 <= truth && truth <= v.Hi+1e-9 {
				hits++
			}
			sum += v.Value
			truths += truth
		}
		covered, bias := float64(hits)/trials, sum/truths-1
		t.Logf("%s: %.1f %% covered, the mean is off by %+.1f %%", c.name, 100*covered, 100*bias)
		if others > trials/100 { // a program may have few samples by chance
			t.Errorf("%s: %d of %d by another method than %s", c.name, others, trials, c.method)
		}
		if covered < 0.93 {
			t.Errorf("%s: the interval held the truth in %.1f %%", c.name, 100*covered)
		}
		if bias < -0.1 || bias > 0.1 {
			t.Errorf("%s: on average off by %.1f %%", c.name, 100*bias)
		}
	}
}

// If nothing was stolen, the estimate is 0 without uncertainty.
func TestNothingStolen(t *testing.T) {
	v, _ := Stolen(Stalled{RunSeconds: 1, Samples: 499, Period: 1.0 / 499, LookPeriod: 1.0 / 499, Busy: 10})
	if v != (ledger.Interval{}) {
		t.Errorf("%+v", v)
	}
}
