package analysis

import (
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// Workload is what one application used in an arm at a level, and what was used on its behalf: the mean of a window
// over the valid trials, of which the samples of all say where programs of the subject ran (ledger.Pool). It has no
// intervals.
type Workload struct {
	Arm     string            `json:"arm"`
	Factors map[string]string `json:"factors"`
	Trials  int               `json:"trials"` // that it is the mean of
	ledger.Workload
}

// workloads are those of all arms, where the trials of a run were charged.
func workloads(t *Table, trials []record.Trial) (all []Workload) {
	windows := map[levelArm][]*ledger.Ledger{}
	for _, one := range trials {
		if one.Validity.Valid && one.Validity.Failed == "" && one.Ledger != nil {
			at := levelArm{record.LevelKey(one.Factors), one.Arm}
			windows[at] = append(windows[at], one.Ledger)
		}
	}
	for _, at := range t.Levels {
		for _, arm := range t.Arms {
			in := windows[levelArm{record.LevelKey(at), arm}]
			for _, w := range ledger.Pool(in) {
				all = append(all, Workload{Arm: arm, Factors: at, Trials: len(in), Workload: w})
			}
		}
	}
	return all
}
