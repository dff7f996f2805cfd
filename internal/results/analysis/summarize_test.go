package analysis_test

import (
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
)

var plain = analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6, MapBytes: 1.2e6}

func summarize(t *testing.T, run record.Run, trials []record.Trial) *analysis.Summary {
	t.Helper()
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(s); err != nil {
		t.Fatalf("the summary has no JSON form: %v", err)
	}
	return s
}

func TestSummarizeFindsWhatIsThere(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	s := summarize(t, run, trials)
	if !s.Valid || s.Partial || s.Blocks != 8 || s.Trials.Valid != 24 || s.Trials.Planned != 24 ||
		len(s.Trials.Excluded) != 0 || len(s.Warnings) != 1 {
		t.Errorf("valid %t, partial %t, %d blocks, trials %+v, warnings %q", s.Valid, s.Partial, s.Blocks, s.Trials,
			s.Warnings)
	}
	for _, c := range []struct {
		metric, arm string
		difference  float64
		resolved    bool
	}{
		{"bpf_seconds_per_connection", "candidate", 3.1e-6, true},
		{"latency_p50_seconds", "candidate", 12.1e-6, true}, // the run time of the programs and the planted latency together
		{"latency_p99_seconds", "candidate", 12.1e-6, true},
		{"cpu_seconds_per_connection", "candidate", 0, false},
		{"latency_p50_seconds", record.AA, 0, false},
	} {
		e := s.Find(c.metric, c.arm, nil)
		if e == nil || e.Difference == nil {
			t.Fatalf("no difference in %s of %s", c.metric, c.arm)
		}
		d := e.Difference
		if d.Resolved != c.resolved || d.Resolved != (d.Unresolved == "") {
			t.Errorf("%s of %s: resolved %t, %q", c.metric, c.arm, d.Resolved, d.Unresolved)
		}
		if d.Lo == nil || *d.Lo > c.difference || *d.Hi < c.difference || d.N != 8 || d.Method != "signed-rank" {
			t.Errorf("%s of %s: %+v [%g, %g], want %g", c.metric, c.arm, d, *d.Lo, *d.Hi, c.difference)
		}
	}
	if e := s.Find("latency_p999_seconds", "direct", nil); e != nil {
		t.Errorf("4000 requests gave a p99.9: %+v", e)
	}
	if e := s.Find("map_bytes", "candidate", nil); e == nil || e.Value != 1.2e6 || e.Difference != nil ||
		e.Baseline != "" {
		t.Errorf("what the baseline does not have needs no difference: %+v", e)
	}
	if r := s.Find("latency_p50_seconds", "candidate", nil).Ratio; r == nil || r.Value < 1.1 || r.Value > 1.2 {
		t.Errorf("ratio %+v", r)
	}
	if math.Abs(s.Self.CPUSeconds-0.24) > 1e-9 || s.Self.RSSBytes != 30<<20 {
		t.Errorf("self %+v", s.Self)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	fewer := plain
	fewer.Blocks = 4
	noisy := plain
	noisy.Noise = 30e-6
	swept := plain
	swept.Rates = []string{"500", "1000", "2000"}
	own := func(run *record.Run) { run.Experiment = "my-own" }
	for _, c := range []struct {
		name  string
		truth analysistest.Truth
		alter func(*record.Run)
		drop  int // number of trials at the end that were not run
		want  []string
	}{
		{name: "all resolved", truth: plain, want: []string{
			"candidate adds 3.0 us [3.0, 3.2]", "] of kernel time per connection, 71 % of it in the client's cgroup; ",
			"; p50 is 12", "] higher; ", "; 1.20 MB of maps. Not resolved: CPU time per connection (found in 80 %: "}},
		{name: "noise", truth: noisy, want: []string{", p50 (found in 80 %: ", ") and p99 (found in 80 %: "}},
		{name: "another experiment", truth: plain, alter: own, want: []string{"candidate adds 3.0"}},
		{name: "few blocks", truth: fewer, want: []string{"candidate adds 3.2", " us (no interval) of kernel time",
			"Not resolved (4 of the 6 blocks that an interval needs): CPU time per connection, p50 and p99."}},
		{name: "levels", truth: swept, want: []string{"At rate 500: candidate adds", "At rate 1000: ", "At rate 2000: "}},
		{name: "partial", truth: plain, drop: 3, want: []string{"From a partial run (21 of 24 trials): candidate adds"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, trials := analysistest.Quickstart(c.truth)
			if c.alter != nil {
				c.alter(&run)
			}
			s := summarize(t, run, trials[:len(trials)-c.drop])
			var all []string
			for _, a := range s.Answers {
				if a.Question != run.Question {
					t.Errorf("the question is %q", a.Question)
				}
				if len(a.Evidence) == 0 {
					t.Errorf("no evidence for %q", a.Answer)
				}
				for _, e := range a.Evidence {
					metric, arm, _ := strings.Cut(e, " ")
					if !slices.ContainsFunc(s.Estimates,
						func(e analysis.Estimate) bool { return e.Metric == metric && e.Arm == arm }) {
						t.Errorf("the evidence %q is no estimate", e)
					}
				}
				all = append(all, a.Answer)
			}
			text := strings.Join(all, "\n")
			t.Log(text)
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in the answer", want)
				}
			}
			if strings.Contains(text, "request takes") {
				t.Error("a difference of quantiles is not what a request takes longer")
			}
		})
	}
}

func TestLagGate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		lag, extra    float64
		resolved      bool
		note, because string
	}{
		{"small", 0.5e-6, 0, true, "", ""},
		{"large and alike", 30e-6, 0, true, "over a tenth of the difference", ""},
		{"different", 0.1e-6, 4e-6, false, "", analysis.LagReason + ": the p50 of its lag may be 4"},
	} {
		truth := plain
		truth.Lag, truth.ExtraLag = c.lag, c.extra
		s := summarize2(t, truth)
		e := s.Find("latency_p50_seconds", "candidate", nil)
		if e.Difference.Resolved != c.resolved || !strings.Contains(e.Difference.Unresolved, c.because) ||
			!strings.Contains(strings.Join(e.Notes, ""), c.note) || (c.note == "") != (len(e.Notes) == 0) {
			t.Errorf("%s: %+v, notes %q", c.name, e.Difference, e.Notes)
		}
		if b := s.Find("bpf_seconds_per_connection", "candidate", nil); !b.Difference.Resolved {
			t.Errorf("%s: lag says nothing of kernel time: %+v", c.name, b.Difference)
		}
	}
}

// TestLagOfTheServersMaking: if a generator is late because no connection is free, the server is the cause. All of the
// lag counts only if the generator did not record its own part of it.
func TestLagOfTheServersMaking(t *testing.T) {
	for _, tells := range []bool{true, false} {
		run, trials := analysistest.Quickstart(plain)
		for i := range trials {
			l := trials[i].Loads["client"]
			h := hdrhistogram.New(1, 60_000_000_000, 3)
			lag := int64(1000)
			if trials[i].Arm == "candidate" {
				lag = 5000 // ns; its latency is 12 us higher
			}
			if err := h.RecordValues(lag, l.Done); err != nil {
				t.Fatal(err)
			}
			l.Histograms = maps.Clone(l.Histograms)
			if err := l.SetHistogram(load.Lag, h); err != nil {
				t.Fatal(err)
			}
			if !tells {
				delete(l.Histograms, load.OwnLag)
			}
			trials[i].Loads = map[string]load.Result{"client": l}
		}
		d := summarize(t, run, trials).Find("latency_p50_seconds", "candidate", nil).Difference
		if d.Resolved != tells || !tells && !strings.HasPrefix(d.Unresolved, analysis.LagReason) {
			t.Errorf("generator tells its own lag: %t: %+v", tells, d)
		}
	}
}

func summarize2(t *testing.T, truth analysistest.Truth) *analysis.Summary {
	t.Helper()
	run, trials := analysistest.Quickstart(truth)
	return summarize(t, run, trials)
}

func TestTrialsLeftOut(t *testing.T) {
	spoil := func(trials []record.Trial, arm string, n int) []record.Trial {
		trials = slices.Clone(trials)
		for i := range trials {
			if trials[i].Arm != arm || n == 0 {
				continue
			}
			n--
			if n%2 == 0 {
				trials[i].Validity = record.Validity{Failed: "the server died: exit status 1"}
				trials[i].Ledger, trials[i].Metrics, trials[i].Loads = nil, nil, nil
			} else {
				trials[i].Validity = record.Validity{Reasons: []record.Reason{{Gate: "rate", Seen: 0.9, Allowed: 0.99,
					Message: "90 % of the rate was reached: lower the rate"}}}
			}
		}
		return trials
	}
	run, trials := analysistest.Quickstart(plain)

	s := summarize(t, run, spoil(trials, "candidate", 2))
	if !s.Valid || s.Trials.Failed != 1 || s.Trials.Invalid != 1 || s.Trials.Valid != 22 || s.Blocks != 6 {
		t.Errorf("two left out: valid %t %q, %+v, %d blocks", s.Valid, s.InvalidReasons, s.Trials, s.Blocks)
	}
	if len(s.Trials.Excluded) != 2 || !strings.Contains(s.Trials.Excluded[0].Why, "lower the rate") ||
		!strings.Contains(s.Trials.Excluded[1].Why, "exit status 1") {
		t.Errorf("excluded: %+v", s.Trials.Excluded)
	}
	if e := s.Find("latency_p50_seconds", "candidate", nil); e.N != 6 || e.Difference.N != 6 {
		t.Errorf("candidate: %+v", e)
	}
	if e := s.Find("latency_p50_seconds", record.AA, nil); e.Difference.N != 8 {
		t.Errorf("one arm's failures took the blocks of another: %+v", e.Difference)
	}

	s = summarize(t, run, spoil(trials, "candidate", 3))
	if s.Valid || len(s.InvalidReasons) != 1 || !strings.Contains(s.InvalidReasons[0],
		"arm candidate lost 3 of 8 trials, and an interval needs 6; 2 of them failed: the server died") {
		t.Errorf("three left out: %q", s.InvalidReasons)
	}
	if len(s.Answers) != 1 || !strings.HasPrefix(s.Answers[0].Answer, "No answer: the run is invalid. ") {
		t.Errorf("an invalid run answered: %+v", s.Answers)
	}

	s = summarize(t, run, spoil(trials, "candidate", 8))
	if s.Valid || !strings.Contains(s.InvalidReasons[0], "arm candidate lost 8 of 8 trials") {
		t.Errorf("eight left out: %q", s.InvalidReasons)
	}
	strict := run
	strict.Spec = json.RawMessage(`{"gates":{"invalid":"0.05"}}`)
	if s = summarize(t, strict, spoil(trials, "candidate", 2)); s.Valid {
		t.Error("the limit of the spec was not read")
	}
}

// TestImpossible: data that no trial can have written are left out, and the summary says so.
func TestImpossible(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	trials[0].Metrics = nil
	trials[1].Counts = map[string]record.Count{"x": {In: 5, Of: 3}, "y": {In: -1, Of: 3}, "z": {In: 3, Of: 3}}
	trials[2].Metrics["map_bytes"] = 1e300
	s := summarize(t, run, trials)
	said := strings.Join(s.Warnings, "; ")
	for _, want := range []string{"the record is incomplete: 1 trial without metrics did not fail",
		"left out: 3 values that cannot have been measured, of map bytes, x, y"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in %q", want, said)
		}
	}
	if slices.ContainsFunc(s.Estimates, func(e analysis.Estimate) bool { return e.Metric == "x" || e.Metric == "y" }) {
		t.Error("a share of more than all is told")
	}
}

func TestOddRuns(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	if _, err := analysis.Summarize(record.Run{}, nil); err == nil {
		t.Error("a run without a schema was summarized")
	}
	for _, c := range []struct {
		name   string
		alter  func(*record.Run, []record.Trial) []record.Trial
		reason string
	}{
		{"no trials", func(*record.Run, []record.Trial) []record.Trial { return nil }, "no trial was finished"},
		{"no plan", func(r *record.Run, ts []record.Trial) []record.Trial { r.Plan = nil; return ts }, ""},
		{"no twin", func(_ *record.Run, ts []record.Trial) []record.Trial {
			return slices.DeleteFunc(ts, func(t record.Trial) bool { return t.Arm == record.AA })
		}, ""},
		{"one arm alone", func(_ *record.Run, ts []record.Trial) []record.Trial {
			return slices.DeleteFunc(ts, func(t record.Trial) bool { return t.Arm != "candidate" })
		}, ""},
		{"values that are no numbers", func(_ *record.Run, ts []record.Trial) []record.Trial {
			for i := range ts {
				ts[i].Metrics = map[string]float64{"cpu_seconds": math.NaN(), "map_bytes": math.Inf(1), "": 1, "_": math.MaxFloat64}
			}
			return ts
		}, ""},
		{"histograms that are none", func(_ *record.Run, ts []record.Trial) []record.Trial {
			for i := range ts {
				for name, l := range ts[i].Loads {
					l.Histograms = map[string]string{"latency": "rubbish", "lag": ""}
					ts[i].Loads = map[string]load.Result{name: l}
				}
			}
			return ts
		}, ""},
	} {
		r, ts := run, slices.Clone(trials)
		ts = c.alter(&r, ts)
		s := summarize(t, r, ts)
		if c.reason != "" && !slices.Contains(s.InvalidReasons, c.reason) {
			t.Errorf("%s: %q", c.name, s.InvalidReasons)
		}
		for _, e := range s.Estimates {
			if c.name == "no twin" && e.Difference != nil && e.Difference.Resolved {
				t.Errorf("resolved without a twin: %+v", e)
			}
		}
		if c.name == "values that are no numbers" &&
			!strings.Contains(strings.Join(s.Warnings, "; "), "left out: 72 values that cannot have been measured, of ") {
			t.Errorf("%s: warnings %q", c.name, s.Warnings)
		}
		if c.name == "histograms that are none" &&
			!strings.Contains(strings.Join(s.Warnings, ""), "48 histograms could not be read") {
			t.Errorf("%s: warnings %q", c.name, s.Warnings)
		}
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	swept := plain
	swept.Rates = []string{"2000", "500", "1000", "4000"}
	s := summarize2(t, swept)
	i := slices.IndexFunc(s.Models, func(m analysis.Model) bool { return m.Metric == "cpu_seconds" && m.Arm == "direct" })
	if i < 0 {
		t.Fatalf("no model of cpu_seconds among %d", len(s.Models))
	}
	m := s.Models[i]
	if slope := m.Terms[1]; slope.Name != "rate" || *slope.Lo > 55e-6 || *slope.Hi < 55e-6 || !m.Linear || m.R2 < 0.99 ||
		m.ValidRange["rate"] != [2]float64{500, 4000} {
		t.Errorf("%+v", m)
	}
	var rates []string
	for _, e := range s.Estimates {
		if e.Metric == "cpu_seconds" && e.Arm == "direct" {
			rates = append(rates, e.Factors["rate"])
		}
	}
	if !slices.Equal(rates, []string{"500", "1000", "2000", "4000"}) {
		t.Errorf("levels in the order %q", rates)
	}
	if slices.ContainsFunc(s.Models, func(m analysis.Model) bool { return strings.HasPrefix(m.Metric, "latency") }) {
		t.Error("a line was fitted to a latency")
	}
}

// TestNothingIsNotResolved: no difference is resolved for an arm that costs nothing.
func TestNothingIsNotResolved(t *testing.T) {
	nothing := plain
	nothing.BPF, nothing.Latency = 0, 0
	s := summarize2(t, nothing)
	for _, e := range s.Estimates {
		if e.Arm == "candidate" && e.Difference != nil && e.Difference.Resolved {
			t.Errorf("resolved: %s %+v", e.Metric, e.Difference)
		}
	}
}

// TestPooledParts: shares that are counted by samples are pooled over the valid trials of an arm. A share of too few
// samples is left out.
func TestPooledParts(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	for i := range trials {
		trials[i].Counts = map[string]record.Count{}
		if trials[i].Arm == "candidate" {
			trials[i].Counts["bpf_client_share"] = record.Count{In: 3, Of: 4}
			if trials[i].Block == 0 {
				trials[i].Counts["bpf_server_share"] = record.Count{In: 5, Of: 24}
			}
		}
	}
	s := summarize(t, run, trials)
	e := s.Find("bpf_client_share", "candidate", map[string]string{})
	if e == nil || e.Value != 0.75 || e.N != 4*s.Blocks || *e.Lo >= 0.75 || *e.Hi <= 0.75 {
		t.Errorf("got %+v", e)
	}
	if e := s.Find("bpf_server_share", "candidate", map[string]string{}); e != nil {
		t.Errorf("24 samples gave %+v", e)
	}
}

// TestPooledPartsOfLostTrials: a difference of pooled parts is resolved, and an assertion on it decided, only if no
// share of the lost trials could change that.
func TestPooledPartsOfLostTrials(t *testing.T) {
	for _, c := range []struct {
		arm      string
		lost     int
		in       int // about this many of 10,000 samples of the arm count in the share; 100 of the baseline's
		resolved bool
	}{
		{"candidate", 0, 10, true},
		{"candidate", 2, 10, false},
		{record.Direct, 2, 10, true},
		{record.Direct, 2, 70, false},
		{"candidate", 1, 9990, true},
	} {
		truth := plain
		truth.Blocks = 10
		run, trials := analysistest.Quickstart(truth)
		run.Assert = []string{"failed_connect_share <= -0.0005", "failed_connect_share >= +0.1"}
		for i := range trials {
			n := record.Count{In: 100 + trials[i].Block%3, Of: 10_000}
			if trials[i].Arm == "candidate" {
				n.In = c.in + trials[i].Block%3
			}
			trials[i].Counts = map[string]record.Count{"failed_connect_share": n}
			if trials[i].Arm == c.arm && trials[i].Block < c.lost {
				trials[i].Validity = record.Validity{Failed: "exit 1"}
			}
		}
		s := summarize(t, run, trials)
		d := s.Find("failed_connect_share", "candidate", map[string]string{}).Difference
		if d.Lost != c.lost || d.Resolved != c.resolved ||
			!c.resolved && !strings.HasPrefix(d.Unresolved, analysis.LossReason) ||
			(*d.WorstLo < *d.Lo && *d.WorstHi > *d.Hi) != (c.lost > 0) {
			t.Errorf("%d of %s: %+v, %g to %g, worst %g to %g", c.lost, c.arm, d, *d.Lo, *d.Hi, *d.WorstLo, *d.WorstHi)
		}
		check := s.Verdicts[map[bool]int{true: 1}[c.in > 100]].Checks[0]
		if check.Result == analysis.Holds != c.resolved || check.Lost != c.lost {
			t.Errorf("%d of %s: %+v", c.lost, c.arm, check)
		}
		if slices.ContainsFunc(s.Losses, func(l analysis.Loss) bool {
			return slices.Contains(l.Metrics, "failed_connect_share")
		}) != (c.lost > 0) {
			t.Errorf("%d of %s: losses %+v", c.lost, c.arm, s.Losses)
		}
	}
}

// TestNoFactors: a run without factors has an empty object for them, so that a program that reads the summary need not
// check for null.
func TestNoFactors(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Noise: 1e-6})
	trials[0].Validity = record.Validity{Failed: "made to"}
	s := summarize(t, run, trials)
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); strings.Contains(text, `"factors":null`) || !strings.Contains(text, `"factors":{}`) ||
		len(s.Trials.Excluded) != 1 {
		t.Errorf("%d trials left out; %s", len(s.Trials.Excluded), text)
	}
}

// TestOtherRun: the summary says how many trials shared the machine with another run.
func TestOtherRun(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Noise: 1e-6})
	for i := range trials {
		trials[i].Ledger.Warnings = append(trials[i].Ledger.Warnings, ledger.Warning{Code: "another"})
		if i%6 == 0 {
			trials[i].Ledger.Warnings = append(trials[i].Ledger.Warnings, ledger.Warning{Code: record.OtherRun})
		}
	}
	s := summarize(t, run, trials)
	if !strings.Contains(strings.Join(s.Warnings, "\n"), "in 3 of 18 trials") {
		t.Errorf("warnings: %q", s.Warnings)
	}
}

// BenchmarkLevels shows how the time grows with the levels of a run: doubling them should double it.
func BenchmarkLevels(b *testing.B) {
	for _, n := range []int{50, 100, 200, 400} {
		var rates []string
		for i := range n {
			rates = append(rates, strconv.Itoa(20+i%7)+"."+strconv.Itoa(i))
		}
		run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Noise: 1e-6, Rates: rates})
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				run.Metrics = append(run.Metrics, measured.Definitions()...)
				if _, err := analysis.Summarize(run, trials); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestCompareLevels: levels have one order, whichever two of them are compared first.
func TestCompareLevels(t *testing.T) {
	ordered := []string{"20ms", "1s", "2", "10", "10x", "none"}
	for range 20 {
		got := slices.Clone(ordered)
		rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, func(a, b string) int {
			return analysis.CompareLevels(map[string]string{"x": a}, map[string]string{"x": b})
		})
		if !slices.Equal(got, ordered) {
			t.Fatalf("%v, want %v", got, ordered)
		}
	}
}

// TestWarningsOfTheRun: warnings from before the first trial are in every summary of the record.
func TestWarningsOfTheRun(t *testing.T) {
	run := record.Run{Schema: record.RunSchema, Warnings: []string{"its CPU time never settled"}}
	s, err := analysis.Summarize(run, nil)
	if err != nil || !slices.Contains(s.Warnings, "its CPU time never settled") {
		t.Errorf("%q, %v", s.Warnings, err)
	}
}
