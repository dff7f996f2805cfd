package e2e

import (
	"path/filepath"
	"testing"

	"tare/test/faults"
	"tare/test/long"
)

// TestFaults: one system call of a run fails, or the run is killed there. Whichever call it is, the exit code and the
// error are documented ones, finished trials can be read, and tare clean leaves nothing. test/bench/faults is the long
// form, over all experiments; its flag -seed repeats a seed that failed here.
func TestFaults(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	look(t) // skips the test if this machine cannot be searched for leftovers
	r, err := faults.New(t.TempDir(), bin)
	if err != nil {
		t.Fatal(err)
	}
	each := long.Repeat(1, 3)
	var all []faults.Planned
	for i, name := range long.Some(1, []string{"quickstart", "config-scale"}) {
		counted, err := r.Count(t.Context(), filepath.Join(t.TempDir(), "count"), name)
		if err != nil {
			t.Fatal(err)
		}
		if counted.Code != 0 && counted.Code != 4 || len(counted.Counts) < 20 {
			t.Fatalf("%s without a fault: exit code %d, %d classes of calls\n%s", name, counted.Code, len(counted.Counts),
				counted.Stderr)
		}
		for n := range each {
			seed := uint64(1 + i*each + n)
			all = append(all, faults.Planned{Experiment: name, Seed: seed, Fault: faults.Choose(seed, counted.Counts)})
		}
	}
	verdicts, err := r.Try(t.Context(), filepath.Join(t.TempDir(), "try"), len(all), all...)
	if err != nil {
		t.Fatal(err)
	}
	hits := 0
	for _, v := range verdicts {
		if v.Hit != "" {
			hits++
		}
		for _, p := range v.Problems {
			t.Errorf("%s, seed %d, %s (%s): %s", v.Experiment, v.Seed, v.Fault, v.Hit, p)
		}
	}
	if hits < len(all)/2 {
		t.Errorf("only %d of %d faults came about", hits, len(all))
	}
}
