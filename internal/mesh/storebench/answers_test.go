package storebench

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/analysistest"
)

func TestFlushAnswers(t *testing.T) {
	levels := []map[string]string{{"*.operation": "insert"}, {"*.operation": "delete"}}
	s := analysistest.Sweep{Baseline: "pooled", Levels: levels, Arms: []string{"naive", "quick", "same"}}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			m := map[string]float64{"flush_seconds": 100e-6, "records_per_flush": 45, "map_updates_per_flush": 71,
				"syscalls_per_flush": 71, "grace_periods_per_flush": 0, "bytes_per_flush": 88_400}
			switch arm {
			case "naive":
				m["flush_seconds"], m["grace_periods_per_flush"] = 0.45, 45
			case "quick":
				m["flush_seconds"] = map[string]float64{"insert": 2e-6, "delete": 4e-6}[level["*.operation"]]
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"quick has the shortest flushes at every level.", "Against pooled, naive is 4,500 times slower.",
			"Against pooled, quick is 25 to 50 times faster.",
			"The difference between same and pooled is not resolved at any level."},
		[]string{"At operation delete: pooled (baseline) takes ",
			"(45 records, 71 map updates, 71 system calls, 88.4 kB). naive takes", "4,500 times as long (45 records",
			"45 grace periods, 88.4 kB, 9.9 ms for each grace period)",
			"same takes", "for a flush, a difference from pooled that is not resolved ("},
		[]string{"At operation insert: ", "quick takes 2.0", "50 times faster"},
	)
	if e := s.Answers[1].Evidence; len(e) < 4 || e[0] != "flush_seconds direct" {
		t.Errorf("evidence %v", e)
	}
	if s.ArmName(record.Direct) != "pooled (baseline)" || s.ArmName(record.AA) != "pooled (again)" ||
		s.ArmName("naive") != "naive" {
		t.Error("arms are called otherwise")
	}
}

// TestFastest: a store is called the fastest only where its interval is clear of the others', and a range around 1 has
// no word that only holds above it.
func TestFastest(t *testing.T) {
	levels := []map[string]string{{"*.operation": "insert"}, {"*.operation": "delete"}}
	s := analysistest.Sweep{Baseline: "pooled", Levels: levels, Arms: []string{"either", "like"}}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			m := map[string]float64{"flush_seconds": 100e-6, "records_per_flush": 1}
			if arm == "either" {
				m["flush_seconds"] = map[string]float64{"insert": 80e-6, "delete": 120e-6}[level["*.operation"]]
			}
			return m
		})
	text := s.Answers[0].Answer
	if !strings.Contains(text, "either has the shortest flushes at 1 of 2 levels.") ||
		!strings.Contains(text, "Against pooled, either is 0.81 to 1.2 times as long.") ||
		strings.Contains(text, "like has") || strings.Contains(text, "pooled (baseline) has") {
		t.Errorf("%q", text)
	}
	s = analysistest.Sweep{Baseline: "pooled", Levels: levels[:1], Arms: []string{"like"}}.Answered(t,
		func(string, map[string]string) map[string]float64 {
			return map[string]float64{"flush_seconds": 100e-6, "records_per_flush": 1}
		})
	if text := s.Answers[0].Answer; !strings.Contains(text, "No store clearly has the shortest flushes") {
		t.Errorf("%q", text)
	}
}

func TestScaleAnswers(t *testing.T) {
	var levels []map[string]string
	for _, n := range []int{1, 100, 1000} {
		levels = append(levels, map[string]string{"*.services": fmt.Sprint(n)})
	}
	s := analysistest.Sweep{Baseline: "sized", Levels: levels, Arms: []string{"less", "mixed"}}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			n := 0.0
			fmt.Sscan(level["*.services"], &n)
			m := map[string]float64{"lookup_seconds": 600e-9, "lookup_first_seconds": 9e-6, "map_bytes": 20e6 + 1000*n,
				"memory_hard_bytes": 40e6, "store_open_seconds": 0.02, "store_fill_seconds": 1e-4 * n}
			switch {
			case arm == "less":
				m["lookup_seconds"] = 130e-9
			case arm == "mixed" && n > 10:
				m["lookup_seconds"], m["map_bytes"] = 900e-9, 20e6+100*n*n // in no line
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"sized (baseline): a lookup takes 600 ns", "at services 1 and",
			"At services 1000 its maps have 21.0 MB (20.0 MB and 1.00 kB for each service)", "takes these services in 100 ms",
			"The first lookup of another service, with cold caches, takes 9.0"},
		[]string{"less: a lookup takes 129 ns", "less than with sized at every level"},
		[]string{"mixed: a lookup", "more than with sized at 2 of 3 levels and not resolved at 1.",
			"At services 1000 its maps have 120 MB; its group has"},
	)
}
