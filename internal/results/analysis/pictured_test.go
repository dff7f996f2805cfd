package analysis

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// showing returns a trial with a guest whose evidence contains the given picture.
func showing(t *testing.T, arm string, block int, p record.Pictured) record.Trial {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return record.Trial{
		PlannedTrial: record.PlannedTrial{Index: block, Block: block, Arm: arm}, Ledger: &ledger.Ledger{},
		Validity: record.Validity{Valid: true}, Evidence: map[string]json.RawMessage{"guest": text, "other": []byte(`[1]`)},
	}
}

func numbers(all ...float64) []*float64 {
	var of []*float64
	for i := range all {
		if math.IsNaN(all[i]) {
			of = append(of, nil)
		} else {
			of = append(of, &all[i])
		}
	}
	return of
}

// TestPlacements: amounts are means over trials. A place that a trial lacks counts as 0, and an amount is unknown if
// one trial does not know it.
func TestPlacements(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	// A trial that a gate voided counts, because gates void metrics and not charges. A second attempt does not count, and
	// neither does a failed one.
	failed, voided := showing(t, "a", 3, record.Pictured{Places: []record.Place{{Name: "pod", HardBytes: f(1e9)}}}),
		showing(t, "a", 1, record.Pictured{Places: []record.Place{{Name: "pod", HardBytes: f(1e9)}}})
	failed.Validity = record.Validity{Failed: "it fell over"}
	spoiled := showing(t, "a", 1, record.Pictured{Places: []record.Place{
		{Name: "pod", HardBytes: f(20), CPUs: f(3), Kubernetes: f(24),
			Components: []record.PlacedComponent{{Component: "vmm", Bytes: f(4), CPUs: nil}}},
	}})
	spoiled.Validity = record.Validity{}
	got := placements([]record.Trial{
		showing(t, "a", 0, record.Pictured{Places: []record.Place{
			{Name: "pod", HardBytes: f(10), SoftBytes: f(1), CPUs: f(1), Kubernetes: f(12),
				Components: []record.PlacedComponent{{Component: "vmm", Bytes: f(8), CPUs: f(0.5)}}},
			{Name: "overhead", HardBytes: f(4), CPUs: f(0)},
		}}),
		spoiled,
		showing(t, "b", 2, record.Pictured{}), voided, failed,
	})
	if len(got) != 1 || got[0].Arm != "a" || got[0].Trials != 2 || len(got[0].Places) != 2 {
		t.Fatalf("%+v", got)
	}
	pod, overhead := got[0].Places[0], got[0].Places[1]
	if *pod.HardBytes != 15 || pod.SoftBytes != nil || *pod.CPUs != 2 || *pod.Kubernetes != 18 ||
		*overhead.HardBytes != 2 || overhead.Kubernetes != nil {
		t.Errorf("pod %+v, overhead %+v", pod, overhead)
	}
	if c := pod.Components; len(c) != 1 || *c[0].Bytes != 6 || c[0].CPUs != nil {
		t.Errorf("components %+v", c)
	}
}

// TestCourses: the course of an arm is that of the trial with the median final amount, without the parts that cannot be
// drawn.
func TestCourses(t *testing.T) {
	course := func(end float64) record.Pictured {
		return record.Pictured{Series: []record.Series{{
			Name: "memory", Unit: quantity.Bytes, Seconds: []float64{0, 1},
			Parts: []record.SeriesPart{
				{Of: "a", Kind: "anon", Values: numbers(1, end)}, {Of: "a", Kind: "shmem", Values: numbers(0, 0)},
				{Of: "b", Kind: "anon", Values: numbers(math.NaN(), 2)}, {Of: "b", Kind: "short", Values: numbers(1)},
				{Of: "b", Kind: "negative", Values: numbers(1, -1)},
			},
		}, {Name: "backwards", Seconds: []float64{1, 0}, Parts: []record.SeriesPart{{Values: numbers(1, 1)}}}}}
	}
	got := Courses([]record.Trial{
		showing(t, "x", 0, course(30)), showing(t, "x", 1, course(10)), showing(t, "x", 2, course(20)),
	})
	if len(got) != 1 || got[0].Index != 2 || got[0].Of != 3 || got[0].last() != 22 {
		t.Fatalf("%+v", got)
	}
	var parts []string
	for _, p := range got[0].Parts {
		parts = append(parts, p.Of+" "+p.Kind)
	}
	if !slices.Equal(parts, []string{"a anon", "b anon"}) {
		t.Errorf("parts %q", parts)
	}
}

// TestLadderAnswers: one short answer covers all rungs.
func TestLadderAnswers(t *testing.T) {
	rungs := []string{"nothing", "little", "much"}
	values := map[string][]float64{
		record.Direct: {1e-7, 1e-6, 1e-3}, record.AA: {1e-7, 1e-6, 1e-3}, "slow": {1e-5, 3e-6, 1e-3},
		"same": {1e-7, 1e-6, 1e-3},
		"fast": {1e-7, 1e-6, 1e-4},
	}
	run := record.Run{Schema: record.RunSchema, Experiment: "mine", Question: "How long?", Blocks: 8}
	for _, r := range rungs {
		run.Metrics = append(run.Metrics, metric.Definition{
			Name: "step_" + r + "_seconds", Unit: quantity.Seconds, How: "x", Rank: metric.RankWork, Pool: metric.Mean,
			Needs: []metric.Need{}, Headline: true, Clause: "takes {}", Ladder: "steps", Rung: r,
		})
	}
	var trials []record.Trial
	for block := range run.Blocks {
		for i, arm := range []string{record.Direct, record.AA, "slow", "same", "fast"} {
			p := record.PlannedTrial{Index: len(trials), Block: block, Position: i, Arm: arm}
			run.Plan = append(run.Plan, p)
			m := map[string]float64{}
			for k, r := range rungs {
				m["step_"+r+"_seconds"] = values[arm][k] * (1 + 0.001*float64((block*7+i*3+k)%5-2))
			}
			trials = append(trials, record.Trial{Schema: record.TrialSchema, PlannedTrial: p, Metrics: m,
				Validity: record.Validity{Valid: true}})
		}
	}
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{}
	for _, a := range s.Answers {
		arm, text, _ := strings.Cut(a.Answer, ": ")
		answers[arm] = text
	}
	for arm, want := range map[string][]string{
		"slow": {"2 of 3 steps take longer, from little, 3", "instead of 1", "(3.0 times as long), to nothing, 10",
			"(100 times as long). Not resolved: much."},
		"same": {"none of 3 steps differs by what this run can see: nothing takes 100"},
		"fast": {"1 of 3 steps takes less: much, 100", "(10 times faster). Not resolved: nothing and little."},
	} {
		for _, w := range want {
			if !strings.Contains(answers[arm], w) {
				t.Errorf("%s: %q lacks %q", arm, answers[arm], w)
			}
		}
	}
	if len(s.Answers) != 3 {
		t.Errorf("%d answers", len(s.Answers))
	}
}

// TestSentences: an answer of many clauses has several sentences, and each further one is about the arm, too.
func TestSentences(t *testing.T) {
	p := &Prose{Summary: &Summary{}, Arm: "x", At: factors{}}
	p.clauses = append(p.clauses, "holds a", "holds b", "holds c")
	p.pause(false)
	p.pause(true)
	p.clauses = append(p.clauses, "leaves d")
	p.pause(true) // too few
	p.clauses = append(p.clauses, "leaves e", "leaves f")
	p.pause(true)
	p.clauses = append(p.clauses, p.standing("latency is higher"))
	p.end()
	want := "x holds a; holds b; holds c. It leaves d; leaves e; leaves f. Latency is higher."
	if got := p.Answer().Answer; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
