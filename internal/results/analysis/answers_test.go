package analysis

import (
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
)

// againstSubject returns the answer of a run that compares an arm with a baseline that is also a subject. The run has
// the named loads.
func againstSubject(t *testing.T, loads []string, values func(arm string) map[string]float64,
	late map[string]int) string {
	t.Helper()
	run := record.Run{Schema: record.RunSchema, Experiment: "mine", Question: "Which?", Baseline: "one", Blocks: 8}
	var trials []record.Trial
	for block := range run.Blocks {
		for i, arm := range []string{record.Direct, record.AA, "other"} {
			p := record.PlannedTrial{Index: len(trials), Block: block, Position: i, Arm: arm}
			run.Plan = append(run.Plan, p)
			m := values(arm)
			for name := range m {
				m[name] *= 1 + 0.001*float64((block*7+i*3)%5-2)
			}
			trial := record.Trial{
				Schema: record.TrialSchema, PlannedTrial: p, Metrics: m, Validity: record.Validity{Valid: true},
				Loads: map[string]load.Result{},
				Counts: map[string]record.Count{"events_late_share": {In: late[arm], Of: 10_000},
					"bpf_client_share": {In: 70, Of: 100}},
			}
			for _, name := range loads {
				trial.Loads[name] = load.Result{}
			}
			trials = append(trials, trial)
		}
	}
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Answers) != 1 {
		t.Fatalf("answers %+v, valid %v: %v", s.Answers, s.Valid, s.InvalidReasons)
	}
	return s.Answers[0].Answer
}

// TestAnswerAgainstASubject: if the baseline is a subject, the answer states differences, covers only loads that the
// run has, and names resolved differences in addition to the usual metrics.
func TestAnswerAgainstASubject(t *testing.T) {
	values := func(arm string) map[string]float64 {
		if arm == "other" {
			return map[string]float64{
				"bpf_seconds_per_kiloevent": 2e-3, "memory_hard_bytes": 6.1e6, "map_bytes": 145e3, "start_seconds": 0.3,
				"rss_bytes": 9e6,
			}
		}
		return map[string]float64{
			"bpf_seconds_per_kiloevent": 1e-3, "memory_hard_bytes": 7.1e6, "map_bytes": 1132e3, "start_seconds": 0.2,
			"rss_bytes": 9e6,
		}
	}
	got := againstSubject(t, nil, values, map[string]int{"other": 310})
	for _, want := range []string{
		"adds 1.000 ms [", "of kernel time per kiloevent; ", "hard memory is 0.994 MB [", "] lower; ",
		"memory in maps is 987 kB [", "start time is 100.1 ms [", "] higher",
		"events late share is 3.1 % [", "] higher",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	for _, not := range []string{"6.1 MB", "145 kB", "client", "rss"} {
		if strings.Contains(got, not) {
			t.Errorf("%q has %q", got, not)
		}
	}
	if late, start := strings.Index(got, "events late"), strings.Index(got, "start time"); late > start {
		t.Errorf("%q: the larger difference is named last", got)
	}
}

// TestAnswerNamesItsLoads: if the baseline has none of a metric, the answer states the arm's value, and names the load
// in whose cgroup a part of the eBPF time ran.
func TestAnswerNamesItsLoads(t *testing.T) {
	values := func(arm string) map[string]float64 {
		if arm == "other" {
			return map[string]float64{"bpf_seconds_per_kiloevent": 2e-3, "memory_hard_bytes": 6.1e6}
		}
		return map[string]float64{"bpf_seconds_per_kiloevent": 0, "memory_hard_bytes": 0}
	}
	for _, c := range []struct {
		loads []string
		want  string
	}{
		{nil, "of kernel time per kiloevent; 6.10 MB [6.09, 6.11] of hard memory."},
		{[]string{"storm"}, "of kernel time per kiloevent, 70 % of it in the storm's cgroup; 6.10 MB [6.09, 6.11] of " +
			"hard memory."},
		{[]string{"a", "b"}, "of kernel time per kiloevent, 70 % of it in the loads' cgroups; 6.10 MB [6.09, 6.11] of " +
			"hard memory."},
	} {
		if got := againstSubject(t, c.loads, values, nil); !strings.Contains(got, c.want) {
			t.Errorf("loads %v: %q lacks %q", c.loads, got, c.want)
		}
	}
}

// TestTwinsWithoutAnInterval: in a short run one spoiled trial of a twin leaves the twins without an interval. The
// values that they have, and the arm's own interval, must then decide: memory of 6.33 MB, compared with none, is
// resolved.
func TestTwinsWithoutAnInterval(t *testing.T) {
	summary := func(blocks int, twin float64) *Difference {
		run := record.Run{Schema: record.RunSchema, Experiment: "mine", Question: "Which?", Blocks: blocks}
		var trials []record.Trial
		for block := range blocks {
			for i, arm := range []string{record.Direct, record.AA, "other"} {
				p := record.PlannedTrial{Index: len(trials), Block: block, Position: i, Arm: arm}
				run.Plan = append(run.Plan, p)
				v := 0.0
				switch arm {
				case record.AA:
					v = twin * float64(block%2)
				case "other":
					v = 6.33e6 + 1e4*float64(block)
				}
				valid := arm != record.AA || block > 0 // the twin lost a trial
				trials = append(trials, record.Trial{
					Schema: record.TrialSchema, PlannedTrial: p, Metrics: map[string]float64{"memory_hard_bytes": v},
					Validity: record.Validity{Valid: valid},
				})
			}
		}
		run.Metrics = append(run.Metrics, measured.Definitions()...)
		s, err := Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		return s.Find("memory_hard_bytes", "other", factors{}).Difference
	}
	if d := summary(6, 0); !d.Resolved {
		t.Errorf("against 0 B in every trial: %+v: %s", d, d.Unresolved)
	}
	if d := summary(5, 0); d.Resolved {
		t.Errorf("5 blocks carry no interval: %+v", d)
	}
	if d := summary(6, 7e6); d.Resolved {
		t.Errorf("twins that differ by more than the arm does: %+v", d)
	}
}

// TestLacks: the answer about an arm that is not the same service as the others ends with what the arm lacks.
func TestLacks(t *testing.T) {
	const end = " It is not the same service: it has no mutual TLS."
	run, trials := proxied()
	for _, lacks := range []map[string]string{nil, {"proxy": "it has no mutual TLS"}} {
		run.Lacks = lacks
		s, err := Summarize(run, trials)
		if err != nil || len(s.Answers) == 0 {
			t.Fatalf("%d answers, %v", len(s.Answers), err)
		}
		for _, a := range s.Answers {
			if strings.HasSuffix(a.Answer, end) != (lacks != nil) {
				t.Errorf("lacks %v: %q", lacks, a.Answer)
			}
		}
	}
}
