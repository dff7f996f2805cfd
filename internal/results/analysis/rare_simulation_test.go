package analysis_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

var simulated = flag.Int("simulated", 0, "simulated runs for each row of a table; 0: few enough for every day")

// costs is the metric of simulated runs.
const costs = "cpu_seconds_per_request"

// simulatedRun returns a run of the arms direct, aa and candidate. The value of a trial is draw(arm, block).
func simulatedRun(blocks int, draw func(arm string, block int) float64) (record.Run, []record.Trial) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := record.Run{
		Schema: record.RunSchema, ID: "simulated-20260102-030405", Experiment: "simulated", Question: "What does it cost?",
		Spec: json.RawMessage(`{"name":"simulated"}`), Seed: 42, Blocks: blocks, Started: started, Version: "0.1.0",
		Command: []string{"tare", "run", "simulated"},
		Metrics: []metric.Definition{{Name: costs, Unit: quantity.Seconds, Better: metric.Lower, How: "simulated",
			Rank: metric.RankCPU, Pool: metric.PerRequest, Cost: true, Needs: []metric.Need{}}},
	}
	var trials []record.Trial
	for block := range blocks {
		for position, arm := range []string{record.Direct, record.AA, "candidate"} {
			p := record.PlannedTrial{Index: len(run.Plan), Block: block, Position: position, Arm: arm}
			begin := started.Add(time.Duration(p.Index) * time.Second)
			run.Plan = append(run.Plan, p)
			trials = append(trials, record.Trial{
				Schema: record.TrialSchema, PlannedTrial: p, Started: begin, Ended: begin.Add(time.Second),
				Ledger:  &ledger.Ledger{Schema: ledger.Schema},
				Metrics: map[string]float64{costs: draw(arm, block)}, Validity: record.Validity{Valid: true},
			})
		}
	}
	return run, trials
}

// TestRareCosts: if one trial in twenty costs three times as much, a budget of 10 % does not hold, although the median
// keeps it. If no such trial occurred, the check says how frequent such trials could be.
func TestRareCosts(t *testing.T) {
	for rare, want := range map[int]struct {
		result analysis.Result
		why    string
	}{3: {analysis.Undecided, "the mean does not agree with the median"},
		-1: {analysis.Holds, "trials that cost much more could be up to"}} {
		v := simulatedVerdict(t, 20, func(arm string, block int) float64 {
			if arm == "candidate" && block == rare {
				return 3e-3
			}
			return 1e-3 * (1 + 0.001*float64((block*7+len(arm))%5))
		})
		if v.Result != want.result || !strings.Contains(v.Checks[0].Why, want.why) {
			t.Errorf("the rare trial is in block %d: %s, %+v; want %s, %q", rare, v.Result, v.Checks, want.result, want.why)
		}
	}
}

// TestRareCostsBySimulation: if one trial in ten of an arm costs three times as much, which is 20 % more on average, a
// budget of 10 % does not hold in a run that has such a trial.
func TestRareCostsBySimulation(t *testing.T) {
	long.Test(t, "4 min: many runs; TestRareCosts has one of each kind")
	runs := 1000
	if *simulated > 0 {
		runs = *simulated
	}
	t.Log("| blocks | such a trial occurred | holds | holds where it occurred | fails |")
	for _, blocks := range []int{6, 10, 20, 30, 40, 0} {
		r := rand.New(rand.NewPCG(31, uint64(blocks)))
		var occurred, holds, both, fails float64
		for range runs {
			first := math.MaxInt // the first block with such a trial
			draw := func(arm string, block int) float64 {
				value := 1e-3 * (1 + 0.02*r.NormFloat64())
				if arm == "candidate" && r.Float64() < 0.1 {
					first = min(first, block)
					return 3 * value
				}
				return value
			}
			v := simulatedVerdict(t, blocks, draw)
			seen := first < v.Checks[0].N
			each := 100 / float64(runs)
			if seen {
				occurred += each
			}
			switch v.Result {
			case analysis.Holds:
				holds += each
				if seen {
					both += each
				}
				if c := v.Checks[0]; c.N < 30 && c.Why == "" {
					t.Fatalf("it holds after %d blocks, and is not said what was not seen", c.N)
				}
			case analysis.Fails:
				fails += each
			}
		}
		name := fmt.Sprint(blocks)
		if blocks == 0 {
			name = "until decided, 60"
		}
		t.Logf("| %s | %.0f | %.1f | %.1f | %.1f |", name, occurred, holds, both/occurred*100, fails)
		const most = 5
		slack := 3 * math.Sqrt(most*(100-most)/float64(runs))
		if both/occurred*100 > most+slack || blocks >= 30 && holds > most+slack {
			t.Errorf("%s blocks: it holds in %.1f %%, and in %.1f %% of those in which such a trial occurred", name, holds,
				both/occurred*100)
		}
	}
}

// simulatedVerdict returns the verdict on a budget of 10 % after the given number of blocks; 0: as soon as it is
// decided, or after 60 blocks.
func simulatedVerdict(t *testing.T, blocks int, draw func(string, int) float64) analysis.Verdict {
	t.Helper()
	if blocks > 0 {
		run, trials := simulatedRun(blocks, draw)
		run.Assert = []string{costs + " <= +10%"}
		return summarize(t, run, trials).Verdicts[0]
	}
	const most = 60
	run, trials := simulatedRun(most, draw)
	plan := run.Plan
	run.Assert, run.Spec = []string{costs + " <= +10%"}, json.RawMessage(`{"name":"simulated"}`)
	run.Until = 3600
	for n := 1; ; n++ {
		run.Blocks, run.Plan = n, plan[:3*n]
		decided, _, err := analysis.Decided(run, trials[:3*n])
		if err != nil {
			t.Fatal(err)
		}
		if decided || n == most {
			return summarize(t, run, trials[:3*n]).Verdicts[0]
		}
	}
}
