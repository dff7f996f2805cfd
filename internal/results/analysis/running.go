package analysis

import (
	"maps"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
)

// DisturbedLimit is the part of a level's requests that the machine's stalls may touch before answers turn to those
// that they did not. It is fixed in advance: what touches a tenth of the tail beyond p99 moves p99.
const DisturbedLimit = (1 - 0.99) / 10

// Disturbed is how many of a level's requests the machine's stalls touched, over the trials of all arms together.
// Latency while the machine was running is estimated either way; Running says that answers speak of it, and not of all
// requests.
type Disturbed struct {
	Factors  map[string]string `json:"factors"`
	Share    float64           `json:"share"`
	Requests int64             `json:"requests"`
	Limit    float64           `json:"limit"`
	Running  bool              `json:"running"`
}

// disturbed judges each level by all of its trials, those of no use for latency among them: what decides must not
// depend on what gates let through.
func disturbed(levels []factors, trials []record.Trial) []Disturbed {
	sums := map[string]*load.Running{}
	for _, trial := range trials {
		key := record.LevelKey(trial.Factors)
		for _, r := range trial.Loads {
			if r.Running == nil {
				continue
			}
			if sums[key] == nil {
				sums[key] = &load.Running{}
			}
			sums[key].Disturbed += r.Running.Disturbed
			sums[key].Undisturbed += r.Running.Undisturbed
		}
	}
	var all []Disturbed
	for _, at := range levels {
		share, ok := sums[record.LevelKey(at)].Share()
		if !ok {
			continue
		}
		sum := sums[record.LevelKey(at)]
		all = append(all, Disturbed{
			Factors: at, Share: share, Requests: sum.Disturbed + sum.Undisturbed,
			Limit: DisturbedLimit, Running: share > DisturbedLimit,
		})
	}
	return all
}

// whileRunning says whether answers at a level speak of the requests that no stall touched, and what part was touched.
func (s *Summary) whileRunning(at factors) (share float64, running bool) {
	for _, d := range s.Disturbed {
		if maps.Equal(d.Factors, at) {
			return d.Share, d.Running
		}
	}
	return 0, false
}
