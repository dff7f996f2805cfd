package analysis_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

// sweep makes six blocks of a run whose trials have the metrics that of gives.
func sweep(t *testing.T, name, factor string, levels, arms []string, of func(arm, level string, block int) map[string]float64) *analysis.Summary {
	t.Helper()
	run := record.Run{Schema: record.RunSchema, Experiment: name, Question: "What?", Blocks: 6}
	var trials []record.Trial
	for block := range 6 {
		for _, level := range levels {
			for _, arm := range append([]string{record.Direct, record.AA}, arms...) {
				p := record.PlannedTrial{Index: len(trials), Block: block, Arm: arm, Factors: map[string]string{factor: level}}
				run.Plan = append(run.Plan, p)
				trials = append(trials, record.Trial{Schema: record.TrialSchema, PlannedTrial: p, Metrics: of(arm, level, block), Validity: record.Validity{Valid: true}})
			}
		}
	}
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	s, err := analysis.Summarize(run, trials)
	if err != nil || !s.Valid {
		t.Fatalf("%v, invalid for %q", err, s.InvalidReasons)
	}
	other := run
	other.Experiment = "mine"
	if mine, err := analysis.Summarize(other, trials); err != nil || !reflect.DeepEqual(mine.Answers, s.Answers) {
		t.Errorf("%s is answered by\n%+v\nand the same called mine by\n%+v, %v", name, s.Answers, mine.Answers, err)
	}
	for _, a := range s.Answers {
		for _, e := range a.Evidence {
			metric, arm, _ := strings.Cut(e, " ")
			if !slices.ContainsFunc(s.Estimates, func(x analysis.Estimate) bool { return x.Metric == metric && x.Arm == arm }) {
				t.Errorf("the evidence %q is no estimate", e)
			}
		}
	}
	return s
}

func wants(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("lacks %q: %s", p, text)
		}
	}
}

func TestStressAnswers(t *testing.T) {
	for _, c := range []struct {
		name            string
		without, wait   float64 // longest, in seconds
		begins, mention string
	}{
		{"usable", 0.004, 0.09, "The machine stays usable, in this sense: a task that wanted a CPU", "waited 95.0 ms at the longest at steps 8388608, and up to"},
		{"not usable", 0.004, 1.5, "The machine does not stay usable", "waited 1.50 s at the longest"},
		{"not to be told", 0.8, 1.5, "Whether the machine stays usable cannot be told, for without the programs a task waited up to 805 ms too", "waited 1.50 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sweep(t, "ebpf-stress", "steps", []string{"65535", "8388608"}, []string{"kernelmesh"}, func(arm, level string, block int) map[string]float64 {
				noise := float64(block) / 1000
				m := map[string]float64{"sched_delay_p50_seconds": 30e-6, "sched_delay_p99_seconds": 1e-3, "sched_delay_max_seconds": c.without + noise, "bpf_cpu_share": 0, "cpu_busy_share": 1, "throughput_per_second": 10_000 + 50*noise}
				if arm == record.AA {
					m["throughput_per_second"] += 3 - 1000*noise
				}
				if arm == "kernelmesh" && level == "8388608" {
					maps.Copy(m, map[string]float64{"bpf_run_seconds": 0.08, "sched_delay_p50_seconds": 0.04, "sched_delay_max_seconds": c.wait + noise, "bpf_cpu_share": 0.97, "throughput_per_second": 25})
				}
				return m
			})
			if len(s.Answers) != 3 || !strings.HasPrefix(s.Answers[0].Answer, c.begins) {
				t.Fatalf("%+v", s.Answers)
			}
			wants(t, s.Answers[0].Answer, c.mention, "All trials ended by themselves.")
			wants(t, s.Answers[2].Answer, "At steps 8388608: a task that wants a CPU waits 40.0 ms", "One run takes 80.0 ms.", "The programs take 97.0 % of the machine's CPU time", "40.0 ms at the median", "without the programs: 30.0 us and", "Throughput goes from 1000", " of it.")
			wants(t, s.Answers[1].Answer, "the difference is not resolved")
		})
	}
}

func TestMemoryAnswers(t *testing.T) {
	s := sweep(t, "ebpf-memory", "*.services", []string{"1", "100", "1000"}, []string{"fixed"}, func(arm, level string, block int) map[string]float64 {
		n := map[string]float64{"1": 1, "100": 100, "1000": 1000}[level]
		if arm != "fixed" {
			return map[string]float64{"map_bytes": 0, "memory_hard_bytes": 0}
		}
		used := 2e6 + 90*n
		return map[string]float64{
			"map_bytes": used, "map_before_bytes": used, "map_after_bytes": 2e6 + 90, "map_declared_bytes": 3e6, "map_by_program_bytes": 9e6, "map_charged_share": 1,
			"memory_kernel_bytes": used + 200e3, "memory_kernel_before_bytes": used + 200e3, "memory_kernel_after_bytes": used + 201e3, "memory_hard_bytes": 8e6,
		}
	})
	if len(s.Answers) != 1 {
		t.Fatalf("%+v", s.Answers)
	}
	wants(t, s.Answers[0].Answer, "fixed: the maps take 2.00 MB plus 90 B per service: 2.09 MB at services 1000, each counted once (a line from 1 to 1,000 services).",
		"3.00 MB at every number of services", "9.00 MB at every number of services: 4.3 times what they take", "100 % of the bytes are charged", "At services 1000 that group holds 2.29 MB",
		"Load does not change the maps' size", "the maps keep 2.00 MB; a fresh start at services 1 needs 2.00 MB.")
}
