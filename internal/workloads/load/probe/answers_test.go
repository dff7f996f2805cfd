package probe

import (
	"maps"
	"testing"

	"tare/internal/experiment/record"
	"tare/test/analysistest"
)

func TestStressAnswers(t *testing.T) {
	for _, c := range []struct {
		name            string
		without, wait   float64 // longest, in seconds
		begins, mention string
	}{
		{"usable", 0.004, 0.09, "The machine stays usable, in this sense: a task that wanted a CPU",
			"waited 95.0 ms at the longest at steps 8388608, and up to"},
		{"not usable", 0.004, 1.5, "The machine does not stay usable", "waited 1.50 s at the longest"},
		{"unknown", 0.8, 1.5, "Whether the machine stays usable is unknown, because without the programs a task " +
			"waited up to 805 ms too", "waited 1.50 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			values := func(arm, level string, block int) map[string]float64 {
				noise := float64(block) / 1000
				m := map[string]float64{"sched_delay_p50_seconds": 30e-6, "sched_delay_p99_seconds": 1e-3,
					"sched_delay_max_seconds": c.without + noise, "bpf_cpu_share": 0, "cpu_busy_share": 1,
					"throughput_per_second": 10_000 + 50*noise}
				if arm == record.AA {
					m["throughput_per_second"] += 3 - 1000*noise
				}
				if arm == "kernelmesh" && level == "8388608" {
					maps.Copy(m, map[string]float64{"bpf_run_seconds": 0.08, "sched_delay_p50_seconds": 0.04,
						"sched_delay_max_seconds": c.wait + noise, "bpf_cpu_share": 0.97, "throughput_per_second": 25})
				}
				return m
			}
			run := record.Run{Blocks: 6}
			var trials []record.Trial
			for block := range run.Blocks {
				for _, level := range []string{"65535", "8388608"} {
					for _, arm := range []string{record.Direct, record.AA, "kernelmesh"} {
						trials = append(trials, record.Trial{
							PlannedTrial: record.PlannedTrial{
								Index: len(trials), Block: block, Arm: arm, Factors: map[string]string{"steps": level},
							},
							Metrics: values(arm, level, block), Validity: record.Validity{Valid: true},
						})
					}
				}
			}
			analysistest.Holds(t, analysistest.Answered(t, run, trials), []string{
				c.begins, c.mention, "All trials ended by themselves.",
			}, []string{"the difference is not resolved"}, []string{
				"At steps 8388608: a task that wants a CPU waits 40.0 ms", "One run takes 80.0 ms.",
				"The programs take 97.0 % of the machine's CPU time", "40.0 ms at the median", "without the programs: 30.0 us and",
				"Throughput goes from 1000", " of it.",
			})
		})
	}
}
