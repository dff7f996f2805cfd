package analysis

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tare/internal/record"
	"tare/internal/stats"
)

// invalidPart is the part of trials that may fail or be invalid before the run is, where the spec does not say.
const invalidPart = 0.25

func countTrials(run record.Run, trials []record.Trial) Trials {
	c := Trials{Planned: max(len(run.Plan), len(trials)), Done: len(trials), Excluded: []Excluded{}}
	for _, t := range trials {
		switch {
		case t.Validity.Failed == record.Interrupted:
			c.Done-- // it neither ended nor failed
			continue
		case t.Validity.Failed != "":
			c.Failed++
		case !t.Validity.Valid:
			c.Invalid++
		default:
			c.Valid++
			continue
		}
		x := Excluded{Index: t.Index, Block: t.Block, Arm: t.Arm, Factors: t.Factors, Why: why(t.Validity)}
		if x.Factors == nil {
			x.Factors = map[string]string{}
		}
		c.Excluded = append(c.Excluded, x)
	}
	return c
}

func why(v record.Validity) string {
	if v.Failed != "" {
		return "failed: " + v.Failed
	}
	var gates []string
	for _, r := range v.Reasons {
		gates = append(gates, r.Gate+": "+r.Message)
	}
	if len(gates) == 0 {
		return "invalid, and no gate is named"
	}
	return strings.Join(gates, "; ")
}

// completeBlocks counts the blocks in which every planned trial is valid. Without a plan, the blocks with any valid trial.
func completeBlocks(run record.Run, t *table) int {
	complete := map[int]bool{}
	for c := range t.cells {
		complete[c.block] = true
	}
	for _, p := range run.Plan {
		if _, ok := t.cells[cell{factors(p.Factors).key(), p.Arm, p.Block}]; !ok {
			delete(complete, p.Block)
		}
	}
	return len(complete)
}

// judge says whether the run as a whole is valid, and what to change when it is not.
func (s *Summary) judge(run record.Run, t *table) {
	limit := invalidLimit(run.Spec)
	lost := s.Trials.Failed + s.Trials.Invalid
	switch {
	case s.Trials.Done == 0:
		s.InvalidReasons = append(s.InvalidReasons, "no trial was finished")
	case s.Trials.Valid == 0:
		s.InvalidReasons = append(s.InvalidReasons, fmt.Sprintf("none of %d trials is valid%s", s.Trials.Done, s.commonest("", nil)))
	case float64(lost) > limit*float64(s.Trials.Done):
		s.InvalidReasons = append(s.InvalidReasons, fmt.Sprintf("%d of %d trials failed or are invalid, and %.3g %% may%s",
			lost, s.Trials.Done, 100*limit, s.commonest("", nil)))
	default:
		s.judgeArms(run, t)
	}
	s.Valid = len(s.InvalidReasons) == 0
	if planned := plannedBlocks(run); s.Valid && planned < stats.MinBlocks {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%d blocks carry no 95 %% interval, so values stand alone and no difference is resolved: %d blocks are the least (--blocks %d)",
			planned, stats.MinBlocks, stats.MinBlocks))
	}
}

// judgeArms asks that every arm that was meant to have intervals kept enough valid blocks for them. A partial run is not held to
// that: it says of itself that it is partial.
func (s *Summary) judgeArms(run record.Run, t *table) {
	if s.Partial || plannedBlocks(run) < stats.MinBlocks {
		return
	}
	type armAt struct {
		arm   string
		level string
	}
	validBlocks, at := map[armAt]int{}, map[armAt]factors{}
	var order []armAt
	for _, p := range run.Plan {
		f := factors(p.Factors)
		k := armAt{p.Arm, f.key()}
		if _, seen := validBlocks[k]; !seen {
			order = append(order, k)
			validBlocks[k], at[k] = 0, f
		}
		if _, ok := t.cells[cell{k.level, p.Arm, p.Block}]; ok {
			validBlocks[k]++
		}
	}
	slices.SortFunc(order, func(a, b armAt) int {
		if c := CompareArms(a.arm, b.arm); c != 0 {
			return c
		}
		return compareFactors(at[a], at[b])
	})
	for _, k := range order {
		if n := validBlocks[k]; n < stats.MinBlocks {
			s.InvalidReasons = append(s.InvalidReasons, fmt.Sprintf("arm %s%s has %d valid blocks, and an interval needs %d%s",
				k.arm, at[k].phrase(" at "), n, stats.MinBlocks, s.commonest(k.arm, at[k])))
		}
	}
}

// commonest is the reason that most trials were lost for, of one arm at one level or of all; its message says what to change.
func (s *Summary) commonest(arm string, at factors) string {
	count := map[string]int{}
	first := map[string]string{}
	var best string
	for _, x := range s.Trials.Excluded {
		if arm != "" && (x.Arm != arm || factors(x.Factors).key() != at.key()) {
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
	_, example, _ := strings.Cut(first[best], ": ")
	if best != "failed" {
		best = "by the gate " + best
	}
	return fmt.Sprintf("; %d of them %s: %s", n, best, example)
}

// phrase writes the factors after the given word: " at rate 1000, connections 64"; nothing where there are none.
func (f factors) phrase(before string) string {
	if len(f) == 0 {
		return ""
	}
	return before + Level(f)
}

func plannedBlocks(run record.Run) int {
	if run.Blocks > 0 {
		return run.Blocks
	}
	blocks := map[int]bool{}
	for _, p := range run.Plan {
		blocks[p.Block] = true
	}
	return len(blocks)
}

// invalidLimit reads gates.invalid from the resolved spec, in which numbers are text.
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
