package analysis_test

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
)

// headlines are the metrics that the answers about the tests' runs cover.
var headlines = []string{"latency_p50_seconds", "latency_p99_seconds", "throughput_per_second",
	"bpf_seconds_per_connection", "cpu_seconds_per_connection", "map_bytes"}

// late returns the reason of a trial whose generator was late because of the hypervisor: it voids only latency and
// throughput.
func late(share float64) record.Reason {
	return record.Reason{Gate: "lag", Seen: 0.033, Allowed: 0.025, Message: "client: the generator started late",
		Cause: ledger.Hypervisor, CauseShare: &share,
		Voids: []string{"latency_p50_seconds", "latency_p90_seconds", "latency_p99_seconds", "throughput_per_second"}}
}

// spoil returns the trials, with the reason added to those for which pick(trial) is true.
func spoil(trials []record.Trial, pick func(record.Trial) bool, reason record.Reason) []record.Trial {
	trials = slices.Clone(trials)
	for i := range trials {
		if pick(trials[i]) {
			trials[i].Validity = record.Validity{Reasons: append(slices.Clone(trials[i].Validity.Reasons), reason)}
		}
	}
	return trials
}

func everyTrial(record.Trial) bool { return true }

func texts(s *analysis.Summary) string {
	var all []string
	for _, a := range s.Answers {
		all = append(all, a.Answer)
	}
	return strings.Join(all, "\n")
}

// TestEveryLatencyVoided: a run whose generator was late in every trial is valid, because costs and memory do not
// depend on that. The answers say why latency is missing.
func TestEveryLatencyVoided(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Headline = headlines
	whole := summarize(t, run, trials)
	s := summarize(t, run, spoil(trials, everyTrial, late(0.24)))
	if !s.Valid || s.Trials.Valid != 0 || s.Trials.Invalid != 24 || s.Blocks != 0 {
		t.Fatalf("valid %t %q, trials %+v, %d blocks", s.Valid, s.InvalidReasons, s.Trials, s.Blocks)
	}
	for _, metric := range []string{"bpf_seconds_per_connection", "cpu_seconds_per_connection", "map_bytes"} {
		got, want := s.Find(metric, "candidate", nil), whole.Find(metric, "candidate", nil)
		if got == nil || got.Value != want.Value || got.N != want.N || got.Blocks != 8 || got.Planned != 8 {
			t.Errorf("%s: %+v, and without gates %+v", metric, got, want)
		}
	}
	for _, metric := range []string{"latency_p50_seconds", "throughput_per_second"} {
		if e := s.Find(metric, "candidate", nil); e != nil {
			t.Errorf("%s was voided in every trial, and is given: %+v", metric, e)
		}
	}
	if want := "latency and throughput: not measured, the hypervisor took 24 % of " +
		"the CPU time"; !strings.Contains(texts(s), want) {
		t.Errorf("no %q in\n%s", want, texts(s))
	}
	if want := "candidate adds 3.0"; !strings.Contains(texts(s), want) {
		t.Errorf("no %q in\n%s", want, texts(s))
	}
	i := slices.IndexFunc(s.Missing, func(m analysis.Missing) bool {
		return m.Metric == "latency_p99_seconds" &&
			m.Arm == "candidate"
	})
	if i < 0 || s.Missing[i].Lost != 8 || s.Missing[i].Trials != 8 || s.Missing[i].Cause != ledger.Hypervisor ||
		s.Missing[i].Gate != "lag" {
		t.Errorf("missing: %+v", s.Missing)
	}
}

// TestOldReasonsVoidEverything: a reason that lists no metrics is from a version of Tare in which a gate voided the
// whole trial.
func TestOldReasonsVoidEverything(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	old := late(0.24)
	old.Voids = nil
	if s := summarize(t, run, spoil(trials, everyTrial, old)); s.Valid || len(s.Estimates) != 0 {
		t.Errorf("valid %t, %d estimates", s.Valid, len(s.Estimates))
	}
	result := late(0)
	result.Voids, result.Cause, result.CauseShare = []string{}, ledger.Subject, nil
	if s := summarize(t, run, spoil(trials, everyTrial, result)); !s.Valid || len(s.Missing) != 0 ||
		s.Find("latency_p50_seconds", "candidate", nil) == nil {
		t.Errorf("a gate that voids nothing took something: %+v", s.Missing)
	}
}

// TestOneLevelSilencesNoOther: results that are lost at one level are named, and the other levels have their answers.
func TestOneLevelSilencesNoOther(t *testing.T) {
	t.Parallel()
	swept := plain
	swept.Rates = []string{"500", "1000", "4000"}
	run, trials := analysistest.Quickstart(swept)
	run.Headline = headlines
	for name, reason := range map[string]record.Reason{
		"everything": {Gate: "outside", Message: "others", Cause: ledger.Neighbour, Culprits: []string{"stress-ng"}},
		"failed":     {},
	} {
		storm := func(t record.Trial) bool { return t.Factors["rate"] == "4000" }
		spoilt := spoil(trials, storm, reason)
		if name == "failed" {
			for i := range spoilt {
				if storm(spoilt[i]) {
					spoilt[i].Validity = record.Validity{Failed: "the server died"}
				}
			}
		}
		s := summarize(t, run, spoilt)
		if !s.Valid {
			t.Errorf("%s: %q", name, s.InvalidReasons)
		}
		for _, want := range []string{"At rate 500: candidate adds 3.", "At rate 1000: candidate adds ",
			"At rate 4000, candidate: "} {
			if !strings.Contains(texts(s), want) {
				t.Errorf("%s: no %q in\n%s", name, want, texts(s))
			}
		}
		if strings.Contains(texts(s), "No answer") {
			t.Errorf("%s:\n%s", name, texts(s))
		}
	}
}

// TestStormSilencesNoOther: a run of tracers that lost the results of its storm level still answers for the other
// levels.
func TestStormSilencesNoOther(t *testing.T) {
	run := record.Run{Schema: record.RunSchema, Experiment: "trace-exec", Question: "Which?", Blocks: 8,
		Headline: []string{"events_lost", "cpu_seconds_per_kiloevent", "throughput_per_second"}}
	var trials []record.Trial
	share := 0.31
	for block := range run.Blocks {
		for _, rate := range []string{"100", "1000", "storm"} {
			for _, arm := range []string{record.Direct, record.AA, "tracer"} {
				p := record.PlannedTrial{Index: len(trials), Block: block, Arm: arm, Factors: map[string]string{"rate": rate}}
				tr := record.Trial{PlannedTrial: p, Validity: record.Validity{Valid: true}, Metrics: map[string]float64{
					"events_generated": 1000, "throughput_per_second": 100 + float64(block%3), "events_lost": 0, "events_extra": 0,
					"cpu_seconds_per_kiloevent": 2e-3 + 1e-5*float64(block%3)}}
				if rate == "storm" {
					tr.Validity = record.Validity{Reasons: []record.Reason{{Gate: "drift", Message: "drifted",
						Cause: ledger.Hypervisor, CauseShare: &share, Voids: []string{"throughput_per_second"}},
						{Gate: "counts", Message: "the counts do not agree", Cause: ledger.Unknown,
							Voids: []string{"cpu_seconds_per_kiloevent", "events_extra", "events_generated", "events_lost"}}}}
				}
				trials, run.Plan = append(trials, tr), append(run.Plan, p)
			}
		}
	}
	s := summarize(t, run, trials)
	if !s.Valid {
		t.Fatalf("invalid: %q", s.InvalidReasons)
	}
	for _, want := range []string{"tracer delivered every event.", "tracer: of 16,000 events in 16 trials none was lost",
		"At rate storm: direct and tracer: throughput: not measured, the hypervisor took 31 % of the CPU time.",
		"At rate storm: direct and tracer: ", "not measured, the gate counts (the counts do not agree)."} {
		if !strings.Contains(texts(s), want) {
			t.Errorf("no %q in\n%s", want, texts(s))
		}
	}
}

// TestWithheld: the limit on lost trials applies to each metric of each arm separately.
func TestWithheld(t *testing.T) {
	t.Parallel()
	truth := plain
	truth.Blocks = 12
	run, trials := analysistest.Quickstart(truth)
	run.Headline = headlines
	for _, c := range []struct {
		lost     int
		withheld bool
	}{{3, false}, {4, true}} { // lost trials of 12, of which up to a quarter may be lost
		s := summarize(t, run, spoil(trials, func(tr record.Trial) bool { return tr.Arm == "candidate" && tr.Block < c.lost },
			late(0.2)))
		i := slices.IndexFunc(s.Estimates, func(e analysis.Estimate) bool {
			return e.Metric == "latency_p50_seconds" &&
				e.Arm == "candidate"
		})
		e := s.Estimates[i]
		if (e.Withheld != "") != c.withheld || e.Blocks != 12-c.lost || e.Planned != 12 || e.Difference.N != 12-c.lost ||
			c.withheld && e.Difference.Resolved {
			t.Errorf("%d lost: %+v, difference %+v", c.lost, e, e.Difference)
		}
		if said := strings.Contains(texts(s), "latency and throughput: withheld, the hypervisor took 20 % of "+
			"the CPU time"); said != c.withheld {
			t.Errorf("%d lost: %s", c.lost, texts(s))
		}
		if e := s.Find("latency_p50_seconds", record.AA, nil); e == nil || e.Difference.N != 12 {
			t.Errorf("%d lost: the twin has %+v", c.lost, e)
		}
	}
	s := summarize(t, run, spoil(trials, func(tr record.Trial) bool { return tr.Arm == record.Direct && tr.Block < 4 },
		late(0.2)))
	if e := s.Find("latency_p50_seconds", "candidate", nil); e == nil || e.Difference.Resolved ||
		e.Difference.Unresolved != "the baseline's value is withheld" {
		t.Errorf("a difference to what is withheld: %+v", e)
	}
	if want := "in the baseline, latency and throughput: withheld"; !strings.Contains(texts(s), want) {
		t.Errorf("no %q in\n%s", want, texts(s))
	}
}

// TestBaselineWithheld: answers state no difference from a withheld value, neither in a run without intervals nor if
// the remaining values are 0.
func TestBaselineWithheld(t *testing.T) {
	t.Parallel()
	const open = "(the baseline's value is withheld): kernel time per connection, CPU time per connection and " +
		"memory in maps"
	for _, c := range []struct {
		blocks, lost int
		held         float64 // by the baseline's maps
		want         []string
		not          []string
	}{
		{2, 0, 0, []string{"candidate adds ", " of kernel time", "1.20 MB of maps"}, nil},
		{2, 1, 0, []string{open}, []string{"adds", "holds", "of maps"}},
		{8, 0, 10e6, []string{"candidate adds ", "memory in maps is 8.80 MB [8.80, 8.80] lower"}, nil},
		{8, 3, 10e6, []string{open}, []string{"adds", "holds", "of maps", "lower"}},
	} {
		truth := plain
		truth.Blocks = c.blocks
		run, trials := analysistest.Quickstart(truth)
		run.Headline = headlines
		for i := range trials {
			if trials[i].Arm != "candidate" {
				trials[i].Metrics["map_bytes"] = c.held
			}
		}
		lost := func(tr record.Trial) bool { return tr.Arm == record.Direct && tr.Block < c.lost }
		s := summarize(t, run, spoil(trials, lost, record.Reason{Gate: "drift", Message: "drifted", Cause: ledger.Unknown,
			Voids: []string{"bpf_seconds_per_connection", "cpu_seconds_per_connection", "map_bytes"}}))
		for _, want := range c.want {
			if !strings.Contains(texts(s), want) {
				t.Errorf("%d of %d lost: no %q in\n%s", c.lost, c.blocks, want, texts(s))
			}
		}
		for _, not := range c.not {
			if strings.Contains(texts(s), not) {
				t.Errorf("%d of %d lost: %q in\n%s", c.lost, c.blocks, not, texts(s))
			}
		}
	}
}

// TestDidNotKeepUp: if the subject itself missed a rate, that is a result. Its throughput stands, and the answer says
// so.
func TestDidNotKeepUp(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Headline = headlines
	slow := record.Reason{Gate: "rate", Seen: 0.6, Allowed: 0.99, Message: "60 % in time", Cause: ledger.Subject,
		Voids: []string{"latency_p50_seconds", "latency_p90_seconds", "latency_p99_seconds"}}
	trials = spoil(trials, func(tr record.Trial) bool { return tr.Arm == "candidate" }, slow)
	for i := range trials {
		if trials[i].Arm == "candidate" {
			l := trials[i].Loads["client"]
			l.Rate = 1200
			trials[i].Loads = map[string]load.Result{"client": l}
			trials[i].Metrics = maps.Clone(trials[i].Metrics)
			trials[i].Metrics["throughput_per_second"] = 1200 + float64(trials[i].Block)
		}
	}
	s := summarize(t, run, trials)
	for _, want := range []string{"it did not keep up: 1,200/s of 2,000/s",
		"latency: not measured, the rate was not reached, and a queue built up", "throughput is 796 /s [794, 798] lower"} {
		if !strings.Contains(texts(s), want) {
			t.Errorf("no %q in\n%s", want, texts(s))
		}
	}
	almostNone := slices.Clone(trials)
	for i := range almostNone {
		if l := almostNone[i].Loads["client"]; l.Rate == 1200 {
			l.Done, l.Rate = 1, 0.3
			almostNone[i].Loads = map[string]load.Result{"client": l}
		}
	}
	if s := summarize(t, run, almostNone); !strings.Contains(texts(s), "did not keep up: 0.3/s of 2,000/s") {
		t.Errorf("a rate below 1/s in\n%s", texts(s))
	}
	for i := range trials { // older records do not say how many of the answers came in the window
		l := trials[i].Loads["client"]
		l.Late = l.Done / 20
		trials[i].Loads = map[string]load.Result{"client": l}
	}
	if s := summarize(t, run, trials); strings.Contains(texts(s), "did not keep up") {
		t.Errorf("a rate that is unknown in\n%s", texts(s))
	}
}

// TestAttempts: each metric comes from the first attempt in which it is valid, and each trial counts once.
func TestAttempts(t *testing.T) {
	t.Parallel()
	run, trials := analysistest.Quickstart(plain)
	run.Headline = headlines
	whole := summarize(t, run, trials)
	spoilt := spoil(trials, func(tr record.Trial) bool { return tr.Block == 2 }, late(0.24))
	var again []record.Trial
	for _, tr := range spoilt {
		again = append(again, tr)
		if tr.Block == 2 {
			second := trials[tr.Index]
			second.Attempt = 1
			second.Metrics = maps.Clone(second.Metrics)
			second.Metrics["cpu_seconds_per_connection"] = 1 // it is valid in the first attempt, so this value must not count
			again = append(again, second)
		}
	}
	s := summarize(t, run, again)
	if s.Trials.Planned != 24 || s.Trials.Done != 24 || s.Trials.Valid != 24 || s.Trials.Attempts != 27 || s.Partial ||
		s.Blocks != 8 || len(s.Trials.Excluded) != 0 || len(s.Missing) != 0 {
		t.Errorf("%+v, partial %t, %d blocks, missing %+v", s.Trials, s.Partial, s.Blocks, s.Missing)
	}
	a, err := json.Marshal(s.Estimates)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(whole.Estimates)
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("latency is not from the second attempt, or something else is not from the first")
	}
	// A trial whose second attempt is also spoiled is one loss, not two.
	for i := range again {
		if again[i].Block == 2 {
			again[i].Validity = record.Validity{Reasons: []record.Reason{late(0.24)}}
		}
	}
	s = summarize(t, run, again)
	if e := s.Find("latency_p50_seconds", "candidate", nil); e == nil || e.N != 7 || e.Planned != 8 ||
		s.Trials.Invalid != 3 || !strings.Contains(s.Trials.Excluded[0].Why, "(run 2 times)") {
		t.Errorf("%+v, trials %+v", e, s.Trials)
	}
	if v := s.Trials.Excluded[0].Voids; len(v) == 0 || slices.Contains(v, "cpu_seconds_per_connection") {
		t.Errorf("left out of %v", v)
	}
}

// TestUnanswered: a trial whose quantile is among the unanswered requests counts as lost, and not as one with too few
// samples, because the trials that have a value are the arm's better ones.
func TestUnanswered(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Headline = headlines
	for i := range trials {
		if trials[i].Arm != "candidate" {
			continue
		}
		trials[i].Metrics = maps.Clone(trials[i].Metrics)
		delete(trials[i].Metrics, "latency_p99_seconds")
		l := trials[i].Loads["client"]
		h := hdrhistogram.New(1, load.Longest, 3)
		for range 10_000 {
			load.Record(h, 1e6)
		}
		if err := l.SetHistogram(load.Latency, h); err != nil {
			t.Fatal(err)
		}
		l.Done, l.Intended = 10_000, 10_010
		if trials[i].Block%3 == 0 {
			l.Intended = 10_200 // p99 is among the 200
		}
		trials[i].Loads = map[string]load.Result{"client": l}
	}
	s := summarize(t, run, trials)
	if e := s.Find("latency_p99_seconds", "candidate", nil); e != nil && e.Withheld == "" {
		t.Errorf("the value of the trials that answered more: %+v", e)
	}
	if !slices.ContainsFunc(s.Missing, func(m analysis.Missing) bool {
		return m.Metric == "latency_p99_seconds" && m.Arm == "candidate" && m.Gate == "unanswered" && m.Lost == 3
	}) {
		t.Errorf("3 lost trials are not in %+v", s.Missing)
	}
}

// TestOldRules: values that an earlier version recorded by wrong rules are not used. If a queue grew, that version also
// counted answers that came after the window, and its quantiles left unanswered requests out.
func TestOldRules(t *testing.T) {
	const (
		bpf = "bpf_seconds_per_request"
		cpu = "cpu_seconds_per_request"
		p50 = "latency_p50_seconds"
		p99 = "latency_p99_seconds"
	)
	defined := metric.NewSet(measured.Definitions())
	queued := load.Result{Mode: load.Open, Seconds: 2, Intended: 20_000, Sent: 20_000, Done: 20_000, Late: 4000}
	kept, closed, counted := queued, queued, queued
	kept.Late, closed.Mode, counted.Finished = 100, load.Closed, new(int64(16_000))
	unanswered := kept
	unanswered.Done = 19_700
	h := hdrhistogram.New(1, load.Longest, 3)
	for i := range int64(19_700) {
		load.Record(h, 1e6+i*1000)
	}
	if err := unanswered.SetHistogram(load.Latency, h); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		r    load.Result
		want map[string]float64
	}{
		"a queue grew":     {queued, map[string]float64{p50: 1e-3, p99: 2e-3}},
		"none grew":        {kept, map[string]float64{cpu: 8e-5, p50: 1e-3, p99: 2e-3}},
		"a closed loop":    {closed, map[string]float64{cpu: 8e-5, p50: 1e-3, p99: 2e-3}},
		"of today":         {counted, map[string]float64{cpu: 8e-5, p50: 1e-3, p99: 2e-3}},
		"300 had no reply": {unanswered, map[string]float64{cpu: 8e-5, p50: 11e-3, "latency_p90_seconds": 19e-3}},
	} {
		trial := record.Trial{Loads: map[string]load.Result{"client": c.r},
			Metrics: map[string]float64{cpu: 8e-5, p50: 1e-3, p99: 2e-3, bpf: 0}}
		c.want[bpf] = 0 // however many answers there were
		got, err := analysis.Metrics(trial, defined)
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(c.want))) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
		for name, v := range c.want {
			if math.Abs(got[name]-v) > 1e-3*v {
				t.Errorf("%s is %g, want %g", name, got[name], v)
			}
		}
	}

	run, trials := analysistest.Quickstart(plain)
	run.Headline = headlines
	for i := range trials {
		trials[i].Metrics = maps.Clone(trials[i].Metrics)
		trials[i].Metrics[cpu], trials[i].Metrics[bpf] = 8e-5, 0
		if trials[i].Arm == "candidate" {
			trials[i].Components = map[string]map[string]float64{"agent": {cpu: 1e-5}}
			trials[i].Metrics[bpf] = 3e-6
		}
	}
	of := func(arm string) func(record.Trial) bool {
		return func(tr record.Trial) bool { return tr.Arm == arm && tr.Block%3 == 0 }
	}
	inQueue := func(queues func(record.Trial) bool) []record.Trial {
		all := slices.Clone(trials)
		for i := range all {
			if queues(all[i]) {
				all[i].Loads = map[string]load.Result{"client": queued}
			}
		}
		return all
	}
	s := summarize(t, run, inQueue(of("candidate")))
	for _, e := range s.Estimates {
		if e.Metric == cpu && e.Arm == "candidate" && e.Withheld == "" {
			t.Errorf("the value of the trials that kept up: %+v", e)
		}
	}
	if !slices.ContainsFunc(s.Missing, func(m analysis.Missing) bool {
		return m.Metric == cpu && m.Arm == "candidate" && m.Gate == "answers" && m.Lost == 3
	}) {
		t.Errorf("3 lost trials are not in %+v", s.Missing)
	}
	s = summarize(t, run, inQueue(of(record.Direct)))
	if e := s.Find(bpf, "candidate", nil); e == nil || e.Difference == nil || !e.Difference.Resolved {
		t.Errorf("the difference from a baseline that runs no programs: %+v", e)
	}
}
