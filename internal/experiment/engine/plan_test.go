package engine

import (
	"fmt"
	"reflect"
	"testing"

	"tare/internal/experiment/record"
)

func mustParse(t testing.TB, text string) *Spec {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPlan: every arm runs once in each block at each level, levels are not mixed, and the seed decides the order.
func TestPlan(t *testing.T) {
	s := mustParse(t, goodSpec)
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

// TestPlanIsFair: over many seeds each arm stands at each position equally often, within five standard deviations.
func TestPlanIsFair(t *testing.T) {
	s := mustParse(t, goodSpec)
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
