package analysis

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
)

// storeRun is a run whose baseline is a subject: each arm has the metrics that values gives, a little apart from block
// to block.
func storeRun(t *testing.T, name, baseline string, levels []map[string]string, arms []string, values func(arm string, level map[string]string) map[string]float64,
	phrases ...record.Phrase) *Summary {
	t.Helper()
	run := record.Run{Schema: record.RunSchema, Experiment: name, Question: "Which?", Baseline: baseline, Blocks: 8, Phrases: phrases}
	var trials []record.Trial
	for block := range run.Blocks {
		for _, level := range levels {
			for i, arm := range append([]string{record.Direct, record.AA}, arms...) {
				p := record.PlannedTrial{Index: len(trials), Block: block, Arm: arm, Factors: level}
				m := values(arm, level)
				for name := range m {
					if strings.HasSuffix(name, "_seconds") {
						m[name] *= 1 + 0.01*float64((block*7+i*3)%5-2)
					}
				}
				trials = append(trials, record.Trial{PlannedTrial: p, Metrics: m, Validity: record.Validity{Valid: true}})
				run.Plan = append(run.Plan, p)
			}
		}
	}
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Valid {
		t.Fatalf("invalid: %v", s.InvalidReasons)
	}
	sameByAnotherName(t, s, run, trials)
	return s
}

// sameByAnotherName holds that answers depend on what was measured, and not on what the experiment is called.
func sameByAnotherName(t *testing.T, s *Summary, run record.Run, trials []record.Trial) {
	t.Helper()
	run.Experiment = "mine"
	other, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s.Answers, other.Answers) {
		t.Errorf("%s is answered by\n%+v\nand the same called mine by\n%+v", s.Experiment, s.Answers, other.Answers)
	}
}

func TestFlushAnswers(t *testing.T) {
	levels := []map[string]string{{"*.operation": "insert"}, {"*.operation": "delete"}}
	s := storeRun(t, "config-flush", "pooled", levels, []string{"naive", "quick", "same"}, func(arm string, level map[string]string) map[string]float64 {
		m := map[string]float64{"flush_seconds": 100e-6, "records_per_flush": 45, "map_updates_per_flush": 71, "syscalls_per_flush": 71, "grace_periods_per_flush": 0, "bytes_per_flush": 88_400}
		switch arm {
		case "naive":
			m["flush_seconds"], m["grace_periods_per_flush"] = 0.45, 45
		case "quick":
			m["flush_seconds"] = map[string]float64{"insert": 2e-6, "delete": 4e-6}[level["*.operation"]]
		}
		return m
	})
	if len(s.Answers) != 3 {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, wants := range [][]string{
		{"quick has the shortest flushes at every level.", "Against pooled, naive is 4,500 times slower.", "Against pooled, quick is 25 to 50 times faster.", "The difference between same and pooled is not resolved at any level."},
		{"At operation delete: pooled (baseline) takes ", "(45 records, 71 map updates, 71 system calls, 88.4 kB). naive takes", "4,500 times as long (45 records", "45 grace periods, 88.4 kB, 9.9 ms for each grace period)",
			"same takes", "for a flush, a difference from pooled that is not resolved ("},
		{"At operation insert: ", "quick takes 2.0", "50 times faster"},
	} {
		for _, want := range wants {
			if !strings.Contains(s.Answers[i].Answer, want) {
				t.Errorf("answer %d lacks %q:\n%s", i, want, s.Answers[i].Answer)
			}
		}
	}
	if e := s.Answers[1].Evidence; len(e) < 4 || e[0] != "flush_seconds direct" {
		t.Errorf("evidence %v", e)
	}
	if s.ArmName(record.Direct) != "pooled (baseline)" || s.ArmName(record.AA) != "pooled (again)" || s.ArmName("naive") != "naive" {
		t.Error("arms are called otherwise")
	}
}

func TestScaleAnswers(t *testing.T) {
	var levels []map[string]string
	for _, n := range []int{1, 100, 1000} {
		levels = append(levels, map[string]string{"*.services": fmt.Sprint(n)})
	}
	s := storeRun(t, "config-scale", "sized", levels, []string{"less", "mixed"}, func(arm string, level map[string]string) map[string]float64 {
		n := 0.0
		fmt.Sscan(level["*.services"], &n)
		m := map[string]float64{"lookup_seconds": 600e-9, "lookup_first_seconds": 9e-6, "map_bytes": 20e6 + 1000*n, "memory_hard_bytes": 40e6, "store_open_seconds": 0.02, "store_fill_seconds": 1e-4 * n}
		switch {
		case arm == "less":
			m["lookup_seconds"] = 130e-9
		case arm == "mixed" && n > 10:
			m["lookup_seconds"] = 900e-9
		}
		return m
	})
	if len(s.Answers) != 3 {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, wants := range [][]string{
		{"sized (baseline): a lookup takes 600 ns", "at services 1 and", "At services 1000 its maps have 21.0 MB (20.0 MB and 1.00 kB for each service)", "takes these services in 100 ms", "The first lookup of another service, with cold caches, takes 9.0"},
		{"less: a lookup takes 129 ns", "less than with sized at every level"},
		{"mixed: a lookup", "more than with sized at 2 of 3 levels and not resolved at 1."},
	} {
		for _, want := range wants {
			if !strings.Contains(s.Answers[i].Answer, want) {
				t.Errorf("answer %d lacks %q:\n%s", i, want, s.Answers[i].Answer)
			}
		}
	}
}

func TestVerdictOf(t *testing.T) {
	for _, c := range []struct {
		above, below, n int
		want            string
	}{
		{0, 2, 2, ", less than with sized at every level"},
		{0, 1, 1, ", less than with sized"},
		{3, 0, 3, ", more than with sized at every level"},
		{0, 0, 2, "; the difference from sized is not resolved at any level"},
		{0, 0, 1, "; the difference from sized is not resolved"},
		{2, 0, 3, ", more than with sized at 2 of 3 levels and not resolved at 1"},
		{0, 1, 3, ", less than with sized at 1 of 3 levels and not resolved at 2"},
		{1, 2, 3, ", more than with sized at 1 of 3 levels and less than with sized at 2 of 3 levels"},
	} {
		if got := verdictOf("sized", c.above, c.below, c.n); got != c.want {
			t.Errorf("%d above, %d below of %d: %q; want %q", c.above, c.below, c.n, got, c.want)
		}
	}
}

// TestStanding: a sentence whose first clause has no verb for its arm puts the arm before a colon.
func TestStanding(t *testing.T) {
	for _, c := range []struct {
		at   factors
		want string
	}{
		{nil, "sleep: p50 is not resolved; p99 is not resolved. sleep holds 1 MB; p50 is not resolved."},
		{factors{"rate": "10"}, "At rate 10, sleep: p50 is not resolved; p99 is not resolved. " +
			"At rate 10: sleep holds 1 MB; p50 is not resolved."},
	} {
		p := &prose{s: &Summary{}, arm: "sleep", at: c.at}
		for _, clauses := range [][]string{
			{p.standing("p50 is not resolved"), "p99 is not resolved"}, {"holds 1 MB", "p50 is not resolved"},
		} {
			p.clauses = clauses
			p.end()
		}
		if got := strings.Join(p.text, " "); got != c.want {
			t.Errorf("at %v:\n%s\nand not\n%s", c.at, got, c.want)
		}
	}
}

func TestFactor(t *testing.T) {
	for x, want := range map[float64]string{1.44: "1.4", 9.94: "9.9", 27.4: "27", 999: "999", 1000: "1,000", 6320: "6,300", 12_345: "12,300"} {
		if got := factor(x); got != want {
			t.Errorf("factor(%g) = %s, want %s", x, got, want)
		}
	}
}
