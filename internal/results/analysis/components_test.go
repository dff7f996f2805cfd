package analysis

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// proxied returns a run whose subject has two components, and whose baseline is a subject with one of them.
func proxied() (record.Run, []record.Trial) {
	run, trials := made(measured.Definitions(), nil, func(arm string, _ factors) map[string]float64 {
		if arm == "proxy" {
			return map[string]float64{"memory_hard_bytes": 30e6, "cpu_seconds_per_request": 50e-6}
		}
		return map[string]float64{"memory_hard_bytes": 10e6, "cpu_seconds_per_request": 20e-6}
	})
	run.Baseline = "small"
	for i := range trials {
		whole := trials[i].Metrics["memory_hard_bytes"]
		trials[i].Components = map[string]map[string]float64{"client": {"memory_hard_bytes": whole * 0.8}}
		if trials[i].Arm == "proxy" {
			trials[i].Components["server"] = map[string]float64{"memory_hard_bytes": whole * 0.2, "start_seconds": 0.1}
		}
	}
	return run, trials
}

// ofComponent returns the estimate of a component; nil if there is none.
func ofComponent(s *Summary, metric, arm, component string) *Estimate {
	i := slices.IndexFunc(s.Estimates, func(e Estimate) bool {
		return e.Metric == metric && e.Arm == arm && e.Component == component
	})
	if i < 0 {
		return nil
	}
	return &s.Estimates[i]
}

// TestComponents: each component is estimated like the arm, follows it, and is compared with the same component of the
// baseline.
func TestComponents(t *testing.T) {
	run, trials := proxied()
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		metric, arm, component string
		value, difference      float64 // 0: there is none
	}{
		{"memory_hard_bytes", "proxy", "", 30e6, 20e6},
		{"memory_hard_bytes", "proxy", "client", 24e6, 16e6},
		{"memory_hard_bytes", "proxy", "server", 6e6, 0},
		{"memory_hard_bytes", record.Direct, "client", 8e6, 0},
		{"start_seconds", "proxy", "server", 0.1, 0}, // the whole subject does not have this metric
	} {
		e := ofComponent(s, c.metric, c.arm, c.component)
		if e == nil || e.Value < 0.99*c.value || e.Value > 1.01*c.value || e.N != 8 || e.Blocks != 8 || e.Planned != 8 ||
			e.Lo == nil {
			t.Errorf("%s of %s %s: %+v, want %g of 8 blocks", c.metric, c.arm, c.component, e, c.value)
			continue
		}
		d := e.Difference
		if (d != nil) != (c.difference != 0) ||
			d != nil && (!d.Resolved || d.Value < 0.99*c.difference || d.Value > 1.01*c.difference) {
			t.Errorf("%s of %s %s: the difference %+v, want %g", c.metric, c.arm, c.component, d, c.difference)
		}
	}
	if ofComponent(s, "memory_hard_bytes", record.Direct, "server") != nil {
		t.Error("the baseline has a component that it does not have")
	}
	if e := s.Find("memory_hard_bytes", "proxy", factors{}); e == nil || e.Component != "" {
		t.Errorf("found for the arm: %+v", e)
	}
	if e := s.Find("start_seconds", "proxy", factors{}); e != nil {
		t.Errorf("found for the arm, which has none of it: %+v", e)
	}
	whole := slices.IndexFunc(s.Estimates, func(e Estimate) bool {
		return e.Metric == "memory_hard_bytes" &&
			e.Arm == "proxy"
	})
	if next := s.Estimates[whole+1:]; s.Estimates[whole].Component != "" || next[0].Component != "client" ||
		next[1].Component != "server" {
		t.Errorf("the order of components is %+v", s.Estimates[whole:])
	}
	text, err := json.Marshal(ofComponent(s, "memory_hard_bytes", "proxy", "server"))
	if err != nil || !strings.Contains(string(text), `"component":"server"`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestComponentsChangeNothing: estimates of arms as a whole, and whether they are known, are the same with components
// and without.
func TestComponentsChangeNothing(t *testing.T) {
	run, trials := proxied()
	with, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	for i := range trials {
		trials[i].Components = nil
	}
	without, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	with.Estimates = slices.DeleteFunc(with.Estimates, func(e Estimate) bool { return e.Component != "" })
	if !reflect.DeepEqual(with, without) {
		t.Errorf("with components:\n%+v\nand without:\n%+v", with, without)
	}
}

// TestComponentsTellNothingOfArms: answers are about arms, so a run that lost metrics is invalid if only components
// have a headline metric.
func TestComponentsTellNothingOfArms(t *testing.T) {
	run, trials := proxied()
	run.Headline = []string{"start_seconds"}
	for i := range trials {
		trials[i].Validity = record.Validity{Reasons: []record.Reason{
			{Gate: "window", Message: "cut", Cause: ledger.Unknown, Voids: []string{"cpu_seconds_per_request"}},
		}}
	}
	if s, err := Summarize(run, trials); err != nil || s.Valid {
		t.Errorf("it is valid, or there is an error: %v", err)
	}
}

// TestComponentsVoided: a gate that voids a metric of a trial voids that of its components, too, and the same limit
// decides whether a component's estimate is withheld.
func TestComponentsVoided(t *testing.T) {
	for _, c := range []struct {
		lost     int
		withheld bool
	}{{2, false}, {3, true}} { // lost trials of 8, of which up to a quarter may be lost
		run, trials := proxied()
		for i := range trials {
			if trials[i].Arm == "proxy" && trials[i].Block < c.lost {
				trials[i].Validity = record.Validity{Reasons: []record.Reason{
					{Gate: "window", Message: "cut", Cause: ledger.Unknown, Voids: []string{"memory_hard_bytes"}},
				}}
			}
		}
		s, err := Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		for _, component := range []string{"", "client", "server"} {
			e := ofComponent(s, "memory_hard_bytes", "proxy", component)
			if e == nil || e.Blocks != 8-c.lost || e.Planned != 8 || (e.Withheld != "") != c.withheld {
				t.Errorf("%d lost of component %q: %+v", c.lost, component, e)
			}
		}
		if n := len(s.Missing); (n > 0) != c.withheld || n > 1 {
			t.Errorf("%d lost: missing %+v, which is of arms alone", c.lost, s.Missing)
		}
		if len(s.ComponentMissing) > 0 {
			t.Errorf("%d lost: missing of components, which have estimates: %+v", c.lost, s.ComponentMissing)
		}
	}
}

// TestComponentsLostInEveryTrial: a metric that only a component has, and that a gate voided in every trial, is listed
// with the gate. It changes nothing of the arm.
func TestComponentsLostInEveryTrial(t *testing.T) {
	run, trials := proxied()
	for i := range trials {
		trials[i].Validity = record.Validity{Reasons: []record.Reason{
			{Gate: "window", Message: "cut", Cause: ledger.Unknown, Voids: []string{"start_seconds"}},
		}}
	}
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	if m := s.ComponentMissing; len(m) != 1 || m[0].Metric != "start_seconds" || m[0].Arm != "proxy" ||
		m[0].Component != "server" || m[0].Lost != 8 || m[0].Trials != 8 || m[0].Gate != "window" {
		t.Errorf("missing of components: %+v", m)
	}
	if !s.Valid || len(s.Missing) > 0 {
		t.Errorf("missing of the arm: %+v", s.Missing)
	}
}

// TestComponentLines: if a component grows linearly with the swept factor, the answer at the last level says so, and
// the summary lists the model separately from those of arms.
func TestComponentLines(t *testing.T) {
	levels := []factors{{"client.connections": "100"}, {"client.connections": "1000"}, {"client.connections": "3000"}}
	at := func(f factors) float64 {
		n, _ := LevelNumber(f["client.connections"])
		return n
	}
	run, trials := made(measured.Definitions(), levels, func(arm string, f factors) map[string]float64 {
		if arm != "proxy" {
			return map[string]float64{"memory_hard_bytes": 0}
		}
		return map[string]float64{"memory_hard_bytes": 14e6 + 20e3*at(f)}
	})
	run.Phrases = []record.Phrase{
		{Factor: "client.connections", Words: map[string]string{"": "with {} connections"}},
	}
	for i := range trials {
		if trials[i].Arm == "proxy" {
			grows := trials[i].Metrics["memory_hard_bytes"] - 4e6
			trials[i].Components = map[string]map[string]float64{
				"client": {"memory_hard_bytes": grows}, "server": {"memory_hard_bytes": 4e6},
			}
		}
	}
	s, err := Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(s.Models, func(m Model) bool { return m.Component != "" }) {
		t.Error("a line of a component is among those of arms")
	}
	i := slices.IndexFunc(s.ComponentModels, func(m Model) bool { return m.Component == "client" && m.Arm == "proxy" })
	if i < 0 || math.Abs(s.ComponentModels[i].Terms[1].Value-20e3) > 400 {
		t.Fatalf("the lines of components are %+v", s.ComponentModels)
	}
	said := ""
	for _, a := range s.Answers {
		said += a.Answer + "\n"
	}
	for _, want := range []string{
		"] of hard memory (1", " more for every 1,000 connections). ", "Hard memory by component: client ",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said: %s", want, said)
		}
	}
	if strings.Contains(said, "server ") {
		t.Errorf("a component that does not grow is said to: %s", said)
	}
	for i := range trials {
		if c := trials[i].Components["client"]; c != nil && at(trials[i].Factors) > 2000 {
			c["memory_hard_bytes"] *= 3
		}
	}
	said = answersOf(t, run, trials)
	if !strings.Contains(said, " more for every 1,000 connections on average, not linearly.") {
		t.Errorf("a component that grows in no line is not said to: %s", said)
	}
}
