package analysis

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
)

// stalled returns a run with a baseline, its twin and an arm. The p50 of all requests varies widely by chance; that of
// the undisturbed requests differs by 50 us between the arm and its baseline. disturbed is the number of disturbed
// requests in a trial.
func stalled(blocks int, disturbed int64) (record.Run, []record.Trial) {
	run := record.Run{
		Schema: record.RunSchema, Experiment: "own", Blocks: blocks, Seed: 1, Metrics: measured.Definitions(),
	}
	var trials []record.Trial
	for b := range blocks {
		for i, arm := range []string{record.Direct, record.AA, "proxy"} {
			noise := float64((b*7+i*5)%11) * 1e-3
			quiet := 100e-6 + float64(b%3)*1e-6
			if arm == "proxy" {
				quiet += 50e-6 + float64(b%2)*1e-6
			}
			p := record.PlannedTrial{Index: len(trials), Block: b, Position: i, Arm: arm}
			run.Plan = append(run.Plan, p)
			trials = append(trials, record.Trial{
				Schema: record.TrialSchema, PlannedTrial: p, Validity: record.Validity{Valid: true},
				Metrics: map[string]float64{
					"latency_p50_seconds": 5e-3 + noise, "latency_running_p50_seconds": quiet,
					"latency_p99_seconds": 50e-3 + noise, "own_lag_running_p50_seconds": 1e-6,
				},
				Loads: map[string]load.Result{"client": {Running: &load.Running{Disturbed: disturbed,
					Undisturbed: 100_000 - disturbed}}},
			})
		}
	}
	return run, trials
}

// TestAnswersWhileRunning: if stalls touched more than a thousandth of the requests, answers are about the others, say
// so, and name what is then unknown. Both latencies are estimated in either case.
func TestAnswersWhileRunning(t *testing.T) {
	for _, c := range []struct {
		disturbed int64
		running   bool
	}{{0, false}, {100, false}, {101, true}, {60_000, true}} {
		s, err := Summarize(stalled(12, c.disturbed))
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Disturbed) != 1 || s.Disturbed[0].Running != c.running || s.Disturbed[0].Requests != 36*100_000 ||
			math.Abs(s.Disturbed[0].Share-float64(c.disturbed)/100_000) > 1e-12 {
			t.Fatalf("%d disturbed of 100,000: %+v", c.disturbed, s.Disturbed)
		}
		text := ""
		for _, a := range s.Answers {
			text += a.Answer
		}
		for part, want := range map[string]bool{
			"p50 while the machine was running is 50.5 us":                               c.running,
			"no difference is resolved: p50 (found in 80 %: ":                            !c.running,
			"p99 while the machine was running is unknown: the machine's stalls touched": c.running,
		} {
			if strings.Contains(text, part) != want {
				t.Errorf("%d disturbed: %q contains %q: %t, want %t", c.disturbed, text, part, !want, want)
			}
		}
		for _, metric := range []string{"latency_p50_seconds", "latency_running_p50_seconds"} {
			if e := s.Find(metric, "proxy", factors{}); e == nil || e.Difference == nil {
				t.Errorf("no difference of %s", metric)
			}
		}
	}
}

// TestEnoughWhileRunning: if both latencies are listed, the one that answers use decides. A latency that is listed
// alone always decides.
func TestEnoughWhileRunning(t *testing.T) {
	const all, undisturbed = "latency_p50_seconds", "latency_running_p50_seconds" // with a wide and a narrow interval
	for _, c := range []struct {
		disturbed int64
		metrics   []string
		enough    bool
		why       string
	}{
		{50_000, []string{all, undisturbed}, true, ""},
		{50_000, []string{all}, false, "p50 of direct ("},
		{50_000, []string{undisturbed}, true, ""},
		{0, []string{all, undisturbed}, false, "2 of 2 intervals"}, // the baseline and the arm
		{0, []string{undisturbed}, true, ""},
	} {
		run, trials := stalled(12, c.disturbed)
		run.Precision = &record.Precision{Target: 0.05, Metrics: c.metrics}
		enough, why, err := Enough(run, trials)
		if err != nil || enough != c.enough || !strings.Contains(why, c.why) {
			t.Errorf("%d disturbed, %q: %t, %q, %v", c.disturbed, c.metrics, enough, why, err)
		}
	}
}

// TestLagOfUndisturbedRequests: a difference between undisturbed requests is compared with their lag, and not with the
// lag of all requests.
func TestLagOfUndisturbedRequests(t *testing.T) {
	for apart, want := range map[float64]bool{0: true, 20e-6: false} {
		run, trials := stalled(12, 50_000)
		for i := range trials {
			if trials[i].Arm == "proxy" {
				trials[i].Metrics["own_lag_running_p50_seconds"] += apart
			}
		}
		s, err := Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		d := s.Find("latency_running_p50_seconds", "proxy", factors{}).Difference
		if d.Resolved != want || !want && !strings.HasPrefix(d.Unresolved, LagReason) {
			t.Errorf("lag %s apart: resolved %t, %q", fmt.Sprint(apart), d.Resolved, d.Unresolved)
		}
	}
}

// TestRunningIsWithheld: if the slow requests of a level come in few bursts, a quantile is withheld in all arms,
// because trials without a burst are the fast ones. An arm in whose trials the machine stalls more often is named.
func TestRunningIsWithheld(t *testing.T) {
	for _, c := range []struct {
		bursts   float64
		arms     float64 // fraction of time that the machine stood still in trials of the arm; 0.1 in others
		withheld bool
		warned   bool
	}{{8, 0.1, false, false}, {2, 0.1, true, false}, {8, 0.2, false, true}} {
		run, trials := stalled(12, 5000)
		for i := range trials {
			still := 0.1 + float64(trials[i].Block%5)*1e-3*float64(1-2*(trials[i].Position%2))
			if trials[i].Arm == "proxy" {
				still += c.arms - 0.1
			}
			of := *trials[i].Loads["client"].Running
			of.WatchedSeconds, of.QuietSeconds = 1, 1-still
			of.Beyond = map[string]map[string]float64{load.LatencyRunning: {"p50": 1000}}
			of.Bursts = map[string]map[string]float64{load.LatencyRunning: {"p50": c.bursts}}
			trials[i].Loads = map[string]load.Result{"client": {Running: &of, Histograms: map[string]string{load.Latency: ""}}}
		}
		run.Assert = []string{"latency_running_p50_seconds <= 2ms", "latency_running_p50_seconds <= +1ms",
			"latency_running_p50_seconds >= 0"}
		s, err := Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range s.Verdicts {
			if check := v.Checks[0]; (check.Result == Undecided) != c.withheld || c.withheld && (check.Value != nil ||
				!strings.Contains(check.Why, "come in 2.0 bursts")) {
				t.Errorf("%g bursts: %+v", c.bursts, v)
			}
		}
		for _, e := range s.Estimates {
			if e.Metric == "latency_running_p50_seconds" &&
				((e.Withheld != "") != c.withheld || c.withheld && !strings.Contains(e.Withheld, "come in 2.0 bursts")) {
				t.Errorf("%g bursts: %s is withheld: %q", c.bursts, e.Arm, e.Withheld)
			}
		}
		const warning = "stood still for 20 % of the time in trials of proxy and for 10 % in those of its baseline"
		if warned := strings.Contains(strings.Join(s.Warnings, " "), warning); warned != c.warned {
			t.Errorf("%g of the time: %q", c.arms, s.Warnings)
		}
	}
}
