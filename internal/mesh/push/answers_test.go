package push

import (
	"regexp"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/analysistest"
)

func TestPushAnswers(t *testing.T) {
	levels := []map[string]string{{"mesh.services": "1000", "push.what": "one"},
		{"mesh.services": "1000", "push.what": "all"}}
	of := []record.Phrase{
		{Factor: "push.what", Words: map[string]string{"one": "of one service", "all": "of all services at once"}},
		{Factor: "mesh.services", Words: map[string]string{"": "in a mesh of {}"}},
	}
	s := analysistest.Sweep{Baseline: "sized", Levels: levels, Arms: []string{"snapshot", "same"}, Phrases: of}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			ms := 1.0
			if arm == "snapshot" {
				ms = 0.25
			}
			if arm == "same" && level["push.what"] == "one" {
				ms = 0.965
			}
			m := map[string]float64{"push_refused_ratio": 0, "push_wrong_ratio": 0}
			if arm == record.Direct {
				m["push_refused_ratio"] = 0.07
			}
			if level["push.what"] == "all" {
				ms *= 100
			}
			for i, name := range []string{"push_sent", "push_received", "push_visible", "push_acked", "push_usable"} {
				m[name+"_seconds"] = ms * 1e-3 * float64(1+i)
				m[name+"_max_seconds"] = ms * 1e-3 * float64(10+i)
				if level["push.what"] == "one" {
					m[name+"_p50_seconds"], m[name+"_p99_seconds"] = ms*1e-3*float64(1+i), ms*2e-3*float64(1+i)
				}
			}
			return m
		})
	if len(s.Answers) != 6 {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, wants := range [][]string{
		{"A change of all services at once in a mesh of 1000, sized (baseline): a new connection shows it 5",
			"on average after the control plane sent it, and 1.43 s after at the latest.",
			"7.00 % of the connections tried meanwhile are refused."},
		{"same: ", "the difference from sized is not resolved."},
		{"snapshot: a new connection shows it 124 ms", "; on average 4.0 times faster than sized."},
		{"A change of one service in a mesh of 1000, sized (baseline): a new connection shows it 5.0 ms", " (p99 10.0 ms",
			"It is received after 2.0", ", in the maps after 3.0", ", acknowledged after 4.0",
			"Before that, the control plane takes 1.0"},
		{"same: ", "; on average about as long as sized."},
		{"A change of one service in a mesh of 1000, snapshot: a new connection shows it 1.24 ms"},
	} {
		for _, want := range wants {
			if !strings.Contains(s.Answers[i].Answer, want) {
				t.Errorf("answer %d lacks %q:\n%s", i, want, s.Answers[i].Answer)
			}
		}
		if strings.Contains(s.Answers[i].Answer, "refused") != (i == 0 || i == 3) ||
			strings.Contains(s.Answers[i].Answer, "no endpoint") {
			t.Errorf("answer %d:\n%s", i, s.Answers[i].Answer)
		}
	}
	alone := analysistest.Sweep{Baseline: "sized", Levels: []map[string]string{nil}}.Answered(t,
		func(string, map[string]string) map[string]float64 {
			return map[string]float64{"push_usable_seconds": 0.03}
		})
	if got := alone.Answers[0].Answer; !strings.HasPrefix(got, "A change, sized (baseline): a new connection shows it ") {
		t.Error(got)
	}
	beside := analysistest.Sweep{Levels: []map[string]string{nil}, Arms: []string{"same"}}.Answered(t,
		func(string, map[string]string) map[string]float64 { return map[string]float64{"push_seconds": 0.1} })
	if got := beside.Answers[1].Answer; !strings.Contains(got, "; the difference from the baseline is not resolved.") {
		t.Error(got)
	}
	unsaid := analysistest.Sweep{Baseline: "sized", Levels: []map[string]string{nil}}.Answered(t,
		func(string, map[string]string) map[string]float64 {
			return map[string]float64{"push_seconds": 0.15, "push_max_seconds": 0.2}
		})
	want := regexp.MustCompile(`^A change, sized \(baseline\): a new connection shows it 15\d ms .*after the control plane got it, and 2\d\d ms after at the latest`)
	if got := unsaid.Answers[0].Answer; !want.MatchString(got) {
		t.Error(got)
	}
}
