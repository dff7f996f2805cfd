package analysis

import (
	"maps"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
)

// DisturbedLimit is the fraction of a level's requests that the machine's stalls may touch before answers switch to the
// requests that no stall touched. It is a tenth of the requests beyond p99: if stalls touch more, they can move p99.
const DisturbedLimit = (1 - 0.99) / 10

// Disturbed is the share of a level's requests that the machine's stalls touched, over the trials of all arms
// together. Latency while the machine was running is estimated in any case; Running is set if answers use it instead
// of the latency of all requests.
type Disturbed struct {
	Factors  map[string]string `json:"factors"`
	Share    float64           `json:"share"`
	Requests int64             `json:"requests"`
	Limit    float64           `json:"limit"`
	Running  bool              `json:"running"`
}

// disturbed judges each level by all of its trials, including those without valid latency: the decision must not
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

// whileRunning returns the share of a level's requests that stalls touched, and whether answers use the requests that
// no stall touched.
func (s *Summary) whileRunning(at factors) (share float64, running bool) {
	for _, d := range s.Disturbed {
		if maps.Equal(d.Factors, at) {
			return d.Share, d.Running
		}
	}
	return 0, false
}

// carriers holds, for each metric of the requests that no stall touched, the records of the trials on how many requests
// stalls touched. An empty arm in the key stands for all arms of the level.
type carriers map[pool][]*load.Running

// newCarriers returns the carriers of the trials, from the last attempt at each planned trial.
func newCarriers(defined metric.Set, trials []record.Trial) carriers {
	all := carriers{}
	for _, attempts := range attemptsOf(trials) {
		trial, of := attempts[len(attempts)-1], map[string]*load.Running{}
		level := record.LevelKey(trial.Factors)
		for _, d := range defined {
			if !d.Undisturbed || d.Quantile == 0 {
				continue
			}
			if _, known := of[d.Histogram]; !known {
				of[d.Histogram] = load.RunningOf(trial.Loads, d.Histogram)
			}
			if r := of[d.Histogram]; r != nil {
				for _, arm := range []string{trial.Arm, ""} {
					all[pool{level, arm, d.Name}] = append(all[pool{level, arm, d.Name}], r)
				}
			}
		}
	}
	return all
}

// carry reports whether the trials have enough samples for an estimate, and the reason if not.
func (c carriers) carry(e *Estimate, d metric.Definition, limit float64) (bool, string) {
	level := record.LevelKey(e.Factors)
	return load.TellsOf(c[pool{level, "", e.Metric}], c[pool{level, e.Arm, e.Metric}], d.Histogram,
		load.QuantileName(d.Quantile), d.Quantile, stats.MinBeyond(d.Quantile), limit)
}

// warnOfStalls names the arms in whose trials the machine stalled more, or less, than in those of their baseline. It
// compares the two within each block (sign test, p < 1 %, over all levels). The undisturbed requests of such an arm
// come from other moments than the undisturbed requests of its baseline.
func (s *Summary) warnOfStalls(t *Table, trials []record.Trial) {
	still := map[cell]float64{}
	var cells []cell
	for _, attempts := range attemptsOf(trials) {
		trial := attempts[0]
		for _, r := range trial.Loads {
			if of := r.Running; of != nil && of.WatchedSeconds > 0 {
				at := cell{record.LevelKey(trial.Factors), trial.Arm, trial.Block}
				still[at], cells = 1-of.QuietSeconds/of.WatchedSeconds, append(cells, at)
				break // all loads of a trial are watched at the same time
			}
		}
	}
	for _, arm := range t.Subjects() {
		more, less, pairs, mine, base := 0, 0, 0.0, 0.0, 0.0
		for _, at := range cells {
			share := still[at]
			of, has := still[cell{at.level, record.Direct, at.block}]
			if at.arm != arm || !has {
				continue
			}
			pairs, mine, base = pairs+1, mine+share, base+of
			switch {
			case share > of:
				more++
			case share < of:
				less++
			}
		}
		if stats.SignTest(more, less) < selection {
			s.addWarning("the machine stood still for %.2g %% of the time in trials of %s and for %.2g %% in those of its "+
				"baseline, beyond chance: where stalls come with what the arm does, latency while the machine was running "+
				"leaves that out", 100*mine/pairs, s.ArmName(arm), 100*base/pairs)
		}
	}
}
