package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// TestReportsOfGaps: whatever an arm lacks in a run (a metric that this machine does not have, or trials that failed),
// the report answers with what is there. TARE_GAPS is how many runs with gaps are made from the run of each experiment.
// Seeds are even and odd in turn, because withGaps makes different runs for even and odd ones.
func TestReportsOfGaps(t *testing.T) {
	runs, first := uint64(long.Repeat(1, 2)), uint64(0)
	if n, err := strconv.ParseUint(os.Getenv("TARE_GAPS"), 10, 64); err == nil {
		runs = n
	}
	eachOldRun(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, record.TrialsFile)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first++
		for seed := first; seed < first+runs; seed++ {
			if err := os.WriteFile(path, withGaps(t, whole, seed), 0o600); err != nil {
				t.Fatal(err)
			}
			reportWith(t, fmt.Sprint("seed ", seed), dir)
		}
	})
}

// reportWith makes the reports of a run, and names the run if that panics.
func reportWith(t *testing.T, what, dir string) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: %v", what, p)
		}
	}()
	for _, args := range [][]string{{dir, "--format", "text,html"}, {dir, "--all"}} {
		if out, err := runReport(args...); err != nil {
			t.Errorf("%s: %v: %v\n%s", what, args[1:], err, out)
		}
	}
}

// withGaps removes metrics and counts from trials, different ones for each arm, and makes some trials fail.
func withGaps(t *testing.T, lines []byte, seed uint64) []byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	left := map[string]bool{} // by arm and name
	leave := func(arm any, name string) bool {
		key := fmt.Sprint(arm, " ", name)
		if _, known := left[key]; !known {
			left[key] = rng.IntN(5) == 0
		}
		return left[key]
	}
	var out bytes.Buffer
	for line := range bytes.Lines(lines) {
		var trial map[string]any
		if err := json.Unmarshal(line, &trial); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"metrics", "counts"} {
			values, _ := trial[field].(map[string]any)
			for _, name := range slices.Sorted(maps.Keys(values)) { // sorted, so that a seed always removes the same
				if leave(trial["arm"], name) {
					delete(values, name)
				}
			}
		}
		if seed%2 == 0 { // so that metrics of trials that a gate rejected are reported too
			trial["validity"] = map[string]any{"valid": true}
		}
		if rng.IntN(8) == 0 {
			trial["validity"] = map[string]any{"valid": false, "failed": "planted"}
			delete(trial, "metrics")
		}
		text, err := json.Marshal(trial)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(text, '\n'))
	}
	return out.Bytes()
}
