package main

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/vm/guest"
)

// TestLostPairs: a promise that all pairs keep is undecided once so many are lost that these could break it; the first
// attempt that stands is the one that counts, and who lost what is counted by arm.
func TestLostPairs(t *testing.T) {
	guest.KernelFree(t)
	const blocks = 12
	ratio := promise{what: "CPU time", metric: cpu, base: "haproxy", arm: "proxy", ratio: true, most: 2, unit: "times",
		multiplier: 1}
	less := promise{what: "p50", metric: cpu, base: "haproxy", arm: "proxy", most: 100, unit: "us", multiplier: 1e6}
	for _, c := range []struct {
		lost  int // of blocks
		want  string
		bound string // of the ratio
	}{
		{0, "holds", "[1.53, 1.58]"}, {1, "holds", ""}, {6, "undecided", "[0, +Inf]"}, {8, "too few blocks", "- |"},
	} {
		var trials []record.Trial
		for b := range blocks {
			base := trial("haproxy", b, 1, 50e-6, true)
			trials = append(trials, trial("proxy", b, 2, 500e-6, b >= c.lost), // a later attempt, though first in the list
				base, trial("proxy", b, 1, 75e-6+float64(b)*0.5e-6, b >= c.lost))
		}
		all := newOutcomes()
		if err := all.add(0, trials, nil); err != nil {
			t.Fatal(err)
		}
		for _, p := range []promise{ratio, less} {
			row, broken := all.keeps(p)
			counts := fmt.Sprintf("| %d | %d |", blocks-c.lost, c.lost)
			if broken || !strings.HasSuffix(row, "| "+c.want+" |") || !strings.Contains(row, counts) {
				t.Errorf("%d lost: broken %v, want %s: %s", c.lost, broken, c.want, row)
			}
			if p.ratio && !strings.Contains(row, c.bound) {
				t.Errorf("%d lost: %s lacks %s", c.lost, row, c.bound)
			}
		}
		if lost, again := all.losses(cpu, "proxy"); lost != c.lost || again != 0 {
			t.Errorf("%d lost and %d of later attempts, want %d and none", lost, again, c.lost)
		}
		if lost, _ := all.losses(cpu, "haproxy"); lost != 0 {
			t.Errorf("the other arm lost %d", lost)
		}
	}
}

// TestAgain: where the first attempt is void, the next counts, and is counted.
func TestAgain(t *testing.T) {
	guest.KernelFree(t)
	all := newOutcomes()
	err := all.add(0, []record.Trial{trial("proxy", 0, 1, 1, false), trial("proxy", 0, 2, 2, true),
		trial("proxy", 0, 3, 3, true)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := all.values[cpu]["proxy"][block{0, 0}]; m != (measure{2, true}) {
		t.Errorf("%+v, want the second attempt's 2", m)
	}
	if lost, again := all.losses(cpu, "proxy"); lost != 0 || again != 1 {
		t.Errorf("%d lost, %d again", lost, again)
	}
}

func trial(arm string, block, attempt int, seconds float64, stands bool) record.Trial {
	var t record.Trial
	t.Arm, t.Block, t.Attempt, t.Metrics = arm, block, attempt, map[string]float64{cpu: seconds}
	t.Validity.Valid = stands
	if !stands {
		t.Validity.Reasons = []record.Reason{{Gate: "alone", Voids: []string{cpu}}}
	}
	return t
}
