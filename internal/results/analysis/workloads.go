package analysis

import (
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// Workload holds what one application used in an arm at a level, and what was used on its behalf: means over the
// windows of the valid trials. Each program's samples of all trials together determine where it ran (ledger.Pool). It
// has no intervals.
type Workload struct {
	Arm     string            `json:"arm"`
	Factors map[string]string `json:"factors"`
	Trials  int               `json:"trials"` // number of trials in the mean
	ledger.Workload
}

// workloads returns the workloads of all arms if the trials of a run were charged.
func workloads(trials []record.Trial) (all []Workload) {
	for _, place := range byPlace(trials) {
		windows := lists.Map(place.trials, func(t record.Trial) *ledger.Ledger { return t.Ledger })
		for _, w := range ledger.Pool(windows) {
			all = append(all, Workload{Arm: place.arm, Factors: place.at, Trials: len(windows), Workload: w})
		}
	}
	return all
}
