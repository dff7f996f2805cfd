package analysis_test

import (
	"slices"
	"strings"
	"testing"

	"tare/test/analysistest"
)

// TestSeveralFamilies: a run with metrics of two families has the answers of both.
func TestSeveralFamilies(t *testing.T) {
	s := analysistest.Sweep{Levels: []map[string]string{nil}, Arms: []string{"tracer"}}.Answered(t,
		func(arm string, _ map[string]string) map[string]float64 {
			m := map[string]float64{
				"events_generated": 1000, "bpf_cpu_share": 0, "sched_delay_p50_seconds": 1e-5, "sched_delay_max_seconds": 0.1,
				"cpu_busy_share": 1,
			}
			if arm == "tracer" {
				m["events_lost"], m["bpf_cpu_share"] = 10, 0.5
			}
			return m
		})
	var begins []string
	for _, a := range s.Answers {
		first, _, _ := strings.Cut(a.Answer, " ")
		begins = append(begins, first)
	}
	if want := []string{"tracer", "tracer:", "The", "A"}; !slices.Equal(begins, want) {
		t.Errorf("answers begin with %q, want %q: %+v", begins, want, s.Answers)
	}
}
