package analysis

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// invalidPart is the fraction of its trials that a metric of an arm at a level may lose before it is withheld, if the
// spec does not set gates.invalid.
const invalidPart = 0.25

func countTrials(run record.Run, trials []record.Trial) Trials {
	all := attemptsOf(trials)
	c := Trials{Planned: max(len(run.Plan), len(all)), Done: len(all), Excluded: []Excluded{}}
	for _, attempts := range all {
		c.Attempts += len(attempts)
		last := attempts[len(attempts)-1]
		x := Excluded{Index: last.Index, Block: last.Block, Arm: last.Arm, Factors: levelOf(last.Factors),
			Why: why(last.Validity)}
		switch {
		case slices.ContainsFunc(attempts, valid):
			c.Valid++
			continue
		case !slices.ContainsFunc(attempts, func(t record.Trial) bool { return t.Validity.Failed == "" }):
			c.Failed++
		default:
			c.Invalid++
			x.Voids = voidedInAll(attempts)
		}
		if len(attempts) > 1 {
			x.Why = fmt.Sprintf("%s (run %d times)", x.Why, len(attempts))
		}
		c.Excluded = append(c.Excluded, x)
	}
	return c
}

// voidedInAll returns the metrics for which no attempt has a valid value; nil if these are all metrics.
func voidedInAll(attempts []record.Trial) []string {
	voids := []string{}
	seen := map[string]bool{}
	for _, t := range attempts {
		for _, r := range t.Validity.Reasons {
			for _, m := range r.Voids {
				if !seen[m] && !slices.ContainsFunc(attempts, func(t record.Trial) bool { return t.Validity.Stands(m) }) {
					voids = append(voids, m)
				}
				seen[m] = true
			}
		}
	}
	if !slices.ContainsFunc(attempts, func(t record.Trial) bool { return t.Validity.Stands("") }) {
		return nil // an empty name is void only if a reason voids every metric
	}
	slices.Sort(voids)
	return voids
}

func why(v record.Validity) string {
	if v.Failed != "" {
		return "failed: " + v.Failed
	}
	gates := lists.Map(v.Reasons, func(r record.Reason) string { return r.Gate + ": " + r.Message })
	if len(gates) == 0 {
		return "invalid, and no gate is named"
	}
	return strings.Join(gates, "; ")
}

// completeBlocks returns the number of blocks in which every planned trial is valid. Without a plan, it counts the
// blocks with any valid trial.
func completeBlocks(run record.Run, t *Table) int {
	complete := map[int]bool{}
	for _, outcomes := range t.outcomes {
		for block, o := range outcomes {
			if o.whole {
				complete[block] = true
			}
		}
	}
	for _, p := range run.Plan {
		if o := t.outcomes[levelArm{record.LevelKey(p.Factors), p.Arm}][p.Block]; o == nil || !o.whole {
			delete(complete, p.Block)
		}
	}
	return len(complete)
}

func (s *Summary) addWarning(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

// judge decides whether the run can answer its question, and records why if it cannot.
func (s *Summary) judge(run record.Run, t *Table) {
	switch {
	case s.Trials.Done == 0:
		s.InvalidReasons = append(s.InvalidReasons, "no trial was finished")
	case !s.tells(run, t):
		s.InvalidReasons = append(s.InvalidReasons, s.whyNothing(run, t)...)
	}
	s.Valid = len(s.InvalidReasons) == 0
	if planned := plannedBlocks(run); s.Valid && planned < stats.MinBlocks {
		s.addWarning("%s: too few for 95 %% intervals, so values have none and no difference is resolved; run at least %d "+
			"(--blocks %d)", quantity.Counted(planned, "block"), stats.MinBlocks, stats.MinBlocks)
	}
}

// tells reports whether the run has an estimate that answers are about: of a headline metric, not withheld, for an arm
// that the run is about.
func (s *Summary) tells(run record.Run, t *Table) bool {
	asked := askedArms(run, t)
	none := true
	for _, e := range s.Estimates {
		if !slices.Contains(asked, e.Arm) || e.Component != "" {
			continue
		}
		none = false
		if e.Withheld == "" && headline(run, e.Metric) {
			return true
		}
	}
	// If no headline metric was measured, as with a user's own spec, other estimates will do, unless something is missing.
	return !none && len(s.Missing) == 0
}

// askedArms returns the arms that the run is about: all but the baseline and its twin, or these if there are no
// others.
func askedArms(run record.Run, t *Table) []string {
	arms := t.everyArm(run)
	if others := withoutBaseline(arms); len(others) > 0 {
		return others
	}
	return arms
}

// withoutBaseline returns the arms without the baseline and its twin.
func withoutBaseline(arms []string) []string {
	return slices.DeleteFunc(slices.Clone(arms), func(a string) bool { return a == record.Direct || a == record.AA })
}

// headline reports whether answers use a metric. Records of Tare before 0.2 do not name the metrics that answers use;
// for these every metric counts.
func headline(run record.Run, metric string) bool {
	return len(run.Headline) == 0 || slices.Contains(run.Headline, metric)
}

// place is an arm at a level.
type place struct {
	arm string
	at  factors
}

// comparePlaces orders places by level, and then by arm.
func comparePlaces(a, b place) int {
	return cmp.Or(CompareLevels(a.at, b.at), CompareArms(a.arm, b.arm))
}

// placesOf returns the places of planned trials, each once.
func placesOf(planned []record.PlannedTrial) (all []place) {
	seen := map[levelArm]bool{}
	for _, p := range planned {
		at := levelOf(p.Factors)
		if k := (levelArm{record.LevelKey(at), p.Arm}); !seen[k] {
			seen[k] = true
			all = append(all, place{p.Arm, at})
		}
	}
	return all
}

// whyNothing describes, for each arm that the run is about at each level, how many of its trials were lost and the
// most frequent reason.
func (s *Summary) whyNothing(run record.Run, t *Table) []string {
	planned := slices.Clone(run.Plan)
	for _, x := range s.Trials.Excluded { // for records without a plan
		planned = append(planned, record.PlannedTrial{Arm: x.Arm, Factors: x.Factors})
	}
	asked := askedArms(run, t)
	places := slices.DeleteFunc(placesOf(planned), func(p place) bool {
		return len(t.outcomes[levelArm{record.LevelKey(p.at), p.arm}]) == 0 || !slices.Contains(asked, p.arm)
	})
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(CompareArms(a.arm, b.arm), CompareLevels(a.at, b.at)) })
	var reasons []string
	for _, p := range places {
		lost := 0
		for _, x := range s.Trials.Excluded {
			if x.Arm == p.arm && record.LevelKey(x.Factors) == record.LevelKey(p.at) {
				lost++
			}
		}
		of := len(t.outcomes[levelArm{record.LevelKey(p.at), p.arm}])
		text := fmt.Sprintf("arm %s lost %d of %d trials", strings.TrimSpace(p.arm+" "+s.At(p.at)), lost, of)
		if left := of - lost; plannedBlocks(run) >= stats.MinBlocks && left < stats.MinBlocks {
			text += fmt.Sprintf(", and an interval needs %d", stats.MinBlocks)
		}
		reasons = append(reasons, text+s.commonest(p.arm, p.at))
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "none of the metrics of the answer was measured")
	}
	return reasons
}

// commonest describes the most frequent reason for losses of one arm at one level, or of all arms at all levels if arm
// is empty. It quotes the first message with that reason as an example. It returns an empty string if nothing was lost.
func (s *Summary) commonest(arm string, at factors) string {
	count := map[string]int{}
	first := map[string]string{}
	var best string
	for _, x := range s.Trials.Excluded {
		if arm != "" && (x.Arm != arm || record.LevelKey(x.Factors) != record.LevelKey(at)) {
			continue
		}
		kind, _, _ := strings.Cut(x.Why, ":")
		if count[kind]++; first[kind] == "" {
			first[kind] = x.Why
		}
		if count[kind] > count[best] {
			best = kind
		}
	}
	if best == "" {
		return ""
	}
	n := count[best]
	_, example, named := strings.Cut(first[best], ": ")
	if !named {
		return fmt.Sprintf("; %d of them %s", n, best)
	}
	if best != "failed" {
		best = "by the gate " + best
	}
	return fmt.Sprintf("; %d of them %s: %s", n, best, example)
}

func plannedBlocks(run record.Run) int {
	if run.Blocks > 0 {
		return run.Blocks
	}
	return len(lists.Keyed(run.Plan, func(p record.PlannedTrial) (int, bool) { return p.Block, true }))
}

// invalidLimit reads gates.invalid, a fraction, from the resolved spec, which has numbers as strings. It returns
// invalidPart if the spec does not set it.
func invalidLimit(spec json.RawMessage) float64 {
	var s struct {
		Gates struct {
			Invalid string `json:"invalid"`
		} `json:"gates"`
	}
	if err := json.Unmarshal(spec, &s); err == nil {
		if v, err := strconv.ParseFloat(s.Gates.Invalid, 64); err == nil && v >= 0 && v <= 1 {
			return v
		}
	}
	return invalidPart
}
