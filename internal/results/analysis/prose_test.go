package analysis

import (
	"strings"
	"testing"
)

func TestVerdictOf(t *testing.T) {
	for _, c := range []struct {
		above, below, n int
		want            string
	}{
		{0, 2, 2, ", less than with sized at every level"},
		{0, 1, 1, ", less than with sized"},
		{3, 0, 3, ", more than with sized at every level"},
		{0, 0, 2, "; the difference from sized is not resolved at any level"},
		{0, 0, 1, "; the difference from sized is not resolved"},
		{2, 0, 3, ", more than with sized at 2 of 3 levels and not resolved at 1"},
		{0, 1, 3, ", less than with sized at 1 of 3 levels and not resolved at 2"},
		{1, 2, 3, ", more than with sized at 1 of 3 levels and less than with sized at 2 of 3 levels"},
	} {
		if got := verdictOf("sized", c.above, c.below, c.n); got != c.want {
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
		12_345: "12,300"} {
		if got := Times(x); got != want {
			t.Errorf("Times(%g) = %s, want %s", x, got, want)
		}
	}
}
