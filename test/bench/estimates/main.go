// Command estimates runs the short form of every built-in experiment and compares how long its trials took with how
// long Tare said beforehand that they would take:
//
//	go run ./test/bench/estimates [-blocks 1] [-v] [NAME...]
//
// The target is an estimate within 25 % of the truth on a quiet machine. -v also prints, for each arm and level, the
// time that a trial takes beyond its warm-up and window, which is what a guest declares as TakesLonger.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/experiments"
	_ "tare/internal/all" // registers the guests that specs name
	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
)

func main() {
	blocks := flag.Int("blocks", 1, "blocks of each run")
	tare := flag.String("tare", "bin/tare", "the binary")
	verbose := flag.Bool("v", false, "print what each arm and level takes beyond warm-up and window")
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = experiments.Names()
	}
	fmt.Println("| experiment | trials | told | took | told / took |\n|---|---|---|---|---|")
	failed := false
	for _, name := range names {
		if err := one(*tare, name, *blocks, *verbose); err != nil {
			fmt.Fprintf(os.Stderr, "estimates: %s: %v\n", name, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

var needsLine = regexp.MustCompile(`(?m)^needs: \[(.*)\]$`)

func one(tare, name string, blocks int, verbose bool) error {
	file, text, ok := experiments.File(name)
	if !ok {
		return errors.New("there is no such experiment")
	}
	var needs []string // accepted unchecked here, because the run checks them
	if m := needsLine.FindSubmatch(text); m != nil {
		needs = strings.Split(string(m[1]), ", ")
	}
	s, err := spec.Parse(file, text, needs)
	if err != nil {
		return err
	}
	if err := s.Apply(spec.Overrides{Quick: true, Blocks: blocks}); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tare-estimates-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "run")
	cmd := exec.Command(tare, "run", name, "--quick", "--blocks", strconv.Itoa(blocks), "--out", out)
	printed, err := cmd.CombinedOutput()
	const invalid = 4 // exit code of an invalid run, which is possible with few blocks and takes as long
	if err != nil && cmd.ProcessState.ExitCode() != invalid {
		return fmt.Errorf("%w\n%s", err, printed)
	}
	c, err := record.Read(out)
	if err != nil {
		return err
	}
	if len(c.Trials) == 0 {
		return errors.New("it has no trials")
	}
	// Arms that this machine cannot run are left out before the estimate.
	maps.DeleteFunc(s.Arms, func(arm string, _ *kind.Part) bool {
		return !slices.ContainsFunc(c.Run.Plan, func(p record.PlannedTrial) bool { return p.Arm == arm })
	})
	// The estimate does not include repeated trials.
	planned := slices.DeleteFunc(c.Trials, func(t record.Trial) bool { return t.Attempt > 0 })
	var took time.Duration
	beyond := map[string][]time.Duration{}
	for _, t := range planned {
		length := t.Ended.Sub(t.Started)
		took += length
		key := fmt.Sprintf("%s %v", t.Arm, t.Factors)
		beyond[key] = append(beyond[key], length-s.Warmup-s.Duration)
	}
	told := engine.Estimate(s) * time.Duration(len(planned)) / time.Duration(len(c.Run.Plan))
	fmt.Printf("| %s | %d | %.1f s | %.1f s | %.2f |\n", name, len(planned), told.Seconds(), took.Seconds(),
		told.Seconds()/took.Seconds())
	if verbose {
		printBeyond(beyond)
	}
	return nil
}

func printBeyond(beyond map[string][]time.Duration) {
	type row struct {
		key string
		max time.Duration
	}
	var rows []row
	for key, all := range beyond {
		rows = append(rows, row{key, slices.Max(all)})
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.max, b.max), strings.Compare(a.key, b.key)) })
	for _, r := range rows {
		fmt.Printf("    %-60s %8.2f s\n", r.key, r.max.Seconds())
	}
}
