//go:build sides

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/experiments"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

// needs matches the list of features in a spec.
var needs = regexp.MustCompile(`(?m)^needs:\n(- .*\n)+`)

// sideBlocks is the smallest number of blocks that gives 95 % intervals.
const sideBlocks = 6

// mostApart is the largest part of an experiment's estimates whose intervals in the two runs may lie apart. Two 95 %
// intervals of the same value lie apart in less than 1 % of cases if the machine is equally noisy in both runs; the
// rest allows for a machine that is not.
const mostApart = 0.05

// TestSides runs every built-in experiment in its smallest form, with blocks enough for intervals, by this tree's
// binary and then by another, TARE_BEFORE, and compares every estimate that both have. It says how many there are and
// which lie apart. 'make sides BEFORE=path' runs it.
func TestSides(t *testing.T) {
	needsRoot(t)
	before := os.Getenv("TARE_BEFORE")
	if before == "" {
		t.Fatal("TARE_BEFORE must be the path of the binary to compare with")
	}
	for _, name := range experiments.Names() {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			s := smallests[name]
			blocks := fmt.Sprintf("blocks: %d\n", sideBlocks)
			text := strings.Replace(s.spec(t, name), "blocks: 1\n", blocks, 1)
			spec := specFile(t, needs.ReplaceAllString(text, "")) // the other binary may not know a feature
			old, now := s.side(t, spec, before), s.side(t, spec, "")
			compared, apart := 0, 0
			for i := range now.Estimates {
				e := &now.Estimates[i]
				o := sameOf(old, e)
				if o == nil || o.Lo == nil || e.Lo == nil || o.Withheld != "" || e.Withheld != "" {
					continue
				}
				compared++
				if *o.Hi < *e.Lo || *e.Hi < *o.Lo {
					apart++
					t.Logf("apart: %s %s %s %v: before %g [%g, %g], after %g [%g, %g]",
						e.Arm, e.Component, e.Metric, e.Factors, o.Value, *o.Lo, *o.Hi, e.Value, *e.Lo, *e.Hi)
				}
			}
			lost := missingFrom(old, now)
			t.Logf("%d estimates compared, %d apart, %d that the run before had alone: %q", compared, apart, len(lost), lost)
			if compared == 0 || float64(apart) > max(1, mostApart*float64(compared)) {
				t.Errorf("%d of %d estimates lie apart", apart, compared)
			}
		})
	}
}

// sameOf returns the estimate of the other run for the same metric, arm, component and level, or nil if it has none.
func sameOf(s *analysis.Summary, e *analysis.Estimate) *analysis.Estimate {
	i := slices.IndexFunc(s.Estimates, func(o analysis.Estimate) bool {
		return o.Metric == e.Metric && o.Arm == e.Arm && o.Component == e.Component && maps.Equal(o.Factors, e.Factors)
	})
	if i < 0 {
		return nil
	}
	return &s.Estimates[i]
}

// side runs a spec with a binary, or with this tree's if binary is empty, and reads the summary.
func (s smallest) side(t *testing.T, spec, binary string) *analysis.Summary {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	args := append([]string{"run", spec, "--out", dir, "--seed", "3"}, s.flags...)
	for _, set := range s.set {
		args = append(args, "--set", set)
	}
	o := command{args: args, binary: binary, env: s.env(t), timeout: 10 * time.Minute}.start(t).wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	text, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	summary := new(analysis.Summary)
	if err := json.Unmarshal(text, summary); err != nil {
		t.Fatal(err)
	}
	return summary
}

// missingFrom names the metrics that one run has and the other lacks altogether.
func missingFrom(has, lacks *analysis.Summary) []string {
	names := map[string]bool{}
	for _, e := range has.Estimates {
		names[e.Metric] = true
	}
	for _, e := range lacks.Estimates {
		delete(names, e.Metric)
	}
	for _, m := range lacks.Missing {
		delete(names, m.Metric)
	}
	return slices.Sorted(maps.Keys(names))
}
