package analysistest

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// Costs describes a run of the arms direct, aa and mesh. The costs of mesh are known functions of a factor's level. CPU
// and memory, but not BPF, have noise of a few tenths of a per cent, shared by all trials of a block, and are split
// between two components: client (a fifth) and server.
type Costs struct {
	Experiment string
	Factor     string // with the levels 100, 200, 400 and 800
	Blocks     int
	Mode       string         // of the load, such as load.Open
	Options    map[string]any // of the arm, as in a spec

	CPU, Memory func(x float64) float64 // in CPUs and bytes; if CPU is nil, only the baseline has CPU time, which is 0
	BPF         func(x float64) float64 // in CPUs; if nil, no trial has subject_bpf_cpus
}

// Record makes the run and its trials.
func (c Costs) Record() (record.Run, []record.Trial) {
	spec, err := json.Marshal(map[string]any{
		"arms": map[string]any{"mesh": c.Options}, "factors": map[string]any{c.Factor: nil},
	})
	must(err)
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := record.Run{
		Schema: record.RunSchema, ID: "costs", Experiment: c.Experiment, Question: "What?", Spec: spec, Blocks: c.Blocks,
		Started: started,
		Metrics: []metric.Definition{
			{Name: "subject_cpus", Unit: quantity.CPUs, Cost: true, Plan: "the subject", Rank: metric.RankCPU},
			{Name: "subject_bpf_cpus", Unit: quantity.CPUs, Cost: true, Plan: "eBPF programs", Rank: metric.RankBPF},
			{Name: "memory_hard_bytes", Unit: quantity.Bytes, Cost: true, Plan: "the subject", Rank: metric.RankMemory},
			{Name: "map_bytes", Unit: quantity.Bytes, Cost: true, Rank: metric.RankMemory}, // not part of any plan
		},
		Environment: record.Environment{CPUModel: "Example CPU", CPUs: 2, Kernel: "6.18.0", Hostname: "node-1"},
	}
	var trials []record.Trial
	for block := range c.Blocks {
		for _, x := range []float64{100, 200, 400, 800} {
			for _, arm := range []string{record.Direct, record.AA, "mesh"} {
				at := record.PlannedTrial{Index: len(trials), Block: block, Arm: arm,
					Factors: map[string]string{c.Factor: fmt.Sprint(x)}}
				run.Plan, trials = append(run.Plan, at), append(trials, c.trial(at, x, started))
			}
		}
	}
	return run, trials
}

func (c Costs) trial(at record.PlannedTrial, x float64, started time.Time) record.Trial {
	t := record.Trial{
		Schema: record.TrialSchema, PlannedTrial: at, Started: started, Ended: started.Add(time.Second),
		Validity: record.Validity{Valid: true}, Metrics: map[string]float64{"map_bytes": 1e9 * x},
		Loads: map[string]load.Result{"client": {Mode: c.Mode}},
	}
	if at.Arm != "mesh" {
		t.Metrics["subject_cpus"], t.Metrics["memory_hard_bytes"] = 0, 0
		return t
	}
	off := 1 + 0.001*float64((at.Block*7)%5-2)
	of := map[string]float64{"memory_hard_bytes": off * c.Memory(x)}
	if c.CPU != nil {
		of["subject_cpus"] = off * c.CPU(x)
	}
	maps.Copy(t.Metrics, of)
	if c.BPF != nil {
		t.Metrics["subject_bpf_cpus"] = c.BPF(x)
	}
	t.Components = map[string]map[string]float64{}
	for component, part := range map[string]float64{"client": 0.2, "server": 0.8} {
		t.Components[component] = map[string]float64{}
		for name, v := range of {
			t.Components[component][name] = part * v
		}
	}
	return t
}
