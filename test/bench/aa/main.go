// Command aa runs an experiment that has only the baseline and its twin many times over, and counts for each metric in
// how many of the runs the two were called different. The rule allows one in twenty.
//
//	go run ./test/bench/aa [-runs 20] [-keep DIR] [SPEC.yaml]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

func main() {
	runs := flag.Int("runs", 20, "how many valid runs to make; the campaign ends after twice as many in any case")
	tare := flag.String("tare", "bin/tare", "the binary")
	keep := flag.String("keep", "", "directory for the run directories; a temporary one, removed at the end, when empty")
	flag.Parse()
	spec := "test/bench/aa/spec.yaml"
	if flag.NArg() > 0 {
		spec = flag.Arg(0)
	}
	if err := campaign(*tare, spec, *keep, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "aa:", err)
		os.Exit(1)
	}
}

// score is the result for one metric.
type score struct {
	runs, alarms int
	visible      []float64 // the smallest visible difference, as a part of the value
}

func campaign(tare, spec, dir string, runs int) error {
	if dir == "" {
		temp, err := os.MkdirTemp("", "tare-aa-")
		if err != nil {
			return fmt.Errorf("making a directory for the runs: %w", err)
		}
		defer os.RemoveAll(temp)
		dir = temp
	}
	scores, invalid := map[string]*score{}, 0
	for i := 0; i-invalid < runs && i < 2*runs; i++ {
		out := filepath.Join(dir, strconv.Itoa(i+1))
		began := time.Now()
		s, err := one(tare, spec, out, i+1)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		if !s.Valid {
			invalid++
			fmt.Printf("run %2d: invalid: %v\n", i+1, s.InvalidReasons)
			continue
		}
		apart := add(scores, s)
		fmt.Printf("run %2d: %.0f s, %d of %d trials valid, different: %v\n", i+1, time.Since(began).Seconds(),
			s.Trials.Valid, s.Trials.Done, apart)
	}
	fmt.Printf("\n%d runs were invalid\n\n| metric | called different | smallest visible, median, %% of the value "+
		"|\n|---|---|---|\n", invalid)
	all, alarms := 0, 0
	for _, name := range slices.Sorted(maps.Keys(scores)) {
		c := scores[name]
		all, alarms = all+c.runs, alarms+c.alarms
		visible := "-"
		if len(c.visible) > 0 {
			slices.Sort(c.visible)
			visible = fmt.Sprintf("%.1f", 100*c.visible[len(c.visible)/2])
		}
		fmt.Printf("| %s | %d of %d | %s |\n", name, c.alarms, c.runs, visible)
	}
	fmt.Printf("| all | %d of %d (%.1f %%) | |\n", alarms, all, 100*float64(alarms)/float64(max(all, 1)))
	return nil
}

// add counts one run, and names the metrics in which its twins were called different.
func add(scores map[string]*score, s *analysis.Summary) []string {
	apart := []string{}
	for _, e := range s.Estimates {
		if e.Arm != record.AA || e.Difference == nil || e.Value == 0 && e.Difference.Value == 0 {
			continue // a metric that is always 0, such as the map bytes of an arm without a subject, cannot be called different
		}
		c := scores[e.Metric]
		if c == nil {
			c = &score{}
			scores[e.Metric] = c
		}
		c.runs++
		if e.Difference.Resolved {
			c.alarms++
			apart = append(apart, e.Metric)
		}
		for _, m := range s.MDE {
			if m.Metric == e.Metric && maps.Equal(m.Factors, e.Factors) && e.Value != 0 {
				c.visible = append(c.visible, m.Value/e.Value)
			}
		}
	}
	return apart
}

// invalidRun is the exit code of tare for an invalid run.
const invalidRun = 4

func one(tare, spec, out string, seed int) (*analysis.Summary, error) {
	cmd := exec.Command(tare, "run", spec, "--out", out, "--seed", strconv.Itoa(seed))
	if text, err := cmd.CombinedOutput(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != invalidRun {
			return nil, fmt.Errorf("%w\n%s", err, text)
		}
	}
	raw, err := os.ReadFile(filepath.Join(out, "summary.json"))
	if err != nil {
		return nil, err
	}
	var s analysis.Summary
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("reading summary.json: %w", err)
	}
	return &s, nil
}
