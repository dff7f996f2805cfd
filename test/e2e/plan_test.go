package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/results/plan"
	"tare/test/long"
)

// swept is an experiment over levels of one factor, in the form that a user would run to plan from it.
type swept struct {
	name, factor string
	levels       []int
	arm          string
	component    string // of the cost that counts among the twenty cases
	unit         string
	spec         string
}

// heldOutBlocks is one block more than a line needs: the last one is not in the fit.
const heldOutBlocks = 7

var sweeps = []swept{
	{
		"mesh-rate", "client.rate", []int{100, 200, 300, 400, 500, 600, 700}, "haproxy", "proxy.client", quantity.CPUs, `
repeat: 100%
warmup: 100ms
duration: 1s
sampling: 97
applications: {server: {kind: http, body: 1024}}
loads: {client: {kind: http, to: server, rate: 1000, connections: 16}}
arms: {haproxy: {subject: haproxy, hops: 2, mtls: true}}
gates: {drift: 2}`,
	},
	{
		"ebpf-memory", "*.services", []int{1, 500, 1000, 2000, 4000, 7000, 10000}, "fixed", "", quantity.Bytes, `
repeat: 100%
warmup: 50ms
duration: 150ms
sampling: 97
applications: {server: {kind: http, body: 128}}
loads: {client: {kind: http, to: server, mode: open, rate: 500, connections: 64, keepalive: false}}
arms:
  fixed: {subject: kernelmesh, store: sized, services: 1, then-services: 1, max-services: 16384, max-endpoints: 16384}
gates: {rate: 0, errors: 1, lag: 60s, drift: 1000, generator_cpu: 1}`,
	},
	{
		"controlplane-scale", "fleet.proxies", []int{50, 100, 150, 200, 250, 300, 350}, "mtls", "", quantity.Bytes, `
repeat: 100%
warmup: 100ms
duration: 500ms
applications: {one: {kind: http, body: 1}, two: {kind: http, body: 2}}
loads: {fleet: {kind: fleet, work: change}}
baseline: {subject: controlplane, services: 100, calls: 10}
arms: {mtls: {subject: controlplane, services: 100, calls: 10, mtls: true}}
gates: {drift: 1000}`,
	},
	{
		"sandbox-idle", "idle.count", []int{1, 2, 4, 6, 8, 10, 12}, "runc", "", quantity.Bytes, `
repeat: 100%
warmup: 50ms
duration: 200ms
statistics: false
baseline: {subject: sandbox, runtime: none}
applications: {idle: {kind: burn, share: 0, count: 1}}
loads: {probe: {kind: probe}}
arms: {runc: {subject: sandbox, runtime: runc}}`,
	},
}

// TestPlanHeldOut: a plan for a level that its run did not have says what the next trial at that level costs. Each
// inner level of four experiments is left out in turn, with the last block, and the trial of that block at that level
// is what was planned for.
func TestPlanHeldOut(t *testing.T) {
	long.Test(t, "12 min: four sweeps of 147 trials")
	needsRoot(t)
	leavesNothing(t)
	inside, cases := 0, 0
	for _, s := range sweeps {
		t.Run(s.name, func(t *testing.T) {
			in, of := s.run(t)
			inside, cases = inside+in, cases+of
		})
	}
	t.Logf("%d of %d held-out trials are inside of their 95 %% prediction interval", inside, cases)
	// With 95 % each, fewer than 16 of 20 are inside once in 400 runs.
	if part := 4 * cases / 5; inside < part {
		t.Errorf("%d of %d", inside, cases)
	}
}

// run runs a sweep and leaves out each of its inner levels in turn.
func (s swept) run(t *testing.T) (inside, cases int) {
	spec := fmt.Sprintf("name: %s\nquestion: What does another level cost?\nblocks: %d%s\nfactors: {%q: [%s]}\n", s.name,
		heldOutBlocks, s.spec, s.factor, strings.Trim(strings.ReplaceAll(fmt.Sprint(s.levels), " ", ", "), "[]"))
	dir := filepath.Join(t.TempDir(), "run")
	o := command{args: []string{"run", specFile(t, spec), "--out", dir}, timeout: 30 * time.Minute}.start(t).wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, level := range s.levels[1 : len(s.levels)-1] {
		in, of := s.heldOut(t, c, level)
		inside, cases = inside+in, cases+of
	}
	if cases != 5 {
		t.Errorf("%d of 5 levels could be compared", cases)
	}
	return inside, cases
}

// heldOut plans a level from the trials at other levels in other blocks, and compares each cost with the trial that was
// left out. It returns 1 of 1 if the sweep's cost is inside its interval, 0 of 1 if it is outside, and 0 of 0 if that
// trial or a figure is missing.
func (s swept) heldOut(t *testing.T, c *record.Contents, level int) (in, of int) {
	t.Helper()
	at, run := fmt.Sprint(level), c.Run
	last := run.Blocks - 1
	out := func(p record.PlannedTrial) bool { return p.Block == last || p.Factors[s.factor] == at }
	run.Blocks, run.Plan = last, slices.DeleteFunc(slices.Clone(run.Plan), out)
	var trials []record.Trial
	var next *record.Trial
	for i, trial := range c.Trials {
		switch {
		case !out(trial.PlannedTrial):
			trials = append(trials, trial)
		case trial.Block == last && trial.Factors[s.factor] == at && trial.Arm == s.arm && trial.Validity.Failed == "":
			next = &c.Trials[i]
		}
	}
	summary, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Make([]comparison.Source{{Dir: c.Dir, Run: run, Summary: summary}},
		plan.Ask{For: map[string]float64{s.factor: float64(level)}, Arm: s.arm})
	if err != nil || next == nil {
		t.Errorf("%s at %d: %v, trial %v", s.name, level, err, next)
		return 0, 0
	}
	for _, part := range p.Arms[0].Parts {
		for unit, f := range map[string]*plan.Forecast{quantity.CPUs: part.CPUs, quantity.Bytes: part.Memory} {
			if f == nil {
				continue
			}
			value, has := next.Metrics[f.Metric]
			if v, is := next.Components[part.Component][f.Metric]; is {
				value, has = v, true
			}
			if !has || !next.Validity.Stands(f.Metric) {
				t.Logf("%s at %d: the trial has no %s of %s", s.name, level, f.Metric, part.Component)
				continue
			}
			rounding := 1e-9 * math.Abs(value)
			is := f.Lo-rounding <= value && value <= f.Hi+rounding
			t.Logf("%s at %d: %s %s %s [%s, %s], was %s: %v", s.name, level, part.Component, f.Metric,
				quantity.Value(f.Value, unit), quantity.Value(f.Lo, unit), quantity.Value(f.Hi, unit),
				quantity.Value(value, unit), is)
			if unit == s.unit && (s.component == "" || part.Component == s.component) && of == 0 {
				if of = 1; is {
					in = 1
				}
			}
		}
	}
	if len(p.Arms[0].Unplanned) > 0 {
		t.Logf("%s at %d: no figure for %+v", s.name, level, p.Arms[0].Unplanned)
	}
	return in, of
}
