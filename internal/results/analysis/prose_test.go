package analysis

import (
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

func TestVerdictOf(t *testing.T) {
	for _, c := range []struct {
		above, below, n, levels int
		want                    string
	}{
		{0, 2, 2, 2, ", less than with sized at every level"},
		{0, 1, 1, 1, ", less than with sized"},
		{3, 0, 3, 3, ", more than with sized at every level"},
		{0, 0, 2, 2, "; the difference from sized is not resolved at any level"},
		{0, 0, 1, 1, "; the difference from sized is not resolved"},
		{2, 0, 3, 3, ", more than with sized at 2 of 3 levels and not resolved at 1"},
		{0, 1, 3, 3, ", less than with sized at 1 of 3 levels and not resolved at 2"},
		{1, 2, 3, 3, ", more than with sized at 1 of 3 levels and less than with sized at 2 of 3 levels"},
		// At one level a value is missing or withheld.
		{2, 0, 2, 3, ", more than with sized at 2 of 3 levels and not known at 1"},
		{0, 1, 2, 3, ", less than with sized at 1 of 3 levels, not resolved at 1 and not known at 1"},
		{0, 0, 2, 3, "; the difference from sized is not resolved at 2 of 3 levels, and not known elsewhere"},
	} {
		if got := verdictOf("sized", c.above, c.below, c.n, c.levels); got != c.want {
			t.Errorf("%d above, %d below of %d: %q; want %q", c.above, c.below, c.n, got, c.want)
		}
	}
}

// TestStanding: a sentence whose first clause has no verb for its arm puts the arm before a colon.
func TestStanding(t *testing.T) {
	for _, c := range []struct {
		at   factors
		want string
	}{
		{nil, "sleep: p50 is not resolved; p99 is not resolved. sleep holds 1 MB; p50 is not resolved."},
		{factors{"rate": "10"}, "At rate 10, sleep: p50 is not resolved; p99 is not resolved. " +
			"At rate 10: sleep holds 1 MB; p50 is not resolved."},
	} {
		p := &Prose{Summary: &Summary{}, Arm: "sleep", At: c.at}
		for _, clauses := range [][]string{
			{p.standing("p50 is not resolved"), "p99 is not resolved"}, {"holds 1 MB", "p50 is not resolved"},
		} {
			p.clauses = clauses
			p.end()
		}
		if got := strings.Join(p.text, " "); got != c.want {
			t.Errorf("at %v:\n%s\nand not\n%s", c.at, got, c.want)
		}
	}
}

func TestTimes(t *testing.T) {
	for x, want := range map[float64]string{1.44: "1.4", 9.94: "9.9", 27.4: "27", 999: "999", 1000: "1,000", 6320: "6,300",
		12_345: "12,300", 9.97: "10", 999.7: "1,000", 1_234_567: "1,234,600"} {
		if got := Times(x); got != want {
			t.Errorf("Times(%g) = %s, want %s", x, got, want)
		}
	}
}

// TestNoExponents: numbers that people read have no exponent.
func TestNoExponents(t *testing.T) {
	for v, want := range map[float64]string{0.25: "0.25", 12.34: "12.3", 999: "999", 999.7: "1,000", 45_678: "45,700"} {
		if got := Digits(&Estimate{Interval: Interval{Value: v}}); got != want {
			t.Errorf("Digits of %g: %s, want %s", v, got, want)
		}
	}
	run, trials := made(measured.Definitions(), nil, func(string, factors) map[string]float64 {
		return map[string]float64{"memory_hard_bytes": 1e6}
	})
	for i := range trials {
		if trials[i].Block > 4 {
			trials[i].Metrics["memory_hard_bytes"] *= 10
		}
	}
	run.Precision = &record.Precision{Target: 0.05, Metrics: []string{"memory_hard_bytes"}}
	if _, why, err := Enough(run, trials); err != nil || !strings.Contains(why, "memory hard of direct (450 %)") {
		t.Error(why, err)
	}
	for hi, want := range map[float64]string{3.7e-6: "3.7", 123e-6: "123"} {
		e := &Estimate{Interval: Interval{Lo: new(0.0), Hi: &hi}, Trials: 10, Unit: quantity.Part}
		if got := Pooled(e); got != "none (below "+want+" in a million, at 95 %)" {
			t.Errorf("%g: %s", hi, got)
		}
	}
}
