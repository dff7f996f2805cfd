package analysis_test

import (
	"fmt"
	"testing"

	"tare/test/analysistest"
)

func TestPathAnswers(t *testing.T) {
	var levels []map[string]string
	for _, n := range []int{1, 100, 5000} {
		levels = append(levels, map[string]string{"*.services": fmt.Sprint(n)})
	}
	s := analysistest.Sweep{Baseline: "sized", Levels: levels, Arms: []string{"less", "mixed"}}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			m := map[string]float64{"bpf_seconds_per_connection": 600e-9, "connect_p50_seconds": 2e-6}
			switch {
			case arm == "less":
				m["bpf_seconds_per_connection"] = 100e-9
			case arm == "mixed" && level["*.services"] != "1":
				m["bpf_seconds_per_connection"] = 900e-9
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"sized (baseline): a connection takes 600 ns at services 1 and 600 ns at services 5000 in the programs. " +
			"The whole of connect() takes 2.0"},
		[]string{"less: a connection takes 100 ns at services 1 and",
			"in the programs, less than with sized at every level."},
		[]string{"mixed: a connection", "more than with sized at 2 of 3 levels"},
	)
}
