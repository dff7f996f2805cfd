package kernelmesh

import (
	"strings"
	"testing"

	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

func TestMemoryAnswers(t *testing.T) {
	var levels []map[string]string
	for _, n := range []string{"1", "100", "1000"} {
		levels = append(levels, map[string]string{"*.services": n})
	}
	sweep := analysistest.Sweep{Levels: levels, Arms: []string{"fixed"}}
	s := sweep.Answered(t, func(arm string, level map[string]string) map[string]float64 {
		n, _ := analysis.LevelNumber(level["*.services"])
		if arm != "fixed" {
			return map[string]float64{"map_bytes": 0, "memory_hard_bytes": 0}
		}
		used := 2e6 + 90*n
		return map[string]float64{
			"map_bytes": used, "map_before_bytes": used, "map_after_bytes": 2e6 + 90, "map_declared_bytes": 3e6,
			"map_by_program_bytes": 9e6, "map_charged_share": 1,
			"memory_kernel_bytes": used + 200e3, "memory_kernel_before_bytes": used + 200e3,
			"memory_kernel_after_bytes": used + 201e3, "memory_hard_bytes": 8e6,
		}
	})
	analysistest.Holds(t, s, []string{
		"fixed: the maps take 2.00 MB plus 90 B per service: 2.09 MB at services 1000, each counted once (a line from 1 to " +
			"1,000 services).",
		"3.00 MB at every level", "9.00 MB at every level: 4.3 times what they take",
		"100 % of the bytes are charged", "At services 1000 that group holds 2.29 MB",
		"Load does not change the maps' size", "the maps keep 2.00 MB; a fresh start at services 1 needs 2.00 MB.",
	})
}

// TestMapsByAnotherFactor: where another setting than the number of services is swept, the answer does not state a size
// per service.
func TestMapsByAnotherFactor(t *testing.T) {
	var levels []map[string]string
	for _, n := range []string{"1", "10", "100"} {
		levels = append(levels, map[string]string{"*.endpoints": n})
	}
	sweep := analysistest.Sweep{Levels: levels, Arms: []string{"fixed"}}
	s := sweep.Answered(t, func(arm string, level map[string]string) map[string]float64 {
		n, _ := analysis.LevelNumber(level["*.endpoints"])
		if arm != "fixed" {
			return map[string]float64{"map_bytes": 0}
		}
		return map[string]float64{"map_bytes": 2e6 + 90*n, "map_after_bytes": 2e6, "map_by_program_bytes": 9e6}
	})
	for _, a := range s.Answers {
		if strings.Contains(a.Answer, "per service") || !strings.Contains(a.Answer, "fixed: the maps take 2.01 MB") {
			t.Errorf("%q", a.Answer)
		}
	}
	if len(s.Answers) == 0 {
		t.Error("no answer")
	}
}
