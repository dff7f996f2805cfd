package main

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/vm/guest"
)

// TestLostPairs: a promise that all measured pairs keep is undecided once the lost pairs could break it; the first
// attempt that no gate voids counts, and losses are counted for each arm.
func TestLostPairs(t *testing.T) {
	guest.KernelFree(t)
	const blocks = 12
	p := promise{what: "p50", metric: p50, base: record.Direct, arm: "kernelmesh", most: 100, unit: "us", multiplier: 1e6}
	for _, c := range []struct {
		lost  int // of blocks
		want  string
		bound string
	}{
		{0, "holds", "[26.5, 29]"}, {1, "holds", ""}, {6, "undecided", "[-Inf, +Inf]"}, {8, "too few blocks", "- |"},
	} {
		var trials []record.Trial
		for b := range blocks {
			trials = append(trials, trial("kernelmesh", b, 2, 500e-6, b >= c.lost), // a later attempt, though first in the list
				trial(record.Direct, b, 1, 50e-6, true), trial("kernelmesh", b, 1, 75e-6+float64(b)*0.5e-6, b >= c.lost))
		}
		all := newOutcomes()
		if err := all.add(0, trials, nil); err != nil {
			t.Fatal(err)
		}
		row, broken := all.keeps(p)
		counts := fmt.Sprintf("| %d | %d |", blocks-c.lost, c.lost)
		if broken || !strings.HasSuffix(row, "| "+c.want+" |") || !strings.Contains(row, counts) ||
			!strings.Contains(row, c.bound) {
			t.Errorf("%d lost: broken %v, want %s and %s: %s", c.lost, broken, c.want, c.bound, row)
		}
		if lost, again := all.losses(p50, "kernelmesh"); lost != c.lost || again != 0 {
			t.Errorf("%d lost and %d of later attempts, want %d and none", lost, again, c.lost)
		}
		if lost, _ := all.losses(p50, record.Direct); lost != 0 {
			t.Errorf("the other arm lost %d", lost)
		}
	}
}

// TestAgain: where the first attempt is void, the value of the next is used, and counted as one of a later attempt.
func TestAgain(t *testing.T) {
	guest.KernelFree(t)
	all := newOutcomes()
	err := all.add(0, []record.Trial{trial("kernelmesh", 0, 1, 1, false), trial("kernelmesh", 0, 2, 2, true),
		trial("kernelmesh", 0, 3, 3, true)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := all.values[p50]["kernelmesh"][block{0, 0}]; m != (measure{2, true}) {
		t.Errorf("%+v, want the second attempt's 2", m)
	}
	if lost, again := all.losses(p50, "kernelmesh"); lost != 0 || again != 1 {
		t.Errorf("%d lost, %d again", lost, again)
	}
}

// p50 is the metric that is judged.
const p50 = "latency_p50_seconds"

func trial(arm string, block, attempt int, seconds float64, stands bool) record.Trial {
	var t record.Trial
	t.Arm, t.Block, t.Attempt, t.Metrics = arm, block, attempt, map[string]float64{p50: seconds}
	t.Validity.Valid = stands
	if !stands {
		t.Validity.Reasons = []record.Reason{{Gate: "alone", Voids: []string{p50}}}
	}
	return t
}
