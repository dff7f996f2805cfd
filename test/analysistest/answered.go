package analysistest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

// Sweep describes a run whose arms have the same metrics in every block, except for a little noise.
type Sweep struct {
	Baseline string // subject of the baseline arm; empty if it has none
	Levels   []map[string]string
	Arms     []string // in addition to the baseline and its twin
	Phrases  []record.Phrase
}

// Blocks is how many blocks a sweep has.
const Blocks = 8

// Answered returns the summary of the sweep. values(arm, level) gives the metrics of a trial, of which those in seconds
// are varied by up to 2 % from block to block.
func (w Sweep) Answered(
	t *testing.T, values func(arm string, level map[string]string) map[string]float64,
) *analysis.Summary {
	t.Helper()
	run := record.Run{Baseline: w.Baseline, Phrases: w.Phrases, Blocks: Blocks}
	var trials []record.Trial
	for block := range Blocks {
		for _, level := range w.Levels {
			for i, arm := range append([]string{record.Direct, record.AA}, w.Arms...) {
				m := values(arm, level)
				for name := range m {
					if strings.HasSuffix(name, "_seconds") {
						m[name] *= 1 + 0.01*float64((block*7+i*3)%5-2)
					}
				}
				trials = append(trials, record.Trial{
					PlannedTrial: record.PlannedTrial{Index: len(trials), Block: block, Arm: arm, Factors: level}, Metrics: m,
					Validity: record.Validity{Valid: true},
				})
			}
		}
	}
	return Answered(t, run, trials)
}

// Answered summarizes a run with the metrics of all registered guests. It fails the test if the run is invalid, if the
// answers depend on the name of the experiment, or if their evidence is not among the estimates.
func Answered(t *testing.T, run record.Run, trials []record.Trial) *analysis.Summary {
	t.Helper()
	run.Schema, run.Question, run.Metrics = record.RunSchema, "Which?", slices.Clone(measured.Definitions())
	for _, trial := range trials {
		run.Plan = append(run.Plan, trial.PlannedTrial)
	}
	var s *analysis.Summary
	for _, name := range []string{"one", "another"} {
		run.Experiment = name
		got, err := analysis.Summarize(run, trials)
		if err != nil || !got.Valid {
			t.Fatalf("%v; invalid for %q", err, got.InvalidReasons)
		}
		if s != nil && !reflect.DeepEqual(s.Answers, got.Answers) {
			t.Errorf("%s is answered by\n%+v\nand the same called %s by\n%+v", s.Experiment, s.Answers, name, got.Answers)
		}
		s = got
	}
	for _, a := range s.Answers {
		for _, e := range a.Evidence {
			metric, arm, _ := strings.Cut(e, " ")
			of := func(x analysis.Estimate) bool { return x.Metric == metric && x.Arm == arm }
			if !slices.ContainsFunc(s.Estimates, of) {
				t.Errorf("the evidence %q is no estimate", e)
			}
		}
	}
	return s
}

// Holds fails the test unless there are as many answers as wants, and each answer has evidence and contains all parts
// of its want.
func Holds(t *testing.T, s *analysis.Summary, wants ...[]string) {
	t.Helper()
	if len(s.Answers) != len(wants) {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, parts := range wants {
		if len(s.Answers[i].Evidence) == 0 {
			t.Errorf("answer %d rests on nothing", i)
		}
		for _, want := range parts {
			if !strings.Contains(s.Answers[i].Answer, want) {
				t.Errorf("answer %d lacks %q:\n%s", i, want, s.Answers[i].Answer)
			}
		}
	}
}
