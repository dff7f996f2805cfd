// Command aa runs an experiment many times over, and counts for each metric in how many of the runs the baseline and
// its twin were called different. The rule allows one in twenty. With -planted it also counts in how many runs the
// interval of a difference contains the true one.
//
//	go run ./test/bench/aa [-runs 20] [-keep DIR] [SPEC.yaml [ARGUMENT...]]
//
// In pods of a cluster, with its image:
//
//	go run ./test/bench/aa -tare bin/kubectl-tare -planted delayed:latency_p50_seconds=200us \
//	  test/bench/aa/pods.yaml --image IMAGE
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
	"strings"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

func main() {
	runs := flag.Int("runs", 20, "how many valid runs to make; the campaign ends after twice as many in any case")
	tare := flag.String("tare", "bin/tare", "the binary")
	keep := flag.String("keep", "", "directory for the run directories; a temporary one, removed at the end, when empty")
	planted := flag.String("planted", "", "the true difference of an arm from the baseline: ARM:METRIC=DURATION")
	flag.Parse()
	args := []string{"test/bench/aa/spec.yaml"}
	if flag.NArg() > 0 {
		args = flag.Args()
	}
	c := campaign{command: slices.Concat([]string{*tare, "run"}, args), scores: map[string]*score{}}
	err := c.plant(*planted)
	if err == nil {
		err = c.run(*keep, *runs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "aa:", err)
		os.Exit(1)
	}
}

// score is the result for one metric.
type score struct {
	runs, alarms int
	visible      []float64 // the smallest visible difference, as a part of the value
}

// campaign is many runs of one experiment.
type campaign struct {
	command []string
	scores  map[string]*score // by metric

	arm, metric string  // of the planted difference; empty for none
	planted     float64 // s
	inside      int     // runs whose interval contains the planted difference
	compared    int     // runs with such an interval
}

// plant parses the flag -planted.
func (c *campaign) plant(text string) (err error) {
	if text == "" {
		return nil
	}
	of, value, _ := strings.Cut(text, "=")
	c.arm, c.metric, _ = strings.Cut(of, ":")
	d, err := time.ParseDuration(value)
	c.planted = d.Seconds()
	return err
}

func (c *campaign) run(dir string, runs int) error {
	if dir == "" {
		temp, err := os.MkdirTemp("", "tare-aa-")
		if err != nil {
			return fmt.Errorf("making a directory for the runs: %w", err)
		}
		defer os.RemoveAll(temp)
		dir = temp
	}
	invalid := 0
	for i := 0; i-invalid < runs && i < 2*runs; i++ {
		out := filepath.Join(dir, strconv.Itoa(i+1))
		began := time.Now()
		s, err := c.one(out, i+1)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		if !s.Valid {
			invalid++
			fmt.Printf("run %2d: invalid: %v\n", i+1, s.InvalidReasons)
			continue
		}
		apart := c.add(s)
		fmt.Printf("run %2d: %.0f s, %d of %d trials valid, different: %v%s\n", i+1, time.Since(began).Seconds(),
			s.Trials.Valid, s.Trials.Done, apart, c.contains(s))
	}
	fmt.Printf("\n%d runs were invalid\n\n| metric | called different | smallest visible, median, %% of the value "+
		"|\n|---|---|---|\n", invalid)
	all, alarms := 0, 0
	for _, name := range slices.Sorted(maps.Keys(c.scores)) {
		of := c.scores[name]
		all, alarms = all+of.runs, alarms+of.alarms
		visible := "-"
		if len(of.visible) > 0 {
			slices.Sort(of.visible)
			visible = fmt.Sprintf("%.1f", 100*of.visible[len(of.visible)/2])
		}
		fmt.Printf("| %s | %d of %d | %s |\n", name, of.alarms, of.runs, visible)
	}
	fmt.Printf("| all | %d of %d (%.1f %%) | |\n", alarms, all, 100*float64(alarms)/float64(max(all, 1)))
	if c.arm != "" {
		fmt.Printf("\n%g s of %s, planted in %s, is inside the interval in %d of %d runs\n", c.planted, c.metric, c.arm,
			c.inside, c.compared)
	}
	return nil
}

// contains counts and describes whether the interval of a run contains the planted difference.
func (c *campaign) contains(s *analysis.Summary) (says string) {
	for _, e := range s.Estimates {
		d := e.Difference
		if c.arm == "" || e.Arm != c.arm || e.Metric != c.metric || d == nil || d.Lo == nil || d.Hi == nil {
			continue
		}
		c.compared++
		word := "outside"
		if *d.Lo <= c.planted && c.planted <= *d.Hi {
			c.inside++
			word = "inside"
		}
		says += fmt.Sprintf(", planted %s: %.6f [%.6f, %.6f]", word, d.Value, *d.Lo, *d.Hi)
	}
	return says
}

// add counts one run, and names the metrics in which its twins were called different.
func (c *campaign) add(s *analysis.Summary) []string {
	apart := []string{}
	for _, e := range s.Estimates {
		if e.Arm != record.AA || e.Difference == nil || e.Value == 0 && e.Difference.Value == 0 {
			continue // a metric that is always 0, such as the map bytes of an arm without a subject, cannot be called different
		}
		of := c.scores[e.Metric]
		if of == nil {
			of = &score{}
			c.scores[e.Metric] = of
		}
		of.runs++
		if e.Difference.Resolved {
			of.alarms++
			apart = append(apart, e.Metric)
		}
		for _, m := range s.MDE {
			if m.Metric == e.Metric && maps.Equal(m.Factors, e.Factors) && e.Value != 0 {
				of.visible = append(of.visible, m.Value/e.Value)
			}
		}
	}
	return apart
}

// invalidRun is the exit code of tare for an invalid run.
const invalidRun = 4

func (c *campaign) one(out string, seed int) (*analysis.Summary, error) {
	args := append(c.command[1:len(c.command):len(c.command)], "--out", out, "--seed", strconv.Itoa(seed))
	cmd := exec.Command(c.command[0], args...)
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
