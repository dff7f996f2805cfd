package analysis_test

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
)

// asserted returns the summary of a generated run with the given assertions.
func asserted(t *testing.T, truth analysistest.Truth, change func(*record.Run, []record.Trial),
	texts ...string) *analysis.Summary {
	t.Helper()
	run, trials := analysistest.Quickstart(truth)
	run.Assert = texts
	if change != nil {
		change(&run, trials)
	}
	return summarize(t, run, trials)
}

func TestVerdicts(t *testing.T) {
	wants := map[string]analysis.Result{
		"map_bytes <= 2MB":                                  analysis.Holds,
		"map_bytes < 1.2MB":                                 analysis.Fails,
		"map_bytes <= 1.2MB":                                analysis.Holds,
		"map_bytes == 1.2MB":                                analysis.Holds,
		"map_bytes == 0":                                    analysis.Fails,
		"map_bytes >= 1MB":                                  analysis.Holds,
		"bpf_seconds_per_connection <= 10us":                analysis.Holds,
		"bpf_seconds_per_connection <= 1us":                 analysis.Fails,
		"bpf_seconds_per_connection <= +1us":                analysis.Fails,
		"bpf_seconds_per_connection <= 3.1us":               analysis.Undecided, // exactly the true value
		"bpf_seconds_per_connection{arm=direct} <= 0":       analysis.Holds,
		"bpf_seconds_per_connection <= +10%":                analysis.Undecided, // a change from 0 is undefined
		"latency_p50_seconds <= +30%":                       analysis.Holds,
		"latency_p50_seconds <= +2%":                        analysis.Fails,
		"latency_p50_seconds <= +5us":                       analysis.Fails,
		"latency_p50_seconds <= +50us":                      analysis.Holds,
		"latency_p50_seconds >= -10%":                       analysis.Holds,
		"latency_p50_seconds >= +50us":                      analysis.Fails,
		"latency_p50_seconds{arm=aa} <= +30%":               analysis.Holds,
		"cpu_seconds_per_connection <= +0%":                 analysis.Undecided,
		"latency_p50_seconds{arm=nobody} <= 1s":             analysis.Undecided, // no trial belongs to this arm
		"latency_p50_seconds{component=proxy.client} <= 1s": analysis.Undecided,
		"memory_hard_bytes <= 1GB":                          analysis.Undecided, // was not measured
		"bpf_client_share <= 90%":                           analysis.Holds,
		"bpf_client_share <= 50%":                           analysis.Fails,
		"bpf_client_share <= 71%":                           analysis.Undecided,
		"throughput_per_second{rate=2000} >= 1":             analysis.Undecided, // no such factor
	}
	texts := slices.Sorted(maps.Keys(wants))
	for _, v := range asserted(t, plain, nil, texts...).Verdicts {
		if v.Result != wants[v.Assertion] {
			t.Errorf("%s: %s, want %s: %+v", v.Assertion, v.Result, wants[v.Assertion], v.Checks)
		}
		delete(wants, v.Assertion)
		for _, c := range v.Checks {
			if c.Result == analysis.Undecided && c.Why == "" {
				t.Errorf("%s: undecided, and not said why: %+v", v.Assertion, c)
			}
			if c.Result != analysis.Undecided && c.Seen() == "-" {
				t.Errorf("%s: %s, and nothing was seen: %+v", v.Assertion, c.Result, c)
			}
		}
	}
	if len(wants) > 0 {
		t.Errorf("no verdicts of %v", wants)
	}
	for text, want := range map[string]analysis.Result{"map_bytes <= 2MB": analysis.Holds,
		"map_bytes == 0": analysis.Fails, "memory_hard_bytes <= 1GB": analysis.Undecided} {
		if s := asserted(t, plain, nil, text); s.Result() != want || s.Verdicts[0].Result != want {
			t.Errorf("%s alone: %s, and the run %s, want %s", text, s.Verdicts[0].Result, s.Result(), want)
		}
	}
}

// TestVerdictIsTheWorst: the result of an assertion is the worst of its checks, and that of a run the worst of its
// assertions.
func TestVerdictIsTheWorst(t *testing.T) {
	truth := plain
	truth.Rates = []string{"1000", "2000"}
	s := asserted(t, truth, nil, "cpu_seconds <= 0.13s", "cpu_seconds{rate=1000} <= 0.13s",
		"cpu_seconds{rate=2e3} <= 0.13s")
	var got []string
	for _, v := range s.Verdicts {
		text := string(v.Result)
		for _, c := range v.Checks {
			text += " " + c.Factors["rate"] + ":" + string(c.Result)
		}
		got = append(got, text)
	}
	want := "fails 1000:holds 2000:fails; holds 1000:holds; fails 2000:fails"
	if strings.Join(got, "; ") != want || s.Result() != analysis.Fails {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestVerdictsOfFewBlocks: with too few blocks, only an assertion that a trial broke is decided. The others say how
// many blocks they need.
func TestVerdictsOfFewBlocks(t *testing.T) {
	truth := plain
	truth.Blocks = 4
	s := asserted(t, truth, nil, "map_bytes <= 2MB", "map_bytes == 1.2MB", "map_bytes == 0")
	for i, want := range []analysis.Result{analysis.Undecided, analysis.Undecided, analysis.Fails} {
		v := s.Verdicts[i]
		if v.Result != want || want == analysis.Undecided && v.Checks[0].Blocks != 6 {
			t.Errorf("%s: %+v", v.Assertion, v)
		}
	}
}

// TestBlocksThatDecide: an undecided assertion says how many blocks would decide it, and that many blocks do decide it.
func TestBlocksThatDecide(t *testing.T) {
	truth := plain
	truth.Noise = 20e-6
	const text = "latency_p50_seconds <= +50us" // the difference is 12.1 us
	c := asserted(t, truth, nil, text).Verdicts[0].Checks[0]
	if c.Result == analysis.Undecided && (c.Blocks <= truth.Blocks || c.Seconds <= 0 || c.Advice() == "") {
		t.Errorf("%+v", c)
	}
	truth.Blocks = max(c.Blocks, 40)
	if again := asserted(t, truth, nil, text).Verdicts[0]; again.Result != analysis.Holds {
		t.Errorf("after %d blocks: %+v", truth.Blocks, again)
	}
}

// TestVerdictsOfLostTrials: blocks that were lost are taken at their worst, and too many of them leave an assertion
// undecided.
func TestVerdictsOfLostTrials(t *testing.T) {
	lose := func(n int, arm string) func(*record.Run, []record.Trial) {
		return func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				if trials[i].Arm == arm && trials[i].Block < n {
					trials[i].Validity = record.Validity{Reasons: []record.Reason{{
						Gate: "lag", Message: "late", Voids: []string{"latency_p50_seconds"}, Cause: ledger.Generator,
					}}}
				}
			}
		}
	}
	truth := plain
	truth.Blocks = 20
	const text = "latency_p50_seconds <= +50us"
	if v := asserted(t, truth, lose(1, "candidate"), text).Verdicts[0]; v.Result != analysis.Holds ||
		v.Checks[0].Lost != 1 {
		t.Errorf("one lost: %+v", v)
	}
	if v := asserted(t, truth, lose(9, "candidate"), text).Verdicts[0]; v.Result != analysis.Undecided ||
		!strings.Contains(v.Checks[0].Why, "9 of 20 trials were lost") {
		t.Errorf("nine lost: %+v", v)
	}
	truth.Blocks = 8
	if v := asserted(t, truth, lose(2, "candidate"), text).Verdicts[0]; v.Result != analysis.Undecided ||
		!strings.Contains(v.Checks[0].Why, "without a value") {
		t.Errorf("two of eight lost: %+v", v)
	}
}

// TestTwinThatBreaksIt: an assertion does not fail for an arm if it fails for the A/A twin as well.
func TestTwinThatBreaksIt(t *testing.T) {
	shift := func(arms ...string) func(*record.Run, []record.Trial) {
		return func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				for _, arm := range arms {
					if trials[i].Arm == arm {
						trials[i].Metrics["cpu_seconds_per_connection"] *= 1.5
					}
				}
			}
		}
	}
	const text = "cpu_seconds_per_connection <= +20%"
	if v := asserted(t, plain, shift("candidate"), text).Verdicts[0]; v.Result != analysis.Fails {
		t.Errorf("the arm alone: %+v", v)
	}
	v := asserted(t, plain, shift("candidate", record.AA), text).Verdicts[0]
	if v.Result != analysis.Undecided || !strings.Contains(v.Checks[0].Why, "twin") {
		t.Errorf("the twin too: %+v", v)
	}
}

// TestTwinThatImproves: an assertion that an arm equal to the baseline would break does not hold for an arm if it holds
// for the A/A twin as well.
func TestTwinThatImproves(t *testing.T) {
	improve := func(arms ...string) func(*record.Run, []record.Trial) {
		return func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				if slices.Contains(arms, trials[i].Arm) {
					trials[i].Metrics["cpu_seconds_per_connection"] *= 0.5
				}
			}
		}
	}
	const text = "cpu_seconds_per_connection <= -20%"
	if v := asserted(t, plain, improve("candidate"), text).Verdicts[0]; v.Result != analysis.Holds {
		t.Errorf("the arm alone: %+v", v)
	}
	if v := asserted(t, plain, improve("candidate", record.AA), text).Verdicts[0]; v.Result != analysis.Undecided {
		t.Errorf("the twin too: %+v", v)
	}
}

// TestCountsOfLostTrials: if trials were lost, an assertion on a count or on a pooled share does not hold.
func TestCountsOfLostTrials(t *testing.T) {
	count := func(lost int, in int) func(*record.Run, []record.Trial) {
		return func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				tr := &trials[i]
				if tr.Arm != "candidate" {
					continue
				}
				tr.Metrics["events_lost"] = 0
				tr.Counts["events_lost_share"] = record.Count{In: in, Of: 10_000}
				if tr.Block < lost {
					tr.Validity = record.Validity{Reasons: []record.Reason{{
						Gate: "counts", Message: "odd", Voids: []string{"events_lost", "events_lost_share"}, Cause: ledger.Generator,
					}}}
				}
			}
		}
	}
	for text, want := range map[string][2]analysis.Result{ // with all trials, and with two of eight lost
		"events_lost == 0":          {analysis.Holds, analysis.Undecided},
		"events_lost_share <= 60%":  {analysis.Holds, analysis.Undecided}, // the two may have lost all
		"events_lost_share <= 40%":  {analysis.Holds, analysis.Undecided},
		"events_lost_share <= +40%": {analysis.Undecided, analysis.Undecided},
		"events_lost_share >= 50%":  {analysis.Fails, analysis.Undecided},
		"events_lost_share == 0":    {analysis.Undecided, analysis.Undecided},
	} {
		for i, lost := range []int{0, 2} {
			v := asserted(t, plain, count(lost, 0), text).Verdicts[0]
			if v.Result != want[i] {
				t.Errorf("%s, %d lost: %s, want %s: %+v", text, lost, v.Result, want[i], v.Checks)
			}
		}
	}
	if v := asserted(t, plain, count(2, 100), "events_lost_share <= 0.1%").Verdicts[0]; v.Result != analysis.Fails {
		t.Errorf("1 %% lost of what is known: %+v", v)
	}
}

// TestWhatWasNotMeasuredDoesNotHold: an assertion does not hold for an arm that did not run, or at a level that had too
// few samples.
func TestWhatWasNotMeasuredDoesNotHold(t *testing.T) {
	s := asserted(t, plain, func(run *record.Run, _ []record.Trial) {
		run.Absent = map[string]string{"other": "it is not installed"}
	}, "map_bytes <= 2MB", "map_bytes{arm=candidate} <= 2MB")
	if s.Verdicts[0].Result != analysis.Undecided || s.Verdicts[1].Result != analysis.Holds {
		t.Errorf("an absent arm: %+v", s.Verdicts)
	}
	s = asserted(t, plain, func(run *record.Run, trials []record.Trial) {
		run.Absent = map[string]string{"candidate": "it is not installed"}
		run.Plan = slices.DeleteFunc(run.Plan, func(p record.PlannedTrial) bool { return p.Arm == "candidate" })
		for i := range trials {
			if trials[i].Arm == "candidate" {
				trials[i].Arm = record.AA
			}
		}
	}, "latency_p50_seconds <= +50%")
	if s.Result() != analysis.Undecided {
		t.Errorf("no arm ran: %+v", s.Verdicts)
	}
	few := plain
	few.Rates = []string{"20", "2000"}
	s = asserted(t, few, nil, "latency_p99_seconds <= 1s", "latency_p50_seconds <= 1s")
	if s.Verdicts[0].Result != analysis.Undecided || len(s.Verdicts[0].Checks) != 2 ||
		s.Verdicts[1].Result != analysis.Holds {
		t.Errorf("a level with too few requests: %+v", s.Verdicts)
	}
}

// TestLagDecidesNothing: an assertion is undecided if the lag of the generator may differ between the arms.
func TestLagDecidesNothing(t *testing.T) {
	late := plain
	late.ExtraLag = 50e-6
	v := asserted(t, late, nil, "latency_p50_seconds <= +20us").Verdicts[0]
	if v.Result != analysis.Undecided || !strings.Contains(v.Checks[0].Why, analysis.LagReason) {
		t.Errorf("%+v", v)
	}
}

// TestDecided: a run that continues until its assertions are decided has wider intervals, because it is looked at
// several times. It may end only at certain numbers of blocks.
func TestDecided(t *testing.T) {
	truth := plain
	truth.Blocks = 12
	run, trials := analysistest.Quickstart(truth)
	run.Until, run.Assert = 600, []string{"latency_p50_seconds <= +50us", "map_bytes <= 2MB"}
	if ok, why, err := analysis.Decided(run, trials); !ok || err != nil {
		t.Errorf("%v, %q, %v", ok, why, err)
	}
	run.Assert = append(run.Assert, "cpu_seconds_per_connection <= +0%")
	if ok, why, err := analysis.Decided(run, trials); ok || err != nil ||
		!strings.Contains(why, "cpu_seconds_per_connection") {
		t.Errorf("%v, %q, %v", ok, why, err)
	}
	open := summarize(t, run, trials)
	run.Until = 0
	fixed := summarize(t, run, trials)
	a, b := open.Verdicts[0].Checks[0], fixed.Verdicts[0].Checks[0]
	if a.Confidence <= b.Confidence || *a.Hi-*a.Lo <= *b.Hi-*b.Lo || len(open.Warnings) <= len(fixed.Warnings) {
		t.Errorf("open %+v, fixed %+v", a, b)
	}
	run.Until, run.Blocks = 600, 13
	if ok, _, _ := analysis.Decided(run, trials); ok {
		t.Error("it was looked at after 13 blocks")
	}
}

// TestLevelsWithoutTheMetric: if levels stand for different loads, a metric that does not exist at one of them does not
// count as missing there.
func TestLevelsWithoutTheMetric(t *testing.T) {
	truth := plain
	truth.Rates = []string{"1000", "2000"}
	s := asserted(t, truth, func(_ *record.Run, trials []record.Trial) {
		for i := range trials {
			if trials[i].Factors["rate"] == "1000" {
				delete(trials[i].Metrics, "cpu_seconds")
			}
		}
	}, "cpu_seconds <= 1s")
	if v := s.Verdicts[0]; v.Result != analysis.Holds || len(v.Checks) != 1 {
		t.Errorf("%+v", v)
	}
}

// TestLevelsThatAllFailed: an assertion does not hold at a level where every trial of an arm failed, even if other arms
// have other metrics there.
func TestLevelsThatAllFailed(t *testing.T) {
	truth := plain
	truth.Rates = []string{"1000", "2000"}
	for text, value := range map[string]float64{"events_lost == 0": 0, "events_lost <= 5": 1} {
		s := asserted(t, truth, func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				switch tr := &trials[i]; {
				case tr.Arm != "candidate":
				case tr.Factors["rate"] == "2000":
					tr.Validity, tr.Metrics, tr.Counts, tr.Loads = record.Validity{Failed: "exit 1"}, nil, nil, nil
				default:
					tr.Metrics["events_lost"] = value
				}
			}
		}, text)
		v := s.Verdicts[0]
		if v.Result != analysis.Undecided || len(v.Checks) != 2 || v.Checks[0].Result != analysis.Holds ||
			v.Checks[1].Why != "8 of 8 trials were lost: it failed: exit 1" {
			t.Errorf("%s: %+v", text, v)
		}
	}
}

// TestOddAssertions: an assertion that cannot be parsed is an error. A run with impossible values, or without trials,
// is not.
func TestOddAssertions(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Assert = []string{"nonsense"}
	if _, err := analysis.Summarize(run, trials); err == nil {
		t.Error("nonsense was taken")
	}
	run.Assert = []string{"map_bytes <= 2MB"}
	for i := range trials {
		trials[i].Metrics["map_bytes"] = math.Inf(1)
		trials[i].Ended = trials[i].Started.Add(-time.Hour)
	}
	if s := summarize(t, run, trials); s.Result() == analysis.Holds {
		t.Errorf("%+v", s.Verdicts)
	}
	if s := summarize(t, run, nil); s.Result() != analysis.Undecided {
		t.Errorf("without trials: %+v", s.Verdicts)
	}
}
