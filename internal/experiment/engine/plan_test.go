package engine

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"tare/experiments"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
)

func mustParse(t testing.TB, text string) *spec.Spec {
	t.Helper()
	s, err := spec.Parse("test.yaml", []byte(text), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plannedSpec has four arms at twelve levels.
const plannedSpec = `name: planned
question: In which order?
blocks: 7
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 500}}
arms:
  light: {subject: kernelmesh}
  heavy: {subject: kernelmesh, steps: 1000}
factors:
  rate: [500, 1000]
  "arms.*.steps": [0, 10, 100]
  way: {fresh: {client.keepalive: false}, kept: {client.keepalive: true}}
`

// TestPlan: every arm runs once in each block at each level, levels are not mixed, and the seed determines the order.
func TestPlan(t *testing.T) {
	s := mustParse(t, plannedSpec)
	arms, levels := len(s.AllArms()), len(s.Levels())
	plan := Plan(s, 42)
	if want := s.Blocks * arms * levels; len(plan) != want {
		t.Fatalf("%d trials, want %d", len(plan), want)
	}
	seen := map[string]int{}
	for i, p := range plan {
		if p.Index != i || p.Position != i%(arms*levels) || p.Block != i/(arms*levels) {
			t.Fatalf("trial %d says %+v", i, p)
		}
		if first := plan[i-i%arms]; !reflect.DeepEqual(p.Factors, first.Factors) {
			t.Fatalf("trial %d is at %v, in the midst of %v", i, p.Factors, first.Factors)
		}
		seen[fmt.Sprint(p.Block, p.Arm, p.Factors)]++
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("%s runs %d times", k, n)
		}
	}
	if !reflect.DeepEqual(plan, Plan(s, 42)) {
		t.Error("the same seed gave another plan")
	}
	if reflect.DeepEqual(plan, Plan(s, 43)) {
		t.Error("another seed gave the same plan")
	}
}

// TestPlanIsFair: over many blocks, each arm is at each position equally often, to within five standard deviations.
func TestPlanIsFair(t *testing.T) {
	s := mustParse(t, plannedSpec)
	s.Factors, s.Blocks = nil, 4000
	count := map[string]int{}
	for _, p := range Plan(s, 7) {
		count[fmt.Sprint(p.Arm, p.Position)]++
	}
	n := len(s.AllArms())
	for _, arm := range append(s.AllArms(), record.Direct) {
		for pos := range n {
			if got := count[fmt.Sprint(arm, pos)]; got < 1000-140 || got > 1000+140 {
				t.Errorf("%s stands %d times at position %d of 4000", arm, got, pos)
			}
		}
	}
}

// TestPlanOfResolved: the spec in a record gives the same plan as the spec that was run.
func TestPlanOfResolved(t *testing.T) {
	s := mustParse(t, plannedSpec)
	resolved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := Plan(s, 1), Plan(mustParse(t, string(resolved)), 1); !reflect.DeepEqual(a, b) {
		t.Error("the resolved spec has another plan")
	}
}

// TestQuickstartIsQuick: the first experiment that a newcomer runs takes at most 90 seconds.
func TestQuickstartIsQuick(t *testing.T) {
	_, text, ok := experiments.File("quickstart")
	if !ok {
		t.Fatal("quickstart is not there")
	}
	if d := Estimate(mustParse(t, string(text))); d > 90*time.Second {
		t.Errorf("quickstart takes %v", d)
	}
}

var testFeatures = []string{"bpf-syscall", "bpf-stats", "sampling", "cgroup-create"}
