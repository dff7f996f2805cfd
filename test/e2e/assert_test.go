package e2e

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/record"
)

// TestAssertions: the exit code tells the result of assertions, whether they are given to the run or to a report of it.
func TestAssertions(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	dir := filepath.Join(t.TempDir(), "out")
	file := specFile(t, shortSpec) // no gate voids the time that the subject takes to start
	o := tare(t, "run", file, "--blocks", "1", "--out", dir, "--assert", "start_seconds <= 60min")
	if o.code != 4 || !strings.Contains(o.stderr, "an assertion is undecided: start_seconds <= 60min") ||
		!strings.Contains(o.stderr, "at least 6 blocks are needed") ||
		!strings.Contains(o.stdout, "undecided  start_seconds <= 60min") {
		t.Errorf("of one block: %s", o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct{ Assert []string }
	if err := json.Unmarshal(c.Run.Spec, &spec); err != nil || !slices.Equal(c.Run.Assert, spec.Assert) ||
		!slices.Equal(spec.Assert, []string{"start_seconds <= 60min"}) {
		t.Errorf("recorded: %v, %q, in the spec %q", err, c.Run.Assert, spec.Assert)
	}
	if o := tare(t, "report", dir, "--assert", "start_seconds == 1ns"); o.code != 5 ||
		!strings.Contains(o.stderr, "an assertion fails: start_seconds == 1ns") {
		t.Errorf("what was seen to be broken: %s", o)
	}
	if o := tare(t, "report", dir, "--format", "junit"); o.code != 0 || !strings.Contains(o.stdout, `errors="1"`) {
		t.Errorf("a report without assertions of its own: %s", o)
	}
	for _, bad := range []string{"map_bytes", "map_bites <= 1MB", "map_bytes <= 1", "map_bytes{arm=nobody} <= 1MB"} {
		if o := tare(t, "run", "quickstart", "--assert", bad, "--out", filepath.Join(t.TempDir(), "none")); o.code != 2 ||
			!strings.Contains(o.stderr, "--assert") || strings.Contains(o.stderr, "trial 1") {
			t.Errorf("%s: %s", bad, o)
		}
	}
	// A baseline whose program does not exist is refused before any trial, and the error names the flag of the baseline.
	if o := tare(t, "try", "--load", "execs", "--against", "/nonexistent/old", "--", "sleep", "infinity"); o.code != 2 ||
		!strings.Contains(o.stderr, "--against") {
		t.Errorf("a baseline that is not installed: %s", o)
	}
}
