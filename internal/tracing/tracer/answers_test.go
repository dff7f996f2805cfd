package tracer

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// TestTraceAnswers: the answers about tracers that differ in what they lose and what they report, at two rates.
func TestTraceAnswers(t *testing.T) {
	levels := []map[string]string{{"rate": "1000"}, {"rate": "64000"}}
	speaks := false
	s := analysistest.Sweep{Levels: levels, Arms: []string{"whole", "lossy", "silent", "liar", "partly"}}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			m := map[string]float64{"events_generated": 1000, "events_counted": 1000, "throughput_per_second": 1000}
			if level["rate"] == "64000" {
				m["throughput_per_second"] = 36_000
			}
			if arm == record.Direct || arm == record.AA {
				return m
			}
			m["events_expected"], m["events_lost"], m["events_extra"], m["events_late"] = 1000, 0, 0, 0
			m["cpu_seconds_per_kiloevent"], m["bpf_seconds_per_kiloevent"] = 2e-3, 0.5e-3
			m["agent_cpu_seconds_per_kiloevent"] = 1.5e-3
			m["rss_bytes"], m["rss_peak_bytes"], m["memory_hard_bytes"] = 14e6, 20e6, 9e6
			if arm != "silent" && arm != "partly" {
				m["events_unsaid"], m["events_said_lost"] = 0, 0
			}
			if level["rate"] == "64000" {
				switch arm {
				case "whole":
					m["throughput_per_second"] = 27_000
				case "liar":
					m["events_lost"], m["events_unsaid"], m["events_said_lost"], m["events_late"] = 5, 3, 2, 7
				case "lossy":
					m["events_lost"], m["events_said_lost"] = 5, 5
				case "partly":
					if m["events_lost"], speaks = 5, !speaks; speaks {
						m["events_unsaid"], m["events_said_lost"] = 0, 5
					}
				default:
					m["events_lost"] = 5
				}
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"liar lost 40 of 16,000 events (0.250 %), lossy lost 40 of 16,000 events (0.250 %), partly lost 40 of " +
			"16,000 events (0.250 %) and silent lost 40 of 16,000 events (0.250 %). whole delivered every event."},
		[]string{"liar: of 16,000 events in 16 trials 40 were lost (0.250 %), in 8 of the trials.", "wrong by 24 events",
			"56 of the load's events came late (0.350 %)"},
		[]string{"lossy: of 16,000 events", "That is 0.500 % at rate 64000; none at rate 1000.",
			"It says so itself, to the event.", "At rate 64000, the load made 36,000 events/s with it and 36,000 without; the " +
				"difference is not resolved."},
		[]string{"partly: ", "It says so itself of 20 of them, and nothing of the others."},
		[]string{"silent: ", "No report of its losses by itself was seen."},
		[]string{"whole: of 16,000 events in 16 trials none was lost; so fewer than 3 in 16 such trials lose any, at 95 %.",
			"The CPU time of 1,000 events is 2.0", " in its processes, ", " in its programs) at rate 1000 and 2.0",
			"At rate 64000, the load made 27,000 events/s with it and 36,000 without: 25", "less.",
			"Its processes hold 14.0 MB of resident memory, 20.0 MB at their peak; its group holds 9.00 MB of hard memory."},
	)
}

// TestTraceAnswersOfAMachine: the losses of a tracer of the whole machine are a fraction of all events that it should
// deliver, not of the load's.
func TestTraceAnswersOfAMachine(t *testing.T) {
	s := analysistest.Sweep{Levels: []map[string]string{nil}, Arms: []string{"node"}}.Answered(t,
		func(arm string, _ map[string]string) map[string]float64 {
			m := map[string]float64{"events_generated": 200, "events_counted": 200}
			if arm == "node" {
				m["events_expected"], m["events_lost"], m["events_late"] = 2200, 220, 20
				m["cpu_seconds_per_kiloevent"] = 2e-3
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"node lost 1,760 of 17,600 events (10.0 %)."},
		[]string{"node: of 17,600 events in 8 trials 1,760 were lost (10.0 %)",
			"160 of the load's events came late (10.0 %)"})
}

// TestTraceAnswersInPods: an installed tracer also runs in the baseline, so its answer does not say how much it slows
// the load.
func TestTraceAnswersInPods(t *testing.T) {
	levels := []map[string]string{{"nodes": "2"}, {"nodes": "5"}}
	s := analysistest.Sweep{Levels: levels, Arms: []string{"installed"}}.Answered(t,
		func(arm string, _ map[string]string) map[string]float64 {
			m := map[string]float64{"events_generated": 200, "throughput_per_second": 100}
			if arm == "installed" {
				m["events_expected"], m["events_lost"], m["agent_cpu_seconds_per_kiloevent"] = 200, 0, 3e-3
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"installed delivered every event."},
		[]string{"installed: of 3,200 events in 16 trials none was lost",
			"Its CPU time for 1,000 of the load's events, with whatever else it traced, is 3.0", " in its processes",
			"so how much it slows the load is not known."})
	for _, a := range s.Answers {
		if strings.Contains(a.Answer, "without") {
			t.Errorf("%s", a.Answer)
		}
	}
}

// TestOwnTracer uses the spec of docs/tracers.md: losses come first in the answers, whatever the experiment is called
// and although there are other tracers and costs.
func TestOwnTracer(t *testing.T) {
	levels := []map[string]string{{"execs.rate": "100"}, {"execs.rate": "storm"}}
	storm := record.Phrase{Factor: "execs.rate", Words: map[string]string{"": "at {} execs/s", "storm": "in a storm"}}
	s := analysistest.Sweep{Levels: levels, Arms: []string{"exectrace", "mine"},
		Phrases: []record.Phrase{storm}}.Answered(t, func(arm string, level map[string]string) map[string]float64 {
		m := map[string]float64{"events_generated": 1000, "events_counted": 1000, "throughput_per_second": 10_000,
			"bpf_cpu_share": 0}
		if arm == record.Direct || arm == record.AA {
			return m
		}
		m["events_lost"], m["events_extra"], m["bpf_cpu_share"], m["bpf_seconds_per_kiloevent"] = 0, 0, 0.1, 2.8e-3
		if arm == "mine" && level["execs.rate"] == "storm" {
			m["events_lost"], m["throughput_per_second"] = 560, 2804
		}
		return m
	})
	for i, want := range []string{
		"mine lost 4,480 of 16,000 events (28.0 %). exectrace delivered every event.",
		"exectrace: of 16,000 events in 16 trials none was lost",
		"mine: of 16,000 events in 16 trials 4,480 were lost (28.0 %), in 8 of the trials. That is 56.0 % in a storm; none " +
			"at 100 execs/s.",
	} {
		if i >= len(s.Answers) || !strings.HasPrefix(s.Answers[i].Answer, want) {
			t.Errorf("answer %d does not begin with %q: %+v", i, want, s.Answers)
		}
	}
}

func TestTraceAnswersByNodes(t *testing.T) {
	var levels []map[string]string
	for _, n := range []string{"2", "12", "25"} {
		levels = append(levels, map[string]string{"nodes": n})
	}
	// noise of the arm steps at the last level, alternating between blocks, because without noise any slope is significant
	off := 0.15e-3
	s := analysistest.Sweep{Levels: levels, Arms: []string{"same", "growing", "bent", "steps"}}.Answered(t,
		func(arm string, level map[string]string) map[string]float64 {
			m := map[string]float64{"events_generated": 1000, "events_counted": 1000}
			if arm == record.Direct || arm == record.AA {
				return m
			}
			m["events_lost"], m["cpu_seconds_per_kiloevent"], m["nodes_failed"] = 0, 2e-3, 0
			n, _ := analysis.LevelNumber(level["nodes"])
			switch arm {
			case "growing":
				m["cpu_seconds_per_kiloevent"] = 2e-3 + 1e-3*n
				m["nodes_failed"] = 1
			case "bent":
				m["cpu_seconds_per_kiloevent"] = 2e-3 + 1e-4*n*n
			case "steps": // 2, 12 and 25 nodes
				m["cpu_seconds_per_kiloevent"] = map[float64]float64{2: 3e-3, 12: 2e-3, 25: 3e-3 + off}[n]
				off = -off
			}
			return m
		})
	analysistest.Holds(t, s,
		[]string{"bent, growing, same and steps delivered every event."},
		[]string{"The CPU time per 1,000 events grows with the number of nodes: by ",
			" for each, from 2 to 25, but not on a line: it is 2.4", "at nodes 2, 16.", " at nodes 12 and 64.", " at nodes 25."},
		[]string{"The CPU time per 1,000 events grows with the number of nodes: by 1.00", "for each, from 2 to 25.",
			"24 nodes failed in 24 trials"},
		[]string{"The CPU time per 1,000 events does not depend on the number of nodes as far as this run can see: "},
		[]string{"The CPU time per 1,000 events is not the same for all numbers of nodes, though it neither grows nor " +
			"falls with them on the whole (", "): it is 3.0", "at nodes 2, 2.0", " at nodes 12 and 3."},
	)
	if strings.Contains(s.Answers[3].Answer, "failed") {
		t.Error(s.Answers[3].Answer)
	}
}
